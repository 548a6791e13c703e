"""Local SGD: what a step costs, the steps of one visit, the learning rate of a round, and EMA."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from math import cos, pi
from typing import Protocol

import torch
from torch import Tensor

from tacit import params
from tacit.errors import TacitError
from tacit.learn.batching import Batch, batches
from tacit.method import Guesses, Holder, Training
from tacit.params import Params
from tacit.random import seeded


@dataclass(frozen=True)
class Cost:
    """What a batch costs: the scalar to descend on, numbers to log, pseudo-labels to diagnose."""

    total: Tensor
    metrics: Mapping[str, Tensor] = field(default_factory=dict)
    guesses: Guesses | None = None


@dataclass(frozen=True)
class Visit:
    """An objective at work on one holder: the cost of a batch, what follows a step, what to keep for the next visit."""

    cost: Callable[[Params, Batch], Cost]
    keep: Callable[[], dict[str, Tensor]] = dict
    after_step: Callable[[Params], None] = lambda w: None


class Objective(Protocol):
    """What one batch of labeled and unlabeled data costs. Fields are the hyper-parameters."""

    @property
    def labels_only(self) -> bool:
        """Whether it learns from labeled samples only."""
        ...

    def visit(self, holder: Holder, received: Params, kept: Mapping[str, Tensor]) -> Visit:
        """Prepare for one holder that starts from the model `received`; `kept` is from its last visit."""
        ...


@dataclass(frozen=True)
class Kept:
    """What local training carries from one visit to the next, where settings or objective say so."""

    velocity: Params | None = None
    buffers: Params | None = None
    objective: dict[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Trained:
    """The outcome of local training; `steps` is 0 where there was nothing to train on."""

    params: Params
    kept: Kept | None
    steps: int
    metrics: dict[str, float]
    guesses: Guesses | None


def fit(
    holder: Holder,
    start: Params,
    objective: Objective,
    *,
    kept: Kept | None = None,
    prox: float = 0.0,
    correction: Params | None = None,
    mixed: int = 0,
) -> Trained:
    """Train `start` on what the holder has, by its settings.

    Args:
        holder: the client or the server whose samples are used.
        start: the model to start from; it is not changed.
        objective: what a batch costs.
        kept: what the last visit returned, if this is not the first.
        prox: μ of the proximal term μ/2·‖w - start‖².
        correction: added to every gradient (SCAFFOLD's c - c_i), for the trainable parameters.
        mixed: see `batches`.
    """
    train, net, kept = holder.train, holder.net, kept or Kept()
    if train.buffers == "keep" and kept.buffers is not None:
        start = start | kept.buffers
    visit = objective.visit(holder, start, kept.objective)
    run = _Descent(holder, start, kept.velocity if train.optimizer == "keep" else None, prox, correction)
    with seeded(holder.stream("layers"), holder.device):
        for batch in batches(holder, objective.labels_only, mixed=mixed):
            run.step(visit.cost(run.w, batch))
            visit.after_step(run.w)
    w = params.clone(run.w)
    velocity = run.velocity if train.optimizer == "keep" else None
    buffers = {name: w[name] for name in net.buffers} if train.buffers == "keep" else None
    keep = Kept(velocity, buffers or None, visit.keep())
    return Trained(w, keep if keep != Kept() else None, run.steps, run.metrics(), run.guesses())


@dataclass(frozen=True)
class Part:
    """One of several sets of parameters that are trained in turns: where it starts, and what a batch costs it.

    The cost is a function of all sets by name, the others held fast; None where the batch is not for this one.
    """

    start: Params
    cost: Callable[[Mapping[str, Params], Batch], Cost | None]


def fit_in_turns(holder: Holder, parts: Mapping[str, Part], labels_only: bool = False) -> dict[str, Trained]:
    """Train several sets of parameters on the same batches: one SGD step of each, in their order, for every batch."""
    runs = {name: _Descent(holder, part.start, None, 0.0, None) for name, part in parts.items()}
    with seeded(holder.stream("layers"), holder.device):
        for batch in batches(holder, labels_only):
            for name, part in parts.items():
                fast = {other: {key: value.detach() for key, value in run.w.items()} for other, run in runs.items()}
                cost = part.cost(fast | {name: runs[name].w}, batch)
                if cost is not None:
                    runs[name].step(cost)
    return {
        name: Trained(params.clone(run.w), None, run.steps, run.metrics() if run.steps else {}, run.guesses())
        for name, run in runs.items()
    }


class _Descent:
    """SGD on a private copy of the weights: one object per visit, gone after it."""

    def __init__(
        self, holder: Holder, start: Params, velocity: Params | None, prox: float, correction: Params | None
    ) -> None:
        train, names = holder.train, holder.net.trainable
        self.w = params.channels_last({name: value.to(holder.device) for name, value in start.items()})
        self._names, self._train, self._prox = names, train, prox
        self._lr = learning_rate(train, holder.round, holder.rounds)
        self._leaves = [self.w[name].requires_grad_() for name in names]
        self._anchor = [start[name].to(holder.device) for name in names] if prox else []
        self._shift = [] if correction is None else [correction[name].to(holder.device) for name in names]
        kept = params.channels_last(velocity or {})
        self._velocity = [kept[name].to(holder.device) for name in names] if kept else []
        self._sums: dict[str, Tensor] = {}
        self._guesses: list[Guesses] = []
        self.steps = 0

    @property
    def velocity(self) -> Params | None:
        """The momentum buffer by name, or None where there is none."""
        return params.clone(dict(zip(self._names, self._velocity, strict=True))) if self._velocity else None

    def step(self, cost: Cost) -> None:
        """One step: gradient, proximal pull, clipping, correction, weight decay, momentum, in this order."""
        train = self._train
        # Cloned, since they change in place below and autograd may hand out one tensor as two gradients.
        grads = [grad.clone() for grad in torch.autograd.grad(cost.total, self._leaves, materialize_grads=True)]
        with torch.no_grad():
            if self._prox:
                pull = torch._foreach_sub(self._leaves, self._anchor)
                torch._foreach_add_(grads, pull, alpha=self._prox)
            if train.clip is not None:
                total = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads)))
                torch._foreach_mul_(grads, (train.clip / (total + 1e-6)).clamp(max=1.0))
            if self._shift:
                torch._foreach_add_(grads, self._shift)
            if train.weight_decay:
                torch._foreach_add_(grads, self._leaves, alpha=train.weight_decay)
            torch._foreach_add_(self._leaves, self._with_momentum(grads), alpha=-self._lr)
        self._record(cost)

    def _with_momentum(self, grads: list[Tensor]) -> list[Tensor]:
        momentum = self._train.momentum
        if not momentum:
            return grads
        if self._velocity:
            torch._foreach_mul_(self._velocity, momentum)
            torch._foreach_add_(self._velocity, grads)
        else:
            self._velocity = [grad.clone() for grad in grads]
        if not self._train.nesterov:
            return self._velocity
        torch._foreach_add_(grads, self._velocity, alpha=momentum)
        return grads

    def _record(self, cost: Cost) -> None:
        self.steps += 1
        for name, value in cost.metrics.items():
            self._sums[name] = self._sums.get(name, 0) + value.detach()
        if cost.guesses is not None:
            self._guesses.append(cost.guesses)

    def metrics(self) -> dict[str, float]:
        """Each logged number, averaged over the steps."""
        return {name: float(value) / self.steps for name, value in self._sums.items()} | {"steps": self.steps}

    def guesses(self) -> Guesses | None:
        """All pseudo-labels of the visit in one."""
        if not self._guesses:
            return None
        joined = {
            name: torch.cat([getattr(guess, name).cpu() for guess in self._guesses])
            for name in ("index", "label", "kept")
        }
        if any(guess.excluded is not None for guess in self._guesses):
            joined["excluded"] = torch.cat([_excluded(guess).cpu() for guess in self._guesses])
        return Guesses(**joined)


def _excluded(guess: Guesses) -> Tensor:
    """The complementary labels of a batch, which need not have any."""
    return torch.full_like(guess.label, -1) if guess.excluded is None else guess.excluded


def learning_rate(train: Training, round: int, rounds: int) -> float:
    """The learning rate of a round: linear warm-up, then the schedule over the rounds that are left."""
    if round < train.warmup:
        return train.lr * (round + 1) / train.warmup
    kind, _, argument = train.schedule.partition(":")
    elapsed, span = round - train.warmup, max(1, rounds - train.warmup)
    try:
        if kind == "constant" and not argument:
            return train.lr
        if kind == "decay" and 0 < float(argument) <= 1:
            return train.lr * float(argument) ** elapsed
        waves, _, least = argument.partition(":")
        if kind == "cosine" and 0 <= float(least or 0) <= 1:
            return train.lr * max(float(least or 0), cos(float(Fraction(waves or "1/2")) * pi * elapsed / span))
    except (ValueError, ZeroDivisionError, OverflowError):
        pass
    raise TacitError(f"unknown schedule '{train.schedule}': choose constant, cosine, cosine:7/16 or decay:0.995")
