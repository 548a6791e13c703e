"""FedMix: Approximation of Mixup under Mean Augmented Federated Learning (Yoon et al., ICLR 2021), and its family.

Every client averages its labeled samples in groups of M_k and sends the means once; all clients mix with the means of
all. A mean of M_k samples hides which of them had which feature; it does not hide what they have in common, and whoever
knows M_k - 1 of them knows the last one.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from hashlib import blake2b

import torch
from torch import Tensor
from torch.nn import functional

from tacit.averaging import (
    Weights,
    WeightsDown,
    WeightsState,
    WeightsUp,
    answer,
    merge_weights,
    start_weights,
)
from tacit.errors import TacitError
from tacit.federation import Samples
from tacit.learn import Batch, Cost, Kept, Trained, Visit, fit
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
)
from tacit.objectives import Mixup, Supervised
from tacit.objectives.parts import View, look
from tacit.params import Params

Answers = Callable[[Tensor], Tensor]  # inputs (n, …) -> logits (n, c)


@dataclass(frozen=True)
class Means:
    """Averaged inputs (g, …) in the range of pixels, averaged one-hot labels (g, c), of how many samples each (g,)."""

    x: Tensor
    y: Tensor
    of: Tensor


@dataclass(frozen=True)
class FedMixState:
    """The common model, the means of every client, how often these changed, and which of those a client has heard."""

    common: WeightsState
    means: dict[int, Means] = field(default_factory=dict)
    version: int = 0
    told: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class FedMixDown:
    """The common model, none while means are collected, and all means, if the client has not got these yet."""

    w: Params | None
    pool: Means | None


@dataclass(frozen=True)
class FedMixUp:
    """A local model and its number of samples; the client's means, if the server has not got those of its data."""

    trained: WeightsUp | None
    means: Means | None


@dataclass(frozen=True)
class FedMixMemory:
    """The means of all, a fingerprint of the data whose means were sent, and what training keeps."""

    pool: Means | None
    sent: str
    kept: Kept | None


