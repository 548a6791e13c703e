"""The cells of a benchmark: their configs, where their runs are, and whether those are still what the file asks for."""

import hashlib
import inspect
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from tacit import config as configs
from tacit import nets
from tacit.bench.files import Benchmark, Column, Row
from tacit.compare import BOUNDS, plan, refuse_seed
from tacit.config import Config
from tacit.engines import checkpoint
from tacit.errors import TacitError, unknown
from tacit.experiment import Experiment
from tacit.folders import locked
from tacit.report.files import replacing
from tacit.report.read import labels_in_words

PACKAGE = Path(__file__).parents[1]
# What methods share and what changes numbers; the engines do not, which their own tests hold.
SHARED = ("averaging", "data", "federation", "learn", "losses", "method", "nets", "objectives", "params", "random")
NAMES_ONLY = "papers.py"  # the splits of the papers: whatever they stand for is in the config
NOTE = "cell.json"


@dataclass(frozen=True)
class Spot:
    """A place in the table, whatever the seed."""

    column: Column
    row: Row
    config: Config

    @cached_property
    def hash(self) -> str:
        """The fingerprint of its config."""
        return fingerprint(self.config)

    @cached_property
    def settings(self) -> dict[str, Any]:
        """Every setting its numbers depend on."""
        return settings(self.config)

    @cached_property
    def version(self) -> str:
        """The fingerprint of the code that makes its numbers."""
        return version(self.config)

    @property
    def labels(self) -> str:
        """How many labels there are, in words."""
        return labels_in_words(asdict(self.config.data))

    @property
    def place(self) -> tuple[str, str]:
        """Column and row by name."""
        return self.column.name, self.row.name


@dataclass(frozen=True)
class Cell:
    """One run of the table."""

    spot: Spot
    seed: int
    folder: Path

    @property
    def config(self) -> Config:
        """The config of its run."""
        return replace(self.spot.config, seed=self.seed)

    @property
    def title(self) -> str:
        """What it is called while it runs."""
        return f"{self.spot.row.title}, {self.spot.column.title}, seed {self.seed}"

    @property
    def note(self) -> dict[str, str]:
        """What is written beside its run, to know it again."""
        return {"config_hash": self.spot.hash, "method_version": self.spot.version}


def fingerprint(config: Config) -> str:
    """A hash of every setting that is not at its default, but seed, engine and trackers: equal configs, equal hashes.

    Defaults are left out so that results that are kept survive a new setting; a default that changes is noticed by
    `version` in a run, and by its `settings` in what is kept.
    """
    told = {name: _told(part) for name, part in _parts(config).items()}
    told["data"].pop("split", None)
    return hashlib.sha256(json.dumps(told, sort_keys=True, default=str).encode()).hexdigest()[:16]


def settings(config: Config) -> dict[str, Any]:
    """The same settings with all their values, given or default, by dotted names and as JSON has them."""
    found: dict[str, Any] = {}
    for name, part in _parts(config).items():
        found |= _flat(name, part)
    del found["data.split"]
    return dict(json.loads(json.dumps(found, default=str)))


def _parts(config: Config) -> dict[str, Any]:
    """What numbers depend on. The name of a split is for who calls to leave out: it stands for settings there are."""
    names = ("data", "net", "train", "server_train", "faults", "log", "rounds", "cohort")
    return {name: getattr(config, name) for name in names} | {"method": config.build_method()}


def _flat(name: str, value: Any) -> dict[str, Any]:
    """The fields of a dataclass by dotted names, also those that are not given: that is a default too."""
    if not is_dataclass(value):
        return {name: value}
    found: dict[str, Any] = {}
    for item in fields(value):
        found |= _flat(f"{name}.{item.name}", getattr(value, item.name))
    return found


def _told(thing: Any) -> Any:
    """A dataclass by its kind and the fields that are not at their defaults."""
    if not is_dataclass(thing):
        return thing
    values = {item.name: (getattr(thing, item.name), item.default) for item in fields(thing)}
    told = {name: _told(value) for name, (value, default) in values.items() if value != default}
    return {"kind": f"{type(thing).__module__}:{type(thing).__qualname__}"} | told


def version(config: Config) -> str:
    """A hash of the code that makes the numbers: the method's and objective's own files, and what all methods share.

    A user's own network counts too. Comments count: who is to say that a change is one.
    """
    method = config.build_method()
    own = {_source(type(part)) for part in (method, getattr(method, "objective", None)) if part is not None}
    if ":" in config.net.name:
        own.add(_source(nets.find(config.net.name)))
    digest = hashlib.sha256(_shared().encode())
    for path in sorted(path for path in own if path is not None):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


@cache
def _shared() -> str:
    defaults = {name: value for name, value in asdict(Config()).items() if name not in ("engine", "track")}
    digest = hashlib.sha256(repr(defaults).encode())
    for name in SHARED:
        for path in [PACKAGE / f"{name}.py", *sorted((PACKAGE / name).glob("*.py"))]:
            if path.is_file() and path.name != NAMES_ONLY:
                digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


def _source(thing: Any) -> Path | None:
    """The file something is defined in; a class of a notebook has none."""
    try:
        path = inspect.getsourcefile(thing)
    except TypeError:
        return None
    return Path(path) if path and Path(path).is_file() else None


