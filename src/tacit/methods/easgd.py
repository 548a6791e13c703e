"""EASGD: Deep learning with Elastic Averaging SGD (Zhang, Choromanska and LeCun, NeurIPS 2015), synchronous."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tacit import aggregation as agg
from tacit import params
from tacit.aggregation import WeightsState
from tacit.learn import LocalState, Objective, fit
from tacit.method import ClientContext, Needs, Probability, Reply, ServerContext
from tacit.objectives import Supervised
from tacit.params import Params
from tacit.updates import Change


@dataclass(frozen=True)
class EasgdMemory:
    """A worker's own model x^i, and the state of its training."""

    x: Params
    carried: LocalState | None


@dataclass(frozen=True)
class EasgdDown:
    """The centre x̃ and the elastic pull α."""

    centre: Params
    alpha: float


@dataclass(frozen=True)
class EasgdUp:
    """The elastic difference α·(x^i - x̃)."""

    pull: Change


@dataclass(frozen=True)
class Easgd:
    """Workers train their own models; each communication pulls worker and centre towards each other."""

    objective: Objective = Supervised()  # the loss of a batch
    beta: Probability = 0.9  # β = p·α: how far the centre moves towards the mean of its p workers

    @property
    def needs(self) -> Needs:
        """Labels at clients, if the objective learns from labels only."""
        return Needs(client_labels=self.objective.labels_only, true_mean=True)

    def start(self, server: ServerContext) -> WeightsState:
        """The centre x̃; all workers start there."""
        return agg.start_weights(server)

    def send(self, server: ServerContext, state: WeightsState) -> tuple[WeightsState, Mapping[int, EasgdDown]]:
        """The centre x̃_t to every worker."""
        state = agg.train_on_server(server, state, self.objective)
        return state, dict.fromkeys(server.cohort, EasgdDown(state.w, self.beta / max(1, len(server.cohort))))

    def client_update(
        self, client: ClientContext, memory: EasgdMemory | None, down: EasgdDown
    ) -> Reply[EasgdMemory, EasgdUp]:
        """τ steps from its own x^i, then x^i ← x^i - α·(x^i - x̃)."""
        memory = memory or EasgdMemory(down.centre, None)
        trained = fit(client, memory.x, self.objective, carried=memory.carried)
        if not trained.steps:
            return Reply(memory, None, trained.metrics, memory.x)
        pull = params.scale(params.sub(trained.params, down.centre), down.alpha)
        x = params.sub(trained.params, pull)
        carried = trained.carried and replace(trained.carried, buffers=None)  # buffers are in x^i, and pulled with it
        return Reply(EasgdMemory(x, carried), EasgdUp(pull), trained.metrics, x, trained.pseudo_labels)

    def merge(self, server: ServerContext, state: WeightsState, ups: Mapping[int, EasgdUp]) -> WeightsState:
        """x̃ ← x̃ + Σ α·(x^i - x̃) over the workers that arrived."""
        centre = state.w
        for up in ups.values():
            centre = params.add(centre, up.pull)
        return WeightsState(agg.apply_buffer_policy(server, state.w, centre), state.carried)

    def model(self, state: WeightsState) -> Params:
        """The centre."""
        return state.w


METHODS = {"easgd": Easgd}
