"""What a person sees while a run makes progress: a live bar, plain lines, JSON lines, or nothing."""

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Literal

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn
from rich.text import Text

from tacit.engines.events import Noticed, RoundEnded, RoundProgress
from tacit.formatting import COLUMNS, printable, size_of, wrapped

if TYPE_CHECKING:  # printing a line must not import torch
    from tacit.engines.record import RoundRecord
    from tacit.runs.experiment import Experiment
    from tacit.runs.followers.live_table import Row

Mode = Literal["auto", "json", "quiet"]
PAUSE = 30.0  # seconds without a line in a log, then one on the current round


def say(text: str, console: Console | None = None, style: str | None = None) -> None:
    """Print a line as it is, but for control characters: brackets are not markup, and a path is not wrapped."""
    (console or Console()).print(
        printable(text, lines=True), highlight=False, markup=False, soft_wrap=True, style=style
    )


def say_wrapped(text: str, console: Console | None = None) -> None:
    """Print a sentence, broken at 80 columns or at the width of a narrower terminal."""
    console = console or Console()
    say(wrapped(printable(text), min(COLUMNS, console.width)), console)


def run(experiment: "Experiment", mode: Mode, console: Console, label: str = "", row: "Row | None" = None) -> None:
    """Run the rounds that are left and show them as the mode and the terminal allow; `row` is one of a live table."""
    from tacit.runs.cross_validation import unfinished

    if mode == "auto":
        announce(experiment, console, label)
    for part in unfinished(experiment) if mode == "auto" and row is None else ():
        _shown(part.experiment, mode, console, f"{label}  {part.name}".strip())
    _shown(experiment, mode, console, label, row)


def _shown(experiment: "Experiment", mode: Mode, console: Console, label: str, row: "Row | None" = None) -> None:
    if mode == "json":
        for record in experiment.rounds():
            print(record.to_json(), flush=True)
    elif mode == "quiet":
        for _ in experiment.rounds():
            pass
    elif row is not None:
        _in_table(experiment, console, label, row)
    elif console.is_terminal or console.is_jupyter:
        _live(experiment, console, label)
    else:
        _lines(experiment, console, label)


def announce(experiment: "Experiment", console: Console, label: str = "") -> None:
    """Before the rounds that are left: settings without effect, what is protected, how long it takes if long."""
    from tacit.runs.devices import devices, worker_count
    from tacit.runs.estimate import LONG, bf16_line, estimate
    from tacit.runs.protection import protection_notes
    from tacit.runs.without_effect import without_effect

    config, done = experiment.config, experiment.finished_rounds()
    prefix = f"{label}  " if label else ""
    if not done:
        for line in without_effect(config, experiment.job.federation):
            say_wrapped(prefix + line, console)
        for line in protection_notes(config, experiment.job):
            say_wrapped(prefix + line, console)
    if done >= config.rounds:
        return
    if config.net.views is not None:
        count = len(experiment.job.federation.pool) + len(experiment.job.federation.test)
        say_wrapped(
            f"{prefix}frozen layers see {count:,} images once, unless what they make of them is stored", console
        )
    rounds = (
        config.rounds - done + (0 if done or config.data.fold is not None else config.rounds * (config.data.folds or 0))
    )
    left = estimate(experiment.work, rounds, worker_count(config.engine, devices(config.engine)))
    if left is not None and left.seconds > LONG:
        say_wrapped(prefix + left.line, console)
        if not done and (faster := bf16_line(experiment.work)) is not None:
            say_wrapped(prefix + faster, console)


def _live(experiment: "Experiment", console: Console, label: str) -> None:
    """Show one bar: rounds, accuracy, loss, traffic, time left; below it, how many clients have answered."""
    rounds, traffic = experiment.job.rounds, experiment.traffic()
    progress = _Bar(
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TextColumn("{task.fields[state]}"),
        TimeRemainingColumn(compact=True),
        console=console,
        transient=bool(label),
    )
    before = experiment.finished_rounds()
    with progress, closing(experiment.events()) as events:
        name = label or experiment.config.method_name
        task = progress.add_task(name, total=rounds, completed=before, state="")
        for event in events:
            progress.current.follow(event)
            if isinstance(event, RoundEnded):
                traffic += event.record.all_bytes
                progress.update(task, advance=1, state=_state(event.record, traffic))
                for line in skipped_lines(event.record):
                    say(line, progress.console)
            elif isinstance(event, Noticed):
                say(event.text, progress.console)


def _in_table(experiment: "Experiment", console: Console, label: str, row: "Row") -> None:
    """Keep one row of a table of several runs up to date, and print what needs attention above it."""
    row.state = "running"
    with closing(experiment.events()) as events:
        for event in events:
            if isinstance(event, RoundEnded):
                row.follow(event.record)
                for line in skipped_lines(event.record):
                    say(f"{label}  {line}", console)
            elif isinstance(event, Noticed):
                say(f"{label}  {event.text}", console)


