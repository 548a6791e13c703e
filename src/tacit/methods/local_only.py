"""Local only: every client trains alone and nothing is exchanged. This baseline shows what federation is worth."""

from collections.abc import Mapping
from dataclasses import dataclass

from tacit.learn import LocalState, Objective, fit
from tacit.method import ClientContext, Needs, Reply, ServerContext
from tacit.objectives import FixMatch
from tacit.params import Params


@dataclass(frozen=True)
class LocalOnlyState:
    """Nothing: the server has no model."""


@dataclass(frozen=True)
class LocalOnlyMemory:
    """A client's own model, and the state of its training."""

    w: Params
    carried: LocalState | None


@dataclass(frozen=True)
class LocalOnlyDown:
    """Nothing: only a signal to continue."""


@dataclass(frozen=True)
class LocalOnlyUp:
    """Nothing."""


@dataclass(frozen=True)
class LocalOnly:
    """One model per client, all from the same start. Its accuracy is the clients' average."""

    objective: Objective = FixMatch()  # the loss of a batch

    @property
    def needs(self) -> Needs:
        """Labels at clients: the models never see any other label."""
        return Needs(client_labels=True)

    def start(self, server: ServerContext) -> LocalOnlyState:
        """No common model."""
        return LocalOnlyState()

    def send(self, server: ServerContext, state: LocalOnlyState) -> tuple[LocalOnlyState, Mapping[int, LocalOnlyDown]]:
        """The cohort continues to train."""
        return state, dict.fromkeys(server.cohort, LocalOnlyDown())

    def client_update(
        self, client: ClientContext, memory: LocalOnlyMemory | None, down: LocalOnlyDown
    ) -> Reply[LocalOnlyMemory, LocalOnlyUp]:
        """Continue from where this client stopped."""
        memory = memory or LocalOnlyMemory(client.initial(), None)
        trained = fit(client, memory.w, self.objective, carried=memory.carried)
        own = LocalOnlyMemory(trained.params, trained.carried)
        return Reply(own, None, trained.metrics, trained.params, trained.pseudo_labels)

    def merge(self, server: ServerContext, state: LocalOnlyState, ups: Mapping[int, LocalOnlyUp]) -> LocalOnlyState:
        """Nothing arrives."""
        return state

    def model(self, state: LocalOnlyState) -> None:
        """There is no common model."""
        return None


METHODS = {"local-only": LocalOnly}
