"""One table for all runs of a command, at 80 columns."""

import json
from io import StringIO
from pathlib import Path

from rich.console import Console

from tacit.engines.record import RoundRecord
from tacit.runs.directory import RunDirectory
from tacit.runs.followers.live_table import LiveTable, Row
from tests.dashboard.invented import a_run
from tests.report.runs import record


def drawn(table: LiveTable) -> list[str]:
    """The table as a terminal shows it."""
    out = StringIO()
    console = Console(file=out, width=80, height=table.console.height, force_terminal=True, color_system=None)
    console.print(table.render())
    return out.getvalue().splitlines()


def console(height: int = 24) -> Console:
    return Console(file=StringIO(), width=80, height=height, force_terminal=True, color_system=None)


def ended(round: int, accuracy: float) -> RoundRecord:
    return RoundRecord.from_json(json.dumps(record(round, accuracy)))


def test_every_run_has_a_line_that_fits_and_the_best_is_named() -> None:
    rows = {name: Row(f"{name}, {'a long column ' * 6}, seed 0", 10) for name in ("FedAvg", "SemiFL", "Anchor")}
    rows["FedAvg"].follow(ended(0, 0.5))
    rows["FedAvg"].follow(ended(1, 0.4))
    rows["SemiFL"].state = "failed"
    lines = drawn(LiveTable(rows, console(), "cells"))
    assert max(map(len, lines)) <= 80
    assert "2/10" in lines[1]
    assert "40.0%  50.0%" in lines[1]
    assert "16 s" in lines[1]  # two seconds a round
    assert "failed" in lines[2]
    assert lines[4].startswith("0/3 cells, ")
    assert lines[5].startswith("best so far: 50.0%  FedAvg, a long")


def test_a_small_terminal_shows_what_runs_and_counts_the_rest() -> None:
    rows = {number: Row(f"cell {number}", 10, 10, "finished") for number in range(50)}
    rows |= {number: Row(f"cell {number}", 10) for number in range(50, 100)}
    rows[50].state = "running"
    lines = drawn(LiveTable(rows, console(16)))
    assert len(lines) <= 16
    assert any(text.startswith("cell 50 ") for text in lines)
    assert any(text.startswith("… and 90 more") for text in lines)


def test_a_run_that_was_begun_before_starts_where_it_is(tmp_path: Path) -> None:
    folder = a_run(tmp_path / "a", 3, 9)
    (folder / "checkpoint").mkdir()
    (folder / "checkpoint" / "latest.json").write_text('{"round": 3}')
    row = Row.of("a", 9, RunDirectory(folder))
    assert (row.done, row.rounds, row.state) == (3, 9, "waiting")
    assert row.best is not None
    assert Row.of("b", 9, RunDirectory(tmp_path / "b")) == Row("b", 9)
