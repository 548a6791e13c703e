"""Small federations, a method whose clients can misbehave, and processes to kill: what the engine tests build with."""

import json
import os
import signal
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import tacit
from tacit import nets
from tacit.data.inputs import ImageInputs
from tacit.data.views.augment import ImageViews
from tacit.engines.events import round_records
from tacit.engines.job import Job, RunState, Transport
from tacit.engines.memory import Memories
from tacit.engines.rounds import run_rounds
from tacit.federation import Federation, Samples, ServerData
from tacit.method import ClientContext, Method, Needs, Reply, ServerContext, Training
from tacit.params import Params, mean
from tacit.process import one_thread
from tacit.random import Streams
from tacit.runs import config as configs
from tacit.runs.experiment import Experiment

SIDE, CLASSES = 16, 3
PATIENCE = 60.0  # seconds until a test gives up on something that should happen at once


def federation(clients: int = 8, each: int = 12, test: int = 60, server: int = 12) -> Federation:
    """Grey images of three classes, each bright in a different third; clients differ in size, half is unlabeled."""
    sizes = [each + 5 * (client % 3) for client in range(clients)]
    n = sum(sizes)
    x, y = images(n + server + test)
    hidden = torch.arange(n) % 2 == 0
    own, at_server, rest = (slice(0, n), slice(n, n + server), slice(n + server, None))
    return Federation(
        pool=Samples(x[own], y[own].masked_fill(hidden, -1)),
        order=torch.randperm(n, generator=torch.Generator().manual_seed(1)),
        starts=torch.tensor([0, *sizes]).cumsum(0),
        server=ServerData(Samples(x[at_server], y[at_server]), Samples(x[:0], y[:0])),
        test=Samples(x[rest], y[rest]),
        classes=tuple(map(str, range(CLASSES))),
        inputs=ImageInputs((1, SIDE, SIDE), (0.3,), (0.2,)),
        views=ImageViews((0.3,), (0.2,), flip=False),
        truth=y[own],
    )


def images(count: int) -> tuple[Tensor, Tensor]:
    """Pixels (n, 1, 16, 16) and labels, always the same."""
    stream = torch.Generator().manual_seed(count)
    y = torch.arange(count) % CLASSES
    x = torch.randint(0, 120, (count, 1, SIDE, SIDE), generator=stream, dtype=torch.uint8)
    for label in range(CLASSES):
        x[y == label, :, 5 * label : 5 * label + 5] += 100
    return x, y


def write_images(path: Path, train: int = 120, test: int = 30) -> Path:
    """The same kind of images as a file for `--data`."""
    x, y = (part.numpy() for part in images(train + test))
    np.savez(path, x=x[:train], y=y[:train], x_test=x[train:], y_test=y[train:])
    return path


def stop_and_go_on(settings: Mapping[str, Any], folder: Path, played: int = 1) -> None:
    """A run that is stopped after `played` rounds, and resumed."""
    started = Experiment.create(configs.from_options(settings), folder).rounds()
    for _ in range(played):
        next(started)
    started.close()
    tacit.resume(folder)


def remains(folder: Path) -> tuple[list[dict[str, Any]], bytes]:
    """A run's records and model, without the time it took."""
    records = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    return [record | {"seconds": 0} for record in records], (folder / "model.safetensors").read_bytes()


def job(method: Method[Any, Any, Any, Any], **changes: Any) -> Job:
    """Three rounds of four of eight clients, with a LeNet that has BatchNorm statistics."""
    train = Training(steps=2, batch=6, lr=0.05)
    values: dict[str, Any] = {
        "net": nets.build("lenet", (1, SIDE, SIDE), CLASSES, "batch", 0.5),
        "federation": federation(),
        "streams": Streams(7),
        "rounds": 3,
        "cohort": 4,
        "train": train,
        "server_train": train,
    }
    return Job(method, **(values | changes))


@dataclass(frozen=True)
class TallyState:
    """A model, and how many uploads of each client the server has merged."""

    w: Params
    visits: dict[int, int]


@dataclass(frozen=True)
class TallyMemory:
    """How often this client believes it was merged."""

    visits: int


@dataclass(frozen=True)
class TallyDown:
    """The model."""

    w: Params


@dataclass(frozen=True)
class TallyUp:
    """The model with a random step."""

    w: Params


def nothing(client: ClientContext) -> None:
    """No trouble."""


