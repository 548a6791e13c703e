"""SSFL: Benchmarking Semi-supervised Federated Learning (Zhang et al., 2020), and FedRGD, its later version (2021).

The server is one more user: it trains its own model between two communications and is part of every average.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, ClassVar, Literal, TypeVar

import torch

from tacit import aggregation as agg
from tacit import params
from tacit.aggregation import WeightsDown, WeightsUp
from tacit.learn import LocalState, Objective, fit
from tacit.method import ClientContext, Count, Holder, Natural, Needs, Reply, ServerContext, Variant
from tacit.objectives import FixMatch
from tacit.params import Params

AnyHolder = TypeVar("AnyHolder", bound=Holder)


@dataclass(frozen=True)
class SsflState:
    """w_avg; the means of the groups, the group of each user; between `send` and `merge` the server's models w_s."""

    w: Params
    means: tuple[Params, ...] = ()
    member: Mapping[int, int] | None = None  # the group of each user of the last round
    own: tuple[Params, ...] = ()
    carried: tuple[LocalState | None, ...] = ()


@dataclass(frozen=True)
class Ssfl:
    """FedAvg of unlabeled users and a labeled server that is one of them (`ssfl`); in groups, FedRGD (`fedrgd`)."""

    objective: Objective = FixMatch()  # the loss of a batch: the users' Eq. 6, on labels the server's Eq. 2
    period: Natural = 16  # T: steps between communications; 0: as set in [train] and [server]
    groups: Count = 1  # S: groups that are averaged separately
    servers: Literal["one", "each"] = "one"  # models the server trains: one for all groups, or one for each
    newcomers: Literal["global", "group"] = "global"  # a user without a group gets w_avg, or the mean of a random group

    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "as-written": {},
        "as-released": {"servers": "each", "newcomers": "group"},
    }

    PAPER_LR: ClassVar[float] = 0.146
    # The server's model is a member of every group's mean, and the groups are drawn from the clients that arrived.
    needs = Needs(server_labels=True, true_mean=True, separate_uploads=True)

    def start(self, server: ServerContext) -> SsflState:
        """All start with the same weights."""
        return SsflState(server.initial())

    def send(self, server: ServerContext, state: SsflState) -> tuple[SsflState, Mapping[int, WeightsDown]]:
        """The server trains from w_avg, and every user from the mean of its group."""
        models = self.groups if self.servers == "each" else 1
        carried = state.carried or (None,) * models
        paced = self._paced(server)
        servers = [_for_model(paced, place, models) for place in range(models)]
        trained = [
            agg.fit_server(each, state.w, self.objective, before) for each, before in zip(servers, carried, strict=True)
        ]
        downs = agg.share_messages(WeightsDown, {k: self._mean_for(server, state, k) for k in server.cohort})
        own = tuple(each.params for each in trained)
        return replace(state, own=own, carried=tuple(each.carried for each in trained)), downs

    def client_update(
        self, client: ClientContext, memory: LocalState | None, down: WeightsDown
    ) -> Reply[LocalState, WeightsUp]:
        """T steps of SGD from the received model."""
        trained = fit(self._paced(client), down.w, self.objective, carried=memory)
        return agg.trained_reply(client, trained, self.objective)

    def merge(self, server: ServerContext, state: SsflState, ups: Mapping[int, WeightsUp]) -> SsflState:
        """Eq. 4, 5 and 7: w_avg,i = (w_s + Σ w_k)/(|G_i| + 1) for each group, w_avg is the mean of these."""
        groups = draw(server, list(ups), self.groups)
        means = []
        for place, users in enumerate(groups):
            w_s = state.own[place % len(state.own)]
            models = chain([w_s], (ups[k].w for k in users))
            means.append(agg.apply_buffer_policy(server, w_s, server.combine(models, [1.0] * (1 + len(users)))))
        if len(ups) > 1:
            self._log_diversity(server, state, ups)
        member = {k: place for place, users in enumerate(groups) for k in users}
        w = params.mean(means)
        return SsflState(agg.apply_buffer_policy(server, w, w), tuple(means), member, (), state.carried)

    def model(self, state: SsflState) -> Params:
        """w_avg."""
        return state.w

    def _paced(self, holder: AnyHolder) -> AnyHolder:
        """The holder with T steps between communications."""
        return replace(holder, train=replace(holder.train, steps=self.period)) if self.period else holder

    def _mean_for(self, server: ServerContext, state: SsflState, client: int) -> Params:
        """What a user starts from: the mean of its group; w_avg, or as released the mean of any, if it has none."""
        if len(state.means) < 2:  # the mean of a single group is w_avg
            return state.w
        place = (state.member or {}).get(client)
        if place is None and self.newcomers == "group":
            place = server.streams.number("newcomer", round=server.round, client=client) % len(state.means)
        return state.w if place is None else state.means[place]

    def _log_diversity(self, server: ServerContext, state: SsflState, ups: Mapping[int, WeightsUp]) -> None:
        """Eq. 8, over all weights and over those of the last layer, which the paper plots."""
        names = server.net.trainable
        last = next(layer for layer in server.net.layers.values() if names[-1] in layer)
        for key, among in (("weight_diversity", names), ("weight_diversity_last_layer", last)):
            moves = (params.sub(up.w, self._mean_for(server, state, k)) for k, up in ups.items())
            server.log(key, diversity({name: move[name] for name in names if name in among} for move in moves))


def diversity(moves: Iterable[Params]) -> float:
    """Eq. 8 as gradient diversity: Σ‖Δ_i‖² / ‖ΣΔ_i‖² of the users' moves Δ_i in a round.

    1/K if all moves are equal, 1 if they are orthogonal. As printed, numerator and denominator are the same.
    """
    total: Params | None = None
    squares = 0.0
    for move in moves:
        total = move if total is None else params.add(total, move)
        squares += params.dot(move, move)
    return squares / max(params.dot(total, total) if total else 0.0, 1e-30)


def draw(server: ServerContext, users: Sequence[int], groups: int) -> list[list[int]]:
    """The users in random groups of equal size, up to one user; fewer groups if there are fewer users."""
    order = torch.randperm(len(users), generator=server.stream("groups")).tolist()
    shuffled = [users[place] for place in order]
    return [sorted(shuffled[place::groups]) for place in range(max(1, min(groups, len(users))))]


def _for_model(server: ServerContext, place: int, models: int) -> ServerContext:
    """The server with separate random streams for each model it trains."""
    return server if models == 1 else replace(server, streams=server.streams.within(f"group {place}"))


METHODS = {
    "ssfl": Ssfl,
    "fedrgd": Variant(
        Ssfl,
        "FedRGD: SSFL with grouping-based averaging, new random groups in every round.",
        defaults={"groups": 2},
        presets=Ssfl.PRESETS,
    ),
}
