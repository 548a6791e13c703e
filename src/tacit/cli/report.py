"""`tacit report`: one page about runs, comparisons or benchmarks, and their plots as files."""

from collections.abc import Sequence
from pathlib import Path

from tacit.errors import TacitError
from tacit.report import export, history, page
from tacit.runs.directory.folders import read_command
from tacit.runs.followers.progress import say


def report(folders: Sequence[Path], out: Path | None, plots: Path | None, format: str | None, mistakes: int) -> None:
    """Write the page, and every plot into the folder `plots` if it is given."""
    if format and not plots:
        raise TacitError("--format applies to --plots", "add --plots FOLDER", code="cli.format-without-plots")
    format = format or "png"
    export.check(format)
    out = out or page.place(folders)
    page.refuse_others(out)
    loaded = {folder: history.load_all(folder) for folder in folders}
    again = [read_command(folder) or page.commands(runs) for folder, runs in loaded.items()]
    runs = history.disambiguate([run for some in loaded.values() for run in some])
    pictures = {}
    if mistakes:
        from tacit.cli.mistakes import most_confident

        pictures = {run.folder: most_confident(run.folder, mistakes) for run in runs}
    page.write(runs, out, "\n".join(again), pictures)
    written = export.write(runs, plots, format) if plots else []
    for path in written:
        say(f"plot: {path}")
    say(f"report: {out}")
