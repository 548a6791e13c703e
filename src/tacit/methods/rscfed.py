"""RSCFed: Random Sampling Consensus Federated Semi-supervised Learning (Liang et al., CVPR 2022).

Some clients have labels, the others learn from a mean teacher. The server draws several random subsets of clients,
makes one model of each, in which models far from the subset's mean count less, and averages these.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import log
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional

from tacit import aggregation as agg
from tacit import params
from tacit.learn import Batch, LocalLoss, LocalState, Looks, View, fit
from tacit.losses import consistency, sharpen
from tacit.method import (
    ClientContext,
    Count,
    Holder,
    Natural,
    Needs,
    NonNegative,
    Positive,
    Probability,
    PseudoLabels,
    Reply,
    ServerContext,
)
from tacit.objectives import Supervised
from tacit.objectives.parts import UnlabeledLoss, costs, on_labels
from tacit.params import Params, channels_last, clone
from tacit.updates import SampleCount, Update

STEPS = "steps"  # of a client's teacher so far, beside its tensors in what local training carries


@dataclass(frozen=True)
class RscFedState:
    """The common model w and, between `send` and `merge`, the subsets of clients."""

    w: Params
    subsets: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True)
class RscFedDown:
    """The common model, and whether only clients with labels train."""

    w: Params
    warmup: bool


@dataclass(frozen=True)
class RscFedUp:
    """A local model w_k, the number n_k of samples it was trained on, and whether all of the client's have a label."""

    w: Update
    n: SampleCount
    full: bool


@dataclass(frozen=True)
class RscFed:
    """Random subsets of clients come to a consensus, in which outliers count less; a mean teacher without labels."""

    subsets: Count = 3  # M: subsets of clients in a round
    members: Count = 5  # K: clients in a subset
    beta: NonNegative = 1e4  # β: how fast a weight falls with the distance, in subsets without a fully labeled client
    beta_labeled: NonNegative = 100.0  # β of subsets with one
    labeled_factor: Positive = 6.0  # a fully labeled client counts this many times
    boost_sizes: bool = False  # it does so already in the mean that distances are measured from
    distance: Literal["l2", "layers"] = "l2"  # to the mean: of all weights, or the sum of that of each tensor
    warmup: Natural = 7  # rounds at the start in which only clients with labels train
    weight: NonNegative = 0.02  # λ: weight of the consistency with the teacher
    temperature: Positive = 0.5  # T: sharpness of the teacher's predictions; 1 leaves them unchanged
    alpha: Probability = 0.999  # α: how slowly the teacher follows; it grows to this as 1 - 1/(s + 1) in step s
    unlabeled_lr: Positive | None = None  # learning rate of clients without labels; train.lr when not given
    view: View = "weak"  # how images are augmented

    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "as-released": {"distance": "layers", "unlabeled_lr": 0.021},
    }

    PAPER_LR: ClassVar[float] = 0.03
    needs = Needs(client_labels=True, true_mean=True)

    def start(self, server: ServerContext) -> RscFedState:
        """The initial model."""
        return RscFedState(server.initial())

    def send(self, server: ServerContext, state: RscFedState) -> tuple[RscFedState, Mapping[int, RscFedDown]]:
        """The model to every client of a subset; in the warm-up to all, since it is unknown who has labels."""
        if server.round < self.warmup:
            return replace(state, subsets=()), dict.fromkeys(range(server.clients), RscFedDown(state.w, warmup=True))
        subsets = draw_subsets(server.cohort, self.subsets, self.members, server.stream("subsets"))
        chosen = sorted({k for subset in subsets for k in subset})
        return replace(state, subsets=subsets), dict.fromkeys(chosen, RscFedDown(state.w, warmup=False))

    def client_update(
        self, client: ClientContext, memory: LocalState | None, down: RscFedDown
    ) -> Reply[LocalState, RscFedUp]:
        """Cross-entropy on labels, and consistency with the client's own teacher on samples without one."""
        n, labeled = len(client.data), len(client.data.labeled)
        if not n or (down.warmup and not labeled):
            return Reply(memory, None)
        if not labeled and self.unlabeled_lr is not None:
            client = replace(client, train=replace(client.train, lr=self.unlabeled_lr))
        objective = Supervised(self.view) if down.warmup or labeled == n else _OwnTeacher(self)
        trained = fit(client, down.w, objective, carried=memory)
        up = RscFedUp(trained.params, labeled if down.warmup else n, labeled == n)
        return Reply(trained.carried, up, trained.metrics, trained.params, trained.pseudo_labels)

    def merge(self, server: ServerContext, state: RscFedState, ups: Mapping[int, RscFedUp]) -> RscFedState:
        """The plain mean of the sub-consensus models; in the warm-up the mean by samples."""
        if not ups:
            return RscFedState(state.w)
        if not state.subsets:
            n = [float(up.n) for up in ups.values()]
            return RscFedState(agg.average(server, state.w, (up.w for up in ups.values()), n))
        arrived = [[ups[k] for k in subset if k in ups and ups[k].n] for subset in state.subsets]
        models = [self._consensus(server, members) for members in arrived if members]
        return RscFedState(agg.average(server, state.w, models, [1.0] * len(models)))

    def model(self, state: RscFedState) -> Params:
        """The common model."""
        return state.w

    def _consensus(self, server: ServerContext, members: Sequence[RscFedUp]) -> Params:
        """One subset's model: the mean, reweighted by how far each model is from the mean by samples (DMA)."""
        factors = [self.labeled_factor if up.full else 1.0 for up in members]
        sizes = [up.n * (factor if self.boost_sizes else 1.0) for up, factor in zip(members, factors, strict=True)]
        middle = server.combine((up.w for up in members), sizes)
        far = [model_distance(up.w, middle, self.distance) for up in members]
        beta = self.beta_labeled if any(up.full for up in members) else self.beta
        boosted = [size * factor for size, factor in zip(sizes, factors, strict=True)]
        return server.combine((up.w for up in members), reweighted(boosted, far, [up.n for up in members], beta))


