"""Rounds in other people's viewers: event files for TensorBoard, runs in MLflow; each is one setting and an extra.

Both get the record of every round from where rounds are played, and nothing else knows of them. What they write is by
the number of the round, so that a run that is interrupted and goes on has every round once. A tracker that can not
begin is refused; one that fails later is left out from there on, with a sentence, and the run goes on without it.
"""

import json
import logging
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tacit.config import Config, TrackConfig, flat
from tacit.engines.loop import Record
from tacit.errors import TacitError

EXPERIMENT = "tacit"  # what MLflow files the runs under
NOTE = "mlflow.json"  # in a run's folder: which of MLflow's runs it is
PLAIN = ("accuracy", "loss", "local_accuracy", "clients", "steps", "seconds", "bytes_down", "bytes_up")
LONGEST = 6000  # characters of a setting that MLflow takes
# How MLflow is asked unless its user says otherwise: a run tells nobody about itself, and a server that is gone is not
# waited for, which by MLflow's own defaults takes minutes.
POLITE = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
}
UNKNOWN = ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE")  # what MLflow says of a run that another server has

Log = Callable[[Record], None]


def check(track: TrackConfig) -> None:
    """Refuse a tracker whose package is not installed, before anything starts."""
    if track.tensorboard:
        _need("tensorboard", ["tensorboard"])
    if track.mlflow is not None:
        _need("mlflow", ["mlflow", *(["sqlalchemy", "alembic"] if _is_folder(track.mlflow) else [])])


def _need(extra: str, packages: list[str]) -> None:
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        raise TacitError(f"track.{extra} needs the package {missing[0]}: install it with pip install 'tacit[{extra}]'")


@contextmanager
def opened(config: Config, folder: Path, played: int) -> Iterator[Log]:
    """What to call with every round from here on, of which so many are played already."""
    with ExitStack() as stack:
        logs: list[Log] = []
        if played < config.rounds and config.track.tensorboard:
            tensorboard = _tensorboard(folder / "tensorboard", played)
            logs.append(stack.enter_context(_forgiven("TensorBoard", tensorboard)))
        if played < config.rounds and config.track.mlflow is not None:
            mlflow = _mlflow(config, config.track.mlflow, folder)
            logs.append(stack.enter_context(_forgiven("MLflow", mlflow)))

        def log(record: Record) -> None:
            for each in logs:
                each(record)

        yield log


@contextmanager
def _forgiven(name: str, tracker: AbstractContextManager[Log]) -> Iterator[Log]:
    """A tracker that has begun and whose failures, the first of which is told, no longer matter."""
    tell, failed = tracker.__enter__(), False

    def attempt(action: Callable[[], object]) -> None:
        nonlocal failed
        try:
            action()
        except Exception as error:
            reason = " ".join(str(error).split())[:200]
            if not failed:
                print(f"tacit: {name} fails, so the run goes on without it ({reason})", file=sys.stderr, flush=True)
            failed = True

    def log(record: Record) -> None:
        if not failed:
            attempt(lambda: tell(record))

    try:
        yield log
    finally:
        attempt(lambda: tracker.__exit__(None, None, None))


def numbers(record: Record) -> dict[str, float]:
    """The numbers of a round by name: of all, of the server, and the mean over the clients; those that are numbers."""
    told: dict[str, float | None] = {name: getattr(record, name) for name in PLAIN}
    told["left_out"] = len(record.skipped)
    told |= {f"server/{name}": value for name, value in record.server.items()}
    told |= {f"clients/{name}": value["mean"] for name, value in record.metrics.items()}
    return {name: float(value) for name, value in told.items() if value is not None and math.isfinite(value)}


# --- TensorBoard ------------------------------------------------------------------------------------------------------


@contextmanager
def _tensorboard(folder: Path, played: int) -> Iterator[Log]:
    """Event files, written as they come and without a thread, which worker processes would inherit a lock from.

    A file is named after the round it begins with and opens with a word to the reader to forget what earlier files
    say of that round and later ones: they may hold rounds that the checkpoint did not know.
    """
    from tensorboard.compat.proto.event_pb2 import Event, SessionLog
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.record_writer import RecordWriter

    folder.mkdir(exist_ok=True)
    with (folder / f"events.out.tfevents.{played:08d}.tacit").open("wb") as file:
        writer = RecordWriter(file)

        def put(**parts: Any) -> None:
            writer.write(Event(wall_time=time.time(), **parts).SerializeToString())

        put(file_version="brain.Event:2")
        put(step=played + 1, session_log=SessionLog(status=SessionLog.START))

        def log(record: Record) -> None:
            values = [Summary.Value(tag=name, simple_value=value) for name, value in numbers(record).items()]
            put(step=record.round + 1, summary=Summary(value=values))
            writer.flush()

        yield log


