"""Rounds over Flower: the same bits as in one process, and what a missing node or a bad reply costs."""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tacit.engines import failures
from tacit.engines.events import round_records
from tacit.engines.faults import Faults
from tacit.engines.in_process import InProcessTransport
from tacit.engines.job import ClientFailure, ClientOutcome, ClientTask, Job
from tacit.engines.memory import VERSION_BYTES, MemoryStore
from tacit.engines.rounds import run_rounds
from tacit.engines.uploads import check_upload
from tacit.runs import registry
from tests import test_contract as contract
from tests.refusals import refused
from tests.toys import outcomes

flwr = pytest.importorskip("flwr", reason="Flower is not installed: pip install tacit[flower]")

from flwr.app import Context, Error, Message, RecordDict  # noqa: E402
from flwr.clientapp import ClientApp  # noqa: E402

from tacit.engines.flower import NodeInfo, Workspace, client_app, simulated  # noqa: E402
from tacit.engines.flower.messages import node_info_records  # noqa: E402
from tests.engines.grid import DirectGrid, connected, played, run_state  # noqa: E402

pytestmark = pytest.mark.flower
NAMES = [name for name in registry.methods() if not contract.method(name).needs.simulation]
everywhere = pytest.mark.parametrize(
    "name, place", [(name, place) for name in NAMES for place in contract.supported(name)]
)


def with_stores(given: Job, folder: Path) -> ClientApp:
    """Nodes that keep their memory on their own disks."""

    def open_workspace(run_info: Mapping[str, str], node: Mapping[str, Any], client: int) -> Workspace:
        return Workspace(given, MemoryStore(folder / str(node["partition-id"])))

    return client_app(open_workspace, lambda run_info, node: NodeInfo(str(node["partition-id"])))


@everywhere
def test_flower_gives_the_same_bits_as_one_process(name: str, place: str, tmp_path: Path) -> None:
    given = contract.build_job(name, place)
    here = played(given, InProcessTransport(given), tmp_path)
    there = played(given, connected(given, simulated(lambda run_info: given))[0], tmp_path)
    assert there == here


@pytest.mark.parametrize("name", NAMES)
def test_memories_that_stay_at_the_clients_give_the_same_bits(name: str, tmp_path: Path) -> None:
    given = contract.build_job(name, contract.supported(name)[0])
    here = played(given, InProcessTransport(given), tmp_path)
    there = played(given, connected(given, with_stores(given, tmp_path / "stores"))[0], tmp_path)
    assert there[:2] == here[:2]
    for client, (version, memory) in enumerate(zip(there[2], here[2], strict=True)):
        assert (version is None) == (memory is None)
        if version is not None:
            assert len(version) <= VERSION_BYTES  # no memory leaves the client, only its version
            assert MemoryStore(tmp_path / "stores" / str(client)).load(version) == memory


@pytest.mark.parametrize("faults", [Faults(lost=0.5), Faults(crash=0.7), Faults(nonfinite=0.5), Faults(slow=0.4)])
def test_injected_faults_hit_the_same_clients(faults: Faults, tmp_path: Path) -> None:
    given = replace(contract.build_job("scaffold", "client"), faults=faults, deadline=30.0, min_clients=0)
    here = played(given, InProcessTransport(given), tmp_path)
    there = played(given, connected(given, with_stores(given, tmp_path / "stores"))[0], tmp_path)
    assert there[:2] == here[:2]
    assert any(record.skipped for record in here[1])


def test_tensors_are_sent_as_named_arrays(tmp_path: Path) -> None:
    given = contract.build_job("scaffold", "client")
    transport, grid = connected(given, simulated(lambda run_info: given))
    played(given, transport, tmp_path)
    content = next(message for message in grid.pushed if message.metadata.message_type == "train").content
    assert "x/fc3.weight" in content.array_records["down"]
    array = content.array_records["down"]["x/fc3.weight"]
    assert (array.dtype, tuple(array.shape)) == ("float32", (3, 42))


