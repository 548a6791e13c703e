"""The results of cells: read from their runs, or stored in small files under `results/` next to the benchmarks."""

import json
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from importlib.metadata import version as installed
from os import cpu_count
from pathlib import Path
from statistics import fmean
from typing import Any

from tacit.bench import plan as plans
from tacit.bench import spec
from tacit.bench.plan import Cell
from tacit.bench.spec import Benchmark, is_installed
from tacit.errors import TacitError
from tacit.report.history import Run, load
from tacit.storage import replacing

Place = tuple[str, str]  # column and row
LOGGED = ("weight_diversity",)  # numbers of the server that claims of papers are about; stored where they are logged


@dataclass(frozen=True)
class CellResult:
    """The result of a cell with one seed; accuracies are between 0 and 1."""

    last5: float
    best: float
    rounds: int
    steps: int
    bytes_up: int
    bytes_down: int
    seconds: float
    curve: list[list[float]]  # [number of rounds, accuracy]
    logged: dict[str, float] = field(default_factory=dict)  # means over the rounds of the numbers in LOGGED

    def rounds_to(self, percent: float) -> int | None:
        """The first round after which an evaluation gave at least this accuracy; None if none did."""
        least = round(percent / 100, 6)
        return next((int(number) for number, accuracy in self.curve if accuracy >= least), None)

    @property
    def averaged(self) -> int:
        """How many evaluations `last5` is the mean of."""
        return len(self.curve[-5:])

    @classmethod
    def of(cls, run: Run) -> "CellResult":
        """The result of a run."""
        curve: list[list[float]] = [[round_, round(accuracy, 4)] for round_, accuracy in run.accuracy_curve]
        last5, best, seconds = round(run.last5, 6), round(run.best, 6), round(run.seconds, 1)
        known = {name: [record.server[name] for record in run.rounds if name in record.server] for name in LOGGED}
        logged = {name: round(fmean(values), 6) for name, values in known.items() if values}
        return cls(last5, best, len(run.rounds), run.steps, run.bytes_up, run.bytes_down, seconds, curve, logged)

    def stored(self) -> dict[str, Any]:
        """As in a file: without `logged` if nothing was."""
        return {name: value for name, value in asdict(self).items() if name != "logged" or value}


Seeds = Mapping[int, CellResult]


@dataclass(frozen=True)
class Results:
    """The finished runs of a table, and the result of each place, from its runs or as stored."""

    runs: Mapping[Place, list[Run]]
    measured: Mapping[Place, Seeds]

    def stored_note(self, shown: Sequence[Cell]) -> str:
        """A sentence on how many of the cells shown come from stored results; empty if all do, or none."""
        there = [cell.place for cell in shown if cell.place in self.measured]
        stored = [place for place in there if place not in self.runs]
        if not stored or not self.runs:
            return ""
        verb = "is a stored result" if len(stored) == 1 else "are stored results"
        return f"{len(stored)} of these {len(there)} cells {verb}, not run in this folder; the times are stored too"


def collect(benchmark: Benchmark, quick: bool, cells: Sequence[Cell], folder: Path | None = None) -> Results:
    """The runs under a folder, and stored results for cells without one; without a folder, stored results only."""
    runs = finished_runs(cells, folder) if folder else {}
    return Results(runs, from_stored(cells, read(path_of(benchmark, quick))) | _of(runs))


def by_name(name: str) -> tuple[Benchmark, bool, list[Cell], Results]:
    """A benchmark, whether it is the reduced scale (`-quick` at the end of the name), its cells and stored results."""
    quick = name.endswith("-quick") and name not in spec.names()
    benchmark = spec.find(name.removesuffix("-quick") if quick else name)
    cells = plans.cells(benchmark, quick)
    return benchmark, quick, cells, collect(benchmark, quick, cells)


def finished_runs(cells: Iterable[Cell], folder: Path) -> dict[Place, list[Run]]:
    """The finished runs under a folder, with all their seeds, named as in the table."""
    runs: dict[Place, list[Run]] = {}
    for cell in cells:
        folders = (folder / cell.column.name / cell.row.name).glob("seed-*")
        seeds = sorted(int(seed) for path in folders if (seed := path.name.removeprefix("seed-")).isdecimal())
        done = [run for run in plans.runs_of([cell], seeds, folder) if plans.is_finished(run)]
        if done:
            runs[cell.place] = [load(run.folder, cell.row.title, cell.column.title) for run in done]
    return runs


def from_runs(cells: Iterable[Cell], folder: Path) -> dict[Place, Seeds]:
    """The results of the finished runs under a folder."""
    return _of(finished_runs(cells, folder))


def _of(runs: Mapping[Place, Sequence[Run]]) -> dict[Place, Seeds]:
    return {place: {run.seed: CellResult.of(run) for run in those} for place, those in runs.items()}


def from_stored(cells: Iterable[Cell], stored: Mapping[str, Any]) -> dict[Place, Seeds]:
    """The stored results of these cells whose configs are still the same."""
    found: dict[Place, Seeds] = {}
    for cell in cells:
        column, row = cell.place
        old = stored.get("cells", {}).get(column, {}).get(row)
        if old is not None and _matches(old, cell):
            found[cell.place] = {int(seed): CellResult(**values) for seed, values in old["seeds"].items()}
    return found


