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
import shutil
from collections.abc import Generator, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from traceback import format_exception
from typing import IO, Any

import torch
from safetensors.torch import load_file, save

from tacit import config as configs
from tacit import trackers
from tacit.config import Config, EngineConfig, TrackConfig
from tacit.data import partition, scenario
from tacit.data.scenario import Split
from tacit.engines import checkpoint
from tacit.engines.inline import InlineCourier
from tacit.engines.local import LocalCourier, default_workers, one_thread
from tacit.engines.loop import Courier, Job, MethodFailedError, Position, Record, TooFewClientsError, play
from tacit.engines.memory import Memories, write_durably
from tacit.errors import TacitError
from tacit.folders import locked
from tacit.params import Params
from tacit.prepare import build_job
from tacit.simulation import cluster, simulation


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

    @classmethod
    def create(cls, config: Config, folder: Path) -> "Experiment":
        """A new run in a folder that is not there yet, or is empty."""
        with _writing(folder):
            if (folder / "config.toml").exists():
                raise TacitError(
                    f"{folder} already holds a run: choose another --out, or go on with `tacit resume {folder}`"
                )
            if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
                raise TacitError(f"{folder} is not an empty folder: choose another --out")
        trackers.check(config.track)
        if config.engine.name == "flower" and config.engine.ray:
            cluster(config.engine.ray)  # it is kept with the run, so a wrong one could not be mended by a resume
        job, split = build_job(config)
        about = {"hash": split.hash(), "data": _fingerprint(job), "counts": _counts(job, split)} | split.to_json()
        with _writing(folder):
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
        try:
            about = json.loads((folder / "split.json").read_text(encoding="utf-8"))
            known = about["hash"], about["data"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise TacitError(f"{folder / 'split.json'} can not be read ({error}): start a new run") from error
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
            configs.on_one_machine(self.config)
        with ExitStack() as stack:
            lock = lock or stack.enter_context(locked(self.folder))
            stack.enter_context(one_thread())
            position, length = self._restore()
            log = stack.enter_context(_open_log(self.folder / "rounds.jsonl", length))
            every = 1 if courier else self.config.log.checkpoint_every
            courier = courier or stack.enter_context(closing(self._courier(lock)))
            track = stack.enter_context(trackers.opened(self.config, self.folder, position.round))
            saved = logged = position.round
            try:
                for record in play(self.job, courier, position):
                    log.write(line(record).encode())
                    logged = position.round
                    self._note_errors(record.round, record.details)
                    if position.round % every == 0 or position.round == self.job.rounds:
                        self._save(position, log)
                        saved = position.round
                    track(record)
                    yield record
            except TooFewClientsError as error:
                self._note_errors(position.round, {k: absent.detail for k, absent in error.absent.items()})
                raise
            except MethodFailedError as error:
                self._note_errors(position.round, {"server": "".join(format_exception(error.__cause__))})
                raise
            finally:
                if position.whole and position.round == logged > saved:
                    self._save(position, log)
            self._save_model(position)

    def result(self) -> Result:
        """What a finished run came to."""
        records = self._records(self.job.rounds)
        if len(records) < self.job.rounds:
            raise TacitError(f"{self.folder} is not finished: go on with `tacit resume {self.folder}`")
        model = self.folder / "model.safetensors"
        params = load_file(model) if model.exists() else None
        return Result(self.config, records, params, self.job)

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
            if not all(isinstance(record, dict) and "bytes_up" in record for record in records):
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
            return simulation(self.job, self.config, max(1, workers))
        if not workers:
            return InlineCourier(self.job, engine.strict)
        return LocalCourier(self.job, workers, private=[lock])

    def _save(self, position: Position, log: IO[bytes]) -> None:
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

    def _note_errors(self, round: int, details: Mapping[Any, str]) -> None:
        told = {client: detail for client, detail in details.items() if detail}
        if told:
            with (self.folder / "errors.log").open("a", encoding="utf-8") as file:
                file.writelines(f"round {round + 1}, {_who(client)}\n{detail}\n" for client, detail in told.items())


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
def _writing(folder: Path) -> Iterator[None]:
    """What the system has against a place for a run, in one sentence."""
    try:
        yield
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise TacitError(f"can not write to {folder}: {reason}; choose another --out") from error


@contextmanager
def _open_log(path: Path, length: int) -> Iterator[IO[bytes]]:
    """The round log, cut back to what the checkpoint knows."""
    path.touch()
    if path.stat().st_size < length:
        raise TacitError(f"{path} has lost rounds that the checkpoint knows: start the run again elsewhere")
    with path.open("r+b") as file:
        file.truncate(length)
        file.seek(length)
        yield file