def test_a_client_that_fails_reports_the_error_and_its_traceback(tmp_path: Path) -> None:
    given = replace(contract.build_job("fedavg", "client"), min_clients=0)

    def broken(run_info: Mapping[str, str], node: Mapping[str, Any], client: int) -> Workspace:
        raise OSError("the disk is gone")

    transport, _ = connected(given, client_app(broken, lambda run_info, node: NodeInfo(str(node["partition-id"]))))
    records = list(round_records(run_rounds(given, transport, run_state(tmp_path))))
    assert set(records[0].skipped.values()) == {"failed: OSError: the disk is gone"}
    assert set(records[0].codes.values()) == {"client.failed"}
    assert all("Traceback" in detail for detail in records[0].details.values())


# --- replies from outside ---------------------------------------------------------------------------------------------


def spoiling(spoil: Callable[[RecordDict], object]) -> tuple[Job, ClientApp]:
    """A job, and an app that changes the reply of client 0."""
    given = replace(contract.build_job("fedavg", "client"), cohort=4)
    app = simulated(lambda run_info: given)

    class Spoiling(ClientApp):
        def __call__(self, message: Message, context: Context) -> Message:
            answer = app(message, context)
            if message.metadata.message_type == "train" and context.node_config["partition-id"] == 0:
                spoil(answer.content)
            return answer

    return given, Spoiling()


def exchanged(spoil: Callable[[RecordDict], object]) -> Mapping[int, ClientOutcome]:
    """The outcomes of a round in which the reply of client 0 is changed on its way."""
    given, app = spoiling(spoil)
    server = given.server(0, {})
    _, downs = given.method.send(server, given.method.start(server))
    tasks = {client: ClientTask(down, None) for client, down in downs.items()}
    arrived = outcomes(connected(given, app)[0].run(0, tasks))
    return {client: _as_counted(given, outcome) for client, outcome in arrived.items()}


def _as_counted(given: Job, outcome: ClientOutcome) -> ClientOutcome:
    """The outcome after the check that every upload passes, which decodes it."""
    return outcome if isinstance(outcome, ClientFailure) else check_upload(given.upload_form, outcome, True)


def failed_codes(outcomes: Mapping[int, ClientOutcome]) -> dict[int, str]:
    return {client: outcome.code for client, outcome in outcomes.items() if isinstance(outcome, ClientFailure)}


def changed(name: str, value: Any) -> Callable[[RecordDict], None]:
    """Change a value of the header."""

    def spoil(content: RecordDict) -> None:
        record = content.config_records["reply"]
        header = json.loads(str(record["header"]))
        record["header"] = json.dumps(header | {name: value})

    return spoil


def replaced(name: str, value: Any) -> Callable[[RecordDict], None]:
    """Replace a field of the reply's record, which claims to have a memory."""

    def spoil(content: RecordDict) -> None:
        changed("memory", True)(content)
        content.config_records["reply"][name] = value

    return spoil


def with_samples(n: str) -> Callable[[RecordDict], None]:
    """The upload claims that the model was trained on `n` samples."""

    def spoil(content: RecordDict) -> None:
        tree = str(content.config_records["up.tree"]["json"])
        assert tree.count('"n":') == 1
        content.config_records["up.tree"]["json"] = re.sub(r'"n":\d+', f'"n":{n}', tree)

    return spoil


@pytest.mark.parametrize(
    "spoil",
    [
        *(lambda content, name=name: content.pop(name) for name in ("reply", "up", "up.tree")),
        changed("metrics", {"loss_supervised": [1.0, 2.0]}),
        changed("metrics", {"loss_supervised": 10**400}),
        changed("metrics", {"loss_supervised": "0.5"}),
        changed("metrics", {"steps": float("nan")}),
        changed("metrics", {"steps": float("inf")}),
        changed("metrics", ["steps"]),
        changed("up", "yes"),
        changed("failure", ["a", "list"]),
        changed("failure", {"code": "client.failed", "reason": 3, "detail": ""}),
        replaced("memory", "text"),
        replaced("header", 7),
        replaced("header", "text"),
        replaced("header", "[]"),
        replaced("header", "[" * 100_000),
        *(with_samples(n) for n in ("-5", "NaN", "1e400", '"many"', "1" + "0" * 400)),
    ],
)
def test_an_unreadable_reply_costs_only_its_sender(spoil: Callable[[RecordDict], object]) -> None:
    outcomes = exchanged(spoil)
    assert failed_codes(outcomes) in ({0: "client.unreadable"}, {0: "client.bad-upload"})
    assert len(outcomes) == 4


