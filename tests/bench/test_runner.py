"""Running a table: one cell at a time or several, killed or not, the numbers are the same."""

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

from tacit.bench import plan, runner
from tacit.bench.plan import CellRun
from tacit.process import cores
from tests.bench import small
from tests.engines import farm
from tests.refusals import refused

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


def output(runs: list[CellRun], jobs: int = 1, terminal: bool = False) -> tuple[str, list[str]]:
    """What was printed while cells ran, and which of them failed."""
    out = StringIO()
    console = Console(file=out, width=200, force_terminal=terminal, color_system=None)
    failures = runner.run_cells(runs, jobs, console)
    return out.getvalue(), failures


def all_numbers(runs: list[CellRun]) -> list[object]:
    return [small.numbers(run.folder) for run in runs]


def test_every_cell_runs_once_and_prints_a_line(tmp_path: Path) -> None:
    runs = small.planned(small.write(tmp_path), tmp_path / "runs")
    text, failures = output(runs)
    assert failures == []
    assert all(plan.is_finished(run) for run in runs)
    lines = text.splitlines()
    assert len(lines) == 5
    assert re.fullmatch(
        r"1/5 cells, [\d.]+ s spent, about [\d.]+ s left  FedAvg, IID, seed 0: [\d.]+ % in [\d.]+ s", lines[0]
    )
    assert re.match(r"5/5 cells, [\d.]+ s spent  Labels only, Two classes, seed 0: ", lines[-1])
    assert output(runs) == ("", [])


def test_a_terminal_shows_bars_and_the_line_of_every_finished_cell(tmp_path: Path) -> None:
    text, _ = output(small.planned(small.write(tmp_path), tmp_path / "runs")[:2], terminal=True)
    assert "2/2 cells" in text
    assert "FixMatch, IID, seed 0: " in text


def test_a_cell_that_fails_does_not_stop_the_others(tmp_path: Path) -> None:
    """Too few samples for the clients is noticed only once the data is loaded."""
    path = small.changed(tmp_path, 'partition = "classes:2"', "clients = 5000")
    runs = small.planned(path, tmp_path / "runs")
    text, failures = output(runs)
    assert len(failures) == 2
    assert failures[0].startswith("FedAvg, Two classes, seed 0: 5000 clients ")
    assert [plan.is_finished(run) for run in runs] == [True, True, True, False, False]
    assert "3/5 cells" in text.splitlines()[-1]


def test_a_run_of_another_config_is_moved_aside_with_a_notice(tmp_path: Path) -> None:
    path = small.write(tmp_path)
    (before,) = small.planned(path, tmp_path / "runs", extra={"train.lr": 0.5})[:1]
    output([before])
    old = small.numbers(before.folder)
    (run,) = small.planned(path, tmp_path / "runs")[:1]
    text, _ = output([run])
    (aside,) = run.folder.parent.glob("seed-0.old-*")
    assert f"FedAvg, IID, seed 0: the run of another config or version is now {aside}\n" in text
    assert small.numbers(aside) == old
    assert small.numbers(run.folder) != old


def test_an_interrupted_cell_continues_with_another_engine(tmp_path: Path) -> None:
    path = small.write(tmp_path)
    alone, run = (small.planned(path, tmp_path / place)[0] for place in ("alone", "runs"))
    output([alone])
    rounds = plan.begin(run).rounds()
    next(rounds)
    rounds.close()
    assert plan.rounds_done(run) == 1
    text, _ = output(small.planned(path, tmp_path / "runs", extra={"engine.workers": 2})[:1])
    assert text.startswith("1/1 cells")
    assert all_numbers([run]) == all_numbers([alone])


def test_more_jobs_than_cores_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    for number in (0, 3):
        with refused("bench.jobs"):
            output(small.planned(small.write(tmp_path), tmp_path / "runs"), number)
    assert not (tmp_path / "runs").exists()


def test_parallel_jobs_give_the_same_bits_as_one_after_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    path = small.write(tmp_path)
    alone, together = (small.planned(path, tmp_path / place)[:2] for place in ("alone", "together"))
    output(alone)
    text, failures = output(together, jobs=2)
    assert failures == []
    assert text.splitlines()[-1].startswith("2/2 cells")
    assert all_numbers(together) == all_numbers(alone)
    for one, other in zip(alone, together, strict=True):
        name = "model.safetensors"
        assert (one.folder / name).read_bytes() == (other.folder / name).read_bytes()
    assert farm.eventually(lambda: not children_of(os.getpid()))


def children_of(parent: int) -> list[int]:
    """The processes in which a process runs cells."""
    found = []
    for process in farm.processes():
        line = Path(f"/proc/{process.pid}/cmdline")
        if process.parent == parent and line.exists() and b"spawn_main" in line.read_bytes():
            found.append(process.pid)
    return found


@contextmanager
def running(path: Path, out: Path) -> Iterator["subprocess.Popen[str]"]:
    """`tacit bench run` on two cells at once, in a separate session that ends with the test."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tacit", "bench", "run", str(path), "--jobs", "2", "--out", str(out)],
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
@pytest.mark.parametrize("killed", ["a child", "the parent", "all, by Ctrl-C"])
def test_a_kill_does_not_change_the_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: str) -> None:
    monkeypatch.setattr(farm, "PATIENCE", 240.0)  # three processes load torch, on a machine that may be busy
    path, out = tmp_path / "waiting.toml", tmp_path / "runs"
    path.write_text(WAITING.format(data=farm.write_images(tmp_path / "images.npz"), folder=tmp_path))
    (tmp_path / "wait").touch()
    runs = small.planned(path, out)
    with running(path, out) as process:
        assert farm.eventually(lambda: all(plan.rounds_done(run) == 1 for run in runs))
        children = children_of(process.pid)
        assert len(children) == 2
        if killed == "a child":
            os.kill(children[0], signal.SIGKILL)
            (tmp_path / "wait").unlink()
        elif killed == "the parent":
            process.kill()
        else:
            os.killpg(process.pid, signal.SIGINT)
        code = process.wait(farm.PATIENCE)
        assert farm.eventually(partial(all_ended, children))
        errors = process.stderr.read() if process.stderr else ""
    (tmp_path / "wait").unlink(missing_ok=True)
    done = sum(map(plan.is_finished, runs))
    if killed == "a child":
        assert (code, done) == (2, 1)
        assert "1 of 2 cells failed: waiting, " in errors
        assert "its process ended with code -9; run the same command to continue" in errors
    elif killed == "the parent":
        assert (code, done) == (-signal.SIGKILL, 0)
    else:
        assert (code, done) == (130, 0)
        assert re.search(r"stopped with \d of 2 cells done; run the same command to continue", errors)
    output(runs)
    alone = small.planned(path, tmp_path / "alone")
    output(alone)
    assert all_numbers(runs) == all_numbers(alone)


def all_ended(pids: list[int]) -> bool:
    return not {process.pid for process in farm.processes()} & set(pids)
