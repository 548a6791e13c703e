"""One table in the terminal for all runs of a command, while they run: state, progress, accuracy, time left."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from tacit.engines.events import RoundProgress
from tacit.engines.record import RoundRecord
from tacit.errors import TacitError
from tacit.formatting import duration_of, printable
from tacit.runs.directory import RunDirectory

BAR, MARGIN = 12, 6  # characters of a bar, and lines of the terminal that the table leaves free
STYLES = {"running": "bold", "finished": "green", "failed": "red", "diverged": "red", "waiting": "dim"}


@dataclass
class Row:
    """One run: its title, how far it is, and what came out so far."""

    title: str
    rounds: int
    done: int = 0
    state: str = "waiting"
    accuracy: float | None = None
    best: float | None = None
    seconds: float = 0.0  # of its rounds in this process
    ran: int = 0  # rounds in this process

    def follow(self, record: RoundRecord) -> None:
        """Take in a round."""
        self.state, self.done = "running", record.round + 1
        self.ran, self.seconds = self.ran + 1, self.seconds + record.seconds
        self._measure(record)

    def _measure(self, record: RoundRecord) -> None:
        known = record.local_accuracy if record.accuracy is None else record.accuracy
        if known is not None:
            self.accuracy, self.best = known, known if self.best is None else max(self.best, known)

    @classmethod
    def of(cls, title: str, rounds: int, directory: RunDirectory) -> "Row":
        """A run as its folder has it before it is started or continued."""
        row = cls(title, rounds)
        try:
            if directory.exists():
                for record in directory.rounds(directory.finished_rounds()):
                    row._measure(record)
                row.done, row.rounds = directory.finished_rounds(), directory.total_rounds()
                row.state = "finished" if row.done >= row.rounds else "waiting"
        except TacitError:  # the run itself says what is wrong when its turn comes
            row.state = "waiting"
        return row


class LiveTable:
    """The rows of a command by their keys. What is printed to the console meanwhile appears above the table."""

    def __init__(self, rows: Mapping[Any, Row], console: Console, noun: str = "runs") -> None:
        """`noun` names what the rows are."""
        self.rows, self.console, self._noun = dict(rows), console, noun
        self.current: RoundProgress | None = None
        self._began = time.monotonic()

    @contextmanager
    def shown(self) -> Iterator["LiveTable"]:
        """Draw the table while the block runs; it disappears afterwards."""
        with Live(console=self.console, get_renderable=self.render, refresh_per_second=4, transient=True, screen=False):
            yield self

    @property
    def summary(self) -> str:
        """How many are done, the time spent and left, and the best so far."""
        rows, spent = list(self.rows.values()), time.monotonic() - self._began
        done = sum(row.state == "finished" for row in rows)
        text = f"{done}/{len(rows)} {self._noun}, {duration_of(spent)} spent"
        ran = sum(row.ran for row in rows)
        left = sum(row.rounds - row.done for row in rows if row.state in ("waiting", "running"))
        if ran and left:
            text += f", about {duration_of(spent * left / ran)} left"
        return text

    @property
    def leader(self) -> str:
        """The best so far; empty if nothing was measured yet."""
        known = [row for row in self.rows.values() if row.best is not None]
        best = max(known, key=lambda row: row.best or 0.0, default=None)
        return "" if best is None else f"best so far: {best.best or 0:.1%}  {best.title}"

    def render(self) -> RenderableType:
        """The table for the present size of the terminal."""
        table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, expand=True, header_style="bold")
        table.add_column("", ratio=1, no_wrap=True, overflow="ellipsis")
        table.add_column("", width=BAR, no_wrap=True)
        for head, width in (("round", 9), ("acc", 6), ("best", 6), ("left", 8)):
            table.add_column(head, justify="right", no_wrap=True, width=width)
        for row in self._shown_rows():
            self._add(table, row)
        hidden = len(self.rows) - len(self._shown_rows())
        more = [Text(f"… and {hidden} more", style="dim")] if hidden else []
        return Group(table, *more, Text(self.summary), *([Text(printable(self.leader))] if self.leader else []))

    def _shown_rows(self) -> Sequence[Row]:
        """As many rows as fit, in their order: those that run, then the next ones, then the last to finish."""
        rows, room = list(self.rows.values()), max(3, self.console.height - MARGIN)
        if len(rows) <= room:
            return rows
        ranks = {"running": 0, "failed": 1, "diverged": 1, "waiting": 2, "finished": 3}
        last = max((place for place, row in enumerate(rows) if row.state != "waiting"), default=0)
        order = sorted(range(len(rows)), key=lambda place: (ranks[rows[place].state], abs(place - last)))
        return [rows[place] for place in sorted(order[:room])]

    def _add(self, table: Table, row: Row) -> None:
        style = STYLES[row.state]
        bar: RenderableType = ProgressBar(total=row.rounds or 1, completed=row.done, width=BAR)
        if row.state in ("failed", "diverged"):
            bar = Text(row.state)
        left = (
            duration_of(row.seconds / row.ran * (row.rounds - row.done)) if row.ran and row.state == "running" else ""
        )
        table.add_row(
            Text(printable(row.title)),
            bar,
            Text(f"{row.done}/{row.rounds}"),
            Text("" if row.accuracy is None else f"{row.accuracy:.1%}"),
            Text("" if row.best is None else f"{row.best:.1%}"),
            Text(left),
            style=style,
        )