@dataclass(frozen=True)
class Tally:
    """A random walk that counts merged uploads on both sides; `act` is what else happens at a client."""

    act: Callable[[ClientContext], None] = nothing

    needs = Needs()

    def start(self, server: ServerContext) -> TallyState:
        """Nothing is merged yet."""
        return TallyState(server.net.init(server.streams.at("init")), {})

    def send(self, server: ServerContext, state: TallyState) -> tuple[TallyState, Mapping[int, TallyDown]]:
        """The model to the cohort."""
        return state, dict.fromkeys(server.cohort, TallyDown(state.w))

    def client_update(
        self, client: ClientContext, memory: TallyMemory | None, down: TallyDown
    ) -> Reply[TallyMemory, TallyUp]:
        """One random step, longer each time."""
        self.act(client)
        visits = memory.visits if memory else 0
        stream = client.stream("step")
        w = {k: v + (visits + 1) * 0.01 * torch.randn(v.shape, generator=stream) for k, v in down.w.items()}
        return Reply(TallyMemory(visits + 1), TallyUp(w), {"steps": 1, "visits": visits})

    def merge(self, server: ServerContext, state: TallyState, ups: Mapping[int, TallyUp]) -> TallyState:
        """The mean, in the order of clients."""
        visits = state.visits | {client: state.visits.get(client, 0) + 1 for client in ups}
        return TallyState(mean([up.w for up in ups.values()]) if ups else state.w, visits)

    def model(self, state: TallyState) -> Params:
        """The model."""
        return state.w


@dataclass(frozen=True)
class Waiting(Tally):
    """A tally whose clients wait while a folder has a file `wait`; they create a file `waits` in it."""

    folder: str = ""  # with the two files
    after: int = 0  # rounds in which nobody waits

    def client_update(
        self, client: ClientContext, memory: TallyMemory | None, down: TallyDown
    ) -> Reply[TallyMemory, TallyUp]:
        """Wait, then continue."""
        until = time.monotonic() + PATIENCE
        while client.round >= self.after and (Path(self.folder) / "wait").exists() and time.monotonic() < until:
            (Path(self.folder) / "waits").touch()
            time.sleep(0.02)
        return super().client_update(client, memory, down)


def tally_job(act: Callable[[ClientContext], None] = nothing, **changes: Any) -> Job:
    """Rounds that cost next to nothing."""
    return job(Tally(act), **{"net": nets.build("linear", (1, SIDE, SIDE), CLASSES), **changes})


@dataclass(frozen=True)
class Outcome:
    """What must not depend on the transport of a run: state and memories as bytes, records without seconds."""

    state: bytes
    memories: dict[int, bytes | None]
    records: list[dict[str, Any]]

    @property
    def skipped(self) -> list[dict[int, str]]:
        """The clients left out of each round, and why."""
        return [record["skipped"] for record in self.records]


def run_job(job: Job, transport: Transport) -> Outcome:
    """Run a job to its end and close the transport."""
    run_state = RunState(Memories(Path("never written"), 1 << 30))
    with one_thread(), closing(transport):
        records = [asdict(record) for record in round_records(run_rounds(job, transport, run_state))]
    for record in records:
        del record["seconds"], record["details"]
    memories = {client: run_state.memories.get(client) for client in range(job.federation.clients)}
    return Outcome(job.codec.encode(run_state.state), memories, records)


@dataclass(frozen=True)
class Process:
    """A line of the process table."""

    pid: int
    state: str
    parent: int
    group: int


def processes() -> Iterator[Process]:
    """All processes that have not ended; a zombie has."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, parent, group = path.read_text(errors="replace").rpartition(")")[2].split()[:3]
            if state not in "ZX":
                yield Process(int(path.parent.name), state, int(parent), int(group))


def children() -> set[int]:
    """The running processes that this one has started."""
    return {process.pid for process in processes() if process.parent == os.getpid()}


def members(group: int) -> set[int]:
    """The running processes of a group."""
    return {process.pid for process in processes() if process.group == group}


def eventually(condition: Callable[[], object]) -> bool:
    """Whether something becomes true within PATIENCE seconds."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        if condition():
            return True
        time.sleep(0.02)
    return bool(condition())


@contextmanager
def forked(work: Callable[[], object]) -> Iterator[int]:
    """A child process that does this work in its own group; the group is killed at the end and the child reaped."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn about forks in a process with threads
        pid = os.fork()
    if not pid:
        code = 1
        try:
            os.setsid()
            signal.alarm(int(2 * PATIENCE))
            torch.set_num_threads(1)  # the parent's threads do not exist in the child
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    try:
        yield pid
    finally:
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(pid, 0)


def ended(pid: int) -> int | None:
    """The exit code of a child (negative: the signal that ended it), or None while it runs."""
    done, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if done else None
