"""FedProx: Federated Optimization in Heterogeneous Networks (Li et al., MLSys 2020), Algorithm 2."""

from collections.abc import Mapping
from dataclasses import dataclass

from tacit.averaging import (
    Weights,
    WeightsDown,
    WeightsState,
    WeightsUp,
    answer,
    merge_weights,
    start_weights,
    train_on_server,
)
from tacit.learn import Kept, Objective, fit
from tacit.method import ClientContext, Needs, NonNegative, Reply, ServerContext
from tacit.objectives import FixMatch
from tacit.params import Params


@dataclass(frozen=True)
class FedProx:
    """FedAvg whose clients minimise F_k(w) + μ/2·‖w - w^t‖². Where the server has labels, it trains first."""

    objective: Objective = FixMatch()  # what a batch costs, at clients and server
    mu: NonNegative = 0.01  # μ: pull towards the received model
    weights: Weights = "uniform"  # Algorithm 2 takes the plain mean; the authors' code weights by samples

    @property
    def needs(self) -> Needs:
        """Labels at clients, if the objective learns from labels only."""
        return Needs(client_labels=self.objective.labels_only)

    def start(self, server: ServerContext) -> WeightsState:
        """Initialize w^0."""
        return start_weights(server)

    def send(self, server: ServerContext, state: WeightsState) -> tuple[WeightsState, Mapping[int, WeightsDown]]:
        """Server sends w^t to all chosen devices."""
        state = train_on_server(server, state, self.objective)
        return state, dict.fromkeys(server.cohort, WeightsDown(state.w))

    def client_update(self, client: ClientContext, memory: Kept | None, down: WeightsDown) -> Reply[Kept, WeightsUp]:
        """Each chosen device finds w_k^{t+1} ≈ argmin h_k(w; w^t) = F_k(w) + μ/2·‖w - w^t‖²."""
        return answer(client, fit(client, down.w, self.objective, kept=memory, prox=self.mu), self.objective)

    def merge(self, server: ServerContext, state: WeightsState, ups: Mapping[int, WeightsUp]) -> WeightsState:
        """w^{t+1} = 1/K · Σ w_k^{t+1}."""
        return merge_weights(server, state, ups, self.weights)

    def model(self, state: WeightsState) -> Params:
        """The average."""
        return state.w


METHODS = {"fedprox": FedProx}
