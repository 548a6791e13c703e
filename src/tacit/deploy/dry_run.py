"""A dry run: the first rounds of a run in this process, to see what the real method, network and messages would send.

Nothing is written down by hand: names, shapes and sizes come from the messages, and the descriptions from the
docstrings of the method's message classes.
"""

import json
import math
import sys
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tacit.data.federate import federate
from tacit.data.sources import Source
from tacit.data.split.split import Split
from tacit.deploy.federation_spec import FederationSpec
from tacit.deploy.sample_guard import smallest_group
from tacit.engines.events import round_records
from tacit.engines.faults import Faults
from tacit.engines.in_process import InProcessTransport
from tacit.engines.job import ClientFailure, ClientNews, ClientOutcome, ClientResult, ClientTask, Job, RunState
from tacit.engines.memory import Memories
from tacit.engines.rounds import run_rounds
from tacit.engines.secure_messages import KeysDown, KeysUp, RevealDown, RevealUp, SharesDown, SharesUp
from tacit.engines.wire import Codec, Parts, Values
from tacit.errors import TacitError
from tacit.federation import UNLABELED, Samples, ServerData
from tacit.learn import Score
from tacit.nets import Net
from tacit.params import Params
from tacit.process import one_thread
from tacit.random import Streams
from tacit.runs.build import assemble, refuse_unprotected
from tacit.runs.config import Config
from tacit.runs.registry import sentence

ROUNDS = 3  # in some methods the first rounds differ: means are collected, helper models come later
SITES = 3  # this one and invented ones, so that there are others to help or to mix with
OWN_SAMPLES = 512  # of the site that take part
INVENTED_SAMPLES = 16  # of each invented holder
CONFIDENCE = 1000.0  # factor on the last layer's weights


@dataclass(frozen=True)
class MessageItem:
    """One thing in a message: all tensors of a model together, any other tensor, or a plain value."""

    name: str
    form: str  # in words
    size: int  # bytes; 0 for a plain value, which is part of the message's frame
    like_samples: bool = False  # has the shape of samples, so it may be computed from them
    copies_samples: bool = False  # holds unchanged samples of the site


@dataclass(frozen=True)
class MessageContent:
    """A message: the method's description of it, what it holds, and its size in transit."""

    about: tuple[str, ...]
    items: tuple[MessageItem, ...]
    size: int


@dataclass(frozen=True)
class RoundTraffic:
    """What reaches and leaves the site in a round, which stands for all later rounds like it; None: nothing."""

    number: int
    down: MessageContent | None
    up: MessageContent | None
    metrics: tuple[str, ...]
    memory: int | None  # bytes that stay at the site; None: nothing
    smallest_group: int | None = None  # the fewest samples that anything sent is a mean of; None: no means

    def layout(self) -> object:
        """What two rounds have in common if they are alike: the items that travel, of any size."""
        items = [None if sent is None else [item.name for item in sent.items] for sent in (self.down, self.up)]
        return items, self.metrics, self.memory is None


def dry_run(config: Config, spec: FederationSpec, own: Source | None) -> list[RoundTraffic]:
    """The first rounds that differ, as the site sees them with some of its own samples, or with invented ones.

    Many methods send nothing until the model is confident about some sample, which happens only later in a run. If an
    upload is missing, the rounds run again with a model that is confident about everything.
    """
    job = _small_job(config, spec, own)
    refuse_unprotected(job)
    rounds = _run(job)
    if any(each.down and not each.up for each in rounds):
        rounds = max(rounds, _run(replace(job, net=_ConfidentNet(job.net))), key=_uploads)
    return [each for index, each in enumerate(rounds) if not index or each.layout() != rounds[index - 1].layout()]


def _uploads(rounds: list[RoundTraffic]) -> int:
    return sum(each.up is not None for each in rounds)


class _ConfidentNet(Net):
    """A network whose initial weights give probabilities near 0 and 1."""

    def __init__(self, net: Net) -> None:
        self.__dict__ = dict(net.__dict__)

    def init(self, stream: torch.Generator) -> Params:
        """Scale up the last layer, which comes last among the names."""
        last = self.trainable[-2:]
        return {name: value * CONFIDENCE if name in last else value for name, value in super().init(stream).items()}


