"""From a config to a run directory, and back from a run directory to where it stopped.

config.toml        the full config; running it again gives the same model
split.json         who holds which sample, the hash of that, and how many of each class
rounds.jsonl       one record per round
model.safetensors  the final model
checkpoint/        how far the run got
errors.log         tracebacks of clients that failed, if any did
tensorboard/       event files, if asked for
mlflow.json        which of MLflow's runs it is, if asked for
"""

import json
import math
import os
import shlex
import shutil
import tomllib
from collections.abc import Generator, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from traceback import format_exception
from typing import IO, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save

from tacit import config as configs
from tacit import simulation, trackers
from tacit.config import Config, EngineConfig, TrackConfig
from tacit.data import partition, scenario
from tacit.data.scenario import Split
from tacit.engines import checkpoint
from tacit.engines.inline import InlineCourier
from tacit.engines.local import LocalCourier, default_workers, one_thread
from tacit.engines.loop import Courier, Job, MethodFailedError, Position, Record, TooFewClientsError, play
from tacit.engines.memory import DiskError, Memories, on_disk, write_durably
from tacit.errors import TacitError
from tacit.folders import locked, writable
from tacit.params import Params
from tacit.prepare import build_job


@dataclass(frozen=True)
class Result:
    """A finished run."""

    config: Config
    history: list[dict[str, Any]] = field(repr=False)  # the records of all rounds
    params: Params | None = field(repr=False)  # the final model; None for a method without a common one
    job: Job = field(repr=False)

    @property
    def accuracy(self) -> float:
        """Test accuracy after the last round; without a common model, the clients' average; NaN where there is none."""
        last = self.history[-1]
        known = last["local_accuracy"] if last["accuracy"] is None else last["accuracy"]
        return math.nan if known is None else float(known)

    def net(self) -> torch.nn.Module:
        """The trained network as an ordinary torch module in evaluation mode."""
        if self.params is None:
            raise TacitError(f"{self.config.method_name} has no common model: each client keeps its own")
        return self.job.net.module(self.params)


