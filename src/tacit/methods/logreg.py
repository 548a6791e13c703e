"""Logistic regression on the features of the server's labels: the labels-only row of a network that is frozen."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from tacit.aggregation import WeightsDown, WeightsState, WeightsUp, heads
from tacit.learn import LocalState
from tacit.learn.linear_head import LinearHead, fit_near, no_head
from tacit.method import ClientContext, Needs, Positive, Reply, ServerContext
from tacit.params import Params


@dataclass(frozen=True)
class LogReg:
    """A regularised logistic regression on standardised features of the server's labels; no client is asked."""

    strength: Positive = 1.0  # C: weight of the labels against the penalty ½‖W‖², as in scikit-learn

    needs = Needs(server_labels=True, features=True, linear_head=True)

    def start(self, server: ServerContext) -> WeightsState:
        """The initial, usually pretrained, model."""
        return WeightsState(server.initial())

    def send(self, server: ServerContext, state: WeightsState) -> tuple[WeightsState, Mapping[int, WeightsDown]]:
        """Fit the head in the first round; send nothing."""
        if server.round:
            return state, {}
        labeled, head = server.data.labeled, heads.head_of(server)
        weight, bias = fit_head(
            heads.features_of(server, state.w, labeled), labeled.y.cpu(), head.classes, self.strength
        )
        fitted = {head.weight: weight.to(state.w[head.weight])}
        fitted |= {head.bias: bias.to(state.w[head.bias])} if head.bias else {}
        return WeightsState(state.w | fitted), {}

    def client_update(
        self, client: ClientContext, memory: LocalState | None, down: WeightsDown
    ) -> Reply[LocalState, WeightsUp]:
        """Never called, since nothing is sent."""
        return Reply(memory, None)

    def merge(self, server: ServerContext, state: WeightsState, ups: Mapping[int, WeightsUp]) -> WeightsState:
        """Nothing arrives."""
        return state

    def model(self, state: WeightsState) -> Params:
        """The network with the fitted head."""
        return state.w


def fit_head(z: Tensor, y: Tensor, classes: int, strength: float) -> LinearHead:
    """Features (n, d), labels (n,) -> the head that minimises C·Σ cross-entropy + ½‖W‖², on standardised features."""
    return fit_near(z, y, no_head(classes, z.shape[1]), strength, free_bias=True)


METHODS = {"logreg": LogReg}