def _run(job: Job) -> list[RoundTraffic]:
    own, transport = job.federation.client(0, 0), _RecordingTransport(job)
    memories = Memories(Path(), limit=sys.maxsize)  # in RAM: nothing is written
    with one_thread():
        for _ in islice(round_records(run_rounds(job, transport, RunState(memories))), ROUNDS):
            pass
        return [_traffic(job, number, *seen, own) for number, seen in transport.rounds.items()]


def _traffic(job: Job, number: int, task: ClientTask | None, result: ClientResult | None, own: Samples) -> RoundTraffic:
    down = None if task is None else _content(job, task.down, None)
    up = None if result is None or result.up is None else _content(job, result.up, own)
    metrics = tuple(sorted(result.metrics)) if result else ()
    memory = len(result.memory) if result and result.memory is not None else None
    group = None if result is None else smallest_group(job, result.up)
    return RoundTraffic(number + 1, down, up, metrics, memory, group)


class _RecordingTransport(InProcessTransport):
    """Records the site's task and result of each round; one failed client makes the dry run worthless."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.rounds: dict[int, tuple[ClientTask | None, ClientResult | None]] = {}

    def run(self, round: int, tasks: Mapping[int, ClientTask]) -> Generator[ClientNews]:
        """Run one client after the other. Of the exchanges of secure aggregation, the one with the work is recorded."""
        task = tasks.get(0)
        if task is None or not isinstance(task.down, (KeysDown, SharesDown, RevealDown)):
            self.rounds[round] = task, None
        for item in super().run(round, tasks):
            if isinstance(item, tuple):
                self._note(round, *item)
            yield item

    def _note(self, round: int, client: int, outcome: ClientOutcome) -> None:
        if isinstance(outcome, ClientFailure):
            raise TacitError(
                f"round {round + 1} of the dry run {outcome.reason}",
                "fix that, or report it to the hub",
                code="site.dry-run-failed",
            )
        if client == 0 and not isinstance(outcome.up, (KeysUp, SharesUp, RevealUp)):
            self.rounds[round] = self.rounds[round][0], replace(outcome, memory=self._own_memory(outcome.memory))

    def _own_memory(self, memory: bytes | None) -> bytes | None:
        """What the method remembers, without the secrets of a round."""
        if memory is None or not self._job.protect.secure:
            return memory
        kept = self._job.codec.decode(memory)
        return self._job.codec.encode(kept.own) if kept.had else None

    def evaluate(self, model: Params, *, outputs: bool = False) -> Score:
        """A placeholder: there may be no test samples."""
        return Score(0, 0.0, 1)


# --- a small federation of the same form ------------------------------------------------------------------------------


def _small_job(config: Config, spec: FederationSpec, own: Source | None) -> Job:
    """The run's job with one step of training, few samples, and all clients in every round."""
    clients = min(config.data.clients, SITES)
    train, server = replace(config.train, steps=1), config.server | {"steps": 1}
    # No client is left out, even for the non-finite numbers of an overconfident model, and every round evaluates.
    log = replace(config.log, evaluate_every=1, metrics=None)
    config = replace(config, engine=replace(config.engine, min_clients=0), log=log)
    data = replace(config.data, clients=clients, stream_steps=1)
    small = replace(config, cohort=clients, train=train, server=server, data=data, faults=Faults())
    at_sites = config.data.labels != "server"
    parts = [_subset(own) if own else _invented(spec, 0), *(_invented(spec, k) for k in range(1, clients))]
    pool = Samples(torch.cat([part.x for part in parts]), torch.cat([part.y for part in parts]))
    if not at_sites:
        pool = replace(pool, y=torch.full_like(pool.y, UNLABELED))
    source = _source(spec, pool, own)
    rows = [part.numpy() for part in torch.arange(len(pool)).split([len(part) for part in parts])]
    split = Split(rows, (pool.y != UNLABELED).numpy(), rows[0][:0], rows[0][:0])
    server_data = ServerData(_invented(spec, -1, some=not at_sites), _invented(spec, -2))
    federation = federate(source, split, small.data)
    return assemble(small, replace(federation, server=server_data, truth=None))


def _source(spec: FederationSpec, pool: Samples, own: Source | None) -> Source:
    test = (own.x_test[:INVENTED_SAMPLES], own.y_test[:INVENTED_SAMPLES]) if own else (pool.x[:0], pool.y[:0])
    return Source("dry run", pool.x, pool.y, *test, spec.classes, spec.inputs)


