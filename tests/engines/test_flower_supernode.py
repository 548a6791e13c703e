"""Every wait of a site's SuperNode ends, on Flower's real state: whatever happens to a client process or to the run."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install tacit[flower]")

import httpx
from flwr.app import ConfigRecord, Context, Message, Metadata, RecordDict
from flwr.app.message import make_message, remove_content_from_message
from flwr.common.constant import ErrorCode, SubStatus
from flwr.proto.fleet_pb2 import ActivateNodeRequest, ActivateNodeResponse
from flwr.supercore.fab import Fab
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.run import Run, RunNotRunningException
from flwr.supernode import start_client_internal as flower
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.nodestate import NodeStateFactory

from tacit.engines.flower import supernode

pytestmark = pytest.mark.flower
RUN = 7


def order(text: str) -> Message:
    """A message from the hub."""
    metadata = Metadata(RUN, "", 1, 2, "", "0", 1.0, 3600.0, "train")
    made = make_message(metadata=metadata, content=RecordDict({"task": ConfigRecord({"text": text})}))
    made.metadata.__dict__["_message_id"] = made.object_id
    return made


class Node:
    """A SuperNode's loop with Flower's state, and a hub that records what it is sent."""

    def __init__(self, folder: Path) -> None:
        factory = NodeStateFactory(ObjectStoreFactory())
        self.state: Any = factory.state()
        self.store: Any = factory.objectstore_factory.store()
        self.state.set_node_id(2)
        self.waiting = [order("a"), order("b")]
        self.sent: list[Message] = []
        self.running = True
        self.pull_object: Callable[[int, str], bytes] = self.content
        functions = flower._pull_and_store_message, flower._push_messages, flower._insert_message
        self.loop = supernode.OneMessage(folder, *functions)

    def content(self, run: int, object_id: str) -> bytes:
        self.get_run(run)
        objects = {id: item for each in (order("a"), order("b")) for id, item in get_all_nested_objects(each).items()}
        return objects[object_id].deflate()

    def get_run(self, run: int) -> Run:
        if not self.running:
            raise RunNotRunningException
        made = Run.create_empty(run)
        made.fab_hash = Fab("", b"", {}).hash_str
        return made

    def take(self) -> int | None:
        def receive() -> Any:
            if not self.waiting:
                return None
            message = self.waiting.pop(0)
            return remove_content_from_message(message), get_object_tree(message)

        if self.state.get_run(RUN) is None:  # as after an earlier message, so that no app has to be fetched
            self.state.store_run(self.get_run(RUN))
            self.state.set_run_series_context(0, Context(RUN, 2, {}, RecordDict(), {}))
        return self.loop.take(
            state=self.state,
            object_store=self.store,
            receive=receive,
            get_run=self.get_run,
            node_config={},
            get_fab=None,
            pull_object=self.pull_object,
            confirm_message_received=lambda run, id: None,
            trusted_entities=None,
        )

    def send(self) -> None:
        def send(message: Message, tree: Any, seconds: float) -> tuple[set[str], str]:
            self.sent.append(message)
            return set(), ""

        self.loop.send(state=self.state, object_store=self.store, send=send, push_object=None)

    def start_task(self) -> tuple[int, str]:
        """Claim and start the pending task, as a client process does; its id and its token."""
        (task,) = supernode.unfinished(self.state)
        token = self.state.claim_task(task.task_id)
        assert token
        assert self.state.activate_task(task.task_id)
        return task.task_id, token

    def reply(self, *, complete: bool = True) -> None:
        """Hand over a reply, without its parts if it is not complete."""
        (message,) = self.state.get_messages_legacy(run_ids=[RUN], is_reply=False)
        reply = Message(RecordDict({"reply": ConfigRecord({"text": "done"})}), reply_to=message)
        reply.metadata.__dict__["_message_id"] = reply.object_id
        session = self.state.start_session(RUN)
        objects = get_all_nested_objects(reply)
        self.state.store_message_and_object_tree(remove_content_from_message(reply), get_object_tree(reply), session)
        for id, item in objects.items() if complete else ():
            self.state.store_object(RUN, session, id, item.deflate())

    def is_idle(self) -> bool:
        return not supernode.unfinished(self.state) and not self.state.msg_store and not len(self.store)


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    monkeypatch.setattr(supernode, "POLL_SECONDS", 0.001)
    monkeypatch.setattr(supernode, "RUN_SECONDS", -1.0)
    return Node(tmp_path)


def test_a_reply_is_sent_once_its_task_is_finished(node: Node) -> None:
    assert node.take() == RUN
    task, _ = node.start_task()
    node.reply()
    node.state.finish_task(task, SubStatus.COMPLETED, "")
    node.send()
    assert [message.has_error() for message in node.sent] == [False]
    assert node.is_idle()
    assert node.take() == RUN


@pytest.mark.parametrize("when", ["before it starts", "before it asks", "at work", "while it replies"])
def test_a_lost_client_process_gives_an_error_at_once(when: str, node: Node) -> None:
    node.take()
    if when == "before it starts":
        (task,) = (each.task_id for each in supernode.unfinished(node.state))
    else:
        task, _ = node.start_task()
    if when == "at work":
        node.state.get_messages_legacy(run_ids=[RUN], is_reply=False)
    if when == "while it replies":
        node.reply(complete=False)
    node.state.finish_task(task, SubStatus.FAILED, "the guard saw it die")
    node.send()
    (sent,) = node.sent
    assert sent.error.code == ErrorCode.CLIENT_APP_CRASHED
    assert node.is_idle()
    assert node.take() == RUN


def test_a_reply_that_was_complete_counts_even_if_its_process_died(node: Node) -> None:
    node.take()
    task, _ = node.start_task()
    node.reply()
    node.state.finish_task(task, SubStatus.FAILED, "killed at its very end")
    node.send()
    assert [message.has_error() for message in node.sent] == [False]


def test_a_task_that_no_process_takes_is_given_up(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supernode, "START_SECONDS", -1.0)
    node.take()
    node.send()
    assert [message.error.code for message in node.sent] == [ErrorCode.CLIENT_APP_CRASHED]


def test_the_work_for_a_run_that_is_over_ends_with_it(node: Node) -> None:
    node.take()
    _, token = node.start_task()
    node.running = False
    node.send()
    assert node.sent == []
    assert node.is_idle()
    assert node.state.get_task_by_token(token) is None  # so the process is refused, and ends
    node.running = True
    assert node.take() == RUN


def test_a_run_that_ends_while_its_message_is_fetched_leaves_nothing(node: Node) -> None:
    tokens: list[str] = []

    def pull(run: int, id: str) -> bytes:
        if not tokens:
            tokens.append(node.start_task()[1])  # the client process is faster than the message
        raise RunNotRunningException

    node.pull_object = pull
    assert node.take() is None
    assert node.is_idle()
    assert node.state.get_task_by_token(tokens[0]) is None
    node.pull_object = node.content
    assert node.take() == RUN
    task, _ = node.start_task()
    node.reply()
    node.state.finish_task(task, SubStatus.COMPLETED, "")
    node.send()
    assert [message.has_error() for message in node.sent] == [False]


def test_a_message_that_a_killed_node_had_in_work_is_answered_by_the_next(node: Node, tmp_path: Path) -> None:
    node.take()
    after = Node(tmp_path)
    after.waiting = []
    assert after.take() == RUN
    after.send()
    (sent,) = after.sent
    assert sent.error.code == ErrorCode.CLIENT_APP_CRASHED
    assert sent.metadata.reply_to_message_id == order("a").object_id
    assert after.take() is None
    assert Node(tmp_path).loop._left_behind is None


def test_a_broken_note_of_a_message_in_work_is_ignored(tmp_path: Path) -> None:
    (tmp_path / supernode.IN_WORK).write_bytes(b"\xff\xff half")
    assert Node(tmp_path).loop._left_behind is None


def test_flowers_loop_uses_the_bounded_functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_pull_and_store_message", "_push_messages"):
        monkeypatch.setattr(flower, name, getattr(flower, name))
    supernode.bound_waits(tmp_path)
    assert flower._push_messages.__qualname__ == "OneMessage.send"
    assert flower._pull_and_store_message.__qualname__ == "OneMessage.take"


def test_a_node_takes_leave_for_a_killed_one_before_it_joins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def activate(self: Any, request: Any) -> Any:
        calls.append("joins")
        return ActivateNodeResponse(node_id=7)

    def deactivate(self: Any, request: Any) -> None:
        calls.append(f"{request.node_id} leaves")
        raise httpx.HTTPError("it is not there")

    monkeypatch.setattr(FleetHttpClient, "ActivateNode", activate)
    monkeypatch.setattr(FleetHttpClient, "DeactivateNode", deactivate)
    supernode.rejoin_at_once(tmp_path)
    client = FleetHttpClient.__new__(FleetHttpClient)
    for _ in range(2):
        client.ActivateNode(ActivateNodeRequest())
    assert calls == ["joins", "7 leaves", "joins"]
