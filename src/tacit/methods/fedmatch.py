"""FedMatch: Federated Semi-Supervised Learning with Inter-Client Consistency (Jeong et al., ICLR 2021).

Line numbers are those of Algorithm 1 (labels at clients) / Algorithm 2 (labels at the server).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional

from tacit import aggregation as agg
from tacit import params
from tacit.aggregation.patches import Patch, changes, scalars, updated, without_small
from tacit.learn import Batch, BatchLoss, ParameterBlock, Plateau, Trained, fit_alternating, loss_on
from tacit.losses import agreement_labels, cross_entropy
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
from tacit.objectives.inter_client import Neighbours, Noise, embedding, helper_predictions, inter_client
from tacit.objectives.parts import LabeledView, view_of
from tacit.params import Params
from tacit.per_client import PerClient
from tacit.updates import SparseTrainableUpdate, SparseUpdate

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
class Decomposed:
    """σ, learnt from labels, and ψ, learnt without: θ = σ + ψ. Buffers are in σ only."""

    sigma: Params
    psi: Params


@dataclass(frozen=True)
class FedMatchDown:
    """Changes of σ and ψ against what the client holds, of its helpers' ψ against that ψ, and its learning rate."""

    sigma: Patch
    psi: Patch
    helpers: tuple[Patch, ...] | None  # None: those it has already
    rate: float


@dataclass(frozen=True)
class FedMatchUp:
    """Changes of σ and ψ against what the client received; no σ from a client without labels."""

    sigma: SparseUpdate | None
    psi: SparseTrainableUpdate


@dataclass(frozen=True)
class FedMatchState:
    """σ and ψ; of each client seen what it holds, its embedding m, and when its helpers were chosen."""

    common: Decomposed
    held: PerClient[Decomposed] = field(default_factory=PerClient)
    embeddings: dict[int, Tensor] = field(default_factory=dict)
    helped: dict[int, int] = field(default_factory=dict)  # helpers of rounds refresh·n and after, by n
    rates: dict[int, Plateau] = field(default_factory=dict)
    sent: Mapping[int, FedMatchDown] = field(default_factory=dict)  # this round's messages, from `send` to `merge`


@dataclass(frozen=True)
class FedMatchMemory:
    """What the client holds, exactly as the server knows it, and its helpers' ψ."""

    held: Decomposed
    helpers: tuple[Params, ...]


Cost = Callable[[Mapping[str, Params], Batch], BatchLoss | None]  # of a batch, by all parameters under their names


