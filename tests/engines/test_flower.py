"""Flower: the same bits as the local engine through its apps, messages and records, and what happens without a node."""

import inspect
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tacit import catalog
from tacit.engines.faults import Faults
from tacit.engines.inline import InlineCourier
from tacit.engines.loop import Job, Position, Record, play
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


def first_round_with(spoil: Callable[[RecordDict], object], folder: Path, **changes: Any) -> Record:
    """A round in which the reply of client 0 is changed on its way; the reasons why it is skipped are in the record."""
    given = replace(contract.build_job("fedavg", "client"), cohort=4, **changes)
    app = simulated(lambda about: given)

    class Spoiling(ClientApp):
        def __call__(self, message: Message, context: Context) -> Message:
            answer = app(message, context)
            if message.metadata.message_type == "train" and context.node_config["partition-id"] == 0:
                spoil(answer.content)
            return answer

    courier, _ = over(given, Spoiling())
    return next(play(given, courier, Position(Memories(folder, 1 << 30))))


@pytest.mark.parametrize("spoiled", ["reply", "up", "up.tree", "metrics"])
def test_a_reply_that_can_not_be_read_costs_its_site_the_round(spoiled: str, tmp_path: Path) -> None:
    first = first_round_with(lambda content: content.pop(spoiled), tmp_path)
    assert list(first.skipped) == [0]
    assert "can not be read: see that it has the same version of Tacit" in first.skipped[0]
    assert first.clients == 3


def changed(record: str, name: str, value: Any) -> Callable[[RecordDict], None]:
    def spoil(content: RecordDict) -> None:
        content[record][name] = value

    return spoil


def with_samples(n: str) -> Callable[[RecordDict], None]:
    """The upload says that the model was trained on so many samples."""

    def spoil(content: RecordDict) -> None:
        tree = str(content.config_records["up.tree"]["json"])
        assert tree.count('"n":') == 1
        content.config_records["up.tree"]["json"] = re.sub(r'"n":\d+', f'"n":{n}', tree)

    return spoil


@pytest.mark.parametrize(
    "spoil, reason",
    [
        (changed("metrics", "loss_supervised", [1.0, 2.0]), "TypeError: float"),
        (changed("metrics", "steps", float("nan")), "ValueError: steps = nan is no number of steps"),
        (changed("metrics", "steps", float("inf")), "ValueError: steps = inf is no number of steps"),
        (changed("reply", "memory", "text"), "TypeError: a str where a bytes is expected"),
        (changed("reply", "failed", ["a", "list"]), "TypeError: a list where a str is expected"),
        (with_samples("-5"), "WireError: not a message: n = -5 is no number of samples"),
        (with_samples("NaN"), "WireError: not a message: n = nan is no number of samples"),
        (with_samples("1e400"), "WireError: not a message: n = inf is no number of samples"),
        (with_samples('"many"'), "WireError: not a message: n = many is no number of samples"),
        (with_samples("1" + "0" * 400), "WireError: not a message: n = 1000"),
    ],
)
def test_an_odd_reply_costs_its_site_the_round_and_nobody_else(
    spoil: Callable[[RecordDict], None], reason: str, tmp_path: Path
) -> None:
    def remembering(content: RecordDict) -> None:
        content.config_records["reply"]["remembers"] = True
        spoil(content)

    first = first_round_with(remembering, tmp_path)
    assert list(first.skipped) == [0]
    assert f"sent what can not be read: see that it has the same version of Tacit ({reason}" in first.skipped[0]
    assert first.clients == 3


def test_a_loss_that_is_no_number_is_a_site_that_learns_badly_and_not_an_odd_reply(tmp_path: Path) -> None:
    first = first_round_with(changed("metrics", "loss_supervised", float("nan")), tmp_path)
    assert first.skipped == {}


@pytest.mark.parametrize("deadline", [None, 30.0])
def test_a_message_that_is_not_taken_is_not_called_late(
    deadline: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HTTP gives an empty id for it, Flower's simulation leaves it out."""
    given = replace(contract.build_job("fedavg", "client"), cohort=4, deadline=deadline)
    push = DirectGrid.push_messages

    def refuse(grid: DirectGrid, messages: Iterable[Message]) -> Iterable[str]:
        ids = list(push(grid, messages))
        if grid.pushed[-1].metadata.message_type == "query":
            return ids
        return [*ids[:1], "", *ids[2:]] if deadline else ids[1:]

    monkeypatch.setattr(DirectGrid, "push_messages", refuse)
    courier, _ = over(given, simulated(lambda about: given))
    first = next(play(given, courier, Position(Memories(tmp_path, 1 << 30))))
    assert first.skipped == {1 if deadline else 0: "could not be reached"}
    assert first.clients == 3


def test_messages_that_are_too_large_for_flower_are_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = contract.build_job("fedavg", "client")
    push = DirectGrid.push_messages

    def refuse(grid: DirectGrid, messages: Iterable[Message]) -> Iterable[str]:
        waiting = list(messages)
        return push(grid, waiting) if waiting[0].metadata.message_type == "query" else []

    monkeypatch.setattr(DirectGrid, "push_messages", refuse)
    courier, _ = over(given, simulated(lambda about: given))
    with pytest.raises(TacitError, match="Flower takes no message of this size: use a smaller network"):
        next(play(given, courier, Position(Memories(tmp_path, 1 << 30))))


def nobody_works(about: Mapping[str, str], node: Mapping[str, Any], client: int) -> Desk:
    raise AssertionError("nodes are only asked who they are")


class Clock:
    """Time that passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_a_node_that_never_says_who_it_is_is_waited_for_ever_more_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(flower, "time", clock)

    class Deaf(DirectGrid):
        def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
            return [answer for answer in super().pull_messages(message_ids) if answer.metadata.src_node_id != 99]

    grid = Deaf(client_app(nobody_works, lambda about, node: Place("a")), [{}, {}])
    roster = Roster(Post(grid), {}, {"a": 0}, patience=120.0)

    def waits(after: float) -> bool:
        clock.now += after
        began = clock.now
        assert roster.nodes({0: None}) == {0: 100}
        assert roster.failures == {99: "did not answer in time"}
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
    assert roster.nodes({0: None}) == {0: 100}
    assert roster.failures == {}


def test_a_node_that_comes_back_introduces_itself_anew() -> None:
    said = Place("a", "it has no data")
    grid = DirectGrid(client_app(nobody_works, lambda about, node: said), [{}])
    roster = Roster(Post(grid), {}, {"a": 0})
    assert roster.nodes({0: None}) == {0: "refused: it has no data"}
    context = grid.contexts.pop(100)
    assert roster.nodes({0: None}) == {0: "is not connected"}
    said, grid.contexts[100] = Place("a"), context
    assert roster.nodes({0: None}) == {0: 100}


@pytest.mark.parametrize("said", [{"title": "none of ours"}, {"name": ["a", "list"]}, {"name": "a", "samples": "many"}])
def test_a_node_that_says_something_else_is_named(said: dict[str, Any]) -> None:
    app = ClientApp()

    @app.query()
    def who(message: Message, context: Context) -> Message:
        return Message(RecordDict({"place": ConfigRecord(said)}), reply_to=message)

    grid = DirectGrid(app, [{"partition-id": 0}])
    roster = Roster(Post(grid), {}, {"0": 0})
    assert roster.places() == {}
    assert roster.nodes({0: None}) == {0: "is not connected"}
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
