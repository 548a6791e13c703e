"""Client processes forked out of one that has imported everything: they are what Flower's own program would be."""

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


def test_the_program_imports_next_to_nothing(den: Path) -> None:
    """It starts for every message; what takes long is behind the door."""
    words = [sys.executable, "-ISX", "importtime", knock.__file__, str(den / "door"), "/bin/false", "--help"]
    said = subprocess.run(words, capture_output=True, text=True, timeout=120, check=True).stderr
    assert not {"torch", "numpy", "flwr", "tacit"} & {line.rpartition("|")[2].strip() for line in said.splitlines()}
