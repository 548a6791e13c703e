"""Flower's simulation on a Ray cluster of two nodes: real processes on loopback, each node with its own folders."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tacit.deploy import flower_cli
from tacit.deploy.processes import Program
from tacit.errors import TacitError
from tacit.runs import config as configs
from tacit.runs import simulation
from tacit.runs.experiment import Experiment
from tests.deploy.machines import free_port
from tests.engines import farm

ROOT = Path(__file__).parents[2]
PATIENCE = 300.0  # seconds until a test gives up on a busy machine
NODES = ("here", "there")

# SCAFFOLD that notes which node each client works on. The nodes take turns in waiting until the other has started all
# remaining clients, so that each gets at least two of three clients in every other round.
METHOD = """
import os
import time
from dataclasses import dataclass
from pathlib import Path

from tacit.methods.scaffold import Scaffold

NOTES, NODES = Path({notes!r}), {nodes!r}


@dataclass(frozen=True)
class Noted(Scaffold):
    def client_update(self, client, memory, down):
        if node := os.environ.get("TACIT_TEST_NODE"):
            (NOTES / f"{{client.round}}-{{client.client}}-{{node}}").touch()
            until = time.monotonic() + {patience}
            while node == NODES[client.round % 2] and len(list(NOTES.glob(f"{{client.round}}-*"))) < 3:
                assert time.monotonic() < until
                time.sleep(0.02)
        return super().client_update(client, memory, down)
"""


@pytest.mark.parametrize("where", ["setting", "RAY_ADDRESS"])
def test_an_address_without_a_cluster_is_refused_at_once(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    address = f"127.0.0.1:{free_port()}"
    monkeypatch.setenv("RAY_ADDRESS", address if where == "RAY_ADDRESS" else "")
    with pytest.raises(TacitError, match=f"no Ray cluster answers at {address}"):
        simulation.cluster(address if where == "setting" else None)


def test_a_run_without_its_cluster_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    data = farm.write_images(tmp_path / "images.npz")
    options = {
        "data": str(data),
        "clients": 3,
        "per_class": 3,
        "engine": "flower",
        "engine.ray": f"127.0.0.1:{free_port()}",
    }
    with pytest.raises(TacitError, match="no Ray cluster answers"):
        Experiment.create(configs.from_options(options), tmp_path / "run")
    assert [path.name for path in tmp_path.iterdir()] == ["images.npz"]


def test_without_an_address_ray_is_started_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert simulation.cluster(None) is None


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a cluster of two nodes with one core each; its processes are ended afterwards."""
    pytest.importorskip("ray", reason="Ray is not installed: pip install tacit[flower]")
    address = f"127.0.0.1:{free_port()}"
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'src'}{os.pathsep}{ROOT}")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    ways = {
        "here": [
            "--head",
            "--port",
            address.rpartition(":")[2],
            "--include-dashboard",
            "false",
            "--node-ip-address",
            "127.0.0.1",
        ],
        "there": ["--address", address, "--node-ip-address", "127.0.0.2"],
    }
    with ExitStack() as running:
        folder = Path(
            running.enter_context(TemporaryDirectory(prefix="ray-"))
        )  # short: a socket's path may have 107 bytes
        for node, way in ways.items():
            monkeypatch.setenv("TACIT_TEST_NODE", node)
            own = folder / node
            small = ["--num-cpus", "1", "--object-store-memory", "80000000", "--temp-dir", str(own)]
            words = [flower_cli.find_program("ray"), "start", *way, *small, "--block"]
            program = running.enter_context(flower_cli.running(words, own, folder / f"{node}.log"))
            wait_until_said(program, "Ray runtime started")
        monkeypatch.delenv("TACIT_TEST_NODE")
        yield address


def wait_until_said(program: Program, text: str) -> None:
    until = time.monotonic() + PATIENCE
    while text not in program.output():
        assert program.exit_code() is None, program.output()
        assert time.monotonic() < until, program.output()
        time.sleep(0.1)


def run(folder: Path, engine: str, *more: str) -> bytes:
    """The model of a run of the `tacit` command in a folder."""
    words = ["run", "--method", "noted:Noted", "--data", "images.npz", "--labels", "client", "--per-class", "3"]
    words += ["--clients", "3", "--rounds", "4", "--batch", "6", "--lr", "0.001", "--set", "train.momentum=0"]
    command = [sys.executable, "-m", "tacit", *words, "--engine", engine, "--out", engine, *more]
    said = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert said.returncode == 0, said.stderr
    assert "without" not in said.stdout
    return (folder / engine / "model.safetensors").read_bytes()


@pytest.mark.flower
@pytest.mark.slow
def test_a_cluster_gives_the_bits_of_one_machine_although_clients_change_nodes(cluster: str, tmp_path: Path) -> None:
    """A method with memory, which travels with the task: the nodes share no disk except for the notes of this test."""
    (tmp_path / "notes").mkdir()
    farm.write_images(tmp_path / "images.npz", 90, 15)
    text = METHOD.format(notes=str(tmp_path / "notes"), nodes=NODES, patience=PATIENCE / 3)
    (tmp_path / "noted.py").write_text(text)
    there = run(tmp_path, "flower", "--set", f"engine.ray={cluster}")
    nodes: dict[str, dict[str, str]] = {"0": {}, "1": {}, "2": {}, "3": {}}
    for path in (tmp_path / "notes").iterdir():
        round, client, node = path.name.split("-")
        nodes[round][client] = node
    assert all(len(each) == 3 for each in nodes.values())
    for before, after in pairwise(nodes.values()):
        assert any(before[client] != after[client] for client in before)
    assert there == run(tmp_path, "local", "--workers", "0")
