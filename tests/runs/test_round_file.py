"""What a run's folder says about the current round while the run makes progress, and after it was given up."""

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tacit.engines.events import ClientAnswered, ClientStarted, RoundBegan, RoundEnded, RoundProgress
from tacit.runs import config as configs
from tacit.runs.directory import RunDirectory
from tacit.runs.experiment import Experiment
from tacit.runs.followers import round_file
from tests.engines import farm


def settings(folder: Path, **changes: Any) -> dict[str, Any]:
    data = {"name": str(farm.write_images(folder / "images.npz")), "clients": 6, "labels": "client", "per_class": 2}
    engine = {"workers": 0}
    return {"method": "scaffold", "rounds": 4, "cohort": 3, "data": data, "net": "linear", "engine": engine} | changes


def create(folder: Path, **changes: Any) -> Experiment:
    return Experiment.create(configs.from_options(settings(folder, **changes)), folder / "run")


def test_the_file_follows_the_round_and_is_gone_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(round_file, "PAUSE", 0.0)
    monkeypatch.setattr(round_file, "SHARE", 1e9)
    experiment, progress = create(tmp_path), RoundProgress()
    seen = 0
    for event in experiment.events():
        progress.follow(event)
        if progress.clients:
            assert experiment.directory.current_round() == progress
            seen += 1
    assert seen == 4 * (1 + 2 * 3)
    assert experiment.directory.current_round() is None
    assert not (tmp_path / "run" / "round.json").exists()


@pytest.mark.parametrize("engine", [{"workers": 0}, {"workers": 2}])
@pytest.mark.parametrize("kind", [RoundBegan, ClientStarted, ClientAnswered, RoundEnded])
@pytest.mark.parametrize("round", [0, 2])
def test_a_run_closed_at_any_event_is_resumed_to_the_same_bits(
    round: int, kind: type, engine: dict[str, int], tmp_path: Path
) -> None:
    config = configs.from_options(settings(tmp_path, engine=engine))
    for _ in Experiment.create(config, tmp_path / "alone").rounds():
        pass
    happens = Experiment.create(config, tmp_path / "run").events()
    for event in happens:
        if isinstance(event, kind) and event.round == round:
            break
    happens.close()
    done = round + (kind is RoundEnded)
    assert RunDirectory(tmp_path / "run").finished_rounds() == done
    assert not (tmp_path / "run" / "round.json").exists()
    assert [record.round for record in Experiment.reopen(tmp_path / "run").rounds()] == list(range(done, 4))
    assert farm.remains(tmp_path / "run") == farm.remains(tmp_path / "alone")


def test_writes_are_few_however_many_events_there_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[float] = []
    monkeypatch.setattr(RunDirectory, "write_current_round", lambda *_: written.append(time.monotonic()))
    began = time.monotonic()
    with round_file.opened(RunDirectory(tmp_path)) as follow:
        for client in range(10_000):
            follow(RoundBegan(0, (client,)))
    most = round_file.BURST + 2 + (time.monotonic() - began) / round_file.PAUSE
    assert 1 < len(written) <= most


def test_a_slow_disk_is_written_to_less_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[float] = []

    def slow(*_: Any) -> None:
        written.append(time.monotonic())
        time.sleep(0.05)

    monkeypatch.setattr(RunDirectory, "write_current_round", slow)
    monkeypatch.setattr(round_file, "BURST", 0)
    until = time.monotonic() + 0.6
    with round_file.opened(RunDirectory(tmp_path)) as follow:
        while time.monotonic() < until:
            follow(RoundBegan(0, (0,)))
    assert len(written) == 1  # the next is due 0.05 s / 0.005 = 10 s later


def test_a_disk_that_refuses_the_file_does_not_stop_the_run(tmp_path: Path) -> None:
    experiment = create(tmp_path)
    (tmp_path / "run" / "round.json").mkdir()
    assert len(list(experiment.rounds())) == 4


def test_a_file_left_by_a_killed_process_is_not_read(tmp_path: Path) -> None:
    directory = create(tmp_path).directory
    directory.write_current_round(RoundProgress(1, (0, 1), {0}, {1}, {}))
    assert json.loads((directory.path / "round.json").read_text())["working"] == [0]
    assert directory.current_round() is None
    with directory.lock():
        assert directory.current_round() == RoundProgress(1, (0, 1), {0}, {1}, {})
        (directory.path / "round.json").write_text("half of a fi")
        assert directory.current_round() is None


def test_a_run_that_stops_with_an_error_leaves_no_file(tmp_path: Path) -> None:
    config = configs.from_options(settings(tmp_path, faults={"lost": 1.0}))
    experiment = Experiment.create(replace(config, rounds=2), tmp_path / "run")
    with pytest.raises(Exception, match="clients replied"):
        list(experiment.rounds())
    assert not (tmp_path / "run" / "round.json").exists()
