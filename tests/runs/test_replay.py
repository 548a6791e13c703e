"""Back to an earlier round, without a client: the bits of a run in which it never answered."""

import json
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

import pytest

import tacit
from tacit.engines import failures
from tacit.engines.in_process import InProcessTransport
from tacit.engines.job import ClientNews, ClientTask
from tacit.runs import config as configs
from tacit.runs import replay
from tacit.runs.directory import RunDirectory
from tacit.runs.experiment import Experiment
from tests.cli.shell import Shell
from tests.engines import farm
from tests.refusals import refused

METHODS = ["fedavg", "scaffold", "fedmatch", "moon"]


def settings(folder: Path, method: str, **changes: Any) -> dict[str, Any]:
    """Five rounds of four clients, three in each."""
    data = folder / "images.npz"
    if not data.exists():
        farm.write_images(data)
    values = {"method": method, "data": str(data), "clients": 4, "cohort": 3, "rounds": 5, "workers": 0}
    return values | {"labels": "client", "per_class": 1, "net": "lenet", "net.width": 0.3, "train.steps": 1} | changes


class Silent(InProcessTransport):
    """One client never answers, from some round on."""

    def __init__(self, experiment: Experiment, client: int, start: int = 0) -> None:
        super().__init__(experiment.job)
        self.client, self.start = client, start

    def run(self, round: int, tasks: Mapping[int, ClientTask]) -> Generator[ClientNews]:
        for news in super().run(round, tasks):
            silent = isinstance(news, tuple) and news[0] == self.client and round >= self.start
            yield (self.client, failures.no_answer()) if silent else news


def outcome(folder: Path) -> tuple[bytes, list[Any]]:
    records = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    numbers = [(each["accuracy"], each["loss"], each["steps"], each["clients"]) for each in records]
    return (folder / "model.safetensors").read_bytes(), numbers


def silent(folder: Path, values: dict[str, Any], client: int, start: int = 0) -> tuple[bytes, list[Any]]:
    """The outcome of a run in which a client never answers."""
    experiment = Experiment.create(configs.from_options(values), folder)
    list(experiment.rounds(Silent(experiment, client, start)))
    return outcome(folder)


@pytest.mark.parametrize("method", METHODS)
def test_a_replay_from_the_start_removes_a_client_exactly(tmp_path: Path, method: str) -> None:
    values = settings(tmp_path, method)
    tacit.run(out=tmp_path / "run", **values)
    before = outcome(tmp_path / "run")
    tacit.resume(tmp_path / "run", start=0, without=[1])
    assert outcome(tmp_path / "run") == silent(tmp_path / "silent", values, 1)
    assert outcome(tmp_path / "run")[0] != before[0]


@pytest.mark.parametrize("method", METHODS)
def test_a_replay_from_a_later_round_leaves_the_earlier_ones(tmp_path: Path, method: str) -> None:
    values = settings(tmp_path, method)
    tacit.run(out=tmp_path / "run", **values)
    replay.prepare(RunDirectory(tmp_path / "run"), 3, ["2"])
    assert not (tmp_path / "run/model.safetensors").exists()
    tacit.resume(tmp_path / "run")
    assert outcome(tmp_path / "run") == silent(tmp_path / "silent", values, 2, 3)


@pytest.mark.parametrize("start", [0, 3, 4, 5])
def test_a_replay_without_leaving_anyone_out_gives_the_same_bits(tmp_path: Path, start: int) -> None:
    values = settings(tmp_path, "scaffold")
    tacit.run(out=tmp_path / "run", **values)
    before = outcome(tmp_path / "run")
    replay.prepare(RunDirectory(tmp_path / "run"), start, [])
    tacit.resume(tmp_path / "run")
    assert outcome(tmp_path / "run") == before


def test_what_was_left_out_is_recorded(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    tacit.run(out=folder, **settings(tmp_path, "fedavg"))
    replay.prepare(RunDirectory(folder), 3, ["1"])
    tacit.resume(folder)
    assert json.loads((folder / "run.json").read_text())["left_out"] == [{"client": 1, "name": "1", "from": 3}]
    skipped = [record.skipped for record in RunDirectory(folder).rounds()]
    assert skipped[:3] == [{}, {}, {}]
    assert all(set(each) <= {1} for each in skipped)
    assert any(skipped)
    assert {reason for each in skipped for reason in each.values()} == {failures.left_out().reason}
    replay.prepare(RunDirectory(folder), 0, ["1", "0"])
    assert RunDirectory(folder).left_out() == {1: 0, 0: 0}
    replay.prepare(RunDirectory(folder), None, ["1"])
    assert RunDirectory(folder).left_out() == {1: 0, 0: 0}


def test_a_round_ends_even_if_all_its_clients_were_left_out(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    tacit.run(out=folder, **settings(tmp_path, "fedavg", cohort=1))
    replay.prepare(RunDirectory(folder), 0, ["0", "1", "2", "3"])
    result = tacit.resume(folder)
    assert [record["clients"] for record in result.history] == [0] * 5


@pytest.mark.parametrize(
    "start, without, code",
    [
        (1, [], "run.no-such-checkpoint"),
        (9, [], "run.no-such-checkpoint"),
        (0, ["4"], "run.no-such-client"),
        (0, ["-1"], "run.no-such-client"),
        (0, ["evil"], "run.no-such-client"),
        (None, ["9" * 40], "run.no-such-client"),
    ],
)
def test_what_is_not_there_is_refused_and_changes_nothing(
    tmp_path: Path, start: int | None, without: list[str], code: str
) -> None:
    folder = tmp_path / "run"
    tacit.run(out=folder, **settings(tmp_path, "fedavg"))
    files = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with refused(code):
        replay.prepare(RunDirectory(folder), start, without)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == files


def test_the_command_returns_to_a_round_without_a_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shell, values = Shell(monkeypatch, capsys, tmp_path), settings(tmp_path, "fedavg")
    tacit.run(out=tmp_path / "run", **values)
    assert shell("resume", "run", "--from", "0", "--without", "3").code == 0
    assert outcome(tmp_path / "run") == silent(tmp_path / "silent", values, 3)
    refusal = shell("resume", "run", "--from", "1")
    assert refusal.code == 2
    assert "choose one of 0, 3, 4, 5" in refusal.err


def test_names_of_sites_stand_for_their_numbers(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    tacit.run(out=folder, **settings(tmp_path, "fedavg"))
    numbers = {"east": 0, "evil": 1, "north": 2, "south": 3}
    replay.prepare(RunDirectory(folder), 0, ["evil"], numbers)
    assert json.loads((folder / "run.json").read_text())["left_out"] == [{"client": 1, "name": "evil", "from": 0}]
    with refused("run.no-such-client"):
        replay.prepare(RunDirectory(folder), 0, ["2"], numbers)
