"""SemiFL: Semi-Supervised Federated Learning for Unlabeled Clients with Alternate Training (Diao et al., 2022)."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from tacit import params
from tacit.averaging import WeightsDown, WeightsUp, before_rounds, fit_server, restated
from tacit.learn import EVALUATION_BATCH, Batch, Cost, Kept, Trained, Visit, fit
from tacit.losses import confident, cross_entropy, mix
from tacit.method import (
    ClientContext,
    Guesses,
    Holder,
    Needs,
    NonNegative,
    Positive,
    Probability,
    Reply,
    ServerContext,
)
from tacit.objectives import Supervised
from tacit.objectives.parts import View, beta_shares, look
from tacit.params import Params


@dataclass(frozen=True)
class SemiFlState:
    """The global model, the server's momentum, what its training keeps, and a model it trains beside the clients."""

    w: Params
    velocity: Params | None = None
    kept: Kept | None = None
    own: Params | None = None


@dataclass(frozen=True)
class SemiFl:
    """The server trains last, clients learn from labels that the received model gives once: fix and mix."""

    threshold: Probability = 0.95  # τ: least confidence of a sample in the fix set
    mixing: Positive = 0.75  # a: shares λ of the mix are drawn from Beta(a, a)
    weight: NonNegative = 1.0  # of the mix loss
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.5  # β_g of the server, for the mean of the clients' moves
    alternate: bool = True  # the server trains on the average; else beside the clients, and is half of the average
    view: View = "weak"  # how labeled images are augmented, and unlabeled ones for labeling and mixing

    needs = Needs(server_labels=True, images=True)

    def start(self, server: ServerContext) -> SemiFlState:
        """A model trained on the server's labels, since clients have nothing else to learn from."""
        state = SemiFlState(server.initial())
        return self._finish(before_rounds(server), state) if self.alternate else state

    def send(self, server: ServerContext, state: SemiFlState) -> tuple[SemiFlState, Mapping[int, WeightsDown]]:
        """The global model with its static batch statistics."""
        if not self.alternate:
            trained = fit_server(server, state.w, Supervised(self.view), state.kept)
            state = replace(state, own=trained.params, kept=trained.kept)
        return state, dict.fromkeys(server.cohort, WeightsDown(state.w))

    def client_update(self, client: ClientContext, memory: Kept | None, down: WeightsDown) -> Reply[Kept, WeightsUp]:
        """Label all samples once, keep the confident ones as the fix set, then train on fix and mix."""
        index = client.data.unlabeled
        if not len(index):
            return Reply(memory, None)
        labels, sure = confident(self._answers(client, down.w), self.threshold)
        guesses = Guesses(index, labels.cpu(), sure.cpu())
        if not sure.any():
            return Reply(memory, None, {}, down.w, guesses)
        trained = self._learn(client, down.w, labels, sure, memory)
        return Reply(trained.kept, WeightsUp(trained.params, int(sure.sum())), trained.metrics, trained.params, guesses)

    def merge(self, server: ServerContext, state: SemiFlState, ups: Mapping[int, WeightsUp]) -> SemiFlState:
        """The plain mean, approached with momentum; then the server trains, then the statistics are taken anew."""
        models = [up.w for up in ups.values()]
        if state.own is not None:
            models = [state.own, params.mean(models)] if models else [state.own]
        if models:
            move = params.sub(params.mean(models), state.w)
            v = move if state.velocity is None else params.add(params.scale(state.velocity, self.momentum), move)
            state = replace(state, w=params.add(state.w, v), velocity=v)
        state = replace(state, own=None)
        return self._finish(server, state) if self.alternate else replace(state, w=_static(server, state.w))

    def model(self, state: SemiFlState) -> Params:
        """The global model."""
        return state.w

    def _finish(self, server: ServerContext, state: SemiFlState) -> SemiFlState:
        """Train on the server's labels, the alternate step."""
        trained = fit_server(server, state.w, Supervised(self.view), state.kept)
        return replace(state, w=_static(server, trained.params), kept=trained.kept)

    @torch.no_grad()
    def _answers(self, client: ClientContext, w: Params) -> Tensor:
        """(n, c): what the received model says about every unlabeled sample."""
        model, stream = params.channels_last(w), client.stream("labeling views")
        parts = client.data.take(client.data.unlabeled).x.to(client.device).split(EVALUATION_BATCH)
        seen = (look(client, self.view, part, stream) for part in parts)
        return torch.cat([functional.softmax(client.net.apply(model, x), dim=1) for x in seen])

    def _learn(self, client: ClientContext, w: Params, labels: Tensor, sure: Tensor, kept: Kept | None) -> Trained:
        """Local epochs over the fix set."""
        rows = sure.nonzero().reshape(-1)
        everything = client.data.take(client.data.unlabeled)
        fix = replace(client, data=everything.take(rows.cpu()))
        objective = _FixAndMix(self, everything.x, labels, rows)
        return fit(fix, w, objective, kept=kept)


@dataclass(frozen=True)
class _FixAndMix:
    """L_fix + weight·L_mix of one visit: strong views of the fix set, and their weak views mixed with any sample's."""

    method: SemiFl
    x: Tensor  # every unlabeled sample
    labels: Tensor  # what the received model says about each
    rows: Tensor  # which of them are the fix set

    labels_only = False

    def visit(self, holder: Holder, received: Params, kept: Mapping[str, Tensor]) -> Visit:
        """Views and partners have streams of their own."""
        strong, weak, drawn = (holder.stream(use) for use in ("unlabeled views", "mixed views", "mixup"))
        method = self.method

        def cost(w: Params, batch: Batch) -> Cost:
            n = len(batch.u)
            own = self.labels[self.rows[batch.index.to(self.rows.device)]]
            partner = torch.randint(len(self.x), (n,), generator=drawn)
            share = beta_shares(n, method.mixing, drawn, batch.u.new_zeros((), dtype=torch.get_default_dtype()))
            pair = torch.cat([batch.u, self.x.index_select(0, partner).to(holder.device)])
            first, second = look(holder, method.view, pair, weak).split(n)
            x = torch.cat([holder.views.strong(batch.u, strong), mix(first, second, share)])
            fixed, mixed = holder.net.apply(w, x, train=True).split(n)
            other = self.labels[partner.to(self.labels.device)]
            losses = [functional.cross_entropy(mixed, y, reduction="none") for y in (own, other)]
            fix, mixture = cross_entropy(fixed, own), mix(losses[0], losses[1], share).mean()
            total = fix + method.weight * mixture
            return Cost(total, {"loss_unlabeled": total, "loss_fix": fix, "loss_mix": mixture})

        return Visit(cost)


def _static(server: ServerContext, w: Params) -> Params:
    """The model with static batch statistics, where it has any."""
    return restated(server, w) if server.net.buffers else w


METHODS = {"semifl": SemiFl}
