"""The objects that `tacit.run`, `tacit.compare` and `tacit.tune` return."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from tacit.api.frames import frame_of, row_of_round, row_of_run
from tacit.errors import TacitError, unknown
from tacit.inference.export import FORMATS
from tacit.inference.export import export as write_export
from tacit.inference.labeled import evaluate as evaluate_on
from tacit.inference.model import Model
from tacit.metrics.evaluation import Evaluation, evaluate
from tacit.metrics.scores import scores
from tacit.report import charts, gains, history, page, plots, tables
from tacit.report.history import Run
from tacit.runs.directory.folders import read_command
from tacit.runs.result import finished, saved_model
from tacit.runs.tune import Search, Trial, best_of

if TYPE_CHECKING:
    import pandas

CHECKED = 64  # test samples that an exported file is compared on


@dataclass(frozen=True, repr=False, eq=False)
class Result(finished.Result):
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
        return frame_of([row_of_round(record) for record in self.history], "round")

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
        federation = self.job.federation
        samples = federation.test if len(federation.test) else federation.pool
        write_export(self.model, place, form, samples.x[:CHECKED])
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
        return write_report(self.folder, out=out)

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
        return frame_of([row_of_run(run) for run in self.runs])

    def report(self, out: str | Path = "report.html") -> Path:
        """Write one HTML page about all runs."""
        return write_report(self.folder, out=out)


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
        return frame_of(rows, "trial")


def write_report(*folders: str | Path, out: str | Path) -> Path:
    """See `tacit.report`."""
    places = [Path(folder) for folder in folders]
    page.refuse_others(Path(out))
    loaded = {place: history.load_all(place) for place in places}
    again = [read_command(place) or page.commands(runs) for place, runs in loaded.items()]
    runs = history.disambiguate([each for some in loaded.values() for each in some])
    page.write(runs, Path(out), "\n".join(again))
    return Path(out)


def _rows(found: Mapping[str, float]) -> str:
    known = {name: value for name, value in found.items() if value == value}  # noqa: PLR0124 - NaN differs from itself
    return (
        "<table>"
        + "".join(f"<tr><th>{escape(name)}</th><td>{value:.4f}</td></tr>" for name, value in known.items())
        + "</table>"
    )
