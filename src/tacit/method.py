"""The contract: a federated method is five small functions over explicit state.

    start(server)                         -> state
    send(server, state)                   -> state, {client: down}      may train on the server first
    client_update(client, memory, down)   -> Reply(memory, up, …)       up=None: nothing to upload
    merge(server, state, {client: up})    -> state                      any subset may have arrived
    model(state)                          -> params                     what is evaluated and shipped

The engine owns everything else: sampling clients, processes, network, random numbers, bytes, checkpoints,
evaluation and logs. `state`, `memory`, `down` and `up` are frozen dataclasses that the method's file defines; nothing
else persists. A method object holds hyper-parameters only.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import getdoc
from typing import Annotated, Any, Generic, Literal, Protocol, TypeVar

import torch
from pydantic import Field
from torch import Tensor

from tacit.federation import Inputs, Samples, ServerData, Views
from tacit.nets import Net, Precision
from tacit.params import Params, mean
from tacit.random import Streams

Count = Annotated[int, Field(ge=1)]
Natural = Annotated[int, Field(ge=0)]
NonNegative = Annotated[float, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
Probability = Annotated[float, Field(ge=0, le=1)]

# Models, taken once and in order, and their weights -> one model.
CombineRule = Callable[[Iterable[Mapping[str, Tensor]], Sequence[float] | None], Params]

State = TypeVar("State")
Memory = TypeVar("Memory")
Down = TypeVar("Down")
Up = TypeVar("Up")
MemoryOut = TypeVar("MemoryOut", covariant=True)
UpOut = TypeVar("UpOut", covariant=True)


@dataclass(frozen=True)
class Training:
    """How a holder trains: section `[train]` of a config for clients, `[server]` for the server."""

    epochs: Count = 1  # passes over the local data per round
    steps: Count | None = None  # local steps per round, instead of epochs
    batch: Count = 32  # labeled samples per step
    unlabeled_batch: Count | None = None  # unlabeled samples per step; the same as batch when not given
    lr: Positive = 0.01  # learning rate at the start
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9  # momentum of SGD
    nesterov: bool = False  # Nesterov momentum
    weight_decay: NonNegative = 0.0  # L2 penalty: this times the weights is added to the gradient
    clip: Positive | None = None  # largest norm of the gradient; larger ones are scaled down
    schedule: str = "constant"  # of lr over rounds: constant, cosine, cosine:7/16, cosine:7/16:1e-4 or decay:0.995
    warmup: Annotated[int, Field(ge=0)] = 0  # rounds of linear growth to lr
    optimizer: Literal["reset", "keep"] = "reset"  # momentum between rounds
    buffers: Literal["average", "keep", "recompute"] = "average"  # BatchNorm statistics in the average
    precision: Precision | None = None  # of the networks' passes: fp32 (the default), bf16 or fp16
    patience: Count | None = None  # stop the run after this many evaluations without a gain on validation


@dataclass(frozen=True)
class SampleNoise:
    """How a client protects single samples in its SGD: DP-SGD, by the section `[protect]` of a config."""

    noise: float  # σ: noise of a step, in multiples of clip
    clip: float  # C: largest norm of the gradient of a sample
    secret: bool = False  # draw from the operating system, so that the seed does not tell the noise

    def stream(self, holder: "Holder", use: str) -> torch.Generator | None:
        """The holder's random stream for noise or sampling; None: the operating system."""
        return None if self.secret else holder.stream(use)


@dataclass(frozen=True)
class Holder(ABC):
    """A client or the server: a round, a network, settings, and named randomness."""

    round: int
    rounds: int
    net: Net
    train: Training
    inputs: Inputs
    views: Views
    streams: Streams
    device: torch.device
    sample_noise: SampleNoise | None = field(default=None, kw_only=True)  # None: plain SGD

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
    """Everything that `client_update` may see."""

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
    """Everything that `start`, `send` and `merge` may see."""

    cohort: tuple[int, ...]  # the clients sampled this round, ascending
    clients: int  # how many clients there are
    data: ServerData
    log: Callable[[str, float], None]  # add a number to this round's record; `steps` add up
    rule: CombineRule = mean  # how the models of several clients become one

    @property
    def samples(self) -> Samples:
        """The server's labeled samples."""
        return self.data.labeled

    def combine(self, models: Iterable[Mapping[str, Tensor]], weights: Sequence[float] | None = None) -> Params:
        """The models of several clients as one: their weighted mean, or what the run's rule takes in its place.

        Each model is taken once, in order, so an iterator keeps few of them in memory.
        """
        return self.rule(models, weights)

    def stream(self, use: str) -> torch.Generator:
        """The server's random stream for one use in this round."""
        return self.streams.at(f"server {use}", round=self.round)


