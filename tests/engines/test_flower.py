"""Flower: the same bits as the local engine through its apps, messages and records, and what happens without a node."""

import inspect
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tacit import catalog
from tacit.engines.faults import Faults
from tacit.engines.inline import InlineCourier
from tacit.engines.loop import Job, Position, play
from tacit.engines.memory import Memories, Shelf
from tacit.errors import TacitError
from tests import test_contract as contract
from tests.engines import farm

flwr = pytest.importorskip("flwr", reason="Flower is not installed: pip install tacit[flower]")

from flwr.app import ConfigRecord, Context, Message, RecordDict  # noqa: E402
from flwr.clientapp import ClientApp  # noqa: E402
from flwr.serverapp import ServerApp  # noqa: E402
from flwr.supercore.inflatable import inflatable_utils  # noqa: E402

from tacit.engines import flower  # noqa: E402
from tacit.engines.flower import (  # noqa: E402
    Desk,
    FlowerCourier,
    Place,
    Post,
    Roster,
    SimulationCourier,
    client_app,
    simulated,
)
from tests.engines.grid import DirectGrid, played  # noqa: E402

pytestmark = pytest.mark.flower
NAMES = [name for name in catalog.methods() if not contract.method(name).needs.simulation]
everywhere = pytest.mark.parametrize(
    "name, place", [(name, place) for name in NAMES for place in contract.supported(name)]
)


def on_shelves(given: Job, folder: Path) -> ClientApp:
    """Nodes that keep their memory on a disk of their own."""

    def open_desk(about: Mapping[str, str], node: Mapping[str, Any], client: int) -> Desk:
        return Desk(given, Shelf(folder / str(node["partition-id"])))

    return client_app(open_desk, lambda about, node: Place(str(node["partition-id"])))


def over(given: Job, app: ClientApp) -> tuple[FlowerCourier, DirectGrid]:
    grid = DirectGrid(app, [{"partition-id": client} for client in range(given.federation.clients)])
    names = {str(client): client for client in range(given.federation.clients)}
    return FlowerCourier(given, Roster(Post(grid), {}, names)), grid


@everywhere
def test_every_method_gives_the_same_bits_as_in_this_process(name: str, place: str, tmp_path: Path) -> None:
    given = contract.build_job(name, place)
    here = played(given, InlineCourier(given), tmp_path)
    there = played(given, over(given, simulated(lambda about: given))[0], tmp_path)
    assert there == here


@pytest.mark.parametrize("name", NAMES)
def test_memories_that_stay_at_the_clients_change_nothing(name: str, tmp_path: Path) -> None:
    given = contract.build_job(name, contract.supported(name)[0])
    here = played(given, InlineCourier(given), tmp_path)
    there = played(given, over(given, on_shelves(given, tmp_path / "shelves"))[0], tmp_path)
    assert there[:2] == here[:2]
    for client, (token, memory) in enumerate(zip(there[2], here[2], strict=True)):
        assert (token is None) == (memory is None)
        if token is not None:
            assert token.isdigit()  # no memory leaves the client, only the number of its version
            assert Shelf(tmp_path / "shelves" / str(client)).take(token) == memory


@pytest.mark.parametrize("faults", [Faults(lost=0.5), Faults(crash=0.7), Faults(nonfinite=0.5), Faults(slow=0.4)])
def test_faults_strike_the_same_clients(faults: Faults, tmp_path: Path) -> None:
    given = replace(contract.build_job("scaffold", "client"), faults=faults, deadline=30.0, min_clients=0)
    here = played(given, InlineCourier(given), tmp_path)
    there = played(given, over(given, on_shelves(given, tmp_path / "shelves"))[0], tmp_path)
    assert there[:2] == here[:2]
    assert any(record.skipped for record in here[1])


def test_tensors_travel_as_named_arrays(tmp_path: Path) -> None:
    given = contract.build_job("scaffold", "client")
    courier, grid = over(given, simulated(lambda about: given))
    played(given, courier, tmp_path)
    content = next(message for message in grid.pushed if message.metadata.message_type == "train").content
    assert "x/fc3.weight" in content.array_records["down"]
    array = content.array_records["down"]["x/fc3.weight"]
    assert (array.dtype, tuple(array.shape)) == ("float32", (3, 42))


def test_a_node_is_known_by_its_name_and_asked_only_once(tmp_path: Path) -> None:
    given = contract.build_job("fedavg", "client")
    courier, grid = over(given, simulated(lambda about: given))
    played(given, courier, tmp_path)
    questions = [message for message in grid.pushed if message.metadata.message_type == "query"]
    assert len(questions) == given.federation.clients


