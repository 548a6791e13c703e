"""Runs that are being written, without training: the files that a run writes, and the lock that it holds."""

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tacit.dashboard.board import Board
from tacit.engines.events import RoundProgress
from tacit.runs.directory import RunDirectory
from tests.report.runs import record, spread, write_run


def line(round: int, top: float = 0.8, **changes: Any) -> dict[str, Any]:
    """A round of a run that learns, with pseudo-labels."""
    metrics = {name: spread(0.5) for name in ("pseudo_kept", "pseudo_accuracy", "loss_supervised")}
    accuracy = top * (1 - math.exp(-(round + 1) / 10))
    return record(round, accuracy, loss=2.0 / (round + 1), metrics=metrics, server={"steps": 5.0}, **changes)


def a_run(folder: Path, done: int, rounds: int | None = None, top: float = 0.8, **config: Any) -> Path:
    """A run of which some rounds are done."""
    records = [line(number, top) for number in range(done)]
    return write_run(folder, records, **({"rounds": done if rounds is None else rounds} | config))


def append(folder: Path, *rounds: dict[str, Any]) -> None:
    """Add rounds to a log."""
    with (folder / "rounds.jsonl").open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(each) + "\n" for each in rounds)


@contextmanager
def working(folder: Path, progress: RoundProgress | None = None) -> Iterator[RunDirectory]:
    """Hold the lock of a run, as the process that runs it does."""
    directory = RunDirectory(folder)
    with directory.lock():
        if progress is not None:
            directory.write_current_round(progress)
        yield directory


def looked(board: Board) -> dict[str, Any]:
    """Everything a board knows after another look at the files."""
    board._search_at = 0.0
    board.look()
    while board._waiting:
        board.look()
    return board.updates("", -1, {})


def by_name(answer: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The runs in an answer by the names of their folders."""
    return {run["name"]: run for run in answer["runs"]}
