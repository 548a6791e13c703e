"""Server only: train on the server's labels, without clients. The baseline that labels at the server need."""

from collections.abc import Mapping
from dataclasses import dataclass

from tacit import aggregation as agg
from tacit.aggregation import WeightsDown, WeightsState
from tacit.learn import LocalState, Objective
from tacit.method import ClientContext, Needs, Reply, ServerContext
from tacit.objectives import FixMatch
from tacit.params import Params


@dataclass(frozen=True)
class ServerOnly:
    """A model trained on the server's labels only."""

    objective: Objective = FixMatch()  # the loss of a batch

    needs = Needs(server_labels=True)

    def start(self, server: ServerContext) -> WeightsState:
        """The initial model."""
        return agg.start_weights(server)

    def send(self, server: ServerContext, state: WeightsState) -> tuple[WeightsState, Mapping[int, WeightsDown]]:
        """Train; send nothing."""
        return agg.train_on_server(server, state, self.objective), {}

    def client_update(
        self, client: ClientContext, memory: LocalState | None, down: WeightsDown
    ) -> Reply[LocalState, None]:
        """Never called, since nothing is sent."""
        return Reply(memory, None)

    def merge(self, server: ServerContext, state: WeightsState, ups: Mapping[int, None]) -> WeightsState:
        """Nothing arrives."""
        return state

    def model(self, state: WeightsState) -> Params:
        """What the server trained."""
        return state.w


METHODS = {"server-only": ServerOnly}
