"""What scripts and notebooks get: the result of a run, and of a comparison, with tables and curves.

The functions of the package, such as `tacit.run`, are here; `import tacit` loads this module with the first call.
"""

import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from html import escape
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from tacit.errors import TacitError, unknown
from tacit.inference.export import FORMATS
from tacit.inference.export import export as write_export
from tacit.inference.labeled import evaluate as evaluate_on
from tacit.inference.model import Model
from tacit.metrics.evaluation import Evaluation, evaluate
from tacit.metrics.scores import scores
from tacit.report import charts, gains, history, page, plots, tables
from tacit.report.history import Run
from tacit.runs import config as configs
from tacit.runs import experiment as experiments
from tacit.runs import replay
from tacit.runs.compare import compare as run_all
from tacit.runs.directory.folders import read_command
from tacit.runs.experiment import Experiment
from tacit.runs.extension import extend
from tacit.runs.followers import progress
from tacit.runs.resolve import resolve
from tacit.runs.result import saved_model
from tacit.runs.space import as_space
from tacit.runs.tune import Search, Trial, best_of

if TYPE_CHECKING:
    import pandas

CHECKED = 64  # test samples that an exported file is compared on
NESTED = ("traffic", "metrics", "server", "skipped", "scores")  # parts of a record that are no single number


@dataclass(frozen=True, repr=False, eq=False)
class Result(experiments.Result):
    """A finished run: its model, its scores, its rounds.

    A run without `out=` lives in a temporary folder, which is removed with its result; `save` keeps it.
    """

    folder: Path = field(default=Path())

    def __repr__(self) -> str:
        """One line."""
        last, data = len(self.history), Path(self.config.data.name).name
        return f"<Result {self.config.method_name} on {data}: accuracy {self.accuracy:.1%} after {last} rounds>"

    def _repr_html_(self) -> str:
        """A notebook shows the last numbers and the curve of accuracy."""
        run = self._run
        svg = plots.inline_svg(plots.draw(charts.accuracy([run])), f"r{id(self)}-")
        return f"<p>{escape(repr(self).strip('<>'))}</p>\n{_rows(self.metrics)}\n{svg}"

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes."""
        return self.job.federation.classes

    @cached_property
    def metrics(self) -> dict[str, float]:
        """Every score of the final model on the test samples; without a common model, only the clients' accuracy."""
        saved = self._run.directory.predictions()
        return {"accuracy": self.accuracy} if saved is None else scores(saved)

    @cached_property
    def model(self) -> Model:
        """The trained model, as `tacit.load` opens it."""
        if self.params is None:
            self.net()  # refuses
        return saved_model.load(self.folder, import_net=True)  # the run has imported it already

    def frame(self) -> "pandas.DataFrame":
        """One row per round: accuracy, loss, steps, bytes, time, logged scores, means over the clients."""
        return _frame([_flat(record) for record in self.history], "round")

    def predict(self, samples: Any) -> Any:
        """(n,): the name of the most likely class of each sample; see `tacit.load` for what samples can be."""
        return self.model.predict(samples)

    def predict_proba(self, samples: Any) -> Any:
        """(n, classes): the probability of each class."""
        return self.model.predict_proba(samples)

    def evaluate(self, data: str | Path | None = None, *, positive: str | None = None, seed: int = 0) -> Evaluation:
        """How good the model is on the run's own test samples, or on other labeled ones, with 95 % intervals.

        Args:
            data: a folder with a folder for each class, a .csv, .parquet or .npz file, or a data set.
            positive: of two classes, the one that sensitivity is about.
            seed: of the bootstrap draws.
        """
        number = None if positive is None else self.classes.index(positive)
        if data is not None:
            return evaluate_on(self.model, data, positive=number, seed=seed)
        saved = self._run.directory.predictions()
        if saved is None:
            raise TacitError(
                f"{self.config.method_name} has no common model, or its outputs were not saved",
                "give labeled samples",
                code="evaluate.no-predictions",
            )
        return evaluate(saved, "the run's own test samples", positive=number, seed=seed)

    def export(self, path: str | Path) -> Path:
        """Write the model for other programs: `.onnx`, `.pt2` or `.safetensors`, by the ending of the name.

        The file is compared with the model on test samples before it counts; see `tacit export`.
        """
        place = Path(path)
        form = place.suffix.removeprefix(".").lower()
        if form not in FORMATS:
            raise unknown("format", form, FORMATS)
        write_export(self.model, place, form, self.job.federation.test.x[:CHECKED])
        return place

    def save(self, folder: str | Path) -> Path:
        """Copy the run's folder, so that it can be loaded, reported and exported later."""
        place = Path(folder)
        if place.exists():
            raise TacitError(f"{place} already exists", "choose another folder", code="storage.exists")
        shutil.copytree(self.folder, place)
        return place

    def report(self, out: str | Path = "report.html") -> Path:
        """Write one HTML page about the run."""
        return report(self.folder, out=out)

    @property
    def _run(self) -> Run:
        return history.load(self.folder)