def _subset(own: Source) -> Samples:
    """Some of the site's samples, labeled ones first, since a method may need several of them."""
    order = (own.y == UNLABELED).int().argsort(stable=True)[:OWN_SAMPLES]
    return Samples(own.x, own.y).take(order)


def _invented(spec: FederationSpec, holder: int, *, some: bool = True) -> Samples:
    """Noise with the shape of samples, and all labels in turn."""
    count = max(INVENTED_SAMPLES, len(spec.classes)) if some else 0
    stream = Streams(0).at("invented samples", client=holder % 1000)
    return Samples(spec.inputs.invent(count, stream), torch.arange(count) % len(spec.classes))


# --- the content of a message -----------------------------------------------------------------------------------------


def _content(job: Job, message: object, own: Samples | None) -> MessageContent:
    parts = job.codec.to_parts(message)
    tree = json.loads(parts.tree)
    plain = [MessageItem(name, kind, 0) for name, kind in _plain(tree, "")]
    tensors = [*_tensors(job, parts, own if own is not None else Samples(torch.empty(0, 1), torch.empty(0)))]
    return MessageContent(tuple(dict.fromkeys(_docs(tree, job.codec))), (*tensors, *plain), len(parts))


def _docs(tree: Any, codec: Codec) -> Iterator[str]:
    """The first sentence of the docstring of each message class in a tree."""
    if isinstance(tree, list) and tree and tree[0] == "c":
        yield sentence(codec.types[tree[1]])
        for item in tree[2].values():
            yield from _docs(item, codec)
    elif isinstance(tree, list) and tree and tree[0] == "d":
        for _, item in tree[1]:
            yield from _docs(item, codec)
    elif isinstance(tree, list) and tree and tree[0] in ("l", "u"):
        for item in tree[1]:
            yield from _docs(item, codec)


def _plain(tree: Any, at: str) -> Iterator[tuple[str, str]]:
    """Values that are not tensors: path and kind."""
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
            for index, item in enumerate(listed):
                yield from _plain(item, f"{at}/{index}")


def _tensors(job: Job, parts: Parts, own: Samples) -> Iterator[MessageItem]:
    """The tensors of a message, with all tensors of a model as one item."""
    models: dict[str, dict[str, Values]] = {}
    for name, value in parts.values.items():
        path, _, last = name.removesuffix("/positions").removesuffix("/values").rpartition("/")
        if last in job.net.names:
            models.setdefault(path, {})[name] = value
        else:
            models[name] = {}
    for name, group in models.items():
        yield _model(name, group) if group else _single(name, parts.values[name], own)


def _model(name: str, values: Mapping[str, Values]) -> MessageItem:
    size = sum(len(value.data) for value in values.values())
    changed = [value for at, value in values.items() if at.endswith("/values")]
    if changed:
        return MessageItem(name or "model", f"changed values of the model: {_tensor_count(len(changed))}", size)
    kinds = ", ".join(sorted({value.kind for value in values.values()}))
    return MessageItem(name or "model", f"the model: {_tensor_count(len(values))}, {kinds}", size)


def _tensor_count(count: int) -> str:
    return f"{count} tensor{'s' if count > 1 else ''}"


def _single(name: str, value: Values, own: Samples) -> MessageItem:
    form = " × ".join(map(str, value.shape)) or "one value"
    alike = len(own) > 0 and math.prod(value.shape) > 0 and _ends_with(value.shape, tuple(own.x.shape[1:]))
    return MessageItem(name, f"{form}, {value.kind}", len(value.data), alike, alike and _copies(value, own.x))


def _ends_with(shape: tuple[int, ...], end: tuple[int, ...]) -> bool:
    return shape[len(shape) - len(end) :] == end


def _copies(value: Values, samples: Tensor) -> bool:
    """Whether a tensor holds one of the samples unchanged."""
    kind: torch.dtype = getattr(torch, value.kind)
    rows = torch.frombuffer(bytearray(value.data), dtype=kind).reshape(-1, *samples.shape[1:]).double().flatten(1)
    known = {row.tobytes() for row in samples.double().flatten(1).numpy()}
    return any(row.tobytes() in known for row in rows.numpy())
