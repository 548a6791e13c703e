"""The HTML page about a benchmark: its table with the paper's numbers, the costs, and the course of the runs."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from tacit.bench import tables
from tacit.bench.plan import Cell
from tacit.bench.results import Results
from tacit.bench.spec import Benchmark
from tacit.bench.tables import COSTS, Block, ResultTable, points
from tacit.report import html
from tacit.report.history import Run
from tacit.report.html import Line
from tacit.report.page import about_runs, ending, save
from tacit.runs.config import flat
from tacit.runs.directory import layout
from tacit.runs.directory.folders import write_command

STORED = "Numbers without a run in this folder are stored results; they appear in the tables only."


def write(
    benchmark: Benchmark, quick: bool, cells: Sequence[Cell], results: Results, folder: Path, extra: Sequence[str]
) -> Path | None:
    """Write the page into the folder of the benchmark's runs; None if there is no result to show.

    `extra` holds settings of all cells as the user typed them.
    """
    if not results.measured:
        return None
    table = tables.build(benchmark, cells, results.measured, quick)
    seeds = sorted({seed for those in results.measured.values() for seed in those})
    command = _command(table, quick, [] if seeds == sorted(benchmark.seeds) else seeds, extra)
    runs = [run for those in results.runs.values() for run in those]
    stored = bool(results.measured.keys() - results.runs.keys())
    save(page(table, runs, command, benchmark.quick if quick else None, stored=stored), folder / layout.REPORT)
    if runs:
        write_command(folder, command)
    return folder / layout.REPORT


def page(
    table: ResultTable, runs: Sequence[Run], command: str, reduced: Mapping[str, Any] | None, *, stored: bool
) -> str:
    """The page about a table and its finished runs; `reduced` holds the settings of the reduced scale, if it is one.

    `stored`: some results are stored ones, without a run.
    """
    opening = [html.paragraph(_summary(table, reduced is not None), "summary")]
    if reduced is not None:
        settings = ", ".join(f"{name} = {value}" for name, value in flat(reduced).items())
        warning = f"Reduced scale ({settings}): not comparable with the paper's numbers."
        opening.append(html.paragraph(warning, "warning"))
    opening += [html.paragraph(" ".join(part.split())) for part in table.about.split("\n\n")]
    results = "\n".join(
        html.part(block.title, _accuracies(block, table.heads, table.compares)) for block in table.started
    )
    rest = [f"not run yet: {'; '.join(table.not_started)}"] if table.not_started else []
    notes = html.bullets([*rest, *table.notes, *([STORED] if stored else [])])
    costs = "\n".join(html.part(block.title, _costs(block)) for block in table.started)
    sections = [
        html.section("Results", f"{results}\n<div class='note'>\n{notes}\n</div>"),
        html.section("Costs of one run", costs),
        *(about_runs(runs, table.rows) if runs else []),
        *ending(runs, command),
    ]
    return html.document(table.title, "\n".join(part for part in opening if part), sections)


def _summary(table: ResultTable, quick: bool) -> str:
    """How many cells are done, and how far they are from the paper's numbers, where it has any."""
    lines = [line for block in table.blocks for line in block.lines]
    done = f"{sum(line.ours is not None for line in lines)} of {len(lines)} cells are done"
    found = [line.difference for line in lines if line.difference is not None]
    if quick or not found:
        return f"{done}."
    if len(found) == 1:
        return f"{done}. Ours differs from the one published number by {points(found[0])} points."
    between = f"{points(min(found))} to {points(max(found))}"
    mean = points(fmean(found))
    return f"{done}. Ours differ from the {len(found)} published numbers by {mean} points on average ({between})."


def _accuracies(block: Block, heads: Sequence[str], compares: bool) -> str:
    below, head = ([line.below] if compares else [] for line in block.lines), ["below"] if compares else []
    rows = zip(block.lines, below, strict=True)
    lines = [Line(line.name, [line.seeds, *line.accuracies(), *more], line.leads) for line, more in rows]
    return html.table(f"{block.title}: our accuracy and the paper's", ["row", "seeds", *heads, *head], lines)


def _costs(block: Block) -> str:
    done = [line for line in block.lines if line.ours]
    return html.table(
        f"{block.title}: costs of a run", ["row", *COSTS], [Line(line.title, line.costs()) for line in done]
    )


def _command(table: ResultTable, quick: bool, seeds: Sequence[int], extra: Sequence[str]) -> str:
    words = ["tacit", "bench", "run", table.argument] + ["--quick"] * quick
    words += ["--seeds", ",".join(map(str, seeds))] if seeds else []
    return shlex.join([*words, *(word for each in extra for word in ("--set", each))])
