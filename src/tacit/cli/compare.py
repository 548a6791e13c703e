"""`tacit compare`: several methods and seeds, the table, and the page about them."""

import shlex
import sys
from pathlib import Path

from rich.console import Console

from tacit.cli import exit, lists
from tacit.report import gains, history, page, tables
from tacit.runs import config as configs
from tacit.runs.assignments import assignments
from tacit.runs.compare import compare as run_all
from tacit.runs.directory import layout
from tacit.runs.followers.progress import say


def compare(
    config: Path,
    methods: str,
    seeds: str | None,
    set: list[str] | None,
    out: Path | None,
    console: Console,
    *,
    quiet: bool,
) -> None:
    """Run what is missing, then print the table and write the page."""
    base = configs.read(config)
    extra = assignments(set)
    folder = out or Path("runs") / f"compare-{config.stem}"
    names = lists.names(methods, "--methods")
    numbers = [base.get("seed", 0)] if seeds is None else lists.seeds(seeds)
    with exit.interruptible():
        places = run_all(base, extra, names, numbers, folder, "quiet" if quiet else "auto", console)
    runs, ended = history.load_compared(places)
    title = f"{config.stem}, seeds {', '.join(map(str, numbers))}"
    console.print(tables.to_rich(tables.summarise(runs), title, {run.label: run.ended for run in ended}))
    if not runs:
        return
    if note := gains.sentence(runs):
        console.print(note, highlight=False, markup=False)
    page.write_with_command([*runs, *ended], folder, shlex.join(["tacit", *sys.argv[1:]]))
    say(f"report: {folder / layout.REPORT}", console)
