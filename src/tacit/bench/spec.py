"""A benchmark as a TOML file: common settings, columns, rows, the paper's numbers and the caveats about them.

docs/benchmarks.md describes the format. Settings are merged in this order, and later ones win: [settings], the
column's, the row's, then [quick] with --quick.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from tacit.data.split.papers import AMOUNTS
from tacit.errors import TacitError, notice_renamed, unknown
from tacit.runs import config as configs
from tacit.runs.auto import AUTO
from tacit.runs.bounds import BOUNDS
from tacit.runs.settings import check

Tree = dict[str, Any]
Percent = Annotated[float, Field(ge=0, le=100)]
Seed = Annotated[int, Field(ge=0)]
Name = Annotated[
    str, Field(pattern=r"^[a-z0-9][a-z0-9.+-]*$", description="small letters, digits, '.', '+' and '-' only")
]  # also the name of a folder

HERE = Path(__file__).resolve()
CLAIMS = "claims.toml"  # next to the benchmarks, and none of them: see `tacit.bench.claims`


@dataclass(frozen=True)
class Column:
    """A setting in which all rows are compared."""

    name: str
    title: str = ""  # default: its name
    settings: Tree = field(default_factory=dict)


@dataclass(frozen=True)
class Row:
    """A method with its settings, or a bound that the tool adds."""

    name: str
    title: str = ""  # default: its name
    settings: Tree = field(default_factory=dict)
    columns: list[str] | None = None  # the columns it appears in; default: all
    bound: bool = False

    @property
    def auto(self) -> bool:
        """Whether each of its runs decides by its data."""
        method = self.settings.get("method")
        return isinstance(method, Mapping) and method.get("name") == AUTO


@dataclass(frozen=True)
class Caveat:
    """Why some published numbers are unreliable, and which ones."""

    why: str
    rows: list[str] | None = None  # default: all
    columns: list[str] | None = None  # default: all

    def concerns(self, row: str, column: str) -> bool:
        """Whether it applies to this number."""
        return (self.rows is None or row in self.rows) and (self.columns is None or column in self.columns)


@dataclass(frozen=True)
class Sections:
    """The top level of a benchmark file; each section is checked on its own."""

    title: str
    settings: Tree
    columns: dict[Name, Tree]
    rows: dict[Name, Tree]
    paper: str = ""
    about: str = ""
    seeds: Annotated[list[Seed], Field(min_length=1)] = field(default_factory=lambda: [0])
    quick: Tree | None = None
    published: dict[str, dict[str, Percent]] = field(default_factory=dict)
    caveats: list[Tree] = field(default_factory=list)
    bounds: list[str] = field(default_factory=lambda: ["labels-only"])
    bounds_in_rounds: bool = False


@dataclass(frozen=True)
class Benchmark:
    """A table of a paper: what to run for each cell, and the number the paper reports."""

    path: Path
    title: str
    paper: str  # the source of the numbers
    about: str  # what is as in the paper, and what is not
    seeds: list[int]
    settings: Tree
    quick: Tree | None  # a smaller scale, if there is one
    columns: dict[str, Column]
    rows: dict[str, Row]
    published: dict[str, dict[str, float]]  # in percent, by row, then column
    caveats: list[Caveat]
    bounds: list[str]
    bounds_in_rounds: bool = False  # bounds are trained in rounds like methods, as Tacit 0.1 did

    @property
    def name(self) -> str:
        """The name of its file, with `-` in place of `_`."""
        return self.path.stem.replace("_", "-")

    @property
    def size(self) -> int:
        """How many cells the file describes, without the added bounds."""
        rows, columns = self.rows.values(), self.columns
        return sum(row.columns is None or column in row.columns for row in rows for column in columns)

    def tree(self, column: Column, row: Row | None, quick: bool) -> Tree:
        """The settings of a cell; without a row, those common to all cells of a column."""
        return merged(self.settings, column.settings, row.settings if row else {}, (self.quick or {}) if quick else {})


def merged(*layers: Mapping[str, Any]) -> Tree:
    """The layers merged, later ones on top: sections are merged, other values replaced.

    The settings for the number of labels exclude each other, so one in a later layer removes those of earlier layers.
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
    """The benchmark in a file; an error begins with the file's path."""
    tree = configs.read(path)
    if "doubts" in tree and "caveats" not in tree:
        notice_renamed("[[doubts]]", "[[caveats]]")
        tree["caveats"] = tree.pop("doubts")
    with _in_file(path):
        missing = [item.name for item in fields(Sections) if _required(item) and item.name not in tree]
        if missing:
            raise TacitError(
                f"{missing[0]} is missing",
                "give title, [settings], [columns.…] and [rows.…]",
                code="bench.missing-section",
            )
        parts = Sections(**check(Sections, tree, "benchmark"))
        columns = {name: Column(**_entry(Column, name, value, "columns")) for name, value in parts.columns.items()}
        rows = {name: Row(**_entry(Row, name, value, "rows")) for name, value in parts.rows.items()}
        caveats = [Caveat(**_caveat(value)) for value in parts.caveats]
        if not columns or not rows:
            raise TacitError(
                "there is nothing to run", "give at least one [columns.…] and one [rows.…]", code="bench.no-cells"
            )
        given = {item.name: getattr(parts, item.name) for item in fields(parts)}
        given |= {"columns": columns, "rows": rows, "caveats": caveats, "bounds": list(dict.fromkeys(parts.bounds))}
        benchmark = Benchmark(path, **given)
        _refuse_unknown_names(benchmark)
    return benchmark


