"""Small problems whose answers are known: a federation of a few numbers, and quadratics with an exact optimum."""

import tempfile
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tacit.data.inputs import CharacterInputs, ImageInputs, VectorInputs
from tacit.data.sources import Source
from tacit.engines import checkpoint
from tacit.engines.events import round_records
from tacit.engines.in_process import InProcessTransport
from tacit.engines.job import ClientNews, ClientOutcome, ClientResult, Job, RunState, Transport
from tacit.engines.memory import Memories
from tacit.engines.record import RoundRecord
from tacit.engines.rounds import run_rounds
from tacit.federation import UNLABELED, Federation, Inputs, Samples, ServerData, Views
from tacit.learn import Batch, BatchLoss, Forward, LocalLoss
from tacit.method import Holder, Method, Needs, Training
from tacit.nets import Net, build
from tacit.params import Params, equal
from tacit.random import Streams

torch.set_num_threads(1)  # as every worker does

PLAIN_SGD = Training(epochs=1, batch=4, lr=0.1, momentum=0.0)
TWO_EPOCHS = Training(epochs=2, batch=6, lr=0.1)


def steps(count: int, **options: Any) -> Training:
    """So many steps of plain SGD."""
    return replace(PLAIN_SGD, steps=count, **options)


class Elsewhere(Tensor):
    """Stands for a tensor on a GPU: it meets those of the CPU only once it was brought there."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """What torch would do, but for these two."""
        if func is Tensor.cpu:
            return args[0].as_subclass(Tensor)
        if func is torch.cat and len({type(part) for part in args[0]}) > 1:
            raise RuntimeError("expected all tensors to be on the same device")
        torch_does: Any = super().__torch_function__
        return torch_does(func, types, args, kwargs or {})


@dataclass(frozen=True)
class Identity:
    """Views that change nothing: stored numbers as floats."""

    def plain(self, x: Tensor) -> Tensor:
        """The numbers."""
        return x if x.is_floating_point() else x.float()

    def weak(self, x: Tensor, stream: torch.Generator) -> Tensor:
        """The numbers."""
        return self.plain(x)

    def strong(self, x: Tensor, stream: torch.Generator) -> Tensor:
        """The numbers."""
        return self.plain(x)


@dataclass(frozen=True)
class Noisy(Identity):
    """Views that draw from their stream."""

    little: float = 0.1
    more: float = 0.5

    def weak(self, x: Tensor, stream: torch.Generator) -> Tensor:
        """A little noise."""
        return x + self.little * torch.randn(x.shape, generator=stream)

    def strong(self, x: Tensor, stream: torch.Generator) -> Tensor:
        """More noise."""
        return x + self.more * torch.randn(x.shape, generator=stream)


def samples(x: Sequence[Any], y: Sequence[int], dtype: torch.dtype = torch.float32) -> Samples:
    """Samples from plain lists."""
    return Samples(torch.tensor(x, dtype=dtype), torch.tensor(y, dtype=torch.int64))


def points(seed: int, n: int, classes: int = 3, features: int = 4) -> Samples:
    """Labeled random points: class k lies around the k-th unit vector."""
    stream = torch.Generator().manual_seed(seed)
    y = torch.randint(classes, (n,), generator=stream)
    return Samples(torch.eye(classes, features)[y] + 0.3 * torch.randn(n, features, generator=stream), y)


def images(seed: int, n: int, classes: int = 3, side: int = 16) -> Samples:
    """Labeled uint8 images (n, 1, side, side): class k is a bright band at its own height, in noise."""
    stream = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % classes
    x = torch.randint(0, 100, (n, 1, side, side), generator=stream)
    for row in range(n):
        x[row, 0, int(y[row]) * side // classes :][: side // classes] += 150
    return Samples(x.to(torch.uint8), y)


def text() -> Source:
    """A data set of texts of six characters, under the name of a real one."""
    x, y = torch.zeros(30, 6, dtype=torch.uint8), torch.arange(30) % 3
    return Source("shakespeare", x, y, x, y, ("a", "b", "c"), CharacterInputs((6,), ("a", "b", "c")))


def kind_of(x: Tensor) -> Inputs:
    """What toy samples are: images if they have four axes, else vectors."""
    shape = tuple(int(n) for n in x.shape[1:])
    if len(shape) == 3:
        return ImageInputs(shape, (0.5,) * shape[0], (0.25,) * shape[0])
    count = max(1, torch.Size(shape).numel())
    return VectorInputs(tuple(f"x{n}" for n in range(count)), (0.0,) * count, (1.0,) * count)


def hide(given: Samples, shown: int = 0) -> Samples:
    """The same samples, but only the first `shown` keep their label."""
    y = given.y.clone()
    y[shown:] = UNLABELED
    return Samples(given.x, y)


def federation(
    clients: Sequence[Samples],
    server: Samples | None = None,
    test: Samples | None = None,
    validation: Samples | None = None,
    views: Views | None = None,
    truth: Tensor | None = None,
    inputs: Inputs | None = None,
) -> Federation:
    """These clients; the server holds nothing and the first client's inputs are the test set unless given."""
    pool = Samples(torch.cat([each.x for each in clients]), torch.cat([each.y for each in clients]))
    nothing = Samples(pool.x[:0], pool.y[:0])
    test = test or Samples(clients[0].x, torch.zeros_like(clients[0].y))
    return Federation(
        pool=pool,
        order=torch.arange(len(pool)),
        starts=torch.tensor([0, *torch.tensor([len(each) for each in clients]).cumsum(0).tolist()]),
        server=ServerData(server or nothing, validation or nothing),
        test=test,
        classes=tuple(f"class {k}" for k in range(3)),
        inputs=inputs or kind_of(pool.x),
        views=views or Identity(),
        truth=truth,
    )


