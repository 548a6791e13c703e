"""`tacit bench`: run the tables of papers and compare with the published numbers."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tacit.cli import lists
from tacit.errors import TacitError, notice_renamed
from tacit.runs.assignments import assignments
from tacit.runs.followers.progress import say

if TYPE_CHECKING:
    from tacit.bench.plan import Cell
    from tacit.bench.results import Results
    from tacit.bench.spec import Benchmark

app = typer.Typer(help="Run the tables of papers and compare with the published numbers.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="Benchmark name (see `tacit bench ls`) or path to a TOML file.")]
Quick = Annotated[bool, typer.Option("--quick", help="Use the reduced scale of the file's quick section.")]
Set = Annotated[list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Any setting, for all cells.")]
Out = Annotated[Path, typer.Option(help="Folder of the runs.")]
Only = Annotated[list[str] | None, typer.Option(metavar="ROW", help="Only this row; repeat for several.")]
InColumn = Annotated[
    list[str] | None, typer.Option("--column", metavar="COL", help="Only this column; repeat for several.")
]
Percent = Annotated[
    float | None, typer.Option(metavar="PERCENT", min=0, max=100, help="Also show the rounds to this accuracy.")
]
RUNS = Path("runs/bench")


@app.command("ls")
def list_benchmarks() -> None:
    """List the benchmarks: name, title, number of cells in the file, and how many have stored results."""
    from tacit.bench import plan, spec
    from tacit.bench import results as stored
    from tacit.runs.bounds import BOUNDS

    table = Table(box=None, padding=(0, 2, 0, 0))
    for head in ("name", "title", "cells", "stored"):
        table.add_column(head, justify="left" if head in ("name", "title") else "right", no_wrap=head == "name")
    for path in spec.names().values():
        benchmark = spec.read(path)
        # Planning cells takes a while, so it is done only where there are stored results.
        scales = [quick for quick in (False, True) if stored.path_of(benchmark, quick).exists()]
        found = {quick: stored.collect(benchmark, quick, plan.cells(benchmark, quick)) for quick in scales}
        numbers = {quick: sum(row not in BOUNDS for _, row in results.measured) for quick, results in found.items()}
        text = f"{numbers.get(False) or '–'}" + (f", quick {numbers[True]}" if numbers.get(True) else "")
        table.add_row(escape(benchmark.name), escape(benchmark.title), str(benchmark.size), text)
    Console().print(table)


@app.command()
def run(
    name: Name,
    quick: Quick = False,
    only: Only = None,
    column: InColumn = None,
    seeds: Annotated[str | None, typer.Option(help="Comma-separated seeds; default: the file's.")] = None,
    workers: Annotated[int | None, typer.Option(help="Worker processes per cell; default: one per core.")] = None,
    jobs: Annotated[int, typer.Option(metavar="N", help="Run N cells at once, each on one core.")] = 1,
    out: Out = RUNS,
    set: Set = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only the table.")] = False,
    side_by_side: Annotated[int | None, typer.Option(hidden=True)] = None,
) -> None:
    """Run the unfinished cells, print the table and write its HTML page; interrupted cells are resumed."""
    from tacit.bench import plan, runner, spec, tables
    from tacit.bench import results as stored
    from tacit.runs.directory.planned import working

    if side_by_side is not None:
        notice_renamed("--side-by-side", "--jobs")
        jobs = side_by_side
    if jobs != 1 and workers is not None:
        raise TacitError(
            "with --jobs every cell runs on one core", "leave out --workers or --jobs", code="bench.jobs-and-workers"
        )
    console, benchmark = Console(), spec.find(name)
    extra = assignments(set) | ({} if workers is None else {"workers": workers})
    cells = plan.cells(benchmark, quick, extra)
    numbers = lists.seeds(seeds) if seeds is not None else list(dict.fromkeys(benchmark.seeds))
    folder = plan.run_folder(out, benchmark, quick)
    shown = plan.select(cells, only or [], column or [])
    runs = plan.runs_of(shown, numbers, folder)
    runner.refuse_too_many(jobs)
    try:
        with working(folder, plan.announced(benchmark, quick, runs, folder)):
            failures = runner.run_cells(runs, jobs, console, quiet)
    except KeyboardInterrupt:
        done = sum(map(plan.is_finished, runs))
        print(f"stopped with {done} of {len(runs)} cells done; run the same command to continue", file=sys.stderr)
        raise
    results = stored.collect(benchmark, quick, cells, folder)
    tables.show(tables.build(benchmark, shown, results.measured, quick), console)
    _say_stored(results, shown)
    _report(benchmark, quick, cells, results, folder, set)
    if failures:
        more = f" (and {len(failures) - 1} more)" if failures[1:] else ""
        raise TacitError(
            f"{len(failures)} of {len(runs)} cells failed{more and ', the first'}: {failures[0]}",
            code="bench.cells-failed",
        )


@app.command()
def show(
    name: Name,
    quick: Quick = False,
    only: Only = None,
    column: InColumn = None,
    rounds_to: Percent = None,
    out: Out = RUNS,
    set: Set = None,
    reach: Annotated[float | None, typer.Option(min=0, max=100, hidden=True)] = None,
) -> None:
    """Print the table from runs and stored results, and write its HTML page, without running anything."""
    from tacit.bench import plan, spec, tables
    from tacit.bench import results as stored

    if reach is not None:
        notice_renamed("--reach", "--rounds-to")
        rounds_to = reach
    benchmark = spec.find(name)
    cells, folder = plan.cells(benchmark, quick, assignments(set)), plan.run_folder(out, benchmark, quick)
    shown, results = plan.select(cells, only or [], column or []), stored.collect(benchmark, quick, cells, folder)
    tables.show(tables.build(benchmark, shown, results.measured, quick, rounds_to), Console())
    _say_stored(results, shown)
    _report(benchmark, quick, cells, results, folder, set)


@app.command()
def table(
    name: Name,
    format: Annotated[Literal["terminal", "markdown", "csv", "latex"], typer.Option(help="Format.")] = "terminal",
    quick: Quick = False,
    only: Only = None,
    column: InColumn = None,
    out: Out = RUNS,
    set: Set = None,
) -> None:
    """Print the table from runs and stored results, also as Markdown, CSV or LaTeX."""
    from tacit.bench import export, plan, spec, tables
    from tacit.bench import results as stored

    benchmark = spec.find(name)
    shown = plan.select(plan.cells(benchmark, quick, assignments(set)), only or [], column or [])
    results = stored.collect(benchmark, quick, shown, plan.run_folder(out, benchmark, quick))
    built = tables.build(benchmark, shown, results.measured, quick)
    if format == "terminal":
        tables.show(built, Console())
    else:
        print(export.FORMATS[format](built), end="")


@app.command()
def save(name: Name, quick: Quick = False, out: Out = RUNS) -> None:
    """Store the results of the finished cells in a small file under results/, next to the benchmark."""
    from tacit import __version__
    from tacit.bench import plan, spec
    from tacit.bench import results as stored

    benchmark = spec.find(name)
    cells = plan.cells(benchmark, quick)
    runs = stored.from_runs(cells, plan.run_folder(out, benchmark, quick))
    path = stored.save_runs(benchmark, quick, cells, runs, __version__)
    say(f"{len(runs)} of {len(cells)} cells saved: {path}")


@app.command(hidden=True)
def keep(name: Name, quick: Quick = False, out: Out = RUNS) -> None:
    """Do the same as `tacit bench save`, under its old name."""
    notice_renamed("tacit bench keep", "tacit bench save")
    save(name, quick, out)


@app.command()
def docs(
    paths: Annotated[list[Path] | None, typer.Argument(help="Pages, or folders of pages; default: docs/.")] = None,
) -> None:
    """Fill the tables in documentation pages from the stored results."""
    from tacit.bench import docs

    for path in docs.fill(paths or [Path("docs")]):
        say(f"changed: {path}")


def _say_stored(results: "Results", shown: "list[Cell]") -> None:
    if sentence := results.stored_note(shown):
        say(sentence)


def _report(
    benchmark: "Benchmark",
    quick: bool,
    cells: "list[Cell]",
    results: "Results",
    folder: Path,
    extra: list[str] | None,
) -> None:
    """Write the page about the whole table, whichever part of it was printed."""
    from tacit.bench import page

    path = page.write(benchmark, quick, cells, results, folder, extra or [])
    if path:
        say(f"\nreport: {path}")
