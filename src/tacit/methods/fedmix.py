"""FedMix: Approximation of Mixup under Mean Augmented Federated Learning (Yoon et al., ICLR 2021), and its family.

Every client averages its labeled samples in groups of M_k and sends the means once; all clients mix with the means of
all. A mean of M_k samples hides which of them had which feature; it does not hide what they have in common, and whoever
knows M_k - 1 of them knows the last one.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import blake2b

import torch
from torch import Tensor
from torch.nn import functional

from tacit.averaging import (
    Weights,
    WeightsDown,
    WeightsState,
    WeightsUp,
    addressed,
    answer,
    merge_weights,
    start_weights,
)
from tacit.errors import TacitError
from tacit.federation import Samples
from tacit.learn import Batch, Cost, Kept, Objective, Visit, fit
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
    """A local model and its samples; means that the server lacks. Neither: only to say that the pool has arrived."""

    trained: WeightsUp | None
    means: Means | None


@dataclass(frozen=True)
class FedMixMemory:
    """The means of all, a fingerprint of the data whose means were sent, and what training keeps."""

    pool: Means | None
    sent: str
    kept: Kept | None


@dataclass(frozen=True)
class _MeanAugmented(ABC):
    """Algorithm 1: what the methods that mix with entries of a common pool share."""

    lam: Probability = 0.1  # λ: share of the mean
    mu: NonNegative = 0.0  # μ: the proximal term of FedProx
    weights: Weights = "samples"  # of the clients in the average
    view: View = "weak"  # how images are augmented

    needs = Needs(client_labels=True, images=True)
    one_entry = True  # of the pool for all samples of a batch, as in Algorithm 2

    def start(self, server: ServerContext) -> FedMixState:
        """Initialize w_0; there are no means yet."""
        return FedMixState(start_weights(server))

    def send(self, server: ServerContext, state: FedMixState) -> tuple[FedMixState, Mapping[int, FedMixDown]]:
        """Round 0 asks every client for its means. Then w_t to S_t, with all means where they are news."""
        if not server.round:
            return state, dict.fromkeys(range(server.clients), FedMixDown(None, None))
        news = self._news(server, state) if state.means else {}
        return state, addressed(partial(FedMixDown, state.common.w), {k: news.get(k) for k in server.cohort})

    def client_update(
        self, client: ClientContext, memory: FedMixMemory | None, down: FedMixDown
    ) -> Reply[FedMixMemory, FedMixUp]:
        """Algorithm 1: send means of new data; LocalUpdate with the means of all, whose receipt is always answered."""
        memory = memory or FedMixMemory(None, "", None)
        mine = _fingerprint(client.data)
        means = self._means(client) if mine != memory.sent else None
        memory = replace(memory, sent=mine, pool=down.pool or memory.pool)
        if down.w is None:
            return Reply(memory, FedMixUp(None, means) if means else None)
        objective: Objective = _Mixed(self, memory.pool) if memory.pool else Supervised(self.view)
        reply = answer(client, fit(client, down.w, objective, kept=memory.kept, prox=self.mu), objective)
        up = FedMixUp(reply.up, means) if reply.up or means or down.pool else None
        return Reply(replace(memory, kept=reply.memory), up, reply.metrics, reply.model)

    def merge(self, server: ServerContext, state: FedMixState, ups: Mapping[int, FedMixUp]) -> FedMixState:
        """w_{t+1} = Σ p_k·w^k; the means that came in replace those the client sent before."""
        fresh = {k: up.means for k, up in ups.items() if up.means is not None}
        trained = {k: up.trained for k, up in ups.items() if up.trained is not None}
        means, told = state.means | fresh, state.told | dict.fromkeys(ups, state.version)
        if fresh:
            sizes = torch.cat([part.of.cpu() for part in means.values()])
            server.log("means", len(sizes))
            server.log("means_smallest_group", int(sizes.min()))
            server.log("means_bytes", sum(t.nbytes for part in means.values() for t in (part.x, part.y, part.of)))
        common = merge_weights(server, state.common, trained, self.weights)
        return FedMixState(common, means, state.version + bool(fresh), told)

    def model(self, state: FedMixState) -> Params:
        """The average."""
        return state.common.w

    def loss(self, answers: Answers, x: Tensor, y: Tensor, mean: Tensor, label: Tensor) -> Tensor:
        """Inputs (n, …), labels (n,), means (1 or n, …), their labels (1 or n, c) -> scalar: mixup, Eq. 3."""
        mixed = answers((1 - self.lam) * x + self.lam * mean)
        return (1 - self.lam) * cross_entropy(mixed, y) + self.lam * _soft(mixed, label)

    def _means(self, client: ClientContext) -> Means | None:
        """Means over groups of M_k samples or more, at most one sample short of two groups."""
        data = client.data.take(client.data.labeled)
        if not (size := self._size(len(data))):
            return None
        order = torch.randperm(len(data), generator=client.streams.at("groups of means", client=client.client))
        rows = order.tensor_split([size * place for place in range(1, len(data) // size)])
        # Only the network knows how many classes there are: a client may lack some.
        classes = client.net.apply(client.initial(), client.views.plain(data.x[:1].to(client.device))).shape[1]
        hot = functional.one_hot(data.y, classes).float()
        x, y = (torch.stack([part[row].float().mean(dim=0) for row in rows]) for part in (data.x, hot))
        return Means(x, y, torch.tensor([len(row) for row in rows]))

    @abstractmethod
    def _size(self, samples: int) -> int:
        """M_k of a client with so many labeled samples; 0 where it sends nothing."""

    def _news(self, server: ServerContext, state: FedMixState) -> Mapping[int, Means]:
        """All means, to those who have not got these yet."""
        lacking = [k for k in server.cohort if state.told.get(k) != state.version]
        return dict.fromkeys(lacking, _joined([state.means[k] for k in sorted(state.means)])) if lacking else {}


@dataclass(frozen=True)
class NaiveMix(_MeanAugmented):
    """Mixup with the means of all clients: (1 - λ)·x + λ·mean, labels likewise."""

    group: Natural = 0  # M_k: samples in a mean; 0: all of a client's, one mean for each client
    force: bool = False  # send means of a single sample, which are samples, and of fewer than M_k

    def __post_init__(self) -> None:
        """Refuse to send samples as they are."""
        if self.group == 1 and not self.force:
            raise TacitError(
                "method.group = 1 sends the samples themselves: choose 2 or more, or --set method.force=true"
            )

    def _size(self, samples: int) -> int:
        """Unless forced, a client sends no mean of a single sample, and none where it has fewer than M_k."""
        size = self.group or samples
        return min(size, samples) if self.force or 1 < size <= samples else 0


@dataclass(frozen=True)
class FedMix(NaiveMix):
    """The first-order approximation of mixup with everybody's samples, from their means (Algorithm 2)."""

    lam: Probability = 0.05  # λ: share of the mean

    def loss(self, answers: Answers, x: Tensor, y: Tensor, mean: Tensor, label: Tensor) -> Tensor:
        """ℓ_1 + ℓ_2 + ℓ_3; ℓ_1 is a mean over the batch, so its gradient by x carries 1/n and ℓ_3 is a sum."""
        seen = ((1 - self.lam) * x).requires_grad_()
        logits = answers(seen)
        l_1, l_2 = (1 - self.lam) * cross_entropy(logits, y), self.lam * _soft(logits, label)
        (by_x,) = torch.autograd.grad(l_1, seen, create_graph=True)
        return l_1 + l_2 + self.lam * (by_x * mean).sum()


