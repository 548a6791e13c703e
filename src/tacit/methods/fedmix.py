"""FedMix: Approximation of Mixup under Mean Augmented Federated Learning (Yoon et al., ICLR 2021), and its family.

Every client averages its labeled samples in groups of M_k and sends the means once; all clients mix with the means of
all. A mean of M_k samples hides which of them had which feature; it does not hide what they have in common, and those
who know M_k - 1 of them know the last one.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, Literal

import torch
from torch import Tensor
from torch.nn import functional

from tacit import aggregation as agg
from tacit.aggregation import Weights, WeightsDown, WeightsState, WeightsUp
from tacit.aggregation.server_step import ServerOptimizer, TuneHead
from tacit.errors import TacitError
from tacit.learn import Batch, BatchLoss, Forward, LocalLoss, LocalState, Objective, View, fit
from tacit.losses import cross_entropy
from tacit.method import (
    ClientContext,
    Count,
    Holder,
    Natural,
    Needs,
    NonNegative,
    Positive,
    Probability,
    Reply,
    ServerContext,
    Variant,
)
from tacit.objectives import Mixup, Supervised
from tacit.objectives.parts import view_of
from tacit.params import Params
from tacit.updates import CountField, Facts, Shaped

Logits = Callable[[Tensor], Tensor]  # inputs (n, …) -> logits (n, c)


def _darkest(facts: Facts) -> float | None:
    """The smallest value of a mean; None for samples of floats, which have no range."""
    return None if facts.dtype.is_floating_point else torch.iinfo(facts.dtype).min


def _brightest(facts: Facts) -> float | None:
    """The largest value of a mean, which rounding can lift above that of every sample."""
    return None if facts.dtype.is_floating_point else torch.iinfo(facts.dtype).max + 1


@dataclass(frozen=True)
class Means:
    """Averaged inputs (g, …) in the range of pixels, averaged one-hot labels (g, c), of how many samples each (g,)."""

    x: Annotated[Tensor, Shaped(lambda facts: (None, *facts.shape), least=_darkest, most=_brightest)]
    y: Annotated[Tensor, Shaped(lambda facts: (None, facts.classes), least=0, most=1)]
    of: Annotated[Tensor, Shaped(lambda facts: (None,), torch.int64, least=1), CountField(weight=False)]

    @property
    def smallest_group(self) -> int | None:
        """How many samples the mean of the fewest has; None if there is no mean."""
        return int(self.of.min()) if len(self.of) else None


@dataclass(frozen=True)
class FedMixState:
    """The common model, the means of every client, their version, and the version each client has."""

    common: WeightsState
    means: dict[int, Means] = field(default_factory=dict)
    version: int = 0
    versions: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class FedMixDown:
    """The common model, none while means are collected, and all means, if the client does not have them yet."""

    w: Params | None
    pool: Means | None


@dataclass(frozen=True)
class FedMixUp:
    """A local model and its samples; means that the server lacks. Neither: it only acknowledges the pool."""

    trained: WeightsUp | None
    means: Means | None


@dataclass(frozen=True)
class FedMixMemory:
    """The means of all, the fingerprint of the data whose means were sent, and the state of local training."""

    pool: Means | None = None
    sent: int | None = None
    carried: LocalState | None = None


@dataclass(frozen=True)
class FedMix:
    """The first-order approximation of mixup with everybody's samples, from their means (Algorithm 2)."""

    lam: Probability = 0.05  # λ: share of the mean
    mu: NonNegative = 0.0  # μ: the proximal term of FedProx
    weights: Weights = "samples"
    view: View = "weak"  # how images are augmented
    group: Natural = 0  # M_k: samples in a mean; 0: all of a client's, one mean for each client
    force: bool = False  # also send means of a single sample, which are samples, and of fewer than M_k
    loss: Literal["approximate", "mixup"] = "approximate"  # Algorithm 2, or mixup with the mean itself (Eq. 3)
    pool: Literal["means", "samples"] = "means"  # what clients mix with; samples are for simulations only
    draws: Count = 512  # samples of all clients that a client gets per visit, where the pool has samples
    server_optimizer: ServerOptimizer = "none"
    tune_head: TuneHead = 0

    def __post_init__(self) -> None:
        """Refuse to send the samples themselves as means."""
        if self.group == 1 and not self.force:
            remedy = "choose 2 or more, or --set method.force=true"
            raise TacitError("method.group = 1 sends the samples themselves", remedy, code="method.sends-samples")

    @property
    def needs(self) -> Needs:
        """Labels at clients, inputs that can be mixed, and a simulation where samples are shown to others."""
        simulation, linear = self.pool == "samples", self.tune_head > 0
        return Needs(client_labels=True, mixable=True, simulation=simulation, linear_head=linear, separate_uploads=True)

    def start(self, server: ServerContext) -> FedMixState:
        """Initialize w_0; there are no means yet."""
        return FedMixState(agg.start_weights(server))

    def send(self, server: ServerContext, state: FedMixState) -> tuple[FedMixState, Mapping[int, FedMixDown]]:
        """Round 0 asks every client for its means. Then w_t to S_t, and the pool to clients that do not have it."""
        if not server.round:
            return state, dict.fromkeys(range(server.clients), FedMixDown(None, None))
        pools: Mapping[int, Means] = {}
        if state.means:
            pools = _all_means(server, state) if self.pool == "means" else _drawn_samples(server, state, self.draws)
        return state, agg.share_messages(partial(FedMixDown, state.common.w), {k: pools.get(k) for k in server.cohort})

    def client_update(
        self, client: ClientContext, memory: FedMixMemory | None, down: FedMixDown
    ) -> Reply[FedMixMemory, FedMixUp]:
        """Algorithm 1: send means of new data; LocalUpdate with the means of all, whose receipt is acknowledged."""
        memory = memory or FedMixMemory()
        fingerprint = client.data.take(client.data.labeled).fingerprint()
        means = self._means(client) if fingerprint != memory.sent else None
        memory = replace(memory, sent=fingerprint, pool=down.pool or memory.pool)
        if down.w is None:
            return Reply(memory, FedMixUp(None, means) if means else None)
        objective: Objective = _Mixed(self, memory.pool) if memory.pool else Supervised(self.view)
        trained = fit(client, down.w, objective, carried=memory.carried, prox=self.mu)
        reply = agg.trained_reply(client, trained, objective)
        up = FedMixUp(reply.up, means) if reply.up or means or down.pool else None
        return Reply(replace(memory, carried=reply.memory), up, reply.metrics, reply.model)

    def merge(self, server: ServerContext, state: FedMixState, ups: Mapping[int, FedMixUp]) -> FedMixState:
        """w_{t+1} = Σ p_k·w^k; new means of a client replace those it sent before."""
        fresh = {k: up.means for k, up in ups.items() if up.means is not None}
        trained = {k: up.trained for k, up in ups.items() if up.trained is not None}
        means, versions = state.means | fresh, state.versions | dict.fromkeys(ups, state.version)
        if fresh:
            sizes = torch.cat([part.of.cpu() for part in means.values()])
            server.log("means", len(sizes))
            server.log("means_smallest_group", int(sizes.min()))
            server.log("means_bytes", sum(t.nbytes for part in means.values() for t in (part.x, part.y, part.of)))
        optimizer, epochs = self.server_optimizer, self.tune_head
        common = agg.merge_weights(server, state.common, trained, self.weights, optimizer, epochs)
        return FedMixState(common, means, state.version + bool(fresh), versions)

    def model(self, state: FedMixState) -> Params:
        """The average."""
        return state.common.w

    def _means(self, client: ClientContext) -> Means | None:
        """Means over groups of M_k samples or more, at most one sample short of two groups."""
        data = client.data.take(client.data.labeled)
        if not (size := self._group_size(len(data))):
            return None
        order = torch.randperm(len(data), generator=client.streams.at("groups of means", client=client.client))
        rows = order.tensor_split([size * place for place in range(1, len(data) // size)])
        # Only the network knows how many classes there are: a client may lack some.
        classes = client.net.apply(client.initial(), client.views.plain(data.x[:1].to(client.device))).shape[1]
        hot = functional.one_hot(data.y, classes).float()
        x, y = (torch.stack([part[row].float().mean(dim=0) for row in rows]) for part in (data.x, hot))
        return Means(x, y, torch.tensor([len(row) for row in rows]))

    def _group_size(self, samples: int) -> int:
        """M_k of a client with this many labeled samples; 0: it sends nothing.

        Unless forced, a client sends no mean of a single sample, and none if it has fewer than M_k.
        """
        if self.pool == "samples":
            return min(1, samples)
        size = self.group or samples
        return min(size, samples) if self.force or 1 < size <= samples else 0


@dataclass(frozen=True)
class _Mixed:
    """The loss of labeled samples that are mixed with entries of the pool."""

    method: FedMix
    pool: Means

    labels_only = True
    needs = Needs()

    def local_loss(self, holder: Holder, received: Params, carried: Mapping[str, Tensor]) -> LocalLoss:
        """For every batch an entry x_g, y_g is drawn from its own stream; means are normalised as images are."""
        stream, drawn = holder.stream("labeled views"), holder.stream("entries of the pool")
        x_g, y_g = holder.views.plain(self.pool.x.to(holder.device)), self.pool.y.to(holder.device)
        loss_of = {"approximate": approximate_loss, "mixup": mixup_loss}[self.method.loss]

        def cost(w: Params, batch: Batch, forward: Forward) -> BatchLoss:
            x = view_of(holder, self.method.view, batch.x, stream)
            # One mean for a batch, as in Algorithm 2, but a sample for each sample, which may be that very sample.
            count = (1 if self.method.pool == "means" else len(x),)
            row = torch.randint(len(x_g), count, generator=drawn).to(holder.device, non_blocking=True)
            loss = loss_of(lambda seen: forward(seen).logits, x, batch.y, x_g[row], y_g[row], self.method.lam)
            return BatchLoss(loss, {"loss_supervised": loss})

        return LocalLoss(cost)


def mixup_loss(logits: Logits, x: Tensor, y: Tensor, mean: Tensor, label: Tensor, lam: float) -> Tensor:
    """Inputs (n, …), labels (n,), means (1 or n, …), their labels (1 or n, c) -> scalar: mixup, Eq. 3."""
    mixed = logits((1 - lam) * x + lam * mean)
    return (1 - lam) * cross_entropy(mixed, y) + lam * _soft(mixed, label)


def approximate_loss(logits: Logits, x: Tensor, y: Tensor, mean: Tensor, label: Tensor, lam: float) -> Tensor:
    """Algorithm 2: ℓ_1 + ℓ_2 + ℓ_3 of the same arguments.

    ℓ_1 is a mean over the batch, so its gradient by x carries 1/n and ℓ_3 is a sum.
    """
    seen = ((1 - lam) * x).requires_grad_()
    found = logits(seen)
    l_1, l_2 = (1 - lam) * cross_entropy(found, y), lam * _soft(found, label)
    (by_x,) = torch.autograd.grad(l_1, seen, create_graph=True)
    return l_1 + l_2 + lam * (by_x * mean).sum()


def _soft(logits: Tensor, label: Tensor) -> Tensor:
    """(n, c), (1, c) or (n, c) -> scalar: mean cross-entropy with label shares."""
    return functional.cross_entropy(logits, label.expand_as(logits))


def _all_means(server: ServerContext, state: FedMixState) -> Mapping[int, Means]:
    """All means, for the clients that do not have this version of them."""
    lacking = [k for k in server.cohort if state.versions.get(k) != state.version]
    return dict.fromkeys(lacking, _joined([state.means[k] for k in sorted(state.means)])) if lacking else {}


def _drawn_samples(server: ServerContext, state: FedMixState, draws: int) -> Mapping[int, Means]:
    """Other samples for each client in every round; only those that are drawn are copied."""
    places = [(held, row) for _, held in sorted(state.means.items()) for row in range(len(held.of))]
    pools = {}
    for k in server.cohort:
        stream = server.streams.at("samples of others", round=server.round, client=k)
        drawn = [places[i] for i in torch.randint(len(places), (draws,), generator=stream).tolist()]
        pools[k] = _joined([Means(held.x[row, None], held.y[row, None], held.of[row, None]) for held, row in drawn])
    return pools


def _joined(parts: Sequence[Means]) -> Means:
    """All of these in one, in their order, on the CPU: after a resume some are on another device."""
    return Means(*(torch.cat([getattr(part, name).cpu() for part in parts]) for name in ("x", "y", "of")))


@dataclass(frozen=True)
class LocalMix:
    """Mixup among a client's own samples: the row without any exchange of data."""

    alpha: Positive = 1.0  # mixing shares λ are drawn from Beta(α, α)
    mu: NonNegative = 0.0  # μ: the proximal term of FedProx
    weights: Weights = "samples"
    view: View = "weak"  # how images are augmented
    server_optimizer: ServerOptimizer = "none"
    tune_head: TuneHead = 0

    @property
    def needs(self) -> Needs:
        """Labels at clients, and inputs that can be mixed; a linear last layer, if it is tuned."""
        return Needs(client_labels=True, mixable=True, linear_head=self.tune_head > 0)

    def start(self, server: ServerContext) -> WeightsState:
        """Initialize w_0."""
        return agg.start_weights(server)

    def send(self, server: ServerContext, state: WeightsState) -> tuple[WeightsState, Mapping[int, WeightsDown]]:
        """w_t to S_t."""
        return state, dict.fromkeys(server.cohort, WeightsDown(state.w))

    def client_update(
        self, client: ClientContext, memory: LocalState | None, down: WeightsDown
    ) -> Reply[LocalState, WeightsUp]:
        """LocalUpdate on samples that the client mixes with each other."""
        labeled = replace(client, data=client.data.take(client.data.labeled))
        objective = Mixup(alpha=self.alpha, view=self.view)
        return agg.trained_reply(labeled, fit(labeled, down.w, objective, carried=memory, prox=self.mu), objective)

    def merge(self, server: ServerContext, state: WeightsState, ups: Mapping[int, WeightsUp]) -> WeightsState:
        """w_{t+1} = Σ p_k·w^k."""
        return agg.merge_weights(server, state, ups, self.weights, self.server_optimizer, self.tune_head)

    def model(self, state: WeightsState) -> Params:
        """The average."""
        return state.w


_FIXED = ("loss", "pool")

METHODS = {
    "fedmix": Variant(
        FedMix,
        "The first-order approximation of mixup with everybody's samples, from their means (Algorithm 2).",
        without=(*_FIXED, "draws"),
    ),
    "naivemix": Variant(
        FedMix,
        "Mixup with the means of all clients: (1 - λ)·x + λ·mean, and the labels in the same shares.",
        defaults={"lam": 0.1, "loss": "mixup"},
        without=(*_FIXED, "draws"),
    ),
    "globalmix": Variant(
        FedMix,
        "Mixup with other clients' very samples: the upper bound of the family, for simulations only.",
        defaults={"lam": 0.1, "loss": "mixup", "pool": "samples"},
        without=(*_FIXED, "group", "force"),
    ),
    "localmix": LocalMix,
}
