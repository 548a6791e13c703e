"""A table of predictions that grows on disk. After a kill it continues where it stopped."""

import csv
import io
import json
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any

from tacit.errors import TacitError
from tacit.inference.drift import Seen
from tacit.inference.prediction import Columns, Predicted, Row
from tacit.inference.samples import Block
from tacit.storage import on_disk, write_durably

_FIRST = b"path,prediction,confidence"  # how every table begins
SYNC = 1.0  # seconds between two times that the progress is brought to disk


@dataclass(frozen=True)
class Progress:
    """How far a table has got."""

    fingerprint: str  # of the model and the options
    blocks: int = 0
    samples: int = 0
    length: int = 0  # of the partial file, in bytes
    names: str = ""  # a hash of the names of all samples so far
    seen: Seen = field(default_factory=Seen)

    def to_json(self) -> str:
        """As JSON."""
        return json.dumps(vars(self) | {"seen": self.seen.to_plain()})

    @classmethod
    def from_json(cls, text: str) -> "Progress":
        """From `to_json`; a ValueError, KeyError or TypeError for anything else."""
        values: dict[str, Any] = json.loads(text)
        return cls(**values | {"seen": Seen.from_plain(values["seen"])})


class GrowingTable:
    """The table at `path`, which is complete once `finish` was called."""

    def __init__(self, path: Path, columns: Columns, fingerprint: str) -> None:
        """Continue what a process with the same model and options left, or begin."""
        refuse_others(path)
        self.path, self._columns, self._empty = path, columns, Progress(fingerprint)
        self._partial, self._note = (path.with_name(f"{path.name}.{end}") for end in ("partial", "progress"))
        with on_disk(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        self.progress = self._left() or self._begin()
        self._file, self._synced = self._open(), time.monotonic()

    def skip_done(self, blocks: Iterator[Block]) -> bool:
        """Pass over the blocks that are in the table already; False, and the table begins again, if they differ."""
        names = ""
        for block in islice(blocks, self.progress.blocks):
            names = _chained(names, block.names)
        if names == self.progress.names:
            return True
        self._file.close()
        self.progress = self._begin()
        self._file = self._open()
        return False

    def append(self, block: Block, predicted: Predicted) -> None:
        """Add the rows of a block."""
        data, now = _encoded(predicted.rows), self.progress
        with on_disk(self._partial):
            self._file.write(data)
        self.progress = replace(
            now,
            blocks=now.blocks + 1,
            samples=now.samples + len(block.names),
            length=now.length + len(data),
            names=_chained(now.names, block.names),
            seen=now.seen + predicted.seen,
        )
        if time.monotonic() - self._synced > SYNC:
            self.save()

    def save(self) -> None:
        """Bring the rows to disk, and how many they are."""
        with on_disk(self._partial):
            self._file.flush()
            os.fsync(self._file.fileno())
        write_durably(self._note, self.progress.to_json().encode())
        self._synced = time.monotonic()

    def finish(self) -> None:
        """Give the table its name."""
        self.save()
        with on_disk(self.path):
            self._partial.replace(self.path)
            self._note.unlink(missing_ok=True)

    def close(self) -> None:
        """Close the file; what was not saved is made again by the next process."""
        with suppress(OSError):
            self._file.close()

    def _begin(self) -> Progress:
        self._note.unlink(missing_ok=True)
        data = _encoded([self._columns.names])
        with on_disk(self._partial):
            self._partial.write_bytes(data)
        return replace(self._empty, length=len(data))

    def _left(self) -> Progress | None:
        """The progress of an earlier process, if it had the same model and options and its rows are there."""
        try:
            progress = Progress.from_json(self._note.read_text(encoding="utf-8"))
            there = self._partial.stat().st_size
        except (OSError, ValueError, KeyError, TypeError):
            return None
        fits = progress.fingerprint == self._empty.fingerprint and there >= progress.length
        return progress if fits else None

    def _open(self) -> io.BufferedRandom:
        with on_disk(self._partial):
            file = self._partial.open("r+b")
            file.truncate(self.progress.length)
            file.seek(self.progress.length)
        return file


def rows_of(path: Path) -> Iterator[dict[str, str]]:
    """The rows of a finished table, one by one, by the names of their columns."""
    with path.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
        yield from csv.DictReader(file)


def refuse_others(path: Path) -> None:
    """Refuse to replace a file that is no table of predictions."""
    if path.is_dir():
        raise TacitError(f"cannot write {path}: it is a folder", "give the path of a file", code="storage.is-folder")
    if path.exists():
        with path.open("rb") as file:
            ours = file.read(len(_FIRST)) == _FIRST
        if not ours:
            problem = f"{path} exists and is no table of predictions"
            raise TacitError(problem, "choose another --out", code="predict.other-file")


def _encoded(rows: Iterable[Row]) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode("utf-8", "surrogateescape")


def _chained(before: str, names: Iterable[str]) -> str:
    digest = sha256(before.encode())
    for name in names:
        digest.update(name.encode("utf-8", "surrogateescape") + b"\0")
    return digest.hexdigest()