def _matches(stored: Mapping[str, Any], cell: Cell) -> bool:
    """Whether a stored cell has the same config: the hash covers what was given, the settings cover the defaults.

    A setting added since then is ignored, because it could not have had another value.
    """
    known = {name: cell.settings[name] for name in stored["settings"] if name in cell.settings}
    return bool(stored["config_hash"] == cell.hash and stored["settings"] == known)


def path_of(benchmark: Benchmark, quick: bool) -> Path:
    """The file of a benchmark's stored results."""
    return benchmark.path.parent / "results" / f"{benchmark.name}{'-quick' if quick else ''}.json"


def read(path: Path) -> dict[str, Any]:
    """The stored results in a file, every cell with all its settings; empty if there is no file."""
    if not path.exists():
        return {}
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        needed = {item.name for item in fields(CellResult)} - {"logged"}
        for rows in stored["cells"].values():
            for cell in rows.values():
                _ = cell["config_hash"], cell["code"]
                cell["settings"] = stored.get("settings", {}) | cell.get("settings", {})
                if any(values.keys() - {"logged"} != needed for values in cell["seeds"].values()):
                    raise ValueError(f"a seed must have {', '.join(sorted(needed))}")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise TacitError(
            f"{path} does not hold stored results ({error!r})", "restore it, or remove it", code="bench.broken-results"
        ) from error
    return dict(stored)


def save(path: Path, values: Mapping[str, Any]) -> None:
    """Write stored results, where every cell in `values["cells"]` has all its settings, as `read` returns them.

    In the file, settings that all cells share appear once, under "settings".
    """
    about = {name: value for name, value in values.items() if name not in ("settings", "cells")}
    with replacing(path) as partial:
        partial.write_text("\n".join(_expanded(about | _factored(values["cells"]))) + "\n", encoding="utf-8")


def save_runs(
    benchmark: Benchmark, quick: bool, cells: Sequence[Cell], runs: Mapping[Place, Seeds], tacit: str
) -> Path:
    """Store the results of finished runs by this version of tacit, together with those stored before."""
    if not runs:
        raise TacitError(
            f"no cell of {benchmark.name} is finished", "run it with `tacit bench run`", code="bench.none-finished"
        )
    if is_installed(benchmark.path):
        raise TacitError(
            f"{benchmark.name} is part of the installed package, where results cannot be stored",
            f"copy {benchmark.path} to a folder of yours, then save that one",
            code="bench.installed",
        )
    path = path_of(benchmark, quick)
    about = {
        "benchmark": benchmark.name,
        "quick": quick,
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "tacit": tacit,
        "torch": installed("torch"),
        "python": platform.python_version(),
        "machine": {"processor": _processor(), "cores": cpu_count() or 1},
    }
    save(path, about | {"cells": _merged(read(path).get("cells", {}), cells, runs)})
    return path


def _merged(before: Mapping[str, Any], cells: Sequence[Cell], runs: Mapping[Place, Seeds]) -> dict[str, Any]:
    """All cells in the order of the table; seeds of the same config and code are combined."""
    merged: dict[str, Any] = {}
    for cell in cells:
        column, row = cell.place
        old = before.get(column, {}).get(row)
        new = {"config_hash": cell.hash, "code": cell.code}
        if cell.place in runs:
            same = old is not None and {name: old[name] for name in new} == new
            seeds = dict(old["seeds"]) if same else {}
            seeds |= {str(seed): values.stored() for seed, values in runs[cell.place].items()}
            ordered = dict(sorted(seeds.items(), key=lambda item: int(item[0])))
            merged.setdefault(column, {})[row] = {**new, "settings": cell.settings, "seeds": ordered}
        elif old is not None:
            merged.setdefault(column, {})[row] = old
    return merged


def _factored(cells: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The settings that all cells share, and the cells with the remaining ones."""
    first, *others = [cell["settings"] for rows in cells.values() for cell in rows.values()] or [{}]
    shared = dict(first)
    for other in others:
        shared = {name: value for name, value in shared.items() if name in other and other[name] == value}

    def without(cell: Mapping[str, Any]) -> dict[str, Any]:
        rest = {name: value for name, value in cell["settings"].items() if name not in shared}
        return {**cell, "settings": rest}

    remaining = {column: {row: without(cell) for row, cell in rows.items()} for column, rows in cells.items()}
    return {"settings": shared, "cells": remaining}


def _expanded(value: Any) -> list[str]:
    """JSON with a line for each seed, so that a change of one cell changes only a few lines."""
    if not isinstance(value, dict) or not any(isinstance(item, dict) for item in value.values()):
        return [json.dumps(value, ensure_ascii=False)]
    lines = []
    for name, item in value.items():
        first, *others = _expanded(item)
        lines += [f"{json.dumps(name)}: {first}", *others]
        lines[-1] += ","
    lines[-1] = lines[-1].removesuffix(",")
    return ["{", *(f" {line}" for line in lines), "}"]


def _processor() -> str:
    """The processor's name as its maker spells it, where the system provides it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8", errors="replace").splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