class _Bar(Progress):
    """A bar with a line below it on the current round, drawn only when the screen is refreshed."""

    def __init__(self, *columns: ProgressColumn, console: Console, transient: bool) -> None:
        self.current = RoundProgress()
        super().__init__(*columns, console=console, transient=transient)

    def get_renderables(self) -> Iterable[RenderableType]:
        """The bar, and the line if there is one."""
        yield from super().get_renderables()
        if self.current.clients and self.tasks:
            yield Text(current_line(self.current, int(self.tasks[0].total or 0)))


def _lines(experiment: "Experiment", console: Console, label: str) -> None:
    """Print a line per round, and one on the current round when nothing was printed for a while."""
    prefix, rounds, traffic = f"{label}  " if label else "", experiment.job.rounds, experiment.traffic()
    current, printed = RoundProgress(), time.monotonic()
    with closing(experiment.events()) as events:
        for event in events:
            current.follow(event)
            if isinstance(event, RoundEnded):
                traffic += event.record.all_bytes
                lines = [*skipped_lines(event.record), round_line(event.record, rounds, traffic)]
            elif isinstance(event, Noticed):
                lines = [event.text]
            elif time.monotonic() - printed > PAUSE and current.clients:
                lines = [current_line(current, rounds)]
            else:
                continue
            printed = time.monotonic()
            for line in lines:
                say(prefix + line, console)


def round_line(record: "RoundRecord", rounds: int, traffic: int) -> str:
    """One line on a round: its number, accuracy, loss, and the traffic so far in bytes."""
    return f"round {record.round + 1:>{len(str(rounds))}}/{rounds}  {_state(record, traffic)}"


def current_line(current: RoundProgress, rounds: int) -> str:
    """One line on the current round: `round 3/30, 4 of 10 clients answered`."""
    failed = f", {len(current.failed)} failed" if current.failed else ""
    return f"round {current.round + 1}/{rounds}, {current.answered_text('clients')}{failed}"


def skipped_lines(record: "RoundRecord", names: Sequence[str] | None = None) -> list[str]:
    """A line for each client that was left out of a round, and for a rejected round; `names` are those of clients."""
    skipped = ((names[client] if names else f"client {client}", reason) for client, reason in record.skipped.items())
    lines = [f"round {record.round + 1}: without {name} ({reason})" for name, reason in skipped]
    lines += [f"round {record.round + 1} rejected: {record.rejected}"] if record.rejected else []
    return [printable(line) for line in lines]


def _state(record: "RoundRecord", traffic: int) -> str:
    parts = []
    for name, value in (("acc", record.accuracy), ("local acc", record.local_accuracy)):
        if value is not None:
            parts.append(f"{name} {value:.1%}")
    if record.validation is not None:
        parts.append(f"val {interval_text(record.validation)}")
    if record.loss is not None:
        parts.append(f"loss {_short(record.loss)}")
    parts += score_texts(record.scores) if record.scores else []
    if "loss_unlabeled" in record.metrics:
        parts.append(f"unl {_short(record.metrics['loss_unlabeled']['mean'])}")
    parts.append(size_of(traffic))
    return "  ".join(parts)


def interval_text(validation: Mapping[str, float]) -> str:
    """An accuracy on validation samples with what their number leaves open: `83.0% (77–88)`."""
    low, high = (100 * validation[name] for name in ("low", "high"))
    return f"{validation['accuracy']:.1%} ({low:.0f}–{high:.0f})"


def accuracy_text(last: "RoundRecord", accuracy: float) -> str:
    """The accuracy of a finished run, and how it was measured if not on test samples."""
    found = last.selected.get("cross_validated") if last.selected is not None else None
    if not found:
        return f"accuracy {accuracy:.1%}"
    return f"cross-validated accuracy {interval_text(found)} on {found['samples']:.0f} labels"


def choice_line(record: "RoundRecord") -> str:
    """Why the run ended early and which model is saved; empty if it is simply that of the last round."""
    parts = [f"stopped after round {record.round + 1}: {record.stopped}"] if record.stopped else []
    if record.selected is not None:
        validation = record.selected.get("validation")
        on = f", validation {interval_text(validation)}" if validation else ""
        parts.append(f"saved: {record.selected['what']}, since {record.selected['why']}{on}")
    return "; ".join(parts)


def score_texts(found: "Mapping[str, float]") -> list[str]:
    """Each score with its name: `AUROC 91.2%`. Those that are no shares, or are not known, are plain numbers."""
    from tacit.metrics.scores import ABOUT  # needs numpy, which printing a line otherwise does not

    known = {name: ABOUT.get(name) for name in found}
    return [
        f"{about.title if about else name} {f'{found[name]:.1%}' if about and about.share else _short(found[name])}"
        for name, about in known.items()
    ]


def _short(loss: float) -> str:
    return f"{loss:.3f}" if loss < 1000 else f"{loss:.1e}"