def test_a_round_with_an_unreadable_reply_continues_and_names_the_remedy(tmp_path: Path) -> None:
    given, app = spoiling(lambda content: content.pop("up"))
    first = next(round_records(run_rounds(given, connected(given, app)[0], run_state(tmp_path))))
    assert list(first.skipped) == [0]
    assert first.codes == {0: "client.unreadable"}
    assert first.clients == 3


def test_a_loss_of_nan_is_not_an_unreadable_reply() -> None:
    assert failed_codes(exchanged(changed("metrics", {"loss_supervised": float("nan")}))) == {}


def test_a_reply_with_a_failure_is_that_failure() -> None:
    failure = {"code": "client.failed", "reason": "failed: out of paper", "detail": "a traceback"}
    outcome = exchanged(changed("failure", failure))[0]
    assert isinstance(outcome, ClientFailure)
    assert (outcome.code, outcome.reason, outcome.detail) == tuple(failure.values())
    assert outcome.bytes_down > 0


@pytest.mark.parametrize("code", failures.EXPIRED)
@pytest.mark.parametrize("deadline", [1e-9, 30.0])
def test_a_client_whose_time_is_over_is_late_not_unreachable(code: int, deadline: float, tmp_path: Path) -> None:
    """Flower answers with the same code for a message that expired and for one that was lost."""
    given = replace(contract.build_job("fedavg", "client"), deadline=deadline, min_clients=0)
    app = ClientApp()

    @app.train()
    def expire(message: Message, context: Context) -> Message:
        return Message(Error(code, "gone"), reply_to=message)

    @app.query()
    def describe(message: Message, context: Context) -> Message:
        return Message(
            RecordDict(node_info_records(NodeInfo(str(context.node_config["partition-id"])))), reply_to=message
        )

    transport, _ = connected(given, app)
    first = next(round_records(run_rounds(given, transport, run_state(tmp_path))))
    expected = failures.too_slow(deadline) if deadline < 1 else failures.lost(code, "gone")
    assert set(first.codes.values()) == {expected.code}


# --- messages that Flower does not accept -----------------------------------------------------------------------------


@pytest.mark.parametrize("deadline", [None, 30.0])
def test_a_message_that_is_not_accepted_is_unreachable_not_late(
    deadline: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For such a message HTTP gives an empty id, and Flower's simulation gives none."""
    given = replace(contract.build_job("fedavg", "client"), cohort=4, deadline=deadline)
    push = DirectGrid.push_messages

    def refuse(grid: DirectGrid, messages: Iterable[Message]) -> Iterable[str]:
        ids = list(push(grid, messages))
        if grid.pushed[-1].metadata.message_type == "query":
            return ids
        return [*ids[:1], "", *ids[2:]] if deadline else ids[1:]

    monkeypatch.setattr(DirectGrid, "push_messages", refuse)
    transport, _ = connected(given, simulated(lambda run_info: given))
    first = next(round_records(run_rounds(given, transport, run_state(tmp_path))))
    assert first.codes == {1 if deadline else 0: failures.unreachable().code}
    assert first.clients == 3


def test_messages_too_large_for_flower_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = contract.build_job("fedavg", "client")
    push = DirectGrid.push_messages

    def refuse(grid: DirectGrid, messages: Iterable[Message]) -> Iterable[str]:
        waiting = list(messages)
        return push(grid, waiting) if waiting[0].metadata.message_type == "query" else []

    monkeypatch.setattr(DirectGrid, "push_messages", refuse)
    transport, _ = connected(given, simulated(lambda run_info: given))
    with refused("flower.message-too-large"):
        next(round_records(run_rounds(given, transport, run_state(tmp_path))))
