"""Which node is which client: nodes are queried by name, may refuse, leave and come back, and are polled often."""

import inspect
import threading
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tacit.engines import failures
from tacit.engines.events import (
    ClientAnswered,
    ClientFailed,
    ClientStarted,
    RoundBegan,
    RoundEnded,
    Waiting,
    round_records,
)
from tacit.engines.memory import MemoryStore
from tacit.engines.rounds import run_rounds
from tests import test_contract as contract

flwr = pytest.importorskip("flwr", reason="Flower is not installed: pip install tacit[flower]")

from flwr.app import ConfigRecord, Context, Error, Message, RecordDict  # noqa: E402
from flwr.clientapp import ClientApp  # noqa: E402
from flwr.supercore.inflatable import inflatable_utils  # noqa: E402

from tacit.engines.flower import (  # noqa: E402
    ClientNodes,
    FlowerTransport,
    GridClient,
    NodeInfo,
    Workspace,
    client_app,
    simulated,
)
from tacit.engines.flower import grid as grid_module  # noqa: E402
from tacit.engines.flower import nodes as nodes_module  # noqa: E402
from tests.engines.grid import DirectGrid, connected, played, run_state  # noqa: E402

pytestmark = pytest.mark.flower


def test_each_node_is_queried_only_once(tmp_path: Path) -> None:
    given = contract.build_job("fedavg", "client")
    transport, grid = connected(given, simulated(lambda run_info: given))
    played(given, transport, tmp_path)
    queries = [message for message in grid.pushed if message.metadata.message_type == "query"]
    assert len(queries) == given.federation.clients


def test_a_client_without_a_node_is_skipped_until_another_node_has_its_name(tmp_path: Path) -> None:
    given = replace(contract.build_job("scaffold", "client"), cohort=4)

    def open_workspace(run_info: Mapping[str, str], node: Mapping[str, Any], client: int) -> Workspace:
        return Workspace(given, MemoryStore(tmp_path / "stores" / str(node["partition-id"])))

    app = client_app(open_workspace, lambda run_info, node: NodeInfo(str(node["partition-id"])))
    transport, grid = connected(given, app)
    rounds = round_records(run_rounds(given, transport, run_state(tmp_path)))
    assert next(rounds).skipped == {}
    context = grid.contexts.pop(99)  # client 1
    assert next(rounds).codes == {1: failures.not_connected().code}
    grid.contexts[7] = Context(1, 7, context.node_config, RecordDict(), {})
    assert next(rounds).skipped == {}  # its memory of the first round was on its disk


def test_replies_are_events_in_the_order_in_which_they_are_pulled(tmp_path: Path) -> None:
    given = replace(contract.build_job("fedavg", "client"), cohort=4, rounds=1)
    app = simulated(lambda run_info: given)

    class Slow(DirectGrid):
        """Hands out one reply at a time, the last one first, and nothing at every second pull."""

        pulls = 0

        def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
            self.pulls += 1
            return super().pull_messages(list(message_ids)[-1:]) if self.pulls % 2 else []

    grid = Slow(app, [{"partition-id": client} for client in range(given.federation.clients)])
    grid.contexts.pop(98)  # client 2
    names = {str(client): client for client in range(given.federation.clients)}
    transport = FlowerTransport(given, ClientNodes(GridClient(grid), {}, names))
    happened = list(run_rounds(given, transport, run_state(tmp_path)))
    why = failures.not_connected()
    assert happened[:5] == [
        RoundBegan(0, (0, 1, 2, 3)),
        ClientStarted(0, 0),
        ClientStarted(0, 1),
        ClientFailed(0, 2, why.code, why.reason),
        ClientStarted(0, 3),
    ]
    later = [event.client if isinstance(event, ClientAnswered) else type(event) for event in happened[5:]]
    assert later == [Waiting, 3, Waiting, 1, Waiting, 0, RoundEnded]


def test_a_site_that_refuses_is_skipped_with_its_reason(tmp_path: Path) -> None:
    given = contract.build_job("fedavg", "client")

    def introduce(run_info: Mapping[str, str], node: Mapping[str, Any]) -> NodeInfo:
        return NodeInfo(str(node["partition-id"]), "it has a class 'yeti'" if node["partition-id"] == 0 else "")

    app = client_app(lambda run_info, node, client: Workspace(given), introduce)
    records = list(round_records(run_rounds(given, connected(given, app)[0], run_state(tmp_path))))
    reasons = {reason for record in records for client, reason in record.skipped.items() if client == 0}
    assert reasons == {"refused: it has a class 'yeti'"}


def test_a_site_that_refused_is_queried_again_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = replace(contract.build_job("fedavg", "client"), cohort=4)
    asked: list[int] = []

    def introduce(run_info: Mapping[str, str], node: Mapping[str, Any]) -> NodeInfo:
        client = node["partition-id"]
        asked.append(client)
        return NodeInfo(str(client), "" if client or asked.count(0) > 1 else "it has no data")

    transport, _ = connected(given, client_app(lambda run_info, node, client: Workspace(given), introduce))
    rounds = round_records(run_rounds(given, transport, run_state(tmp_path)))
    assert next(rounds).codes == {0: "client.refused"}
    assert asked.count(0) == 1
    monkeypatch.setattr(nodes_module, "QUERY_AGAIN", 0.0)
    assert next(rounds).skipped == {}
    assert next(rounds).skipped == {}
    assert asked.count(0) == 2
    assert asked.count(1) == 1


