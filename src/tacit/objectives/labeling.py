"""Who labels unlabeled samples, and what is made of the labels: options that objectives with pseudo-labels share.

An objective inherits them as settings; the code that heeds them is here. With the defaults it is FixMatch's: the model
in training labels the weak view, and what it says is taken as it is.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from tacit import params
from tacit.learn import Batch, LocalLoss, Looks, View, predict
from tacit.losses import aligned, cross_entropy, rising_threshold
from tacit.method import Holder, Natural, NonNegative, Probability, PseudoLabels
from tacit.objectives.parts import LabeledView, UnlabeledLoss, accepted_share, costs, on_labels, progress
from tacit.params import Params

Labeler = Literal["local", "global", "confident"]
ThresholdFrom = Annotated[
    Probability | None,
    Field(description="τ of the first round, which rises to the threshold in the last; always that when not given"),
]
Debias = Annotated[
    bool,
    Field(description="divide predictions by their mean over the holder's samples, towards equally frequent classes"),
]

AVERAGE = "labeler "  # in front of the names of the averaged model's tensors in what a holder carries


@dataclass(frozen=True, kw_only=True)
class Labeling:
    """Who labels."""

    labeler: Labeler = "local"  # who labels: the model in training, the received one, or the more confident of both
    switch_round: Natural | None = None  # from this round on (0 is the first) the model in training labels
    labeler_beta: Annotated[float, Field(ge=0, lt=1)] = 0.0  # β: share of models received earlier in the labeler
    debias: Debias = False

    def labeler_at(self, round: int) -> Labeler:
        """Who labels in a round."""
        return "local" if self.switch_round is not None and round >= self.switch_round else self.labeler


@dataclass(frozen=True, kw_only=True)
class WeakToStrong(Labeling):
    """What FixMatch and its descendants have in common: labels that are given to one view train the strong view."""

    weight: NonNegative = 1.0  # λ_u: weight of the unlabeled term
    consistency: NonNegative = 0.0  # weight of the squared distance between both views' logits, on all samples
    view: LabeledView = "weak"


class Teacher:
    """The source of pseudo-labels: the model in training, the received one, or the more confident of both per sample.

    The received model does not change while a client trains, so it predicts all un-augmented samples once. With
    `labeler_beta` the average of the models that this holder has received takes its place. A holder makes the average
    of its own visits and carries it, so it costs no bytes.
    """

    def __init__(
        self, holder: Holder, received: Params, settings: Labeling, carried: Mapping[str, Tensor], look: bool = False
    ) -> None:
        """Predict with the received model, if labels or their mean come from it; `look`: see `looks`."""
        self._holder, self._labeler = holder, settings.labeler_at(holder.round)
        self.looks = look or self._labeler != "global"  # whether the model in training is asked for every batch
        self._fixed: Tensor | None = None
        self._mean: Tensor | None = None
        self._average: Params = {}
        unlabeled = holder.samples.unlabeled
        asks = self._labeler != "local"
        if not len(unlabeled) or not (asks or settings.debias):
            return
        if asks and settings.labeler_beta:
            received = self._average = averaged(received, carried, settings.labeler_beta)
        found = predict(holder.net, received, holder.samples.x[unlabeled], holder.views).to(holder.device)
        if asks:
            self._fixed = found.new_zeros(len(holder.samples), found.shape[1])
            self._fixed[unlabeled.to(holder.device)] = found
        self._mean = found.mean(dim=0) if settings.debias else None

    def __call__(self, w: Params, batch: Batch, seen: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """(n, c) probabilities for the unlabeled samples of a batch, and the logits of `seen`, both without gradient.

        `seen` is a view of the samples, None if the teacher does not look.
        """
        logits = None
        if seen is not None and self.looks:
            with torch.no_grad():
                logits = self._holder.net.apply(w, seen, train=True)
        found = self._chosen(batch, logits)
        return found if self._mean is None else aligned(found, self._mean), logits

    def carry(self) -> dict[str, Tensor]:
        """The averaged model, for the next visit."""
        return {f"{AVERAGE}{name}": value for name, value in self._average.items()}

    def _chosen(self, batch: Batch, logits: Tensor | None) -> Tensor:
        fixed = None if self._fixed is None else self._fixed[batch.index]
        if fixed is not None and self._labeler == "global":
            return fixed
        assert logits is not None, "the model in training labels, so it has to look"
        local = functional.softmax(logits, dim=1)
        if fixed is None:
            return local
        return torch.where((local.amax(1) > fixed.amax(1))[:, None], local, fixed)


def averaged(received: Params, carried: Mapping[str, Tensor], beta: float) -> Params:
    """β·average + (1 - β)·received, over the models of all visits; the received one at the first."""
    if any(f"{AVERAGE}{name}" not in carried for name in received):
        return received
    before = {name: carried[f"{AVERAGE}{name}"].to(value) for name, value in received.items()}
    return params.lerp(received, before, beta)


def own_values(carried: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What an objective itself carries, without its teacher's average."""
    return {name: value for name, value in carried.items() if not name.startswith(AVERAGE)}


