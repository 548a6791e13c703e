"""What is recorded of a round, and its one form in JSON. Needs no torch, so that reports can read it anywhere."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

LARGEST = 2**63  # of a count: steps, bytes, samples


@dataclass(frozen=True)
class RoundRecord:
    """One line of `rounds.jsonl`. Rounds count from 0."""

    round: int
    seconds: float
    accuracy: float | None  # of the common model on the test set, where evaluated
    loss: float | None
    local_accuracy: float | None  # mean over the clients seen so far, each at its last visit
    clients: int  # how many replied
    steps: int  # local steps of all clients
    bytes_down: int
    bytes_up: int
    traffic: dict[int, tuple[int, int]]  # bytes down and up of each client
    metrics: dict[str, dict[str, float]]  # over the clients: mean, min, max
    server: dict[str, float]  # what the method logged
    skipped: dict[int, str]  # clients left out, and why
    samples: dict[int, int] = field(default_factory=dict)  # what each upload stands for in the average, if it says
    validation: dict[str, float] | None = None  # accuracy, low and high end of its 95 % interval, samples; if judged
    rejected: str = ""  # why the guard rejected the round; empty if it counts
    selected: dict[str, Any] | None = None  # of the last round: which model is saved, why, and how good it is
    stopped: str = ""  # of the last round: why there are no more, if more were planned
    details: dict[int, str] = field(default_factory=dict, repr=False)  # tracebacks, for the run's error log only
    privacy: dict[str, Any] | None = None  # (ε, δ) spent so far, by what is hidden, and what is not recorded for it
    scores: dict[str, float] = field(default_factory=dict)  # of the common model: those that `log.metrics` asks for
    sample_privacy: dict[str, float | None] | None = None  # DP-SGD so far: delta, and the largest epsilon of a client
    codes: dict[int, str] = field(default_factory=dict)  # of the failures of clients left out; empty in older records

    @property
    def all_steps(self) -> int:
        """Training steps of the round, at all clients and at the server."""
        return self.steps + int(self.server.get("steps") or 0)

    @property
    def all_bytes(self) -> int:
        """Bytes sent in the round, both ways."""
        return self.bytes_up + self.bytes_down

    def to_json(self) -> str:
        """The record as one line without its end. JSON has no NaN, so a number that is not finite becomes null."""
        optional = ("scores", "codes", "privacy", "sample_privacy")
        left_out = {"details", *(name for name in optional if not getattr(self, name))}
        return json.dumps(_without_nan({name: value for name, value in asdict(self).items() if name not in left_out}))

    @classmethod
    def from_json(cls, line: str | bytes) -> "RoundRecord":
        """The record of a line; raises ValueError for anything else."""
        try:
            values = json.loads(line)
            if not isinstance(values, dict):
                raise TypeError("no object")
            return cls(
                round=_count(values["round"]),
                seconds=_known(values["seconds"]),
                accuracy=_number(values["accuracy"]),
                loss=_number(values["loss"]),
                local_accuracy=_number(values["local_accuracy"]),
                clients=_count(values["clients"]),
                steps=_count(values["steps"]),
                bytes_down=_count(values["bytes_down"]),
                bytes_up=_count(values["bytes_up"]),
                traffic={int(client): (_count(down), _count(up)) for client, (down, up) in values["traffic"].items()},
                metrics={name: _numbers(of_metric) for name, of_metric in values["metrics"].items()},
                server=_numbers(values["server"]),
                skipped={int(client): str(reason) for client, reason in values["skipped"].items()},
                samples={int(client): _count(n) for client, n in values.get("samples", {}).items()},
                scores={
                    str(name): _known(value) for name, value in values.get("scores", {}).items() if value is not None
                },
                sample_privacy=None if values.get("sample_privacy") is None else _numbers(values["sample_privacy"]),
                privacy=None if values.get("privacy") is None else _spent(values["privacy"]),
                validation=None if values.get("validation") is None else _numbers(values["validation"]),
                rejected=str(values.get("rejected", "")),
                selected=None if values.get("selected") is None else dict(values["selected"]),
                stopped=str(values.get("stopped", "")),
                codes={int(client): str(code) for client, code in values.get("codes", {}).items()},
            )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            what = f"{type(error).__name__}: {error}"
            raise ValueError(f"not the record of a round ({what[:200]}): {line[:40]!r}") from error

    def as_dict(self) -> dict[str, Any]:
        """The record as JSON has it, in Python."""
        return dict(json.loads(self.to_json()))


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= LARGEST:
        raise ValueError(f"{str(value)[:40]} is not a count")
    return value


def _number(value: Any) -> float | None:
    """A number; None where it was not finite, which JSON cannot hold."""
    return None if value is None else _known(value)


def _known(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValueError(f"{str(value)[:40]} is not a number")
    return float(value)


def _spent(values: Any) -> dict[str, Any]:
    """(ε, δ) by what is hidden, an ε that is not finite as None, and a text about what is withheld."""
    return {
        str(name): _numbers(value) if isinstance(value, dict) else str(value)[:200] for name, value in values.items()
    }


def _numbers(values: Any) -> dict[str, Any]:
    return {str(name): _number(value) for name, value in values.items()}


def _without_nan(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _without_nan(item) for name, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