@dataclass(frozen=True)
class NaiveMix:
    """Mixup with the means of all clients: (1 - λ)·x + λ·mean, labels likewise."""

    lam: Probability = 0.1  # λ: share of the mean
    group: Natural = 0  # M_k: samples in a mean; 0: all of a client's, one mean for each client
    force: bool = False  # send means of a single sample, which are samples, and of fewer than M_k
    mu: NonNegative = 0.0  # μ: the proximal term of FedProx
    weights: Weights = "samples"  # of the clients in the average
    view: View = "weak"  # how images are augmented

    needs = Needs(client_labels=True, images=True)

    def __post_init__(self) -> None:
        """Refuse to send samples as they are."""
        if self.group == 1 and not self.force:
            raise TacitError(
                "method.group = 1 sends the samples themselves: choose 2 or more, or --set method.force=true"
            )

    def start(self, server: ServerContext) -> FedMixState:
        """Initialize w_0; there are no means yet."""
        return FedMixState(start_weights(server))

    def send(self, server: ServerContext, state: FedMixState) -> tuple[FedMixState, Mapping[int, FedMixDown]]:
        """Round 0 asks every client for its means. Then w_t to S_t, with all means where they are news."""
        if not server.round:
            return state, dict.fromkeys(range(server.clients), FedMixDown(None, None))
        pool = _joined(state.means)
        return state, {k: FedMixDown(state.common.w, self._news(server, state, pool, k)) for k in server.cohort}

    def client_update(
        self, client: ClientContext, memory: FedMixMemory | None, down: FedMixDown
    ) -> Reply[FedMixMemory, FedMixUp]:
        """Algorithm 1: send means of new data; LocalUpdate with the means of all."""
        memory = memory or FedMixMemory(None, "", None)
        mine = _fingerprint(client.data)
        means = self._means(client) if mine != memory.sent else None
        memory = replace(memory, sent=mine, pool=down.pool or memory.pool)
        if down.w is None:
            return Reply(memory, FedMixUp(None, means) if means else None)
        trained = self._learn(client, down.w, memory)
        reply = answer(client, trained, _LABELS)
        up = FedMixUp(reply.up, means) if reply.up or means else None
        return Reply(replace(memory, kept=trained.kept), up, reply.metrics, reply.model)

    def merge(self, server: ServerContext, state: FedMixState, ups: Mapping[int, FedMixUp]) -> FedMixState:
        """w_{t+1} = Σ p_k·w^k; the means that came in replace those the client sent before."""
        fresh = {k: up.means for k, up in ups.items() if up.means is not None}
        heard = {k: state.version for k, up in ups.items() if up.trained is not None}
        means, told = state.means | fresh, state.told | heard
        trained = {k: up.trained for k, up in ups.items() if up.trained is not None}
        if fresh and (pool := _joined(means)):
            server.log("means", len(pool.of))
            server.log("means_smallest_group", int(pool.of.min()))
            server.log("means_bytes", sum(part.numel() * part.element_size() for part in (pool.x, pool.y, pool.of)))
        common = merge_weights(server, state.common, trained, self.weights)
        return FedMixState(common, means, state.version + bool(fresh), told)

    def model(self, state: FedMixState) -> Params:
        """The average."""
        return state.common.w

    def loss(self, answers: Answers, x: Tensor, y: Tensor, mean: Tensor, label: Tensor) -> Tensor:
        """Inputs (n, …), labels (n,), one mean (1, …) and its label (1, c) -> scalar: mixup with the mean."""
        mixed = answers((1 - self.lam) * x + self.lam * mean)
        return (1 - self.lam) * cross_entropy(mixed, y) + self.lam * _soft(mixed, label)

    def _means(self, client: ClientContext) -> Means | None:
        """Means over groups of M_k samples or more, at most one sample short of two groups.

        Unless forced, a client sends none of a single sample, and none where it has fewer than M_k.
        """
        data = client.data.take(client.data.labeled)
        size = self.group or len(data)
        if not len(data) or (not self.force and (size == 1 or size > len(data))):
            return None
        size = min(size, len(data))
        order = torch.randperm(len(data), generator=client.streams.at("groups of means", client=client.client))
        rows = order.tensor_split([size * place for place in range(1, len(data) // size)])
        x = torch.stack([data.x[row].float().mean(dim=0) for row in rows])
        classes = client.net.apply(client.initial(), client.views.plain(data.x[:1].to(client.device))).shape[1]
        hot = functional.one_hot(data.y, classes).float()
        return Means(x, torch.stack([hot[row].mean(dim=0) for row in rows]), torch.tensor([len(row) for row in rows]))

    def _news(self, server: ServerContext, state: FedMixState, pool: Means | None, client: int) -> Means | None:
        """What a client gets of the pool: all of it, if it has not got it yet."""
        return pool if state.told.get(client) != state.version else None

    def _partners(self, batch: int) -> int:
        """How many entries of the pool a batch is mixed with: one for all its samples."""
        return 1

    def _learn(self, client: ClientContext, w: Params, memory: FedMixMemory) -> Trained:
        return fit(client, w, _Mixed(self, memory.pool), kept=memory.kept, prox=self.mu)


@dataclass(frozen=True)
class FedMix(NaiveMix):
    """The first-order approximation of mixup with everybody's samples, from their means (Algorithm 2)."""

    lam: Probability = 0.05  # λ: share of the mean

    def loss(self, answers: Answers, x: Tensor, y: Tensor, mean: Tensor, label: Tensor) -> Tensor:
        """ℓ_1 + ℓ_2 + ℓ_3; ℓ_1 is a mean over the batch, so its gradient by x carries 1/n and ℓ_3 is a sum."""
        seen = ((1 - self.lam) * x).requires_grad_()
        logits = answers(seen)
        first = (1 - self.lam) * cross_entropy(logits, y)
        (by_x,) = torch.autograd.grad(first, seen, create_graph=True)
        return first + self.lam * _soft(logits, label) + self.lam * (by_x * mean).sum()


@dataclass(frozen=True)
class GlobalMix(NaiveMix):
    """Mixup with other clients' very samples: the upper bound of the family, for simulations only."""

    draws: Count = 512  # samples of all clients that a client gets per visit
    group: Natural = 1  # M_k: the samples themselves
    force: bool = True  # that is the point

    needs = Needs(client_labels=True, images=True, simulation=True)

    def _news(self, server: ServerContext, state: FedMixState, pool: Means | None, client: int) -> Means | None:
        """Other samples in every round."""
        if pool is None:
            return None
        stream = server.streams.at("samples of others", round=server.round, client=client)
        rows = torch.randint(len(pool.of), (self.draws,), generator=stream).to(pool.x.device)
        return Means(pool.x[rows], pool.y[rows], pool.of[rows])

    def _partners(self, batch: int) -> int:
        """Another sample for each."""
        return batch


@dataclass(frozen=True)
class LocalMix:
    """Mixup among a client's own samples: the row without any exchange of data."""

    alpha: Positive = 1.0  # mixing shares λ are drawn from Beta(α, α)
    mu: NonNegative = 0.0  # μ: the proximal term of FedProx
    weights: Weights = "samples"  # of the clients in the average
    view: View = "weak"  # how images are augmented

    needs = Needs(client_labels=True, images=True)

    def start(self, server: ServerContext) -> WeightsState:
        """Initialize w_0."""
        return start_weights(server)

    def send(self, server: ServerContext, state: WeightsState) -> tuple[WeightsState, Mapping[int, WeightsDown]]:
        """w_t to S_t."""
        return state, dict.fromkeys(server.cohort, WeightsDown(state.w))

    def client_update(self, client: ClientContext, memory: Kept | None, down: WeightsDown) -> Reply[Kept, WeightsUp]:
        """LocalUpdate on mixed samples of its own."""
        labeled = replace(client, data=client.data.take(client.data.labeled))
        objective = Mixup(alpha=self.alpha, view=self.view)
        return answer(labeled, fit(labeled, down.w, objective, kept=memory, prox=self.mu), objective)

    def merge(self, server: ServerContext, state: WeightsState, ups: Mapping[int, WeightsUp]) -> WeightsState:
        """w_{t+1} = Σ p_k·w^k."""
        return merge_weights(server, state, ups, self.weights)

    def model(self, state: WeightsState) -> Params:
        """The average."""
        return state.w


@dataclass(frozen=True)
class _Mixed:
    """What a batch of labeled samples costs beside entries of the pool; as FedAvg where there is no pool."""

    method: NaiveMix
    pool: Means | None

    labels_only = True

    def visit(self, holder: Holder, received: Params, kept: Mapping[str, Tensor]) -> Visit:
        """Entries are drawn from a stream of their own, for every batch; the means are seen as images are."""
        stream, drawn, pool = holder.stream("labeled views"), holder.stream("entries of the pool"), self.pool
        means = None if pool is None else holder.views.plain(pool.x.to(holder.device))

        def cost(w: Params, batch: Batch) -> Cost:
            x = look(holder, self.method.view, batch.x, stream)
            if pool is None or means is None:
                loss = cross_entropy(holder.net.apply(w, x, train=True), batch.y)
                return Cost(loss, {"loss_supervised": loss})
            row = torch.randint(len(means), (self.method._partners(len(x)),), generator=drawn)
            label = pool.y.to(holder.device)[row]
            loss = self.method.loss(
                lambda seen: holder.net.apply(w, seen, train=True), x, batch.y, means[row.to(means.device)], label
            )
            return Cost(loss, {"loss_supervised": loss})

        return Visit(cost)


def _soft(logits: Tensor, label: Tensor) -> Tensor:
    """(n, c), (1, c) or (n, c) -> scalar: mean cross-entropy with label shares."""
    return functional.cross_entropy(logits, label.expand_as(logits))


def _joined(means: Mapping[int, Means]) -> Means | None:
    """The means of all clients, in ascending order of these; None where nobody sent any."""
    parts = [means[k] for k in sorted(means)]
    if not parts:
        return None
    return Means(*(torch.cat([getattr(part, name) for part in parts]) for name in ("x", "y", "of")))


def _fingerprint(data: Samples) -> str:
    """What tells one set of labeled samples from another."""
    mine = data.take(data.labeled)
    digest = blake2b(mine.x.numpy().tobytes(), digest_size=8)
    digest.update(mine.y.numpy().tobytes())
    return digest.hexdigest()


_LABELS = Supervised()  # whose samples count in the average

METHODS = {"fedmix": FedMix, "naivemix": NaiveMix, "localmix": LocalMix, "globalmix": GlobalMix}
