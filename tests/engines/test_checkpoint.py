"""Checkpoints: the last few stay, each complete and verified, and a value of one client is written once."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tacit.engines import checkpoint
from tacit.engines.job import RunState
from tacit.engines.memory import Memories
from tacit.engines.wire import Codec
from tacit.per_client import PerClient
from tests.refusals import refused

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Held:
    """A model."""

    w: Tensor


@dataclass(frozen=True)
class State:
    """A number of rounds, and a model for each client seen."""

    rounds: int
    held: PerClient[Held] = field(default_factory=PerClient)


CODEC = Codec({"Held": Held, "State": State})


def run(folder: Path, rounds: int, keep: int, clients: int = 4) -> Iterator[RunState]:
    """A run in which client `round % clients` changes in every round, saved after each."""
    run_state = RunState(Memories(folder / "memories", 1 << 30), 0, State(0))
    for round in range(rounds):
        new = {round % clients: Held(torch.full((100,), float(round)))}
        run_state.memories.commit(round, {round % clients: f"memory of {round}".encode()})
        run_state.state, run_state.round = State(round + 1, run_state.state.held | new), round + 1
        checkpoint.save(folder, run_state, CODEC, 10 * round, keep)
        yield run_state


def loaded(folder: Path) -> RunState:
    return checkpoint.load(folder, CODEC, Memories(folder / "memories", 1 << 30), CPU)[0]


def written(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in (folder / "entries").iterdir()}


def test_a_round_writes_only_what_it_changed(tmp_path: Path) -> None:
    before: dict[str, int] = {}
    for round, _ in enumerate(run(tmp_path, 9, keep=1)):
        now = written(tmp_path)
        assert now.keys() - before.keys() == {f"held.{round % 4}.{round + 1}"}
        assert all(now[name] == before[name] for name in now.keys() & before.keys())
        assert len(now) == min(4, round + 1)
        before = now
    assert (tmp_path / "state.9").stat().st_size < 1000


def test_values_are_the_same_after_they_were_stored_and_after_a_resume(tmp_path: Path) -> None:
    states = list(run(tmp_path, 6, keep=2))
    for found in (states[-1], loaded(tmp_path)):
        assert found.state.rounds == 6
        assert {k: float(each.w[0]) for k, each in found.state.held.items()} == {0: 4, 1: 5, 2: 2, 3: 3}
    changed = loaded(tmp_path).state.held | {0: Held(torch.zeros(1))}
    assert changed.unstored().keys() == {0}
    assert 7 not in changed
    assert changed.get(7) is None


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_the_last_checkpoints_can_be_returned_to(tmp_path: Path, keep: int) -> None:
    list(run(tmp_path, 7, keep))
    known = list(range(8 - keep, 8))
    assert checkpoint.rounds(tmp_path) == [0, *known]
    for round in reversed(known):
        checkpoint.rewind(tmp_path, round)
        found = loaded(tmp_path)
        assert (found.round, found.state.rounds) == (round, round)
        last = {k: max(r for r in range(round) if r % 4 == k) for k in range(4)}
        assert {k: float(each.w[0]) for k, each in found.state.held.items()} == last
        assert {k: found.memories.get(k) for k in range(4)} == {k: f"memory of {r}".encode() for k, r in last.items()}
    checkpoint.rewind(tmp_path, 0)
    assert loaded(tmp_path).state is None
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == []


def test_what_is_newer_than_the_round_returned_to_is_deleted(tmp_path: Path) -> None:
    list(run(tmp_path, 7, keep=3))
    checkpoint.rewind(tmp_path, 5)
    loaded(tmp_path)
    names = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    entries = {"entries/held.0.5", "entries/held.1.2", "entries/held.2.3", "entries/held.3.4"}
    memories = {"memories/0.4", "memories/1.1", "memories/2.2", "memories/3.3"}
    assert names == {"latest.json", "state.5", *entries, *memories}


@pytest.mark.parametrize("name", ["state.6", "entries/held.0.5", "memories/1.5"])
@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "delete"])
def test_any_damaged_file_of_the_last_checkpoint_is_refused(tmp_path: Path, name: str, damage: str) -> None:
    list(run(tmp_path, 6, keep=3))
    path = tmp_path / name
    data = path.read_bytes()
    if damage == "delete":
        path.unlink()
    else:
        path.write_bytes({"flip": data[:-1] + bytes([data[-1] ^ 4]), "cut": data[:-1], "empty": b""}[damage])
    files = {each: each.read_bytes() for each in tmp_path.rglob("*") if each.is_file()}
    with refused("run.broken-checkpoint") as caught:
        loaded(tmp_path)
    assert name in caught.error.problem
    assert "--from" in caught.error.remedy
    assert {each: each.read_bytes() for each in tmp_path.rglob("*") if each.is_file()} == files


def test_an_earlier_checkpoint_replaces_a_damaged_one(tmp_path: Path) -> None:
    list(run(tmp_path, 6, keep=3))
    (tmp_path / "latest.json").write_bytes(b"{")
    assert checkpoint.rounds(tmp_path) == [0, 4, 5]
    checkpoint.rewind(tmp_path, 5)
    assert loaded(tmp_path).round == 5


def test_files_of_others_stay(tmp_path: Path) -> None:
    list(run(tmp_path, 3, keep=1))
    others = ["notes.txt", "state.txt", "entries/readme.md", "memories/x.3", "round.x.json"]
    for name in others:
        (tmp_path / name).write_bytes(b"mine")
    (tmp_path / "state.99").write_bytes(b"of a killed process")
    list(run(tmp_path, 4, keep=1))
    assert loaded(tmp_path).round == 4
    assert all((tmp_path / name).read_bytes() == b"mine" for name in others)
    assert not (tmp_path / "state.99").exists()


@pytest.mark.parametrize(
    "change",
    [{"memories": {}}, {"entries": []}, {"state": "../state.6"}, {"log_bytes": 0}, {"local_accuracy": {"1": 1}}],
)
def test_a_manifest_that_says_something_else_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    list(run(tmp_path, 6, keep=1))
    path = tmp_path / "latest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with refused("run.broken-checkpoint"):
        loaded(tmp_path)