@contextmanager
def _in_file(path: Path) -> Iterator[None]:
    try:
        yield
    except TacitError as error:
        raise error.within(str(path)) from error


def _required(item: Any) -> bool:
    return item.default is MISSING and item.default_factory is MISSING


def _entry(kind: type, name: str, value: Mapping[str, Any], section: str) -> Tree:
    """The fields of a column or a row."""
    return {"name": name, "title": name} | check(kind, value, f"{section}.{name}", hidden=["name", "bound"])


def _caveat(value: Mapping[str, Any]) -> Tree:
    if "why" not in value:
        raise TacitError("a caveat has no reason", 'add why = "…" to [[caveats]]', code="bench.caveat-without-reason")
    return check(Caveat, value, "caveats")


def _refuse_unknown_names(benchmark: Benchmark) -> None:
    """Refuse references to rows, columns and bounds that do not exist."""
    named: list[tuple[str, str, str]] = []
    for row in benchmark.rows.values():
        named += [("column", column, f"rows.{row.name}.columns") for column in row.columns or []]
    for name, numbers in benchmark.published.items():
        named += [("row", name, "published"), *(("column", column, f"published.{name}") for column in numbers)]
    for caveat in benchmark.caveats:
        named += [("row", row, "caveats") for row in caveat.rows or []]
        named += [("column", column, "caveats") for column in caveat.columns or []]
    for kind, name, place in named:
        known = benchmark.rows if kind == "row" else benchmark.columns
        if name not in known:
            raise unknown(f"{kind} in {place}", name, known, code=f"names.unknown-{kind}")
    for name in benchmark.bounds:
        if name not in BOUNDS:
            raise unknown("bound", name, BOUNDS)


def folder() -> Path:
    """The folder of the package's benchmarks: in a checkout its top-level one, otherwise next to the code."""
    root = HERE.parents[3]
    checkout = (root / "pyproject.toml").is_file() and (root / "benchmarks").is_dir()
    return root / "benchmarks" if checkout else _installed()


def is_installed(path: Path) -> bool:
    """Whether a file belongs to an installed package, where nothing should be written."""
    return path.resolve().is_relative_to(_installed())


def _installed() -> Path:
    return HERE.parents[1] / "_benchmarks"


def names() -> dict[str, Path]:
    """The file of every benchmark of the package, by name."""
    files = sorted(path for path in folder().glob("*.toml") if path.name != CLAIMS)
    return {path.stem.replace("_", "-"): path for path in files}


def find(name: str) -> Benchmark:
    """A benchmark of the package by name, or a user's own by path."""
    if name.endswith(".toml"):
        return read(Path(name))
    known = names()
    if name not in known and name.removesuffix("-quick") in known:
        raise TacitError(
            f"'{name}' is a reduced scale", f"write {name.removesuffix('-quick')} --quick", code="bench.quick-suffix"
        )
    if name not in known and (matches := [other for other in known if other.startswith(f"{name}-")]):
        raise TacitError(
            f"there are several benchmarks '{name}'", f"choose one of {', '.join(matches)}", code="bench.ambiguous"
        )
    if name.replace("_", "-") not in known:
        raise unknown("benchmark", name, known, "see `tacit bench ls`, or give the path of a TOML file")
    return read(known[name.replace("_", "-")])
