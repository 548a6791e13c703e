"""The terms of every engine: a run's job, the task of a client and its outcome, the transport, the state of a run."""

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Protocol

import torch

from tacit.engines.counts import COUNTS
from tacit.engines.crossed import CrossValidated
from tacit.engines.events import ClientStarted, Waiting
from tacit.engines.faults import Faults
from tacit.engines.limits import Limits
from tacit.engines.memory import Memories
from tacit.engines.secure_messages import MESSAGES
from tacit.engines.secure_peers import Peers
from tacit.engines.secure_sum import SumForm
from tacit.engines.selection import Judged, Selection, SelectionRule
from tacit.engines.upload_form import UploadForm
from tacit.engines.wire import Codec
from tacit.federation import UNLABELED, Federation, Samples
from tacit.learn import Score
from tacit.method import ClientContext, CombineRule, Method, SampleNoise, ServerContext, Training
from tacit.nets import Net
from tacit.params import Params, mean
from tacit.protect.config import Protection
from tacit.protect.rules import RobustRule
from tacit.protect.sample_budget import Spent
from tacit.random import Streams
from tacit.updates import Facts


@dataclass(frozen=True)
class Job:
    """Everything a run consists of, except how far it got and which transport carries its messages."""

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
    min_clients: int = 1  # replies that a round needs
    evaluate_every: int = 1
    rule: CombineRule = mean  # how the models of several clients become one
    evaluate_local: bool = False  # also evaluate the clients' own models
    selection: SelectionRule = SelectionRule()  # which model is saved, and when the run stops early
    metrics: tuple[str, ...] = ()  # more scores of every evaluation, by their names in `tacit.metrics.scores`
    limits: Limits = Limits()
    protect: Protection = Protection()
    secret_noise: bool = False  # whether noise comes from the operating system, as it must at a site
    secret: int | None = None  # in place of the seed for what client-level privacy must not show: who came, and noise
    hold_out: bool = False  # clients with labels hold some out, and count which of them a model gets right
    crossed: CrossValidated | None = None  # what cross-validation found before the first round
    reference: Judged | None = None  # what the clients' labels alone give, for the guard
    peers: Peers | None = None  # identity keys for secure aggregation; None: a simulation, which has keys by its seed
    left_out: Mapping[int, int] = field(default_factory=dict)  # clients that are no longer asked, from which round on

    @cached_property
    def upload_form(self) -> UploadForm:
        """What the clients may send."""
        federation = self.federation
        shape = tuple(int(side) for side in federation.pool.x.shape[1:])
        return UploadForm(Facts(self.net, len(federation.classes), shape, self.method, federation.pool.x.dtype))

    @cached_property
    def sum_form(self) -> SumForm:
        """How uploads are added by secure aggregation; refuses a method whose uploads cannot be."""
        return SumForm(self.upload_form)

    @cached_property
    def codec(self) -> Codec:
        """How this method's messages become bytes."""
        codec = Codec.of(self.method)
        more = (*(MESSAGES if self.protect.secure else ()), *(COUNTS if self.hold_out else ()))
        return Codec({**codec.types, **{kind.__name__: kind for kind in more}}) if more else codec

    @property
    def secret_streams(self) -> Streams:
        """Random streams that knowing the seed does not repeat; in a simulation those of the seed."""
        return self.streams if self.secret is None else Streams(self.secret)

    @cached_property
    def hostile(self) -> frozenset[int]:
        """The clients that attack in a simulation."""
        draw = self.streams.numpy_at("hostile clients")
        return frozenset(draw.choice(self.federation.clients, self.faults.hostile, replace=False).tolist())

    def _flipped(self, data: Samples) -> Samples:
        """The samples with class c as the last class but c, for the attack `labels`."""
        last = len(self.federation.classes) - 1
        return replace(data, y=torch.where(data.y == UNLABELED, data.y, last - data.y))

    def sample(self, round: int) -> tuple[int, ...]:
        """The clients of a round, drawn uniformly without replacement, ascending.

        With client-level privacy each is drawn by itself with the probability cohort / clients, which its account
        presumes; a round may then have no client.
        """
        clients = self.federation.clients
        if self.protect.hides_clients:
            chances = self.secret_streams.numpy_at("poisson cohort", round=round).random(clients)
            return tuple(int(client) for client in (chances < self.cohort / clients).nonzero()[0])
        draw = self.streams.numpy_at("cohort", round=round).choice(clients, self.cohort, replace=False)
        return tuple(sorted(int(client) for client in draw))

    @cached_property
    def _trained_nets(self) -> tuple[Net, Net]:
        """The network as clients and as the server train it, each in its precision."""
        return self.net.with_precision(self.train.precision), self.net.with_precision(self.server_train.precision)

    def server(self, round: int, log: dict[str, float]) -> ServerContext:
        """The server's context in a round."""
        note = partial(add_to_log, log)
        return ServerContext(
            round=round,
            rounds=self.rounds,
            net=self._trained_nets[1],
            train=self.server_train,
            inputs=self.federation.inputs,
            views=self.federation.views,
            streams=self.streams,
            device=self.device,
            cohort=self.sample(round),
            clients=self.federation.clients,
            data=self.federation.server,
            log=note,
            rule=replace(self.rule, log=note) if isinstance(self.rule, RobustRule) else self.rule,
        )

    def client(self, round: int, client: int) -> ClientContext:
        """A client's context in a round."""
        data = self.federation.client(client, round)
        return ClientContext(
            round=round,
            rounds=self.rounds,
            net=self._trained_nets[0],
            train=self.train,
            inputs=self.federation.inputs,
            views=self.federation.views,
            streams=self.streams,
            device=self.device,
            client=client,
            data=self._flipped(data) if self.faults.attack == "labels" and client in self.hostile else data,
            sample_noise=self.sample_noise,
        )

    @property
    def sample_noise(self) -> SampleNoise | None:
        """How clients protect single samples; None: they do not."""
        given = self.protect
        if given.sample_noise is None:
            return None
        return SampleNoise(given.sample_noise, given.sample_clip, self.secret_noise)

    def held(self, client: int) -> int:
        """How many samples a client holds, as far as this side knows; 0 where only the client does."""
        starts = self.federation.starts
        return int(starts[client + 1] - starts[client])

    def evaluates(self, round: int) -> bool:
        """Whether models are evaluated after this round; they always are after the last one."""
        return (round + 1) % self.evaluate_every == 0 or round + 1 == self.rounds