# --- MLflow -----------------------------------------------------------------------------------------------------------


@contextmanager
def _mlflow(config: Config, place: str, folder: Path) -> Iterator[Log]:
    """A run in MLflow; rounds that it has already are not told again, since they came out the same."""
    with _politely(), _told_to(config, place, folder) as log:
        yield log


@contextmanager
def _politely() -> Iterator[None]:
    """MLflow asked and heard as is good here; its user's own settings win, and all are as they were afterwards."""
    # How they make a database is their own affair, and what MLflow can not do it says twice, once to us.
    quiet = {"alembic": logging.WARNING, "mlflow": logging.CRITICAL}
    added = {name: value for name, value in POLITE.items() if name not in os.environ}
    os.environ.update(added)
    import mlflow  # noqa: F401 – which sets its own level, and looks at the environment

    before = {name: logging.getLogger(name).level for name in quiet}
    for name, level in quiet.items():
        logging.getLogger(name).setLevel(level)
    try:
        yield
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)
        for name in added:
            os.environ.pop(name, None)


@contextmanager
def _told_to(config: Config, place: str, folder: Path) -> Iterator[Log]:
    from mlflow.entities import Metric
    from mlflow.tracking import MlflowClient

    with _answering(place):
        client = MlflowClient(tracking_uri=_uri(place))
        run = _known(client, folder) or _created(client, config, folder)
        client.update_run(run, status="RUNNING")
        last = int(client.get_run(run).data.metrics.get("round", 0))
    ended, answers = "KILLED", True

    def log(record: Record) -> None:
        nonlocal ended, answers
        played, now = record.round + 1, int(time.time() * 1000)
        if played > last:
            told = {**numbers(record), "round": float(played)}
            answers = False
            client.log_batch(run, [Metric(name, value, now, played) for name, value in told.items()])
            answers = True
        ended = "FINISHED" if played == config.rounds else ended

    try:
        yield log
    finally:
        if answers:
            client.set_terminated(run, ended)


@contextmanager
def _answering(place: str) -> Iterator[None]:
    """What MLflow has against it, in one sentence."""
    try:
        yield
    except Exception as error:
        told = " ".join(str(error).split())[:200]
        raise TacitError(f"MLflow at {place} refuses ({told}): mend it there, or leave out track.mlflow") from error


def _is_folder(place: str) -> bool:
    return ":" not in place


def _uri(place: str) -> str:
    """A folder stands for the small database in it: plain files are something MLflow is about to give up."""
    if not _is_folder(place):
        return place
    folder = Path(place).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    return f"sqlite:///{folder / 'mlflow.db'}"


def _known(client: Any, folder: Path) -> str | None:
    """The run of MLflow that this run began as, if it is still there."""
    from mlflow.exceptions import MlflowException

    try:
        run = str(json.loads((folder / NOTE).read_text(encoding="utf-8"))["run_id"])
    except (OSError, ValueError, KeyError, TypeError):  # no note, or half of one
        return None
    try:
        client.get_run(run)
    except MlflowException as error:
        if error.error_code not in UNKNOWN:
            raise
        return None
    return run


def _created(client: Any, config: Config, folder: Path) -> str:
    from mlflow.entities import Param

    found = client.get_experiment_by_name(EXPERIMENT)
    experiment = found.experiment_id if found else client.create_experiment(EXPERIMENT)
    run = str(client.create_run(experiment, run_name=folder.name).info.run_id)
    settings = flat({name: value for name, value in asdict(config).items() if name != "track"})
    client.log_batch(run, params=[Param(name, str(value)[:LONGEST]) for name, value in settings.items()])
    (folder / NOTE).write_text(json.dumps({"run_id": run}) + "\n", encoding="utf-8")
    return run
