"""Experiment trackers: TensorBoard and MLflow, each switched on by one setting and installed as an extra.

A tracker gets the record of every round and writes it under the number of the round, so a run that is interrupted and
resumed has every round once. A tracker that cannot start stops the run before it begins; one that fails later is
dropped with a warning, and the run continues.
"""

import logging
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tacit.engines.record import RoundRecord
from tacit.errors import TacitError
from tacit.runs.config import OUTCOME, Config, Role, flat
from tacit.runs.directory import RunDirectory, layout
from tacit.runs.sections import TrackConfig

EXPERIMENT = "tacit"  # the experiment that holds all runs in MLflow
NOTE = layout.MLFLOW
PLAIN = ("accuracy", "loss", "local_accuracy", "clients", "steps", "seconds", "bytes_down", "bytes_up")
LONGEST = 6000  # characters of a setting that MLflow accepts
# Environment variables of MLflow, set unless the user has set them. By its own defaults MLflow sends telemetry, and
# retries for minutes when its server does not answer.
MLFLOW_DEFAULTS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
}
UNKNOWN = ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE")  # error codes for a run that this server does not have

Log = Callable[[RoundRecord], None]


def check(track: TrackConfig) -> None:
    """Refuse a tracker whose package is not installed."""
    if track.tensorboard:
        _need("tensorboard", ["tensorboard"])
    if track.mlflow is not None:
        _need("mlflow", ["mlflow", *(["sqlalchemy", "alembic"] if _is_folder(track.mlflow) else [])])


def _need(extra: str, packages: list[str]) -> None:
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        raise TacitError(
            f"track.{extra} needs the package {missing[0]}",
            f"install it with pip install 'tacit[{extra}]'",
            code="track.missing-package",
        )


@contextmanager
def opened(config: Config, folder: Path, finished: int) -> Iterator[Log]:
    """Start the trackers of a run with this many finished rounds; call what it yields with every further round."""
    with ExitStack() as stack:
        logs: list[Log] = []
        if finished < config.rounds and config.track.tensorboard:
            tensorboard = _tensorboard(folder / layout.TENSORBOARD, finished)
            logs.append(stack.enter_context(_dropped_on_failure("TensorBoard", tensorboard)))
        if finished < config.rounds and config.track.mlflow is not None:
            mlflow = _mlflow(config, config.track.mlflow, folder)
            logs.append(stack.enter_context(_dropped_on_failure("MLflow", mlflow)))

        def log(record: RoundRecord) -> None:
            for each in logs:
                each(record)

        yield log


@contextmanager
def _dropped_on_failure(name: str, tracker: AbstractContextManager[Log]) -> Iterator[Log]:
    """Start a tracker; if it fails later, print a warning once and ignore it from then on."""
    write, failed = tracker.__enter__(), False

    def attempt(action: Callable[[], object]) -> None:
        nonlocal failed
        try:
            action()
        except Exception as error:
            reason = " ".join(str(error).split())[:200]
            if not failed:
                print(f"tacit: {name} failed ({reason}); the run continues without it", file=sys.stderr, flush=True)
            failed = True

    def log(record: RoundRecord) -> None:
        if not failed:
            attempt(lambda: write(record))

    try:
        yield log
    finally:
        attempt(lambda: tracker.__exit__(None, None, None))


def numbers(record: RoundRecord) -> dict[str, float]:
    """The finite numbers of a round by name: common ones, the server's, and means over the clients."""
    found: dict[str, float | None] = {name: getattr(record, name) for name in PLAIN}
    found["left_out"] = len(record.skipped)
    found["validation_accuracy"] = None if record.validation is None else record.validation["accuracy"]
    found |= record.scores
    found |= {f"server/{name}": value for name, value in record.server.items()}
    found |= {f"clients/{name}": value["mean"] for name, value in record.metrics.items()}
    return {name: float(value) for name, value in found.items() if value is not None and math.isfinite(value)}


# --- TensorBoard ------------------------------------------------------------------------------------------------------