@dataclass(frozen=True)
class PseudoLabels:
    """Pseudo-labels a client gave: position in its data, label, and whether the client trained on it."""

    index: Tensor  # -1 in the loss of a batch: do not report this one
    label: Tensor
    accepted: Tensor
    complementary: Tensor | None = None  # a class that the sample is not, -1 for none


@dataclass(frozen=True)
class Reply(Generic[MemoryOut, UpOut]):
    """What `client_update` returns. Only `up` leaves the client; `memory` stays with it."""

    memory: MemoryOut | None
    up: UpOut | None
    metrics: Mapping[str, float] = field(default_factory=dict)
    model: Params | None = None  # the model the client itself would use, evaluated at the client on request
    pseudo_labels: PseudoLabels | None = None  # compared with the truth at the client, if a simulator knows it


@dataclass(frozen=True)
class Needs:
    """What a method cannot do without; checked once, before a run starts."""

    client_labels: bool = False  # some client holds labels
    server_labels: bool = False  # the server holds labels
    validation: bool = False  # the server holds a validation set
    features: bool = False  # the network offers representations
    one_vs_all: bool = False  # the network gets a second head, unless net.one_vs_all = false
    linear_head: bool = False  # the network's last layer is linear in its features, and trains
    fresh_momentum: bool = False  # momentum starts afresh in every round
    steady_data: bool = False  # clients hold the same samples in every round
    averaged_buffers: bool = False  # BatchNorm statistics are averaged like weights
    mixable: bool = False  # samples can be mixed, which characters cannot
    simulation: bool = False  # the run is a simulation, since clients see samples of others
    true_mean: bool = False  # the server combines uploads by their mean, not by another rule
    separate_uploads: bool = False  # the server looks at single uploads and their senders, so a sum is not enough
    planned_rounds: bool = False  # the number of rounds stays, since it paces the method (apart from the schedule)


@dataclass(frozen=True)
class Variant:
    """A name for a method class with some of its settings fixed, or with other defaults."""

    kind: type  # the method class
    about: str  # its documentation; the first line is what `tacit ls` shows
    defaults: Mapping[str, Any] = field(default_factory=dict)  # values that differ from the defaults of the class
    without: tuple[str, ...] = ()  # settings of the class that this variant does not have
    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # named sets of values, for method.preset

    @classmethod
    def of(cls, kind: "type | Variant") -> "Variant":
        """A variant as it is; a class as the only variant of itself, with its `PRESETS`."""
        if isinstance(kind, Variant):
            return kind
        return cls(kind, getdoc(kind) or "", presets=getattr(kind, "PRESETS", {}))


class Method(Protocol[State, Memory, Down, Up]):
    """A federated method. Implementations are frozen dataclasses; their fields are the hyper-parameters."""

    @property
    def needs(self) -> Needs:
        """What this method cannot run without."""
        ...

    def start(self, server: ServerContext) -> State:
        """The state before round 0."""
        ...

    def send(self, server: ServerContext, state: State) -> tuple[State, Mapping[int, Down]]:
        """What each client gets this round; the server may train first."""
        ...

    def client_update(self, client: ClientContext, memory: Memory | None, down: Down) -> Reply[Memory, Up]:
        """One client's work; `memory` is None on its first visit."""
        ...

    def merge(self, server: ServerContext, state: State, ups: Mapping[int, Up]) -> State:
        """The state after the uploads that arrived, in ascending order of clients; there may be none."""
        ...

    def model(self, state: State) -> Params | None:
        """What is evaluated and shipped; None for a method without a common model."""
        ...
