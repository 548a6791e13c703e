"""The header of a client's reply, the same for worker processes and Flower; memory and upload travel next to it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tacit.engines import failures
from tacit.engines.client import checked_metrics
from tacit.engines.job import ClientFailure, ClientOutcome, ClientResult

LONGEST = 1 << 18  # characters of a header; 64 metrics and the longest traceback need half as much


@dataclass(frozen=True)
class ReplyHeader:
    """What a reply says before its attachments: whether there is a memory and an upload, or why there is neither."""

    has_memory: bool = False
    has_up: bool = False
    metrics: Mapping[str, float] = field(default_factory=dict)
    failure: ClientFailure | None = None

    @classmethod
    def of(cls, outcome: ClientOutcome) -> "ReplyHeader":
        """The header of an outcome."""
        if isinstance(outcome, ClientFailure):
            return cls(failure=outcome)
        return cls(outcome.memory is not None, outcome.up is not None, outcome.metrics)

    def outcome(self, memory: bytes | None, up: object | None) -> ClientOutcome:
        """The outcome that the header and its attachments describe, without its bytes."""
        return self.failure or ClientResult(up, memory, self.metrics)

    def to_json(self) -> str:
        """The header as text; numbers keep their bits."""
        if self.failure is not None:
            named = {"code": self.failure.code, "reason": self.failure.reason, "detail": self.failure.detail}
            return json.dumps({"failure": named})
        return json.dumps({"memory": self.has_memory, "up": self.has_up, "metrics": dict(self.metrics)})

    @classmethod
    def from_json(cls, text: str | bytes) -> "ReplyHeader":
        """The header that another process wrote; raises ValueError for anything else."""
        if len(text) > LONGEST:
            raise ValueError(f"a header of {len(text):,} characters, more than {LONGEST:,}")
        try:
            values = json.loads(text)
            if "failure" in values:
                code, reason, detail = (typed(values["failure"][name], str) for name in ("code", "reason", "detail"))
                return cls(failure=failures.reported(code, reason, detail))
            numbers = {name: float(typed(value, (int, float))) for name, value in values["metrics"].items()}
            return cls(typed(values["memory"], bool), typed(values["up"], bool), checked_metrics(numbers))
        except (KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise ValueError(f"not the header of a reply: {type(error).__name__}: {error}") from error


def typed(value: object, kind: type | tuple[type, ...]) -> Any:
    """A value from another process, checked to be of this type."""
    if not isinstance(value, kind):
        kinds = kind if isinstance(kind, tuple) else (kind,)
        raise TypeError(f"a {type(value).__name__} where a {' or '.join(k.__name__ for k in kinds)} is expected")
    return value
