"""Playing a table: one after another or side by side, killed or not, the numbers are the same."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from tacit.bench import cells, play
from tacit.bench.cells import Cell
from tacit.errors import TacitError
from tacit.machine import cores
from tests.bench import small
from tests.engines import farm

TOOLS = Path(__file__).parents[2]
WAITING = """
title = "Clients that wait"
bounds = []
[settings]
rounds = 3
cohort = 2
data = {{ name = "{data}", clients = 4, labels = "client", per_class = 1 }}
net.name = "linear"
engine.workers = 0
[columns.iid]
[columns.even]
settings.data.partition = "even"
[rows.waiting]
settings.method = {{ name = "tests.engines.farm:Waiting", folder = "{folder}", after = 1 }}
"""


def heard(all_cells: list[Cell], side_by_side: int = 1, terminal: bool = False) -> tuple[str, list[str]]:
    """What was printed while cells were played, and which of them failed."""
    out = StringIO()
    console = Console(file=out, width=200, force_terminal=terminal, color_system=None)
    failures = play.play(all_cells, side_by_side, console)
    return out.getvalue(), failures


def all_numbers(all_cells: list[Cell]) -> list[object]:
    return [small.numbers(cell.folder) for cell in all_cells]


def test_cells_are_played_once_and_every_one_is_told(tmp_path: Path) -> None:
    planned = small.planned(small.write(tmp_path), tmp_path / "runs")
    said, failures = heard(planned)
    assert failures == []
    assert all(cells.finished(cell) for cell in planned)
    lines = said.splitlines()
    assert len(lines) == 5
    assert re.fullmatch(
        r"1/5 cells, [\d.]+ s spent, about [\d.]+ s left  FedAvg, IID, seed 0: [\d.]+ % in [\d.]+ s", lines[0]
    )
    assert re.match(r"5/5 cells, [\d.]+ s spent  Labels only, Two classes, seed 0: ", lines[-1])
    assert heard(planned) == ("", [])


def test_a_terminal_gets_bars_and_keeps_the_lines_of_cells(tmp_path: Path) -> None:
    said, _ = heard(small.planned(small.write(tmp_path), tmp_path / "runs")[:2], terminal=True)
    assert "2/2 cells" in said
    assert "FixMatch, IID, seed 0: " in said


def test_a_cell_that_fails_does_not_stop_the_others(tmp_path: Path) -> None:
    """That there are fewer samples than clients is seen only once the data is loaded."""
    path = small.changed(tmp_path, 'partition = "classes:2"', "clients = 5000")
    planned = small.planned(path, tmp_path / "runs")
    said, failures = heard(planned)
    assert len(failures) == 2
    assert failures[0].startswith("FedAvg, Two classes, seed 0: 5000 clients can not share")
    assert [cells.finished(cell) for cell in planned] == [True, True, True, False, False]
    assert "3/5 cells" in said.splitlines()[-1]


def test_a_run_of_another_config_is_moved_aside_and_said(tmp_path: Path) -> None:
    path = small.write(tmp_path)
    (before,) = small.planned(path, tmp_path / "runs", extra={"train.lr": 0.5})[:1]
    heard([before])
    old = small.numbers(before.folder)
    (cell,) = small.planned(path, tmp_path / "runs")[:1]
    said, _ = heard([cell])
    (aside,) = cell.folder.parent.glob("seed-0.old-*")
    assert f"FedAvg, IID, seed 0: the run of another config or version is now {aside}\n" in said
    assert small.numbers(aside) == old
    assert small.numbers(cell.folder) != old


def test_an_interrupted_cell_goes_on_with_another_engine(tmp_path: Path) -> None:
    path = small.write(tmp_path)
    alone, cell = (small.planned(path, tmp_path / place)[0] for place in ("alone", "runs"))
    heard([alone])
    rounds = cells.begin(cell).rounds()
    next(rounds)
    rounds.close()
    assert cells.rounds_done(cell) == 1
    said, _ = heard(small.planned(path, tmp_path / "runs", extra={"engine.workers": 2})[:1])
    assert said.startswith("1/1 cells")
    assert all_numbers([cell]) == all_numbers([alone])


def test_no_more_cells_at_once_than_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    for number in (0, 3):
        with pytest.raises(TacitError, match=f"{number} cells can not run side by side on 2 cores: use 1 to 2"):
            heard(small.planned(small.write(tmp_path), tmp_path / "runs"), number)
    assert not (tmp_path / "runs").exists()


def test_side_by_side_gives_the_bits_of_one_after_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    path = small.write(tmp_path)
    alone, together = (small.planned(path, tmp_path / place)[:2] for place in ("alone", "together"))
    heard(alone)
    said, failures = heard(together, side_by_side=2)
    assert failures == []
    assert said.splitlines()[-1].startswith("2/2 cells")
    assert all_numbers(together) == all_numbers(alone)
    for one, other in zip(alone, together, strict=True):
        name = "model.safetensors"
        assert (one.folder / name).read_bytes() == (other.folder / name).read_bytes()
    assert farm.eventually(lambda: not players(os.getpid()))


def players(parent: int) -> list[int]:
    """The processes in which a process plays cells."""
    found = []
    for process in farm.processes():
        line = Path(f"/proc/{process.pid}/cmdline")
        if process.parent == parent and line.exists() and b"spawn_main" in line.read_bytes():
            found.append(process.pid)
    return found


@contextmanager
def running(path: Path, out: Path) -> Iterator["subprocess.Popen[str]"]:
    """`tacit bench run` on two cells at once, in a session of its own that does not survive the test."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tacit", "bench", "run", str(path), "--side-by-side", "2", "--out", str(out)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        cwd=TOOLS,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(TOOLS / "src"), str(TOOLS)]), "PYTHON_CPU_COUNT": "2"},
    )
    try:
        yield process
    finally:
        if farm.members(process.pid):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.mark.slow
