"""FixMatch with thresholds that follow what the model has learnt: FlexMatch, FreeMatch, SoftMatch.

What they know of the unlabeled data is each client's own and is kept from one visit to the next.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import blake2b

import torch
from torch import Tensor
from torch.nn import functional

from tacit.learn import Batch, Visit
from tacit.losses import (
    confident,
    fairness,
    flexible_thresholds,
    masked_cross_entropy,
    truncated_gaussian,
    uniformly_aligned,
    weighted_mean,
)
from tacit.method import Guesses, Holder, NonNegative, Probability
from tacit.objectives.parts import Labeler, Teacher, Term, View, costs, kept_share, on_labels
from tacit.params import Params


@dataclass(frozen=True)
class FlexMatch:
    """FlexMatch (Zhang et al. 2021): classes the model seldom names with confidence get a lower threshold."""

    threshold: Probability = 0.95  # τ of the class that is learnt best
    weight: NonNegative = 1.0  # λ_u: weight of the unlabeled term
    labeler: Labeler = "local"  # who labels: the model as it trains, once the received one, the more confident of both
    view: View = "weak"  # how labeled images are augmented

    labels_only = False

    def visit(self, holder: Holder, received: Params, kept: Mapping[str, Tensor]) -> Visit:
        """The last confident label of every unlabeled sample is kept; other samples than last time begin anew."""
        stream = holder.stream("unlabeled views")
        teacher = Teacher(holder, received, self.labeler, "weak", stream)
        mine = holder.samples.unlabeled
        selected = torch.full((len(holder.samples),), -1)
        which = _fingerprint(holder.samples.x[mine])
        if "selected" in kept and int(kept["samples"]) == which:
            selected[mine] = kept["selected"].cpu()

        def unlabeled(w: Params, batch: Batch) -> tuple[Tensor, Callable[[Tensor], Term]]:
            q = teacher(w, batch)
            labels, sure = confident(q, flexible_thresholds(selected[mine], q.shape[1], self.threshold).to(q.device))
            certain = confident(q, self.threshold)[1].cpu()
            selected[batch.index[certain]] = labels.cpu()[certain]

            def term(logits: Tensor) -> Term:
                loss = masked_cross_entropy(logits, labels, sure, "batch")
                return Term(loss, kept_share(sure), Guesses(batch.index, labels, sure))

            return holder.views.strong(batch.u, stream), term

        cost = costs(holder, on_labels(holder, self.view), self.weight, unlabeled)
        return Visit(cost, lambda: {"selected": selected[mine], "samples": torch.tensor(which)} if len(mine) else {})


@dataclass(frozen=True)
class FreeMatch:
    """FreeMatch (Wang et al. 2023): thresholds from the usual confidence, overall and by class, and a fairness term."""

    momentum: Probability = 0.999  # λ of the averages over batches
    fairness: NonNegative = 0.01  # w_f: weight of the fairness term
    weight: NonNegative = 1.0  # w_u: weight of the unlabeled term
    labeler: Labeler = "local"  # who labels: the model as it trains, once the received one, the more confident of both
    view: View = "weak"  # how labeled images are augmented

    labels_only = False

    def visit(self, holder: Holder, received: Params, kept: Mapping[str, Tensor]) -> Visit:
        """The averages begin at 1/C and are kept."""
        stream = holder.stream("unlabeled views")
        teacher = Teacher(holder, received, self.labeler, "weak", stream)
        usual = _Averages(self.momentum, holder.device, kept)

        def unlabeled(w: Params, batch: Batch) -> tuple[Tensor, Callable[[Tensor], Term]]:
            q = teacher(w, batch)
            c = q.shape[1]
            tau = usual.follow("confidence", q.amax(dim=1).mean(), 1 / c)
            p = usual.follow("probability", q.mean(dim=0), 1 / c)
            h = usual.follow("histogram", torch.bincount(q.argmax(dim=1), minlength=c) / len(q), 1 / c)
            labels, sure = confident(q, p / p.max() * tau)

            def term(logits: Tensor) -> Term:
                fair = fairness(p, h, functional.softmax(logits, dim=1), sure)
                loss = masked_cross_entropy(logits, labels, sure, "batch") + self.fairness * fair
                return Term(loss, kept_share(sure) | {"threshold": tau}, Guesses(batch.index, labels, sure))

            return holder.views.strong(batch.u, stream), term

        return Visit(costs(holder, on_labels(holder, self.view), self.weight, unlabeled), usual.values)


@dataclass(frozen=True)
class SoftMatch:
    """SoftMatch (Chen et al. 2023): every pseudo-label counts, but less below the usual confidence."""

    momentum: Probability = 0.999  # m of the averages over batches
    align: bool = True  # confidences are taken as if all classes were equally frequent
    weight: NonNegative = 1.0  # weight of the unlabeled term
    labeler: Labeler = "local"  # who labels: the model as it trains, once the received one, the more confident of both
    view: View = "weak"  # how labeled images are augmented

    labels_only = False

    def visit(self, holder: Holder, received: Params, kept: Mapping[str, Tensor]) -> Visit:
        """The mean begins at 1/C, the variance at 1; both are kept."""
        stream = holder.stream("unlabeled views")
        teacher = Teacher(holder, received, self.labeler, "weak", stream)
        usual = _Averages(self.momentum, holder.device, kept)

        def unlabeled(w: Params, batch: Batch) -> tuple[Tensor, Callable[[Tensor], Term]]:
            q = teacher(w, batch)
            labels = q.argmax(dim=1)
            if self.align:
                q = uniformly_aligned(q, usual.follow("probability", q.mean(dim=0), 1 / q.shape[1]))
            confidence = q.amax(dim=1)
            mean = usual.follow("mean", confidence.mean(), 1 / q.shape[1])
            variance = usual.follow("variance", confidence.var(correction=int(len(q) > 1)), 1.0)
            weights = truncated_gaussian(confidence, mean, variance)
            sure = weights > 0.5  # what a hard threshold would have kept, to compare

            def term(logits: Tensor) -> Term:
                loss = weighted_mean(functional.cross_entropy(logits, labels, reduction="none"), weights)
                return Term(loss, {"kept": weights.mean(), "threshold": mean}, Guesses(batch.index, labels, sure))

            return holder.views.strong(batch.u, stream), term

        return Visit(costs(holder, on_labels(holder, self.view), self.weight, unlabeled), usual.values)


def _fingerprint(x: Tensor) -> int:
    """A number that other samples do not have."""
    digest = blake2b(x.cpu().contiguous().numpy().tobytes(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


class _Averages:
    """Running averages of one client: v ← m·v + (1 - m)·new."""

    def __init__(self, momentum: float, device: torch.device, kept: Mapping[str, Tensor]) -> None:
        self._momentum = momentum
        self._held = {name: value.to(device) for name, value in kept.items()}

    def follow(self, name: str, value: Tensor, start: float) -> Tensor:
        """The average after this value; the first one follows `start`."""
        held = self._held.get(name, torch.full_like(value, start))
        new = self._momentum * held + (1 - self._momentum) * value
        self._held[name] = torch.where(new.isfinite(), new, held)  # one bad batch must not spoil all that follow
        return self._held[name]

    def values(self) -> dict[str, Tensor]:
        """All averages, to be kept."""
        return dict(self._held)
