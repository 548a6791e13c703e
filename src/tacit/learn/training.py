"""Local SGD: the loss of a step, and the steps of one visit."""

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from tacit import params
from tacit.learn.batching import Batch, Rates, batches
from tacit.learn.forward import BatchLoss, FeatureTerm, LocalLoss, loss_of_batch
from tacit.learn.private import PrivateGradient
from tacit.learn.rates import learning_rate
from tacit.method import Holder, Needs, PseudoLabels
from tacit.params import Params
from tacit.random import seeded

LOSS_SCALE = 1024.0  # of the loss in fp16, in which small gradients would become 0


class Objective(Protocol):
    """The loss of a batch of labeled and unlabeled data. Fields are the hyper-parameters."""

    @property
    def labels_only(self) -> bool:
        """Whether it learns from labeled samples only."""
        ...

    @property
    def needs(self) -> Needs:
        """What it cannot do without, apart from labels if it learns from labels only."""
        ...

    def local_loss(self, holder: Holder, received: Params, carried: Mapping[str, Tensor]) -> LocalLoss:
        """The loss at a holder that starts from the model `received`; `carried` comes from its last visit."""
        ...


@dataclass(frozen=True)
class LocalState:
    """What local training carries from one visit to the next, if settings or objective ask for it."""

    velocity: Params | None = None
    buffers: Params | None = None
    objective: dict[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Trained:
    """The outcome of local training; `steps` is 0 if there was nothing to train on."""

    params: Params
    carried: LocalState | None
    steps: int
    metrics: dict[str, float]
    pseudo_labels: PseudoLabels | None


@dataclass(frozen=True)
class Visit:
    """What `fit` is asked for; `plain` if nothing is carried, corrected, added or mixed."""

    holder: Holder
    start: Params
    objective: Objective
    prox: float
    plain: bool


# In place of `fit`, while several clients train as one batched model; see `tacit.learn.stacked`.
STAND_IN: ContextVar[Callable[[Visit], Trained] | None] = ContextVar("STAND_IN", default=None)


def fit(
    holder: Holder,
    start: Params,
    objective: Objective,
    *,
    carried: LocalState | None = None,
    prox: float = 0.0,
    correction: Params | None = None,
    term: FeatureTerm | None = None,
    mixed: int = 0,
) -> Trained:
    """Train the model `start` on the holder's samples, by its settings.

    With `holder.sample_noise`, gradients are those of `PrivateGradient`, and nothing is logged that the noise does not
    protect: losses and pseudo-labels are not.

    Args:
        holder: the client or the server whose samples are used.
        start: the model to start from; it is not changed. Tensors beyond those of the network, such as a projection
            that the objective has, are trained with it; the objective finds them in the weights it is given.
        objective: the loss of a batch.
        carried: what the last visit returned, if this is not the first.
        prox: μ of the proximal term μ/2·‖w - start‖².
        correction: added to every gradient (SCAFFOLD's c - c_i), for the trainable parameters.
        term: added to the loss of every batch, on the features of the passes that learn.
        mixed: see `batches`.
    """
    if (stand_in := STAND_IN.get()) is not None:
        plain = carried is None and correction is None and term is None and not mixed
        return stand_in(Visit(holder, start, objective, prox, plain))
    train, net, carried = holder.train, holder.net, carried or LocalState()
    if train.buffers == "keep" and carried.buffers is not None:
        start = start | carried.buffers
    local = objective.local_loss(holder, start, carried.objective)
    run = Descent(holder, start, carried.velocity if train.optimizer == "keep" else None, prox, correction)
    private = None
    if holder.sample_noise is not None:
        rates = Rates.of(holder, objective.labels_only)
        private = PrivateGradient(holder, holder.sample_noise, local, rates)
    with seeded(holder.stream("layers"), holder.device):
        for batch in batches(holder, objective.labels_only, mixed=mixed):
            if private is None:
                run.step(loss_of_batch(local, net, run.w, batch, term))
            else:
                run.descend(private(run.w, batch))
            local.after_step(run.w)
    w = params.clone(run.w)
    velocity = run.velocity if train.optimizer == "keep" else None
    buffers = {name: w[name] for name in net.buffers} if train.buffers == "keep" else None
    left = LocalState(velocity, buffers or None, local.carry())
    metrics = run.metrics() if private is None else run.metrics() | {"sampling_rate": rates.largest}
    return Trained(w, left if left != LocalState() else None, run.steps, metrics, run.pseudo_labels())


@dataclass(frozen=True)
class ParameterBlock:
    """One of several sets of parameters that are trained in turn: its start, and the loss of a batch for it.

    The loss is a function of all sets by name, the others without gradient; None if the batch is not for this one.
    """

    start: Params
    cost: Callable[[Mapping[str, Params], Batch], BatchLoss | None]


def fit_alternating(
    holder: Holder, blocks: Mapping[str, ParameterBlock], labels_only: bool = False
) -> dict[str, Trained]:
    """Train several sets of parameters on the same batches: one SGD step of each, in their order, for every batch."""
    runs = {name: Descent(holder, block.start, None, 0.0, None) for name, block in blocks.items()}
    with seeded(holder.stream("layers"), holder.device):
        for batch in batches(holder, labels_only):
            for name, block in blocks.items():
                fixed = {other: {key: value.detach() for key, value in run.w.items()} for other, run in runs.items()}
                cost = block.cost(fixed | {name: runs[name].w}, batch)
                if cost is not None:
                    runs[name].step(cost)
    return {
        name: Trained(params.clone(run.w), None, run.steps, run.metrics() if run.steps else {}, run.pseudo_labels())
        for name, run in runs.items()
    }


class Descent:
    """SGD on a private copy of the weights; one object per visit."""

    def __init__(
        self, holder: Holder, start: Params, velocity: Params | None, prox: float, correction: Params | None
    ) -> None:
        """Begin at `start`, with what `fit` was given."""
        known = set(holder.net.names)
        train, names = holder.train, (*holder.net.trainable, *(name for name in start if name not in known))
        self.w = params.channels_last({name: value.to(holder.device) for name, value in start.items()})
        self._names, self._train, self._prox = names, train, prox
        self._lr = learning_rate(train, holder.round, holder.rounds)
        self._leaves = [self.w[name].requires_grad_() for name in names]
        self._anchor = [start[name].to(holder.device) for name in names] if prox else []
        self._shift = [] if correction is None else [correction[name].to(holder.device) for name in names]
        before = params.channels_last(velocity or {})
        self._velocity = [before[name].to(holder.device) for name in names] if before else []
        half = train.precision == "fp16"
        self._scale = torch.full((), LOSS_SCALE, device=holder.device) if half else None
        self._sums: dict[str, Tensor] = {}
        self._pseudo_labels: list[PseudoLabels] = []
        self.steps = 0

    @property
    def velocity(self) -> Params | None:
        """The momentum buffer by name; None if there is none."""
        return params.clone(dict(zip(self._names, self._velocity, strict=True))) if self._velocity else None

    def step(self, cost: BatchLoss) -> None:
        """One step along the gradient of a loss, whose numbers are recorded."""
        total = cost.total if self._scale is None else cost.total * self._scale
        # Cloned, since they change in place below and autograd may return one tensor as two gradients.
        grads = [grad.clone() for grad in torch.autograd.grad(total, self._leaves, materialize_grads=True)]
        self.descend(grads if self._scale is None else self._unscaled(grads))
        self._record(cost)

    def _unscaled(self, grads: list[Tensor]) -> list[Tensor]:
        """Gradients of the loss from those of the scaled loss.

        If one overflowed they are zeros, and the scale is halved from now on. Whether one did stays on the device, so
        no step waits for it.
        """
        assert self._scale is not None
        with torch.no_grad():
            fine = torch.stack(torch._foreach_norm(grads)).isfinite().all()
            torch._foreach_div_(grads, self._scale)
            self._scale = torch.where(fine, self._scale, self._scale / 2)
            return [torch.where(fine, grad, 0.0) for grad in grads]

    def descend(self, grads: list[Tensor]) -> None:
        """A step along these gradients, changed in place: proximal pull, clipping, correction, weight decay, momentum.

        They come in this order.
        """
        train = self._train
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
        self.steps += 1

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

    def _record(self, cost: BatchLoss) -> None:
        for name, value in cost.metrics.items():
            self._sums[name] = self._sums.get(name, 0) + value.detach()
        if cost.pseudo_labels is not None:
            self._pseudo_labels.append(cost.pseudo_labels)

    def metrics(self) -> dict[str, float]:
        """Each logged number, averaged over the steps."""
        return {name: float(value) / self.steps for name, value in self._sums.items()} | {"steps": self.steps}

    def pseudo_labels(self) -> PseudoLabels | None:
        """All pseudo-labels of the visit."""
        if not self._pseudo_labels:
            return None
        joined = {
            name: torch.cat([getattr(each, name).cpu() for each in self._pseudo_labels])
            for name in ("index", "label", "accepted")
        }
        if any(each.complementary is not None for each in self._pseudo_labels):
            joined["complementary"] = torch.cat([_complementary(each).cpu() for each in self._pseudo_labels])
        placed = joined["index"] >= 0
        return PseudoLabels(**{name: value[placed] for name, value in joined.items()})


def _complementary(given: PseudoLabels) -> Tensor:
    """The complementary labels of a batch, -1 for all if it has none."""
    return torch.full_like(given.label, -1) if given.complementary is None else given.complementary
