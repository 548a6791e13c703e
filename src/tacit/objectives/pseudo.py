"""Objectives that learn from the labels a model gives with confidence: self-training, FixMatch, UDA."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional

from tacit.learn import Batch, LocalLoss, Looks, View
from tacit.losses import (
    Annealing,
    aligned,
    annealed_cross_entropy,
    annealing_threshold,
    confident,
    divergence,
    masked_cross_entropy,
    sharpen,
    weighted_mean,
)
from tacit.method import Holder, Needs, NonNegative, Positive, Probability, PseudoLabels
from tacit.objectives.labeling import (
    Debias,
    Judged,
    ThresholdFrom,
    WeakToStrong,
    from_pseudo_labels,
    mean_prediction,
    threshold_at,
)
from tacit.objectives.parts import (
    ClassWeights,
    Over,
    UnlabeledLoss,
    accepted_share,
    costs,
    labeled_loss,
    on_labels,
    progress,
)
from tacit.params import Params


@dataclass(frozen=True)
class PseudoLabel:
    """Self-training (SSFL paper, Eq. 3): the model's confident predictions label the very images it saw."""

    threshold: Probability = 0.95  # τ: least confidence of a pseudo-label
    weight: NonNegative = 1.0  # of the unlabeled term
    over: Over = "batch"
    view: View = "weak"  # how images are augmented, α(x) of the paper
    class_weights: ClassWeights = "none"
    threshold_from: ThresholdFrom = None
    debias: Debias = False

    labels_only = False

    @property
    def needs(self) -> Needs:
        """A known end if the threshold rises until then."""
        return Needs(planned_rounds=self.threshold_from is not None)

    @property
    def per_sample(self) -> bool:
        """Whether the loss of a sample depends on no other one, by weights of classes, a shared mean or debiasing."""
        return self.class_weights == "none" and self.over == "batch" and not self.debias

    def local_loss(self, holder: Holder, received: Params, carried: Mapping[str, Tensor]) -> LocalLoss:
        """Labels and loss come from the same forward pass."""
        threshold = threshold_at(holder, self.threshold, self.threshold_from)
        mean = mean_prediction(holder, received) if self.debias and len(holder.samples.unlabeled) else None
        looks = Looks(holder.views, [self.view], "unlabeled", holder.stream("unlabeled views"))

        def unlabeled(w: Params, batch: Batch) -> tuple[Tensor, Callable[[Tensor], UnlabeledLoss]]:
            def term(logits: Tensor) -> UnlabeledLoss:
                q = functional.softmax(logits.detach(), dim=1)
                labels, accepted = confident(q if mean is None else aligned(q, mean), threshold)
                loss = masked_cross_entropy(logits, labels, accepted, self.over)
                return UnlabeledLoss(loss, accepted_share(accepted), PseudoLabels(batch.index, labels, accepted))

            return looks(batch), term

        return LocalLoss(
            costs(
                holder, on_labels(holder, self.view, labeled_loss(holder, self.class_weights)), self.weight, unlabeled
            )
        )


@dataclass(frozen=True)
class FixMatch(WeakToStrong):
    """FixMatch (Sohn et al. 2020): confident labels of the weak view teach the strong view."""

    threshold: Probability = 0.95  # τ: least confidence of a pseudo-label
    over: Over = "batch"
    teacher: View = "weak"  # the view that the local labeler sees
    class_weights: ClassWeights = "none"
    threshold_from: ThresholdFrom = None

    labels_only = False

    @property
    def needs(self) -> Needs:
        """A known end if the threshold rises until then."""
        return Needs(planned_rounds=self.threshold_from is not None)

    @property
    def per_sample(self) -> bool:
        """Whether the loss of a sample depends on no other one, by weights of classes, a shared mean or debiasing."""
        return self.class_weights == "none" and self.over == "batch" and not self.debias

    def local_loss(self, holder: Holder, received: Params, carried: Mapping[str, Tensor]) -> LocalLoss:
        """If the received model labels, it labels all unlabeled samples here, once."""
        threshold = threshold_at(holder, self.threshold, self.threshold_from)

        def judge(q: Tensor, batch: Batch) -> Judged:
            labels, accepted = confident(q, threshold)
            return Judged(labels, accepted, lambda z: masked_cross_entropy(z, labels, accepted, self.over))

        labeled = labeled_loss(holder, self.class_weights)
        return from_pseudo_labels(holder, received, carried, self, judge, self.teacher, labeled)


@dataclass(frozen=True)
class Uda(WeakToStrong):
    """UDA (Xie et al. 2020): sharpened predictions on the plain image are soft targets of the strong view."""

    threshold: Probability = 0.8  # β: least confidence of a target
    temperature: Positive = 0.4  # τ: sharpness of the targets; 1 leaves them unchanged
    annealing: Annealing = "exp"  # growth of the share of labeled samples used; confident ones are left out at first
    over: Over = "batch"
    teacher: View = "plain"  # the view that the local labeler sees
    threshold_from: ThresholdFrom = None

    labels_only = False

    @property
    def needs(self) -> Needs:
        """A known end if the training signal is annealed, or the threshold rises, over all rounds."""
        return Needs(planned_rounds=self.annealing != "none" or self.threshold_from is not None)

    @property
    def per_sample(self) -> bool:
        """Whether the loss of a sample depends on no other one; annealing and `kept` divide by how many count."""
        return self.annealing == "none" and self.over == "batch" and not self.debias

    def local_loss(self, holder: Holder, received: Params, carried: Mapping[str, Tensor]) -> LocalLoss:
        """The threshold of training-signal annealing holds for a round."""
        least = threshold_at(holder, self.threshold, self.threshold_from)

        def annealed(logits: Tensor, y: Tensor) -> Tensor:
            threshold = annealing_threshold(progress(holder), logits.shape[1], self.annealing)
            return annealed_cross_entropy(logits, y, threshold)

        def judge(q: Tensor, batch: Batch) -> Judged:
            labels, accepted = confident(q, least)
            targets = sharpen(q, self.temperature)
            return Judged(labels, accepted, lambda z: weighted_mean(divergence(z, targets), accepted, self.over))

        return from_pseudo_labels(holder, received, carried, self, judge, self.teacher, annealed)


OBJECTIVES = {"pseudo-label": PseudoLabel, "fixmatch": FixMatch, "uda": Uda}
