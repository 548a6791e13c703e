"""What cells came to, from their runs or from the small files that are kept under `results/` beside the benchmarks."""

import json
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from importlib.metadata import version as installed
from os import cpu_count
from pathlib import Path
from typing import Any

from tacit.bench import cells as plans
from tacit.bench.cells import Spot
from tacit.bench.files import Benchmark, is_installed
from tacit.errors import TacitError
from tacit.report.files import replacing
from tacit.report.read import Run, load

Place = tuple[str, str]  # column and row


@dataclass(frozen=True)
class Measured:
    """What one seed of a cell came to; accuracies between 0 and 1."""

    last5: float
    best: float
    rounds: int
    steps: int
    bytes_up: int
    bytes_down: int
    seconds: float
    curve: list[list[float]]  # [rounds played, accuracy]

    def rounds_to(self, percent: float) -> int | None:
        """The first round after which an evaluation found at least this accuracy; None where none did."""
        least = round(percent / 100, 6)
        return next((int(played) for played, accuracy in self.curve if accuracy >= least), None)

    @property
    def averaged(self) -> int:
        """How many evaluations `last5` is the mean of."""
        return len(self.curve[-5:])

    @classmethod
    def of(cls, run: Run) -> "Measured":
        """The numbers of a run."""
        curve: list[list[float]] = [[round_, round(accuracy, 4)] for round_, accuracy in run.accuracy_curve]
        last5, best, seconds = round(run.last5, 6), round(run.best, 6), round(run.seconds, 1)
        return cls(last5, best, len(run.rounds), run.steps, run.bytes_up, run.bytes_down, seconds, curve)


Seeds = Mapping[int, Measured]


@dataclass(frozen=True)
class Results:
    """What there is of a table: finished runs, and what each place came to, by its runs or as it was kept."""

    runs: Mapping[Place, list[Run]]
    measured: Mapping[Place, Seeds]

    def kept(self, shown: Sequence[Spot]) -> str:
        """A sentence on those of the cells shown that were not run here; nothing where all were, or none."""
        there = [spot.place for spot in shown if spot.place in self.measured]
        others = [place for place in there if place not in self.runs]
        if not others or not self.runs:
            return ""
        verb = "is a kept result" if len(others) == 1 else "are kept results"
        return f"{len(others)} of these {len(there)} cells {verb}, not run in this folder, and so is their time"


def results(benchmark: Benchmark, quick: bool, found: Sequence[Spot], folder: Path | None = None) -> Results:
    """The runs under a folder, and what is kept of places without one; only that where no folder is given."""
    runs = finished_runs(found, folder) if folder else {}
    return Results(runs, of_kept(found, read(path_of(benchmark, quick))) | measured(runs))


def finished_runs(found: Iterable[Spot], folder: Path) -> dict[Place, list[Run]]:
    """The finished runs under a folder, every seed there is, named as in the table."""
    runs: dict[Place, list[Run]] = {}
    for spot in found:
        places = (folder / spot.column.name / spot.row.name).glob("seed-*")
        seeds = sorted(int(seed) for place in places if (seed := place.name.removeprefix("seed-")).isdecimal())
        done = [cell for cell in plans.cells([spot], seeds, folder) if plans.finished(cell)]
        if done:
            runs[spot.place] = [load(cell.folder, spot.row.title, spot.column.title) for cell in done]
    return runs


def measured(runs: Mapping[Place, Sequence[Run]]) -> dict[Place, Seeds]:
    """What these runs came to."""
    return {place: {run.seed: Measured.of(run) for run in those} for place, those in runs.items()}


def of_runs(found: Iterable[Spot], folder: Path) -> dict[Place, Seeds]:
    """What the finished runs under a folder came to."""
    return measured(finished_runs(found, folder))


def of_kept(found: Iterable[Spot], kept: Mapping[str, Any]) -> dict[Place, Seeds]:
    """What is kept of these places, as far as their configs are still the same."""
    came: dict[Place, Seeds] = {}
    for spot in found:
        column, row = spot.place
        cell = kept.get("cells", {}).get(column, {}).get(row)
        if cell is not None and _holds(cell, spot):
            came[spot.place] = {int(seed): Measured(**values) for seed, values in cell["seeds"].items()}
    return came


