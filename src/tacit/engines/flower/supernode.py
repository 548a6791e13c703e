"""Flower's SuperNode, made so that every wait ends. A script: `python supernode.py FOLDER ARGUMENT…`.

The arguments are those of `flower-supernode`. A SuperNode takes a message, waits until a client process has replied,
sends the reply, and takes the next one. Flower's own loop can wait forever: if the process dies before it has asked for
its message or while it hands over its reply, and if the run ends while the parts of a message are fetched. A process
whose message is gone would ask for its parts for hours. Here

- the wait for a reply ends with the task: it is finished, lost, or not started in time;
- a task whose run is over ends with the run, and its process with the task, since its token is revoked;
- no task is left when the next message is taken;
- a message that a killed SuperNode had in work is answered with an error by the next one, which finds it in FOLDER;
- a SuperNode that comes back first takes leave for a killed one, so that the SuperLink does not refuse it for a minute;
- soon after a reply, the next message is asked for more often than every three seconds: rounds may be short.

The script imports nothing of Tacit, so it starts as fast as Flower's program.
"""

import math
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import httpx
from flwr.app import Error, Message
from flwr.common.constant import ErrorCode, Status, SubStatus
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.fleet_pb2 import DeactivateNodeRequest
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.object_store import NoObjectInStoreError
from flwr.supercore.run import RunNotRunningException

POLL_SECONDS = 0.2  # between two looks at the task
RUN_SECONDS = 5.0  # between two checks whether the run continues
ASK_SECONDS, ASK_SHARE = 0.3, 0.1  # between two questions for a message: so long, plus a share of the time without one
IDLE_SECONDS = 3.0  # Flower's own pause between two questions
START_SECONDS = 120.0  # a client process takes its task within this time
IN_WORK = "message-in-work"  # file with the message that has no reply yet
NODE = "node"  # file with the number of this node at the SuperLink

LOST = Error(ErrorCode.CLIENT_APP_CRASHED, "The client process ended without a reply.")


class OneMessage:
    """The two halves of Flower's loop: take a message, and send the reply to it."""

    def __init__(self, folder: Path, take: Callable[..., int | None], send: Callable[..., None], insert: Any) -> None:
        """`take`, `send` and `insert` are Flower's own functions."""
        self._file = folder / IN_WORK
        self._take, self._send, self._insert = take, send, insert
        self._left_behind = _stored(self._file)
        self._message: Message | None = None
        self._is_running: Callable[[], bool] = lambda: True
        self._worked = -math.inf  # when the last reply was sent

    def take(self, **given: Any) -> int | None:
        """Take the next message; the run it belongs to. None: there is none, and has been none for a while."""
        while (run := self._take_now(**given)) is None:
            pause = ASK_SECONDS + ASK_SHARE * (time.monotonic() - self._worked)
            if pause >= IDLE_SECONDS:
                break
            time.sleep(pause)
        return run

    def _take_now(self, *, state: Any, object_store: Any, receive: Any, get_run: Any, **others: Any) -> int | None:
        """Take the next message, if there is one, once nothing is left of the one before."""
        end_all(state, object_store)
        if (left := self._left_behind) is not None:
            self._left_behind, self._message = None, left
            self._insert(Message(LOST, reply_to=left), state, object_store)
            return int(left.metadata.run_id)
        self._message = None

        def receive_and_note() -> Any:
            received = receive()
            if received is not None:
                self._message = received[0]
                self._file.write_bytes(message_to_proto(received[0]).SerializeToString())
            return received

        run = self._take(state=state, object_store=object_store, receive=receive_and_note, get_run=get_run, **others)
        if run is None:
            self._forget()
            end_all(state, object_store)
        self._is_running = lambda: _goes_on(get_run, run)
        return run

    def send(self, *, state: Any, object_store: Any, **others: Any) -> None:
        """Wait for the reply and send it, or an error in its place; nothing if the run is over."""
        assert self._message is not None
        if self._wait(state):
            if not has_reply(state, object_store, self._message):
                end_all(state, object_store)
                self._insert(Message(LOST, reply_to=self._message), state, object_store)
            self._send(state=state, object_store=object_store, **others)
        self._forget()
        end_all(state, object_store)
        self._worked = time.monotonic()

    def _wait(self, state: Any) -> bool:
        """Wait until no task is unfinished; whether the run continues."""
        began = asked = time.monotonic()
        while tasks := unfinished(state):
            now = time.monotonic()
            if now > began + START_SECONDS and all(task.status.status == Status.PENDING for task in tasks):
                break
            if now > asked + RUN_SECONDS:
                asked = now
                if not self._is_running():
                    return False
            time.sleep(POLL_SECONDS)
        return True

    def _forget(self) -> None:
        self._file.unlink(missing_ok=True)


