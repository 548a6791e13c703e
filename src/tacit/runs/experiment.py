"""One run: create it from a config, reopen it from its folder, run its rounds, read its result."""

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from traceback import format_exception
from typing import IO, Any

from safetensors import SafetensorError
from safetensors.torch import load_file

from tacit import __version__
from tacit.data.sources import Source
from tacit.data.split.split import Split
from tacit.engines import checkpoint, guard, selection
from tacit.engines.events import Event, RoundEnded, round_records
from tacit.engines.in_process import InProcessTransport
from tacit.engines.job import Job, RunState, Transport
from tacit.engines.memory import Memories
from tacit.engines.record import RoundRecord
from tacit.engines.rounds import MethodFailedError, TooFewClientsError, run_rounds
from tacit.engines.scores import predictions
from tacit.engines.stacked import StackedTransport
from tacit.engines.workers import WorkerTransport
from tacit.errors import TacitError
from tacit.metrics.predictions import Predictions
from tacit.params import Params
from tacit.process import threads
from tacit.runs import config as configs
from tacit.runs import cross_validation, simulation
from tacit.runs.begun import counts, data_fingerprint, is_as_begun, with_draw
from tacit.runs.build import build_job
from tacit.runs.config import Config
from tacit.runs.devices import devices, worker_count
from tacit.runs.directory import RoundLog, RunDirectory
from tacit.runs.followers import notices, round_file, trackers
from tacit.runs.net.feature_cache import with_cached_features
from tacit.runs.protection import protection_notes
from tacit.runs.result import saved_model
from tacit.runs.result.card import card
from tacit.runs.result.finished import Result
from tacit.runs.sections import EngineConfig, TrackConfig
from tacit.storage import DiskError

LARGEST = 1 << 24  # numbers that the outputs on the test set may have to be saved


