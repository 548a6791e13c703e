"""FedAvg: Communication-Efficient Learning of Deep Networks (McMahan et al., AISTATS 2017), Algorithm 1."""

from collections.abc import Mapping
from dataclasses import dataclass

from tacit import aggregation as agg
from tacit.aggregation import Turn, Weights, WeightsDown, WeightsState, WeightsUp
from tacit.aggregation.server_step import ServerOptimizer, TuneHead
from tacit.learn import LocalState, Objective, fit
from tacit.method import ClientContext, Needs, Reply, ServerContext
from tacit.objectives import FixMatch
from tacit.params import Params


@dataclass(frozen=True)
class FedAvg:
    """The average of locally trained models. If the server has labels, it trains on them before or after."""

    objective: Objective = FixMatch()  # the loss of a batch, at clients and server
    weights: Weights = "samples"
    server: Turn = "before"  # when the server trains on its labels: before it sends the model, or after the average
    server_optimizer: ServerOptimizer = "none"
    tune_head: TuneHead = 0

    per_sample = True
    summable = True

    @property
    def needs(self) -> Needs:
        """Labels at clients, if the objective learns from labels only; a linear last layer, if it is tuned."""
        return Needs(client_labels=self.objective.labels_only, linear_head=self.tune_head > 0)

    def start(self, server: ServerContext) -> WeightsState:
        """Initialize w_0."""
        state = agg.start_weights(server)
        if self.server == "after":
            state = agg.train_on_server(agg.setup_context(server), state, self.objective)
        return state

    def send(self, server: ServerContext, state: WeightsState) -> tuple[WeightsState, Mapping[int, WeightsDown]]:
        """w_t to every client in S_t."""
        if self.server == "before":
            state = agg.train_on_server(server, state, self.objective)
        return state, dict.fromkeys(server.cohort, WeightsDown(state.w))

    def client_update(
        self, client: ClientContext, memory: LocalState | None, down: WeightsDown
    ) -> Reply[LocalState, WeightsUp]:
        """ClientUpdate(k, w): E epochs of SGD from w."""
        return agg.trained_reply(client, fit(client, down.w, self.objective, carried=memory), self.objective)

    def merge(self, server: ServerContext, state: WeightsState, ups: Mapping[int, WeightsUp]) -> WeightsState:
        """w_{t+1} = Σ n_k/n · w_k over the clients that arrived."""
        state = agg.merge_weights(server, state, ups, self.weights, self.server_optimizer, self.tune_head)
        return agg.train_on_server(server, state, self.objective) if self.server == "after" else state

    def model(self, state: WeightsState) -> Params:
        """The average."""
        return state.w


METHODS = {"fedavg": FedAvg}