@dataclass(frozen=True, eq=False)
class Comparison:
    """Finished runs of several methods and seeds."""

    folder: Path
    runs: tuple[Run, ...] = field(repr=False)

    def __repr__(self) -> str:
        """The table, as `tacit compare` prints it."""
        console = Console(width=100, file=StringIO(), force_terminal=False)
        with console.capture() as printed:
            console.print(tables.to_rich(tables.summarise(self.runs), ""))
        return "\n".join(filter(None, [printed.get().strip(), self.gain]))

    def _repr_html_(self) -> str:
        """A notebook shows the table, the gain in words and the curves."""
        rows = tables.summarise(self.runs)
        shown = tables.columns(rows)
        heads = "".join(f"<th>{escape(head)}</th>" for head in ("run", *(column.head for column in shown)))
        body = "".join(
            f"<tr><th>{escape(row.label)}</th>" + "".join(f"<td>{escape(column.cell(row))}</td>" for column in shown)
            for row in rows
        )
        svg = plots.inline_svg(plots.draw(charts.accuracy(self.runs)), f"c{id(self)}-")
        return f"<table><tr>{heads}</tr>{body}</table>\n<p>{escape(self.gain)}</p>\n{svg}"

    @property
    def gain(self) -> str:
        """What each method gains over labels-only, in a sentence; empty if labels-only is not among them."""
        return gains.sentence(self.runs)

    def frame(self) -> "pandas.DataFrame":
        """One row per run: method, seed, accuracies, scores of the last evaluation, costs."""
        return _frame([_summary(run) for run in self.runs])

    def report(self, out: str | Path = "report.html") -> Path:
        """Write one HTML page about all runs."""
        return report(self.folder, out=out)


def run(config: Path | None, out: Path | None, show: bool | None, options: Mapping[str, Any]) -> Result:
    """See `tacit.run`."""
    base = configs.read(config) if config is not None else {}
    asked = resolve(options, base, default=configs.DEFAULT_METHOD)
    configs.refuse_sites(asked.config)
    with _place(out, "run") as folder:
        experiment = replace(Experiment.create(asked.config, folder, asked.loaded), persistent=out is not None)
        return _finished(experiment, show, temporary=out is None)


def resume(
    folder: Path, rounds: int | None, show: bool | None, start: int | None = None, without: Sequence[int] = ()
) -> Result:
    """See `tacit.resume`."""
    experiment = Experiment.reopen(folder) if rounds is None else extend(folder, rounds)[0]
    replay.prepare(experiment.directory, start, [str(client) for client in without])
    return _finished(experiment, show)


def compare(
    config: Path | None,
    methods: Sequence[str],
    seeds: Sequence[int],
    out: Path | None,
    show: bool | None,
    options: Mapping[str, Any],
) -> Comparison:
    """See `tacit.compare`."""
    base = configs.read(config) if config is not None else {}
    mode, console = _mode(show)
    with _place(out, "compare") as folder:
        places = run_all(base, dict(options), methods, seeds, folder, mode, console)
        runs = tuple(history.load(place, method) for place, method in places.items())
        found = Comparison(folder, runs)
        if out is None:
            _remove_with(found, folder.parent)
        return found


@dataclass(frozen=True, eq=False)
class Tuned:
    """A finished search for settings."""

    search: Search = field(repr=False)

    def __repr__(self) -> str:
        """One line."""
        best = self.best
        return f"<Tuned {len(self.trials)} trials, best: {best.values} with validation accuracy {best.validation:.1%}>"

    def _repr_html_(self) -> str:
        """A notebook shows the ledger."""
        return str(self.frame().to_html())

    @property
    def trials(self) -> list[Trial]:
        """All trials in their order."""
        return self.search.ledger()

    @property
    def best(self) -> Trial:
        """The finished trial with the highest validation accuracy."""
        found = best_of(self.trials)
        if found is None:
            raise TacitError("no trial finished", "look at their reasons in `trials`", code="tune.none-finished")
        return found

    @property
    def config(self) -> Path:
        """The file with the best config, for `tacit.run`."""
        return self.search.best_file

    def frame(self) -> "pandas.DataFrame":
        """One row per trial."""
        rows = [
            {"trial": each.trial, **each.values, "validation": each.validation, "rounds": each.rounds, "end": each.end}
            for each in self.trials
        ]
        return _frame(rows, "trial")


