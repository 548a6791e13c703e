"""Anchor: confident labels of the common model teach it, and the true labels have the last word in every round.

The project's own recipe. Round t, with w the common model and w̄ its average over rounds:

0. Before round 0 the server trains a committee on its labels: models that differ in their initial weights only.
1. The server sends w and the thresholds τ; to clients that have not answered yet, the rest of the committee, too.
2. A client without labels lets w label one weak view of each sample (the first time: w and the committee), joins that
   with what earlier models said, q̄_i ← m·q̄_i + (1 - m)·q_i, and keeps K = {i : max q̄_i ≥ τ}. It trains on K only, with
   the loss mean_K CE(f(strong(x_i)), ŷ_i). A client with labels trains on both by FixMatch.
3. w ← Σ n_k·w_k / Σ n_k, with n_k the number of samples that client k learned from.
4. The server trains w on its labels, if it has any: CE(f(weak(x)), y) + CE(f(strong(x)), y).
5. w̄ ← β_t·w̄ + (1 - β_t)·w with β_t = min(β, (1 + t)/(10 + t)). w̄ is evaluated and shipped.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from tacit import aggregation as agg
from tacit import params
from tacit.learn import Batch, BatchLoss, Forward, LocalLoss, LocalState, Looks, View, epoch_steps, fit
from tacit.learn.audit import audited_thresholds
from tacit.losses import confident, cross_entropy
from tacit.method import (
    ClientContext,
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
from tacit.objectives import FixMatch
from tacit.objectives.parts import predict_view
from tacit.params import Params
from tacit.updates import CountField, SampleCount, Update

PARTS = 20  # of the bootstrap; the learning rate falls from part to part
OpenShare = Annotated[float, Field(gt=0, lt=1)]


@dataclass(frozen=True)
class AnchorState:
    """The common model w, its average w̄ over rounds, and what the server keeps for itself."""

    w: Params
    average: Params
    thresholds: Tensor | None = None  # found once
    carried: LocalState | None = None  # of the server's training
    committee: list[Params] = field(default_factory=list)  # its other members, until every client has met them
    met: list[int] = field(default_factory=list)  # clients that have answered, while there is a committee


@dataclass(frozen=True)
class AnchorMemory:
    """The state of a client's training, and what earlier models said about its samples."""

    carried: LocalState | None = None
    q: Tensor | None = None  # q̄

    @property
    def or_nothing(self) -> "AnchorMemory | None":
        """Itself, if there is something to remember."""
        return None if self.carried is None and self.q is None else self


@dataclass(frozen=True)
class AnchorDown:
    """The common model w and the thresholds τ: one for every class, or a single one for all; first also a committee."""

    w: Params
    thresholds: Tensor
    committee: list[Params] = field(default_factory=list)


@dataclass(frozen=True)
class AnchorUp:
    """A local model w_k, the number n_k of samples it learned from, and how many of these have a true label."""

    w: Update
    n: SampleCount
    labeled: Annotated[SampleCount, CountField(within="n")] = 0


