"""SemiFL: Semi-Supervised Federated Learning for Unlabeled Clients with Alternate Training (Diao et al., 2022)."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from tacit import aggregation as agg
from tacit import params
from tacit.aggregation import WeightsDown, WeightsUp
from tacit.learn import Batch, BatchLoss, Forward, LocalLoss, LocalState, Looks, Trained, View, fit
from tacit.losses import confident, cross_entropy, mix
from tacit.method import (
    ClientContext,
    Holder,
    Needs,
    NonNegative,
    Positive,
    Probability,
    PseudoLabels,
    Reply,
    ServerContext,
)
from tacit.objectives import Supervised
from tacit.objectives.parts import beta_shares, predict_view, view_of
from tacit.params import Params


@dataclass(frozen=True)
class SemiFlState:
    """The global model, the server's momentum, the state of its training, and the model it trains in parallel."""

    w: Params
    velocity: Params | None = None
    carried: LocalState | None = None
    own: Params | None = None  # from `send` to `merge`, if the server trains in parallel with the clients


@dataclass(frozen=True)
class SemiFl:
    """The server trains after the average; clients learn from labels the received model gives once: fix and mix."""

    threshold: Probability = 0.95  # τ: least confidence of a sample in the fix set
    mixing: Positive = 0.75  # a: shares λ of the mix are drawn from Beta(a, a)
    weight: NonNegative = 1.0  # weight of the mix loss
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.5  # β_g: momentum of the server, on the mean update
    alternate: bool = True  # the server trains on the average; else in parallel, as half of the average
    view: View = "weak"  # how labeled images are augmented, and unlabeled ones for labeling and mixing

    PAPER_LR: ClassVar[float] = 0.03
    needs = Needs(server_labels=True, mixable=True)
    logs = ("loss_fix", "loss_mix")
    summable = True

    def start(self, server: ServerContext) -> SemiFlState:
        """A model trained on the server's labels, the only source of what clients learn."""
        state = SemiFlState(server.initial())
        return self._train_at_server(agg.setup_context(server), state) if self.alternate else state

    def send(self, server: ServerContext, state: SemiFlState) -> tuple[SemiFlState, Mapping[int, WeightsDown]]:
        """The global model with its static batch statistics."""
        if not self.alternate:
            trained = agg.fit_server(server, state.w, Supervised(self.view), state.carried)
            state = replace(state, own=trained.params, carried=trained.carried)
        return state, dict.fromkeys(server.cohort, WeightsDown(state.w))

    def client_update(
        self, client: ClientContext, memory: LocalState | None, down: WeightsDown
    ) -> Reply[LocalState, WeightsUp]:
        """Label all samples once, take the confident ones as the fix set, then train on fix and mix."""
        index = client.data.unlabeled
        if not len(index):
            return Reply(memory, None)
        labels, accepted = confident(self._predictions(client, down.w), self.threshold)
        pseudo_labels = PseudoLabels(index, labels.cpu(), accepted.cpu())
        if not accepted.any():
            return Reply(memory, None, {}, down.w, pseudo_labels)
        trained = self._train(client, down.w, labels, accepted, memory)
        up = WeightsUp(trained.params, int(accepted.sum()))
        return Reply(trained.carried, up, trained.metrics, trained.params, pseudo_labels)

    def merge(self, server: ServerContext, state: SemiFlState, ups: Mapping[int, WeightsUp]) -> SemiFlState:
        """A step towards the plain mean, with momentum; then the server trains and recomputes batch statistics."""
        mean = server.combine((up.w for up in ups.values()), [1.0] * len(ups)) if ups else None
        if state.own is not None:
            mean = state.own if mean is None else params.mean([state.own, mean])
        if mean is not None:
            w, v = agg.step_with_momentum(state.w, mean, state.velocity, self.momentum)
            state = replace(state, w=w, velocity=v)
        state = replace(state, own=None)
        if not self.alternate:
            return replace(state, w=agg.with_static_batchnorm(server, state.w))
        return self._train_at_server(server, state)

    def model(self, state: SemiFlState) -> Params:
        """The global model."""
        return state.w

    def _train_at_server(self, server: ServerContext, state: SemiFlState) -> SemiFlState:
        """The alternate step: train on the server's labels."""
        trained = agg.fit_server(server, state.w, Supervised(self.view), state.carried)
        return replace(state, w=agg.with_static_batchnorm(server, trained.params), carried=trained.carried)

    def _predictions(self, client: ClientContext, w: Params) -> Tensor:
        """(n, c): probabilities the received model gives to every unlabeled sample."""
        x = client.data.take(client.data.unlabeled).x
        return predict_view(client, w, x, self.view, client.stream("labeling views"))

    def _train(
        self, client: ClientContext, w: Params, labels: Tensor, accepted: Tensor, carried: LocalState | None
    ) -> Trained:
        """Local epochs over the fix set."""
        rows = accepted.nonzero().reshape(-1)
        everything = client.data.take(client.data.unlabeled)
        fix = replace(client, data=everything.take(rows.cpu()))
        objective = _FixAndMix(self, everything.x, labels, rows)
        return fit(fix, w, objective, carried=carried)


@dataclass(frozen=True)
class _FixAndMix:
    """L_fix + weight·L_mix of one visit: strong views of the fix set, and their weak views mixed with any sample's."""

    method: SemiFl
    x: Tensor  # every unlabeled sample
    labels: Tensor  # the received model's label of each
    rows: Tensor  # those in the fix set

    labels_only = False
    needs = Needs()

    def local_loss(self, holder: Holder, received: Params, carried: Mapping[str, Tensor]) -> LocalLoss:
        """Views and partners have their own random streams."""
        weak, drawn = (holder.stream(use) for use in ("mixed views", "mixup"))
        strong = Looks(holder.views, ["strong"], "unlabeled", holder.stream("unlabeled views"))
        method, everything = self.method, self.x.to(holder.device)

        def cost(w: Params, batch: Batch, forward: Forward) -> BatchLoss:
            n = len(batch.u)
            own = self.labels[self.rows[batch.index]]
            partner = torch.randint(len(self.x), (n,), generator=drawn).to(holder.device, non_blocking=True)
            share = beta_shares(n, method.mixing, drawn, batch.u.new_zeros((), dtype=torch.get_default_dtype()))
            pair = torch.cat([batch.u, everything.index_select(0, partner)])
            first, second = view_of(holder, method.view, pair, weak).split(n)
            x = torch.cat([strong(batch), mix(first, second, share)])
            fixed, mixed = forward(x).logits.split(n)
            other = self.labels[partner]
            losses = [functional.cross_entropy(mixed, y, reduction="none") for y in (own, other)]
            fix, mixture = cross_entropy(fixed, own), mix(losses[0], losses[1], share).mean()
            total = fix + method.weight * mixture
            return BatchLoss(total, {"loss_unlabeled": total, "loss_fix": fix, "loss_mix": mixture})

        return LocalLoss(cost)


METHODS = {"semifl": SemiFl}
