"""A benchmark as a TOML file: common settings, columns, rows, the paper's numbers and what is doubtful about them.

docs/benchmarks.md has the format. Settings are laid over each other in this order, and the later ones win:
[settings], the column's, the row's, [quick] where that is asked for.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from tacit import config as configs
from tacit.catalog import check
from tacit.compare import BOUNDS
from tacit.data.papers import AMOUNTS
from tacit.errors import TacitError, unknown

Tree = dict[str, Any]
Percent = Annotated[float, Field(ge=0, le=100)]
Seed = Annotated[int, Field(ge=0)]
Name = Annotated[
    str, Field(pattern=r"^[a-z0-9][a-z0-9.+-]*$", description="small letters, digits, '.', '+' and '-' only")
]  # of a folder too

HERE = Path(__file__).resolve()


@dataclass(frozen=True)
class Column:
    """A setting in which all rows are compared."""

    name: str
    title: str = ""  # its name when not given
    settings: Tree = field(default_factory=dict)


@dataclass(frozen=True)
class Row:
    """A method with its settings, or a bound that the tool adds."""

    name: str
    title: str = ""  # its name when not given
    settings: Tree = field(default_factory=dict)
    columns: list[str] | None = None  # where it makes sense; everywhere when not given
    bound: bool = False


@dataclass(frozen=True)
class Doubt:
    """Why published numbers are unreliable, and which."""

    why: str
    rows: list[str] | None = None  # all when not given
    columns: list[str] | None = None

    def concerns(self, row: str, column: str) -> bool:
        """Whether it is about this number."""
        return (self.rows is None or row in self.rows) and (self.columns is None or column in self.columns)


@dataclass(frozen=True)
class Sections:
    """What stands in a file, each part by itself as it should be."""

    title: str
    settings: Tree
    columns: dict[Name, Tree]
    rows: dict[Name, Tree]
    paper: str = ""
    about: str = ""
    seeds: Annotated[list[Seed], Field(min_length=1)] = field(default_factory=lambda: [0])
    quick: Tree | None = None
    published: dict[str, dict[str, Percent]] = field(default_factory=dict)
    doubts: list[Tree] = field(default_factory=list)
    bounds: list[str] = field(default_factory=lambda: ["labels-only"])


@dataclass(frozen=True)
class Benchmark:
    """A table of a paper: what to run for each of its cells, and what the paper says came out."""

    path: Path
    title: str
    paper: str  # who printed the numbers
    about: str  # what is as in the paper, what is not
    seeds: list[int]
    settings: Tree
    quick: Tree | None  # a smaller scale, if there is one
    columns: dict[str, Column]
    rows: dict[str, Row]
    published: dict[str, dict[str, float]]  # in percent, by row, then column
    doubts: list[Doubt]
    bounds: list[str]

    @property
    def name(self) -> str:
        """What people call it; `-` in place of `_`."""
        return self.path.stem.replace("_", "-")

    @property
    def size(self) -> int:
        """How many cells the file describes; bounds are added to these."""
        rows, columns = self.rows.values(), self.columns
        return sum(row.columns is None or column in row.columns for row in rows for column in columns)

    def tree(self, column: Column, row: Row | None, quick: bool) -> Tree:
        """The settings of a cell, or those that all cells of a column have in common."""
        return merged(self.settings, column.settings, row.settings if row else {}, (self.quick or {}) if quick else {})


def merged(*layers: Mapping[str, Any]) -> Tree:
    """Settings over settings: sections are merged, anything else is replaced.

    The ways to give an amount of labels exclude each other, so one that is given takes the place of those below.
    """
    tree: Tree = {}
    for layer in layers:
        data = layer.get("data")
        if isinstance(data, Mapping) and AMOUNTS & data.keys() and isinstance(tree.get("data"), Mapping):
            tree["data"] = {name: value for name, value in tree["data"].items() if name not in AMOUNTS}
        tree = _over(tree, layer)
    return tree


def _over(below: Mapping[str, Any], above: Mapping[str, Any]) -> Tree:
    tree = dict(below)
    for name, value in above.items():
        both = isinstance(value, Mapping) and isinstance(tree.get(name), Mapping)
        tree[name] = _over(tree[name], value) if both else value
    return tree


def read(path: Path) -> Benchmark:
    """The benchmark in a file; whatever is wrong with it is one sentence that begins with its path."""
    tree = configs.read(path)
    with _in_file(path):
        missing = [item.name for item in fields(Sections) if _required(item) and item.name not in tree]
        if missing:
            raise TacitError(f"{missing[0]} is missing: a benchmark has title, [settings], [columns.…] and [rows.…]")
        parts = Sections(**check(Sections, tree, "benchmark"))
        columns = {name: Column(**_entry(Column, name, value, "columns")) for name, value in parts.columns.items()}
        rows = {name: Row(**_entry(Row, name, value, "rows")) for name, value in parts.rows.items()}
        doubts = [Doubt(**_doubt(value)) for value in parts.doubts]
        if not columns or not rows:
            raise TacitError("there is nothing to run: give at least one [columns.…] and one [rows.…]")
        given = {item.name: getattr(parts, item.name) for item in fields(parts)}
        given |= {"columns": columns, "rows": rows, "doubts": doubts, "bounds": list(dict.fromkeys(parts.bounds))}
        benchmark = Benchmark(path, **given)
        _refuse_strangers(benchmark)
    return benchmark


@contextmanager
def _in_file(path: Path) -> Iterator[None]:
    try:
        yield
    except TacitError as error:
        raise TacitError(f"{path}: {error}") from error


def _required(item: Any) -> bool:
    return item.default is MISSING and item.default_factory is MISSING


def _entry(kind: type, name: str, value: Mapping[str, Any], section: str) -> Tree:
    """The fields of a column or a row."""
    return {"name": name, "title": name} | check(kind, value, f"{section}.{name}", hidden=["name", "bound"])


def _doubt(value: Mapping[str, Any]) -> Tree:
    if "why" not in value:
        raise TacitError('a doubt has no reason: add why = "…" to [[doubts]]')
    return check(Doubt, value, "doubts")


def _refuse_strangers(benchmark: Benchmark) -> None:
    """Rows, columns and bounds that are spoken of and not there."""
    named: list[tuple[str, str, str]] = []
    for row in benchmark.rows.values():
        named += [("column", column, f"rows.{row.name}.columns") for column in row.columns or []]
    for name, numbers in benchmark.published.items():
        named += [("row", name, "published"), *(("column", column, f"published.{name}") for column in numbers)]
    for doubt in benchmark.doubts:
        named += [("row", row, "doubts") for row in doubt.rows or []]
        named += [("column", column, "doubts") for column in doubt.columns or []]
    for kind, name, place in named:
        known = benchmark.rows if kind == "row" else benchmark.columns
        if name not in known:
            raise unknown(f"{kind} in {place}", name, known)
    for name in benchmark.bounds:
        if name not in BOUNDS:
            raise unknown("bound", name, BOUNDS)


def folder() -> Path:
    """Where the benchmarks of the package are: in a checkout at its top, else beside the code."""
    root = HERE.parents[3]
    checkout = (root / "pyproject.toml").is_file() and (root / "benchmarks").is_dir()
    return root / "benchmarks" if checkout else _installed()


def is_installed(path: Path) -> bool:
    """Whether a file lies among the code of an installed package, where nobody should write."""
    return path.resolve().is_relative_to(_installed())


def _installed() -> Path:
    return HERE.parents[1] / "_benchmarks"


def names() -> dict[str, Path]:
    """Every benchmark of the package by its name."""
    return {path.stem.replace("_", "-"): path for path in sorted(folder().glob("*.toml"))}


def find(name: str) -> Benchmark:
    """A benchmark of the package by its name, or one's own by its path."""
    if name.endswith(".toml"):
        return read(Path(name))
    known = names()
    if name not in known and name.removesuffix("-quick") in known:
        raise TacitError(f"'{name}' is a reduced scale: write {name.removesuffix('-quick')} --quick")
    if name not in known and (begun := [other for other in known if other.startswith(f"{name}-")]):
        raise TacitError(f"there are several benchmarks '{name}': choose one of {', '.join(begun)}")
    if name.replace("_", "-") not in known:
        raise unknown("benchmark", name, known, "choose one of `tacit bench ls`, or give the path of a TOML file")
    return read(known[name.replace("_", "-")])