@dataclass(frozen=True)
class Anchor:
    """Confident labels of the common model teach clients; true labels have the last word in every round."""

    threshold: Probability = 0.8  # τ: least confidence of a label that the common model gives
    precision: OpenShare | None = None  # wanted of these labels: an audit on held-out labels then sets τ in every round
    certainty: OpenShare = 0.9  # of the audit, that τ gives this precision
    folds: Annotated[int, Field(ge=2)] = 5  # of the server's labels, if there is no validation set: τ is then set once
    own_threshold: Probability = 0.95  # τ of clients with labels, whose model in training gives the others
    bootstrap: Natural = 1000  # steps on the server's labels before round 0, with the learning rate on a cosine
    bootstrap_lr: Positive | None = None  # learning rate of these steps; not set: the server's
    committee: Annotated[int, Field(ge=1)] = 1  # models of the server's labels; their mean gives the first labels
    memory: Annotated[float, Field(ge=0, lt=1)] = 0.0  # m: share of what earlier models said in the labels of a sample
    views: Literal["weak", "strong", "both"] = "both"  # of the server's samples; with both, the two losses add up
    beta: Annotated[float, Field(ge=0, lt=1)] = 0.8  # β: share of the average that stays in a round; 0 ships w
    least_steps: Natural = 0  # of a client's visit: one with few samples repeats them
    share: Probability | Literal["samples"] = 0.5  # of clients with labels in the mean, if some have none
    mu: NonNegative = 0.0  # μ: strength of the pull of a client's model towards w

    @property
    def needs(self) -> Needs:
        """What earlier models said counts for the same samples only."""
        return Needs(steady_data=bool(self.memory))

    def start(self, server: ServerContext) -> AnchorState:
        """Step 0; w and w̄ are the first member, since its labels decide what the clients learn."""
        w, *others = self._committee(server)
        return AnchorState(w, w, self._cross_audited(server), committee=others)

    def send(self, server: ServerContext, state: AnchorState) -> tuple[AnchorState, Mapping[int, AnchorDown]]:
        """Step 1: w and τ to every client of the cohort, and the committee to those that have not met it."""
        down = AnchorDown(state.w, self._thresholds(server, state))
        first, met = replace(down, committee=state.committee), set(state.met)
        return state, {k: down if k in met else first for k in server.cohort}

    def client_update(
        self, client: ClientContext, memory: AnchorMemory | None, down: AnchorDown
    ) -> Reply[AnchorMemory, AnchorUp]:
        """Step 2."""
        if not len(client.data):
            return Reply(memory, None)
        labeled = len(client.data.labeled)
        return (self._with_labels if labeled else self._without_labels)(client, memory or AnchorMemory(), down)

    def merge(self, server: ServerContext, state: AnchorState, ups: Mapping[int, AnchorUp]) -> AnchorState:
        """Steps 3 to 5; a round in which no one learned changes nothing."""
        if not ups and not len(server.samples):
            return state
        counts = [(up.n, up.labeled) for up in ups.values()]
        w = agg.average(server, state.w, (up.w for up in ups.values()), self.weights(counts))
        trained = agg.fit_server(server, w, OnLabels(self.views), state.carried)
        beta = min(self.beta, (1 + server.round) / (10 + server.round))
        average = params.lerp(trained.params, state.average, beta)
        state = self._introduced(state, ups, server.clients)
        return replace(state, w=trained.params, average=average, carried=trained.carried)

    def model(self, state: AnchorState) -> Params:
        """w̄."""
        return state.average

    def _introduced(self, state: AnchorState, answered: Iterable[int], clients: int) -> AnchorState:
        """The state without the committee, once all clients have met it."""
        if not state.committee:
            return state
        met = sorted({*state.met, *answered})
        return replace(state, met=met) if len(met) < clients else replace(state, committee=[], met=[])

    def weights(self, counts: Sequence[tuple[int, int]]) -> list[float]:
        """The weights of step 3: n_k, scaled so that clients with labels have their `share` if others have none.

        `counts` holds n_k and the number of labels of each client.
        """
        known = sum(n for n, labeled in counts if labeled)
        others = sum(n for n, labeled in counts if not labeled)
        if isinstance(self.share, str) or not known or not others:
            return [float(n) for n, _ in counts]
        return [n * (self.share / known if labeled else (1 - self.share) / others) for n, labeled in counts]

    def _with_labels(
        self, client: ClientContext, memory: AnchorMemory, down: AnchorDown
    ) -> Reply[AnchorMemory, AnchorUp]:
        """Labels and unlabeled samples together: labels in every step keep the model in training a good labeler."""
        trained = fit(self._patient(client), down.w, FixMatch(self.own_threshold), carried=memory.carried, prox=self.mu)
        up = AnchorUp(trained.params, len(client.data), len(client.data.labeled))
        memory = replace(memory, carried=trained.carried)
        return Reply(memory.or_nothing, up, trained.metrics, trained.params, trained.pseudo_labels)

    def _without_labels(
        self, client: ClientContext, memory: AnchorMemory, down: AnchorDown
    ) -> Reply[AnchorMemory, AnchorUp]:
        """Confident labels of the received model; nothing to upload if there are none."""
        q = self._said(client, memory, down)
        memory = replace(memory, q=q if self.memory else None)
        labels, accepted = confident(q, down.thresholds.to(q.device).expand(q.shape[1]))
        pseudo_labels = PseudoLabels(client.data.unlabeled, labels.cpu(), accepted.cpu())
        if not accepted.any():
            return Reply(memory.or_nothing, None, {}, down.w, pseudo_labels)
        rows = accepted.nonzero().reshape(-1)
        kept = self._patient(replace(client, data=client.data.take(rows.cpu())))
        trained = fit(kept, down.w, OnKept(labels[rows]), carried=memory.carried, prox=self.mu)
        up, memory = AnchorUp(trained.params, len(rows)), replace(memory, carried=trained.carried)
        return Reply(memory.or_nothing, up, trained.metrics, trained.params, pseudo_labels)

    def _said(self, client: ClientContext, memory: AnchorMemory, down: AnchorDown) -> Tensor:
        """(n, c) q̄: what the received models say about the samples, and those before them."""
        q = predict_view(client, down.w, client.data.x, "weak", client.stream("labeling views"))
        for number, w in enumerate(down.committee, 1):
            said = predict_view(client, w, client.data.x, "weak", client.stream(f"labeling views of member {number}"))
            q = q.lerp(said, 1 / (number + 1))
        return q if memory.q is None else memory.q.to(q.device).lerp(q, 1 - self.memory)

    def _committee(self, server: ServerContext) -> list[Params]:
        """Models that the server's labels give; without labels, the initial one."""
        others = range(1, self.committee if len(server.samples) else 1)
        more = [replace(server, streams=server.streams.within(f"member {number}")) for number in others]
        return [self._bootstrapped(each) for each in (server, *more)]

    def _bootstrapped(self, server: ServerContext) -> Params:
        """An initial model after `bootstrap` steps on the server's labels, with the learning rate on a cosine to 0."""
        w, carried = server.initial(), None
        parts = min(PARTS, self.bootstrap) if len(server.samples) else 0
        for part in range(parts):
            steps = self.bootstrap * (part + 1) // parts - self.bootstrap * part // parts
            lr = self.bootstrap_lr or server.train.lr
            train = replace(server.train, steps=steps, lr=lr, schedule="cosine", warmup=0, optimizer="keep")
            streams = server.streams.within("bootstrap")
            alone = replace(server, round=part, rounds=parts, train=train, streams=streams)
            trained = agg.fit_server(alone, w, OnLabels(self.views), carried)
            w, carried = trained.params, trained.carried
        return w

    def _thresholds(self, server: ServerContext, state: AnchorState) -> Tensor:
        """τ: the setting, or what held-out labels say of the model that is sent."""
        held_out = server.data.validation
        if self.precision is None or not (len(held_out) or len(server.samples)):
            return torch.tensor(self.threshold)
        if state.thresholds is not None:
            return state.thresholds
        q = predict_view(server, state.w, held_out.x, "weak", server.stream("audit views"))
        tau = audited_thresholds(q.cpu(), held_out.y, self.precision, self.certainty)
        server.log("threshold", float(tau.mean()))
        return tau

    def _cross_audited(self, server: ServerContext) -> Tensor | None:
        """τ without a validation set: each fold of the labels is judged by a model that the other folds trained."""
        labeled = server.samples
        if self.precision is None or len(server.data.validation) or not len(labeled):
            return None
        order = torch.randperm(len(labeled), generator=server.stream("folds"))
        folds = labeled.folds(order, self.folds)
        q, y = [], []
        for fold in range(int(folds.max()) + 1):
            out, rest = order[folds == fold], order[folds != fold]
            alone = replace(server, data=replace(server.data, labeled=labeled.take(rest)))
            w = self._bootstrapped(replace(alone, streams=server.streams.within(f"fold {fold}")))
            q.append(predict_view(server, w, labeled.x[out], "weak", server.stream(f"audit views {fold}")).cpu())
            y.append(labeled.y[out])
        return audited_thresholds(torch.cat(q), torch.cat(y), self.precision, self.certainty)

    def _patient(self, client: ClientContext) -> ClientContext:
        """The client with at least `least_steps` steps."""
        steps = client.train.steps or client.train.epochs * epoch_steps(client)
        return replace(client, train=replace(client.train, steps=max(steps, self.least_steps)))


