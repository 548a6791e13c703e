"""The cells of a benchmark and their runs: config, folder, and whether a run still matches what the file describes."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from tacit.bench import identity
from tacit.bench.spec import Benchmark, Column, Row
from tacit.errors import TacitError, unknown
from tacit.report.history import labels_in_words
from tacit.runs import auto
from tacit.runs import config as configs
from tacit.runs.bounds import BOUNDS, plan, refuse_seed
from tacit.runs.config import Config
from tacit.runs.directory import RunDirectory, layout
from tacit.runs.directory.planned import Plan, PlannedRun
from tacit.runs.experiment import Experiment

NOTE = layout.CELL


@dataclass(frozen=True)
class Cell:
    """A place in the table, for any seed.

    If its runs decide by their data, `given` and `extra` hold what they must not change: settings of the file, and
    those that override it. `config` is then what they begin to decide from.
    """

    column: Column
    row: Row
    config: Config
    given: Mapping[str, Any] | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def hash(self) -> str:
        """The fingerprint of its config."""
        own = identity.fingerprint(self.config)
        return own if self.given is None else hashlib.sha256(f"auto {own}".encode()).hexdigest()[:16]

    @cached_property
    def settings(self) -> dict[str, Any]:
        """Every setting that its numbers depend on."""
        own = identity.settings(self.config)
        return own if self.given is None else own | {"auto": auto.VERSION}

    def decided(self, seed: int) -> Config:
        """The config of its run with a seed, which draws its own labels."""
        if self.given is None:
            return replace(self.config, seed=seed)
        return auto.decide({**self.extra, "seed": seed}, self.given).config

    @cached_property
    def code(self) -> int | str:
        """The version of the code that makes its numbers."""
        return identity.code(self.config)

    @property
    def labels(self) -> str:
        """The number of labels, in words."""
        return labels_in_words(asdict(self.config.data))

    @property
    def place(self) -> tuple[str, str]:
        """The names of its column and row."""
        return self.column.name, self.row.name


@dataclass(frozen=True)
class CellRun:
    """The run of a cell with one seed."""

    cell: Cell
    seed: int
    folder: Path

    @property
    def directory(self) -> RunDirectory:
        """The run's folder."""
        return RunDirectory(self.folder)

    @property
    def config(self) -> Config:
        """The run's config as the file has it; `Cell.decided` gives the one it starts with."""
        return replace(self.cell.config, seed=self.seed)

    @property
    def title(self) -> str:
        """The name shown while it runs."""
        return f"{self.cell.row.title}, {self.cell.column.title}, seed {self.seed}"

    @property
    def note(self) -> dict[str, Any]:
        """What is written to the run's folder to recognise it later."""
        return {"config_hash": self.cell.hash, "code": self.cell.code}


def cells(benchmark: Benchmark, quick: bool = False, extra: Mapping[str, Any] | None = None) -> list[Cell]:
    """Every cell of the table, column by column, including the missing bounds; each config is checked.

    `extra` holds settings by dotted name that override all others.
    """
    if quick and benchmark.quick is None:
        raise TacitError(
            f"{benchmark.name} has no section [quick]", "run it without --quick", code="bench.no-quick-section"
        )
    refuse_seed(extra or {})
    found = []
    for column in benchmark.columns.values():
        for row in benchmark.rows.values():
            if row.columns is None or column.name in row.columns:
                found.append(_cell(benchmark, column, row, quick, extra or {}))
    if all(cell.config.data.labels == "all" for cell in found):
        return found
    columns = benchmark.columns.values()
    return [cell for column in columns for cell in _with_bounds(benchmark, column, found, quick, extra or {})]


def _cell(benchmark: Benchmark, column: Column, row: Row, quick: bool, extra: Mapping[str, Any]) -> Cell:
    tree = benchmark.tree(column, row, quick)
    try:
        if row.auto:
            given = {name: value for name, value in tree.items() if name != "method"}
            config = configs.from_options({**extra, "method": auto.METHOD, "seed": 0}, given)
            return Cell(column, row, config, given, extra)
        if row.bound:
            config = plan(benchmark.tree(column, None, quick), extra, row.name, 0, in_rounds=benchmark.bounds_in_rounds)
        else:
            config = configs.from_options({**extra, "seed": 0}, tree)
    except TacitError as error:
        raise error.within(f"{benchmark.path}, row {row.name}, column {column.name}") from error
    return Cell(column, row, config)


