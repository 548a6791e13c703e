"""The contract: a federated method is five small functions over explicit state.

    start(server)                         -> state
    send(server, state)                   -> state, {client: down}      may train on the server first
    client_update(client, memory, down)   -> Reply(memory, up, …)       up=None: it only listened
    merge(server, state, {client: up})    -> state                      any subset may have arrived
    model(state)                          -> params                     what is evaluated and shipped

The engine owns everything else: sampling clients, processes, network, random numbers, bytes, checkpoints,
evaluation and logs. `state`, `memory`, `down` and `up` are frozen dataclasses of the method's own file; nothing
else persists. A method object holds hyper-parameters only.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Generic, Literal, Protocol, TypeVar

import torch
from pydantic import Field
from torch import Tensor

from tacit.federation import Samples, ServerData, Views
from tacit.nets import Net
from tacit.params import Params
from tacit.random import Streams

Count = Annotated[int, Field(ge=1)]
Natural = Annotated[int, Field(ge=0)]
NonNegative = Annotated[float, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
Probability = Annotated[float, Field(ge=0, le=1)]

State = TypeVar("State")
Memory = TypeVar("Memory")
Down = TypeVar("Down")
Up = TypeVar("Up")
MemoryOut = TypeVar("MemoryOut", covariant=True)
UpOut = TypeVar("UpOut", covariant=True)


@dataclass(frozen=True)
class Training:
    """How one holder trains: the section `[train]` of a config for clients, `[server]` for the server."""

    epochs: Count = 1  # passes over the local data per round
    steps: Count | None = None  # local steps per round, instead of epochs
    batch: Count = 32  # labeled samples per step
    unlabeled_batch: Count | None = None  # unlabeled samples per step; as many as batch when not given
    lr: Positive = 0.01  # learning rate at the start
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9  # of SGD
    nesterov: bool = False  # look ahead along the momentum
    weight_decay: NonNegative = 0.0  # added to the gradient, times the weights
    clip: Positive | None = None  # largest norm of the gradient
    schedule: str = "constant"  # of lr over rounds: constant, cosine, cosine:7/16, cosine:7/16:1e-4, decay:0.995
    warmup: Annotated[int, Field(ge=0)] = 0  # rounds of linear growth to lr
    optimizer: Literal["reset", "keep"] = "reset"  # momentum at the start of a round
    buffers: Literal["average", "keep", "recompute"] = "average"  # BatchNorm statistics at the merge


@dataclass(frozen=True)
class Holder(ABC):
    """What clients and server have in common: a round, a network, settings, and named randomness."""

    round: int
    rounds: int
    net: Net
    train: Training
    views: Views
    streams: Streams
    device: torch.device

    @property
    @abstractmethod
    def samples(self) -> Samples:
        """The samples this holder may train on."""

    @abstractmethod
    def stream(self, use: str) -> torch.Generator:
        """This holder's random stream for one use in this round."""

    def initial(self) -> Params:
        """The weights that every method starts from with this seed."""
        return {name: value.to(self.device) for name, value in self.net.init(self.streams.at("init")).items()}


@dataclass(frozen=True)
class ClientContext(Holder):
    """All that `client_update` may see."""

    client: int
    data: Samples

    @property
    def samples(self) -> Samples:
        """Everything the client holds, labeled or not."""
        return self.data

    def stream(self, use: str) -> torch.Generator:
        """This client's random stream for one use in this round."""
        return self.streams.at(use, round=self.round, client=self.client)


@dataclass(frozen=True)
class ServerContext(Holder):
    """All that `start`, `send` and `merge` may see."""

    cohort: tuple[int, ...]  # the clients sampled this round, ascending
    clients: int  # how many clients there are
    data: ServerData
    log: Callable[[str, float], None]  # put a number into this round's record; `steps` add up

    @property
    def samples(self) -> Samples:
        """The server's labeled samples."""
        return self.data.labeled

    def stream(self, use: str) -> torch.Generator:
        """The server's random stream for one use in this round."""
        return self.streams.at(f"server {use}", round=self.round)


@dataclass(frozen=True)
class Guesses:
    """Pseudo-labels a client gave: position in its data, label, and whether it trained on it."""

    index: Tensor
    label: Tensor
    kept: Tensor
    excluded: Tensor | None = None  # complementary labels: a class that the sample is not, -1 for none


@dataclass(frozen=True)
class Reply(Generic[MemoryOut, UpOut]):
    """What `client_update` returns. Only `up` leaves the client; `memory` stays with it."""

    memory: MemoryOut | None
    up: UpOut | None
    metrics: Mapping[str, float] = field(default_factory=dict)
    model: Params | None = None  # the model the client itself would use, evaluated in place on request
    guesses: Guesses | None = None  # its pseudo-labels, compared in place with the truth where a simulator knows it


@dataclass(frozen=True)
class Needs:
    """What a method can not do without; checked once, before a run starts."""

    client_labels: bool = False  # some client holds labels
    server_labels: bool = False  # the server holds labels
    validation: bool = False  # the server holds a validation set
    features: bool = False  # the network offers representations
    fresh_momentum: bool = False  # clients do not keep their optimizer's momentum
    steady_data: bool = False  # clients hold the same samples in every round
    averaged_buffers: bool = False  # BatchNorm statistics are averaged like weights
    images: bool = False  # inputs can be mixed, which characters can not
    simulation: bool = False  # clients' samples may be shown to others


class Method(Protocol[State, Memory, Down, Up]):
    """A federated method. Implementations are frozen dataclasses; their fields are the hyper-parameters."""

    @property
    def needs(self) -> Needs:
        """What must be there for this method to run."""
        ...

    def start(self, server: ServerContext) -> State:
        """The state before round 0."""
        ...

    def send(self, server: ServerContext, state: State) -> tuple[State, Mapping[int, Down]]:
        """What goes to which client this round; the server may train first."""
        ...

    def client_update(self, client: ClientContext, memory: Memory | None, down: Down) -> Reply[Memory, Up]:
        """One client's work; `memory` is None on its first visit."""
        ...

    def merge(self, server: ServerContext, state: State, ups: Mapping[int, Up]) -> State:
        """The state after the uploads that arrived, in ascending order of clients; there may be none."""
        ...

    def model(self, state: State) -> Params | None:
        """What is evaluated and shipped, or None for a method without a common model."""
        ...