def _holds(cell: Mapping[str, Any], spot: Spot) -> bool:
    """Whether a kept cell is of the config that is asked for: what was given is in the hash, defaults are settings.

    A setting that is new since then does not count: nobody could have given another value.
    """
    known = {name: spot.settings[name] for name in cell["settings"] if name in spot.settings}
    return bool(cell["config_hash"] == spot.hash and cell["settings"] == known)


def path_of(benchmark: Benchmark, quick: bool) -> Path:
    """Where the results of a benchmark are kept."""
    return benchmark.path.parent / "results" / f"{benchmark.name}{'-quick' if quick else ''}.json"


def read(path: Path) -> dict[str, Any]:
    """The file of kept results, every cell with all its settings; empty where there is none."""
    if not path.exists():
        return {}
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        known = {item.name for item in fields(Measured)}
        for rows in kept["cells"].values():
            for cell in rows.values():
                _ = cell["config_hash"], cell["method_version"]
                cell["settings"] = kept.get("settings", {}) | cell.get("settings", {})
                if any(values.keys() != known for values in cell["seeds"].values()):
                    raise ValueError(f"a seed must have {', '.join(sorted(known))}")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise TacitError(f"{path} does not hold kept results ({error!r}): restore it, or remove it") from error
    return dict(kept)


def write(benchmark: Benchmark, quick: bool, found: Sequence[Spot], runs: Mapping[Place, Seeds], tacit: str) -> Path:
    """Keep what finished runs came to by this version of tacit, beside what was kept of other cells before."""
    if not runs:
        raise TacitError(f"no cell of {benchmark.name} is finished: run it first with `tacit bench run`, then keep it")
    if is_installed(benchmark.path):
        remedy = f"copy {benchmark.path} to a folder of your own, then keep that"
        raise TacitError(f"{benchmark.name} is part of the installed package, which is no place for results: {remedy}")
    path = path_of(benchmark, quick)
    cells = _merged(read(path).get("cells", {}), found, runs)
    kept = {
        "benchmark": benchmark.name,
        "quick": quick,
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "tacit": tacit,
        "torch": installed("torch"),
        "python": platform.python_version(),
        "machine": {"processor": _processor(), "cores": cpu_count() or 1},
        **_apart(cells),
    }
    with replacing(path) as partial:
        partial.write_text("\n".join(_expanded(kept)) + "\n", encoding="utf-8")
    return path


def _merged(before: Mapping[str, Any], found: Sequence[Spot], runs: Mapping[Place, Seeds]) -> dict[str, Any]:
    """All cells in the order of the table; of the same config and code, seeds are added to those there are."""
    cells: dict[str, Any] = {}
    for spot in found:
        column, row = spot.place
        old = before.get(column, {}).get(row)
        cell = {"config_hash": spot.hash, "method_version": spot.version}
        if spot.place in runs:
            same = old is not None and {name: old[name] for name in cell} == cell
            seeds = dict(old["seeds"]) if same else {}
            seeds |= {str(seed): asdict(values) for seed, values in runs[spot.place].items()}
            ordered = dict(sorted(seeds.items(), key=lambda s: int(s[0])))
            cells.setdefault(column, {})[row] = {**cell, "settings": spot.settings, "seeds": ordered}
        elif old is not None:
            cells.setdefault(column, {})[row] = old
    return cells


def _apart(cells: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The settings that are the same in all cells, once, and the cells with the others."""
    first, *others = [cell["settings"] for rows in cells.values() for cell in rows.values()]
    shared = dict(first)
    for other in others:
        shared = {name: value for name, value in shared.items() if name in other and other[name] == value}

    def without(cell: Mapping[str, Any]) -> dict[str, Any]:
        own = {name: value for name, value in cell["settings"].items() if name not in shared}
        return {**cell, "settings": own}

    apart = {column: {row: without(cell) for row, cell in rows.items()} for column, rows in cells.items()}
    return {"settings": shared, "cells": apart}


def _expanded(value: Any) -> list[str]:
    """JSON with a line for each seed, so that a change of one cell is a change of a few lines."""
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
    """The processor's name as its maker spells it, where the system tells."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8", errors="replace").splitlines() if info.exists() else []
    told = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return told[0] if told else platform.processor() or platform.machine()
