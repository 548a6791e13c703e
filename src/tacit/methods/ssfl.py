"""SSFL: Benchmarking Semi-supervised Federated Learning (Zhang et al., 2020), and FedRGD, its later version (2021).

The server is one more user: it trains its own model between two communications and takes part in every average.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, TypeVar

import torch

from tacit import params
from tacit.averaging import WeightsDown, WeightsUp, addressed, answer, fit_server, settle
from tacit.learn import Kept, Objective, fit
from tacit.method import ClientContext, Count, Holder, Natural, Needs, Reply, ServerContext
from tacit.objectives import FixMatch
from tacit.params import Params

AnyHolder = TypeVar("AnyHolder", bound=Holder)


@dataclass(frozen=True)
class SsflState:
    """w_avg; the means of the groups and who got which; between `send` and `merge` the server's models w_s."""

    w: Params
    means: tuple[Params, ...] = ()
    member: Mapping[int, int] | None = None  # of the last round's users: their group
    own: tuple[Params, ...] = ()
    kept: tuple[Kept | None, ...] = ()


@dataclass(frozen=True)
class Ssfl:
    """FedAvg of unlabeled users and a labeled server that is one of them (`ssfl`); in groups, FedRGD (`fedrgd`)."""

    objective: Objective = FixMatch()  # what a batch costs: the users' Eq. 6, on labels the server's Eq. 2
    period: Natural = 16  # T: steps between communications; 0: what train and server say
    groups: Count = 1  # S: groups that are averaged apart
    servers: Literal["one", "each"] = "one"  # models the server trains: one for all groups, or one for each
    newcomers: Literal["global", "group"] = "global"  # a user of no group gets w_avg, or some group's mean

    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "as-written": {},
        "as-released": {"servers": "each", "newcomers": "group"},
    }

    needs = Needs(server_labels=True)

    def start(self, server: ServerContext) -> SsflState:
        """All begin with the same weights."""
        return SsflState(server.initial())

    def send(self, server: ServerContext, state: SsflState) -> tuple[SsflState, Mapping[int, WeightsDown]]:
        """The server trains on from w_avg, and every user from the mean of its group."""
        models = self.groups if self.servers == "each" else 1
        kept = state.kept or (None,) * models
        paced = self._paced(server)
        trained = [
            fit_server(_apart(paced, group, models), state.w, self.objective, kept[group]) for group in range(models)
        ]
        downs = addressed(WeightsDown, {k: self._mean_for(server, state, k) for k in server.cohort})
        own = tuple(each.params for each in trained)
        return replace(state, own=own, kept=tuple(each.kept for each in trained)), downs

    def client_update(self, client: ClientContext, memory: Kept | None, down: WeightsDown) -> Reply[Kept, WeightsUp]:
        """T steps of SGD from what was received."""
        return answer(client, fit(self._paced(client), down.w, self.objective, kept=memory), self.objective)

    def merge(self, server: ServerContext, state: SsflState, ups: Mapping[int, WeightsUp]) -> SsflState:
        """Eq. 4, 5 and 7: w_avg,i = (w_s + Σ w_k)/(|G_i| + 1) for each group, w_avg is the mean of these."""
        groups = draw(server, list(ups), self.groups)
        means = []
        for place, users in enumerate(groups):
            w_s = state.own[place % len(state.own)]
            means.append(settle(server, w_s, params.mean([w_s, *(ups[k].w for k in users)])))
        if len(ups) > 1:
            self._log_diversity(server, state, ups)
        member = {k: place for place, users in enumerate(groups) for k in users}
        w = params.mean(means)
        return SsflState(settle(server, w, w), tuple(means), member, (), state.kept)

    def model(self, state: SsflState) -> Params:
        """w_avg."""
        return state.w

    def _paced(self, holder: AnyHolder) -> AnyHolder:
        """The holder with T steps between communications."""
        return replace(holder, train=replace(holder.train, steps=self.period)) if self.period else holder

    def _mean_for(self, server: ServerContext, state: SsflState, client: int) -> Params:
        """What a user starts from: its group's mean; w_avg, or as released any group's, if it was in none."""
        if len(state.means) < 2:  # the mean of one group is w_avg
            return state.w
        place = (state.member or {}).get(client)
        if place is None and self.newcomers == "group":
            place = server.streams.number("newcomer", round=server.round, client=client) % len(state.means)
        return state.w if place is None else state.means[place]

    def _log_diversity(self, server: ServerContext, state: SsflState, ups: Mapping[int, WeightsUp]) -> None:
        """Eq. 8, over all weights and over the last layer's, as the paper plots it."""
        moves = [params.sub(up.w, self._mean_for(server, state, k)) for k, up in ups.items()]
        names = server.net.trainable
        last = next(layer for layer in server.net.layers.values() if names[-1] in layer)
        for key, among in (("weight_diversity", names), ("weight_diversity_last_layer", last)):
            server.log(key, diversity([{name: move[name] for name in names if name in among} for move in moves]))


@dataclass(frozen=True)
class FedRgd(Ssfl):
    """FedRGD: SSFL with grouping-based averaging, groups drawn anew in every round."""

    groups: Count = 2  # S: groups that are averaged apart


def diversity(moves: Sequence[Params]) -> float:
    """Eq. 8 as gradient diversity: Σ‖Δ_i‖² / ‖ΣΔ_i‖² of the users' moves Δ_i in a round.

    1/K where all move alike, 1 where they move at right angles. As printed, numerator and denominator are the same.
    """
    total = moves[0]
    for move in moves[1:]:
        total = params.add(total, move)
    return sum(params.dot(move, move) for move in moves) / max(params.dot(total, total), 1e-30)


def draw(server: ServerContext, users: Sequence[int], groups: int) -> list[list[int]]:
    """The users in so many groups of equal size, give or take one; fewer groups where there are fewer users."""
    order = torch.randperm(len(users), generator=server.stream("groups")).tolist()
    shuffled = [users[place] for place in order]
    return [sorted(shuffled[place::groups]) for place in range(max(1, min(groups, len(users))))]


def _apart(server: ServerContext, group: int, models: int) -> ServerContext:
    """The server with random streams of its own for each model it trains."""
    return server if models == 1 else replace(server, streams=server.streams.within(f"group {group}"))


METHODS = {"ssfl": Ssfl, "fedrgd": FedRgd}