@pytest.mark.skipif(cores() < 2, reason="needs two cores")
@pytest.mark.parametrize("struck", ["a child", "the parent", "all, by Ctrl-C"])
def test_the_numbers_survive_a_kill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, struck: str) -> None:
    monkeypatch.setattr(farm, "PATIENCE", 240.0)  # three processes load torch, on a machine that may be busy
    path, out = tmp_path / "waiting.toml", tmp_path / "runs"
    path.write_text(WAITING.format(data=farm.write_images(tmp_path / "images.npz"), folder=tmp_path))
    (tmp_path / "wait").touch()
    planned = small.planned(path, out)
    with running(path, out) as process:
        assert farm.eventually(lambda: all(cells.rounds_done(cell) == 1 for cell in planned))
        children = players(process.pid)
        assert len(children) == 2
        if struck == "a child":
            os.kill(children[0], signal.SIGKILL)
            (tmp_path / "wait").unlink()
        elif struck == "the parent":
            process.kill()
        else:
            os.killpg(process.pid, signal.SIGINT)
        code = process.wait(farm.PATIENCE)
        assert farm.eventually(partial(nobody, children))
        said = process.stderr.read() if process.stderr else ""
    (tmp_path / "wait").unlink(missing_ok=True)
    done = sum(map(cells.finished, planned))
    if struck == "a child":
        assert (code, done) == (2, 1)
        assert "1 of 2 cells failed: waiting, " in said
        assert "its process ended with code -9; run the same command to go on" in said
    elif struck == "the parent":
        assert (code, done) == (-signal.SIGKILL, 0)
    else:
        assert (code, done) == (130, 0)
        assert re.search(r"stopped with \d of 2 cells done; go on with the same command", said)
    heard(planned)
    alone = small.planned(path, tmp_path / "alone")
    heard(alone)
    assert all_numbers(planned) == all_numbers(alone)


def nobody(pids: list[int]) -> bool:
    return not {process.pid for process in farm.processes()} & set(pids)
