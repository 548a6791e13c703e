"""Files: written whole or not at all, locked, followed while they grow. The only copy of each of these mechanisms."""

import errno
import fcntl
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from tacit.errors import TacitError

LARGEST_TEXT = 1 << 30  # bytes of a file that is read as text
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # disk full, quota exceeded, file size limit
SECRET, OPEN = 0o600, 0o644  # file modes: readable by the owner only, or by everyone
PAUSES = (0.01, 0.1, 0.2, 0.7)  # seconds between attempts to lock a file


class DiskError(TacitError):
    """A file cannot be written: the disk is full, or gone."""


class LockedError(TacitError):
    """Another process holds the lock."""


def write_durably(path: Path, data: bytes, mode: int = 0o666, writer: str = "") -> None:
    """Write, sync, rename: afterwards the file is either complete or unchanged.

    Where several processes may write the same file at once, `writer` keeps their partial files apart.
    """
    partial = path.with_name(f"{path.name}{writer}.partial")
    with on_disk(path):
        try:
            with open(partial, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            partial.rename(path)
        except OSError:
            partial.unlink(missing_ok=True)
            raise


def write_quickly(path: Path, data: bytes) -> None:
    """Write and rename, never waiting for the disk: a reader gets a whole file or, for a moment, none.

    The old file is removed first. To replace it by a rename would make ext4 write the new one to disk at once, which
    takes seconds when the disk is busy.
    """
    partial = path.with_name(f"{path.name}.partial")
    with on_disk(path):
        try:
            partial.write_bytes(data)
            path.unlink(missing_ok=True)
            partial.rename(path)
        except OSError:
            partial.unlink(missing_ok=True)
            raise


def text_of(path: Path) -> str:
    """The text of a file, with or without a byte order mark; a ValueError if no such file can be that large."""
    size = path.stat().st_size
    if size > LARGEST_TEXT:
        raise ValueError(f"{path.name} has {size:,} bytes")
    return path.read_text(encoding="utf-8-sig")


@contextmanager
def on_disk(path: Path) -> Iterator[None]:
    """Turn an OSError while writing `path` into one sentence."""
    try:
        yield
    except OSError as error:
        full = error.errno in FULL
        raise DiskError(
            f"cannot write {path}: {error.strerror or error}",
            "free some space" if full else "check the disk and its permissions",
            code="storage.disk-full" if full else "storage.cannot-write",
        ) from error


def sync_folder(folder: Path) -> None:
    """Make the names of new files survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path to write to, which replaces `path` once the block has finished."""
    try:
        if path.is_dir():
            raise TacitError(
                f"cannot write {path}: it is a folder", "give the path of a file", code="storage.is-folder"
            )
        partial = path.with_name(f".{path.name}.partial-{os.getpid()}")
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield partial
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise TacitError(
            f"cannot write {path}: {error.strerror or error}", "choose another place", code="storage.cannot-write"
        ) from error


def write_new(folder: Path, files: Mapping[str, tuple[bytes, int]]) -> None:
    """Write new files with their modes, all or none; a file with a secret is never readable by others."""
    for name in files:
        if (folder / name).exists():
            raise TacitError(
                f"{folder / name} already exists", "choose another folder, or move it away", code="storage.exists"
            )
    done: list[Path] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, (content, mode) in files.items():
            (folder / name).parent.mkdir(exist_ok=True, mode=0o700)
            handle = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
            done.append(folder / name)
            with os.fdopen(handle, "wb") as file:
                file.write(content)
    except OSError as error:
        for path in done:
            path.unlink(missing_ok=True)
        raise TacitError(
            f"cannot write to {folder}: {error.strerror}", "choose another folder", code="storage.cannot-write"
        ) from error


@contextmanager
def writable(folder: Path) -> Iterator[None]:
    """Turn an error while creating `folder` into one sentence that points to --out."""
    try:
        yield
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise TacitError(
            f"cannot write to {folder}: {reason}", "choose another --out", code="storage.cannot-write"
        ) from error


class Tail:
    """The complete lines added to a file from now on. Nothing is read twice, since a log may grow long."""

    def __init__(self, path: Path) -> None:
        """Start at the current end of the file, which need not exist yet."""
        self._path, self._at = path, path.stat().st_size if path.exists() else 0

    def lines(self) -> list[str]:
        """The lines added since the last call."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._at)
            new = file.read()
        whole = new[: new.rfind(b"\n") + 1]
        self._at += len(whole)
        return whole.decode(errors="replace").splitlines()


@contextmanager
def locked(path: Path, mode: str = "rb", pauses: Sequence[float] | None = None) -> Iterator[IO[bytes]]:
    """Hold the exclusive lock on a file while the block runs; the lock ends with the process.

    Between attempts it pauses for PAUSES unless other `pauses` are given, long enough for a process that only tests
    the lock, then raises LockedError.
    """
    with path.open(mode) as file:
        for pause in (*(PAUSES if pauses is None else pauses), None):
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if pause is None:
                    raise LockedError(
                        f"another process is using {path}", "wait for it, or stop it first", code="storage.locked"
                    ) from None
                time.sleep(pause)
            except OSError as error:
                raise _without_locks(path, error) from error
        yield file


@contextmanager
def in_turn(path: Path, mode: int = 0o666, needed: bool = True) -> Iterator[IO[bytes]]:
    """Wait for the exclusive lock on a file, however long another process holds it; the file, to read and to append to.

    It is created with this mode if it does not exist. Where a file system has no locks, this is refused, or the block
    runs without one if it is not `needed`.
    """
    with open(path, "a+b", opener=lambda name, flags: os.open(name, flags, mode)) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as error:
            if needed:
                raise _without_locks(path, error) from error
        yield file


def is_locked(path: Path) -> bool:
    """Whether some process holds the lock on a file. It tests with a shared lock, so two tests do not collide."""
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError as error:
            raise _without_locks(path, error) from error
    return False


def _without_locks(path: Path, error: OSError) -> TacitError:
    return TacitError(
        f"the file system of {path.parent} does not support locks ({error.strerror or error})",
        "move the folder to a local disk",
        code="storage.no-locks",
    )
