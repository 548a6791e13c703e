"""A round with secure aggregation, at the server: four exchanges, after which it knows the sum of the uploads."""

from collections.abc import Callable, Generator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tacit.engines import failures as reasons
from tacit.engines.events import Event
from tacit.engines.job import ClientFailure, ClientOutcome, ClientResult, ClientTask, Job
from tacit.engines.secure_messages import (
    KeysDown,
    KeysUp,
    MaskDown,
    MaskedUp,
    RevealDown,
    RevealUp,
    SharesDown,
    SharesUp,
)
from tacit.engines.wire import Encoded, WireError
from tacit.protect.fixed_point import BYTES, Words
from tacit.updates import MOST_SAMPLES

FRAME = 1024  # bytes that are enough for the names in a message, and for what it says about one client
Outcomes = dict[int, ClientOutcome]
Tasks = Mapping[int, ClientTask]
# Carries tasks and gives every client's outcome; the last argument says whether clients' answers are events.
Carry = Callable[[Tasks, bool], Generator[Event, None, Outcomes]]


def exchange(job: Job, round: int, tasks: Tasks, carry: Carry) -> Generator[Event, None, Outcomes]:
    """The outcome of every client; the sum of all uploads is the upload of the first client that counts."""
    from tacit.engines.secure_client import identities, keys_of, least
    from tacit.protect import secure

    talk = _Talk(job, round, tasks, carry)
    session = f"{job.streams.seed}|{round}" if job.peers is None else job.peers.new_session(round)
    keys = yield from talk.ask({k: KeysDown(session) for k in tasks}, KeysUp)
    try:
        public = talk.read(keys, keys_of)
        for client in [k for k in public if not _is_signed(k, public, identities(job, [k]), session.encode())]:
            public.pop(talk.drop(client, reasons.bad_upload("it has keys without its signature")))
        shares = yield from talk.ask({k: SharesDown({peer: keys[peer] for peer in public}) for k in public}, SharesUp)
        complete = talk.read(shares, _sealed)
        complete = {k: sealed for k, sealed in complete.items() if set(sealed) == public.keys() - {k}}
        inboxes = {k: {peer: sealed[k] for peer, sealed in complete.items() if peer != k} for k in complete}
        asked = {k: MaskDown(tasks[k].down, inbox) for k, inbox in inboxes.items()}
        vectors = yield from talk.ask(asked, MaskedUp, shown=True)
        masked = talk.read(vectors, lambda up: _words(up, job.sum_form.length))
        for client in [k for k in masked if job.faults.occurs("lost", job.streams, round, k)]:
            masked.pop(talk.drop(client, reasons.upload_lost()))
        answers = yield from talk.ask({k: RevealDown(tuple(masked)) for k in masked}, RevealUp, needed=False)
        revealed = talk.read(answers, _revealed)
        total = secure.total(masked, public, complete, revealed, session.encode(), least(job))
    except secure.SecureError as error:
        return talk.failed(str(error))
    return talk.finished(masked, job.sum_form.decode(total))


