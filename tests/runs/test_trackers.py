"""Trackers: what they write is read back. They are extras; a test is skipped if its package is missing."""

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

from tacit.bench import identity
from tacit.engines import checkpoint
from tacit.engines.record import RoundRecord
from tacit.runs import config as configs
from tacit.runs.config import Config
from tacit.runs.experiment import Experiment
from tacit.runs.followers import trackers
from tacit.runs.sections import TrackConfig
from tests.engines import farm
from tests.refusals import refused


@pytest.fixture
def config(tmp_path: Path) -> Config:
    farm.write_images(tmp_path / "images.npz")
    options = {"data": str(tmp_path / "images.npz"), "clients": 4, "labels": "client", "per_class": 2, "rounds": 4}
    small = {"net": "linear", "train.steps": 1, "batch": 6, "workers": 0, "log.checkpoint_every": 2}
    return configs.from_options(options | small | {"method": "fedavg+fixmatch"})


def a_record(**changes: Any) -> RoundRecord:
    values: dict[str, Any] = {
        "round": 0, "seconds": 2.0, "accuracy": 0.5, "loss": None, "local_accuracy": None, "clients": 2, "steps": 10,
        "bytes_down": 1000, "bytes_up": 500, "traffic": {}, "metrics": {}, "server": {}, "skipped": {},
    }  # fmt: skip
    return RoundRecord(**values | changes)


def interrupted(config: Config, folder: Path, *, lost: bool) -> list[dict[str, Any]]:
    """Run three rounds, stop, then run the rest; with `lost`, the checkpoint has only two, as after a kill."""
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
    return run_to_end(Experiment.reopen(folder))


def run_to_end(experiment: Experiment) -> list[dict[str, Any]]:
    """Run the rounds that are left; the records of all rounds."""
    for _ in experiment.rounds():
        pass
    return experiment.result().history


def test_a_round_has_only_finite_numbers() -> None:
    spread = {"mean": 0.25, "min": 0.0, "max": 1.0}
    numbers = trackers.numbers(
        a_record(metrics={"pseudo_kept": spread}, server={"steps": 3.0, "odd": float("nan")}, skipped={1: "lost"})
    )
    assert numbers == {
        "accuracy": 0.5, "clients": 2, "steps": 10, "seconds": 2.0, "bytes_down": 1000, "bytes_up": 500, "left_out": 1,
        "server/steps": 3.0, "clients/pseudo_kept": 0.25,
    }  # fmt: skip


@pytest.mark.parametrize("name, value", [("tensorboard", True), ("mlflow", "here")])
def test_a_missing_package_is_refused_before_anything_is_written(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: Any
) -> None:
    monkeypatch.setattr(trackers, "find_spec", lambda package: None)
    asked = replace(config, track=TrackConfig(**{name: value}))
    with refused("track.missing-package") as caught:
        Experiment.create(asked, tmp_path / "run")
    assert f"pip install 'tacit[{name}]'" in caught.error.remedy
    assert not (tmp_path / "run").exists()


def test_trackers_do_not_change_the_identity_of_a_cell(config: Config) -> None:
    asked = replace(config, track=TrackConfig(True, "somewhere"))
    assert identity.fingerprint(asked) == identity.fingerprint(config)
    assert identity.code(asked) == identity.code(config)


def test_the_settings_of_trackers_survive_writing_and_reading(config: Config) -> None:
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
    run_to_end(Experiment.reopen(tmp_path / "run"))
    assert sorted((tmp_path / "run/tensorboard").iterdir()) == before, "a finished run adds nothing"


class Killed(BaseException):
    """An end of the process that no code catches."""


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
            run_to_end(experiment)
    assert experiment.finished_rounds() == 2
    run_to_end(experiment)
    events = EventAccumulator(str(tmp_path / "run/tensorboard"))
    events.Reload()
    assert [scalar.step for scalar in events.Scalars("accuracy")] == [1, 2, 3, 4]


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.filterwarnings("ignore")  # MLflow warns
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
    logged = {metric.step: metric.value for metric in client.get_metric_history(run.info.run_id, "accuracy")}
    assert len(client.get_metric_history(run.info.run_id, "accuracy")) == len(history)
    assert logged == pytest.approx({record["round"] + 1: record["accuracy"] for record in history})


