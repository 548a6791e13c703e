"""Search for settings: trials chosen by Optuna on validation accuracy, each one a run that can be resumed.

tune.json     what is searched
ledger.jsonl  one line per trial that ended: its values, its validation accuracies, and how it ended
trials/       the runs
best.toml     the config of the best trial so far

A trial depends on the trials before it and on its number only, so an interrupted search continues as if nothing had
happened. The test set decides nothing.
"""

import json
import math
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from tacit.engines.job import ClientNews, ClientTask, Job, Transport
from tacit.errors import TacitError
from tacit.learn import EVALUATION_BATCH, Score, evaluate
from tacit.params import Params
from tacit.random import Streams
from tacit.runs import config as configs
from tacit.runs.config import Config
from tacit.runs.directory import RunDirectory, fingerprint, folders, layout
from tacit.runs.directory.planned import Plan, PlannedRun, working
from tacit.runs.experiment import Experiment
from tacit.runs.space import Range, Space
from tacit.storage import DiskError, on_disk, write_durably

if TYPE_CHECKING:
    import optuna

NOTE = layout.TRIAL  # of the search, and in a trial's folder its validation accuracies by round
STARTUP = 5  # trials that are never stopped, so that later ones have something to be compared with
WARMUP = 0.2  # share of the rounds before which no trial is stopped

End = Literal["finished", "stopped", "failed"]


@dataclass(frozen=True)
class Trial:
    """A line of the ledger."""

    trial: int
    values: dict[str, Any]
    validation: float | None  # accuracy after the last round; None if it failed before one was measured
    rounds: int
    end: End
    curve: dict[int, float] = field(default_factory=dict, repr=False)  # validation accuracy by number of rounds
    reason: str = ""  # why it failed