@contextmanager
def _tensorboard(folder: Path, finished: int) -> Iterator[Log]:
    """Write event files directly: TensorBoard's writer has a thread, whose lock worker processes would inherit.

    A file is named after the round it starts with. Its first event tells the reader to drop that round and later ones
    from earlier files, which may hold rounds that the checkpoint does not have.
    """
    from tensorboard.compat.proto.event_pb2 import Event, SessionLog
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.record_writer import RecordWriter

    folder.mkdir(exist_ok=True)
    with (folder / f"events.out.tfevents.{finished:08d}.tacit").open("wb") as file:
        writer = RecordWriter(file)

        def put(**parts: Any) -> None:
            writer.write(Event(wall_time=time.time(), **parts).SerializeToString())

        put(file_version="brain.Event:2")
        put(step=finished + 1, session_log=SessionLog(status=SessionLog.START))

        def log(record: RoundRecord) -> None:
            values = [Summary.Value(tag=name, simple_value=value) for name, value in numbers(record).items()]
            put(step=record.round + 1, summary=Summary(value=values))
            writer.flush()

        yield log


# --- MLflow -----------------------------------------------------------------------------------------------------------


@contextmanager
def _mlflow(config: Config, place: str, folder: Path) -> Iterator[Log]:
    """Log to a run in MLflow; rounds that it already has are not sent again."""
    with _quiet_mlflow():
        from mlflow.entities import Metric
        from mlflow.tracking import MlflowClient

        with _refused_in_one_sentence(place):
            client = MlflowClient(tracking_uri=_uri(place))
            run = _known(client, folder) or _created(client, config, folder)
            client.update_run(run, status="RUNNING")
            last = int(client.get_run(run).data.metrics.get("round", 0))
        status, answers = "KILLED", True

        def log(record: RoundRecord) -> None:
            nonlocal status, answers
            number, now = record.round + 1, int(time.time() * 1000)
            if number > last:
                values = {**numbers(record), "round": float(number)}
                answers = False
                client.log_batch(run, [Metric(name, value, now, number) for name, value in values.items()])
                answers = True
            status = "FINISHED" if number == config.rounds or record.stopped else status

        try:
            yield log
        finally:
            if answers:
                client.set_terminated(run, status)


@contextmanager
def _quiet_mlflow() -> Iterator[None]:
    """Silence MLflow and Alembic while the block runs: MLflow logs every failure and also raises it."""
    with ExitStack() as undo:
        for name in MLFLOW_DEFAULTS.keys() - os.environ.keys():
            os.environ[name] = MLFLOW_DEFAULTS[name]
            undo.callback(os.environ.pop, name, None)
        import mlflow  # noqa: F401 – it sets its own log level when it is imported

        for name, level in (("alembic", logging.WARNING), ("mlflow", logging.CRITICAL)):
            logger = logging.getLogger(name)
            undo.callback(logger.setLevel, logger.level)
            logger.setLevel(level)
        yield


@contextmanager
def _refused_in_one_sentence(place: str) -> Iterator[None]:
    """Turn any error of MLflow into one sentence."""
    try:
        yield
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise TacitError(
            f"MLflow at {place} refuses ({reason})",
            "solve that there, or leave out track.mlflow",
            code="track.mlflow-refused",
        ) from error


def _is_folder(place: str) -> bool:
    return ":" not in place


def _uri(place: str) -> str:
    """The address for MLflow; in a folder it is a small database, since MLflow is dropping its plain files."""
    if not _is_folder(place):
        return place
    folder = Path(place).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    return f"sqlite:///{folder / 'mlflow.db'}"


def _known(client: Any, folder: Path) -> str | None:
    """The id of this run in MLflow, if it was started before and still exists."""
    from mlflow.exceptions import MlflowException

    try:
        run = str((RunDirectory(folder).read_note(NOTE) or {})["run_id"])
    except KeyError:
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
    settings = flat(config.tree(*OUTCOME, Role.CARRIER))
    client.log_batch(run, params=[Param(name, str(value)[:LONGEST]) for name, value in settings.items()])
    RunDirectory(folder).write_note(NOTE, {"run_id": run})
    return run
