"""What one batch of labeled and unlabeled data costs. Each objective is a short class; its fields are its settings."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from tacit.learn import Batch, Cost, Objective, Visit, predict
from tacit.losses import Denominator, confident, cross_entropy, masked_cross_entropy
from tacit.method import Guesses, Holder, NonNegative, Probability
from tacit.params import Params

View = Literal["plain", "weak", "strong"]


@dataclass(frozen=True)
class Supervised:
    """Cross-entropy on the labeled samples; unlabeled ones are not used."""

    view: View = "weak"  # how labeled images are augmented

    labels_only = True

    def visit(self, holder: Holder, received: Params, kept: Mapping[str, Tensor]) -> Visit:
        """Nothing to prepare."""
        stream = holder.stream("labeled views")

        def cost(w: Params, batch: Batch) -> Cost:
            x = look(holder, self.view, batch.x, stream)
            loss = cross_entropy(holder.net.apply(w, x, train=True), batch.y)
            return Cost(loss, {"loss_supervised": loss})

        return Visit(cost)


@dataclass(frozen=True)
class FixMatch:
    """FixMatch (Sohn et al. 2020): confident labels of the weak view teach the strong view."""

    threshold: Probability = 0.95  # τ: least confidence of a pseudo-label
    weight: NonNegative = 1.0  # λ_u: weight of the unlabeled term
    over: Denominator = "batch"  # divide the unlabeled term by the batch or by the kept samples
    labeler: Literal["local", "global"] = "local"  # who labels: the model as it trains, or once the received one
    view: View = "weak"  # how labeled images are augmented

    labels_only = False

    def visit(self, holder: Holder, received: Params, kept: Mapping[str, Tensor]) -> Visit:
        """With the global labeler, all unlabeled samples are labeled here, once."""
        net, views = holder.net, holder.views
        stream, stream_u = holder.stream("labeled views"), holder.stream("unlabeled views")
        # The received model does not change while the client trains: one pass over un-augmented images is enough.
        fixed = predict(net, received, holder.samples.x, views) if self.labeler == "global" else None

        def cost(w: Params, batch: Batch) -> Cost:
            total, metrics = torch.zeros((), device=holder.device), {}
            if len(batch.x):
                x = look(holder, self.view, batch.x, stream)
                total = metrics["loss_supervised"] = cross_entropy(net.apply(w, x, train=True), batch.y)
            if not len(batch.u):
                return Cost(total, metrics)
            if fixed is None:
                with torch.no_grad():
                    q = functional.softmax(net.apply(w, views.weak(batch.u, stream_u), train=True), dim=1)
            else:
                q = fixed[batch.index].to(holder.device)
            labels, kept = confident(q, self.threshold)
            logits = net.apply(w, views.strong(batch.u, stream_u), train=True)
            loss_u = masked_cross_entropy(logits, labels, kept, self.over)
            metrics |= {"loss_unlabeled": loss_u, "kept": kept.float().mean()}
            return Cost(total + self.weight * loss_u, metrics, Guesses(batch.index, labels, kept))

        return Visit(cost)


OBJECTIVES: dict[str, type[Objective]] = {"supervised": Supervised, "fixmatch": FixMatch}


def look(holder: Holder, view: View, x: Tensor, stream: torch.Generator) -> Tensor:
    """A batch as the network shall see it."""
    if view == "plain":
        return holder.views.plain(x)
    return holder.views.weak(x, stream) if view == "weak" else holder.views.strong(x, stream)
