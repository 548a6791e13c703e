"""The rounds, the same for every engine: sample, send, exchange, merge, commit, evaluate, record."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Protocol

import torch

from tacit.engines.faults import Faults
from tacit.engines.memory import Memories
from tacit.engines.wire import Codec, finite
from tacit.errors import TacitError
from tacit.federation import Federation
from tacit.learn import Score
from tacit.method import ClientContext, Method, ServerContext, Training
from tacit.nets import Net
from tacit.params import Params
from tacit.random import Streams


@dataclass(frozen=True)
class Job:
    """Everything a run consists of, except how far it got and what carries its messages."""

    method: Method[Any, Any, Any, Any]
    net: Net
    federation: Federation
    streams: Streams
    rounds: int
    cohort: int
    train: Training = Training()
    server_train: Training = Training()
    device: torch.device = torch.device("cpu")
    faults: Faults = Faults()
    deadline: float | None = None  # seconds a client may take
    min_clients: int = 1  # replies without which a round can not go on
    evaluate_every: int = 1
    evaluate_local: bool = False  # also evaluate the clients' own models

    @cached_property
    def codec(self) -> Codec:
        """How this method's messages become bytes."""
        return Codec.of(self.method)

    def sample(self, round: int) -> tuple[int, ...]:
        """The clients of a round, drawn uniformly without replacement, ascending."""
        draw = self.streams.numpy_at("cohort", round=round).choice(self.federation.clients, self.cohort, replace=False)
        return tuple(sorted(int(client) for client in draw))

    def server(self, round: int, log: dict[str, float]) -> ServerContext:
        """The server's context in a round."""
        return ServerContext(
            round=round,
            rounds=self.rounds,
            net=self.net,
            train=self.server_train,
            views=self.federation.views,
            streams=self.streams,
            device=self.device,
            cohort=self.sample(round),
            clients=self.federation.clients,
            data=self.federation.server,
            log=partial(_note, log),
        )

    def client(self, round: int, client: int) -> ClientContext:
        """A client's context in a round."""
        return ClientContext(
            round=round,
            rounds=self.rounds,
            net=self.net,
            train=self.train,
            views=self.federation.views,
            streams=self.streams,
            device=self.device,
            client=client,
            data=self.federation.client(client, round),
        )

    def evaluates(self, round: int) -> bool:
        """Whether the models are evaluated after this round; after the last one always."""
        return (round + 1) % self.evaluate_every == 0 or round + 1 == self.rounds


@dataclass(frozen=True)
class Parcel:
    """What goes to one client: the message, its own memory, and whether to evaluate its model in place."""

    down: object
    memory: bytes | None
    evaluate: bool = False


@dataclass(frozen=True)
class Arrived:
    """A client's reply. `memory` is not yet committed; `up` is None where the client only listened."""

    up: object | None
    memory: bytes | None  # None: nothing to remember, now or before
    metrics: Mapping[str, float]
    bytes_down: int
    bytes_up: int


@dataclass(frozen=True)
class Absent:
    """A client that is left out of the round, and why; `detail` may hold a traceback. Its bytes count all the same."""

    reason: str
    detail: str = ""
    bytes_down: int = 0
    bytes_up: int = 0


class Courier(Protocol):
    """Carries parcels to clients and brings back what arrives; evaluates a model on the test set."""

    def exchange(self, round: int, parcels: Mapping[int, Parcel]) -> Mapping[int, Arrived | Absent]:
        """Every client's outcome."""
        ...

    def evaluate(self, model: Params) -> Score:
        """The model's score on the whole test set."""
        ...

    def close(self) -> None:
        """End whatever it started."""
        ...


@dataclass
class Position:
    """How far a run got: all that a checkpoint must hold."""

    memories: Memories
    round: int = 0
    state: Any = None
    local_accuracy: dict[int, float] = field(default_factory=dict)  # the last one of each client seen
    whole: bool = True  # False while a round is being taken over, when nothing may be saved

    def advance(self, state: Any, arrived: Mapping[int, "Arrived"]) -> None:
        """Take over a finished round: the new state, and the memories of the clients whose replies counted."""
        self.whole = False
        self.memories.commit(self.round, {k: reply.memory for k, reply in arrived.items() if reply.memory is not None})
        for client, reply in arrived.items():
            if "local_accuracy" in reply.metrics:
                self.local_accuracy[client] = reply.metrics["local_accuracy"]
        self.state = state
        self.round += 1
        self.whole = True


@dataclass(frozen=True)
class Record:
    """One line of `rounds.jsonl`."""

    round: int
    seconds: float
    accuracy: float | None
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
    details: dict[int, str] = field(default_factory=dict, repr=False)  # tracebacks, for the run's error log


def play(job: Job, courier: Courier, position: Position) -> Iterator[Record]:
    """Play the rounds that are left; `position` is up to date at every yield."""
    log: dict[str, float] = {}  # what `start` logs is of the first round
    if position.state is None:
        with _calling(job, "start", 0):
            position.state = job.method.start(job.server(0, log))
    while position.round < job.rounds:
        yield _round(job, courier, position, log)
        log = {}


