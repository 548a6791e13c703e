"""Supervised learning, the baseline of everything here: labeled samples only."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from tacit.learn import Batch, BatchLoss, Forward, LocalLoss, Looks
from tacit.losses import cross_entropy
from tacit.method import Holder, Needs
from tacit.objectives.parts import ClassWeights, LabeledView, labeled_loss, on_labels
from tacit.params import Params


@dataclass(frozen=True)
class Supervised:
    """Cross-entropy on the labeled samples; unlabeled ones are not used."""

    view: LabeledView = "weak"
    class_weights: ClassWeights = "none"

    labels_only = True
    needs = Needs()

    @property
    def per_sample(self) -> bool:
        """Whether the loss of a sample depends on no other one; weights of classes count all labels."""
        return self.class_weights == "none"

    def stacked_looks(self, holder: Holder) -> Looks | None:
        """The inputs of a step if its loss is the plain cross-entropy of the labels, so that clients can be stacked."""
        if self.class_weights != "none":
            return None
        return Looks(holder.views, [self.view], "labeled", holder.stream("labeled views"))

    def local_loss(self, holder: Holder, received: Params, carried: Mapping[str, Tensor]) -> LocalLoss:
        """One forward pass over the labeled samples of a batch."""
        labeled = on_labels(holder, self.view, labeled_loss(holder, self.class_weights))

        def cost(w: Params, batch: Batch, forward: Forward) -> BatchLoss:
            x, loss_of = labeled(batch)
            loss = loss_of(forward(x).logits)
            return BatchLoss(loss, {"loss_supervised": loss})

        return LocalLoss(cost)


@dataclass(frozen=True)
class WeakAndStrong:
    """Cross-entropy on the weak and on the strong view of the labeled samples, in one forward pass."""

    labels_only = True
    needs = Needs()

    def local_loss(self, holder: Holder, received: Params, carried: Mapping[str, Tensor]) -> LocalLoss:
        """Both views count the same."""
        looks = Looks(holder.views, ["weak", "strong"], "labeled", holder.stream("labeled views"))

        def cost(w: Params, batch: Batch, forward: Forward) -> BatchLoss:
            logits = forward(torch.cat([looks(batch), looks(batch, 1)])).logits
            loss = cross_entropy(logits, batch.y.repeat(2))
            return BatchLoss(loss, {"loss_supervised": loss})

        return LocalLoss(cost)


OBJECTIVES = {"supervised": Supervised}
