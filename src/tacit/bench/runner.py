"""Run the unfinished cells of a table, one after another or several at once, and show the progress of all of them."""

import json
import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Collection, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from rich.console import Console

from tacit.bench import plan as plans
from tacit.bench.plan import CellRun
from tacit.engines.record import RoundRecord
from tacit.errors import TacitError
from tacit.formatting import Stat, duration_of, percent
from tacit.process import cores
from tacit.report.history import load
from tacit.runs.followers.live_table import LiveTable, Row

PAUSE = 30.0  # seconds between progress lines in a log


@dataclass(frozen=True)
class RunEnded:
    """A run has ended, successfully or with a failure."""

    failure: str = ""


News = tuple[CellRun, RoundRecord | RunEnded]  # a run, and the round it has finished, or its end


def run_cells(runs: Sequence[CellRun], jobs: int, console: Console, quiet: bool = False) -> list[str]:
    """Run what is not finished, `jobs` at a time; a sentence for each run that failed. The others continue."""
    refuse_too_many(jobs)
    for run in runs:
        if not plans.is_current(run):
            target = plans.move_aside(run)
            notice = f"{run.title}: the run of another config or version is now {target}"
            console.print(notice, highlight=False, markup=False, soft_wrap=True)
    left = [run for run in runs if not plans.is_finished(run)]
    news = _in_parallel(left, jobs) if jobs > 1 else _in_sequence(left)
    tally = Tally(len(runs), len(runs) - len(left), sum(_rounds_left(run) for run in left))
    with closing(news):
        if quiet:
            return [_failure(run, new) for run, new in news if isinstance(new, RunEnded) and new.failure]
        return _live(news, runs, jobs, console) if console.is_terminal else _lines(news, tally, console)


def refuse_too_many(jobs: int) -> None:
    """Refuse more processes than cores, which would only slow each other down."""
    most = cores()
    if not 1 <= jobs <= most:
        raise TacitError(f"cannot run {jobs} cells at once on {most} cores", f"use 1 to {most}", code="bench.jobs")


def _rounds_left(run: CellRun) -> int:
    return run.config.rounds - plans.rounds_done(run)


def _in_sequence(left: Sequence[CellRun]) -> Generator[News]:
    for run in left:
        yield from ((run, news) for news in _rounds(run))


def _rounds(run: CellRun) -> Iterator[RoundRecord | RunEnded]:
    """The rounds of a run, in this process, and its end."""
    try:
        yield from plans.begin(run).rounds()
    except TacitError as error:
        yield RunEnded(str(error))
    else:
        yield RunEnded()


def _in_parallel(left: Sequence[CellRun], jobs: int) -> Generator[News]:
    """Each run in a separate process, `jobs` at a time; closing the generator kills the processes."""
    # Spawned, not forked: the display's thread may hold a lock at that moment, and the copy would wait for it forever.
    context = multiprocessing.get_context("spawn")
    waiting = deque(left)
    busy: dict[Connection, tuple[BaseProcess, CellRun]] = {}
    try:
        while waiting or busy:
            while waiting and len(busy) < jobs:
                run = waiting.popleft()
                here, there = context.Pipe(duplex=False)
                process: BaseProcess = context.Process(target=_child, args=(_on_one_core(run), there))
                process.start()
                there.close()
                busy[here] = process, run
            for connection in wait(list(busy)):
                assert isinstance(connection, Connection)
                process, run = busy[connection]
                news = _received(connection, process)
                if isinstance(news, RunEnded):
                    del busy[connection]
                    connection.close()
                    process.join()
                yield run, news
    finally:
        for process, _ in busy.values():
            process.kill()  # safe: a run can be resumed after a kill at any moment
            process.join()


def _on_one_core(run: CellRun) -> CellRun:
    config = run.cell.config
    alone = replace(config, engine=replace(config.engine, workers=0))
    return replace(run, cell=replace(run.cell, config=alone))


