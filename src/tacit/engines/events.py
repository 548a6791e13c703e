"""What happens in a run, as it happens, and its one form in JSON. Needs no torch, so that anyone can follow a run.

`engines.rounds.run_rounds` yields these events. A round begins, each of its clients starts and then answers or fails,
and the round ends. Rounds and clients count from 0.
"""

import json
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import asdict, dataclass, field
from typing import Any

from tacit.engines.record import RoundRecord


@dataclass(frozen=True)
class RoundBegan:
    """The server has the messages for the clients of a round."""

    round: int
    clients: tuple[int, ...]  # ascending


@dataclass(frozen=True)
class ClientStarted:
    """A client has its task, or the task is on its way to the client's machine."""

    round: int
    client: int


@dataclass(frozen=True)
class ClientAnswered:
    """A client's reply has arrived."""

    round: int
    client: int
    seconds: float  # since the client started
    bytes_up: int


@dataclass(frozen=True)
class ClientFailed:
    """A client is left out of the round. It may have answered before, with an upload that cannot be used."""

    round: int
    client: int
    code: str
    reason: str


@dataclass(frozen=True)
class Waiting:
    """Nothing new, clients still work: at least once a second, where clients work in other processes."""

    round: int


@dataclass(frozen=True)
class RoundEnded:
    """A round is merged and evaluated."""

    record: RoundRecord

    @property
    def round(self) -> int:
        """The number of the round."""
        return self.record.round


@dataclass(frozen=True)
class Noticed:
    """A sign that the run collapses, after the round that shows it; `text` names the likely cause and a remedy."""

    round: int
    code: str
    text: str


Event = RoundBegan | ClientStarted | ClientAnswered | ClientFailed | Waiting | RoundEnded | Noticed


def round_records(events: Generator[Event]) -> Generator[RoundRecord]:
    """Only the records of the rounds that ended; closing it closes `events`."""
    with closing(events):
        for event in events:
            if isinstance(event, RoundEnded):
                yield event.record


# --- JSON -------------------------------------------------------------------------------------------------------------


def to_json(event: Event) -> str:
    """The event as one line without its end; a record loses its tracebacks, as in `rounds.jsonl`."""
    values = {"record": event.record.as_dict()} if isinstance(event, RoundEnded) else asdict(event)
    return json.dumps({"event": type(event).__name__} | values)


def from_json(line: str | bytes) -> Event:
    """The event of a line; raises ValueError for anything else."""
    values = json.loads(line)
    try:
        return _READERS[values["event"]](values)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not an event ({type(error).__name__}: {error}): {line[:40]!r}") from error


_READERS: dict[str, Callable[[dict[str, Any]], Event]] = {
    "RoundBegan": lambda v: RoundBegan(int(v["round"]), tuple(int(client) for client in v["clients"])),
    "ClientStarted": lambda v: ClientStarted(int(v["round"]), int(v["client"])),
    "ClientAnswered": lambda v: ClientAnswered(
        int(v["round"]), int(v["client"]), float(v["seconds"]), int(v["bytes_up"])
    ),
    "ClientFailed": lambda v: ClientFailed(int(v["round"]), int(v["client"]), str(v["code"]), str(v["reason"])),
    "Waiting": lambda v: Waiting(int(v["round"])),
    "RoundEnded": lambda v: RoundEnded(RoundRecord.from_json(json.dumps(v["record"]))),
    "Noticed": lambda v: Noticed(int(v["round"]), str(v["code"]), str(v["text"])),
}


# --- the current round ------------------------------------------------------------------------------------------------


@dataclass
class RoundProgress:
    """Where the current round stands, as its events say. Between rounds it has no clients."""

    round: int = 0
    clients: tuple[int, ...] = ()
    working: set[int] = field(default_factory=set)
    answered: set[int] = field(default_factory=set)
    failed: dict[int, str] = field(default_factory=dict)  # why, by client
    seconds: dict[int, float] = field(default_factory=dict)  # from start to answer, of those that have answered

    def follow(self, event: Event) -> None:
        """Take in the next event."""
        match event:
            case RoundBegan(round, clients):
                self._begin(round, clients)
            case ClientStarted(_, client):
                self.working.add(client)
            case ClientAnswered(_, client, seconds):
                self.working.discard(client)
                self.answered.add(client)
                self.seconds[client] = seconds
            case ClientFailed(_, client, _, reason):
                self.working.discard(client)
                self.answered.discard(client)
                self.failed[client] = reason
            case RoundEnded():
                self._begin(event.round + 1, ())

    def _begin(self, round: int, clients: tuple[int, ...]) -> None:
        self.round, self.clients, self.working, self.answered = round, clients, set(), set()
        self.failed, self.seconds = {}, {}

    def answered_text(self, noun: str) -> str:
        """How many have answered: `4 of 10 clients answered`."""
        return f"{len(self.answered)} of {len(self.clients)} {noun} answered"

    def to_json(self) -> str:
        """The progress as one JSON object."""
        return json.dumps(
            {
                "round": self.round,
                "clients": self.clients,
                "working": sorted(self.working),
                "answered": sorted(self.answered),
                "failed": dict(sorted(self.failed.items())),
                "seconds": dict(sorted(self.seconds.items())),
            }
        )

    @classmethod
    def from_json(cls, text: str | bytes) -> "RoundProgress":
        """What `to_json` wrote; raises ValueError for anything else."""
        try:
            values: dict[str, Any] = json.loads(text)
            clients, working, answered = ([int(k) for k in values[name]] for name in ("clients", "working", "answered"))
            failed = {int(client): str(reason) for client, reason in values["failed"].items()}
            seconds = {int(client): float(taken) for client, taken in values.get("seconds", {}).items()}
            return cls(int(values["round"]), tuple(clients), set(working), set(answered), failed, seconds)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not the progress of a round ({error}): {text[:40]!r}") from error