@dataclass(frozen=True)
class _OwnTeacher:
    """L_CE on labels + λ·‖p - sharpen(q)‖² on samples without one; q by the client's teacher, which it keeps."""

    method: RscFed

    labels_only = False
    needs = Needs()

    def local_loss(self, holder: Holder, received: Params, carried: Mapping[str, Tensor]) -> LocalLoss:
        """The teacher starts from the first model that the client receives, and then follows its own student only."""
        method, net = self.method, holder.net
        own = {name: carried[name] for name in received} if STEPS in carried else received
        teacher = channels_last({name: value.to(holder.device) for name, value in own.items()})
        steps = int(carried[STEPS]) if STEPS in carried else 0
        looks = Looks(holder.views, [method.view, method.view], "unlabeled", holder.stream("unlabeled views"))

        def unlabeled(w: Params, batch: Batch) -> tuple[Tensor, Callable[[Tensor], UnlabeledLoss]]:
            with torch.no_grad():
                q = functional.softmax(net.apply(teacher, looks(batch, 0)), dim=1)
            targets, every = sharpen(q, method.temperature), torch.ones_like(batch.index, dtype=torch.bool)

            def term(logits: Tensor) -> UnlabeledLoss:
                loss = consistency(logits, targets, "squared").mean()
                return UnlabeledLoss(loss, {}, PseudoLabels(batch.index, q.argmax(dim=1), every))

            return looks(batch, 1), term

        def follow(w: Params) -> None:
            nonlocal steps
            alpha = min(1 - 1 / (steps + 1), method.alpha)
            steps += 1
            torch._foreach_lerp_([*teacher.values()], [w[name].detach() for name in teacher], 1 - alpha)

        def carry() -> dict[str, Tensor]:
            return clone(teacher) | {STEPS: torch.tensor(steps)}

        return LocalLoss(costs(holder, on_labels(holder, method.view), method.weight, unlabeled), carry, follow)


def draw_subsets(
    clients: Sequence[int], subsets: int, members: int, stream: torch.Generator
) -> tuple[tuple[int, ...], ...]:
    """Random subsets of clients, each without repetition, ascending; all clients if there are no more than `members`.

    A client can be in several of them, or in none.
    """
    drawn = [torch.randperm(len(clients), generator=stream)[:members].tolist() for _ in range(subsets)]
    return tuple(tuple(sorted(clients[place] for place in places)) for places in drawn)


def model_distance(a: Params, b: Params, kind: Literal["l2", "layers"]) -> float:
    """‖a - b‖ over all weights, or the sum of ‖a - b‖ over the tensors."""
    apart = params.sub(a, b)
    if kind == "l2":
        return params.norm(apart)
    return sum(float(torch.linalg.vector_norm(value)) for value in apart.values())


def reweighted(sizes: Sequence[float], far: Sequence[float], n: Sequence[int], beta: float) -> list[float]:
    """Weights (k,) in the consensus, with sum 1: sizes_k·exp(-β·far_k/n_k), computed so that not all of them vanish."""
    logs = [log(size) - beta * d / count for size, d, count in zip(sizes, far, n, strict=True)]
    return functional.softmax(torch.tensor(logs, dtype=torch.float64), dim=0).tolist()


METHODS = {"rscfed": RscFed}
