"""FixMatch with thresholds that follow what the model has learnt: FlexMatch, FreeMatch, SoftMatch.

What they know about the unlabeled data belongs to each client and is carried from one visit to the next.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from tacit.learn import Batch, LocalLoss
from tacit.losses import (
    aligned,
    class_counts,
    confident,
    fairness,
    flexible_thresholds,
    masked_cross_entropy,
    truncated_gaussian,
    weighted_mean,
)
from tacit.method import Holder, Needs, NonNegative, Probability
from tacit.objectives.labeling import (
    Judged,
    ThresholdFrom,
    WeakToStrong,
    from_pseudo_labels,
    own_values,
    threshold_at,
)
from tacit.objectives.parts import ClassWeights, labeled_loss
from tacit.params import Params


@dataclass(frozen=True)
class FlexMatch(WeakToStrong):
    """FlexMatch (Zhang et al. 2021): classes the model seldom predicts with confidence get a lower threshold."""

    threshold: Probability = 0.95  # τ of the class that is learnt best
    class_weights: ClassWeights = "none"
    threshold_from: ThresholdFrom = None

    labels_only = False

    @property
    def needs(self) -> Needs:
        """A known end if the threshold rises until then."""
        return Needs(planned_rounds=self.threshold_from is not None)

    def local_loss(self, holder: Holder, received: Params, carried: Mapping[str, Tensor]) -> LocalLoss:
        """Carries the last confident label of every unlabeled sample; starts afresh if the samples changed."""
        threshold = threshold_at(holder, self.threshold, self.threshold_from)
        fingerprint = holder.samples.take(holder.samples.unlabeled).fingerprint()
        mine = holder.samples.unlabeled.to(holder.device)
        selected = torch.full((len(holder.samples),), -1, device=holder.device)
        if "selected" in carried and int(carried["samples"]) == fingerprint:
            selected[mine] = carried["selected"].to(holder.device)

        def judge(q: Tensor, batch: Batch) -> Judged:
            thresholds = flexible_thresholds(selected[mine], q.shape[1], threshold)
            labels, accepted = confident(q, thresholds)
            certain = confident(q, threshold)[1]
            selected[batch.index] = torch.where(certain, labels, selected[batch.index])
            return Judged(labels, accepted, lambda z: masked_cross_entropy(z, labels, accepted, "batch"))

        def carry() -> dict[str, Tensor]:
            return {"selected": selected[mine], "samples": torch.tensor(fingerprint)} if len(mine) else {}

        labeled = labeled_loss(holder, self.class_weights)
        return from_pseudo_labels(holder, received, carried, self, judge, labeled=labeled, carry=carry)


@dataclass(frozen=True)
class FreeMatch(WeakToStrong):
    """FreeMatch (Wang et al. 2023): thresholds from the mean confidence, overall and by class, and a fairness term."""

    momentum: Probability = 0.999  # λ of the averages over batches
    fairness: NonNegative = 0.01  # w_f: weight of the fairness term
    class_weights: ClassWeights = "none"

    labels_only = False
    needs = Needs()
    logs = ("threshold",)

    def local_loss(self, holder: Holder, received: Params, carried: Mapping[str, Tensor]) -> LocalLoss:
        """Carries the averages, which start at 1/C."""
        averages = _Averages(self.momentum, holder.device, carried)

        def judge(q: Tensor, batch: Batch) -> Judged:
            c = q.shape[1]
            tau = averages.follow("confidence", q.amax(dim=1).mean(), 1 / c)
            p = averages.follow("probability", q.mean(dim=0), 1 / c)
            h = averages.follow("histogram", class_counts(q.argmax(dim=1), c) / len(q), 1 / c)
            labels, accepted = confident(q, p / p.max() * tau)

            def loss(logits: Tensor) -> Tensor:
                fair = fairness(p, h, functional.softmax(logits, dim=1), accepted)
                return masked_cross_entropy(logits, labels, accepted, "batch") + self.fairness * fair

            return Judged(labels, accepted, loss, {"threshold": tau})

        labeled = labeled_loss(holder, self.class_weights)
        return from_pseudo_labels(holder, received, carried, self, judge, labeled=labeled, carry=averages.values)


@dataclass(frozen=True)
class SoftMatch(WeakToStrong):
    """SoftMatch (Chen et al. 2023): every pseudo-label counts, but less below the mean confidence."""

    momentum: Probability = 0.999  # m of the averages over batches
    align: bool = True  # take confidences as if all classes were equally frequent
    class_weights: ClassWeights = "none"

    labels_only = False
    needs = Needs()
    logs = ("threshold",)

    def local_loss(self, holder: Holder, received: Params, carried: Mapping[str, Tensor]) -> LocalLoss:
        """Carries the mean, which starts at 1/C, and the variance, which starts at 1."""
        averages = _Averages(self.momentum, holder.device, carried)

        def judge(q: Tensor, batch: Batch) -> Judged:
            labels = q.argmax(dim=1)
            if self.align:
                q = aligned(q, averages.follow("probability", q.mean(dim=0), 1 / q.shape[1]))
            confidence = q.amax(dim=1)
            mean = averages.follow("mean", confidence.mean(), 1 / q.shape[1])
            variance = averages.follow("variance", confidence.var(correction=int(len(q) > 1)), 1.0)
            weights = truncated_gaussian(confidence, mean, variance)
            accepted = weights > 0.5  # what a hard threshold would have accepted, to compare

            def loss(logits: Tensor) -> Tensor:
                return weighted_mean(functional.cross_entropy(logits, labels, reduction="none"), weights)

            return Judged(labels, accepted, loss, {"kept": weights.mean(), "threshold": mean})

        labeled = labeled_loss(holder, self.class_weights)
        return from_pseudo_labels(holder, received, carried, self, judge, labeled=labeled, carry=averages.values)


class _Averages:
    """Running averages of one client: v ← m·v + (1 - m)·new."""

    def __init__(self, momentum: float, device: torch.device, carried: Mapping[str, Tensor]) -> None:
        self._momentum = momentum
        self._values = {name: value.to(device) for name, value in own_values(carried).items()}

    def follow(self, name: str, value: Tensor, start: float) -> Tensor:
        """The average after this value; the first one follows `start`."""
        old = self._values.get(name, torch.full_like(value, start))
        new = self._momentum * old + (1 - self._momentum) * value
        self._values[name] = torch.where(new.isfinite(), new, old)  # one bad batch must not spoil all that follow
        return self._values[name]

    def values(self) -> dict[str, Tensor]:
        """All averages by name."""
        return dict(self._values)


OBJECTIVES = {"flexmatch": FlexMatch, "freematch": FreeMatch, "softmatch": SoftMatch}