def _with_bounds(
    benchmark: Benchmark, column: Column, found: Sequence[Cell], quick: bool, extra: Mapping[str, Any]
) -> list[Cell]:
    """The cells of a column, followed by each bound that none of them already is."""
    here = [cell for cell in found if cell.column == column]
    known = {cell.hash for cell in here}
    bounds = [name for name in benchmark.bounds if name not in benchmark.rows]
    added = [_cell(benchmark, column, Row(name, BOUNDS[name], bound=True), quick, extra) for name in bounds]
    return here + [cell for cell in added if cell.hash not in known]


def select(found: Sequence[Cell], rows: Iterable[str], columns: Iterable[str]) -> list[Cell]:
    """The cells of these rows and columns; an empty list of names selects all."""
    wanted = {"row": set(rows), "column": set(columns)}
    for kind, names in wanted.items():
        known = {getattr(cell, kind).name for cell in found}
        for name in sorted(names - known):
            raise unknown(kind, name, known)
    return [
        cell for cell in found if all(not names or getattr(cell, kind).name in names for kind, names in wanted.items())
    ]


def run_folder(out: Path, benchmark: Benchmark, quick: bool) -> Path:
    """The folder of a benchmark's runs."""
    return out / (benchmark.name + ("-quick" if quick else ""))


def runs_of(found: Iterable[Cell], seeds: Sequence[int], folder: Path) -> list[CellRun]:
    """A run for every cell and seed, all seeds of a cell in succession."""
    return [
        CellRun(cell, seed, folder / cell.column.name / cell.row.name / f"seed-{seed}")
        for cell in found
        for seed in seeds
    ]


def announced(benchmark: Benchmark, quick: bool, runs: Sequence[CellRun], folder: Path) -> Plan:
    """What `tacit watch` shows of a benchmark before its runs exist."""
    planned = (
        PlannedRun(str(run.folder.relative_to(folder)), run.cell.row.title, run.seed, run.config.rounds, column)
        for run in runs
        for column in [run.cell.column.title]
    )
    return Plan("benchmark", benchmark.title + (" (quick)" if quick else ""), tuple(planned))


def begin(run: CellRun) -> Experiment:
    """Start a run, or continue it, whichever engine ran it before."""
    if run.directory.exists():
        experiment = Experiment.reopen(run.folder, run.config.engine, run.config.track)
    else:
        experiment = Experiment.create(run.cell.decided(run.seed), run.folder)
    run.directory.write_note(NOTE, run.note)
    return experiment


def is_current(run: CellRun) -> bool:
    """Whether the folder is free, or holds a run of the cell's config by the present code."""
    if not run.directory.exists():
        return True
    note = run.directory.read_note(NOTE)
    if note is None and not rounds_done(run):  # killed between writing its first two files
        return _hash_of(run.directory.config_file) == run.cell.hash
    return note == run.note


def _hash_of(path: Path) -> str | None:
    """The fingerprint of the config in a file; None if the present code does not accept it."""
    try:
        return identity.fingerprint(configs.make(configs.read(path)))
    except TacitError:
        return None


def rounds_done(run: CellRun) -> int:
    """How many of its rounds the last checkpoint holds."""
    return run.directory.finished_rounds()


def is_finished(run: CellRun) -> bool:
    """Whether all its rounds are done, with the present config and code."""
    return run.directory.exists() and is_current(run) and run.directory.is_finished()


def move_aside(run: CellRun) -> Path:
    """Rename the folder of an old run to make room for a new one; the new name."""
    note = run.directory.read_note(NOTE) or {}
    old = hashlib.sha256(json.dumps(note, sort_keys=True).encode()).hexdigest()[:8] if note else "unknown"
    target, number = run.folder.with_name(f"{run.folder.name}.old-{old}"), 2
    while target.exists():
        target, number = run.folder.with_name(f"{run.folder.name}.old-{old}-{number}"), number + 1
    with run.directory.lock():
        run.folder.rename(target)
    return target