@dataclass(frozen=True)
class Experiment:
    """One run and its directory: `create` or `reopen` it, then iterate over its `rounds` or `events`."""

    config: Config
    directory: RunDirectory
    job: Job
    split: Split
    persistent: bool = True  # False: its folder is temporary

    @classmethod
    def create(cls, config: Config, folder: Path, loaded: Source | None = None) -> "Experiment":
        """A new run in a folder that does not exist yet, or is empty; `loaded` are its samples, if they are at hand."""
        directory = RunDirectory(folder)
        directory.refuse_if_taken()
        trackers.check(config.track)
        simulation.check(config)
        if config.engine.name == "flower" and config.engine.ray:
            simulation.cluster(config.engine.ray)  # the address is saved with the run, so a wrong one must not get in
        job, split = build_job(config, loaded)
        return cls._begun(config, directory, job, split)

    @classmethod
    def _begun(cls, config: Config, directory: RunDirectory, job: Job, split: Split) -> "Experiment":
        about = {"hash": split.hash(), "data": data_fingerprint(job), "counts": counts(job, split)} | split.to_json()
        directory.create(configs.dumps(config), about, config.fingerprints(), __version__)
        return cls(config, directory, job, split)

    def within(self, folder: Path, config: Config, job: Job) -> "Experiment":
        """A run within this one, as far as it is: on its data, as `job` divides it, and checked like it."""
        directory = RunDirectory(folder)
        if not directory.exists():
            return replace(self._begun(config, directory, job, self.split), persistent=self.persistent)
        if directory.config()["rounds"] != config.rounds:
            directory.replan(configs.dumps(config), config.fingerprints())
        return replace(self, config=config, directory=directory, job=job)

    @classmethod
    def reopen(cls, folder: Path, engine: EngineConfig | None = None, track: TrackConfig | None = None) -> "Experiment":
        """A run that was started before, on the same data; the rest may use another engine and other trackers."""
        directory = RunDirectory(folder)
        given = directory.config()
        if missing := sorted({"data", "train", "log"} - given.keys()):
            raise TacitError(
                f"{directory.config_file} is incomplete: it has no {missing[0]}",
                "restore it, or start a new run",
                code="run.broken-config",
            )
        config = configs.make(with_draw(given))
        config = replace(config, engine=engine or config.engine, track=track or config.track)
        trackers.check(config.track)
        simulation.check(config)
        known = directory.split()
        if not is_as_begun(directory, given, config):
            raise TacitError(
                f"{directory.config_file} has changed since the run began",
                "restore it, or start a new run with it",
                code="run.config-changed",
            )
        if directory.schema() == 1 and directory.finished_rounds() < config.rounds:
            raise TacitError(
                f"{folder} was begun by Tacit 0.1, whose checkpoints this version does not read",
                "finish it with Tacit 0.1, or start a new run",
                code="run.older-version",
            )
        job, split = build_job(config)
        if (known["hash"], known.get("data")) != (split.hash(), data_fingerprint(job)):
            raise TacitError(
                f"the data differs from when {folder} was started",
                "restore it, or start a new run",
                code="run.data-changed",
            )
        return cls(config, directory, replace(job, secret=directory.secret()), split)

    def rounds(self, transport: Transport | None = None, lock: IO[bytes] | None = None) -> Generator[RoundRecord]:
        """Run the rounds that are left; the record of each. It can be closed at any time, like `events`."""
        return round_records(self.events(transport, lock))

    def events(self, transport: Transport | None = None, lock: IO[bytes] | None = None) -> Generator[Event]:
        """Run the rounds that are left and yield what happens, as it happens; a round ends once it is in the log.

        The generator can be closed at any time, also within a round; the run can then be resumed.

        A given `transport` is not closed, and every round is saved: its clients may store their own memories, which
        reach back only a few rounds. `lock` is the lock of the run's folder, if the caller holds it.
        """
        if transport is None:
            configs.refuse_sites(self.config)
            self.directory.clear_stop_reason()
        if self.directory.schema() == 1:
            self._complete_older_run()
            return
        with ExitStack() as stack:
            lock = lock or stack.enter_context(self.directory.lock())
            stack.enter_context(threads(self.config.engine.threads))
            stack.enter_context(self._with_resume_command(at_hub=transport is not None))
            run_state, length = self._restore()
            log = stack.enter_context(self.directory.log(length))
            job = self._ready(at_hub=transport is not None)
            every = 1 if transport else self.config.log.checkpoint_every
            transport = transport or stack.enter_context(closing(self.open_transport([lock])))
            track = stack.enter_context(trackers.opened(self.config, self.folder, run_state.round))
            follow = stack.enter_context(round_file.opened(self.directory))
            self._note_protection()
            facts = notices.Facts.of(self.config, self.job)
            notice = notices.noting(self.directory, facts, run_state.round)
            saved = logged = run_state.round
            if run_state.finished(self.job):
                self._save_model(run_state)  # the file may have been lost since
            try:
                for event in stack.enter_context(closing(run_rounds(job, transport, run_state))):
                    follow(event)
                    if isinstance(event, RoundEnded):
                        log.append(event.record)
                        logged = run_state.round
                        self._note_errors(event.round, event.record.details)
                        track(event.record)  # before the checkpoint: trackers take a round twice, but must not miss one
                        if run_state.round % every == 0 or run_state.finished(self.job):
                            self._save(run_state, log)
                            saved = run_state.round
                    yield event
                    yield from notice(event)
                if run_state.finished(self.job):
                    self._save_predictions(transport)
            except TooFewClientsError as error:
                raise self._why_stopped(error, run_state.round, facts) from error.__cause__
            except MethodFailedError as error:
                self._note_errors(run_state.round, {"server": "".join(format_exception(error.__cause__))})
                raise
            except DiskError:
                saved = run_state.round  # do not save again: that would fail too, and the last checkpoint is complete
                raise
            finally:
                if run_state.whole and run_state.round == logged > saved:
                    self._save(run_state, log)

    def _ready(self, at_hub: bool) -> Job:
        """The job for the rounds that are left, once the runs within this one have ended; a hub has none of these."""
        job = replace(self.work, left_out=self.directory.left_out())
        return job if at_hub else cross_validation.with_results(self, job)

    def _complete_older_run(self) -> None:
        """Write what a run of 0.1 lacks; its checkpoint cannot be read, but it is finished: `reopen` refuses others."""
        if not self.directory.model_file.exists():
            return  # each client has its own
        if not saved_model.is_described(self.directory.model_file):
            self._write_model(self._model())
        if not self.directory.predictions_file.exists():
            with threads(self.config.engine.threads), closing(InProcessTransport(self.work)) as transport:
                self._save_predictions(transport)

    @contextmanager
    def _with_resume_command(self, at_hub: bool) -> Iterator[None]:
        """Add the command that resumes the run, and where the traceback is, to an error that a resume can follow."""
        try:
            yield
        except TacitError as error:
            if error.resumable or isinstance(error, DiskError):
                error.resumable = True
                if not at_hub:  # a hub adds its own command
                    resume = f"resume with `{self.directory.resume_command}`"
                    command = resume if self.persistent else "run again with out=FOLDER, so that it can be resumed"
                    error.remedy = f"{error.remedy}, then {command}" if error.remedy else command
                traced = isinstance(error, (MethodFailedError, TooFewClientsError)) and self.persistent
                if traced and self.directory.errors_file.exists():
                    error.remedy += f" ({self.directory.errors_file} has the traceback)"
            raise

    def result(self) -> Result:
        """The outcome of a finished run."""
        total = self.directory.total_rounds()
        records = self.directory.rounds(total)
        if len(records) < total:
            raise TacitError(
                f"{self.folder} is not finished",
                f"continue it with `{self.directory.resume_command}`",
                code="run.not-finished",
            )
        measured = records[-1].accuracy is not None or records[-1].selected is not None
        params = self._model() if measured else None
        return Result(self.config, [record.as_dict() for record in records], params, self.job)

    def _model(self) -> Params:
        path = self.directory.model_file
        try:
            tensors = load_file(path)
        except (OSError, SafetensorError) as error:
            raise TacitError(
                f"cannot read {path} ({error})",
                f"write it again with `{self.directory.resume_command}`",
                code="run.broken-model",
            ) from error
        return {name: tensors[name] for name in self.job.net.names if name in tensors}

    @cached_property
    def work(self) -> Job:
        """The job as the rounds see it: with `net.views`, on stored activations of frozen layers."""
        return with_cached_features(self.config, self.job)

    @property
    def folder(self) -> Path:
        """The run's folder."""
        return self.directory.path

    def traffic(self) -> int:
        """Bytes sent in all rounds so far, both ways."""
        return sum(record.all_bytes for record in self.directory.rounds(self.finished_rounds()))

    def finished_rounds(self) -> int:
        """How many rounds the last checkpoint holds."""
        return self.directory.finished_rounds()

    def _restore(self) -> tuple[RunState, int]:
        folder = self.directory.checkpoint
        memories = Memories(folder / "memories", int(self.config.engine.memory_mb * 1e6))
        run_state, length = checkpoint.load(folder, self.job.codec, memories, self.job.device)
        if self.job.selection.remembers and run_state.round:
            run_state.selection = selection.restore(folder, run_state.round, self.job.device)
        return run_state, length

    def open_transport(self, private: Sequence[IO[bytes]] = ()) -> Transport:
        """The transport that the settings ask for, to be closed; `private` lists files that workers must not hold."""
        engine = self.config.engine
        found = devices(engine)
        workers = worker_count(engine, found)
        if engine.name == "flower":
            return simulation.transport(self.work, self.config, max(1, workers))
        if engine.stack > 1:
            return StackedTransport(self.work, engine.stack)
        if not workers:
            return InProcessTransport(self.work, engine.strict)
        return WorkerTransport(self.work, workers, private=private, devices=found, threads=engine.threads)

    def _save(self, run_state: RunState, log: RoundLog) -> None:
        length = log.sync()
        if self.job.selection.remembers:
            selection.store(self.directory.checkpoint, run_state.round, run_state.selection)
        if run_state.finished(self.job):
            if run_state.round < self.job.rounds:
                self.directory.write_end(run_state.round, run_state.ended_early(self.job))
            self._save_model(run_state)  # first: no one resumes a run whose checkpoint says that it is finished
        keep = self.config.log.keep_checkpoints
        checkpoint.save(self.directory.checkpoint, run_state, self.job.codec, length, keep)

    def _save_model(self, run_state: RunState) -> None:
        choice = guard.choose(cross_validation.known(self, self.work), run_state)
        self._write_model(None if choice is None else choice.model)

    def _write_model(self, model: Params | None) -> None:
        """Write the model, if there is a common one, and the card, which the log must be complete for."""
        if model is not None:
            self.directory.write_model(saved_model.encode(self.config, self.job, model, self._card()))
        self._write_card()

    def _write_card(self) -> None:
        self.directory.write_card(self._card(self.directory.predictions()))

    def _card(self, outputs: Predictions | None = None) -> str:
        last = self.directory.rounds(self.job.rounds)[-1]
        chosen = last.accuracy if last.selected is None else last.selected["accuracy"]
        rounds, spent = last.round + 1, last.sample_privacy
        return card(
            self.config,
            cross_validation.known(self, self.job),
            chosen,
            last.local_accuracy,
            outputs,
            spent,
            rounds=rounds,
            selected=last.selected,
        )

    def _save_predictions(self, transport: Transport) -> None:
        """Once the model is saved, save its outputs on the test set, unless they are there or would be very large."""
        if not len(self.job.federation.test):
            if (found := cross_validation.predictions(self)) is not None:
                self.directory.write_predictions(found)
                self._write_card()
            return
        numbers = len(self.job.federation.test) * len(self.job.federation.classes)
        wanted = 0 < numbers <= LARGEST
        if not wanted or self.directory.predictions_file.exists() or not self.directory.model_file.exists():
            return
        model = {name: value.to(self.job.device) for name, value in self._model().items()}
        self.directory.write_predictions(predictions(self.job, transport.evaluate(model, outputs=True)))
        self._write_card()

    def _why_stopped(self, error: TooFewClientsError, round: int, facts: notices.Facts) -> TacitError:
        """A divergence if all clients became non-finite and no fault was injected; otherwise the error itself."""
        self._note_errors(round, {client: failure.detail for client, failure in error.failures.items()})
        end = None if self.config.faults.nonfinite else notices.diverged(round, error.failures, facts)
        if end is not None:
            self.directory.write_stop_reason(end)
        return end or error

    def _note_protection(self) -> None:
        """Write what `[protect]` promises, for reports; the number of rounds may have changed since last time."""
        if promises := protection_notes(self.config, self.job):
            self.directory.write_protection(promises)

    def _note_errors(self, round: int, details: Mapping[Any, str]) -> None:
        who = {k: f"client {k}" if isinstance(k, int) else str(k) for k in details}
        self.directory.write_errors(round, {who[k]: detail for k, detail in details.items()})
