"""FedAvg: Communication-Efficient Learning of Deep Networks (McMahan et al., AISTATS 2017), Algorithm 1."""

from collections.abc import Mapping
from dataclasses import dataclass

from tacit.averaging import (
    Turn,
    Weights,
    WeightsDown,
    WeightsState,
    WeightsUp,
    answer,
    before_rounds,
    merge_weights,
    start_weights,
    train_on_server,
)
from tacit.learn import Kept, Objective, fit
from tacit.method import ClientContext, Needs, Reply, ServerContext
from tacit.objectives import FixMatch
from tacit.params import Params


@dataclass(frozen=True)
class FedAvg:
    """The average of locally trained models. Where the server has labels, it trains on them before or after."""

    objective: Objective = FixMatch()  # what a batch costs, at clients and server
    weights: Weights = "samples"  # of the clients in the average
    server: Turn = "before"  # when the server trains on its labels: on what it then sends, or on the average

    @property
    def needs(self) -> Needs:
        """Labels at clients, if the objective learns from labels only."""
        return Needs(client_labels=self.objective.labels_only)

    def start(self, server: ServerContext) -> WeightsState:
        """Initialize w_0."""
        state = start_weights(server)
        return train_on_server(before_rounds(server), state, self.objective) if self.server == "after" else state

    def send(self, server: ServerContext, state: WeightsState) -> tuple[WeightsState, Mapping[int, WeightsDown]]:
        """w_t to every client in S_t."""
        if self.server == "before":
            state = train_on_server(server, state, self.objective)
        return state, dict.fromkeys(server.cohort, WeightsDown(state.w))

    def client_update(self, client: ClientContext, memory: Kept | None, down: WeightsDown) -> Reply[Kept, WeightsUp]:
        """ClientUpdate(k, w): E epochs of SGD from w."""
        return answer(client, fit(client, down.w, self.objective, kept=memory), self.objective)

    def merge(self, server: ServerContext, state: WeightsState, ups: Mapping[int, WeightsUp]) -> WeightsState:
        """w_{t+1} = Σ n_k/n · w_k over the clients that arrived."""
        state = merge_weights(server, state, ups, self.weights)
        return train_on_server(server, state, self.objective) if self.server == "after" else state

    def model(self, state: WeightsState) -> Params:
        """The average."""
        return state.w


METHODS = {"fedavg": FedAvg}
