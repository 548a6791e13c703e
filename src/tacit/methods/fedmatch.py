"""FedMatch: Federated Semi-Supervised Learning with Inter-Client Consistency (Jeong et al., ICLR 2021)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional

from tacit import params
from tacit.averaging import logged
from tacit.learn import Batch, Cost, Part, Trained, fit_in_turns, loss_on
from tacit.losses import agreement_labels, cross_entropy
from tacit.method import (
    ClientContext,
    Count,
    Guesses,
    Holder,
    Natural,
    Needs,
    NonNegative,
    Positive,
    Probability,
    Reply,
    ServerContext,
)
from tacit.objectives.inter_client import Neighbours, inter_client, told_by
from tacit.objectives.parts import View, look
from tacit.params import Params, Sparse, patch, sparsify

SERVER = -1  # the server's number among the entities that have a learning rate


# What the released code does where its clients have labels, and the paper does not say.
_RELEASED: dict[str, Any] = {
    "cached": False,
    "threshold": 0.75,
    "ties": "lowest",
    "consistency_on": "kept",
    "lambda_l1": 1e-4,
    "psi_start": 0.2,
    "delta_down": 5e-5,
    "delta_up": 5e-5,
    "mask_down": False,
    "zero": 5e-6,
    "noise": "pixels",
}


@dataclass(frozen=True)
class Pair:
    """σ, learnt from labels, and ψ, learnt without: θ = σ + ψ. Buffers are σ's alone."""

    sigma: Params
    psi: Params


@dataclass(frozen=True)
class Rate:
    """An entity's learning rate as a share of the first one, its lowest validation loss, and how long that is ago."""

    share: float = 1.0
    best: float = 1e30
    waited: int = 0


@dataclass(frozen=True)
class FedMatchState:
    """σ and ψ; of each client seen what it holds, its embedding m, and when its helpers were chosen."""

    common: Pair
    held: dict[int, Pair] = field(default_factory=dict)
    embeddings: dict[int, Tensor] = field(default_factory=dict)
    helped: dict[int, int] = field(default_factory=dict)  # helpers of rounds refresh·n and after, by n
    rates: dict[int, Rate] = field(default_factory=dict)


@dataclass(frozen=True)
class FedMatchDown:
    """Changes of σ and ψ against what the client holds, of its helpers' ψ against that ψ, and its learning rate."""

    sigma: dict[str, Sparse]
    psi: dict[str, Sparse]
    helpers: tuple[dict[str, Sparse], ...] | None  # None: those it has already
    rate: float


@dataclass(frozen=True)
class FedMatchUp:
    """Changes of σ and ψ against what the client received; no σ from a client without labels."""

    sigma: dict[str, Sparse] | None
    psi: dict[str, Sparse]


@dataclass(frozen=True)
class FedMatchMemory:
    """What the client holds, exactly as the server knows it, and its helpers' ψ."""

    pair: Pair
    helpers: tuple[Params, ...]