@dataclass(frozen=True)
class FedMatch:
    """σ learns from labels, ψ from agreement with helpers, each while the other is fixed; only changes travel."""

    helpers: Natural = 2  # H: models of other clients that help; 0 is without inter-client consistency
    refresh: Count = 10  # rounds between two choices of helpers
    cached: bool = True  # a client uses its helpers until the next choice; else only in every refresh-th round
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
    noise: Noise = "gaussian"  # the input whose predictions are the embeddings
    patience: Count = 5  # visits without a lower validation loss after which an entity learns more slowly
    decay: Positive = 3.0  # by this factor
    learns: Literal["both", "sigma", "psi", "one"] = "both"  # ablations: one part alone, or no decomposition at all
    view: LabeledView = "plain"

    PAPER_LR: ClassVar[float] = 0.001
    # σ and ψ belong together, and helpers pass single models on: a rule would see neither.
    needs = Needs(fresh_momentum=True, averaged_buffers=True, true_mean=True, separate_uploads=True)
    logs = ("loss_helpers", "helpers")
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
        # 0 · σ is -0.0 where σ is negative, whose bits differ from 0 and would travel; + 0 makes it 0.
        psi = {name: self.psi_start * sigma[name] + 0.0 for name in server.net.trainable}
        return FedMatchState(Decomposed(sigma, psi))

    def send(self, server: ServerContext, state: FedMatchState) -> tuple[FedMatchState, Mapping[int, FedMatchDown]]:
        """Lines - / 4-8: σ learns from the server's labels. Lines 6-7 / 11-12: helpers, σ and ψ for each client."""
        state = self._train_at_server(server, state)
        nearest = Neighbours(state.embeddings)
        helpers = {k: self._helpers(server, state, k, nearest) for k in server.cohort}
        downs = self._downs(state, helpers, self.delta_down)
        travelling = [[down.sigma, down.psi, *(down.helpers or ())] for down in downs.values()]
        server.log("s2c", _dense_models(server, travelling, len(travelling)))
        if not self.mask_down:
            downs = self._downs(state, helpers, 0.0)
        return replace(state, sent=downs), downs

    def client_update(
        self, client: ClientContext, memory: FedMatchMemory | None, down: FedMatchDown
    ) -> Reply[FedMatchMemory, FedMatchUp]:
        """RunClient, lines 13-20 / 17-23: for every s and u a step of σ, then a step of ψ."""
        received = _received(memory.held if memory else None, down)
        helpers = memory.helpers if memory else ()
        if down.helpers is not None:
            helpers = tuple(updated(self._lent(received), each) for each in down.helpers)
        slowed = replace(client, train=replace(client.train, lr=client.train.lr * down.rate))
        trained = fit_alternating(slowed, self._blocks(slowed, received, helpers))
        metrics = _metrics(trained) | {"helpers": float(len(helpers))}
        if not any(each.steps for each in trained.values()):  # the server will not know what this client received
            return Reply(memory, None, metrics, theta(received))
        with_labels = bool(len(client.data.labeled)) or self.learns == "one"
        sigma = changes(trained["sigma"].params, received.sigma, self.delta_up) if with_labels else None
        psi = changes(without_small(trained["psi"].params, self.zero), received.psi, self.delta_up)
        held = _uploaded(received, FedMatchUp(sigma, psi))
        pseudo_labels = next((each.pseudo_labels for each in trained.values() if each.pseudo_labels is not None), None)
        memory = FedMatchMemory(held, helpers if self.cached else ())
        return Reply(memory, FedMatchUp(sigma, psi), metrics, theta(held), pseudo_labels)

    def merge(self, server: ServerContext, state: FedMatchState, ups: Mapping[int, FedMatchUp]) -> FedMatchState:
        """Lines 8, 10, 11 / 13, 15: embed the local models; the means of σ and ψ over those that arrived."""
        sent, state = state.sent, replace(state, sent={})
        if not ups:
            return state
        held = {k: _uploaded(_received(state.held.get(k), sent[k]), up) for k, up in ups.items()}
        sigmas = [held[k].sigma for k, up in ups.items() if up.sigma is not None]
        sigma = server.combine(sigmas) if sigmas else state.common.sigma
        server.log("c2s", _dense_models(server, ([up.sigma or {}, up.psi] for up in ups.values()), len(ups)))
        return FedMatchState(
            Decomposed(sigma, server.combine([each.psi for each in held.values()])),
            state.held | held,
            state.embeddings | {k: embedding(server, theta(each), self.noise) for k, each in held.items()},
            state.helped | {k: server.round // self.refresh for k in ups if k in state.held},
            state.rates | {k: self._next_rate(server, state, k, theta(each)) for k, each in held.items()},
        )

    def model(self, state: FedMatchState) -> Params:
        """θ = σ + ψ."""
        return theta(state.common)

    # --- training -----------------------------------------------------------------------------------------------------

    def _train_at_server(self, server: ServerContext, state: FedMatchState) -> FedMatchState:
        """Steps of σ on the server's labels, ψ fixed; unchanged where the server has none."""
        if not len(server.samples) or self.learns == "psi":
            return state
        slowed = replace(server, train=replace(server.train, lr=server.train.lr * _rate(state, SERVER).share))
        blocks = {
            "sigma": ParameterBlock(state.common.sigma, self._supervised(slowed)),
            "psi": ParameterBlock(state.common.psi, _nothing),
        }
        trained = agg.logged(server, fit_alternating(slowed, blocks, labels_only=True)["sigma"])
        common = Decomposed(trained.params, state.common.psi)
        rates = state.rates | {SERVER: self._next_rate(server, state, SERVER, theta(common))}
        return replace(state, common=common, rates=rates)

    def _blocks(self, client: Holder, received: Decomposed, helpers: Sequence[Params]) -> dict[str, ParameterBlock]:
        """What is trained, in this order: σ by Eq. 4, then ψ by Eq. 5; undivided, one set by both at once."""
        supervised, unsupervised = self._supervised(client), self._unsupervised(client, received, helpers)
        sigma = {"psi": _nothing, "one": _sum(supervised, unsupervised)}.get(self.learns, supervised)
        psi = unsupervised if self.learns in ("both", "psi") else _nothing
        # A block that does not learn takes part too, since batch statistics change in place in its copy.
        return {"sigma": ParameterBlock(received.sigma, sigma), "psi": ParameterBlock(received.psi, psi)}

    def _supervised(self, holder: Holder) -> Cost:
        """Eq. 4: λ_s · CrossEntropy(y, p_{σ+ψ*}(y|x))."""
        stream = holder.stream("labeled views")

        def cost(now: Mapping[str, Params], batch: Batch) -> BatchLoss | None:
            if not len(batch.x):
                return None
            x = view_of(holder, self.view, batch.x, stream)
            loss = cross_entropy(holder.net.apply(theta(Decomposed(**now)), x, train=True), batch.y)
            return BatchLoss(self.lambda_s * loss, {"loss_supervised": loss})

        return cost

    def _unsupervised(self, client: Holder, received: Decomposed, helpers: Sequence[Params]) -> Cost:
        """Eq. 5: λ_ICCS·Φ_{σ*+ψ}(u) + λ_L2·‖σ* - ψ‖² + λ_L1·‖ψ‖₁ with Φ of Eq. 2."""
        net, views, stream = client.net, client.views, client.stream("unlabeled views")
        # Line 14: θ_h = σ + ψ_h does not change while the client learns.
        predictions = helper_predictions(client, [theta(self._with_lent(received, lent)) for lent in helpers])
        lambda_l1 = self.lambda_l1 if self.lambda_l1 is not None else 1e-4 if len(client.samples.labeled) else 1e-5
        # Undivided there is nothing to separate; 0 times the norms still has a gradient, whatever else is missing.
        lambda_l1, lambda_l2 = (0.0, 0.0) if self.learns == "one" else (lambda_l1, self.lambda_l2)

        def cost(now: Mapping[str, Params], batch: Batch) -> BatchLoss | None:
            if not len(batch.u):
                return None
            parts = Decomposed(**now)
            whole, p_h = theta(parts), predictions[:, batch.index]
            with torch.set_grad_enabled(bool(len(p_h))):  # without helpers the plain view only labels
                logits = net.apply(whole, views.plain(batch.u), train=True)
            q = functional.softmax(logits.detach(), dim=1)
            labels, accepted = agreement_labels(q, p_h, self.ties), q.amax(dim=1) >= self.threshold
            apart = inter_client(logits, p_h, accepted if self.consistency_on == "kept" else torch.ones_like(accepted))
            phi, rows = apart, accepted.nonzero().reshape(-1)
            if len(rows):
                strong = net.apply(whole, views.strong(batch.u.index_select(0, rows), stream), train=True)
                phi = cross_entropy(strong, labels[rows]) + apart
            metrics = {"loss_unlabeled": phi, "loss_helpers": apart, "kept": accepted.float().mean()}
            l1, l2 = _norms(parts, self.norms)
            total = self.lambda_iccs * phi + lambda_l2 * l2 + lambda_l1 * l1
            return BatchLoss(total, metrics, PseudoLabels(batch.index, labels, accepted))

        return cost

    def _next_rate(self, server: ServerContext, state: FedMatchState, entity: int, model: Params) -> Plateau:
        """A.3: an entity learns more slowly after some visits without a lower validation loss."""
        rate = _rate(state, entity)
        if not len(server.data.validation):
            return rate
        return rate.after(loss_on(server, model, server.data.validation), self.patience, self.decay)

    # --- helpers ------------------------------------------------------------------------------------------------------

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

    def _lent(self, model: Decomposed) -> Params:
        """What a client gives as a helper: its ψ; undivided, everything."""
        return model.sigma if self.learns == "one" else without_small(model.psi, self.zero)

    def _with_lent(self, received: Decomposed, lent: Params) -> Decomposed:
        """A helper as the client that received this model sees it."""
        return Decomposed(lent, received.psi) if self.learns == "one" else Decomposed(received.sigma, lent)

    # --- what travels -------------------------------------------------------------------------------------------------

    def _downs(
        self, state: FedMatchState, helpers: Mapping[int, tuple[Params, ...] | None], delta: float
    ) -> dict[int, FedMatchDown]:
        """A message for every client; new clients share one, which is made and encoded once."""
        downs = {k: self._down(state, k, helpers[k], delta) for k in helpers if k in state.held}
        new = [k for k in helpers if k not in state.held]
        return downs | (dict.fromkeys(new, self._down(state, new[0], (), delta)) if new else {})

    def _down(
        self, state: FedMatchState, client: int, helpers: tuple[Params, ...] | None, delta: float
    ) -> FedMatchDown:
        """Changes of σ and ψ against what the client holds, and of its helpers against what it holds then."""
        held, common = state.held.get(client), state.common
        sigma = changes(common.sigma, held.sigma if held else None, delta)
        psi = changes(without_small(common.psi, self.zero), held.psi if held else None, delta)
        down = FedMatchDown(sigma, psi, None if helpers is None else (), _rate(state, client).share)
        if not helpers:
            return down
        lent = self._lent(_received(held, down))
        return replace(down, helpers=tuple(changes(each, lent, delta) for each in helpers))


def theta(model: Decomposed) -> Params:
    """θ = σ + ψ."""
    return {name: _plus(value, model.psi[name]) if name in model.psi else value for name, value in model.sigma.items()}


def _plus(a: Tensor, b: Tensor) -> Tensor:
    """a + b in a's order in memory, which bits depend on: a sum loses channels-last order if there is one channel."""
    total = a + b
    return total if total.stride() == a.stride() else total.clone(memory_format=torch.channels_last)


def _rate(state: FedMatchState, entity: int) -> Plateau:
    return state.rates.get(entity, Plateau())


def _received(held: Decomposed | None, down: FedMatchDown) -> Decomposed:
    """What a client holds once it has this message, by its own account and by the server's."""
    sigma, psi = (held.sigma, held.psi) if held else (None, None)
    return Decomposed(updated(sigma, down.sigma), updated(psi, down.psi))


def _uploaded(received: Decomposed, up: FedMatchUp) -> Decomposed:
    """What a client holds after it learned, without changes too small to travel."""
    sigma = received.sigma if up.sigma is None else updated(received.sigma, up.sigma)
    return Decomposed(sigma, updated(received.psi, up.psi))


def _nothing(now: Mapping[str, Params], batch: Batch) -> None:
    """What a batch costs a block that does not learn."""


def _sum(first: Cost, second: Cost) -> Cost:
    def cost(now: Mapping[str, Params], batch: Batch) -> BatchLoss | None:
        a, b = first(now, batch), second(now, batch)
        if a is None or b is None:
            return a or b
        return BatchLoss(a.total + b.total, {**a.metrics, **b.metrics}, b.pseudo_labels)

    return cost


def _norms(model: Decomposed, how: str) -> tuple[Tensor, Tensor]:
    """‖ψ‖₁ and ‖σ - ψ‖² over the entries of ψ."""
    l1 = torch.stack([psi.abs().sum() for psi in model.psi.values()]).sum()
    l2 = torch.stack([(model.sigma[name] - psi).square().sum() for name, psi in model.psi.items()]).sum()
    count = params.size(model.psi) if how == "mean" else 1
    return l1 / count, l2 / count


def _metrics(trained: Mapping[str, Trained]) -> dict[str, float]:
    """What all blocks logged; a batch counts as one step though both learn from it."""
    joined = {name: value for block in trained.values() for name, value in block.metrics.items()}
    return joined | {"steps": max(block.steps for block in trained.values())}


def _dense_models(server: ServerContext, messages: Iterable[Sequence[Patch]], count: int) -> float:
    """The paper's unit: scalars in a message over those of one dense model, the mean over messages."""
    return sum(map(scalars, messages)) / server.net.size() / max(1, count)


METHODS = {"fedmatch": FedMatch}
