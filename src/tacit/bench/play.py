"""Playing the cells that are left, one after another or side by side, and showing how far the whole table is."""

import json
import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from tacit.bench import cells as plans
from tacit.bench.cells import Cell
from tacit.errors import TacitError
from tacit.machine import cores
from tacit.report.read import load
from tacit.report.units import Stat, duration_of, percent

PAUSE = 30.0  # seconds between two lines about the same cells in a log


@dataclass(frozen=True)
class Event:
    """A cell has played a round, or has ended: well, or for a reason."""

    cell: Cell
    round: int = 0
    accuracy: float | None = None
    ended: bool = False
    failure: str = ""


def play(all_cells: Sequence[Cell], side_by_side: int, console: Console, quiet: bool = False) -> list[str]:
    """Play what is not finished; why cells failed, a sentence each. The others are played all the same."""
    refuse_too_many(side_by_side)
    for cell in all_cells:
        if not plans.current(cell):
            target = plans.move_aside(cell)
            said = f"{cell.title}: the run of another config or version is now {target}"
            console.print(said, highlight=False, markup=False, soft_wrap=True)
    left = [cell for cell in all_cells if not plans.finished(cell)]
    events = _side_by_side(left, side_by_side) if side_by_side > 1 else _one_by_one(left)
    tally = Tally(len(all_cells), len(all_cells) - len(left), sum(_rounds_left(cell) for cell in left))
    with closing(events):
        if quiet:
            return [failure for event in events if (failure := _failure(event))]
        return _live(events, tally, console) if console.is_terminal else _lines(events, tally, console)


def refuse_too_many(side_by_side: int) -> None:
    """More processes than cores only get in each other's way."""
    most = cores()
    if not 1 <= side_by_side <= most:
        raise TacitError(f"{side_by_side} cells can not run side by side on {most} cores: use 1 to {most}")


def _rounds_left(cell: Cell) -> int:
    return cell.config.rounds - plans.rounds_done(cell)


def _one_by_one(left: Sequence[Cell]) -> Generator[Event]:
    for cell in left:
        yield from _rounds(cell)


def _rounds(cell: Cell) -> Iterator[Event]:
    """The rounds of a cell in this process."""
    try:
        for record in plans.begin(cell).rounds():
            known = record.local_accuracy if record.accuracy is None else record.accuracy
            yield Event(cell, record.round + 1, known)
    except TacitError as error:
        yield Event(cell, ended=True, failure=str(error))
    else:
        yield Event(cell, ended=True)


def _side_by_side(left: Sequence[Cell], number: int) -> Generator[Event]:
    """Each cell in a process of its own, so many at once; whatever ends this ends them."""
    # Spawned, not forked: a display's thread may hold a lock at that moment, and the copy would wait for it for ever.
    context = multiprocessing.get_context("spawn")
    waiting = deque(left)
    busy: dict[Connection, tuple[BaseProcess, Cell]] = {}
    try:
        while waiting or busy:
            while waiting and len(busy) < number:
                cell = waiting.popleft()
                here, there = context.Pipe(duplex=False)
                process: BaseProcess = context.Process(target=_alone, args=(_on_one_core(cell), there))
                process.start()
                there.close()
                busy[here] = process, cell
            for connection in wait(list(busy)):
                assert isinstance(connection, Connection)
                process, cell = busy[connection]
                event = _received(connection, process, cell)
                if event.ended:
                    del busy[connection]
                    connection.close()
                    process.join()
                yield event
    finally:
        for process, _ in busy.values():
            process.kill()  # a run is whole at every moment
            process.join()


def _on_one_core(cell: Cell) -> Cell:
    config = cell.spot.config
    alone = replace(config, engine=replace(config.engine, workers=0))
    return replace(cell, spot=replace(cell.spot, config=alone))


def _alone(cell: Cell, connection: Connection) -> None:
    """The life of a process that plays one cell: it tells every round, and does not outlive its parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent too, which ends this process
    threading.Thread(target=_follow_parent, daemon=True).start()
    for event in _rounds(cell):
        told = {"round": event.round, "accuracy": event.accuracy, "ended": event.ended, "failure": event.failure}
        connection.send_bytes(json.dumps(told).encode())


def _follow_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def _received(connection: Connection, process: BaseProcess, cell: Cell) -> Event:
    try:
        return Event(cell, **json.loads(connection.recv_bytes()))
    except (EOFError, OSError):
        process.join()
        why = f"its process ended with code {process.exitcode}; run the same command to go on"
        return Event(cell, ended=True, failure=why)


@dataclass
class Tally:
    """How far the whole table is. Rounds count for the estimate: cells differ in length, and are begun before."""

    cells: int
    done: int
    rounds_left: int
    rounds_played: int = 0
    began: float = field(default_factory=time.monotonic)

    def count(self, event: Event) -> None:
        """Take an event into account."""
        if not event.ended:
            self.rounds_played += 1
            self.rounds_left -= 1
        elif not event.failure:
            self.done += 1

    def __str__(self) -> str:
        """Cells, time spent, time left."""
        spent = time.monotonic() - self.began
        left = (
            f", about {duration_of(spent * self.rounds_left / self.rounds_played)} left" if self.rounds_played else ""
        )
        return f"{self.done}/{self.cells} cells, {duration_of(spent)} spent{left if self.done < self.cells else ''}"


def _failure(event: Event) -> str:
    return f"{event.cell.title}: {event.failure}" if event.failure else ""


def _outcome(event: Event) -> str:
    """What a cell that has ended came to."""
    if event.failure:
        return _failure(event)
    run = load(event.cell.folder)
    return f"{event.cell.title}: {percent(Stat(run.last5))} % in {duration_of(run.seconds)}"


def _state(event: Event) -> str:
    known = "" if event.accuracy is None else f", {percent(Stat(event.accuracy))} %"
    return f"round {event.round} of {event.cell.config.rounds}{known}"


def _lines(events: Iterator[Event], tally: Tally, console: Console) -> list[str]:
    """A line per cell, and now and then one about a cell that takes long."""
    failures, last = [], time.monotonic()
    for event in events:
        tally.count(event)
        said = _outcome(event) if event.ended else f"{event.cell.title}: {_state(event)}"
        if event.failure:
            failures.append(_failure(event))
        if event.ended or time.monotonic() - last > PAUSE:
            last = time.monotonic()
            console.print(f"{tally}  {said}", highlight=False, markup=False, soft_wrap=True)
    return failures


def _live(events: Iterator[Event], tally: Tally, console: Console) -> list[str]:
    """A bar for the table, and one for each cell that is being played."""
    failures = []
    bars: dict[Path, TaskID] = {}
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=20),
        TextColumn("{task.fields[state]}"),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        table = progress.add_task("table", total=tally.rounds_left, state=str(tally))
        for event in events:
            tally.count(event)
            if event.ended:
                progress.console.print(_outcome(event), highlight=False, markup=False, soft_wrap=True)
                failures += [_failure(event)] if event.failure else []
                if event.cell.folder in bars:
                    progress.remove_task(bars.pop(event.cell.folder))
            else:
                bar = bars.get(event.cell.folder)
                if bar is None:
                    bar = bars[event.cell.folder] = progress.add_task(
                        event.cell.title, total=event.cell.config.rounds, state=""
                    )
                progress.update(bar, completed=event.round, state=_state(event))
            progress.update(table, completed=tally.rounds_played, state=str(tally))
    return failures
