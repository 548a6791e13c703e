"""Client processes forked out of one that has imported everything: they are what Flower's own program would be."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tacit.deploy import knock, programs, warm

pytest.importorskip("flwr", reason="Flower is not installed: pip install tacit[flower]")
pytestmark = pytest.mark.flower


def called(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """What Flower's program says when it is found in this folder."""
    return subprocess.run(
        [folder / warm.CLIENT, *arguments], capture_output=True, text=True, timeout=120, check=False, cwd=folder
    )


@pytest.fixture(scope="module")
def den(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the program in it and a warm process behind its door."""
    folder = tmp_path_factory.mktemp("den")
    warm.write_program(folder, folder / "door")
    with programs.running(warm.command(folder / "door"), folder / "home", folder / "warm.log") as process:
        until = time.monotonic() + 120
        while not (folder / "door").exists():
            assert process.ended() is None, process.said()
            assert time.monotonic() < until, process.said()
            time.sleep(0.05)
        yield folder


def test_what_is_forked_is_flowers_own_program(den: Path, tmp_path: Path) -> None:
    warm.write_program(tmp_path, tmp_path / "nobody")
    forked, own = called(den, "--help"), called(tmp_path, "--help")
    assert "--runtime-api-address" in own.stdout
    assert forked.stdout == own.stdout


def test_mistakes_are_said_where_the_program_says_them(den: Path) -> None:
    assert "error: one of the arguments --token" in called(den, "--nonsense").stderr


def test_one_after_another_and_whoever_went_away_does_no_harm(den: Path) -> None:
    with socket.socket(socket.AF_UNIX) as visitor:
        visitor.connect(str(den / "door"))
    for _ in range(3):
        assert "usage" in called(den, "--help").stdout


def knocking(door: Path) -> "subprocess.Popen[str]":
    """A task whose own program is `echo`."""
    words = [sys.executable, "-IS", knock.__file__, str(door), "/bin/echo", "done", "by", "itself"]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True)


def test_a_task_that_nobody_takes_is_done_by_its_own_program(tmp_path: Path) -> None:
    """The warm process dies with a task in line, or closes the door before it has forked."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "door"))
        listening.listen()
        with knocking(tmp_path / "door") as first:
            visitor, _ = listening.accept()
            asked, outputs = knock.receive(visitor)
            assert asked
            assert asked["arguments"] == ["done", "by", "itself"]
            for output in outputs:
                os.close(output)
            visitor.close()
            assert first.communicate(timeout=120)[0] == "done by itself\n"


def test_a_fork_that_fails_ends_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fork() -> int:
        raise BlockingIOError("no room")

    def program() -> None:
        raise AssertionError("nobody was forked")

    monkeypatch.setattr(os, "fork", fork)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "door"))
        listening.listen()
        with knocking(tmp_path / "door") as task:
            visitor, _ = listening.accept()
            with visitor:
                warm._serve(program, visitor, listening)
            assert task.communicate(timeout=120)[0] == "done by itself\n"
    assert "a task was not taken: no room" in capsys.readouterr().err


def test_the_program_imports_next_to_nothing(den: Path) -> None:
    """It starts for every message; what takes long is behind the door."""
    words = [sys.executable, "-ISX", "importtime", knock.__file__, str(den / "door"), "/bin/false", "--help"]
    said = subprocess.run(words, capture_output=True, text=True, timeout=120, check=True).stderr
    assert not {"torch", "numpy", "flwr", "tacit"} & {line.rpartition("|")[2].strip() for line in said.splitlines()}
