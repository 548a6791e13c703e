"""Flower without its processes: a grid whose nodes are in this process, and a run over it as values to compare."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from tacit.engines.loop import Courier, Job, Position, Record, play
from tacit.engines.memory import Memories


class DirectGrid(Grid):
    """A message is answered when it is pushed."""

    def __init__(self, app: ClientApp, nodes: Sequence[Mapping[str, Any]]) -> None:
        """A node for each of these settings; their ids descend, so that nobody can go by them."""
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


def played(given: Job, courier: Courier, folder: Path) -> tuple[bytes, list[Record], list[bytes | None]]:
    """The final state as bytes, the records but for their time, and the memories the server knows."""
    position = Position(Memories(folder, 1 << 30))
    records = [replace(record, seconds=0, details={}) for record in play(given, courier, position)]
    memories = [position.memories.get(client) for client in range(given.federation.clients)]
    return given.codec.encode(position.state), records, memories