@dataclass(frozen=True)
class ClientTask:
    """What goes to one client: the message, the client's memory, and whether to evaluate its own model there."""

    down: object
    memory: bytes | None
    evaluate: bool = False


@dataclass(frozen=True)
class ClientResult:
    """What a client's work gave; `up` is None where the client only listened. The transport counts the bytes."""

    up: object | None
    memory: bytes | None  # not committed yet; None: nothing to remember, now or before
    metrics: Mapping[str, float]
    bytes_down: int = 0
    bytes_up: int = 0
    held: int | None = None  # samples that the client holds, by its word when it joined or as the simulation knows
    count: int | None = None  # samples that its upload stands for, if it says

    def with_bytes(self, down: int, up: int) -> "ClientResult":
        """The same result with the bytes that its messages took."""
        return replace(self, bytes_down=down, bytes_up=up)


@dataclass(frozen=True)
class ClientFailure:
    """A client that is left out of the round, and why; `tacit.engines.failures` makes them. Its bytes still count."""

    code: str
    reason: str
    detail: str = ""  # a traceback, if there is one
    bytes_down: int = 0
    bytes_up: int = 0

    def with_bytes(self, down: int, up: int = 0) -> "ClientFailure":
        """The same failure with the bytes that its messages took."""
        return replace(self, bytes_down=down, bytes_up=up)


ClientOutcome = ClientResult | ClientFailure
ClientNews = ClientStarted | Waiting | tuple[int, ClientOutcome]  # the last: a client and its outcome


class Transport(Protocol):
    """Carries tasks to clients and outcomes back; evaluates a model on the test set."""

    def run(self, round: int, tasks: Mapping[int, ClientTask]) -> Generator[ClientNews]:
        """Yield which clients start, and every client's outcome, as it happens. Closing it gives up the rest."""
        ...

    def evaluate(self, model: Params, *, outputs: bool = False) -> Score:
        """The model's score on the whole test set, with its outputs if asked for: the same bits on every transport."""
        ...

    def close(self) -> None:
        """End everything that it started."""
        ...


@dataclass
class RunState:
    """How far a run got: everything a checkpoint must hold."""

    memories: Memories
    round: int = 0
    state: Any = None
    local_accuracy: dict[int, float] = field(default_factory=dict)  # of each client seen, the last one measured
    selection: Selection = field(default_factory=Selection)  # to choose the model that is saved
    spent: dict[int, list[Spent]] = field(default_factory=dict)  # DP-SGD steps behind each client's uploads
    whole: bool = True  # False while a round is being committed, when nothing may be saved

    def finished(self, job: Job) -> bool:
        """Whether there is no round left."""
        return self.round >= job.rounds or bool(self.ended_early(job))

    def ended_early(self, job: Job) -> str:
        """Why there are fewer rounds than planned: by the selection, or by a method that knows when it is done."""
        ended = getattr(job.method, "ended", None)
        return self.selection.stopped or (ended(self.state) if ended and self.state is not None else "")

    def spend(self, client: int, upload: Spent) -> None:
        """Add the steps behind an upload to those of a client."""
        known = self.spent.setdefault(client, [])
        for place, each in enumerate(known):
            if (each.noise, each.rate) == (upload.noise, upload.rate):
                known[place] = replace(each, steps=each.steps + upload.steps)
                return
        known.append(upload)

    def advance(self, state: Any, results: Mapping[int, ClientResult]) -> None:
        """Commit a finished round: the new state, and the memories of the clients whose results counted."""
        self.whole = False
        memories = {client: result.memory for client, result in results.items() if result.memory is not None}
        self.memories.commit(self.round, memories)
        for client, result in results.items():
            if "local_accuracy" in result.metrics:
                self.local_accuracy[client] = result.metrics["local_accuracy"]
        self.state = state
        self.round += 1
        self.whole = True


def add_to_log(log: dict[str, float], name: str, value: float) -> None:
    """Log a number; a second value in the same round replaces the first, but steps add up, since all were made."""
    log[name] = value + log.get(name, 0) if name == "steps" else value