@dataclass(frozen=True)
class Experiment:
    """One run and its directory: `create` it or `reopen` it, then play its rounds."""

    config: Config
    folder: Path
    job: Job
    split: Split
    kept: bool = True  # False: its folder goes away with it

    @classmethod
    def create(cls, config: Config, folder: Path) -> "Experiment":
        """A new run in a folder that is not there yet, or is empty."""
        with writable(folder):
            if (folder / "config.toml").exists():
                raise TacitError(
                    f"{folder} already holds a run: choose another --out, or go on with `{_resume(folder)}`"
                )
            if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
                raise TacitError(f"{folder} is not an empty folder: choose another --out")
        trackers.check(config.track)
        simulation.check(config)
        if config.engine.name == "flower" and config.engine.ray:
            simulation.cluster(config.engine.ray)  # it is kept with the run: no resume could mend a wrong one
        job, split = build_job(config)
        about = {"hash": split.hash(), "data": _fingerprint(job), "counts": _counts(job, split)} | split.to_json()
        about["config"] = _outcome_of(tomllib.loads(configs.dumps(config)))
        with writable(folder):
            partial = folder.with_name(f".{folder.name}.partial-{os.getpid()}")
            try:
                partial.mkdir(parents=True)
                (partial / "config.toml").write_text(configs.dumps(config), encoding="utf-8")
                (partial / "split.json").write_text(json.dumps(about), encoding="utf-8")
                partial.rename(folder)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
        return cls(config, folder, job, split)

    @classmethod
    def reopen(cls, folder: Path, engine: EngineConfig | None = None, track: TrackConfig | None = None) -> "Experiment":
        """A run that was started before, on the same data as then; another engine may carry the rest of it.

        Other trackers may follow it, too.
        """
        if not (folder / "config.toml").exists():
            raise TacitError(f"{folder} holds no run: give the folder a run was started in")
        given = configs.read(folder / "config.toml")
        if missing := sorted({"seed", "data", "train", "log"} - given.keys()):
            raise TacitError(f"{folder / 'config.toml'} is not whole, it has no {missing[0]}: start a new run")
        config = configs.make(given)
        config = replace(config, engine=engine or config.engine, track=track or config.track)
        trackers.check(config.track)
        simulation.check(config)
        try:
            about = json.loads((folder / "split.json").read_text(encoding="utf-8"))
            known = about["hash"], about["data"]
            as_begun = about.get("config", _outcome_of(given))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise TacitError(f"{folder / 'split.json'} can not be read ({error}): start a new run") from error
        if as_begun != _outcome_of(given):
            raise TacitError(
                f"{folder / 'config.toml'} was changed since the run began: restore it, or start a new run with it"
            )
        job, split = build_job(config)
        if known != (split.hash(), _fingerprint(job)):
            raise TacitError(f"the data is not the same as when {folder} was started: restore it, or start a new run")
        return cls(config, folder, job, split)

    def rounds(self, courier: Courier | None = None, lock: IO[bytes] | None = None) -> Generator[Record, None, None]:
        """Play the rounds that are left. Closing the generator at any time leaves a run that can be resumed.

        A courier that is given stays its owner's; its clients may keep their memories themselves, and these know of
        the last rounds only, so that every round is saved. `lock` is that of the run's folder, if the caller has it.
        """
        if courier is None:
            configs.refuse_sites(self.config)
        with ExitStack() as stack:
            lock = lock or stack.enter_context(locked(self.folder))
            stack.enter_context(one_thread())
            stack.enter_context(self._saying_how(at_hub=courier is not None))
            position, length = self._restore()
            log = stack.enter_context(_open_log(self.folder / "rounds.jsonl", length))
            every = 1 if courier else self.config.log.checkpoint_every
            courier = courier or stack.enter_context(closing(self._courier(lock)))
            track = stack.enter_context(trackers.opened(self.config, self.folder, position.round))
            saved = logged = position.round
            if position.round == self.job.rounds:
                self._save_model(position)  # it may have been lost since
            try:
                for record in play(self.job, courier, position):
                    with on_disk(self.folder / "rounds.jsonl"):
                        log.write(line(record).encode())
                    logged = position.round
                    self._note_errors(record.round, record.details)
                    track(record)  # before it is saved: a round that is told twice counts once, one never told is lost
                    if position.round % every == 0 or position.round == self.job.rounds:
                        self._save(position, log)
                        saved = position.round
                    yield record
            except TooFewClientsError as error:
                self._note_errors(position.round, {k: absent.detail for k, absent in error.absent.items()})
                raise
            except MethodFailedError as error:
                self._note_errors(position.round, {"server": "".join(format_exception(error.__cause__))})
                raise
            except DiskError:
                saved = position.round  # no second attempt, which would fail too; the checkpoint before is whole
                raise
            finally:
                if position.whole and position.round == logged > saved:
                    self._save(position, log)

    @contextmanager
    def _saying_how(self, at_hub: bool) -> Iterator[None]:
        """Finish the sentence of an error that ends in "resume": by which command, and where the traceback is."""
        try:
            yield
        except TacitError as error:
            if str(error).endswith("resume"):
                command = f" with `{_resume(self.folder)}`" if self.kept else ", for which it needs a folder: give out="
                traced = isinstance(error, (MethodFailedError, TooFewClientsError)) and self._errors.exists()
                where = f"; {self._errors} has the traceback" if traced and self.kept else ""
                error.args = (f"{error}{'' if at_hub else command}{where}",)  # a hub has a command of its own
            raise

    def result(self) -> Result:
        """What a finished run came to."""
        records = self._records(self.job.rounds)
        if len(records) < self.job.rounds:
            raise TacitError(f"{self.folder} is not finished: go on with `{_resume(self.folder)}`")
        params = None if records[-1]["accuracy"] is None else self._model()
        return Result(self.config, records, params, self.job)

    def _model(self) -> Params:
        path = self.folder / "model.safetensors"
        try:
            return load_file(path)
        except (OSError, SafetensorError) as error:
            raise TacitError(
                f"{path} can not be read ({error}): write it again with `{_resume(self.folder)}`"
            ) from error

    def traffic(self) -> int:
        """Bytes of all rounds in the log so far, both ways."""
        records = self._records(self.finished_rounds())
        return sum(record["bytes_up"] + record["bytes_down"] for record in records)

    def _records(self, count: int) -> list[dict[str, Any]]:
        """The first so many rounds in the log, which may end in the middle of a later one."""
        log = self.folder / "rounds.jsonl"
        try:
            lines = log.read_bytes().splitlines()[:count] if log.exists() else []
            records = [json.loads(line) for line in lines]
            if not all(isinstance(record, dict) and {"bytes_up", "bytes_down"} <= record.keys() for record in records):
                raise ValueError("a line of it is not a round")
        except (OSError, ValueError) as error:
            raise TacitError(f"{log} can not be read ({error}): start the run again elsewhere") from error
        return records

    def finished_rounds(self) -> int:
        """How many rounds the last checkpoint holds."""
        return checkpoint.finished_rounds(self.folder / "checkpoint")

    def _restore(self) -> tuple[Position, int]:
        folder = self.folder / "checkpoint"
        memories = Memories(folder / "memories", int(self.config.engine.memory_mb * 1e6))
        return checkpoint.load(folder, self.job.codec, memories, self.job.device)

    def _courier(self, lock: IO[bytes]) -> Courier:
        engine = self.config.engine
        workers = default_workers(self.job.device) if engine.workers is None else engine.workers
        if engine.name == "flower":
            return simulation.courier(self.job, self.config, max(1, workers))
        if not workers:
            return InlineCourier(self.job, engine.strict)
        return LocalCourier(self.job, workers, private=[lock])

    def _save(self, position: Position, log: IO[bytes]) -> None:
        if position.round == self.job.rounds:
            self._save_model(position)  # first: nobody comes back to a run whose checkpoint says that it is finished
        with on_disk(self.folder / "rounds.jsonl"):
            log.flush()
            os.fsync(log.fileno())
        checkpoint.save(self.folder / "checkpoint", position, self.job.codec, log.tell())

    def _save_model(self, position: Position) -> None:
        model = self.job.method.model(position.state)
        if model is None:
            return
        federation = self.job.federation
        about = {
            "net": asdict(self.config.net),
            "shape": list(federation.test.x.shape[1:]),
            "classes": list(federation.classes),
        }
        cpu = {name: value.cpu().contiguous() for name, value in model.items()}
        write_durably(self.folder / "model.safetensors", save(cpu, metadata={"tacit": json.dumps(about)}))

    @property
    def _errors(self) -> Path:
        return self.folder / "errors.log"

    def _note_errors(self, round: int, details: Mapping[Any, str]) -> None:
        told = {client: detail for client, detail in details.items() if detail}
        if told:
            with on_disk(self._errors), self._errors.open("a", encoding="utf-8") as file:
                file.writelines(f"round {round + 1}, {_who(client)}\n{detail}\n" for client, detail in told.items())


