"""Objectives that ask for the same answer to two views of an image: Π-model, Mean Teacher, mixup."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from tacit.learn import Batch, Visit
from tacit.losses import Distance, consistency, mix, ramp_up
from tacit.method import Guesses, Holder, NonNegative, Positive, Probability
from tacit.objectives.parts import Labeler, Teacher, Term, View, agreement, beta_shares, costs, look
from tacit.params import Params, channels_last


@dataclass(frozen=True)
class Pi:
    """Π-model (Laine and Aila 2017): the answer to one view, held fast, is the target of another view."""

    weight: NonNegative = 1.0  # of the consistency term, once it has grown
    ramp: NonNegative = 10.0  # rounds over which the weight grows as exp(-5·(1 - t/T)²); 0: it is there at once
    distance: Distance = "mse"  # between answer and target: mse, squared (summed over classes) or kl
    view: View = "weak"  # how both views are made

    labels_only = False

    def visit(self, holder: Holder, received: Params, kept: Mapping[str, Tensor]) -> Visit:
        """The teacher is the model itself; a copy, so that its pass leaves BatchNorm's statistics alone."""
        weight = self.weight * ramp_up(holder.round, self.ramp)
        return Visit(agreement(holder, self.view, self.distance, lambda: weight, channels_last))


@dataclass(frozen=True)
class MeanTeacher:
    """Mean Teacher (Tarvainen and Valpola 2017): the target comes from an average of the model over its steps."""

    alpha: Probability = 0.999  # α: how slowly the teacher follows; it grows to this as 1 - 1/(t + 1)
    weight: NonNegative = 1.0  # of the consistency term, once it has grown
    ramp: NonNegative = 10.0  # rounds over which the weight grows as exp(-5·(1 - t/T)²); 0: it is there at once
    distance: Distance = "mse"  # between answer and target: mse, squared (summed over classes) or kl
    view: View = "weak"  # how both views are made

    labels_only = False

    def visit(self, holder: Holder, received: Params, kept: Mapping[str, Tensor]) -> Visit:
        """The teacher starts from the received model in every visit: what all clients learnt so far."""
        weight = self.weight * ramp_up(holder.round, self.ramp)
        teacher = channels_last({name: value.to(holder.device) for name, value in received.items()})
        steps = 0

        def follow(w: Params) -> None:
            nonlocal steps
            steps += 1
            alpha = min(1 - 1 / (steps + 1), self.alpha)
            # In place: the order in memory, and with it the last bits of a convolution, stay as they are.
            torch._foreach_lerp_([*teacher.values()], [w[name].detach() for name in teacher], 1 - alpha)

        cost = agreement(holder, self.view, self.distance, lambda: weight, lambda w: teacher)
        return Visit(cost, after_step=follow)


@dataclass(frozen=True)
class Mixup:
    """Mixup (Zhang et al. 2018): mixed images have mixed labels; unlabeled ones those the model gives (ICT, 2019)."""

    alpha: Positive = 1.0  # mixing shares λ are drawn from Beta(α, α)
    weight: NonNegative = 1.0  # of the unlabeled term, once it has grown
    ramp: NonNegative = 10.0  # rounds over which the weight grows as exp(-5·(1 - t/T)²); 0: it is there at once
    distance: Distance = "mse"  # between the answer to a mixed unlabeled image and the mixed answers: mse, squared, kl
    labeler: Labeler = "local"  # who labels: the model as it trains, once the received one, the more confident of both
    view: View = "weak"  # how images are augmented before they are mixed

    labels_only = False
    images_only = True  # characters can not be mixed

    def visit(self, holder: Holder, received: Params, kept: Mapping[str, Tensor]) -> Visit:
        """Partners and shares have a stream of their own."""
        stream = holder.stream("unlabeled views")
        teacher = Teacher(holder, received, self.labeler, self.view, stream)
        drawn, drawn_u = holder.stream("mixup"), holder.stream("mixup unlabeled")
        stream_x = holder.stream("labeled views")

        def labeled(batch: Batch) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
            x = look(holder, self.view, batch.x, stream_x)
            partner, share = _partners(len(x), self.alpha, drawn, x)

            def loss(logits: Tensor) -> Tensor:
                own = functional.cross_entropy(logits, batch.y, reduction="none")
                other = functional.cross_entropy(logits, batch.y[partner], reduction="none")
                return mix(own, other, share).mean()

            return mix(x, x[partner], share), loss

        def unlabeled(w: Params, batch: Batch) -> tuple[Tensor, Callable[[Tensor], Term]]:
            u = look(holder, self.view, batch.u, stream)
            q = teacher(w, batch, u)
            partner, share = _partners(len(u), self.alpha, drawn_u, u)
            target, every = mix(q, q[partner], share), torch.ones_like(batch.index, dtype=torch.bool)

            def term(logits: Tensor) -> Term:
                loss = consistency(logits, target, self.distance).mean()
                return Term(loss, {}, Guesses(batch.index, q.argmax(dim=1), every))

            return mix(u, u[partner], share), term

        return Visit(costs(holder, labeled, self.weight * ramp_up(holder.round, self.ramp), unlabeled))


def _partners(n: int, alpha: float, stream: torch.Generator, like: Tensor) -> tuple[Tensor, Tensor]:
    """(n,) partners and (n,) shares λ ~ Beta(α, α)."""
    partner = torch.randperm(n, generator=stream)
    return partner.to(like.device), beta_shares(n, alpha, stream, like)
