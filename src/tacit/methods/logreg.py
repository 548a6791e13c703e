"""Logistic regression on the features of the server's labels: the labels-only row of a network that is frozen."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from tacit.aggregation import WeightsDown, WeightsState, WeightsUp, heads
from tacit.learn import LocalState
from tacit.method import ClientContext, Needs, Positive, Reply, ServerContext
from tacit.params import Params

STEPS = 200  # of L-BFGS at most; the loss is convex
_SMALL = 1e-9  # a deviation below which a feature is constant


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


def fit_head(z: Tensor, y: Tensor, classes: int, strength: float) -> tuple[Tensor, Tensor]:
    """Features (n, d), labels (n,) -> weight (c, d) and bias (c,) that minimise C·Σ cross-entropy + ½‖W‖².

    W acts on features with mean 0 and deviation 1; what is returned acts on the features themselves.
    """
    mean, spread = z.mean(dim=0), z.std(dim=0, correction=0)
    spread = torch.where(spread > _SMALL, spread, torch.ones_like(spread))
    x = (z - mean) / spread
    weight = torch.zeros(classes, x.shape[1], dtype=x.dtype, requires_grad=True)
    bias = torch.zeros(classes, dtype=x.dtype, requires_grad=True)
    search = torch.optim.LBFGS(
        [weight, bias], max_iter=STEPS, tolerance_grad=1e-8, tolerance_change=1e-12, line_search_fn="strong_wolfe"
    )

    def loss() -> Tensor:
        search.zero_grad()
        fit = functional.cross_entropy(functional.linear(x, weight, bias), y, reduction="sum")
        total = (strength * fit + weight.square().sum() / 2) / len(y)
        total.backward()
        return total

    search.step(loss)
    found = weight.detach() / spread
    return found, bias.detach() - found @ mean


METHODS = {"logreg": LogReg}