def unfinished(state: Any) -> list[Any]:
    """The tasks that have not ended; this also ends those whose process sends no more heartbeats."""
    found: list[Any] = state.get_tasks(statuses=[Status.PENDING, Status.STARTING, Status.RUNNING])
    return found


def end_all(state: Any, object_store: Any) -> None:
    """Drop all messages and end all tasks. Their tokens are revoked, which ends their processes."""
    for task in unfinished(state):
        state.finish_task(task.task_id, sub_status=SubStatus.FAILED, details="The message was dropped.")
        state.delete_sessions_in_run(task.run_id)
    state.delete_messages()
    object_store.clear()


def has_reply(state: Any, object_store: Any, message: Message) -> bool:
    """Whether the reply to a message is complete."""
    replies = [entry.message.metadata for entry in list(state.msg_store.values())]
    for reply in replies:
        if reply.reply_to_message_id == message.metadata.message_id:
            with suppress(NoObjectInStoreError):
                parts = iterate_object_tree(object_store.get_object_tree(reply.message_id))
                return all(object_store.get(part.object_id) for part in parts)
    return False


def _goes_on(get_run: Callable[[int], Any], run: int | None) -> bool:
    try:
        get_run(run or 0)
    except RunNotRunningException:
        return False
    return True


def _stored(file: Path) -> Message | None:
    """The message that a killed SuperNode had in work, if any."""
    try:
        return message_from_proto(ProtoMessage.FromString(file.read_bytes()))
    except FileNotFoundError:
        return None
    except Exception:  # half-written when the SuperNode was killed; Flower's decoder raises errors of many kinds
        file.unlink()
        return None


def bound_waits(folder: Path) -> None:
    """Make the SuperNode that this process will run use `OneMessage`."""
    internal: Any = import_module("flwr.supernode.start_client_internal")
    loop = OneMessage(folder, internal._pull_and_store_message, internal._push_messages, internal._insert_message)
    internal._pull_and_store_message, internal._push_messages = loop.take, loop.send


def rejoin_at_once(folder: Path) -> None:
    """Make the SuperNode that this process will run take leave before it joins, if it has joined before."""
    client: Any = import_module("flwr.supernode.fleet_http_client").FleetHttpClient
    activate = client.ActivateNode
    file = folder / NODE

    def leave_and_activate(self: Any, request: Any) -> Any:
        with suppress(OSError, ValueError, httpx.HTTPError):  # it left in order, or has other keys now
            self.DeactivateNode(DeactivateNodeRequest(node_id=int(file.read_text(encoding="ascii"))))
        response = activate(self, request)
        file.write_text(str(response.node_id), encoding="ascii")
        return response

    client.ActivateNode = leave_and_activate


if __name__ == "__main__":
    bound_waits(Path(sys.argv[1]))
    rejoin_at_once(Path(sys.argv[1]))
    sys.argv = ["flower-supernode", *sys.argv[2:]]
    sys.exit(import_module("flwr.supernode.cli").flower_supernode())
