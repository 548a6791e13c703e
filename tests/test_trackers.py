"""What trackers write is read back; they are extras, so each test is skipped where its package is missing."""

import json
import logging
import os
import shutil
import tomllib
from collections.abc import Callable, Generator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tacit import config as configs
from tacit import trackers
from tacit.bench import cells
from tacit.config import Config, TrackConfig
from tacit.engines import checkpoint
from tacit.engines.loop import Record
from tacit.errors import TacitError
from tacit.experiment import Experiment
from tests.engines import farm


@pytest.fixture
def config(tmp_path: Path) -> Config:
    farm.write_images(tmp_path / "images.npz")
    options = {"data": str(tmp_path / "images.npz"), "clients": 4, "labels": "client", "per_class": 2, "rounds": 4}
    small = {"net": "linear", "train.steps": 1, "batch": 6, "workers": 0, "log.checkpoint_every": 2}
    return configs.from_options(options | small | {"method": "fedavg+fixmatch"})


def a_record(**changes: Any) -> Record:
    values: dict[str, Any] = {
        "round": 0, "seconds": 2.0, "accuracy": 0.5, "loss": None, "local_accuracy": None, "clients": 2, "steps": 10,
        "bytes_down": 1000, "bytes_up": 500, "traffic": {}, "metrics": {}, "server": {}, "skipped": {},
    }  # fmt: skip
    return Record(**values | changes)


def interrupted(config: Config, folder: Path, *, lost: bool) -> list[dict[str, Any]]:
    """Three rounds, an end, and the rest; with `lost`, the checkpoint knows of two only, as after a kill."""
    rounds = Experiment.create(config, folder).rounds()
    assert isinstance(rounds, Generator)
    next(rounds)
    next(rounds)
    shutil.copytree(folder / "checkpoint", folder.parent / "earlier")
    next(rounds)
    rounds.close()
    if lost:
        shutil.rmtree(folder / "checkpoint")
        (folder.parent / "earlier").rename(folder / "checkpoint")
    return played(Experiment.reopen(folder))


def played(experiment: Experiment) -> list[dict[str, Any]]:
    """The records of a run that is played to its end."""
    for _ in experiment.rounds():
        pass
    return experiment.result().history


def test_numbers_are_those_that_are_there_and_finite() -> None:
    spread = {"mean": 0.25, "min": 0.0, "max": 1.0}
    told = trackers.numbers(
        a_record(metrics={"pseudo_kept": spread}, server={"steps": 3.0, "odd": float("nan")}, skipped={1: "lost"})
    )
    assert told == {
        "accuracy": 0.5, "clients": 2, "steps": 10, "seconds": 2.0, "bytes_down": 1000, "bytes_up": 500, "left_out": 1,
        "server/steps": 3.0, "clients/pseudo_kept": 0.25,
    }  # fmt: skip