class _Talk:
    """The exchanges of a round: who still takes part, what each client remembers, and how many bytes it took."""

    def __init__(self, job: Job, round: int, tasks: Tasks, carry: Carry) -> None:
        self._job, self._round, self._tasks, self._carry = job, round, tasks, carry
        self._memory = {client: task.memory for client, task in tasks.items()}
        self._bytes = dict.fromkeys(tasks, (0, 0))
        self._metrics: dict[int, Mapping[str, float]] = {}
        self._failures: dict[int, ClientFailure] = {}

    def ask(
        self, downs: Mapping[int, Any], kind: type, *, shown: bool = False, needed: bool = True
    ) -> Generator[Event, None, dict[int, Any]]:
        """Send a message to each client; the answers of this kind. Who gives none drops out, if it is needed."""
        tasks = {
            k: replace(self._tasks[k], down=down, memory=self._memory[k], evaluate=self._tasks[k].evaluate and shown)
            for k, down in downs.items()
        }
        outcomes = yield from self._carry(tasks, shown)
        found: dict[int, Any] = {}
        for client, outcome in sorted(outcomes.items()):
            self._count(client, outcome)
            if isinstance(outcome, ClientFailure):
                if needed:
                    self.drop(client, outcome)
                continue
            longest = self._longest(kind)
            if outcome.bytes_up > longest:
                self.drop(client, reasons.too_large(outcome.bytes_up, longest))
                continue
            try:
                up = outcome.up.decode() if isinstance(outcome.up, Encoded) else outcome.up
            except WireError as error:
                self.drop(client, reasons.unreadable(error))
                continue
            if type(up) is not kind:
                self.drop(client, reasons.bad_upload(f"it is a {type(up).__name__}, not a {kind.__name__}"))
                continue
            found[client], self._memory[client] = up, outcome.memory
            self._metrics[client] = outcome.metrics or self._metrics.get(client, {})
        return found

    def _longest(self, kind: type) -> int:
        """The most bytes that an answer of this kind can have; a longer one is not even decoded."""
        return FRAME + (BYTES * self._job.sum_form.length if kind is MaskedUp else FRAME * len(self._tasks))

    def read(self, ups: Mapping[int, Any], reader: Callable[[Any], Any]) -> dict[int, Any]:
        """The content of answers; a client whose answer cannot be read drops out."""
        found = {}
        for client, up in ups.items():
            try:
                found[client] = reader(up)
            except (ValueError, TypeError, AttributeError) as error:
                self.drop(client, reasons.bad_upload(str(error)))
        return found

    def drop(self, client: int, why: ClientFailure) -> int:
        """Leave a client out, and say which."""
        self._failures.setdefault(client, why)
        return client

    def failed(self, why: str) -> Outcomes:
        """The outcomes of a round whose sum cannot be known."""
        failure = reasons.not_aggregated(why)
        return {k: self._failures.get(k, failure).with_bytes(*self._bytes[k]) for k in self._tasks}

    def finished(self, counted: Mapping[int, Any], mean: Any) -> Outcomes:
        """The outcomes of a round: the mean belongs to the first client that counts, which stands for all."""
        outcomes: Outcomes = {}
        for client in self._tasks:
            if client not in counted:
                failure = self._failures.get(client, reasons.not_aggregated("it left in the middle of the round"))
                outcomes[client] = failure.with_bytes(*self._bytes[client])
                continue
            up = mean if client == min(counted) else None
            result = ClientResult(up, self._memory[client], self._metrics.get(client, {}), held=MOST_SAMPLES)
            outcomes[client] = result.with_bytes(*self._bytes[client])
        return outcomes

    def _count(self, client: int, outcome: ClientOutcome) -> None:
        down, up = self._bytes[client]
        self._bytes[client] = down + outcome.bytes_down, up + outcome.bytes_up


def _is_signed(client: int, public: Mapping[int, Any], identities: Mapping[int, Any], session: bytes) -> bool:
    from tacit.protect import secure

    try:
        secure.check_keys({client: public[client]}, identities, session)
    except secure.SecureError:
        return False
    return True


def _words(up: MaskedUp, length: int) -> Words:
    words: object = up.words
    if not isinstance(words, Tensor) or words.dtype != torch.int64 or tuple(words.shape) != (length,):
        raise ValueError(f"it does not have {length:,} whole numbers")
    return words.cpu().numpy().view(np.uint64)


def _sealed(up: SharesUp) -> dict[int, str]:
    """Shares for each peer, which gets them as they are: it must be able to read them."""
    for sealed in up.sealed.values():
        bytes.fromhex(sealed)
    return dict(up.sealed)


def _revealed(up: RevealUp) -> dict[int, tuple[str, bytes]]:
    return {int(peer): (str(kind), bytes.fromhex(share)) for peer, (kind, share) in up.shares.items()}
