"""One run, followed from outside: whatever is written, moved, deleted or damaged there, this says what it can."""

import math
from collections import deque
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from tacit.dashboard.series import Series, accuracy
from tacit.engines.events import RoundProgress
from tacit.engines.record import RoundRecord
from tacit.errors import TacitError
from tacit.formatting import printable
from tacit.runs.directory import RunDirectory
from tacit.runs.directory.round_tail import RoundTail
from tacit.runs.followers import progress

QUIET, PATIENCE = 120.0, 5.0  # a run is stalled after this many seconds, and this many of its slowest rounds
FIRST_ROUND = 900.0  # or after this many, before its first round has ended
LINES, SKIPS = 200, 300  # that are shown of the log, and of clients left out


def id_of(folder: Path) -> str:
    """The name of a folder in addresses; it tells nothing about the folder."""
    return sha256(str(folder).encode(errors="surrogateescape")).hexdigest()[:16]


@dataclass
class FollowedRun:
    """What is known about the run in a folder."""

    folder: Path
    id: str = ""
    label: str = ""  # in its plan
    column: str = ""
    group: str = ""
    planned_only: bool = False  # its folder is not there yet
    status: str = "waiting"
    problem: str = ""  # why it stopped, or why nothing else is known
    config: dict[str, Any] = field(default_factory=dict)
    planned_rounds: int = 0
    planned_seed: int | None = None
    series: Series = field(default_factory=Series)
    current: RoundProgress | None = None
    notices: dict[str, str] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)  # of sites
    stalled: bool = False
    revision: int = 0

    def __post_init__(self) -> None:
        """Begin with nothing known."""
        self.id = id_of(self.folder)
        self.directory = RunDirectory(self.folder)
        self._tail = RoundTail(self.directory.rounds_file)
        self._forget()
        self._signature: tuple[object, ...] = ()
        self._moved = 0.0  # when it last made progress
        self._early: int | None = None

    def _forget(self) -> None:
        self.series = Series()
        self.lines: deque[str] = deque(maxlen=LINES)
        self.skips: deque[tuple[int, int, str]] = deque(maxlen=SKIPS)
        self.skipped = self.rejected = 0
        self.last: RoundRecord | None = None

    @property
    def epoch(self) -> int:
        """Grows when the log starts over."""
        return self._tail.epoch

    # --- reading ------------------------------------------------------------------------------------------------------

    def refresh(self, now: float) -> bool:
        """Look again; whether anything has changed. `now` is the time of the clock of files."""
        epoch = self.epoch
        records = self._tail.read()
        if self.epoch != epoch:
            self._forget()
        for place, record in enumerate(records):
            self._take(record, shown=len(records) - place <= LINES)
        running = self._is_running()
        signature = (running, self.epoch, len(self.series), self._tail.damaged, *self.directory.changes())
        changed = signature != self._signature
        if changed:
            self._signature = signature
            self._read(running, now)
        stalled = self._is_stalled(now)
        changed |= stalled != self.stalled
        self.stalled = stalled
        return changed

    def _take(self, record: RoundRecord, *, shown: bool) -> None:
        self.series.append(record)
        self.last = record
        self.skipped += len(record.skipped)
        self.rejected += bool(record.rejected)
        self.skips.extend((record.round + 1, client, printable(why, 500)) for client, why in record.skipped.items())
        if not shown:  # a later line takes its place in the log
            return
        total = self.rounds or record.round + 1
        self.lines.extend(progress.skipped_lines(record, self._all_names(record)))
        self.lines.append(printable(progress.round_line(record, total, int(self.series.total("bytes")))))

    def _all_names(self, record: RoundRecord) -> list[str] | None:
        return self.names if self.names and all(client < len(self.names) for client in record.skipped) else None

    def _is_running(self) -> bool:
        try:
            return self.directory.is_running()
        except (OSError, TacitError):
            return False

    def _read(self, running: bool, now: float) -> None:
        before = self.current
        try:
            self.config = self.directory.config()
            self.names = [printable(name, 128) for name in (self.directory.sites() or {"names": []})["names"]]
            self.notices = {code: printable(text, 1000) for code, text in self.directory.notices().items()}
            self._early = self.directory.early_end()
            self.current = self.directory.current_round() if running else None
            self.status, self.problem = self._state(running)
        except (TacitError, OSError) as error:
            self.status, self.problem, self.current = "broken", printable(error, 500), None
        if self.current is None or before is None or _position(self.current) != _position(before):
            self._moved = max(self._moved, min(now, self.directory.last_sign() or now))

    def _state(self, running: bool) -> tuple[str, str]:
        if self.rounds and self.done >= self.rounds:
            return "finished", ""
        if running:
            return "running", ""
        stop = self.directory.stop_reason()
        if stop is None:
            return "stopped", f"no process works on it; continue with {self.directory.resume_command}"
        return ("diverged" if stop.code == "engine.diverged" else "failed"), printable(stop, 500)

    def _is_stalled(self, now: float) -> bool:
        if self.status != "running":
            return False
        patience = max(QUIET, PATIENCE * self.series.slowest()) if len(self.series) else FIRST_ROUND
        return now - self._moved > patience

    # --- what is known ------------------------------------------------------------------------------------------------

    @property
    def done(self) -> int:
        """How many rounds have ended."""
        return int(self.series.rounds[-1]) if len(self.series) else 0

    @property
    def rounds(self) -> int:
        """How many rounds it has in the end; 0 if that is unknown."""
        if self._early is not None and self._early == self.done:
            return self._early
        return int(self.config.get("rounds", 0)) or self.planned_rounds

    @property
    def method(self) -> str:
        """The name of its method."""
        return printable(self.config.get("method", {}).get("name", ""), 128)

    def summary(self) -> dict[str, Any]:
        """One row of the table of runs, as JSON has it."""
        series, data = self.series, self.config.get("data", {})
        last = None if self.last is None else accuracy(self.last)
        known = series.last("accuracy") if series.last("accuracy") is not None else series.last("local_accuracy")
        return {
            "id": self.id,
            "group": self.group,
            "label": self.label or self.method or self.folder.name,
            "column": self.column,
            "name": printable(self.folder.name, 200),
            "method": self.method,
            "data": printable(data.get("name", "") if isinstance(data, dict) else "", 200),
            "seed": self.config.get("seed", self.planned_seed),
            "status": self.status,
            "stalled": self.stalled,
            "problem": self.problem,
            "notices": list(self.notices.values()),
            "done": self.done,
            "rounds": self.rounds,
            "accuracy": _finite(last if last is not None else known),
            "best": _finite(series.best),
            "loss": _finite(series.last("loss")),
            "bytes": series.total("bytes"),
            "steps": series.total("steps"),
            "seconds": round(series.total("seconds"), 1),
            "pace": _finite(series.pace()),
            "moved": round(self._moved, 1),
            "skipped": self.skipped,
            "rejected": self.rejected,
            "damaged": self._tail.damaged,
            "epoch": self.epoch,
            "length": len(series),
            "current": None if self.current is None else self._current(self.current),
        }

    def _current(self, now: RoundProgress) -> dict[str, Any]:
        """The round in progress: every client with its state; of many, those that are not waiting first."""
        states: dict[int, tuple[str, str]] = dict.fromkeys(now.clients, ("waiting", ""))
        states |= dict.fromkeys(now.working, ("working", ""))
        states |= {
            client: ("answered", f"{now.seconds[client]:.1f} s" if client in now.seconds else "")
            for client in now.answered
        }
        states |= {client: ("failed", printable(why, 300)) for client, why in now.failed.items()}
        order = ("failed", "working", "answered", "waiting")
        shown = sorted(states.items(), key=lambda item: (order.index(item[1][0]), item[0]))[:100]
        counts = {state: sum(each == state for each, _ in states.values()) for state in order}
        clients = [{"name": self.name_of(client), "state": state, "about": about} for client, (state, about) in shown]
        return {"round": now.round + 1, "total": len(states), "counts": counts, "clients": clients}

    def name_of(self, client: int) -> str:
        """The name of a site, or the number of a client."""
        return self.names[client] if client < len(self.names) else f"client {client}"


def _position(current: RoundProgress) -> tuple[object, ...]:
    return current.round, len(current.answered), len(current.failed), len(current.working)


def _finite(value: float | None) -> float | None:
    return float(f"{value:.6g}") if value is not None and math.isfinite(value) else None
