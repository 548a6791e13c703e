"""A method outside the package: FedAvg with momentum at the server (Hsu et al. 2019).

Run it with `cd examples && tacit run --method fedavgm:FedAvgM+fixmatch --per-class 5 --rounds 3`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from tacit.aggregation import WeightsDown, WeightsUp, average, trained_reply
from tacit.learn import LocalState, Objective, fit
from tacit.method import ClientContext, Needs, Reply, ServerContext
from tacit.objectives import FixMatch
from tacit.params import Params, add, scale, sub, zeros_like


@dataclass(frozen=True)
class FedAvgMState:
    """The model w and its velocity v."""

    w: Params
    v: Params


@dataclass(frozen=True)
class FedAvgM:
    """w ← w - v with v ← β·v + (w - mean of the clients' models)."""

    objective: Objective = FixMatch()  # the loss of a batch
    beta: float = 0.9  # β: share of the last step that is repeated

    needs = Needs()

    def start(self, server: ServerContext) -> FedAvgMState:
        w = server.initial()
        return FedAvgMState(w, zeros_like(w))

    def send(self, server: ServerContext, state: FedAvgMState) -> tuple[FedAvgMState, Mapping[int, WeightsDown]]:
        w = fit(server, state.w, self.objective).params  # trains if the server has labels
        return FedAvgMState(w, state.v), dict.fromkeys(server.cohort, WeightsDown(w))

    def client_update(
        self, client: ClientContext, memory: LocalState | None, down: WeightsDown
    ) -> Reply[LocalState, WeightsUp]:
        return trained_reply(client, fit(client, down.w, self.objective, carried=memory), self.objective)

    def merge(self, server: ServerContext, state: FedAvgMState, ups: Mapping[int, WeightsUp]) -> FedAvgMState:
        mean = average(server, state.w, (up.w for up in ups.values()), [up.n for up in ups.values()])
        v = add(scale(state.v, self.beta), sub(state.w, mean))
        return FedAvgMState(sub(state.w, v), v)

    def model(self, state: FedAvgMState) -> Params:
        return state.w