@dataclass(frozen=True)
class Search:
    """A search and its folder."""

    base: Mapping[str, Any]  # nested settings of all trials
    options: Mapping[str, Any]  # that override them
    space: Space
    trials: int
    folder: Path
    seed: int = 0

    def run(self, begun: Callable[[int, Mapping[str, Any]], None] = lambda number, values: None) -> Iterator[Trial]:
        """Run the trials that are left and yield each one when it ends."""
        _refuse_without_optuna()
        self._begin()
        with working(self.folder, self._plan()):
            yield from self._trials(begun)

    def _plan(self) -> Plan:
        rounds = self.config(next(_corners(self.space))).rounds
        places = ((self.place(number), number) for number in range(self.trials))
        runs = (
            PlannedRun(str(place.relative_to(self.folder)), f"trial {number:03d}", 0, rounds)
            for place, number in places
        )
        return Plan("search", self.folder.name, tuple(runs))

    def _trials(self, begun: Callable[[int, Mapping[str, Any]], None]) -> Iterator[Trial]:
        done = self.ledger()
        for number in range(len(done), self.trials):
            study = self._study(done)
            asked = study.ask()
            values = {name: _suggested(asked, name, each) for name, each in self.space.items()}
            begun(number, values)
            trial = self._run_trial(number, values, asked)
            self._append(trial)
            done.append(trial)
            self._write_best(done)
            yield trial

    def ledger(self) -> list[Trial]:
        """The trials that have ended."""
        path = self.folder / folders.LEDGER
        if not path.exists():
            return []
        *lines, _ = path.read_text(encoding="utf-8").split("\n")  # a last line without its end is not complete
        try:
            return [_read(line) for line in lines]
        except (ValueError, KeyError, TypeError) as error:
            raise TacitError(
                f"cannot read {path} ({error})", "restore it, or start in another folder", code="tune.broken-ledger"
            ) from error

    @property
    def best_file(self) -> Path:
        """The config of the best trial so far."""
        return self.folder / folders.BEST

    def place(self, number: int) -> Path:
        """The folder of a trial's run."""
        return self.folder / "trials" / f"{number:03d}"

    def config(self, values: Mapping[str, Any]) -> Config:
        """The config of a trial."""
        made = configs.from_options({**self.options, **values}, self.base)
        configs.refuse_sites(made)
        return made

    def _begin(self) -> None:
        """Note what is searched, or refuse a folder with another search."""
        space = {name: each.to_plain() for name, each in self.space.items()}
        about = {
            "space": space,
            "seed": self.seed,
            "settings": fingerprint({**self.base, "options": dict(self.options)}),
        }
        path = self.folder / NOTE
        if path.exists():
            if json.loads(path.read_text(encoding="utf-8")) != about:
                raise TacitError(
                    f"{self.folder} holds a search with another config, space or seed",
                    "choose another --out",
                    code="tune.other-search",
                )
            return
        for values in _corners(self.space):
            self.config(values)  # refuses a wrong name or value before anything is written
        with on_disk(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        write_durably(path, json.dumps(about).encode())

    def _study(self, done: list[Trial]) -> "optuna.Study":
        """A study that knows the trials so far; its sampler is seeded by the number of the next one."""
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        seed = int(Streams(self.seed).numpy_at("tune", round=len(done)).integers(2**31))
        rounds = self.config(next(_corners(self.space))).rounds
        study = optuna.create_study(
            direction="maximize",
            sampler=optuna.samplers.TPESampler(seed=seed, n_startup_trials=2 * STARTUP),
            pruner=optuna.pruners.MedianPruner(STARTUP, max(1, int(WARMUP * rounds))),
        )
        states = {"finished": "COMPLETE", "stopped": "PRUNED", "failed": "FAIL"}
        for trial in done:
            study.add_trial(
                optuna.trial.create_trial(
                    state=optuna.trial.TrialState[states[trial.end]],
                    value=trial.validation if trial.end == "finished" else None,
                    params=trial.values,
                    distributions={name: _distribution(each) for name, each in self.space.items()},
                    intermediate_values=trial.curve,
                )
            )
        return study

    def _run_trial(self, number: int, values: dict[str, Any], asked: "optuna.trial.Trial") -> Trial:
        """Run a trial, or continue it, until it is finished or clearly weaker than the others."""
        config, place = self.config(values), self.place(number)
        directory = RunDirectory(place)
        curve: dict[int, float] = {}
        try:
            experiment = Experiment.reopen(place) if directory.exists() else Experiment.create(config, place)
            _refuse_without_validation(experiment.job)
            known = (directory.read_note(NOTE) or {}).items() if directory.exists() else ()
            curve = {int(n): float(value) for n, value in known if int(n) <= experiment.finished_rounds()}
            for round, value in curve.items():
                asked.report(value, round)
            for round, value in validated_rounds(experiment):
                curve[round] = value
                directory.write_note(NOTE, {str(n): each for n, each in curve.items()})
                asked.report(value, round)
                if round < config.rounds and asked.should_prune():
                    return Trial(number, values, value, round, "stopped", curve)
        except DiskError:
            raise
        except TacitError as error:
            if not error.resumable:  # a setting or the data is wrong, for every trial
                raise
            return Trial(number, values, None, len(curve), "failed", curve, error.problem)
        if config.rounds not in curve:  # killed after the last round, before its accuracy was noted
            curve[config.rounds] = _final_accuracy(experiment)
        return Trial(number, values, curve[config.rounds], config.rounds, "finished", curve)

    def _append(self, trial: Trial) -> None:
        path = self.folder / folders.LEDGER
        with on_disk(path), path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(trial)) + "\n")

    def _write_best(self, done: list[Trial]) -> None:
        if (best := best_of(done)) is not None:
            write_durably(self.best_file, configs.dumps(self.config(best.values)).encode())


def best_of(done: list[Trial]) -> Trial | None:
    """The finished trial with the highest validation accuracy, the first of equal ones."""
    finished = [trial for trial in done if trial.end == "finished" and trial.validation is not None]
    return max(finished, key=lambda trial: (trial.validation, -trial.trial), default=None)


