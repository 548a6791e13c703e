"""Carries tasks over Flower's grid to the nodes that are connected."""

import math
import time
from collections.abc import Generator, Mapping
from contextlib import closing
from dataclasses import replace
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict

from tacit.engines import failures
from tacit.engines.client import evaluate_all, injected_failure
from tacit.engines.events import ClientStarted, Waiting
from tacit.engines.flower.grid import Answer
from tacit.engines.flower.messages import from_records, is_expired, lost, run_info_records, to_records
from tacit.engines.flower.nodes import ClientNodes
from tacit.engines.job import ClientFailure, ClientNews, ClientOutcome, ClientResult, ClientTask, Job
from tacit.engines.reply import ReplyHeader, typed
from tacit.engines.wire import Encoded, Parts
from tacit.learn import Score
from tacit.params import Params

TRANSIT = 5.0  # seconds a reply may travel after a client's deadline


class FlowerTransport:
    """Carries tasks over a grid to the nodes that are connected."""

    def __init__(self, job: Job, nodes: ClientNodes, most_memory: int | None = None) -> None:
        """`nodes` knows which node is which client.

        `most_memory` is the number of bytes of memory that a reply may carry; a node with a store sends a version only.
        """
        self._job, self._nodes, self._most_memory = job, nodes, most_memory

    def run(self, round: int, tasks: Mapping[int, ClientTask]) -> Generator[ClientNews]:
        """Send the tasks and yield the replies as they are pulled; who is not connected never starts."""
        job, nodes = self._job, self._nodes.find(tasks)
        parts = {id(task.down): job.codec.to_parts(task.down) for task in tasks.values()}  # one may go to many
        messages: dict[int, Message] = {}
        for client, task in tasks.items():
            down, node = parts[id(task.down)], nodes[client]
            if failure := injected_failure(job, round, client):
                yield ClientStarted(round, client)
                yield client, failure.with_bytes(len(down))
            elif isinstance(node, ClientFailure):
                yield client, node
            else:
                messages[client] = self._message(round, client, node, task, down)
                yield ClientStarted(round, client)
        timeout = None if job.deadline is None else job.deadline + TRANSIT
        due = math.inf if job.deadline is None else time.monotonic() + job.deadline
        with closing(self._nodes.grid.ask(messages, timeout)) as answers:
            for answered in answers:
                if answered is None:
                    yield Waiting(round)
                else:
                    client, answer = answered
                    late = time.monotonic() >= due
                    yield client, self._outcome(client, answer, len(parts[id(tasks[client].down)]), late=late)

    def evaluate(self, model: Params, *, outputs: bool = False) -> Score:
        """The model's score on the test set, which is at the server."""
        return evaluate_all(self._job, model, outputs=outputs)

    def close(self) -> None:
        """Nothing to end: the grid belongs to the caller."""

    def _message(self, round: int, client: int, node: int, task: ClientTask, down: Parts) -> Message:
        values: dict[str, Any] = {"round": round, "client": client, "evaluate": task.evaluate}
        memory = {"has_memory": task.memory is not None, "memory": task.memory or b""}
        records = {"task": ConfigRecord(values | memory)} | run_info_records(self._nodes.run_info)
        content = RecordDict(records | to_records("down", down))
        return Message(content, node, "train", ttl=self._job.deadline, group_id=str(round))

    def _outcome(self, client: int, answer: Answer, bytes_down: int, *, late: bool) -> ClientOutcome:
        if isinstance(answer, ClientFailure):
            return answer
        if answer is None or (late and is_expired(answer)):
            return failures.too_slow(self._job.deadline).with_bytes(bytes_down)
        if answer.has_error():
            return lost(answer).with_bytes(bytes_down)
        try:
            return self._read(client, answer.content, bytes_down)
        except (KeyError, TypeError, ValueError) as error:
            return failures.unreadable(error).with_bytes(bytes_down)

    def _read(self, client: int, content: RecordDict, bytes_down: int) -> ClientOutcome:
        reply: Any = content["reply"]
        header = ReplyHeader.from_json(typed(reply["header"], str))
        memory = typed(reply["memory"], bytes) if header.has_memory else None
        if memory is not None and self._most_memory is not None and len(memory) > self._most_memory:
            return failures.too_much_memory(len(memory), self._most_memory).with_bytes(bytes_down)
        parts = from_records(content, "up") if header.has_up else None
        up = None if parts is None else Encoded(parts, self._job.codec, self._job.device)
        outcome = header.outcome(memory, up).with_bytes(bytes_down, len(parts) if parts else 0)
        # What the hub knows itself counts; only of a site with its own data it has nothing but the site's word.
        held = self._job.held(client) or self._nodes.samples(client)
        return replace(outcome, held=held) if isinstance(outcome, ClientResult) else outcome