def mean_prediction(holder: Holder, model: Params) -> Tensor:
    """(c,): p̄, the mean of what a model predicts for the holder's unlabeled samples as they are; they must exist."""
    found = predict(holder.net, model, holder.samples.x[holder.samples.unlabeled], holder.views)
    return found.mean(dim=0).to(holder.device)


def threshold_at(holder: Holder, threshold: float, first: float | None) -> float:
    """τ of the holder's round: the threshold, or on its way there from `first`."""
    return threshold if first is None else rising_threshold(progress(holder), first, threshold)


@dataclass(frozen=True)
class Judged:
    """What an objective makes of a teacher's predictions: labels, which of them count, and the loss by them."""

    labels: Tensor  # (n,)
    accepted: Tensor  # (n,) bool
    loss: Callable[[Tensor], Tensor]  # logits (n, c) of the strong view -> scalar
    metrics: Mapping[str, Tensor] = field(default_factory=dict)


def from_pseudo_labels(
    holder: Holder,
    received: Params,
    carried: Mapping[str, Tensor],
    objective: WeakToStrong,
    judge: Callable[[Tensor, Batch], Judged],
    teacher: View = "weak",
    labeled: Callable[[Tensor, Tensor], Tensor] = cross_entropy,
    carry: Callable[[], dict[str, Tensor]] = dict,
) -> LocalLoss:
    """The loss of FixMatch and its descendants: labels that a teacher gives on one view train the strong view.

    Args:
        holder: the client or the server that trains.
        received: the model it starts from.
        carried: what it carried from its last visit.
        objective: the settings.
        judge: gets the teacher's probabilities (n, c) for the unlabeled samples of a batch.
        teacher: the view that the model in training labels.
        labeled: the loss of logits (n, c) and labels (n,) of the labeled samples.
        carry: what the objective itself carries to the next visit.
    """
    labeler = Teacher(holder, received, objective, carried, look=objective.consistency > 0)
    kinds: list[View] = [teacher, "strong"] if labeler.looks else ["strong"]
    looks = Looks(holder.views, kinds, "unlabeled", holder.stream("unlabeled views"))

    def unlabeled(w: Params, batch: Batch) -> tuple[Tensor, Callable[[Tensor], UnlabeledLoss]]:
        q, logits_there = labeler(w, batch, looks(batch) if labeler.looks else None)
        judged = judge(q, batch)

        def term(logits: Tensor) -> UnlabeledLoss:
            loss, metrics = judged.loss(logits), accepted_share(judged.accepted) | {**judged.metrics}
            if objective.consistency and logits_there is not None:
                metrics["loss_consistency"] = functional.mse_loss(logits, logits_there)
                loss = loss + objective.consistency * metrics["loss_consistency"]
            return UnlabeledLoss(loss, metrics, PseudoLabels(batch.index, judged.labels, judged.accepted))

        return looks(batch, len(kinds) - 1), term

    cost = costs(holder, on_labels(holder, objective.view, labeled), objective.weight, unlabeled)
    return LocalLoss(cost, lambda: carry() | labeler.carry())