def _child(run: CellRun, connection: Connection) -> None:
    """The main function of a process that does one run: it reports every round and ends with its parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C also reaches the parent, which ends this process
    threading.Thread(target=_end_with_parent, daemon=True).start()
    for news in _rounds(run):
        line = json.dumps({"failure": news.failure}) if isinstance(news, RunEnded) else news.to_json()
        connection.send_bytes(line.encode())


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def _received(connection: Connection, process: BaseProcess) -> RoundRecord | RunEnded:
    try:
        line = connection.recv_bytes()
    except (EOFError, OSError):
        process.join()
        return RunEnded(f"its process ended with code {process.exitcode}; run the same command to continue")
    values = json.loads(line)
    return RunEnded(values["failure"]) if "failure" in values else RoundRecord.from_json(line)


@dataclass
class Tally:
    """The progress of the whole table. The time left is estimated from rounds, since runs differ in length."""

    cells: int
    done: int
    rounds_left: int
    rounds_run: int = 0
    began: float = field(default_factory=time.monotonic)

    def count(self, new: RoundRecord | RunEnded) -> None:
        """Count a round, or the end of a run."""
        if isinstance(new, RoundRecord):
            self.rounds_run += 1
            self.rounds_left -= 1
        elif not new.failure:
            self.done += 1

    def __str__(self) -> str:
        """Cells done, time spent, time left."""
        spent = time.monotonic() - self.began
        left = f", about {duration_of(spent * self.rounds_left / self.rounds_run)} left" if self.rounds_run else ""
        return f"{self.done}/{self.cells} cells, {duration_of(spent)} spent{left if self.done < self.cells else ''}"


def _failure(run: CellRun, ended: RunEnded) -> str:
    return f"{run.title}: {ended.failure}"


def _outcome(run: CellRun, ended: RunEnded) -> str:
    """The result of a run that has ended."""
    if ended.failure:
        return _failure(run, ended)
    result = load(run.folder)
    return f"{run.title}: {percent(Stat(result.last5))} % in {duration_of(result.seconds)}"


def _state(run: CellRun, record: RoundRecord) -> str:
    known = record.local_accuracy if record.accuracy is None else record.accuracy
    shown = "" if known is None else f", {percent(Stat(known))} %"
    return f"round {record.round + 1} of {run.config.rounds}{shown}"


def _lines(news: Iterator[News], tally: Tally, console: Console) -> list[str]:
    """A line per finished run, and one every PAUSE seconds in between."""
    failures, last = [], time.monotonic()
    for run, new in news:
        tally.count(new)
        if isinstance(new, RunEnded):
            failures += [_failure(run, new)] if new.failure else []
            line = _outcome(run, new)
        elif time.monotonic() - last > PAUSE:
            line = f"{run.title}: {_state(run, new)}"
        else:
            continue
        last = time.monotonic()
        console.print(f"{tally}  {line}", highlight=False, markup=False, soft_wrap=True)
    return failures


def _live(news: Iterator[News], runs: Sequence[CellRun], jobs: int, console: Console) -> list[str]:
    """One table of all cells, and a line above it for each that ends."""
    failures = []
    rows = {run.folder: Row.of(run.title, run.config.rounds, run.directory) for run in runs}
    _mark_running(rows.values(), jobs)
    with LiveTable(rows, console, "cells").shown() as table:
        for run, new in news:
            row = rows[run.folder]
            if isinstance(new, RunEnded):
                row.state = "failed" if new.failure else "finished"
                _mark_running(rows.values(), jobs)
                failures += [_failure(run, new)] if new.failure else []
                table.console.print(_outcome(run, new), highlight=False, markup=False, soft_wrap=True)
            else:
                row.follow(new)
    console.print(table.summary, highlight=False, markup=False)
    return failures


def _mark_running(rows: Collection[Row], jobs: int) -> None:
    """Cells start in their order, and `jobs` of them run at any time."""
    waiting = [row for row in rows if row.state == "waiting"]
    for row in waiting[: jobs - sum(row.state == "running" for row in rows)]:
        row.state = "running"
