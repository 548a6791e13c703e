"""`tacit tune`: what a search for settings prints."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tacit.runs.experiment import Experiment
from tacit.runs.followers.progress import say
from tacit.runs.tune import Search, Trial, best_of, chance

SHOWN = 20  # trials in the table, the best first


def run(search: Search, console: Console, *, quiet: bool) -> None:
    """Run the trials that are left, a line for each, then print the table and where the best config is."""

    def begun(number: int, values: Mapping[str, Any]) -> None:
        if console.is_terminal and not quiet:
            say(f"trial {number}: {described(values)}", console, "dim")

    for trial in search.run(begun):
        if not quiet:
            say(line(trial), console)
    done = search.ledger()
    console.print(table(done))
    best = best_of(done)
    if best is None or best.validation is None:
        say("no trial finished", console)
        return
    samples = len(Experiment.reopen(search.place(best.trial)).job.federation.server.validation)
    around = 100 * chance(best.validation, samples)
    say(f"with {samples} validation samples, differences below about {around:.1f} points are chance", console)
    say(f"best: {search.best_file}", console)


def described(values: Mapping[str, Any]) -> str:
    """`train.lr=0.0123 train.batch=32`."""
    return " ".join(f"{name}={f'{value:.4g}' if isinstance(value, float) else value}" for name, value in values.items())


def line(trial: Trial) -> str:
    """One line on a trial that ended."""
    if trial.validation is None:
        return f"trial {trial.trial}  failed: {trial.reason}  {described(trial.values)}"
    ended = "" if trial.end == "finished" else f"  {trial.end} after {trial.rounds} rounds"
    return f"trial {trial.trial}  validation {trial.validation:.1%}{ended}  {described(trial.values)}"


def table(done: Sequence[Trial]) -> Table:
    """The trials, the best first; a stopped one comes after all that finished."""
    ends = ("finished", "stopped", "failed")
    order = sorted(done, key=lambda trial: (ends.index(trial.end), -(trial.validation or 0), trial.trial))
    found = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for head in ("trial", "validation (%)", "rounds"):
        found.add_column(head, justify="right")
    found.add_column("")
    found.add_column("settings", overflow="fold")
    for trial in order[:SHOWN]:
        accuracy = "–" if trial.validation is None else f"{100 * trial.validation:.1f}"
        found.add_row(
            str(trial.trial),
            accuracy,
            str(trial.rounds),
            "" if trial.end == "finished" else trial.end,
            Text(described(trial.values)),
        )
    if len(order) > SHOWN:
        found.caption = Text(f"the best {SHOWN} of {len(order)} trials; ledger.jsonl has all")
        found.caption_justify = "left"
    return found