def chance(accuracy: float, samples: int) -> float:
    """Half the width of the 95 % interval of an accuracy on this number of samples."""
    return 1.96 * math.sqrt(max(accuracy * (1 - accuracy), 1 / samples) / samples)


# --- validation -------------------------------------------------------------------------------------------------------


def validated_rounds(experiment: Experiment) -> Iterator[tuple[int, float]]:
    """Run the rounds that are left; the number of rounds and the validation accuracy after each evaluated one."""
    job = experiment.job
    with (
        closing(_Validating(experiment.open_transport(), job)) as transport,
        closing(experiment.rounds(transport)) as records,
    ):
        for record in records:
            if record.accuracy is not None and transport.accuracy is not None:
                yield record.round + 1, transport.accuracy


class _Validating:
    """A transport that also evaluates every model on the server's validation samples."""

    def __init__(self, inner: Transport, job: Job) -> None:
        self._inner, self._job = inner, job
        self.accuracy: float | None = None

    def run(self, round: int, tasks: Mapping[int, ClientTask]) -> Generator[ClientNews]:
        return self._inner.run(round, tasks)

    def evaluate(self, model: Params, *, outputs: bool = False) -> Score:
        self.accuracy = _accuracy(self._job, model)
        return self._inner.evaluate(model, outputs=outputs)

    def close(self) -> None:
        self._inner.close()


def _accuracy(job: Job, model: Params) -> float:
    """Of a model on the validation samples."""
    samples = job.federation.server.validation
    parts = (samples.take(rows) for rows in torch.arange(len(samples)).split(EVALUATION_BATCH))
    score = sum((evaluate(job.net, model, part, job.federation.views, job.device) for part in parts), Score())
    return score.correct / score.count


def _final_accuracy(experiment: Experiment) -> float:
    model = experiment.result().params
    if model is None:
        raise TacitError(
            f"{experiment.config.method_name} trains no common model to validate",
            "use another method",
            code="run.no-common-model",
        )
    return _accuracy(experiment.job, {name: value.to(experiment.job.device) for name, value in model.items()})


def _refuse_without_validation(job: Job) -> None:
    if not len(job.federation.server.validation):
        raise TacitError(
            "settings are chosen on validation samples, and the server has none",
            "set data.validation, such as --set data.validation=200",
            code="tune.no-validation",
        )


# --- Optuna -----------------------------------------------------------------------------------------------------------


def _refuse_without_optuna() -> None:
    if find_spec("optuna") is None:
        raise TacitError(
            "tacit tune needs the package optuna", "install it with pip install 'tacit[tune]'", code="tune.no-optuna"
        )


def _suggested(asked: "optuna.trial.Trial", name: str, each: Any) -> Any:
    if not isinstance(each, Range):
        return asked.suggest_categorical(name, each.values)
    if each.whole:
        return asked.suggest_int(name, int(each.low), int(each.high), log=each.log)
    return asked.suggest_float(name, each.low, each.high, log=each.log)


def _distribution(each: Any) -> Any:
    from optuna import distributions

    if not isinstance(each, Range):
        return distributions.CategoricalDistribution(each.values)
    if each.whole:
        return distributions.IntDistribution(int(each.low), int(each.high), log=each.log)
    return distributions.FloatDistribution(each.low, each.high, log=each.log)


def _corners(space: Space) -> Iterator[dict[str, Any]]:
    """The first and the last value of every setting, to check names and values."""
    yield {name: each.low if isinstance(each, Range) else each.values[0] for name, each in space.items()}
    yield {name: each.high if isinstance(each, Range) else each.values[-1] for name, each in space.items()}


def _read(line: str) -> Trial:
    values = json.loads(line)
    curve = {int(round): float(value) for round, value in values.pop("curve").items()}
    return Trial(**values, curve=curve)
