"""The page about a benchmark: its table beside the paper's numbers, what it cost, and how the runs went."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from tacit.bench import tables
from tacit.bench.cells import Spot
from tacit.bench.files import Benchmark
from tacit.bench.keep import Results
from tacit.bench.tables import COSTS, Block, Sheet, points
from tacit.config import flat
from tacit.report import html
from tacit.report.html import Line
from tacit.report.page import about_runs, ending, save
from tacit.report.read import COMMAND, Run

KEPT = "Numbers without a run in this folder are kept results; there is nothing more to show of them."


def write(
    benchmark: Benchmark, quick: bool, found: Sequence[Spot], results: Results, folder: Path, extra: Sequence[str]
) -> Path | None:
    """Write the page into the folder of the benchmark's runs; None where nothing is done that it could show.

    `extra` are settings of all cells as they were typed.
    """
    if not results.measured:
        return None
    sheet = tables.build(benchmark, found, results.measured, quick)
    seeds = sorted({seed for those in results.measured.values() for seed in those})
    command = _command(sheet, quick, [] if seeds == sorted(benchmark.seeds) else seeds, extra)
    runs = [run for those in results.runs.values() for run in those]
    kept = results.measured.keys() - results.runs.keys()
    save(page(sheet, runs, command, benchmark.quick if quick else None, kept=bool(kept)), folder / "report.html")
    if runs:
        save(f"{command}\n", folder / COMMAND)
    return folder / "report.html"


def page(sheet: Sheet, runs: Sequence[Run], command: str, reduced: Mapping[str, Any] | None, *, kept: bool) -> str:
    """The page about a table, these finished runs of it, and the settings that make its scale a reduced one."""
    opening = [html.paragraph(_summary(sheet, reduced is not None), "summary")]
    if reduced is not None:
        said = ", ".join(f"{name} = {value}" for name, value in flat(reduced).items())
        opening.append(html.paragraph(f"Reduced scale ({said}): not comparable with the paper's numbers.", "warning"))
    opening += [html.paragraph(" ".join(part.split())) for part in sheet.about.split("\n\n")]
    results = "\n".join(html.part(block.title, _reached(block, sheet.heads)) for block in sheet.begun)
    rest = [f"not run yet: {'; '.join(sheet.waiting)}"] if sheet.waiting else []
    notes = html.bullets([*rest, *sheet.notes, *([KEPT] if kept else [])])
    costs = "\n".join(html.part(block.title, _costs(block)) for block in sheet.begun)
    sections = [
        html.section("Results", f"{results}\n<div class='note'>\n{notes}\n</div>"),
        html.section("Costs of one run", costs),
        *(about_runs(runs, sheet.rows) if runs else []),
        *ending(runs, command),
    ]
    return html.document(sheet.title, "\n".join(part for part in opening if part), sections)


def _summary(sheet: Sheet, quick: bool) -> str:
    """How much of the table is done, and how far ours is from the paper's where both are there."""
    lines = [line for block in sheet.blocks for line in block.lines]
    done = f"{sum(line.ours is not None for line in lines)} of {len(lines)} cells are done"
    apart = [line.difference for line in lines if line.difference is not None]
    if quick or not apart:
        return f"{done}."
    number = (
        "the one published number" if len(apart) == 1 else f"the {len(apart)} published numbers there are for these"
    )
    between = f", from {points(min(apart))} to {points(max(apart))}" if len(apart) > 1 else ""
    return f"{done}. Of {number}, ours differ by {points(fmean(apart))} points on average{between}."


def _reached(block: Block, heads: Sequence[str]) -> str:
    lines = [Line(line.name, [line.seeds, *line.reached()], line.leads) for line in block.lines]
    return html.table(f"{block.title}: ours and the paper's", ["row", "seeds", *heads], lines)


def _costs(block: Block) -> str:
    done = [line for line in block.lines if line.ours]
    return html.table(
        f"{block.title}: what a run cost", ["row", *COSTS], [Line(line.title, line.costs()) for line in done]
    )


def _command(sheet: Sheet, quick: bool, seeds: Sequence[int], extra: Sequence[str]) -> str:
    words = ["tacit", "bench", "run", sheet.call] + ["--quick"] * quick
    words += ["--seeds", ",".join(map(str, seeds))] if seeds else []
    return shlex.join([*words, *(word for each in extra for word in ("--set", each))])
