"""FedProx: Federated Optimization in Heterogeneous Networks (Li et al., MLSys 2020), Algorithm 2."""

from collections.abc import Mapping
from dataclasses import dataclass

from tacit import aggregation as agg
from tacit.aggregation import Weights, WeightsDown, WeightsState, WeightsUp
from tacit.aggregation.server_step import ServerOptimizer, TuneHead
from tacit.learn import LocalState, Objective, fit
from tacit.method import ClientContext, Needs, NonNegative, Reply, ServerContext
from tacit.objectives import FixMatch
from tacit.params import Params


@dataclass(frozen=True)
class FedProx:
    """FedAvg whose clients minimise F_k(w) + μ/2·‖w - w^t‖². If the server has labels, it trains first."""

    objective: Objective = FixMatch()  # the loss of a batch, at clients and server
    mu: NonNegative = 0.01  # μ: pull towards the received model
    weights: Weights = "uniform"  # of the average: the plain mean in Algorithm 2, by samples in the authors' code
    server_optimizer: ServerOptimizer = "none"
    tune_head: TuneHead = 0

    per_sample = True
    summable = True

    @property
    def needs(self) -> Needs:
        """Labels at clients, if the objective learns from labels only; a linear last layer, if it is tuned."""
        return Needs(client_labels=self.objective.labels_only, linear_head=self.tune_head > 0)

    def start(self, server: ServerContext) -> WeightsState:
        """Initialize w^0."""
        return agg.start_weights(server)

    def send(self, server: ServerContext, state: WeightsState) -> tuple[WeightsState, Mapping[int, WeightsDown]]:
        """Server sends w^t to all chosen devices."""
        state = agg.train_on_server(server, state, self.objective)
        return state, dict.fromkeys(server.cohort, WeightsDown(state.w))

    def client_update(
        self, client: ClientContext, memory: LocalState | None, down: WeightsDown
    ) -> Reply[LocalState, WeightsUp]:
        """Each chosen device finds w_k^{t+1} ≈ argmin h_k(w; w^t) = F_k(w) + μ/2·‖w - w^t‖²."""
        trained = fit(client, down.w, self.objective, carried=memory, prox=self.mu)
        return agg.trained_reply(client, trained, self.objective)

    def merge(self, server: ServerContext, state: WeightsState, ups: Mapping[int, WeightsUp]) -> WeightsState:
        """w^{t+1} = 1/K · Σ w_k^{t+1}."""
        return agg.merge_weights(server, state, ups, self.weights, self.server_optimizer, self.tune_head)

    def model(self, state: WeightsState) -> Params:
        """The average."""
        return state.w


METHODS = {"fedprox": FedProx}
