"""Client memories: what each client remembers, as bytes, in RAM up to a limit and on disk beyond it.

Files are named `<client>.<round>`: a memory written at round r never replaces an older one, so a checkpoint of an
earlier round stays whole until the next one is in place.
"""

import errno
import os
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tacit.errors import TacitError

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # the disk, a quota, a file that may not grow


class DiskError(TacitError):
    """A file that can not be written: the disk is full, or no longer there."""


class Memories:
    """The committed memory of every client that has one."""

    def __init__(self, folder: Path, limit: int) -> None:
        """`limit` is the number of bytes held in RAM; `folder` takes the rest, and all of it at a checkpoint."""
        self._folder, self._limit = folder, limit
        self._ram: OrderedDict[int, bytes] = OrderedDict()  # least recently used first
        self._held = 0
        self._version: dict[int, int] = {}  # round of each client's memory
        self._on_disk: dict[int, int] = {}  # round of the newest file
        self._unsaved: set[int] = set()
        self._superseded: list[Path] = []

    def get(self, client: int) -> bytes | None:
        """The client's memory, or None before its first."""
        if client in self._ram:
            self._ram.move_to_end(client)
            return self._ram[client]
        return self._path(client).read_bytes() if client in self._version else None

    def commit(self, round: int, memories: Mapping[int, bytes]) -> None:
        """Take over new memories, once the server has merged what belongs to them."""
        for client, data in memories.items():
            self._held += len(data) - len(self._ram.pop(client, b""))
            self._ram[client] = data
            self._version[client] = round
            self._unsaved.add(client)
        while self._held > self._limit and self._ram:
            client = next(iter(self._ram))
            if client in self._unsaved:
                self._write(client)
            self._held -= len(self._ram.pop(client))

    def save(self) -> None:
        """Bring everything to disk; older files stay until `forget_older`."""
        for client in sorted(self._unsaved):
            self._write(client)
        if self._folder.is_dir():
            sync_folder(self._folder)

    def forget_older(self) -> None:
        """Delete the files that newer ones replace, once a checkpoint with the newer ones is in place."""
        for path in self._superseded:
            path.unlink(missing_ok=True)
        self._superseded.clear()

    def restore(self, round: int) -> None:
        """Go back to how memories stood after `round`, dropping whatever was written later."""
        for path in self._folder.glob("*.*"):
            client, _, version = path.name.partition(".")
            if not version.isdigit() or int(version) > round:
                path.unlink()
                continue
            newest = max(int(version), self._version.get(int(client), -1))
            self._version[int(client)] = self._on_disk[int(client)] = newest
        for path in self._folder.glob("*.*"):
            client, _, version = path.name.partition(".")
            if int(version) < self._version[int(client)]:
                path.unlink()

    def _path(self, client: int) -> Path:
        return self._folder / f"{client}.{self._version[client]}"

    def _write(self, client: int) -> None:
        with on_disk(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
        if client in self._on_disk:
            self._superseded.append(self._folder / f"{client}.{self._on_disk[client]}")
        write_durably(self._path(client), self._ram[client])
        self._on_disk[client] = self._version[client]
        self._unsaved.discard(client)


class Shelf:
    """One client's memory on its own disk, for engines that leave it there; the server only knows its version.

    A version counts once the server asks for it in a later round; until then the one before stays too, so that a
    reply that got lost, or a server that went back to its last checkpoint, finds what belongs to it.
    """

    def __init__(self, folder: Path) -> None:
        """`folder` is for this client and run alone, and for nobody else to read."""
        self._folder = folder

    def take(self, version: bytes) -> bytes:
        """The memory of a version that the server has acknowledged; those before it are forgotten."""
        number = int(version)
        path = self._folder / str(number)
        if not path.exists():
            raise TacitError(
                f"the memory of round {number + 1} is not in {self._folder}: put it back, or start a new run"
            )
        for other in self._folder.iterdir():
            round = other.name.partition(".")[0]  # also of what a visit that was killed left half written
            if round.isdecimal() and int(round) < number:
                other.unlink(missing_ok=True)  # another visit, which took too long, may do the same
        return path.read_bytes()

    def put(self, round: int, memory: bytes) -> bytes:
        """Write a round's memory; the version to call it by."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._folder.chmod(0o700)
        # Two visits of a round may be at it, when the server asked again for what it believed lost.
        write_durably(self._folder / str(round), memory, mode=0o600, writer=f".{os.getpid()}")
        sync_folder(self._folder)
        return str(round).encode()


def write_durably(path: Path, data: bytes, mode: int = 0o666, writer: str = "") -> None:
    """Write, sync, rename: afterwards the file is either all there or as it was.

    Where several processes may write the same file at once, `writer` tells them apart.
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


@contextmanager
def on_disk(path: Path) -> Iterator[None]:
    """What the system has against writing there, in one sentence."""
    try:
        yield
    except OSError as error:
        remedy = "make room" if error.errno in FULL else "mend that"
        raise DiskError(f"{path} can not be written ({error.strerror or error}): {remedy}, then resume") from error


def sync_folder(folder: Path) -> None:
    """Have the names of new files survive a power cut too."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
