"""Server only: train on the server's labels and never ask a client. The row every labels-at-server table needs."""

from collections.abc import Mapping
from dataclasses import dataclass

from tacit.averaging import WeightsDown, WeightsState, WeightsUp, start_weights, train_on_server
from tacit.learn import Kept, Objective
from tacit.method import ClientContext, Needs, Reply, ServerContext
from tacit.objectives import FixMatch
from tacit.params import Params


@dataclass(frozen=True)
class ServerOnly:
    """The model that the server's labels alone give."""

    objective: Objective = FixMatch()  # what a batch costs

    needs = Needs(server_labels=True)

    def start(self, server: ServerContext) -> WeightsState:
        """A fresh model."""
        return start_weights(server)

    def send(self, server: ServerContext, state: WeightsState) -> tuple[WeightsState, Mapping[int, WeightsDown]]:
        """Train; send nothing to nobody."""
        return train_on_server(server, state, self.objective), {}

    def client_update(self, client: ClientContext, memory: Kept | None, down: WeightsDown) -> Reply[Kept, WeightsUp]:
        """Never called, since nothing is sent."""
        return Reply(memory, None)

    def merge(self, server: ServerContext, state: WeightsState, ups: Mapping[int, WeightsUp]) -> WeightsState:
        """Nothing arrives."""
        return state

    def model(self, state: WeightsState) -> Params:
        """What the server trained."""
        return state.w


METHODS = {"server-only": ServerOnly}
