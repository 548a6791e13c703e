"""Overlap Local-SGD: An Algorithmic Approach to Hide Communication Delays in Distributed SGD (Wang et al., 2020)."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated

from pydantic import Field

from tacit import aggregation as agg
from tacit import params
from tacit.aggregation import WeightsDown, WeightsState
from tacit.learn import LocalState, Objective, fit
from tacit.method import ClientContext, Needs, Probability, Reply, ServerContext
from tacit.objectives import Supervised
from tacit.params import Params
from tacit.updates import Update


@dataclass(frozen=True)
class OverlapState:
    """The anchor z, the momentum v of its weights, and the state of the server's own training."""

    z: Params
    v: Params | None = None
    carried: LocalState | None = None


@dataclass(frozen=True)
class OverlapMemory:
    """A worker's own model x, and the state of its training."""

    x: Params
    carried: LocalState | None


@dataclass(frozen=True)
class OverlapUp:
    """A worker's own model x after the pull."""

    x: Update


@dataclass(frozen=True)
class OverlapSgd:
    """Workers never wait: they are pulled towards an anchor, the average of one communication ago."""

    objective: Objective = Supervised()  # the loss of a batch
    alpha: Probability = 0.6  # α: how far a worker is pulled back to the anchor
    beta: Annotated[float, Field(ge=0, lt=1)] = 0.7  # β: momentum of the anchor

    summable = True

    @property
    def needs(self) -> Needs:
        """Labels at clients, if the objective learns from labels only."""
        return Needs(client_labels=self.objective.labels_only)

    def start(self, server: ServerContext) -> OverlapState:
        """Anchor and workers start with the same weights."""
        return OverlapState(agg.start_weights(server).w)

    def send(self, server: ServerContext, state: OverlapState) -> tuple[OverlapState, Mapping[int, WeightsDown]]:
        """The anchor, which was averaged while the workers continued."""
        trained = agg.train_on_server(server, WeightsState(state.z, state.carried), self.objective)
        state = OverlapState(trained.w, state.v, trained.carried)
        return state, dict.fromkeys(server.cohort, WeightsDown(state.z))

    def client_update(
        self, client: ClientContext, memory: OverlapMemory | None, down: WeightsDown
    ) -> Reply[OverlapMemory, OverlapUp]:
        """τ steps from its own x, then x ← x - α·(x - z)."""
        memory = memory or OverlapMemory(down.w, None)
        trained = fit(client, memory.x, self.objective, carried=memory.carried)
        if not trained.steps:
            return Reply(memory, None, trained.metrics, memory.x)
        x = params.lerp(trained.params, down.w, self.alpha)
        carried = trained.carried and replace(trained.carried, buffers=None)  # buffers are in x, and pulled with it
        return Reply(OverlapMemory(x, carried), OverlapUp(x), trained.metrics, x, trained.pseudo_labels)

    def merge(self, server: ServerContext, state: OverlapState, ups: Mapping[int, OverlapUp]) -> OverlapState:
        """v ← β·v + (mean of x - z), z ← z + v.

        Weights only: with momentum, the variances of BatchNorm could fall below 0.
        """
        if not ups:
            return state
        x, names = server.combine((up.x for up in ups.values()), [1.0] * len(ups)), server.net.trainable
        z = {name: state.z[name] for name in names}
        v = params.sub({name: x[name] for name in names}, z)
        if state.v is not None:
            v = params.add(params.scale(state.v, self.beta), v)
        return OverlapState(agg.apply_buffer_policy(server, state.z, x | params.add(z, v)), v, state.carried)

    def model(self, state: OverlapState) -> Params:
        """The anchor."""
        return state.z


METHODS = {"overlap-sgd": OverlapSgd}
