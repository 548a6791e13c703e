"""Client memories: what each client remembers, as bytes, in RAM up to a limit and on disk beyond it.

Files are named `<client>.<round>`: a memory written in round r never replaces an older one, so the checkpoints of
earlier rounds stay complete. A checkpoint lists the round and the SHA-256 of every memory that belongs to it.
"""

import os
import re
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping
from hashlib import sha256
from pathlib import Path

from tacit.errors import TacitError
from tacit.storage import on_disk, sync_folder, write_durably

VERSION_BYTES = 64  # of what a client with a store of its own sends in place of its memory, at most
KEPT = 3  # versions in a client's own store that the server has acknowledged

Version = tuple[int, str]  # round and SHA-256 of a memory
Index = Mapping[int, Version]  # by client

_FILE = re.compile(r"(\d{1,12})\.(\d{1,12})")


class BrokenMemoryError(TacitError):
    """A memory on disk is missing, or not the one that was written."""


class Memories:
    """The committed memory of every client that has one."""

    def __init__(self, folder: Path, limit: int) -> None:
        """`limit` is the number of bytes held in RAM; the rest goes to `folder`, and everything at a checkpoint."""
        self._folder, self._limit = folder, limit
        self._ram: OrderedDict[int, bytes] = OrderedDict()  # least recently used first
        self._held = 0
        self._round: dict[int, int] = {}  # of each client's memory
        self._on_disk: dict[int, Version] = {}  # the newest file of each client
        self._unsaved: set[int] = set()
        self._superseded: list[tuple[int, int]] = []  # client and round of older files

    def get(self, client: int) -> bytes | None:
        """The client's memory, or None before its first."""
        if client in self._ram:
            self._ram.move_to_end(client)
            return self._ram[client]
        return self._read(client, self._on_disk[client]) if client in self._round else None

    def commit(self, round: int, memories: Mapping[int, bytes]) -> None:
        """Store new memories, once the server has merged the uploads that belong to them."""
        for client, data in memories.items():
            self._held += len(data) - len(self._ram.pop(client, b""))
            self._ram[client] = data
            self._round[client] = round
            self._unsaved.add(client)
        while self._held > self._limit and self._ram:
            client = next(iter(self._ram))
            if client in self._unsaved:
                self._write(client)
            self._held -= len(self._ram.pop(client))

    def save(self) -> Index:
        """Write everything to disk, and return what is there; older files stay until `prune`."""
        for client in sorted(self._unsaved):
            self._write(client)
        if self._folder.is_dir():
            sync_folder(self._folder)
        return dict(self._on_disk)

    def prune(self, kept: Collection[Index]) -> None:
        """Delete superseded files that belong to none of these checkpoints."""
        still = [
            (client, round)
            for client, round in self._superseded
            if any(client in index and index[client][0] == round for index in kept)
        ]
        for client, round in set(self._superseded) - set(still):
            (self._folder / f"{client}.{round}").unlink(missing_ok=True)
        self._superseded = still

    def restore(self, index: Index, kept: Collection[Index] = ()) -> None:
        """Return to the memories of a checkpoint; delete those that belong neither to it nor to the `kept` ones.

        A memory that is missing or changed is refused before anything is deleted. Files of other names stay.
        """
        for client, version in index.items():
            self._read(client, version)
        self._round = {client: round for client, (round, _) in index.items()}
        self._on_disk = dict(index)
        for path in self._folder.glob("*.*"):
            found = _FILE.fullmatch(path.name.removesuffix(".partial"))
            if found is None or not path.is_file():
                continue
            client, round = int(found[1]), int(found[2])
            if path.name.endswith(".partial") or not _among(client, round, (index, *kept)):
                path.unlink()
            elif not _among(client, round, (index,)):
                self._superseded.append((client, round))

    def _read(self, client: int, version: Version) -> bytes:
        path = self._folder / f"{client}.{version[0]}"
        return read_verified(path, version[1])

    def _write(self, client: int) -> None:
        with on_disk(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
        if client in self._on_disk:
            self._superseded.append((client, self._on_disk[client][0]))
        round, data = self._round[client], self._ram[client]
        write_durably(self._folder / f"{client}.{round}", data)
        self._on_disk[client] = round, sha256(data).hexdigest()
        self._unsaved.discard(client)


def _among(client: int, round: int, indices: Iterable[Index]) -> bool:
    return any(client in index and index[client][0] == round for index in indices)


def read_verified(path: Path, digest: str) -> bytes:
    """The bytes of a file whose SHA-256 is known; refuses any others."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise _broken(path, error.strerror or str(error)) from error
    if sha256(data).hexdigest() != digest:
        raise _broken(path, "it was changed")
    return data


def _broken(path: Path, reason: str) -> BrokenMemoryError:
    return BrokenMemoryError(
        f"cannot read {path} ({reason})",
        "restore it, or resume from an earlier round with `--from`",
        code="run.broken-checkpoint",
    )


class MemoryStore:
    """One client's memory on its own disk, for engines that leave it there; the server only knows its version.

    A version counts once the server asks for it in a later round. A few before it stay too, in case the reply gets
    lost or the server returns to an earlier checkpoint. A version names the round and begins the digest of the
    content, which comes first in the file: what was changed on disk, or belongs to another course of the run, is
    refused.
    """

    def __init__(self, folder: Path, keep: int = KEPT) -> None:
        """`folder` is for this client and this run only; no other user can read it."""
        self._folder, self._keep = folder, keep

    def load(self, version: bytes) -> bytes:
        """The memory of a version that the server has acknowledged; those long before it are deleted."""
        found = re.fullmatch(rb"(\d{1,9}):([0-9a-f]{32})", version)
        if found is None:
            raise TacitError(
                "the server asks for a memory without a version",
                "use the same version of Tacit there",
                code="engine.bad-memory-version",
            )
        number = int(found[1])
        path = self._folder / str(number)
        if not path.exists():
            raise TacitError(
                f"the memory of round {number + 1} is not in {self._folder}",
                "restore it, or start a new run",
                code="engine.memory-missing",
            )
        data = path.read_bytes()
        digest, memory = data[:32], data[32:]
        if sha256(memory).digest() != digest or digest.hex()[:32] != found[2].decode():
            raise TacitError(
                f"the memory of round {number + 1} in {self._folder} was changed",
                "restore it, or start a new run",
                code="engine.memory-changed",
            )
        self._delete_before(number)
        return memory

    def save(self, round: int, memory: bytes) -> bytes:
        """Write a round's memory; returns its version."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._folder.chmod(0o700)
        digest = sha256(memory)
        # Two processes may write the same round if the server repeats a task it believes lost.
        content, writer = digest.digest() + memory, f".{os.getpid()}"
        write_durably(self._folder / str(round), content, mode=0o600, writer=writer)
        sync_folder(self._folder)
        return f"{round}:{digest.hexdigest()[:32]}".encode()

    def _delete_before(self, number: int) -> None:
        """Delete older versions but for the last few, and partial files of killed processes."""
        names = [path.name for path in self._folder.iterdir()]
        older = sorted(int(name) for name in names if name.isdecimal() and int(name) < number)
        stay = {str(round) for round in older[len(older) - self._keep + 1 :]} if self._keep > 1 else set()
        for name in names:
            round = name.partition(".")[0]
            if round.isdecimal() and int(round) < number and name not in stay:
                (self._folder / name).unlink(missing_ok=True)  # another process may delete it at the same time