def linear(features: int = 4, classes: int = 3) -> Net:
    """Logistic regression on points."""
    return build("linear", (features,), classes)


def normed() -> Net:
    """A small network for these images, with BatchNorm."""
    return build("lenet", (1, 16, 16), 3, "batch", width=0.5)


def job(
    method: Method[Any, Any, Any, Any],
    data: Federation,
    net: Net,
    *,
    rounds: int = 3,
    seed: int = 0,
    train: Training = PLAIN_SGD,
    server_train: Training | None = None,
    cohort: int | None = None,
    **options: Any,
) -> Job:
    """A job with all clients in every round, unless said otherwise; the server trains as the clients do."""
    return Job(
        method=method,
        net=net,
        federation=data,
        streams=Streams(seed),
        rounds=rounds,
        cohort=cohort or data.clients,
        train=train,
        server_train=server_train or train,
        **options,
    )


def alone(
    method: Method[Any, Any, Any, Any],
    data: Samples,
    net: Net | None = None,
    views: Views | None = None,
    **options: Any,
) -> Job:
    """A single client with these samples."""
    return job(method, federation([data], views=views), net or linear(), **options)


def labeled(method: Method[Any, Any, Any, Any], clients: int = 3, **options: Any) -> Job:
    """Clients with twenty labeled points each, twice seen in a round."""
    data = federation([points(k, 20) for k in range(clients)])
    return job(method, data, linear(), **{"train": TWO_EPOCHS} | options)


def unlabeled(method: Method[Any, Any, Any, Any], clients: int = 3, views: Views | None = None, **options: Any) -> Job:
    """Clients with twenty points each, none labeled; the server holds twelve that are, and fifteen to validate."""
    everyone = [hide(points(k, 20)) for k in range(clients)]
    data = federation(everyone, points(9, 12), points(8, 30), points(7, 15), views)
    return job(method, data, linear(), **{"train": TWO_EPOCHS} | options)


def with_batchnorm(method: Method[Any, Any, Any, Any], **options: Any) -> Job:
    """Two clients with images and no labels, a server with labeled ones, and a network with BatchNorm."""
    data = federation([hide(images(k, 9)) for k in range(2)], images(50, 12), images(60, 6))
    settings: dict[str, Any] = {"train": Training(batch=4, lr=0.05), "rounds": 2} | options
    return job(method, data, normed(), **settings)


def started(given: Job) -> Any:
    """The state before the first round."""
    return given.method.start(given.server(0, {}))


def visit(given: Job, client: int, down: object, memory: object = None, round: int = 0) -> Any:
    """The reply of one client."""
    return given.method.client_update(given.client(round, client), memory, down)


@dataclass(frozen=True)
class Moment:
    """How things stand after a round; `memories` are the committed ones."""

    record: RoundRecord
    state: Any
    memories: Mapping[int, Any]


def rounds(
    given: Job, strict: bool = True, transport: type[InProcessTransport] = InProcessTransport
) -> Iterator[Moment]:
    """Play a job in this process; `strict` sends everything through the wire."""
    with tempfile.TemporaryDirectory() as folder:
        position = RunState(Memories(Path(folder), 1 << 30))
        carrier: Transport = transport(given, strict)
        if isinstance(carrier, EagerTransport):
            carrier.memories = position.memories
        for record in round_records(run_rounds(given, carrier, position)):
            stored = {k: position.memories.get(k) for k in range(given.federation.clients)}
            memories = {k: given.codec.decode(data) for k, data in stored.items() if data is not None}
            yield Moment(record, position.state, memories)


