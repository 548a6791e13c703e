"""Flower's simulation: it starts with all its nodes, respects deadlines, and gives the same bits on Ray."""

import subprocess
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tacit.engines.events import round_records
from tacit.engines.in_process import InProcessTransport
from tacit.engines.rounds import run_rounds
from tests import test_contract as contract
from tests.engines import farm
from tests.refusals import refused

flwr = pytest.importorskip("flwr", reason="Flower is not installed: pip install tacit[flower]")
pytest.importorskip("ray", reason="Ray is not installed: pip install tacit[flower]")

from flwr.app import Context, Message, RecordDict  # noqa: E402
from flwr.clientapp import ClientApp  # noqa: E402
from flwr.serverapp import ServerApp  # noqa: E402

from tacit.engines.flower import SimulationTransport, simulated, simulation  # noqa: E402
from tests.engines.grid import DirectGrid, played, run_state  # noqa: E402

pytestmark = pytest.mark.flower


def test_the_simulation_waits_for_its_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = contract.build_job("fedavg", "client")

    class Late(DirectGrid):
        """Flower hands out its grid before it adds the nodes."""

        polls = 0

        def get_node_ids(self) -> list[int]:
            self.polls += 1
            return [*self.contexts][: max(0, self.polls - 2)]

    def simulate(server: ServerApp, app: ClientApp, nodes: int, backend: dict[str, Any]) -> None:
        late = Late(app, [{"partition-id": client} for client in range(nodes)])
        server(late, Context(1, 0, {}, RecordDict(), {}))

    monkeypatch.setattr(simulation, "_simulate", simulate)
    transport = SimulationTransport(given, simulated(lambda run_info: given), {}, 1, None)
    try:
        records = played(given, transport, tmp_path)[1]
    finally:
        transport.close()
    assert not any(record.skipped for record in records)


def test_with_a_deadline_only_as_many_clients_as_cores_are_asked_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deadline runs from the time a message is sent."""
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

    monkeypatch.setattr(simulation, "_simulate", simulate)
    monkeypatch.setattr(simulation, "_cores", lambda: 3)
    transport = SimulationTransport(given, simulated(lambda run_info: given), {}, 1, None)
    try:
        found = played(given, transport, tmp_path)
    finally:
        transport.close()
    assert [count for count in pushed if count] == [3, 1] * given.rounds
    assert found[0] == played(given, InProcessTransport(given), tmp_path / "here")[0]


def test_a_simulation_that_does_not_start_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    given = contract.build_job("fedavg", "client")
    monkeypatch.setattr(simulation, "_simulate", lambda *_: None)
    with refused("flower.simulation-not-started"):
        SimulationTransport(given, simulated(lambda run_info: given), {}, 1, None)


def test_a_simulation_that_ends_early_can_be_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = contract.build_job("fedavg", "client")

    class Deaf(DirectGrid):
        """A grid whose tasks are never answered."""

        def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
            answers = [*super().pull_messages(message_ids)]
            if any(answer.metadata.message_type == "train" for answer in answers):
                transport._closing.set()  # the simulation's thread ends
                transport._thread.join()
                return []
            return answers

    def simulate(server: ServerApp, app: ClientApp, nodes: int, backend: dict[str, Any]) -> None:
        deaf = Deaf(app, [{"partition-id": client} for client in range(nodes)])
        server(deaf, Context(1, 0, {}, RecordDict(), {}))

    monkeypatch.setattr(simulation, "_simulate", simulate)
    transport = SimulationTransport(given, simulated(lambda run_info: given), {}, 1, None)
    try:
        with refused("flower.simulation-ended") as caught:
            next(round_records(run_rounds(given, transport, run_state(tmp_path))))
    finally:
        transport.close()
    assert caught.error.resumable


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedavg", "fedmatch", "fedseal"])
def test_the_simulation_on_ray_gives_the_same_bits(name: str, tmp_path: Path) -> None:
    """In separate processes: Ray leaves files open and changes the process it runs in."""
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