def spots(benchmark: Benchmark, quick: bool = False, extra: Mapping[str, Any] | None = None) -> list[Spot]:
    """Every place of the table, column by column, with the bounds it lacks; each config is checked.

    `extra` are settings by dotted names that win over all others.
    """
    if quick and benchmark.quick is None:
        raise TacitError(f"{benchmark.name} has no section [quick]: run it without --quick")
    refuse_seed(extra or {})
    found = []
    for column in benchmark.columns.values():
        for row in benchmark.rows.values():
            if row.columns is None or column.name in row.columns:
                found.append(_spot(benchmark, column, row, quick, extra or {}))
    if all(spot.config.data.labels == "all" for spot in found):
        return found
    columns = benchmark.columns.values()
    return [spot for column in columns for spot in _with_bounds(benchmark, column, found, quick, extra or {})]


def _spot(benchmark: Benchmark, column: Column, row: Row, quick: bool, extra: Mapping[str, Any]) -> Spot:
    try:
        if row.bound:
            config = plan(benchmark.tree(column, None, quick), extra, row.name, 0)
        else:
            config = configs.from_options({**extra, "seed": 0}, benchmark.tree(column, row, quick))
    except TacitError as error:
        raise TacitError(f"{benchmark.path}, row {row.name}, column {column.name}: {error}") from error
    return Spot(column, row, config)


def _with_bounds(
    benchmark: Benchmark, column: Column, found: Sequence[Spot], quick: bool, extra: Mapping[str, Any]
) -> list[Spot]:
    """The places of a column and, below them, each bound that is not one of them already."""
    here = [spot for spot in found if spot.column == column]
    known = {spot.hash for spot in here}
    bounds = [name for name in benchmark.bounds if name not in benchmark.rows]
    added = [_spot(benchmark, column, Row(name, BOUNDS[name], bound=True), quick, extra) for name in bounds]
    return here + [spot for spot in added if spot.hash not in known]


def chosen(found: Sequence[Spot], rows: Iterable[str], columns: Iterable[str]) -> list[Spot]:
    """Some of the rows and columns; all where none is named."""
    wanted = {"row": set(rows), "column": set(columns)}
    for kind, names in wanted.items():
        known = {getattr(spot, kind).name for spot in found}
        for name in sorted(names - known):
            raise unknown(kind, name, known)
    return [
        spot for spot in found if all(not names or getattr(spot, kind).name in names for kind, names in wanted.items())
    ]


def home(out: Path, benchmark: Benchmark, quick: bool) -> Path:
    """Where the runs of a benchmark are."""
    return out / (benchmark.name + ("-quick" if quick else ""))


def cells(found: Iterable[Spot], seeds: Sequence[int], folder: Path) -> list[Cell]:
    """A cell for every place and seed, all seeds of a place one after another."""
    return [
        Cell(spot, seed, folder / spot.column.name / spot.row.name / f"seed-{seed}") for spot in found for seed in seeds
    ]


def begin(cell: Cell) -> Experiment:
    """The run of a cell, new or gone on with; whoever played it before, on whatever engine."""
    if (cell.folder / "config.toml").exists():
        experiment = Experiment.reopen(cell.folder, cell.config.engine, cell.config.track)
    else:
        experiment = Experiment.create(cell.config, cell.folder)
    with replacing(cell.folder / NOTE) as partial:
        partial.write_text(json.dumps(cell.note) + "\n", encoding="utf-8")
    return experiment


def current(cell: Cell) -> bool:
    """Whether the run in the cell's folder, if there is one, is what the cell asks for, made by the code of today."""
    if not (cell.folder / "config.toml").exists():
        return True
    note = _note(cell.folder)
    if note is None and not rounds_done(cell):  # killed between its first two files
        return _hash_of(cell.folder / "config.toml") == cell.spot.hash
    return note == cell.note


def _hash_of(path: Path) -> str | None:
    """The fingerprint of the config in a file; None where the code of today can not make one of it."""
    try:
        return fingerprint(configs.make(configs.read(path)))
    except TacitError:
        return None


def rounds_done(cell: Cell) -> int:
    """How many rounds of it are safe."""
    return checkpoint.finished_rounds(cell.folder / "checkpoint")


def finished(cell: Cell) -> bool:
    """Whether nothing is left to do."""
    return (cell.folder / "config.toml").exists() and current(cell) and rounds_done(cell) >= cell.config.rounds


def move_aside(cell: Cell) -> Path:
    """Give way to a new run: the old one is under another name from now on."""
    note = _note(cell.folder) or {}
    old = hashlib.sha256(json.dumps(note, sort_keys=True).encode()).hexdigest()[:8] if note else "unknown"
    target, number = cell.folder.with_name(f"{cell.folder.name}.old-{old}"), 2
    while target.exists():
        target, number = cell.folder.with_name(f"{cell.folder.name}.old-{old}-{number}"), number + 1
    with locked(cell.folder):
        cell.folder.rename(target)
    return target


def _note(folder: Path) -> dict[str, str] | None:
    try:
        note = json.loads((folder / NOTE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return note if isinstance(note, dict) else None