@dataclass(frozen=True)
class Played:
    """A finished job: its final state and memories, and the records of all rounds."""

    state: Any
    memories: Mapping[int, Any]
    records: list[RoundRecord]


def play_all(given: Job, strict: bool = True, transport: type[InProcessTransport] = InProcessTransport) -> Played:
    """Play a job to its end."""
    moments = list(rounds(given, strict, transport))
    return Played(moments[-1].state, moments[-1].memories, [moment.record for moment in moments])


def _records(task: Job, position: RunState) -> Iterator[RoundRecord]:
    return round_records(run_rounds(task, InProcessTransport(task, strict=True), position))


def resumed(task: Job, folder: Path, stop: int) -> tuple[Any, dict[int, Any]]:
    """The final state and memories of a job that is saved after `stop` rounds and continued from the disk."""
    position = RunState(Memories(folder / "memories", 1 << 30))
    for _ in zip(range(stop), _records(task, position), strict=False):
        pass
    checkpoint.save(folder, position, task.codec, 0)
    position, _ = checkpoint.load(folder, task.codec, Memories(folder / "memories", 1 << 30), task.device)
    assert position.round == stop
    for _ in _records(task, position):
        pass
    stored = {k: position.memories.get(k) for k in range(task.federation.clients)}
    return position.state, {k: task.codec.decode(data) for k, data in stored.items() if data is not None}


class EagerTransport(InProcessTransport):
    """The mistake the engine avoids: a client's memory is committed although its upload may get lost afterwards."""

    memories: Memories

    def run(self, round: int, tasks: Mapping[int, Any]) -> Generator[ClientNews]:
        """Every client's outcome, each memory committed at once."""
        news = list(super().run(round, tasks))
        results = {k: outcome for k, outcome in outcomes(news).items() if isinstance(outcome, ClientResult)}
        self.memories.commit(round, {k: result.memory for k, result in results.items() if result.memory is not None})
        yield from news


def outcomes(news: Iterable[ClientNews]) -> dict[int, ClientOutcome]:
    """Every client's outcome, ascending, from what a transport yields."""
    return dict(sorted(item for item in news if isinstance(item, tuple)))


# Quadratics. A sample is a row [target, a]: its cost is ½·a·‖p - target‖², in float64 so that "exact" means 1e-12.

SIX = [[0.0, 1.0], [1.0, 3.0], [2.0, 2.0], [-1.0, 1.0], [4.0, 0.5], [-3.0, 2.0]]  # for six clients


class Point(nn.Module):
    """One parameter vector p and nothing else."""

    def __init__(self, start: Sequence[float]) -> None:
        """`start` is p at the beginning, whatever the random stream."""
        super().__init__()
        self.p = nn.Parameter(torch.tensor(start, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        """p for every input, so that there is something to evaluate."""
        return self.p.expand(len(x), -1)


@dataclass(frozen=True)
class Quadratic:
    """Mean over the batch of ½·a·‖p - target‖², so the gradient at p is a·(p - target)."""

    labels_only = True
    needs = Needs()

    def local_loss(self, holder: Holder, received: Params, carried: Mapping[str, Tensor]) -> LocalLoss:
        """Nothing to prepare."""

        def cost(w: Params, batch: Batch, forward: Forward) -> BatchLoss:
            target, a = batch.x[:, :-1], batch.x[:, -1]
            return BatchLoss((0.5 * a * (w["p"] - target).square().sum(dim=1)).mean())

        return LocalLoss(cost)


def quadratic(rows: Sequence[Sequence[float]]) -> Samples:
    """Samples from rows [target, a]."""
    return samples(rows, [0] * len(rows), torch.float64)


def quadratics(*clients: Sequence[Sequence[float]], server: Sequence[Sequence[float]] | None = None) -> Federation:
    """A federation of rows [target, a], one list of rows per client."""
    return federation([quadratic(rows) for rows in clients], None if server is None else quadratic(server))


def point(*start: float) -> Net:
    """The network of a quadratic problem."""
    return Net(lambda: Point(start))


def p(*value: float) -> Params:
    """The parameters of such a network."""
    return {"p": torch.tensor(value, dtype=torch.float64)}


def number(w: Params) -> float:
    """The only one of its parameters."""
    return w["p"].item()


def same(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> bool:
    """Whether two models have the same names, shapes and bits."""
    return all(a[name].shape == b[name].shape for name in a.keys() & b.keys()) and equal(a, b)


def apart(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> float:
    """The largest difference between two models' numbers."""
    assert a.keys() == b.keys()
    return max(float((a[name] - b[name]).abs().max()) for name in a)