def _round(job: Job, courier: Courier, position: Position, log: dict[str, float]) -> Record:
    began, round, method = time.perf_counter(), position.round, job.method
    server = job.server(round, log)
    with _calling(job, "send", round):
        state, downs = method.send(server, position.state)
        if strangers := sorted(client for client in downs if client not in range(job.federation.clients)):
            raise ValueError(f"there is no client {strangers[0]}, only 0 to {job.federation.clients - 1}")
    with _calling(job, "model", round):
        local = job.evaluates(round) and (job.evaluate_local or method.model(state) is None)
    parcels = {client: Parcel(down, position.memories.get(client), local) for client, down in sorted(downs.items())}
    outcomes = courier.exchange(round, parcels)
    arrived, absent = _sift(job, round, outcomes)
    ups = {client: reply.up for client, reply in arrived.items() if reply.up is not None}
    with _calling(job, "merge", round):
        state = method.merge(server, state, ups)
    with _calling(job, "model", round):
        model = method.model(state)
        if model is not None and not isinstance(model, dict):
            raise TypeError(f"it must return Params or None, not {type(model).__name__}")
    with _calling(job, "evaluation", round):
        score = courier.evaluate(model) if model is not None and job.evaluates(round) else None
    position.advance(state, arrived)
    known = list(position.local_accuracy.values()) if local else []
    return _record(round, time.perf_counter() - began, score, known, arrived, absent, log)


def _record(
    round: int,
    seconds: float,
    score: Score | None,
    local: Sequence[float],
    arrived: Mapping[int, Arrived],
    absent: Mapping[int, Absent],
    log: dict[str, float],
) -> Record:
    """What is told of a round; `local` are the accuracies of the clients' own models."""
    everybody: dict[int, Arrived | Absent] = {**arrived, **absent}
    traffic = {client: (outcome.bytes_down, outcome.bytes_up) for client, outcome in sorted(everybody.items())}
    return Record(
        round=round,
        seconds=seconds,
        accuracy=score.correct / score.count if score else None,
        loss=score.loss / score.count if score else None,
        local_accuracy=sum(local) / len(local) if local else None,
        clients=len(arrived),
        steps=int(sum(reply.metrics.get("steps", 0) for reply in arrived.values())),
        bytes_down=sum(down for down, _ in traffic.values()),
        bytes_up=sum(up for _, up in traffic.values()),
        traffic=traffic,
        metrics=_summary(arrived),
        server=log,
        skipped={client: outcome.reason for client, outcome in absent.items()},
        details={client: outcome.detail for client, outcome in absent.items() if outcome.detail},
    )


def _sift(
    job: Job, round: int, outcomes: Mapping[int, Arrived | Absent]
) -> tuple[dict[int, Arrived], dict[int, Absent]]:
    """Who counts this round, ascending; refuses to go on with too few."""
    arrived: dict[int, Arrived] = {}
    absent: dict[int, Absent] = {}
    for client, outcome in sorted(outcomes.items()):
        if isinstance(outcome, Absent):
            absent[client] = outcome
        elif job.faults.strikes("lost", job.streams, round, client):
            absent[client] = Absent("upload lost", "", outcome.bytes_down, outcome.bytes_up)
        elif not finite(outcome.up):
            absent[client] = Absent("sent non-finite numbers", "", outcome.bytes_down, outcome.bytes_up)
        else:
            arrived[client] = outcome
    if outcomes and len(arrived) < min(job.min_clients, len(outcomes)):
        together: dict[str, list[str]] = {}
        for client, outcome in absent.items():
            together.setdefault(outcome.reason, []).append(str(client))
        reasons = "; ".join(f"client {', '.join(who[:5])}: {reason}" for reason, who in list(together.items())[:3])
        raise TooFewClientsError(
            f"round {round + 1}: {len(arrived)} of {len(outcomes)} clients replied and {job.min_clients} must "
            f"(engine.min_clients); {reasons}; mend the cause, then resume",
            absent,
        )
    return arrived, absent


def _note(log: dict[str, float], name: str, value: float) -> None:
    """A number that is logged again in a round replaces the first; steps add up, since all were made."""
    log[name] = value + log.get(name, 0) if name == "steps" else value


@contextmanager
def _calling(job: Job, function: str, round: int) -> Iterator[None]:
    """Say which function of which method failed, and when, in one sentence; the cause hangs on to it."""
    try:
        yield
    except TacitError:
        raise
    except Exception as error:
        name, cause = type(job.method).__name__, f"{type(error).__name__}: {error}"
        raise MethodFailedError(
            f"{function} of {name} failed in round {round + 1}: {cause}; mend it, then resume"
        ) from error


class MethodFailedError(TacitError):
    """A method's own function raised, or returned what it must not."""


class TooFewClientsError(TacitError):
    """A round in which fewer clients replied than the run needs."""

    def __init__(self, message: str, absent: Mapping[int, Absent]) -> None:
        """`absent` says who was missing and why."""
        super().__init__(message)
        self.absent = absent


def _summary(arrived: Mapping[int, Arrived]) -> dict[str, dict[str, float]]:
    """Mean, least and largest of each number the clients logged."""
    values: dict[str, list[float]] = {}
    for reply in arrived.values():
        for name, value in reply.metrics.items():
            values.setdefault(name, []).append(value)
    return {name: {"mean": sum(v) / len(v), "min": min(v), "max": max(v)} for name, v in sorted(values.items())}
