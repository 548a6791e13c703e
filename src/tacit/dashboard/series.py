"""Every number that a run logs, one column each, in little memory."""

import math
from array import array
from collections.abc import Iterator, Sequence
from typing import Any

from tacit.engines.record import RoundRecord

MOST_ROWS = 4000  # in one answer; the page asks again for the rest
MOST_NAMES = 400  # metrics that a run can have here
TOTALS = ("seconds", "steps", "bytes")  # added up over the rounds: the horizontal axes


class Series:
    """The rounds of a run so far: their numbers, what they cost up to each, and every metric."""

    def __init__(self) -> None:
        """Without rounds."""
        self.rounds: array[int] = array("q")
        self.totals: dict[str, array[float]] = {name: array("d") for name in TOTALS}
        self.values: dict[str, array[float]] = {}
        self.best: float | None = None  # accuracy

    def __len__(self) -> int:
        """The number of rounds."""
        return len(self.rounds)

    def append(self, record: RoundRecord) -> None:
        """Add a round."""
        costs = {"seconds": record.seconds, "steps": record.all_steps, "bytes": record.all_bytes}
        for name, column in self.totals.items():
            column.append((column[-1] if column else 0) + costs[name])
        for name, value in _numbers(record):
            if name not in self.values and len(self.values) < MOST_NAMES:
                self.values[name] = array("f", [math.nan] * len(self.rounds))
            if name in self.values:
                self.values[name].append(value)
        self.rounds.append(record.round + 1)
        for column in self.values.values():
            if len(column) < len(self.rounds):
                column.append(math.nan)
        known = accuracy(record)
        if known is not None:
            self.best = known if self.best is None else max(self.best, known)

    def last(self, name: str) -> float | None:
        """The latest number with this name."""
        return next((value for value in reversed(self.values.get(name, ())) if math.isfinite(value)), None)

    def total(self, name: str) -> float:
        """What all rounds cost."""
        return self.totals[name][-1] if self.rounds else 0.0

    def pace(self, recent: int = 20) -> float | None:
        """Seconds of a round, over the latest ones."""
        if not self.rounds:
            return None
        seconds, count = self.totals["seconds"], min(recent, len(self.rounds))
        before = seconds[-count - 1] if count < len(self.rounds) else 0.0
        return (seconds[-1] - before) / count

    def slowest(self, recent: int = 20) -> float:
        """Seconds of the slowest of the latest rounds."""
        seconds = [0.0, *self.totals["seconds"][-recent - 1 :]]
        return max(
            (after - before for before, after in zip(seconds[-recent - 1 :], seconds[1:], strict=False)), default=0
        )

    def rows(self, start: int) -> dict[str, Any]:
        """The rows from `start` on, as JSON has them."""
        end = min(len(self.rounds), start + MOST_ROWS)
        return {
            "from": start,
            "rounds": self.rounds[start:end].tolist(),
            "totals": {name: _plain(column[start:end]) for name, column in self.totals.items()},
            "values": {name: _plain(column[start:end]) for name, column in self.values.items()},
        }


def accuracy(record: RoundRecord) -> float | None:
    """Of the common model, or the clients' mean if there is none."""
    return record.local_accuracy if record.accuracy is None else record.accuracy


def _numbers(record: RoundRecord) -> Iterator[tuple[str, float]]:
    """Name and value of every number of a round."""
    plain = {"accuracy": record.accuracy, "loss": record.loss, "local_accuracy": record.local_accuracy}
    plain |= {"validation_accuracy": record.validation.get("accuracy")} if record.validation else {}
    plain |= {name: values.get("mean") for name, values in record.metrics.items()}
    plain |= {f"server {name}": value for name, value in record.server.items()}
    plain |= record.scores
    plain |= {"seconds_per_round": record.seconds, "clients": record.clients, "skipped_clients": len(record.skipped)}
    plain |= {"bytes_up": record.bytes_up, "bytes_down": record.bytes_down}
    for name, value in plain.items():
        if isinstance(value, int | float):
            yield name, float(value)


def _plain(column: Sequence[float]) -> list[float | None]:
    """Numbers that JSON can hold, with six digits."""
    return [float(f"{value:.6g}") if math.isfinite(value) else None for value in column]