def test_a_client_whose_node_is_gone_is_left_out_until_another_node_has_its_name(tmp_path: Path) -> None:
    given = replace(contract.build_job("scaffold", "client"), cohort=4)
    courier, grid = over(given, on_shelves(given, tmp_path / "shelves"))
    position = Position(Memories(tmp_path, 1 << 30))
    rounds = play(given, courier, position)
    assert next(rounds).skipped == {}
    context = grid.contexts.pop(99)  # client 1
    assert next(rounds).skipped == {1: "is not connected"}
    grid.contexts[7] = Context(1, 7, context.node_config, RecordDict(), {})
    assert next(rounds).skipped == {}  # its memory of the first round was on its disk


def test_a_client_that_fails_says_why_and_keeps_its_traceback(tmp_path: Path) -> None:
    given = replace(contract.build_job("fedavg", "client"), min_clients=0)

    def broken(about: Mapping[str, str], node: Mapping[str, Any], client: int) -> Desk:
        raise OSError("the disk is gone")

    courier, _ = over(given, client_app(broken, lambda about, node: Place(str(node["partition-id"]))))
    records = list(play(given, courier, Position(Memories(tmp_path, 1 << 30))))
    assert set(records[0].skipped.values()) == {"failed: OSError: the disk is gone"}
    assert all("Traceback" in detail for detail in records[0].details.values())


def test_a_site_that_refuses_is_left_out_with_its_reason(tmp_path: Path) -> None:
    given = contract.build_job("fedavg", "client")

    def introduce(about: Mapping[str, str], node: Mapping[str, Any]) -> Place:
        return Place(str(node["partition-id"]), "it has a class 'yeti'" if node["partition-id"] == 0 else "")

    app = client_app(lambda about, node, client: Desk(given), introduce)
    records = list(play(given, over(given, app)[0], Position(Memories(tmp_path, 1 << 30))))
    reasons = {reason for record in records for client, reason in record.skipped.items() if client == 0}
    assert reasons == {"refused: it has a class 'yeti'"}


def test_a_site_that_refused_is_asked_again_since_it_may_have_been_mended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = replace(contract.build_job("fedavg", "client"), cohort=4)
    asked: list[int] = []

    def introduce(about: Mapping[str, str], node: Mapping[str, Any]) -> Place:
        asked.append(node["partition-id"])
        return Place(str(node["partition-id"]), "" if node["partition-id"] or asked.count(0) > 1 else "it has no data")

    courier, _ = over(given, client_app(lambda about, node, client: Desk(given), introduce))
    rounds = play(given, courier, Position(Memories(tmp_path, 1 << 30)))
    assert next(rounds).skipped == {0: "refused: it has no data"}
    assert asked.count(0) == 1
    monkeypatch.setattr(flower, "ASK_AGAIN", 0.0)
    assert next(rounds).skipped == {}
    assert next(rounds).skipped == {}
    assert asked.count(0) == 2
    assert asked.count(1) == 1


@pytest.mark.parametrize("spoiled", ["reply", "up", "up.tree", "metrics"])
def test_a_reply_that_can_not_be_read_costs_its_site_the_round(spoiled: str, tmp_path: Path) -> None:
    given = replace(contract.build_job("fedavg", "client"), cohort=4)
    app = simulated(lambda about: given)

    class Spoiling(ClientApp):
        def __call__(self, message: Message, context: Context) -> Message:
            answer = app(message, context)
            if message.metadata.message_type == "train" and context.node_config["partition-id"] == 0:
                del answer.content[spoiled]
            return answer

    courier, _ = over(given, Spoiling())
    first = next(play(given, courier, Position(Memories(tmp_path, 1 << 30))))
    assert list(first.skipped) == [0]
    assert "can not be read: see that it has the same version of Tacit" in first.skipped[0]
    assert first.clients == given.federation.clients - 1


def test_a_node_that_says_something_else_is_named() -> None:
    app = ClientApp()

    @app.query()
    def who(message: Message, context: Context) -> Message:
        return Message(RecordDict({"place": ConfigRecord({"title": "none of ours"})}), reply_to=message)

    grid = DirectGrid(app, [{"partition-id": 0}])
    roster = Roster(Post(grid), {}, {"0": 0})
    assert roster.places() == {}
    assert "the same version of Tacit" in roster.failures[100]


