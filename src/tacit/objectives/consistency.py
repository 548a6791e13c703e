"""Objectives that ask for the same prediction on two views of an image: Π-model, Mean Teacher, mixup."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from tacit.learn import Batch, LocalLoss, Looks, View
from tacit.losses import Distance, consistency, mix, ramp_up
from tacit.method import Holder, Needs, NonNegative, Positive, Probability, PseudoLabels
from tacit.objectives.labeling import Labeling, Teacher
from tacit.objectives.parts import (
    ClassWeights,
    Ramp,
    UnlabeledLoss,
    agreement,
    beta_shares,
    costs,
    labeled_loss,
)
from tacit.params import Params, channels_last

ConsistencyWeight = Annotated[NonNegative, Field(description="of the consistency term, once it has grown")]
TargetDistance = Annotated[
    Distance, Field(description="between prediction and target: mse, squared (summed over classes) or kl")
]
BothViews = Annotated[View, Field(description="how both views are made")]


@dataclass(frozen=True)
class Pi:
    """Π-model (Laine and Aila 2017): the prediction on one view, without gradient, is the target of another view."""

    weight: ConsistencyWeight = 1.0
    ramp: Ramp = 10.0
    distance: TargetDistance = "mse"
    view: BothViews = "weak"
    class_weights: ClassWeights = "none"

    labels_only = False
    needs = Needs()

    def local_loss(self, holder: Holder, received: Params, carried: Mapping[str, Tensor]) -> LocalLoss:
        """The teacher is a copy of the model, so that its forward pass does not change BatchNorm statistics."""
        weight = self.weight * ramp_up(holder.round, self.ramp)
        labeled = labeled_loss(holder, self.class_weights)
        return LocalLoss(agreement(holder, self.view, self.distance, lambda: weight, channels_last, labeled=labeled))


@dataclass(frozen=True)
class MeanTeacher:
    """Mean Teacher (Tarvainen and Valpola 2017): the target comes from an average of the model over its steps."""

    alpha: Probability = 0.999  # α: how slowly the teacher follows; α grows to this as 1 - 1/(t + 1)
    weight: ConsistencyWeight = 1.0
    ramp: Ramp = 10.0
    distance: TargetDistance = "mse"
    view: BothViews = "weak"
    class_weights: ClassWeights = "none"

    labels_only = False
    needs = Needs()

    def local_loss(self, holder: Holder, received: Params, carried: Mapping[str, Tensor]) -> LocalLoss:
        """In every visit the teacher starts from the received model, which holds what all clients learnt so far."""
        weight = self.weight * ramp_up(holder.round, self.ramp)
        teacher = channels_last({name: value.to(holder.device) for name, value in received.items()})
        steps = 0

        def follow(w: Params) -> None:
            nonlocal steps
            steps += 1
            alpha = min(1 - 1 / (steps + 1), self.alpha)
            # In place: the order in memory, and with it the last bits of a convolution, stay the same.
            torch._foreach_lerp_([*teacher.values()], [w[name].detach() for name in teacher], 1 - alpha)

        labeled = labeled_loss(holder, self.class_weights)
        cost = agreement(holder, self.view, self.distance, lambda: weight, lambda w: teacher, labeled=labeled)
        return LocalLoss(cost, after_step=follow)


@dataclass(frozen=True)
class Mixup(Labeling):
    """Mixup (Zhang et al. 2018): mixed images have mixed labels; unlabeled ones those of the model (ICT, 2019)."""

    alpha: Positive = 1.0  # mixing shares λ are drawn from Beta(α, α)
    weight: NonNegative = 1.0  # of the unlabeled term, once it has grown
    ramp: Ramp = 10.0
    distance: Distance = "mse"  # between prediction on a mixed unlabeled image and mixed predictions: mse, squared, kl
    view: View = "weak"  # how images are augmented before they are mixed

    labels_only = False
    needs = Needs(mixable=True)

    def local_loss(self, holder: Holder, received: Params, carried: Mapping[str, Tensor]) -> LocalLoss:
        """Partners and shares have their own random streams."""
        stream = holder.stream("unlabeled views")
        teacher = Teacher(holder, received, self, carried)
        drawn, drawn_u = holder.stream("mixup"), holder.stream("mixup unlabeled")
        looks = Looks(holder.views, [self.view], "labeled", holder.stream("labeled views"))
        looks_u = Looks(holder.views, [self.view], "unlabeled", stream)

        def labeled(batch: Batch) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
            x = looks(batch)
            partner, share = _partners(len(x), self.alpha, drawn, x)

            def loss(logits: Tensor) -> Tensor:
                own = functional.cross_entropy(logits, batch.y, reduction="none")
                other = functional.cross_entropy(logits, batch.y[partner], reduction="none")
                return mix(own, other, share).mean()

            return mix(x, x[partner], share), loss

        def unlabeled(w: Params, batch: Batch) -> tuple[Tensor, Callable[[Tensor], UnlabeledLoss]]:
            u = looks_u(batch)
            q, _ = teacher(w, batch, u)
            partner, share = _partners(len(u), self.alpha, drawn_u, u)
            target, every = mix(q, q[partner], share), torch.ones_like(batch.index, dtype=torch.bool)

            def term(logits: Tensor) -> UnlabeledLoss:
                loss = consistency(logits, target, self.distance).mean()
                return UnlabeledLoss(loss, {}, PseudoLabels(batch.index, q.argmax(dim=1), every))

            return mix(u, u[partner], share), term

        cost = costs(holder, labeled, self.weight * ramp_up(holder.round, self.ramp), unlabeled)
        return LocalLoss(cost, teacher.carry)


def _partners(n: int, alpha: float, stream: torch.Generator, like: Tensor) -> tuple[Tensor, Tensor]:
    """(n,) partners and (n,) shares λ ~ Beta(α, α)."""
    partner = torch.randperm(n, generator=stream)
    return partner.to(like.device, non_blocking=True), beta_shares(n, alpha, stream, like)


OBJECTIVES = {"pi": Pi, "mean-teacher": MeanTeacher, "mixup": Mixup}