def _resume(folder: Path) -> str:
    return shlex.join(["tacit", "resume", str(folder)])


def _outcome_of(settings: Mapping[str, Any]) -> str:
    """A hash of what a run's numbers depend on: all sections of its config but those of engine and trackers."""
    told = {name: value for name, value in settings.items() if name not in ("engine", "track")}
    return sha256(json.dumps(told, sort_keys=True, default=str).encode()).hexdigest()


def _who(holder: int | str) -> str:
    return f"client {holder}" if isinstance(holder, int) else holder


def line(record: Record) -> str:
    """A round as one line of JSON, which has no word for NaN."""
    values = {name: value for name, value in asdict(record).items() if name != "details"}
    return json.dumps(_jsonable(values)) + "\n"


def _jsonable(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _jsonable(item) for name, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _counts(job: Job, split: Split) -> dict[str, Any]:
    """Labeled and unlabeled samples of each client and class, which positions alone do not tell, and R."""
    federation = job.federation
    true = (federation.pool.y if federation.truth is None else federation.truth).numpy()
    labeled, unlabeled = scenario.counts(true, len(federation.classes), split)
    return {
        "classes": list(federation.classes),
        "labeled": labeled.tolist(),
        "unlabeled": unlabeled.tolist(),
        "server": federation.server.labeled.y.bincount(minlength=len(federation.classes)).tolist(),
        "heterogeneity": partition.heterogeneity((labeled + unlabeled)[:, :-1]),
    }


def _fingerprint(job: Job) -> str:
    """A hash (SHA-256) of the samples themselves; the split's own hash knows their positions only."""
    digest, federation = sha256(), job.federation
    for tensor in (federation.pool.x, federation.truth, federation.test.x, federation.test.y):
        if tensor is not None:
            digest.update(str(tuple(tensor.shape)).encode())
            digest.update(tensor.contiguous().numpy().data)
    return digest.hexdigest()


@contextmanager
def _open_log(path: Path, length: int) -> Iterator[IO[bytes]]:
    """The round log, cut back to what the checkpoint knows."""
    with on_disk(path):
        path.touch()
        file = path.open("r+b")
    try:
        if path.stat().st_size < length:
            raise TacitError(f"{path} has lost rounds that the checkpoint knows: start the run again elsewhere")
        file.truncate(length)
        file.seek(length)
        yield file
    finally:
        with suppress(OSError):  # what a full disk does not take now is younger than the checkpoint
            file.close()
