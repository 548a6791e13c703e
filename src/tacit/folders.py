"""Folders of runs: one for each, named after what it is of, and played by one process at a time."""

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from tacit.errors import TacitError

PAUSES = (0.01, 0.1, 0.2, 0.7)  # seconds between attempts at a run that another process has


def fresh(name: str, runs: Path = Path("runs")) -> Path:
    """A folder under `runs` that is not there yet."""
    safe = "".join(letter if letter.isalnum() or letter in "+-._" else "-" for letter in name)
    folder, number = runs / safe, 2
    while folder.exists():
        folder, number = runs / f"{safe}-{number}", number + 1
    return folder


@contextmanager
def locked(folder: Path) -> Iterator[IO[bytes]]:
    """Keep a second process out of the same run; one that only looks whether it is played is gone in a moment."""
    with (folder / "config.toml").open("rb") as file:
        for pause in (*PAUSES, None):
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if pause is None:
                    raise TacitError(f"another process is running {folder}: wait for it, or stop it first") from None
                time.sleep(pause)
        yield file


def being_played(folder: Path) -> bool:
    """Whether some process has the run; shared, so that two who look do not take each other for it."""
    with (folder / "config.toml").open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
    return False
