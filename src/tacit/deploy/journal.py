"""A site's journal, `journal.jsonl`: what left the machine, when, how many bytes, and to which run.

A line is written before the reply it describes leaves. Lines are only added, and each names the hash of the line before
it, so a line that was changed or removed later is noticed. The journal holds what was sent to the hub and nothing else
about the site's data.
"""

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from tacit.protect.sample_budget import Spent, delta_of, epsilon
from tacit.storage import SECRET, in_turn, on_disk

FILE = "journal.jsonl"
TAIL = 1 << 16  # bytes in which the last line is looked for; lines are shorter

INTRODUCTION, UPDATE, EXCHANGE, REFUSAL, FAILURE = "introduction", "update", "exchange", "refusal", "failure"


@dataclass(frozen=True)
class Entry:
    """One reply that left the site."""

    at: str  # UTC, ISO 8601
    kind: str  # introduction, update, exchange (a step of secure aggregation), refusal or failure
    run: str
    round: int | None  # from 1; None outside of rounds
    method: str
    fields: tuple[str, ...]  # names of what was sent
    bytes: int
    hub: str = ""  # its address
    reason: str = ""  # what was sent to the hub about a refusal or a failure
    scores: dict[str, float] = field(default_factory=dict)  # of the common model on this site's own samples, if shared
    privacy: dict[str, float] = field(default_factory=dict)  # DP-SGD behind an update: noise, rate, steps, and delta


@dataclass(frozen=True)
class Journal:
    """The entries of a journal, and how many of its lines cannot be trusted."""

    entries: tuple[Entry, ...]
    damaged: int = 0  # lines that cannot be read
    broken: int = 0  # lines that do not follow the one before them, since it was changed or removed

    def spent(self) -> list[Spent]:
        """The steps of training behind everything that has left; those without noise are not protected."""
        return [_spent(entry) for entry in self.entries if entry.kind == UPDATE and not _only_scores(entry)]

    def privacy(self, also: Spent | None = None, samples: int = 0) -> tuple[float, float]:
        """ε and δ of everything that has left, and of `also`, for a single sample among this many."""
        known = [entry.privacy["delta"] for entry in self.entries if "delta" in entry.privacy]
        delta = min([delta_of(samples), *known])
        return epsilon([*self.spent(), *([] if also is None else [also])], delta), delta

    def failures(self, run: str) -> int:
        """How often the site has failed in a run."""
        return sum(entry.kind == FAILURE and entry.run == run for entry in self.entries)


def privacy_of(spent: Spent, samples: int) -> dict[str, float]:
    """The steps of an update as an entry holds them."""
    return {**asdict(spent), "delta": delta_of(samples)}


def _spent(entry: Entry) -> Spent:
    try:
        given = entry.privacy
        return Spent(float(given["noise"]), float(given["rate"]), int(given["steps"]))
    except (KeyError, TypeError, ValueError):  # written before updates had an account
        return Spent(0.0, 1.0, 1)


def _only_scores(entry: Entry) -> bool:
    """Whether nothing left that was trained: scores are those of the common model on held-out samples."""
    return all(name.startswith("score ") for name in entry.fields)


def append(folder: Path, entry: Entry) -> None:
    """Add a line, on disk when this returns. Several processes may do so at once."""
    path = folder / FILE
    with on_disk(path), in_turn(path, SECRET) as file:
        file.seek(max(file.seek(0, os.SEEK_END) - TAIL, 0))
        end = file.read()
        whole = end.endswith(b"\n") or not end  # a killed process may have left part of a line
        last = end.removesuffix(b"\n").rpartition(b"\n")[2]
        line = json.dumps(asdict(entry) | {"previous": _hash(last)}, ensure_ascii=False).encode()
        os.write(file.fileno(), (b"" if whole else b"\n") + line + b"\n")  # at once, so that no part of it stays behind
        os.fsync(file.fileno())


def read(folder: Path) -> Journal:
    """The whole journal; empty if nothing has left the site."""
    try:
        lines = (folder / FILE).read_bytes().split(b"\n")[:-1]
    except FileNotFoundError:
        return Journal(())
    found = [*_parsed(lines)]
    entries = tuple(entry for entry, _ in found if entry is not None)
    return Journal(entries, sum(entry is None for entry, _ in found), sum(not follows for _, follows in found))


def _parsed(lines: list[bytes]) -> Iterator[tuple[Entry | None, bool]]:
    """Each line as an entry, None if it cannot be read, and whether it follows the line before it."""
    names, before = {item.name for item in fields(Entry)}, b""
    for line in lines:
        try:
            values = json.loads(line)
            follows = values.pop("previous") == _hash(before)
            known = {name: value for name, value in values.items() if name in names}
            yield Entry(**known | {"fields": tuple(map(str, known["fields"]))}), follows
        except (ValueError, TypeError, KeyError, AttributeError):
            yield None, True
        before = line


def _hash(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()
