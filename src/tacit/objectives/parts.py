"""What objectives are made of: how images are looked at, who gives pseudo-labels, and how costs add up."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from tacit.learn import Batch, Cost, predict
from tacit.losses import Distance, consistency, cross_entropy
from tacit.method import Guesses, Holder
from tacit.params import Params

View = Literal["plain", "weak", "strong"]
Labeler = Literal["local", "global", "confident"]


@dataclass(frozen=True)
class Term:
    """What the unlabeled samples of a batch cost, with numbers to log and the pseudo-labels given."""

    loss: Tensor
    metrics: Mapping[str, Tensor] = field(default_factory=dict)
    guesses: Guesses | None = None


def look(holder: Holder, view: View, x: Tensor, stream: torch.Generator) -> Tensor:
    """A batch as the network shall see it."""
    if view == "plain":
        return holder.views.plain(x)
    return holder.views.weak(x, stream) if view == "weak" else holder.views.strong(x, stream)


class Teacher:
    """Who labels: the model as it trains, once the received one, or for each sample the more confident of the two.

    The received model does not change while a client trains, so it looks at all un-augmented samples once.
    """

    def __init__(self, holder: Holder, received: Params, labeler: Labeler, view: View, stream: torch.Generator) -> None:
        """Label with the received model, where that is asked for."""
        self._holder, self._labeler, self._view, self._stream = holder, labeler, view, stream
        unlabeled = holder.samples.unlabeled
        self._fixed: Tensor | None = None
        if labeler != "local" and len(unlabeled):
            found = predict(holder.net, received, holder.samples.x[unlabeled], holder.views).to(holder.device)
            self._fixed = found.new_zeros(len(holder.samples), found.shape[1])
            self._fixed[unlabeled.to(holder.device)] = found

    def __call__(self, w: Params, batch: Batch, seen: Tensor | None = None) -> Tensor:
        """(n, c) probabilities for the unlabeled samples of a batch, or a view of them, without gradient."""
        fixed = None if self._fixed is None else self._fixed[batch.index.to(self._holder.device)]
        if fixed is not None and self._labeler == "global":
            return fixed
        with torch.no_grad():
            x = look(self._holder, self._view, batch.u, self._stream) if seen is None else seen
            local = functional.softmax(self._holder.net.apply(w, x, train=True), dim=1)
        if fixed is None:
            return local
        return torch.where((local.amax(1) > fixed.amax(1))[:, None], local, fixed)


# Inputs (n, …) of the one pass that learns, and what their logits (n, c) cost.
Labeled = Callable[[Batch], tuple[Tensor, Callable[[Tensor], Tensor]]]
Unlabeled = Callable[[Params, Batch], tuple[Tensor, Callable[[Tensor], Term]]]


def costs(holder: Holder, labeled: Labeled, weight: float, unlabeled: Unlabeled) -> Callable[[Params, Batch], Cost]:
    """What a batch costs: the labeled term plus the weighted unlabeled one, each where there are such samples.

    Both learn from one pass, as in FixMatch's own code: one large batch is faster than two.
    """

    def cost(w: Params, batch: Batch) -> Cost:
        total, metrics, guesses = torch.zeros((), device=holder.device), {}, None
        inputs, labeled_loss = labeled(batch) if len(batch.x) else (None, None)
        inputs_u, unlabeled_loss = unlabeled(w, batch) if len(batch.u) else (None, None)
        seen = [part for part in (inputs, inputs_u) if part is not None]
        logits = holder.net.apply(w, torch.cat(seen) if len(seen) > 1 else seen[0], train=True)
        if labeled_loss is not None:
            total = metrics["loss_supervised"] = labeled_loss(logits[: len(batch.x)])
        if unlabeled_loss is not None:
            term = unlabeled_loss(logits[len(batch.x) :])
            total, guesses = total + weight * term.loss, term.guesses
            metrics |= {"loss_unlabeled": term.loss, "weight_unlabeled": torch.tensor(weight), **term.metrics}
        return Cost(total, metrics, guesses)

    return cost


def on_labels(holder: Holder, view: View, loss: Callable[[Tensor, Tensor], Tensor] = cross_entropy) -> Labeled:
    """The labeled term: a loss of logits (n, c) and labels (n,) on one view of the labeled samples."""
    stream = holder.stream("labeled views")

    def labeled(batch: Batch) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        return look(holder, view, batch.x, stream), lambda logits: loss(logits, batch.y)

    return labeled


def agreement(
    holder: Holder,
    view: View,
    distance: Distance,
    weight: Callable[[], float],
    target: Callable[[Params], Params],
    over: Literal["labeled", "batch"] = "labeled",
) -> Callable[[Params, Batch], Cost]:
    """Cross-entropy on the labeled samples plus weighted consistency on all: Π-model, Mean Teacher, FedSiam.

    `target` says what a model has to agree with on another view. The first term is a mean over the labeled samples,
    or their sum over the whole batch; the second always a mean over all.
    """
    net, stream, stream_t = holder.net, holder.stream("student views"), holder.stream("teacher views")

    def cost(w: Params, batch: Batch) -> Cost:
        x, other = torch.cat([batch.x, batch.u]), target(w)
        logits = net.apply(w, look(holder, view, x, stream), train=True)
        with torch.no_grad():
            told = functional.softmax(net.apply(other, look(holder, view, x, stream_t), train=True), dim=1)
        apart, beta = consistency(logits, told, distance).mean(), weight()
        metrics = {"loss_unlabeled": apart, "weight_unlabeled": torch.tensor(beta)}
        total = beta * apart
        if len(batch.x):
            metrics["loss_supervised"] = cross_entropy(logits[: len(batch.x)], batch.y)
            share = len(batch.x) / len(x) if over == "batch" else 1.0
            total = total + share * metrics["loss_supervised"]
        return Cost(total, metrics)

    return cost


def beta_shares(n: int, alpha: float, stream: torch.Generator, like: Tensor) -> Tensor:
    """(n,) shares λ ~ Beta(α, α), as two gamma variables over their sum."""
    gamma = torch._standard_gamma(torch.full((2, n), alpha, dtype=torch.float64), generator=stream)
    return (gamma[0] / gamma.sum(dim=0).clamp(min=1e-300)).to(like.device, like.dtype)


def kept_share(kept: Tensor) -> dict[str, Tensor]:
    """The number every objective with pseudo-labels logs."""
    return {"kept": kept.float().mean()}


def progress(holder: Holder) -> float:
    """How far training is: 0 in the first round, 1 in the last."""
    return holder.round / max(1, holder.rounds - 1)