@dataclass(frozen=True)
class GlobalMix(_MeanAugmented):
    """Mixup with other clients' very samples: the upper bound of the family, for simulations only."""

    draws: Count = 512  # samples of all clients that a client gets per visit

    needs = Needs(client_labels=True, images=True, simulation=True)
    one_entry = False  # but one for each sample, drawn with replacement: it may be that sample itself

    def _size(self, samples: int) -> int:
        """The samples themselves."""
        return min(1, samples)

    def _news(self, server: ServerContext, state: FedMixState) -> Mapping[int, Means]:
        """Other samples in every round; only those that are drawn are copied."""
        places = [(held, row) for _, held in sorted(state.means.items()) for row in range(len(held.of))]
        news = {}
        for k in server.cohort:
            stream = server.streams.at("samples of others", round=server.round, client=k)
            drawn = [places[i] for i in torch.randint(len(places), (self.draws,), generator=stream).tolist()]
            news[k] = _joined([Means(held.x[row, None], held.y[row, None], held.of[row, None]) for held, row in drawn])
        return news


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
    """What a batch of labeled samples costs beside entries of the pool."""

    method: _MeanAugmented
    pool: Means

    labels_only = True

    def visit(self, holder: Holder, received: Params, kept: Mapping[str, Tensor]) -> Visit:
        """Entries x_g, y_g are drawn from a stream of their own, for every batch; means are seen as images are."""
        stream, drawn = holder.stream("labeled views"), holder.stream("entries of the pool")
        x_g, y_g = holder.views.plain(self.pool.x.to(holder.device)), self.pool.y.to(holder.device)

        def cost(w: Params, batch: Batch) -> Cost:
            x = look(holder, self.method.view, batch.x, stream)
            count = (1 if self.method.one_entry else len(x),)
            row = torch.randint(len(x_g), count, generator=drawn).to(holder.device)
            loss = self.method.loss(lambda at: holder.net.apply(w, at, train=True), x, batch.y, x_g[row], y_g[row])
            return Cost(loss, {"loss_supervised": loss})

        return Visit(cost)


def _soft(logits: Tensor, label: Tensor) -> Tensor:
    """(n, c), (1, c) or (n, c) -> scalar: mean cross-entropy with label shares."""
    return functional.cross_entropy(logits, label.expand_as(logits))


def _joined(parts: Sequence[Means]) -> Means:
    """All of these in one, in their order, on the CPU: without a wire only those of a resume are elsewhere."""
    return Means(*(torch.cat([getattr(part, name).cpu() for part in parts]) for name in ("x", "y", "of")))


def _fingerprint(data: Samples) -> str:
    """What tells one set of labeled samples from another."""
    mine = data.take(data.labeled)
    return blake2b(mine.x.numpy().tobytes() + mine.y.numpy().tobytes(), digest_size=8).hexdigest()


METHODS = {"fedmix": FedMix, "naivemix": NaiveMix, "localmix": LocalMix, "globalmix": GlobalMix}
