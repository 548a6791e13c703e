"""Overlap Local-SGD: An Algorithmic Approach to Hide Communication Delays in Distributed SGD (Wang et al., 2020)."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated

from pydantic import Field

from tacit import params
from tacit.averaging import WeightsDown, WeightsState, settle, start_weights, train_on_server
from tacit.learn import Kept, Objective, fit
from tacit.method import ClientContext, Needs, Probability, Reply, ServerContext
from tacit.objectives import Supervised
from tacit.params import Params


@dataclass(frozen=True)
class OverlapState:
    """The anchor z, the momentum v of its weights, and what the server's own training keeps."""

    z: Params
    v: Params | None = None
    kept: Kept | None = None


@dataclass(frozen=True)
class OverlapMemory:
    """A worker's own model x, and what its training keeps."""

    x: Params
    kept: Kept | None


@dataclass(frozen=True)
class OverlapUp:
    """A worker's own model x after the pull."""

    x: Params


@dataclass(frozen=True)
class OverlapSgd:
    """Workers never wait: they are pulled towards an anchor, the average of one communication ago."""

    objective: Objective = Supervised()  # what a batch costs
    alpha: Probability = 0.6  # α: how far a worker is pulled back to the anchor
    beta: Annotated[float, Field(ge=0, lt=1)] = 0.7  # β: momentum of the anchor

    @property
    def needs(self) -> Needs:
        """Labels at clients, if the objective learns from labels only."""
        return Needs(client_labels=self.objective.labels_only)

    def start(self, server: ServerContext) -> OverlapState:
        """Anchor and workers begin with the same weights."""
        return OverlapState(start_weights(server).w)

    def send(self, server: ServerContext, state: OverlapState) -> tuple[OverlapState, Mapping[int, WeightsDown]]:
        """The anchor, which was averaged while the workers went on."""
        trained = train_on_server(server, WeightsState(state.z, state.kept), self.objective)
        state = OverlapState(trained.w, state.v, trained.kept)
        return state, dict.fromkeys(server.cohort, WeightsDown(state.z))

    def client_update(
        self, client: ClientContext, memory: OverlapMemory | None, down: WeightsDown
    ) -> Reply[OverlapMemory, OverlapUp]:
        """τ steps from its own x, then x ← x - α·(x - z)."""
        memory = memory or OverlapMemory(down.w, None)
        trained = fit(client, memory.x, self.objective, kept=memory.kept)
        if not trained.steps:
            return Reply(memory, None, trained.metrics, memory.x)
        x = params.lerp(trained.params, down.w, self.alpha)
        kept = trained.kept and replace(trained.kept, buffers=None)  # they are in x, and pulled with it
        return Reply(OverlapMemory(x, kept), OverlapUp(x), trained.metrics, x, trained.guesses)

    def merge(self, server: ServerContext, state: OverlapState, ups: Mapping[int, OverlapUp]) -> OverlapState:
        """v ← β·v + (mean of x - z), z ← z + v.

        Weights only: with momentum, the variances that BatchNorm keeps could fall below 0.
        """
        if not ups:
            return state
        x, names = params.mean([up.x for up in ups.values()]), server.net.trainable
        z = {name: state.z[name] for name in names}
        v = params.sub({name: x[name] for name in names}, z)
        if state.v is not None:
            v = params.add(params.scale(state.v, self.beta), v)
        return OverlapState(settle(server, state.z, x | params.add(z, v)), v, state.kept)

    def model(self, state: OverlapState) -> Params:
        """The anchor."""
        return state.z


METHODS = {"overlap-sgd": OverlapSgd}