@dataclass(frozen=True)
class FedMatch:
    """σ learns from labels, ψ from agreement with helpers, each while the other is held; only changes travel."""

    helpers: Natural = 2  # H: models of other clients that help; 0 is without inter-client consistency
    refresh: Count = 10  # rounds after which helpers are chosen anew
    cached: bool = True  # a client keeps its helpers until then; else it has them in every refresh-th round only
    threshold: Probability = 0.85  # τ: least confidence of a pseudo-label
    ties: Literal["local", "lowest"] = "local"  # equally many votes: the client's own class, or the lowest
    consistency_on: Literal["all", "kept"] = "all"  # samples that are compared with helpers: all or the confident ones
    lambda_s: NonNegative = 10.0  # λ_s: weight of the labeled term
    lambda_iccs: NonNegative = 0.01  # λ_ICCS: weight of the unlabeled term
    lambda_l2: NonNegative = 10.0  # λ_L2: pull of ψ towards σ
    lambda_l1: NonNegative | None = None  # λ_L1: sparsity of ψ; 1e-4, or 1e-5 at clients without labels
    norms: Literal["sum", "mean"] = "sum"  # L1 and L2 over all entries of ψ, or on average
    psi_start: NonNegative = 0.0  # ψ at first, as a share of σ
    delta_down: NonNegative = 1e-5  # changes no larger than this are not sent to clients
    delta_up: NonNegative = 1e-5  # nor to the server
    mask_down: bool = True  # else delta_down only counts: everything is sent
    zero: NonNegative = 0.0  # entries of ψ no larger than this are sent as 0
    noise: Literal["gaussian", "pixels"] = "gaussian"  # what embeddings are answers to
    patience: Count = 5  # visits without a lower validation loss after which an entity learns more slowly
    decay: Positive = 3.0  # by this factor
    learns: Literal["both", "sigma", "psi", "one"] = "both"  # ablations: one part alone, or no decomposition at all
    view: View = "plain"  # how labeled images are augmented

    needs = Needs(fresh_momentum=True, averaged_buffers=True)
    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "as-written": {},
        "as-released": _RELEASED,  # labels at the clients
        "as-released-server": _RELEASED
        | {"lambda_l1": 1e-5, "delta_down": 1e-5, "delta_up": 1e-5, "zero": 1e-5}
        | {"patience": 20},
    }

    def start(self, server: ServerContext) -> FedMatchState:
        """Line 2: initialize σ⁰ and ψ⁰."""
        sigma = server.initial()
        # 0 · σ is -0.0 where σ is negative, which has bits of its own and would travel; + 0 makes it 0.
        psi = {name: self.psi_start * sigma[name] + 0.0 for name in server.net.trainable}
        return FedMatchState(Pair(sigma, psi))

    def send(self, server: ServerContext, state: FedMatchState) -> tuple[FedMatchState, Mapping[int, FedMatchDown]]:
        """Algorithm 2, lines 4-8: σ learns from the server's labels. Lines 6-7 / 11-12: what each client gets."""
        state = self._learn_at_server(server, state)
        nearest = Neighbours(state.embeddings)
        helpers = {k: self._helpers(server, state, k, nearest) for k in server.cohort}
        new = next((k for k in server.cohort if k not in state.held), None)  # one stands for all: they get the same
        like = {k: k if new is None or k in state.held else new for k in server.cohort}
        counted = {k: self._changes(state, k, helpers[k], self.delta_down) for k in like.values()}
        server.log("s2c", _dense_models(server, [counted[k] for k in like.values()]) / max(1, len(like)))
        if not self.mask_down:
            counted = {k: self._changes(state, k, helpers[k], 0.0) for k in counted}
        downs = {k: self._down(state, k, helpers[k], changes) for k, changes in counted.items()}
        return state, {k: downs[other] for k, other in like.items()}

    def client_update(
        self, client: ClientContext, memory: FedMatchMemory | None, down: FedMatchDown
    ) -> Reply[FedMatchMemory, FedMatchUp]:
        """RunClient, lines 13-20 / 17-23: for every s and u a step of σ, then a step of ψ."""
        held = memory or FedMatchMemory(_zeros(client), ())
        got = Pair(patch(held.pair.sigma, down.sigma), patch(held.pair.psi, down.psi))
        lent = held.helpers if down.helpers is None else tuple(patch(self._lent(got), each) for each in down.helpers)
        slowed = replace(client, train=replace(client.train, lr=client.train.lr * down.rate))
        trained = fit_in_turns(slowed, self._turns(slowed, got, lent))
        numbers = _numbers(trained) | {"helpers": float(len(lent))}
        if not any(each.steps for each in trained.values()):  # it only listened: the server will not know what it got
            return Reply(memory, None, numbers, theta(got))
        new = Pair(trained["sigma"].params, trained["psi"].params)
        with_labels = bool(len(client.data.labeled)) or self.learns == "one"
        change = sparsify(new.sigma, got.sigma, self.delta_up) if with_labels else None
        up = FedMatchUp(change, sparsify(_without_small(new.psi, self.zero), got.psi, self.delta_up))
        own = _after(got, up)
        guesses = next((each.guesses for each in trained.values() if each.guesses is not None), None)
        return Reply(FedMatchMemory(own, lent if self.cached else ()), up, numbers, theta(own), guesses)

    def merge(self, server: ServerContext, state: FedMatchState, ups: Mapping[int, FedMatchUp]) -> FedMatchState:
        """Lines 8, 10, 11 / 13, 15: embed the local models; the means of σ and ψ over those that arrived."""
        if not ups:
            return state
        held = {k: _after(self._received(state, k), up) for k, up in ups.items()}
        sent = [pair.sigma for pair, up in zip(held.values(), ups.values(), strict=True) if up.sigma is not None]
        sigma = params.mean(sent) if sent else state.common.sigma
        server.log("c2s", _dense_models(server, [[up.sigma or {}, up.psi] for up in ups.values()]) / len(ups))
        return FedMatchState(
            Pair(sigma, params.mean([pair.psi for pair in held.values()])),
            state.held | held,
            state.embeddings | {k: self._embedding(server, pair) for k, pair in held.items()},
            state.helped | {k: server.round // self.refresh for k in ups if k in state.held},
            state.rates | {k: self._next_rate(server, state, k, theta(pair)) for k, pair in held.items()},
        )

    def model(self, state: FedMatchState) -> Params:
        """θ = σ + ψ."""
        return theta(state.common)

    # --- learning -----------------------------------------------------------------------------------------------------

    def _learn_at_server(self, server: ServerContext, state: FedMatchState) -> FedMatchState:
        """Steps of σ on the server's labels, ψ held; as it is where the server has none."""
        if not len(server.samples) or self.learns == "psi":
            return state
        rate = state.rates.get(SERVER, Rate())
        slowed = replace(server, train=replace(server.train, lr=server.train.lr * rate.share))
        turns = {
            "sigma": Part(state.common.sigma, self._supervised(slowed)),
            "psi": Part(state.common.psi, _nothing),
        }
        trained = logged(server, fit_in_turns(slowed, turns, labels_only=True)["sigma"])
        common = Pair(trained.params, state.common.psi)
        rates = state.rates | {SERVER: self._next_rate(server, state, SERVER, theta(common))}
        return replace(state, common=common, rates=rates)

    def _turns(self, client: Holder, got: Pair, helpers: Sequence[Params]) -> dict[str, Part]:
        """What is trained, in this order: σ by Eq. 4, then ψ by Eq. 5; undivided, one set by both at once."""
        supervised, unsupervised = self._supervised(client), self._unsupervised(client, got, helpers)
        costs = {"sigma": supervised, "psi": unsupervised}
        if self.learns == "one":
            costs = {"sigma": lambda now, batch: _sum(supervised(now, batch), unsupervised(now, batch))}
        learns = {"sigma": ("both", "sigma", "one"), "psi": ("both", "psi")}
        # What does not learn takes part all the same, since batch statistics change in place in its copy.
        starts = {"sigma": got.sigma, "psi": got.psi}
        return {
            name: Part(start, costs[name] if self.learns in learns[name] else _nothing)
            for name, start in starts.items()
        }

    def _supervised(self, holder: Holder) -> Callable[[Mapping[str, Params], Batch], Cost | None]:
        """Eq. 4: λ_s · CrossEntropy(y, p_{σ+ψ*}(y|x))."""
        stream = holder.stream("labeled views")

        def cost(now: Mapping[str, Params], batch: Batch) -> Cost | None:
            if not len(batch.x):
                return None
            x = look(holder, self.view, batch.x, stream)
            loss = cross_entropy(holder.net.apply(theta(Pair(**now)), x, train=True), batch.y)
            return Cost(self.lambda_s * loss, {"loss_supervised": loss})

        return cost

    def _unsupervised(
        self, client: Holder, got: Pair, helpers: Sequence[Params]
    ) -> Callable[[Mapping[str, Params], Batch], Cost | None]:
        """Eq. 5: λ_ICCS·Φ_{σ*+ψ}(u) + λ_L2·‖σ* - ψ‖² + λ_L1·‖ψ‖₁ with Φ of Eq. 2."""
        net, views, stream = client.net, client.views, client.stream("unlabeled views")
        # Line 14: θ_h = σ + ψ_h does not change while the client learns.
        answers = told_by(client, [theta(self._with_lent(got, lent)) for lent in helpers])
        lambda_l1 = self.lambda_l1 if self.lambda_l1 is not None else 1e-4 if len(client.samples.labeled) else 1e-5
        # Undivided there is nothing to keep apart; 0 times the norms still has a gradient, whatever else is missing.
        lambda_l1, lambda_l2 = (0.0, 0.0) if self.learns == "one" else (lambda_l1, self.lambda_l2)

        def cost(now: Mapping[str, Params], batch: Batch) -> Cost | None:
            if not len(batch.u):
                return None
            pair = Pair(**now)
            whole, told = theta(pair), answers[:, batch.index.to(client.device)]
            with torch.set_grad_enabled(bool(len(told))):  # without helpers the plain view only labels
                logits = net.apply(whole, views.plain(batch.u), train=True)
            q = functional.softmax(logits.detach(), dim=1)
            labels, sure = agreement_labels(q, told, self.ties), q.amax(dim=1) >= self.threshold
            apart = inter_client(logits, told, sure if self.consistency_on == "kept" else torch.ones_like(sure))
            phi, rows = apart, sure.nonzero().reshape(-1)
            if len(rows):
                strong = net.apply(whole, views.strong(batch.u.index_select(0, rows), stream), train=True)
                phi = cross_entropy(strong, labels[rows]) + apart
            numbers = {"loss_unlabeled": phi, "loss_helpers": apart, "kept": sure.float().mean()}
            l1, l2 = _norms(pair, self.norms)
            total = self.lambda_iccs * phi + lambda_l2 * l2 + lambda_l1 * l1
            return Cost(total, numbers, Guesses(batch.index, labels, sure))

        return cost

    def _next_rate(self, server: ServerContext, state: FedMatchState, entity: int, model: Params) -> Rate:
        """Serra et al.: a third of the rate after five visits without a lower validation loss."""
        rate = state.rates.get(entity, Rate())
        if not len(server.data.validation):
            return rate
        loss = loss_on(server, model, server.data.validation)
        if loss < rate.best:
            return Rate(rate.share, loss)
        if rate.waited + 1 < self.patience:
            return replace(rate, waited=rate.waited + 1)
        return Rate(rate.share / self.decay, rate.best)

    # --- helpers ------------------------------------------------------------------------------------------------------

    def _embedding(self, server: ServerContext, pair: Pair) -> Tensor:
        """m = p_θ(y|a), the answer to one input of noise, the same for all."""
        model, a = params.channels_last(theta(pair)), self._noise(server)
        with torch.no_grad():
            answer = functional.softmax(server.net.apply(model, a.to(server.device)), dim=1)[0]
        return answer.cpu().nan_to_num()  # finite weights may overflow, and the tree takes finite points only

    def _noise(self, server: ServerContext) -> Tensor:
        """The input a. Characters have no noise but that of their strong view, here of an empty text."""
        stored, stream = server.samples.x.new_zeros(1, *server.samples.x.shape[1:]), server.streams.at("noise")
        seen = server.views.plain(stored)
        if not seen.is_floating_point():
            return server.views.strong(stored, stream)
        if self.noise == "gaussian":
            return torch.randn(seen.shape, generator=stream).to(seen.dtype)
        pixels = torch.nn.init.trunc_normal_(torch.empty(stored.shape), 125, 125, 0, 255, generator=stream)
        return server.views.plain(pixels.to(torch.uint8))

    def _helpers(
        self, server: ServerContext, state: FedMatchState, client: int, nearest: Neighbours
    ) -> tuple[Params, ...] | None:
        """GetNearestNeighbors: the last ψ of the H most similar clients; none for a client not seen before."""
        if client not in state.held:
            return ()
        due = (server.round + 1) % self.refresh == 0
        if self.cached and state.helped.get(client) == server.round // self.refresh:
            return None
        if not self.cached and not due:
            return ()
        return tuple(self._lent(state.held[other]) for other in nearest(client, self.helpers))

    def _lent(self, pair: Pair) -> Params:
        """What a client gives as a helper: its ψ; undivided, everything."""
        return pair.sigma if self.learns == "one" else _without_small(pair.psi, self.zero)

    def _with_lent(self, got: Pair, lent: Params) -> Pair:
        """A helper as the client that got this pair sees it."""
        return Pair(lent, got.psi) if self.learns == "one" else Pair(got.sigma, lent)

    # --- what travels -------------------------------------------------------------------------------------------------

    def _down(
        self,
        state: FedMatchState,
        client: int,
        helpers: tuple[Params, ...] | None,
        changes: Sequence[dict[str, Sparse]],
    ) -> FedMatchDown:
        sigma, psi, *others = changes
        rate = state.rates.get(client, Rate()).share
        return FedMatchDown(sigma, psi, None if helpers is None else tuple(others), rate)

    def _changes(
        self, state: FedMatchState, client: int, helpers: tuple[Params, ...] | None, delta: float
    ) -> list[dict[str, Sparse]]:
        """Of σ and ψ against what the client holds, and of its helpers against what it then has."""
        held, new = _held(state, client), client not in state.held
        delta = 0.0 if new else delta  # a client that has nothing gets everything
        sigma = sparsify(state.common.sigma, held.sigma, delta)
        psi = sparsify(_without_small(state.common.psi, self.zero), held.psi, delta)
        then = self._lent(Pair(patch(held.sigma, sigma), patch(held.psi, psi))) if helpers else {}
        return [sigma, psi, *(sparsify(each, then, delta) for each in helpers or ())]

    def _received(self, state: FedMatchState, client: int) -> Pair:
        """What the client had before it learned: what it held and what it was sent."""
        sigma, psi = self._changes(state, client, None, self.delta_down if self.mask_down else 0.0)
        held = _held(state, client)
        return Pair(patch(held.sigma, sigma), patch(held.psi, psi))


def theta(pair: Pair) -> Params:
    """θ = σ + ψ."""
    return {name: _plus(value, pair.psi[name]) if name in pair.psi else value for name, value in pair.sigma.items()}


def _plus(a: Tensor, b: Tensor) -> Tensor:
    """a + b, in memory as a is: a sum forgets channels last where there is one channel, and bits follow the order."""
    total = a + b
    return total if total.stride() == a.stride() else total.clone(memory_format=torch.channels_last)


def _nothing(now: Mapping[str, Params], batch: Batch) -> None:
    """What a batch costs a part that does not learn."""


def _held(state: FedMatchState, client: int) -> Pair:
    """What the server knows a client to hold: zeros before its first upload."""
    nothing = Pair(params.zeros_like(state.common.sigma), params.zeros_like(state.common.psi))
    return state.held.get(client, nothing)


def _zeros(client: ClientContext) -> Pair:
    """What a client holds before it is first visited."""
    sigma = params.zeros_like(client.initial())
    return Pair(sigma, {name: sigma[name] for name in client.net.trainable})


def _after(received: Pair, up: FedMatchUp) -> Pair:
    """What a client holds after it learned, without changes too small to travel: client and server agree on it."""
    sigma = received.sigma if up.sigma is None else patch(received.sigma, up.sigma)
    return Pair(sigma, patch(received.psi, up.psi))


def _without_small(psi: Params, largest: float) -> Params:
    """ψ with 0 for entries up to this size; a NaN stays one, so that it is noticed."""
    return {name: value.masked_fill(value.abs() <= largest, 0.0) for name, value in psi.items()} if largest else psi


def _norms(pair: Pair, how: str) -> tuple[Tensor, Tensor]:
    """‖ψ‖₁ and ‖σ - ψ‖² over the entries of ψ."""
    l1 = torch.stack([psi.abs().sum() for psi in pair.psi.values()]).sum()
    l2 = torch.stack([(pair.sigma[name] - psi).square().sum() for name, psi in pair.psi.items()]).sum()
    count = params.size(pair.psi) if how == "mean" else 1
    return l1 / count, l2 / count


def _sum(a: Cost | None, b: Cost | None) -> Cost | None:
    if a is None or b is None:
        return a or b
    return Cost(a.total + b.total, {**a.metrics, **b.metrics}, b.guesses)


def _numbers(trained: Mapping[str, Trained]) -> dict[str, float]:
    """What all parts logged; a batch counts as one step though both learn from it."""
    joined = {name: value for part in trained.values() for name, value in part.metrics.items()}
    return joined | {"steps": max(part.steps for part in trained.values())}


def _dense_models(server: ServerContext, messages: Sequence[Sequence[Mapping[str, Sparse]]]) -> float:
    """The paper's unit: scalars that travel, over those of one dense model."""
    scalars = sum(len(change.index) for parts in messages for part in parts for change in part.values())
    return scalars / server.net.size()


METHODS = {"fedmatch": FedMatch}
