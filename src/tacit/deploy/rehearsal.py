"""What a run would send, found by playing its first rounds in this process: the real method, network and messages.

Nothing is written down by hand: names, shapes and sizes are those of the messages themselves, and the words are the
documentation of the method's own message classes.
"""

import json
import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tacit.catalog import sentence
from tacit.config import Config
from tacit.data import scenario
from tacit.data.scenario import Split
from tacit.data.sources import Source
from tacit.deploy.description import Description
from tacit.engines.faults import Faults
from tacit.engines.inline import InlineCourier
from tacit.engines.local import one_thread
from tacit.engines.loop import Absent, Arrived, Job, Parcel, Position, play
from tacit.engines.memory import Memories
from tacit.engines.wire import Codec, Parts, Values
from tacit.errors import TacitError
from tacit.federation import UNLABELED, Samples, ServerData
from tacit.learn import Score
from tacit.nets import Net
from tacit.params import Params
from tacit.prepare import assemble
from tacit.random import Streams

ROUNDS = 3  # the first ones differ from the others in some methods: means are asked for, others' models come later
SITES = 3  # this one and invented ones, without which there would be nobody to help or to mix with
OWN = 512  # samples of the site that take part
INVENTED = 16  # at every invented place
LOUD = 1000.0  # factor on the last layer's weights


@dataclass(frozen=True)
class Item:
    """One thing in a message: all tensors of a model together, any other tensor, or a plain value."""

    name: str
    what: str  # its form in words
    size: int  # bytes; 0 of a plain value, which is part of the message's frame
    like_samples: bool = False  # has the form of samples, so it may be made of them
    copies: bool = False  # holds samples of the site as they are


@dataclass(frozen=True)
class Sent:
    """A message: what the method says it is, what is in it, and its size on the way."""

    about: tuple[str, ...]
    items: tuple[Item, ...]
    size: int


@dataclass(frozen=True)
class Round:
    """What comes to the site and what leaves it in a round, the first of those that are alike; None: nothing."""

    number: int
    down: Sent | None
    up: Sent | None
    metrics: tuple[str, ...]
    memory: int | None  # bytes that stay at the site; None: nothing

    def form(self) -> object:
        """What makes two rounds alike: what travels, whatever its size."""
        sents = [None if sent is None else [item.name for item in sent.items] for sent in (self.down, self.up)]
        return sents, self.metrics, self.memory is None


def rehearse(config: Config, description: Description, own: Source | None) -> list[Round]:
    """The first rounds as the site would see them with some of its own samples, or with invented ones.

    Many methods send nothing before the model is sure of some sample, which it becomes only later in a run. So where
    something is missing, they are played again with a model that is sure of everything.
    """
    job = _job(config, description, own)
    rounds = _rounds(job)
    if any(each.down and not each.up for each in rounds):
        rounds = max(rounds, _rounds(replace(job, net=_Sure(job.net))), key=_ups)
    return [each for place, each in enumerate(rounds) if not place or each.form() != rounds[place - 1].form()]


def _ups(rounds: list[Round]) -> int:
    return sum(each.up is not None for each in rounds)


class _Sure(Net):
    """A network whose first weights give answers near 0 and 1."""

    def __init__(self, net: Net) -> None:
        self.__dict__ = dict(net.__dict__)

    def init(self, stream: torch.Generator) -> Params:
        """The last layer, which comes last among the names, speaks up."""
        loud = self.trainable[-2:]
        return {name: value * LOUD if name in loud else value for name, value in super().init(stream).items()}


def _rounds(job: Job) -> list[Round]:
    mine, notes = job.federation.client(0, 0), _Notes(job)
    memories = Memories(Path(), limit=sys.maxsize)  # in RAM: nothing is written
    with one_thread():
        for _ in islice(play(job, notes, Position(memories)), ROUNDS):
            pass
        return [_round(job, number, *seen, mine) for number, seen in notes.rounds.items()]


