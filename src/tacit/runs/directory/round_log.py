"""rounds.jsonl, one record per round: written by the run, read as a whole; `round_tail` follows it from outside."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tacit.engines.record import RoundRecord
from tacit.errors import TacitError
from tacit.storage import on_disk

LONGEST_LINE = 1 << 26  # bytes of a round's record; one with a million clients has fewer
AGAIN = "start the run again in another folder"


@dataclass(frozen=True)
class RoundLog:
    """The open round log of a run."""

    path: Path
    file: IO[bytes]

    def append(self, record: RoundRecord) -> None:
        """Add a round; others can read it at once."""
        with on_disk(self.path):
            self.file.write(f"{record.to_json()}\n".encode())
            self.file.flush()

    def sync(self) -> int:
        """Bring everything to disk; the length in bytes, for the checkpoint."""
        with on_disk(self.path):
            self.file.flush()
            os.fsync(self.file.fileno())
        return self.file.tell()


@contextmanager
def opened(path: Path, length: int) -> Iterator[RoundLog]:
    """The log, cut back to the `length` in bytes that the checkpoint knows, open for more rounds."""
    with on_disk(path):
        path.touch()
        file = path.open("r+b")
    try:
        if path.stat().st_size < length:
            raise TacitError(f"{path} has lost rounds that the checkpoint knows", AGAIN, code="run.broken-log")
        file.truncate(length)
        file.seek(length)
        yield RoundLog(path, file)
    finally:
        with suppress(OSError):  # what a full disk refuses now is newer than the checkpoint
            file.close()


def read(path: Path, count: int | None = None) -> list[RoundRecord]:
    """The complete records, or the first `count`; a last line without its end is still being written."""
    records = list[RoundRecord]()
    try:
        for line in _complete_lines(path) if path.exists() else ():
            if count is not None and len(records) == count:
                break
            records.append(RoundRecord.from_json(line))
            if len(records) > 1 and records[-2].round >= records[-1].round:
                raise ValueError(f"round {records[-1].round + 1} comes after round {records[-2].round + 1}")
    except (OSError, ValueError) as error:
        raise TacitError(f"cannot read {path} ({error})", AGAIN, code="run.broken-log") from error
    return records


def _complete_lines(path: Path) -> Iterator[bytes]:
    """The lines of a file; a last one without its end is left out, and one that no round can have is refused."""
    with path.open("rb") as file:
        while line := file.readline(LONGEST_LINE + 1):
            if len(line) > LONGEST_LINE:
                raise ValueError(f"a line is longer than {LONGEST_LINE:,} bytes")
            if line.endswith(b"\n"):
                yield line[:-1]
