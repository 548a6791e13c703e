"""`tacit bench`: the tables of papers, run and set beside the published numbers."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tacit import typed
from tacit.display import say
from tacit.errors import TacitError

if TYPE_CHECKING:
    from tacit.bench.cells import Spot
    from tacit.bench.files import Benchmark
    from tacit.bench.keep import Results

app = typer.Typer(
    help="The tables of papers: run them, and set our numbers beside the published ones.", no_args_is_help=True
)

Name = Annotated[str, typer.Argument(help="Of `tacit bench ls`, or the path of a TOML file of one's own.")]
Quick = Annotated[bool, typer.Option("--quick", help="The reduced scale that the file describes under quick.")]
Set = Annotated[list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Any setting of all cells.")]
Out = Annotated[Path, typer.Option(help="Where the runs are.")]
Only = Annotated[list[str] | None, typer.Option(metavar="ROW", help="Only this row; may be repeated.")]
InColumn = Annotated[list[str] | None, typer.Option("--column", metavar="COL", help="Only this column; likewise.")]
RUNS = Path("runs/bench")


@app.command("ls")
def list_benchmarks() -> None:
    """List the benchmarks: name, title, number of cells in the file, and how many have kept results."""
    from tacit.bench import cells, files, keep
    from tacit.compare import BOUNDS

    table = Table(box=None, padding=(0, 2, 0, 0))
    for head in ("name", "title", "cells", "kept"):
        table.add_column(head, justify="left" if head in ("name", "title") else "right", no_wrap=head == "name")
    for path in files.names().values():
        benchmark = files.read(path)
        # Only where something is kept are cells planned, which takes a while.
        scales = [quick for quick in (False, True) if keep.path_of(benchmark, quick).exists()]
        found = {quick: keep.results(benchmark, quick, cells.spots(benchmark, quick)) for quick in scales}
        numbers = {quick: sum(row not in BOUNDS for _, row in kept.measured) for quick, kept in found.items()}
        told = f"{numbers.get(False) or '–'}" + (f", quick {numbers[True]}" if numbers.get(True) else "")
        table.add_row(escape(benchmark.name), escape(benchmark.title), str(benchmark.size), told)
    Console().print(table)


@app.command()
def run(
    name: Name,
    quick: Quick = False,
    only: Only = None,
    column: InColumn = None,
    seeds: Annotated[str | None, typer.Option(help="Comma-separated seeds; the file's when not given.")] = None,
    workers: Annotated[int | None, typer.Option(help="Worker processes of a cell; one per core by default.")] = None,
    side_by_side: Annotated[int, typer.Option(metavar="N", help="Cells at once, each on one core.")] = 1,
    out: Out = RUNS,
    set: Set = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only the table.")] = False,
) -> None:
    """Run the cells that are not done yet, then show the table and write its page; cells go on where they stopped."""
    from tacit import config as configs
    from tacit.bench import cells, files, keep, play, tables

    if side_by_side != 1 and workers is not None:
        raise TacitError("cells side by side have one core each: leave out --workers or --side-by-side")
    console, benchmark = Console(), files.find(name)
    extra = configs.assignments(set) | ({} if workers is None else {"workers": workers})
    found = cells.spots(benchmark, quick, extra)
    numbers = typed.seeds(seeds) if seeds is not None else list(dict.fromkeys(benchmark.seeds))
    folder = cells.home(out, benchmark, quick)
    shown = cells.chosen(found, only or [], column or [])
    planned = cells.cells(shown, numbers, folder)
    try:
        failures = play.play(planned, side_by_side, console, quiet)
    except KeyboardInterrupt:
        done = sum(map(cells.finished, planned))
        print(f"stopped with {done} of {len(planned)} cells done; go on with the same command", file=sys.stderr)
        raise
    results = keep.results(benchmark, quick, found, folder)
    tables.show(tables.build(benchmark, shown, results.measured, quick), console)
    _say_kept(results.kept(shown))
    _report(benchmark, quick, found, results, folder, set)
    if failures:
        more = f" (and {len(failures) - 1} more)" if failures[1:] else ""
        raise TacitError(f"{len(failures)} of {len(planned)} cells failed{more and ', the first'}: {failures[0]}")


@app.command()
def show(
    name: Name,
    quick: Quick = False,
    only: Only = None,
    column: InColumn = None,
    reach: Annotated[
        float | None, typer.Option(metavar="PERCENT", min=0, max=100, help="Also the rounds to this accuracy.")
    ] = None,
    out: Out = RUNS,
    set: Set = None,
) -> None:
    """Show the table as far as it is done, from runs and from kept results, and write its page; nothing is run."""
    from tacit import config as configs
    from tacit.bench import cells, files, keep, tables

    benchmark = files.find(name)
    found, folder = cells.spots(benchmark, quick, configs.assignments(set)), cells.home(out, benchmark, quick)
    shown, results = cells.chosen(found, only or [], column or []), keep.results(benchmark, quick, found, folder)
    tables.show(tables.build(benchmark, shown, results.measured, quick, reach), Console())
    _say_kept(results.kept(shown))
    _report(benchmark, quick, found, results, folder, set)


@app.command()
def table(
    name: Name,
    format: Annotated[
        Literal["terminal", "markdown", "csv", "latex"], typer.Option(help="How to print it.")
    ] = "terminal",
    quick: Quick = False,
    only: Only = None,
    column: InColumn = None,
    out: Out = RUNS,
    set: Set = None,
) -> None:
    """Print the table as far as it is done, also in Markdown, CSV or LaTeX."""
    from tacit import config as configs
    from tacit.bench import cells, files, formats, keep, tables

    benchmark = files.find(name)
    shown = cells.chosen(cells.spots(benchmark, quick, configs.assignments(set)), only or [], column or [])
    results = keep.results(benchmark, quick, shown, cells.home(out, benchmark, quick))
    sheet = tables.build(benchmark, shown, results.measured, quick)
    if format == "terminal":
        tables.show(sheet, Console())
    else:
        print(formats.FORMATS[format](sheet), end="")


@app.command()
def keep(name: Name, quick: Quick = False, out: Out = RUNS) -> None:
    """Keep what the finished cells came to in a small file under results/, beside the benchmark."""
    from tacit import __version__
    from tacit.bench import cells, files, keep

    benchmark = files.find(name)
    found = cells.spots(benchmark, quick)
    runs = keep.of_runs(found, cells.home(out, benchmark, quick))
    path = keep.write(benchmark, quick, found, runs, __version__)
    say(f"{len(runs)} of {len(found)} cells kept: {path}")


@app.command()
def docs(
    paths: Annotated[list[Path] | None, typer.Argument(help="Pages or folders of pages; docs/ if none.")] = None,
) -> None:
    """Fill the tables in pages of documentation from the kept results."""
    from tacit.bench import docs

    for path in docs.fill(paths or [Path("docs")]):
        say(f"changed: {path}")


def _say_kept(sentence: str) -> None:
    if sentence:
        say(sentence)


def _report(
    benchmark: "Benchmark",
    quick: bool,
    found: "list[Spot]",
    results: "Results",
    folder: Path,
    extra: list[str] | None,
) -> None:
    """The page about the whole table, whatever part of it was asked for."""
    from tacit.bench import page

    path = page.write(benchmark, quick, found, results, folder, extra or [])
    if path:
        say(f"\nreport: {path}")
