"""A client's own record of secure aggregation, on its disk: which steps it answered, and whose sum it helped to open.

Real clients answer every message in a new process, and the server may repeat, mix up or invent messages. So the record
is written before an answer leaves: each step of a session is answered once, a session is never begun twice, and for a
round of a run the client helps to open the sum of one set of clients only. The difference of two such sums would show
the upload of a single client.
"""

import json
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from tacit.errors import TacitError
from tacit.storage import SECRET, in_turn, on_disk, write_durably

KEYS, SHARES, MASK, REVEAL = STEPS = ("keys", "shares", "mask", "reveal")  # in this order
_ASK = "let the hub start the round again"


class SessionError(TacitError):
    """A message of secure aggregation that a client must not answer."""


@dataclass(frozen=True)
class Record:
    """What a client has done in the sessions of a run."""

    session: str = ""  # the current one
    round: int = -1  # of the current session
    step: str = ""  # the last one that was begun
    secret: str | None = None  # what the next step needs; None while a step is being answered, and after the last one
    begun: tuple[str, ...] = ()  # all sessions
    opened: dict[int, tuple[int, ...]] = field(default_factory=dict)  # by round, whose sum this client helped to open


class Sessions:
    """The record of a client in one run; several processes may use it at once."""

    def __init__(self, folder: Path, run: str) -> None:
        """`folder` is this client's own and holds a file for each run."""
        self._folder, self._run = folder, run

    def begin(self, round: int, session: str) -> None:
        """Begin a session; the secrets of the one before are gone. Its name must say which run and round it is for."""
        with self._changing() as record:
            if not session.startswith(session_prefix(self._run, round)):
                raise SessionError(
                    f"the session is not for round {round + 1} of this run", _ASK, code="secure.other-session"
                )
            if session in record.begun:
                raise SessionError("this session was begun before", _ASK, code="secure.session-repeated")
            self._write(replace(record, session=session, round=round, step=KEYS, begun=(*record.begun, session)))

    def take(self, round: int, step: str) -> str:
        """Begin the next step of the current session: the secrets for it, which are given once."""
        with self._changing() as record:
            due = STEPS.index(step) == STEPS.index(record.step) + 1 if record.step else False
            if record.round != round or not due or record.secret is None:
                raise SessionError(
                    f"'{step}' is not the next step of round {round + 1} in this session, or was answered before",
                    _ASK,
                    code="secure.step-repeated",
                )
            self._write(replace(record, step=step, secret=None))
            return record.secret

    def put(self, session: str, secret: str) -> None:
        """Store what the next step needs; refused if another session has begun meanwhile."""
        with self._changing() as record:
            if record.session != session:
                raise SessionError("another session has begun meanwhile", _ASK, code="secure.session-over")
            self._write(replace(record, secret=secret))

    def open(self, round: int, arrived: Collection[int]) -> None:
        """Note whose sum this client helps to open; refused if it was that of other clients before."""
        with self._changing() as record:
            now = tuple(sorted(arrived))
            if record.opened.get(round, now) != now:
                raise SessionError(
                    f"the sum of round {round + 1} was opened for other clients before, and the difference of both "
                    "would show single uploads",
                    "let the same clients take part again, or start a new run",
                    code="secure.other-sum",
                )
            self._write(replace(record, opened={**record.opened, round: now}))

    @property
    def _file(self) -> Path:
        return self._folder / f"{self._run}.json"

    @contextmanager
    def _changing(self) -> Iterator[Record]:
        with on_disk(self._file):
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            with in_turn(self._folder / f"{self._run}.lock", SECRET):
                yield self._read()

    def _read(self) -> Record:
        if not self._file.exists():
            return Record()
        try:
            values = json.loads(self._file.read_text(encoding="utf-8"))
            opened = {int(round): tuple(clients) for round, clients in values["opened"].items()}
            return Record(**values | {"begun": tuple(values["begun"]), "opened": opened})
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise SessionError(
                f"{self._file} is broken",
                "start a new run: what was answered in this one is unknown",
                code="secure.broken-record",
            ) from error

    def _write(self, record: Record) -> None:
        write_durably(self._file, json.dumps(asdict(record)).encode(), mode=SECRET)


def session_prefix(run: str, round: int) -> str:
    """How the name of a session begins: it is for one run and one round."""
    return f"{run}|{round}|"
