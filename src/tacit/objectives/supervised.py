"""Supervised learning, the baseline of everything here: labeled samples only."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from tacit.learn import Batch, Cost, Visit
from tacit.method import Holder
from tacit.objectives.parts import View, on_labels
from tacit.params import Params


@dataclass(frozen=True)
class Supervised:
    """Cross-entropy on the labeled samples; unlabeled ones are not used."""

    view: View = "weak"  # how labeled images are augmented: plain, weak or strong

    labels_only = True

    def visit(self, holder: Holder, received: Params, kept: Mapping[str, Tensor]) -> Visit:
        """Nothing to prepare."""
        labeled = on_labels(holder, self.view)

        def cost(w: Params, batch: Batch) -> Cost:
            x, loss_of = labeled(batch)
            loss = loss_of(holder.net.apply(w, x, train=True))
            return Cost(loss, {"loss_supervised": loss})

        return Visit(cost)
