"""Flower without its processes: a grid whose nodes are in this process, and the outcome of a run to compare."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from tacit.engines.events import round_records
from tacit.engines.flower import ClientNodes, FlowerTransport, GridClient
from tacit.engines.job import Job, RunState, Transport
from tacit.engines.memory import Memories
from tacit.engines.record import RoundRecord
from tacit.engines.rounds import run_rounds


class DirectGrid(Grid):
    """A grid that answers a message when it is pushed."""

    def __init__(self, app: ClientApp, nodes: Sequence[Mapping[str, Any]]) -> None:
        """A node for each of these settings; their ids descend, so that they cannot be taken for client numbers."""
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
        self.app = app
        self.contexts = {100 - k: Context(1, 100 - k, dict(node), RecordDict(), {}) for k, node in enumerate(nodes)}
        self.answers: dict[str, Message] = {}
        self.pushed: list[Message] = []

    def get_node_ids(self) -> Iterable[int]:
        return list(self.contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = [str(uuid4()) for _ in messages]
        for id, message in zip(ids, messages, strict=True):
            message.metadata.__dict__["_message_id"] = id
            self.pushed.append(message)
            self.answers[id] = self.app(message, self.contexts[message.metadata.dst_node_id])
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self.answers.pop(id) for id in message_ids if id in self.answers]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        raise NotImplementedError

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise NotImplementedError

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Any:
        raise NotImplementedError


def played(given: Job, transport: Transport, folder: Path) -> tuple[bytes, list[RoundRecord], list[bytes | None]]:
    """The final state as bytes, the records without their time, and the memories at the server."""
    state = run_state(folder)
    records = [replace(record, seconds=0, details={}) for record in round_records(run_rounds(given, transport, state))]
    memories = [state.memories.get(client) for client in range(given.federation.clients)]
    return given.codec.encode(state.state), records, memories


def connected(given: Job, app: ClientApp) -> tuple[FlowerTransport, DirectGrid]:
    """A transport to one node per client, each of which runs this app."""
    grid = DirectGrid(app, [{"partition-id": client} for client in range(given.federation.clients)])
    names = {str(client): client for client in range(given.federation.clients)}
    return FlowerTransport(given, ClientNodes(GridClient(grid), {}, names)), grid


def run_state(folder: Path) -> RunState:
    """The state of a run that has not begun."""
    return RunState(Memories(folder, 1 << 30))