def _round(job: Job, number: int, parcel: Parcel | None, reply: Arrived | None, mine: Samples) -> Round:
    sent = None if parcel is None else _sent(job, parcel.down, None)
    up = None if reply is None or reply.up is None else _sent(job, reply.up, mine)
    metrics = tuple(sorted(reply.metrics)) if reply else ()
    memory = len(reply.memory) if reply and reply.memory is not None else None
    return Round(number + 1, sent, up, metrics, memory)


class _Notes(InlineCourier):
    """Notes what goes to the site and what comes of it; without the work of every client there is nothing to show."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.rounds: dict[int, tuple[Parcel | None, Arrived | None]] = {}

    def exchange(self, round: int, parcels: Mapping[int, Parcel]) -> Mapping[int, Arrived | Absent]:
        """Every client's outcome."""
        outcomes = super().exchange(round, parcels)
        for outcome in outcomes.values():
            if isinstance(outcome, Absent):
                raise TacitError(f"the rehearsal of round {round + 1} {outcome.reason}; mend that, or tell the hub")
        arrived = {client: outcome for client, outcome in outcomes.items() if isinstance(outcome, Arrived)}
        self.rounds[round] = parcels.get(0), arrived.get(0)
        return outcomes

    def evaluate(self, model: Params) -> Score:
        """Of no interest here, and there may be no test samples."""
        return Score(0, 0.0, 1)


# --- a small federation of the same form ------------------------------------------------------------------------------


def _job(config: Config, description: Description, own: Source | None) -> Job:
    """The run's job with one step of training, few samples, and everybody in every round."""
    clients = min(config.data.clients, SITES)
    train, server = replace(config.train, steps=1), config.server | {"steps": 1}
    # Nobody is left out, not for numbers of a model that is all too sure, and all that may be told is told at once.
    config = replace(config, engine=replace(config.engine, min_clients=0), log=replace(config.log, evaluate_every=1))
    data = replace(config.data, clients=clients, steps=1)
    small = replace(config, cohort=clients, train=train, server=server, data=data, faults=Faults())
    shown = config.data.labels != "server"
    parts = [_few(own) if own else _invented(description, 0), *(_invented(description, k) for k in range(1, clients))]
    pool = Samples(torch.cat([part.x for part in parts]), torch.cat([part.y for part in parts]))
    if not shown:
        pool = replace(pool, y=torch.full_like(pool.y, UNLABELED))
    source = _source(description, pool, own)
    dealt = [part.numpy() for part in torch.arange(len(pool)).split([len(part) for part in parts])]
    split = Split(dealt, (pool.y != UNLABELED).numpy(), dealt[0][:0], dealt[0][:0])
    server_data = ServerData(_invented(description, -1, not shown), _invented(description, -2))
    federation = scenario.federation(source, split, small.data)
    return assemble(small, replace(federation, server=server_data, truth=None))


def _source(description: Description, pool: Samples, own: Source | None) -> Source:
    test = (own.x_test[:INVENTED], own.y_test[:INVENTED]) if own else (pool.x[:0], pool.y[:0])
    d = description
    return Source("rehearsal", pool.x, pool.y, *test, d.classes, d.mean, d.std, d.flip, d.shift, text=d.text)


def _few(own: Source) -> Samples:
    """Some of the site's samples, those with a label first, since a method may need several of them."""
    order = (own.y == UNLABELED).int().argsort(stable=True)[:OWN]
    return Samples(own.x, own.y).take(order)


def _invented(description: Description, place: int, some: bool = True) -> Samples:
    """Noise in the form of samples, with labels in turn."""
    count = max(INVENTED, len(description.classes)) if some else 0
    stream = Streams(0).at("invented samples", client=place % 1000)
    most = len(description.classes) if description.text else 256
    x = torch.randint(most, (count, *description.shape), generator=stream).to(torch.uint8)
    return Samples(x, torch.arange(count) % len(description.classes))


# --- what is in a message ---------------------------------------------------------------------------------------------