def tune(
    config: Path,
    space: Mapping[str, Any],
    trials: int,
    out: Path,
    seed: int,
    show: bool | None,
    options: Mapping[str, Any],
) -> Tuned:
    """See `tacit.tune`."""
    search = Search(configs.read(config), dict(options), as_space(space), trials, out, seed)
    mode, console = _mode(show)
    for trial in search.run():
        if mode == "auto":
            accuracy = "failed" if trial.validation is None else f"validation {trial.validation:.1%}"
            progress.say(f"trial {trial.trial + 1}/{trials}  {accuracy}  {trial.values}", console)
    return Tuned(search)


def report(*folders: str | Path, out: str | Path) -> Path:
    """See `tacit.report`."""
    places = [Path(folder) for folder in folders]
    page.refuse_others(Path(out))
    loaded = {place: history.load_all(place) for place in places}
    again = [read_command(place) or page.commands(runs) for place, runs in loaded.items()]
    runs = history.disambiguate([each for some in loaded.values() for each in some])
    page.write(runs, Path(out), "\n".join(again))
    return Path(out)


def _finished(experiment: Experiment, show: bool | None, *, temporary: bool = False) -> Result:
    """Run the rounds that are left and wrap the result."""
    mode, console = _mode(show)
    progress.run(experiment, mode, console)
    found = experiment.result()
    result = Result(found.config, found.history, found.params, found.job, experiment.folder)
    if temporary:
        _remove_with(result, experiment.folder.parent)
    return result


@contextmanager
def _place(out: Path | None, name: str) -> Iterator[Path]:
    """The given folder, or one in a new temporary folder, which is removed at once if something fails."""
    if out is not None:
        yield out
        return
    scratch = Path(tempfile.mkdtemp(prefix="tacit-"))
    try:
        yield scratch / name
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise


def _remove_with(owner: object, folder: Path) -> None:
    """Remove a folder when its owner is no longer used, or the program ends."""
    weakref.finalize(owner, _remove, folder, os.getpid())


def _remove(folder: Path, process: int) -> None:
    """Remove a folder in the process that made it; worker processes inherit the owner too."""
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)


def _mode(show: bool | None) -> tuple[progress.Mode, Console]:
    """A bar in terminals and notebooks; elsewhere nothing, or lines if asked for. On stderr, since stdout is yours."""
    console = Console(stderr=True)
    wanted = (console.is_terminal or console.is_jupyter) if show is None else show
    return ("auto" if wanted else "quiet"), console


def _flat(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record as one row: nested numbers get names like `server/steps` and `clients/loss_supervised`."""
    row = {name: value for name, value in record.items() if name not in NESTED}
    row |= record.get("scores", {})
    row |= {f"server/{name}": value for name, value in record["server"].items()}
    return row | {f"clients/{name}": value["mean"] for name, value in record["metrics"].items()}


def _summary(run: Run) -> dict[str, Any]:
    costs = {"steps": run.steps, "bytes_up": run.bytes_up, "bytes_down": run.bytes_down, "seconds": run.seconds}
    row: dict[str, Any] = {"method": run.label, "seed": run.seed, "last5": run.last5, "best": run.best}
    return row | run.rounds[-1].scores | costs | {"rounds": len(run.rounds), "folder": str(run.folder)}


def _rows(found: Mapping[str, float]) -> str:
    known = {name: value for name, value in found.items() if value == value}  # noqa: PLR0124 - NaN differs from itself
    return (
        "<table>"
        + "".join(f"<tr><th>{escape(name)}</th><td>{value:.4f}</td></tr>" for name, value in known.items())
        + "</table>"
    )


def _frame(rows: Sequence[Mapping[str, Any]], index: str | None = None) -> "pandas.DataFrame":
    try:
        import pandas
    except ImportError:
        raise TacitError(
            "frames need the package pandas", "install it with pip install 'tacit[notebook]'", code="api.no-pandas"
        ) from None
    found = pandas.DataFrame(list(rows))
    return found if index is None else found.set_index(index)