@pytest.mark.filterwarnings("ignore")  # MLflow warns
def test_mlflow_leaves_the_process_as_it_was(config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("mlflow", "sqlalchemy", "alembic"):
        pytest.importorskip(package, reason=f"{package} is not installed: pip install 'tacit[mlflow]'")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "7")
    for name in ("mlflow", "alembic"):
        monkeypatch.setattr(logging.getLogger(name), "level", logging.INFO)
    before = dict(os.environ)
    with trackers.opened(replace(config, track=TrackConfig(mlflow=str(tmp_path / "tracked"))), tmp_path, 0) as log:
        log(a_record())
        expected = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "7", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2"}
        assert expected.items() <= os.environ.items(), "the user's own setting counts"
        assert logging.getLogger("mlflow").level == logging.CRITICAL
    assert dict(os.environ) == before
    assert {logging.getLogger(name).level for name in ("mlflow", "alembic")} == {logging.INFO}


@pytest.mark.filterwarnings("ignore")  # MLflow warns
def test_a_run_that_mlflow_lost_starts_again_but_one_it_cannot_look_up_is_refused(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a server that fails for a moment would get the run twice."""
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
    with refused("track.mlflow-refused"), trackers.opened(asked, tmp_path, 0):
        pass
    assert (tmp_path / trackers.NOTE).read_text() == before


def survives(config: Config, folder: Path, breaks: Callable[[], object]) -> None:
    """A run whose tracker breaks after the first round gives the same model as one without trackers."""
    rounds = Experiment.create(config, folder).rounds()
    next(rounds)
    breaks()
    assert len(list(rounds)) == config.rounds - 1
    untracked = folder.with_name("plain")
    run_to_end(Experiment.create(replace(config, track=TrackConfig()), untracked))
    assert (folder / "model.safetensors").read_bytes() == (untracked / "model.safetensors").read_bytes()


@pytest.mark.filterwarnings("ignore")  # MLflow warns
def test_a_run_continues_when_the_folder_of_mlflow_is_gone(
    config: Config, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for package in ("mlflow", "sqlalchemy", "alembic"):
        pytest.importorskip(package, reason=f"{package} is not installed: pip install 'tacit[mlflow]'")
    place = tmp_path / "tracked"

    def replaced() -> None:
        shutil.rmtree(place)
        place.write_text("no folder any more")

    survives(replace(config, track=TrackConfig(mlflow=str(place))), tmp_path / "run", replaced)
    (warning,) = capsys.readouterr().err.splitlines()
    assert warning.startswith("tacit: MLflow failed (")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full, a disk that is always full")
def test_a_run_continues_when_the_disk_of_tensorboard_is_full(
    config: Config, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed: pip install 'tacit[tensorboard]'")
    experiment = Experiment.create(replace(config, track=TrackConfig(tensorboard=True)), tmp_path / "run")
    (tmp_path / "run/tensorboard").mkdir()
    (tmp_path / "run/tensorboard/events.out.tfevents.00000000.tacit").symlink_to("/dev/full")
    assert len(run_to_end(experiment)) == config.rounds
    (warning,) = capsys.readouterr().err.splitlines()
    assert warning == "tacit: TensorBoard failed ([Errno 28] No space left on device); the run continues without it"


def test_a_tracked_run_has_the_same_bits(config: Config, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed: pip install 'tacit[tensorboard]'")
    for name, track in (("plain", TrackConfig()), ("tracked", TrackConfig(tensorboard=True))):
        run_to_end(Experiment.create(replace(config, track=track), tmp_path / name))
    models = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("plain", "tracked")]
    assert models[0] == models[1]