@dataclass(frozen=True)
class OnKept:
    """Step 2: cross-entropy of the strong views of the samples that a client kept, with the labels given to them."""

    labels: Tensor

    labels_only = False
    needs = Needs()

    def local_loss(self, holder: Holder, received: Params, carried: Mapping[str, Tensor]) -> LocalLoss:
        """Labels are fixed for the visit, views are not."""
        strong = Looks(holder.views, ["strong"], "unlabeled", holder.stream("unlabeled views"))

        def cost(w: Params, batch: Batch, forward: Forward) -> BatchLoss:
            logits = forward(strong(batch)).logits
            loss = cross_entropy(logits, self.labels[batch.index])
            return BatchLoss(loss, {"loss_unlabeled": loss})

        return LocalLoss(cost)


@dataclass(frozen=True)
class OnLabels:
    """Step 4: the sum over the views of the cross-entropy of labeled samples."""

    views: Literal["weak", "strong", "both"]

    labels_only = True
    needs = Needs()

    def local_loss(self, holder: Holder, received: Params, carried: Mapping[str, Tensor]) -> LocalLoss:
        """All views learn from one forward pass."""
        kinds: list[View] = ["weak", "strong"] if self.views == "both" else [self.views]
        looks = Looks(holder.views, kinds, "labeled", holder.stream("labeled views"))

        def cost(w: Params, batch: Batch, forward: Forward) -> BatchLoss:
            x = torch.cat([looks(batch, number) for number in range(len(kinds))])
            loss = len(kinds) * cross_entropy(forward(x).logits, batch.y.repeat(len(kinds)))
            return BatchLoss(loss, {"loss_supervised": loss})

        return LocalLoss(cost)


METHODS = {"anchor": Anchor}