@pytest.mark.parametrize("name, value", [("tensorboard", True), ("mlflow", "here")])
def test_a_missing_package_is_one_sentence_and_nothing_is_written(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: Any
) -> None:
    monkeypatch.setattr(trackers, "find_spec", lambda package: None)
    asked = replace(config, track=TrackConfig(**{name: value}))
    with pytest.raises(TacitError, match=f"track.{name} needs the package {name}: .* pip install 'tacit.{name}.'"):
        Experiment.create(asked, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_trackers_do_not_change_what_a_cell_is(config: Config) -> None:
    asked = replace(config, track=TrackConfig(True, "somewhere"))
    assert cells.fingerprint(asked) == cells.fingerprint(config)
    assert cells.version(asked) == cells.version(config)


def test_the_settings_are_read_and_written(config: Config) -> None:
    asked = replace(config, track=TrackConfig(True, "somewhere"))
    assert configs.make(tomllib.loads(configs.dumps(asked))) == asked


@pytest.mark.parametrize("lost", [False, True])
def test_tensorboard_reads_every_round_once(config: Config, tmp_path: Path, lost: bool) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed: pip install 'tacit[tensorboard]'")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    history = interrupted(replace(config, track=TrackConfig(tensorboard=True)), tmp_path / "run", lost=lost)
    events = EventAccumulator(str(tmp_path / "run/tensorboard"))
    events.Reload()
    for name in ("accuracy", "bytes_up"):
        scalars = events.Scalars(name)
        assert [scalar.step for scalar in scalars] == [1, 2, 3, 4]
        assert [scalar.value for scalar in scalars] == pytest.approx([record[name] for record in history])
    assert "clients/pseudo_kept" in events.Tags()["scalars"]
    before = sorted((tmp_path / "run/tensorboard").iterdir())
    played(Experiment.reopen(tmp_path / "run"))
    assert sorted((tmp_path / "run/tensorboard").iterdir()) == before, "a finished run adds nothing"


class Killed(BaseException):
    """What nothing catches."""


def test_a_kill_right_after_a_checkpoint_loses_no_round(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed: pip install 'tacit[tensorboard]'")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    def killed(*arguments: Any) -> None:
        save(*arguments)
        raise Killed

    save = checkpoint.save
    experiment = Experiment.create(replace(config, track=TrackConfig(tensorboard=True)), tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save", killed)
        with pytest.raises(Killed):
            played(experiment)
    assert experiment.finished_rounds() == 2
    played(experiment)
    events = EventAccumulator(str(tmp_path / "run/tensorboard"))
    events.Reload()
    assert [scalar.step for scalar in events.Scalars("accuracy")] == [1, 2, 3, 4]


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.filterwarnings("ignore")  # of MLflow's own
def test_mlflow_has_every_round_once(config: Config, tmp_path: Path, lost: bool) -> None:
    for package in ("mlflow", "sqlalchemy", "alembic"):
        pytest.importorskip(package, reason=f"{package} is not installed: pip install 'tacit[mlflow]'")
    from mlflow.tracking import MlflowClient

    place = tmp_path / "tracked"
    history = interrupted(replace(config, track=TrackConfig(mlflow=str(place))), tmp_path / "run", lost=lost)
    client = MlflowClient(f"sqlite:///{place / 'mlflow.db'}")
    known = client.get_experiment_by_name("tacit")
    assert known is not None
    (run,) = client.search_runs([known.experiment_id])
    assert (run.info.run_name, run.info.status) == ("run", "FINISHED")
    assert (run.data.params["method.name"], run.data.params["rounds"]) == ("fedavg+fixmatch", "4")
    told = {metric.step: metric.value for metric in client.get_metric_history(run.info.run_id, "accuracy")}
    assert len(client.get_metric_history(run.info.run_id, "accuracy")) == len(history)
    assert told == pytest.approx({record["round"] + 1: record["accuracy"] for record in history})


@pytest.mark.filterwarnings("ignore")  # of MLflow's own
def test_mlflow_leaves_the_process_as_it_was(config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("mlflow", "sqlalchemy", "alembic"):
        pytest.importorskip(package, reason=f"{package} is not installed: pip install 'tacit[mlflow]'")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "7")
    for name in ("mlflow", "alembic"):
        monkeypatch.setattr(logging.getLogger(name), "level", logging.INFO)
    before = dict(os.environ)
    with trackers.opened(replace(config, track=TrackConfig(mlflow=str(tmp_path / "tracked"))), tmp_path, 0) as log:
        log(a_record())
        polite = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "7", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2"}
        assert polite.items() <= os.environ.items()
        assert logging.getLogger("mlflow").level == logging.CRITICAL
    assert dict(os.environ) == before
    assert {logging.getLogger(name).level for name in ("mlflow", "alembic")} == {logging.INFO}


@pytest.mark.filterwarnings("ignore")  # of MLflow's own
def test_a_run_that_mlflow_does_not_know_begins_anew_and_one_it_can_not_find_now_is_refused(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a server that fails for a moment would be told the run twice."""
    for package in ("mlflow", "sqlalchemy", "alembic"):
        pytest.importorskip(package, reason=f"{package} is not installed: pip install 'tacit[mlflow]'")
    from mlflow.exceptions import MlflowException
    from mlflow.tracking import MlflowClient

    asked = replace(config, track=TrackConfig(mlflow=str(tmp_path / "tracked")))
    for note in (json.dumps({"run_id": "of another server"}), json.dumps({"run_id": 32 * "0"}), "[]", "{"):
        (tmp_path / trackers.NOTE).write_text(note)
        with trackers.opened(asked, tmp_path, 0):
            pass
        assert len(json.loads((tmp_path / trackers.NOTE).read_text())["run_id"]) == 32

    def busy(*_: object) -> None:
        raise MlflowException("come again")

    before = (tmp_path / trackers.NOTE).read_text()
    monkeypatch.setattr(MlflowClient, "get_run", busy)
    with pytest.raises(TacitError, match=r"MLflow at .* refuses \(come again\)"), trackers.opened(asked, tmp_path, 0):
        pass
    assert (tmp_path / trackers.NOTE).read_text() == before


def goes_on(config: Config, folder: Path, breaks: Callable[[], object]) -> None:
    """A run whose tracker breaks after the first round comes out as one without trackers."""
    rounds = Experiment.create(config, folder).rounds()
    next(rounds)
    breaks()
    assert len(list(rounds)) == config.rounds - 1
    untracked = folder.with_name("plain")
    played(Experiment.create(replace(config, track=TrackConfig()), untracked))
    assert (folder / "model.safetensors").read_bytes() == (untracked / "model.safetensors").read_bytes()


@pytest.mark.filterwarnings("ignore")  # of MLflow's own
def test_a_run_goes_on_when_the_folder_of_mlflow_is_gone(
    config: Config, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for package in ("mlflow", "sqlalchemy", "alembic"):
        pytest.importorskip(package, reason=f"{package} is not installed: pip install 'tacit[mlflow]'")
    place = tmp_path / "tracked"

    def replaced() -> None:
        shutil.rmtree(place)
        place.write_text("no folder any more")

    goes_on(replace(config, track=TrackConfig(mlflow=str(place))), tmp_path / "run", replaced)
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith("tacit: MLflow fails, so the run goes on without it (")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full, a disk that is always full")
def test_a_run_goes_on_when_the_disk_of_tensorboard_is_full(
    config: Config, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed: pip install 'tacit[tensorboard]'")
    experiment = Experiment.create(replace(config, track=TrackConfig(tensorboard=True)), tmp_path / "run")
    (tmp_path / "run/tensorboard").mkdir()
    (tmp_path / "run/tensorboard/events.out.tfevents.00000000.tacit").symlink_to("/dev/full")
    assert len(played(experiment)) == config.rounds
    said = "tacit: TensorBoard fails, so the run goes on without it ([Errno 28] No space left on device)"
    assert capsys.readouterr().err.splitlines() == [said]


def test_a_tracked_run_has_the_same_bits(config: Config, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed: pip install 'tacit[tensorboard]'")
    for name, track in (("plain", TrackConfig()), ("tracked", TrackConfig(tensorboard=True))):
        played(Experiment.create(replace(config, track=track), tmp_path / name))
    models = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("plain", "tracked")]
    assert models[0] == models[1]