def _sent(job: Job, message: object, mine: Samples | None) -> Sent:
    parts = job.codec.take_apart(message)
    tree = json.loads(parts.tree)
    plain = [Item(name, kind, 0) for name, kind in _plain(tree, "")]
    tensors = [*_tensors(job, parts, mine if mine is not None else Samples(torch.empty(0, 1), torch.empty(0)))]
    return Sent(tuple(dict.fromkeys(_words(tree, job.codec))), (*tensors, *plain), len(parts))


def _words(tree: Any, codec: Codec) -> Iterator[str]:
    """What the method's own documentation says of the messages in a tree."""
    if isinstance(tree, list) and tree and tree[0] == "c":
        yield sentence(codec.types[tree[1]])
        for item in tree[2].values():
            yield from _words(item, codec)
    elif isinstance(tree, list) and tree and tree[0] == "d":
        for _, item in tree[1]:
            yield from _words(item, codec)
    elif isinstance(tree, list) and tree and tree[0] in ("l", "u"):
        for item in tree[1]:
            yield from _words(item, codec)


def _plain(tree: Any, at: str) -> Iterator[tuple[str, str]]:
    """Values that are no tensors: place and kind."""
    if isinstance(tree, (bool, int, float, str)):
        kind = "a text" if isinstance(tree, str) else "yes or no" if isinstance(tree, bool) else "a number"
        yield at.removeprefix("/") or "value", kind
    match tree:
        case ["c", _, dict(items)]:
            for name, item in items.items():
                yield from _plain(item, f"{at}/{name}")
        case ["d", list(pairs)]:
            for key, item in pairs:
                yield from _plain(item, f"{at}/{key}")
        case ["l" | "u", list(listed)]:
            for place, item in enumerate(listed):
                yield from _plain(item, f"{at}/{place}")


def _tensors(job: Job, parts: Parts, mine: Samples) -> Iterator[Item]:
    """The tensors of a message, those of a whole model as one."""
    models: dict[str, dict[str, Values]] = {}
    for name, value in parts.values.items():
        place, _, last = name.removesuffix("/positions").removesuffix("/values").rpartition("/")
        if last in job.net.names:
            models.setdefault(place, {})[name] = value
        else:
            models[name] = {}
    for name, group in models.items():
        yield _model(name, group) if group else _single(name, parts.values[name], mine)


def _model(name: str, values: Mapping[str, Values]) -> Item:
    size = sum(len(value.data) for value in values.values())
    changed = [value for at, value in values.items() if at.endswith("/values")]
    if changed:
        return Item(
            name or "model", f"changes of the model: {_tensor_count(len(changed))}, as far as they changed", size
        )
    kinds = ", ".join(sorted({value.kind for value in values.values()}))
    return Item(name or "model", f"the model: {_tensor_count(len(values))}, {kinds}", size)


def _tensor_count(count: int) -> str:
    return f"{count} tensor{'s' if count > 1 else ''}"


def _single(name: str, value: Values, mine: Samples) -> Item:
    form = " × ".join(map(str, value.shape)) or "one value"
    alike = len(mine) > 0 and math.prod(value.shape) > 0 and _ends_with(value.shape, tuple(mine.x.shape[1:]))
    return Item(name, f"{form}, {value.kind}", len(value.data), alike, alike and _holds(value, mine.x))


def _ends_with(shape: tuple[int, ...], end: tuple[int, ...]) -> bool:
    return shape[len(shape) - len(end) :] == end


def _holds(value: Values, samples: Tensor) -> bool:
    """Whether one of the samples is in a tensor as it is."""
    kind: torch.dtype = getattr(torch, value.kind)
    rows = torch.frombuffer(bytearray(value.data), dtype=kind).reshape(-1, *samples.shape[1:]).double().flatten(1)
    known = {row.tobytes() for row in samples.double().flatten(1).numpy()}
    return any(row.tobytes() in known for row in rows.numpy())
