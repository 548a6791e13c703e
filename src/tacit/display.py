"""What a person sees while rounds are played: a live bar, plain lines, JSON lines, or nothing."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tacit.report.units import size_of

if TYPE_CHECKING:  # whoever only says something does not wait for torch
    from tacit.engines.loop import Record
    from tacit.experiment import Experiment

Mode = Literal["auto", "json", "quiet"]


def say(text: str, console: Console | None = None, style: str | None = None) -> None:
    """Print a line as it is: brackets in it are no markup, and a path stays in one piece."""
    (console or Console()).print(text, highlight=False, markup=False, soft_wrap=True, style=style)


def play(experiment: "Experiment", mode: Mode, console: Console, label: str = "") -> None:
    """Play an experiment's rounds and show them as the mode and the terminal allow."""
    if mode == "json":
        from tacit.experiment import line

        for record in experiment.rounds():
            print(line(record), end="", flush=True)
    elif mode == "quiet":
        for _ in experiment.rounds():
            pass
    elif console.is_terminal:
        _live(experiment, console, label)
    else:
        _lines(experiment, console, label)


def _live(experiment: "Experiment", console: Console, label: str) -> None:
    """One bar: rounds, accuracy, loss, traffic, time left."""
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TextColumn("{task.fields[state]}"),
        TimeRemainingColumn(compact=True),
        console=console,
        transient=bool(label),
    )
    before = experiment.finished_rounds()
    with progress:
        name = label or experiment.config.method_name
        task = progress.add_task(name, total=experiment.job.rounds, completed=before, state="")
        for record, traffic in _with_traffic(experiment):
            progress.update(task, advance=1, state=_state(record, traffic))
            for client, reason in record.skipped.items():
                say(f"round {record.round + 1}: without client {client} ({reason})", progress.console)


def _lines(experiment: "Experiment", console: Console, label: str) -> None:
    """A line per round."""
    prefix, rounds = f"{label}  " if label else "", experiment.job.rounds
    for record, traffic in _with_traffic(experiment):
        for client, reason in record.skipped.items():
            say(f"{prefix}round {record.round + 1}: without client {client} ({reason})", console)
        say(prefix + round_line(record, rounds, traffic), console)


def _with_traffic(experiment: "Experiment") -> "Iterator[tuple[Record, int]]":
    total = experiment.traffic()
    for record in experiment.rounds():
        total += record.bytes_up + record.bytes_down
        yield record, total


def round_line(record: "Record", rounds: int, traffic: int) -> str:
    """Where a run of so many rounds stands after one of them, in a few words."""
    return f"round {record.round + 1:>{len(str(rounds))}}/{rounds}  {_state(record, traffic)}"


def _state(record: "Record", traffic: int) -> str:
    parts = []
    for name, value in (("acc", record.accuracy), ("local acc", record.local_accuracy)):
        if value is not None:
            parts.append(f"{name} {value:.1%}")
    if record.loss is not None:
        parts.append(f"loss {_short(record.loss)}")
    if "loss_unlabeled" in record.metrics:
        parts.append(f"unl {_short(record.metrics['loss_unlabeled']['mean'])}")
    parts.append(size_of(traffic))
    return "  ".join(parts)


def _short(loss: float) -> str:
    return f"{loss:.3f}" if loss < 1000 else f"{loss:.1e}"
