"""Local only: every client trains alone and nothing is exchanged. The row that shows what federation is worth."""

from collections.abc import Mapping
from dataclasses import dataclass

from tacit.learn import Kept, Objective, fit
from tacit.method import ClientContext, Needs, Reply, ServerContext
from tacit.objectives import FixMatch
from tacit.params import Params


@dataclass(frozen=True)
class LocalOnlyState:
    """Nothing: the server knows no model."""


@dataclass(frozen=True)
class LocalOnlyMemory:
    """A client's own model, and what its training keeps between visits."""

    w: Params
    kept: Kept | None


@dataclass(frozen=True)
class LocalOnlyDown:
    """Nothing but the word to go on."""


@dataclass(frozen=True)
class LocalOnlyUp:
    """Nothing."""


@dataclass(frozen=True)
class LocalOnly:
    """One model per client, all from the same start. Its accuracy is the clients' average."""

    objective: Objective = FixMatch()  # what a batch costs

    @property
    def needs(self) -> Needs:
        """Labels at clients: without them, none of these models would ever see one."""
        return Needs(client_labels=True)

    def start(self, server: ServerContext) -> LocalOnlyState:
        """No common model."""
        return LocalOnlyState()

    def send(self, server: ServerContext, state: LocalOnlyState) -> tuple[LocalOnlyState, Mapping[int, LocalOnlyDown]]:
        """The cohort goes on training."""
        return state, dict.fromkeys(server.cohort, LocalOnlyDown())

    def client_update(
        self, client: ClientContext, memory: LocalOnlyMemory | None, down: LocalOnlyDown
    ) -> Reply[LocalOnlyMemory, LocalOnlyUp]:
        """Train on from where this client left off."""
        memory = memory or LocalOnlyMemory(client.initial(), None)
        trained = fit(client, memory.w, self.objective, kept=memory.kept)
        own = LocalOnlyMemory(trained.params, trained.kept)
        return Reply(own, None, trained.metrics, trained.params, trained.guesses)

    def merge(self, server: ServerContext, state: LocalOnlyState, ups: Mapping[int, LocalOnlyUp]) -> LocalOnlyState:
        """Nothing arrives."""
        return state

    def model(self, state: LocalOnlyState) -> None:
        """There is no common model."""
        return None


METHODS = {"local-only": LocalOnly}
