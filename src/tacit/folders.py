"""Folders of runs: one for each, named after what it is of, and played by one process at a time."""

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from tacit.errors import TacitError

PAUSES = (0.01, 0.1, 0.2, 0.7)  # seconds between attempts at a run that another process has


def safe(name: str) -> str:
    """A name as one folder can have it anywhere."""
    return "".join(letter if letter.isalnum() or letter in "+-._" else "-" for letter in name)


@contextmanager
def fresh(name: str, runs: Path = Path("runs")) -> Iterator[Path]:
    """A new folder under `runs`, made at once so that nobody else takes it; it goes again if nothing came into it."""
    folder, number, first = runs / safe(name), 2, not runs.exists()
    with writable(folder):
        while not _made(folder):
            folder, number = runs / f"{safe(name)}-{number}", number + 1
    try:
        yield folder
    finally:
        for empty in (folder, runs) if first else (folder,):
            with suppress(OSError):  # it is not empty
                empty.rmdir()


def _made(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        return False
    return True


@contextmanager
def writable(folder: Path) -> Iterator[None]:
    """What the system has against a place for something new, in one sentence."""
    try:
        yield
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise TacitError(f"can not write to {folder}: {reason}; choose another --out") from error


@contextmanager
def locked(folder: Path) -> Iterator[IO[bytes]]:
    """Keep a second process out of the same run; one that only looks whether it is played is gone in a moment."""
    with (folder / "config.toml").open("rb") as file:
        for pause in (*PAUSES, None):
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if pause is None:
                    raise TacitError(f"another process is running {folder}: wait for it, or stop it first") from None
                time.sleep(pause)
            except OSError as error:
                raise _without_locks(folder, error) from error
        yield file


def being_played(folder: Path) -> bool:
    """Whether some process has the run; shared, so that two who look do not take each other for it."""
    with (folder / "config.toml").open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError as error:
            raise _without_locks(folder, error) from error
    return False


def _without_locks(folder: Path, error: OSError) -> TacitError:
    reason = error.strerror or error
    return TacitError(f"the file system of {folder} has no locks ({reason}): move the run to a disk of this machine")
