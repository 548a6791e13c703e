"""Objectives that learn from the labels a model gives with confidence: self-training, FixMatch, UDA."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional

from tacit.learn import Batch, Visit
from tacit.losses import (
    Annealing,
    Denominator,
    annealed_cross_entropy,
    annealing_threshold,
    confident,
    divergence,
    masked_cross_entropy,
    sharpen,
    weighted_mean,
)
from tacit.method import Guesses, Holder, NonNegative, Positive, Probability
from tacit.objectives.parts import Labeler, Teacher, Term, View, costs, kept_share, look, on_labels, progress
from tacit.params import Params


@dataclass(frozen=True)
class PseudoLabel:
    """Self-training (SSFL paper, Eq. 3): the model's confident answers are the labels of the very images it saw."""

    threshold: Probability = 0.95  # τ: least confidence of a pseudo-label
    weight: NonNegative = 1.0  # of the unlabeled term
    over: Denominator = "batch"  # divide the unlabeled term by the batch or by the kept samples
    view: View = "weak"  # how images are augmented, α(x) of the paper

    labels_only = False

    def visit(self, holder: Holder, received: Params, kept: Mapping[str, Tensor]) -> Visit:
        """Nothing to prepare."""
        stream = holder.stream("unlabeled views")

        def unlabeled(w: Params, batch: Batch) -> tuple[Tensor, Callable[[Tensor], Term]]:
            def term(logits: Tensor) -> Term:
                labels, sure = confident(functional.softmax(logits.detach(), dim=1), self.threshold)
                loss = masked_cross_entropy(logits, labels, sure, self.over)
                return Term(loss, kept_share(sure), Guesses(batch.index, labels, sure))

            return look(holder, self.view, batch.u, stream), term

        return Visit(costs(holder, on_labels(holder, self.view), self.weight, unlabeled))


@dataclass(frozen=True)
class FixMatch:
    """FixMatch (Sohn et al. 2020): confident labels of the weak view teach the strong view."""

    threshold: Probability = 0.95  # τ: least confidence of a pseudo-label
    weight: NonNegative = 1.0  # λ_u: weight of the unlabeled term
    over: Denominator = "batch"  # divide the unlabeled term by the batch or by the kept samples
    labeler: Labeler = "local"  # who labels: the model as it trains, once the received one, the more confident of both
    teacher: View = "weak"  # what the local labeler looks at
    view: View = "weak"  # how labeled images are augmented

    labels_only = False

    def visit(self, holder: Holder, received: Params, kept: Mapping[str, Tensor]) -> Visit:
        """With the received model as labeler, all unlabeled samples are labeled here, once."""
        stream = holder.stream("unlabeled views")
        teacher = Teacher(holder, received, self.labeler, self.teacher, stream)

        def unlabeled(w: Params, batch: Batch) -> tuple[Tensor, Callable[[Tensor], Term]]:
            labels, sure = confident(teacher(w, batch), self.threshold)

            def term(logits: Tensor) -> Term:
                loss = masked_cross_entropy(logits, labels, sure, self.over)
                return Term(loss, kept_share(sure), Guesses(batch.index, labels, sure))

            return holder.views.strong(batch.u, stream), term

        return Visit(costs(holder, on_labels(holder, self.view), self.weight, unlabeled))


@dataclass(frozen=True)
class Uda:
    """UDA (Xie et al. 2020): sharpened answers to the plain image are soft targets of the strong view."""

    threshold: Probability = 0.8  # β: least confidence of a target
    temperature: Positive = 0.4  # τ: sharpness of the targets, 1 leaves them as they are
    weight: NonNegative = 1.0  # λ: weight of the unlabeled term
    annealing: Annealing = "exp"  # labeled samples the model is sure of are left out at first: none, linear, log, exp
    over: Denominator = "batch"  # divide the unlabeled term by the batch or by the kept samples
    labeler: Labeler = "local"  # who labels: the model as it trains, once the received one, the more confident of both
    teacher: View = "plain"  # what the local labeler looks at
    view: View = "weak"  # how labeled images are augmented

    labels_only = False

    def visit(self, holder: Holder, received: Params, kept: Mapping[str, Tensor]) -> Visit:
        """The threshold of training-signal annealing holds for a round."""
        stream = holder.stream("unlabeled views")
        teacher = Teacher(holder, received, self.labeler, self.teacher, stream)

        def labeled(logits: Tensor, y: Tensor) -> Tensor:
            return annealed_cross_entropy(
                logits, y, annealing_threshold(progress(holder), logits.shape[1], self.annealing)
            )

        def unlabeled(w: Params, batch: Batch) -> tuple[Tensor, Callable[[Tensor], Term]]:
            q = teacher(w, batch)
            labels, sure = confident(q, self.threshold)

            def term(logits: Tensor) -> Term:
                loss = weighted_mean(divergence(logits, sharpen(q, self.temperature)), sure, self.over)
                return Term(loss, kept_share(sure), Guesses(batch.index, labels, sure))

            return holder.views.strong(batch.u, stream), term

        return Visit(costs(holder, on_labels(holder, self.view, labeled), self.weight, unlabeled))
