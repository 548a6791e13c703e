"""Follows the round log of a run from outside: every complete line is read once, also while the run writes it."""

from pathlib import Path
from typing import IO

from tacit.engines.record import RoundRecord
from tacit.runs.directory.round_log import LONGEST_LINE

CHUNK = 1 << 22  # bytes that are read at once
KNOWN = 256  # bytes before the current position that must still be the same


class RoundTail:
    """The records that a log gains between two looks. A log that was cut or replaced is read from its start again."""

    def __init__(self, path: Path) -> None:
        """Begin before the first line; the file need not exist yet."""
        self.path = path
        self.epoch = 0  # how often the log was read from its start again
        self._forget()

    def _forget(self) -> None:
        self._inode, self._at, self._known, self._last = -1, 0, b"", -1
        self._seen: tuple[int, int, int] | None = None
        self.damaged = 0  # lines that are not the record of a later round

    def _restart(self) -> None:
        if self._at:
            self.epoch += 1
        self._forget()

    def read(self) -> list[RoundRecord]:
        """The new records. If `epoch` has grown, those of earlier calls no longer count."""
        try:
            status = self.path.stat()
            seen = status.st_ino, status.st_size, status.st_mtime_ns
            if seen == self._seen:
                return []
            with self.path.open("rb") as file:
                if not self._continues(file, status.st_ino):
                    self._restart()
                found = self._new_lines(file)
        except OSError:  # it is gone, or being replaced
            self._restart()
            return []
        self._inode, self._seen = status.st_ino, seen
        return found

    def _continues(self, file: IO[bytes], inode: int) -> bool:
        """Whether a file is the one that was read so far, with the same content up to here."""
        file.seek(self._at - len(self._known))
        return self._inode in (-1, inode) and file.read(len(self._known)) == self._known

    def _new_lines(self, file: IO[bytes]) -> list[RoundRecord]:
        found = list[RoundRecord]()
        rest = b""
        file.seek(self._at)
        while part := file.read(CHUNK):
            *lines, rest = (rest + part).split(b"\n")
            for line in lines:
                self._take(line, found)
            if len(rest) > LONGEST_LINE:  # damaged, so it is skipped
                self.damaged += 1
                self._advance(rest)
                rest = b""
        return found

    def _take(self, line: bytes, found: list[RoundRecord]) -> None:
        self._advance(line + b"\n")
        try:
            record = RoundRecord.from_json(line)
        except ValueError:
            self.damaged += 1
            return
        if record.round <= self._last:
            self.damaged += 1
            return
        self._last = record.round
        found.append(record)

    def _advance(self, done: bytes) -> None:
        self._at += len(done)
        self._known = (self._known + done)[-KNOWN:]
