"""What objectives are made of: views of images, predictions on them, and how the terms of a loss add up."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from tacit.learn import EVALUATION_BATCH, Batch, BatchLoss, Forward, Looks, View, seen_as
from tacit.losses import Denominator, Distance, balanced_weights, consistency, cross_entropy, weighted_cross_entropy
from tacit.method import Holder, NonNegative, PseudoLabels
from tacit.params import Params, channels_last

# Settings that several objectives have, with their documentation.
LabeledView = Annotated[View, Field(description="how labeled images are augmented")]
ClassWeights = Annotated[
    Literal["none", "balanced"],
    Field(description="weights of the classes in the labeled term; balanced: a class counts the same with few samples"),
]
Over = Annotated[
    Denominator, Field(description="divide the unlabeled term by the whole batch, or by its accepted samples (kept)")
]
Ramp = Annotated[
    NonNegative,
    Field(description="rounds over which the weight grows as exp(-5·(1 - t/T)²); 0: the full weight from the start"),
]


@dataclass(frozen=True)
class UnlabeledLoss:
    """The loss of the unlabeled samples of a batch, with numbers to log and the pseudo-labels given."""

    loss: Tensor
    metrics: Mapping[str, Tensor] = field(default_factory=dict)
    pseudo_labels: PseudoLabels | None = None


def view_of(holder: Holder, view: View, x: Tensor, stream: torch.Generator) -> Tensor:
    """A batch as the network sees it."""
    return seen_as(holder.views, view, x, stream)


@torch.no_grad()
def predict_view(holder: Holder, model: Params, x: Tensor, view: View, stream: torch.Generator) -> Tensor:
    """(n, …) as stored -> probabilities (n, c) that a model gives to one view of them, in evaluation mode."""
    model = channels_last(model)
    seen = (view_of(holder, view, part, stream) for part in x.to(holder.device).split(EVALUATION_BATCH))
    return torch.cat([functional.softmax(holder.net.apply(model, part), dim=1) for part in seen])


# Inputs (n, …) of the one forward pass that learns, and the loss of their logits (n, c).
Labeled = Callable[[Batch], tuple[Tensor, Callable[[Tensor], Tensor]]]
Unlabeled = Callable[[Params, Batch], tuple[Tensor, Callable[[Tensor], UnlabeledLoss]]]
Cost = Callable[[Params, Batch, Forward], BatchLoss]


def costs(holder: Holder, labeled: Labeled, weight: float, unlabeled: Unlabeled) -> Cost:
    """The cost of a batch: the labeled term plus the weighted unlabeled one, each if there are such samples.

    Both learn from one forward pass, as in FixMatch's own code: one large batch is faster than two.
    """

    def cost(w: Params, batch: Batch, forward: Forward) -> BatchLoss:
        total, metrics, pseudo_labels = torch.zeros((), device=holder.device), {}, None
        inputs, labeled_loss = labeled(batch) if len(batch.x) else (None, None)
        inputs_u, unlabeled_loss = unlabeled(w, batch) if len(batch.u) else (None, None)
        seen = [part for part in (inputs, inputs_u) if part is not None]
        logits = forward(torch.cat(seen) if len(seen) > 1 else seen[0]).logits
        if labeled_loss is not None:
            total = metrics["loss_supervised"] = labeled_loss(logits[: len(batch.x)])
        if unlabeled_loss is not None:
            term = unlabeled_loss(logits[len(batch.x) :])
            total, pseudo_labels = total + weight * term.loss, term.pseudo_labels
            metrics |= {"loss_unlabeled": term.loss, "weight_unlabeled": torch.tensor(weight), **term.metrics}
        return BatchLoss(total, metrics, pseudo_labels)

    return cost


def labeled_loss(holder: Holder, weights: ClassWeights) -> Callable[[Tensor, Tensor], Tensor]:
    """Cross-entropy of logits (n, c) and labels (n,), weighted by the classes among the holder's labels if asked."""
    if weights == "none":
        return cross_entropy
    labels = holder.samples.y[holder.samples.labeled]

    def loss(logits: Tensor, y: Tensor) -> Tensor:
        balanced = balanced_weights(labels, logits.shape[1])
        return weighted_cross_entropy(logits, y, balanced.to(logits, non_blocking=True))

    return loss


def on_labels(holder: Holder, view: View, loss: Callable[[Tensor, Tensor], Tensor] = cross_entropy) -> Labeled:
    """The labeled term: a loss of logits (n, c) and labels (n,) on one view of the labeled samples."""
    looks = Looks(holder.views, [view], "labeled", holder.stream("labeled views"))

    def labeled(batch: Batch) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        return looks(batch), lambda logits: loss(logits, batch.y)

    return labeled


def agreement(
    holder: Holder,
    view: View,
    distance: Distance,
    weight: Callable[[], float],
    target: Callable[[Params], Params],
    over: Literal["labeled", "batch"] = "labeled",
    labeled: Callable[[Tensor, Tensor], Tensor] = cross_entropy,
) -> Cost:
    """Cross-entropy on the labeled samples plus weighted consistency on all: Π-model, Mean Teacher, FedSiam.

    `target` gives the model whose predictions on another view are the targets. The first term is a mean over the
    labeled samples, or their sum over the whole batch; the second is always a mean over all.
    """
    net = holder.net
    student, teacher = (
        Looks(holder.views, [view], "both", holder.stream(use)) for use in ("student views", "teacher views")
    )

    def cost(w: Params, batch: Batch, forward: Forward) -> BatchLoss:
        other, count = target(w), len(batch.x) + len(batch.u)
        logits = forward(student(batch)).logits
        with torch.no_grad():
            targets = functional.softmax(net.apply(other, teacher(batch), train=True), dim=1)
        apart, beta = consistency(logits, targets, distance).mean(), weight()
        metrics = {"loss_unlabeled": apart, "weight_unlabeled": torch.tensor(beta)}
        total = beta * apart
        if len(batch.x):
            metrics["loss_supervised"] = labeled(logits[: len(batch.x)], batch.y)
            share = len(batch.x) / count if over == "batch" else 1.0
            total = total + share * metrics["loss_supervised"]
        return BatchLoss(total, metrics)

    return cost


def beta_shares(n: int, alpha: float, stream: torch.Generator, like: Tensor) -> Tensor:
    """(n,) shares λ ~ Beta(α, α), as two gamma variables over their sum."""
    gamma = torch._standard_gamma(torch.full((2, n), alpha, dtype=torch.float64), generator=stream)
    return (gamma[0] / gamma.sum(dim=0).clamp(min=1e-300)).to(like.device, like.dtype, non_blocking=True)


def accepted_share(accepted: Tensor) -> dict[str, Tensor]:
    """The number that every objective with pseudo-labels logs."""
    return {"kept": accepted.float().mean()}


def progress(holder: Holder) -> float:
    """How far training is: 0 in the first round, 1 in the last."""
    return holder.round / max(1, holder.rounds - 1)