def test_parts_of_a_message_that_are_still_on_their_way_are_looked_for_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower by itself waits for a second, then for two, then for four."""
    looked: list[str] = []
    slept: list[float] = []

    def pull(id: str) -> bytes:
        looked.append(id)
        if len(looked) <= 1000:
            raise inflatable_utils.ObjectUnavailableError(id)
        return b"there"

    class Clock(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            slept.append(timeout or 0)
            return False

    for name in ("pull_objects", "pull_and_inflate_object_from_tree"):
        before = getattr(inflatable_utils, name).__kwdefaults__
        monkeypatch.setattr(getattr(inflatable_utils, name), "__kwdefaults__", dict(before))
    flower.look_often()
    with monkeypatch.context() as patched:
        patched.setattr(threading, "Event", Clock)
        found = inflatable_utils.pull_objects(["a"], pull)
    assert found == {"a": b"there"}
    waits = [seconds for seconds in slept if seconds]
    assert len(waits) == 1000  # a large model on a slow line takes its time
    assert max(waits) <= 1.2 * flower.PART_LOOK
    whole = inspect.signature(inflatable_utils.pull_and_inflate_object_from_tree)
    assert whole.parameters["backoff_cap"].default == flower.PART_LOOK


def test_a_shelf_keeps_what_the_server_may_still_ask_for(tmp_path: Path) -> None:
    folder = tmp_path / "memory"
    shelf = Shelf(folder)
    first, second = shelf.put(3, b"a"), shelf.put(5, b"b")
    assert shelf.take(first) == b"a"  # the reply of round 5 got lost
    assert shelf.take(second) == b"b"
    assert sorted(path.name for path in folder.iterdir()) == ["5"]
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / "5").stat().st_mode & 0o777 == 0o600
    with pytest.raises(TacitError, match="the memory of round 4 is not in"):
        shelf.take(first)


def test_the_simulation_begins_once_its_nodes_are_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray", reason="Ray is not installed: pip install tacit[flower]")
    given = contract.build_job("fedavg", "client")

    class Late(DirectGrid):
        """Flower hands out its grid first and adds the nodes to it afterwards."""

        looks = 0

        def get_node_ids(self) -> list[int]:
            self.looks += 1
            return [*self.contexts][: max(0, self.looks - 2)]

    def simulate(server: ServerApp, app: ClientApp, nodes: int, backend: dict[str, Any]) -> None:
        late = Late(app, [{"partition-id": client} for client in range(nodes)])
        server(late, Context(1, 0, {}, RecordDict(), {}))

    monkeypatch.setattr(flower, "_simulate", simulate)
    courier = SimulationCourier(given, simulated(lambda about: given), {}, 1, None)
    try:
        records = played(given, courier, tmp_path)[1]
    finally:
        courier.close()
    assert not any(record.skipped for record in records)


def test_with_a_deadline_the_simulation_asks_as_many_as_can_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deadline counts from the time when a message is sent."""
    pytest.importorskip("ray", reason="Ray is not installed: pip install tacit[flower]")
    given = replace(contract.build_job("fedavg", "client"), deadline=60.0, cohort=4)
    pushed: list[int] = []

    class Counting(DirectGrid):
        def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
            waiting = list(messages)
            pushed.append(sum(message.metadata.message_type == "train" for message in waiting))
            return super().push_messages(waiting)

    def simulate(server: ServerApp, app: ClientApp, nodes: int, backend: dict[str, Any]) -> None:
        grid = Counting(app, [{"partition-id": client} for client in range(nodes)])
        server(grid, Context(1, 0, {}, RecordDict(), {}))

    monkeypatch.setattr(flower, "_simulate", simulate)
    monkeypatch.setattr(flower, "_cores", lambda: 3)
    courier = SimulationCourier(given, simulated(lambda about: given), {}, 1, None)
    try:
        found = played(given, courier, tmp_path)
    finally:
        courier.close()
    assert [count for count in pushed if count] == [3, 1] * given.rounds
    assert found[0] == played(given, InlineCourier(given), tmp_path / "inline")[0]


def test_a_simulation_that_does_not_begin_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray", reason="Ray is not installed: pip install tacit[flower]")
    given = contract.build_job("fedavg", "client")
    monkeypatch.setattr(flower, "_simulate", lambda *_: None)
    with pytest.raises(TacitError, match="could not start: it ended before it began"):
        SimulationCourier(given, simulated(lambda about: given), {}, 1, None)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedavg", "fedmatch", "fedseal"])
def test_the_simulation_on_ray_gives_the_same_bits(name: str, tmp_path: Path) -> None:
    """In processes of their own: Ray leaves files open and changes the process it is in."""
    pytest.importorskip("ray", reason="Ray is not installed: pip install tacit[flower]")
    farm.write_images(tmp_path / "images.npz", 90, 15)
    labels = ["server", "--validation", "12"] if name == "fedseal" else ["client"]
    models = []
    for engine in ("local", "flower"):
        words = ["run", "--method", name, "--data", "images.npz", "--labels", *labels, "--per-class", "3"]
        words += ["--clients", "3", "--rounds", "2", "--batch", "6", "--lr", "0.001", "--set", "train.momentum=0"]
        words += ["--engine", engine, "--workers", "2", "--out", engine]
        command = [sys.executable, "-m", "tacit", *words]
        said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
        assert said.returncode == 0, said.stderr
        assert "without" not in said.stdout
        models.append((tmp_path / engine / "model.safetensors").read_bytes())
    assert models[0] == models[1]