def never_works(run_info: Mapping[str, str], node: Mapping[str, Any], client: int) -> Workspace:
    raise AssertionError("nodes are only queried")


class Clock:
    """Time that passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_the_pauses_between_queries_of_a_silent_node_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(grid_module, "time", clock)
    monkeypatch.setattr(nodes_module, "time", clock)

    class Deaf(DirectGrid):
        def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
            return [answer for answer in super().pull_messages(message_ids) if answer.metadata.src_node_id != 99]

    grid = Deaf(client_app(never_works, lambda run_info, node: NodeInfo("a")), [{}, {}])
    nodes = ClientNodes(GridClient(grid), {}, {"a": 0}, timeout=120.0)

    def waits(after: float) -> bool:
        clock.now += after
        began = clock.now
        assert nodes.find({0: None}) == {0: 100}
        assert nodes.failures == {99: failures.no_answer().reason}
        assert clock.now == began or 120 <= clock.now - began < 125
        return clock.now > began

    assert waits(0)
    assert not waits(0)
    assert not waits(59)
    assert waits(1)
    assert not waits(60)
    assert waits(60)
    assert [message.metadata.dst_node_id for message in grid.pushed] == [99, 100, 99, 99]
    del grid.contexts[99]
    assert nodes.find({0: None}) == {0: 100}
    assert nodes.failures == {}


def test_a_node_that_comes_back_is_queried_again() -> None:
    info = NodeInfo("a", "it has no data")
    grid = DirectGrid(client_app(never_works, lambda run_info, node: info), [{}])
    nodes = ClientNodes(GridClient(grid), {}, {"a": 0})
    assert nodes.find({0: None}) == {0: failures.refused("it has no data")}
    context = grid.contexts.pop(100)
    assert nodes.find({0: None}) == {0: failures.not_connected()}
    info, grid.contexts[100] = NodeInfo("a"), context
    assert nodes.find({0: None}) == {0: 100}


@pytest.mark.parametrize("said", [{"title": "none of ours"}, {"name": ["a", "list"]}, {"name": "a", "samples": "many"}])
def test_a_node_with_an_unreadable_answer_has_a_failure(said: dict[str, Any]) -> None:
    app = ClientApp()

    @app.query()
    def describe(message: Message, context: Context) -> Message:
        return Message(RecordDict({"place": ConfigRecord(said)}), reply_to=message)

    grid = DirectGrid(app, [{"partition-id": 0}])
    nodes = ClientNodes(GridClient(grid), {}, {"0": 0})
    assert nodes.infos() == {}
    assert nodes.find({0: None}) == {0: failures.not_connected()}
    assert "the same version of Tacit" in nodes.failures[100]


@pytest.mark.parametrize(
    "code, reason, expected",
    [
        (3, None, "was removed, or its answer did not arrive as a whole"),
        (4, None, "did not answer in time"),
        (5, None, "has disconnected"),
        (8, "ClientApp stopped", "failed: its process ended without an answer"),
        (2, "it rains\n  and pours", "failed: it rains and pours"),
        (17, None, "failed: Flower reports error 17"),
    ],
)
def test_an_error_of_flower_is_translated(code: int, reason: str | None, expected: str) -> None:
    app = ClientApp()

    @app.query()
    def describe(message: Message, context: Context) -> Message:
        return Message(Error(code, reason), reply_to=message)

    nodes = ClientNodes(GridClient(DirectGrid(app, [{}])), {}, {"0": 0})
    assert nodes.infos() == {}
    assert nodes.failures == {100: expected}


def test_poll_faster_asks_for_missing_parts_of_a_message_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower's own pauses are one second, then two, then four."""
    polled: list[str] = []
    slept: list[float] = []

    def pull(id: str) -> bytes:
        polled.append(id)
        if len(polled) <= 1000:
            raise inflatable_utils.ObjectUnavailableError(id)
        return b"there"

    class Pause(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            slept.append(timeout or 0)
            return False

    for name in ("pull_objects", "pull_and_inflate_object_from_tree"):
        before = getattr(inflatable_utils, name).__kwdefaults__
        monkeypatch.setattr(getattr(inflatable_utils, name), "__kwdefaults__", dict(before))
    grid_module.poll_faster()
    with monkeypatch.context() as patched:
        patched.setattr(threading, "Event", Pause)
        found = inflatable_utils.pull_objects(["a"], pull)
    assert found == {"a": b"there"}
    waits = [seconds for seconds in slept if seconds]
    assert len(waits) == 1000  # a large model on a slow line takes its time
    assert max(waits) <= 1.2 * grid_module.PART_POLL
    whole = inspect.signature(inflatable_utils.pull_and_inflate_object_from_tree)
    assert whole.parameters["backoff_cap"].default == grid_module.PART_POLL
