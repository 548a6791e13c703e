"""How fast Tacit is, as ratios to what was measured in the same run.

    python benchmarks/speed.py w1 [--rounds 18] [--peers]    a round of FedAvg against a bare training loop
    python benchmarks/speed.py scale                         100,000 clients against 1,000
    python benchmarks/speed.py ssl                           a step of FixMatch against its passes alone
    python benchmarks/speed.py fedmatch                      a round of FedMatch against one of fedavg+fixmatch

Seconds depend on the machine and on who else uses it. So whatever is compared takes turns in blocks of a few rounds,
and only the ratio of the medians counts; it is the last line. Every process runs torch on one thread.
"""

import argparse
import importlib.util
import io
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any, Literal, Protocol
from uuid import uuid4

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from tacit import nets
from tacit.aggregation import WeightsDown, WeightsState, WeightsUp
from tacit.data.inputs import ImageInputs
from tacit.data.views.augment import ImageViews
from tacit.engines.events import round_records
from tacit.engines.job import ClientNews, ClientResult, ClientTask, Job, RunState
from tacit.engines.memory import Memories
from tacit.engines.rounds import run_rounds
from tacit.engines.workers import WorkerTransport
from tacit.federation import Federation, Samples, ServerData, Views
from tacit.learn import LocalState, Score, fit
from tacit.method import ClientContext, Method, Reply, Training
from tacit.methods.fedavg import FedAvg
from tacit.methods.fedmatch import FedMatch
from tacit.methods.scaffold import Scaffold
from tacit.objectives import FixMatch, Supervised
from tacit.params import Params, channels_last
from tacit.process import one_thread, tune_malloc
from tacit.random import Streams

WORKERS = 2
SHAPE = (1, 28, 28)
FOREVER = 10**9  # rounds: the last one is always evaluated and must never come
Kernels = Literal["default", "without oneDNN", "channels last"]  # what carries out a convolution
PEERS = {"pfl": "pfl", "flower": "flwr"}  # and what to import


@dataclass(frozen=True)
class Workload:
    """What is trained: the same for ours, for the limit and for the peers."""

    clients: int = 100
    samples: int = 600  # of each client
    cohort: int = 10
    batch: int = 10
    lr: float = 0.01
    momentum: float = 0.9

    @property
    def per_round(self) -> int:
        """Samples all clients of a round train on."""
        return self.cohort * self.samples


W1 = Workload()
FEW = Workload(clients=1_000, samples=20, cohort=100)
MANY = replace(FEW, clients=100_000)


# --- what is run ------------------------------------------------------------------------------------------------------


def make_data(workload: Workload) -> Federation:
    """Random pixels and labels, dealt to the clients in random order."""
    random, count = np.random.default_rng(0), workload.clients * workload.samples
    x = torch.from_numpy(random.integers(0, 256, (count, *SHAPE), dtype=np.uint8))
    y = torch.from_numpy(random.integers(0, 10, count))
    none = Samples(x[:0], y[:0])
    return Federation(
        pool=Samples(x, y),
        order=torch.from_numpy(random.permutation(count)),
        starts=torch.arange(0, count + 1, workload.samples),
        server=ServerData(none, none),
        test=none,
        classes=tuple("0123456789"),
        inputs=ImageInputs(SHAPE, (0.5,), (0.29,)),
        views=ImageViews(mean=(0.5,), std=(0.29,), flip=False),
    )


def make_job(workload: Workload, data: Federation, method: Method[Any, Any, Any, Any] | None = None) -> Job:
    """The workload as a user would run it, without evaluation."""
    return Job(
        method=method or FedAvg(Supervised(view="plain")),
        net=nets.build("cnn", SHAPE, 10),
        federation=data,
        streams=Streams(0),
        rounds=FOREVER,
        cohort=workload.cohort,
        train=Training(epochs=1, batch=workload.batch, lr=workload.lr, momentum=workload.momentum),
        evaluate_every=FOREVER,
    )


class Racer(Protocol):
    """Something that plays rounds when it is its turn, in this process and in `workers`."""

    @property
    def workers(self) -> Sequence[int]:
        """The ids of its processes."""
        ...

    def play(self, rounds: int) -> float:
        """Play so many rounds; the seconds they took."""
        ...

    def close(self) -> None:
        """End its processes."""
        ...


class Ours:
    """The local engine, round by round: `first` is the time to the end of the first, `steps` what each must do."""

    def __init__(self, job: Job) -> None:
        """Start the workers and play the first round."""
        began, others = time.perf_counter(), set(multiprocessing.active_children())
        self._folder = tempfile.TemporaryDirectory(prefix="tacit-bench-")
        self.scratch = Path(self._folder.name)
        self.memories = Memories(self.scratch, 10**9)
        self.transport = Watch(WorkerTransport(job, WORKERS))
        self._rounds = round_records(run_rounds(job, self.transport, RunState(self.memories)))
        self.steps = next(self._rounds).steps
        self.first = time.perf_counter() - began
        self.workers = [child.pid for child in multiprocessing.active_children() if child.pid and child not in others]

    def play(self, rounds: int) -> float:
        """Play so many rounds; the seconds they took."""
        began = time.perf_counter()
        for _ in range(rounds):
            if next(self._rounds).steps != self.steps:
                raise RuntimeError("a round did not do all its work")
        return time.perf_counter() - began

    def close(self) -> None:
        """End the workers, and delete what clients remembered."""
        self.transport.close()
        self._folder.cleanup()


class Watch:
    """A transport that stores what clients logged in the last round; records have only a summary of it."""

    def __init__(self, transport: WorkerTransport) -> None:
        """`transport` does the work."""
        self._transport = transport
        self.last: list[Mapping[str, float]] = []

    def run(self, round: int, tasks: Mapping[int, ClientTask]) -> Generator[ClientNews]:
        """What the transport yields."""
        self.last = []
        for item in self._transport.run(round, tasks):
            if isinstance(item, tuple) and isinstance(item[1], ClientResult):
                self.last.append(item[1].metrics)
            yield item

    def evaluate(self, model: Params, *, outputs: bool = False) -> Score:
        """The model's score on the test set."""
        return self._transport.evaluate(model, outputs=outputs)

    def close(self) -> None:
        """End the workers."""
        self._transport.close()


class Bare:
    """The limit: the same SGD steps in as many processes, with nothing between them."""

    def __init__(self, workload: Workload, data: Federation, kernels: Kernels = "default") -> None:
        """Start the processes. They must be older than any `Ours`, or they would hold its pipes open."""
        context = multiprocessing.get_context("fork")
        x, y = data.views.plain(data.pool.x[: workload.samples]), data.pool.y[: workload.samples]
        self._processes, self._connections = [], []
        for _ in range(WORKERS):
            ours, theirs = context.Pipe()
            process = context.Process(target=_bare, args=(workload, x, y, kernels, theirs), daemon=True)
            process.start()
            theirs.close()
            self._processes.append(process)
            self._connections.append(ours)
        self.workers = [process.pid for process in self._processes if process.pid]
        self.play(1)  # the first step of an optimizer imports for seconds, which must not fall into others' turns

    def play(self, rounds: int) -> float:
        """So many rounds, without a pause between them; the seconds until the last process is done."""
        began = time.perf_counter()
        for connection in self._connections:
            connection.send(rounds)
        for connection in self._connections:
            connection.recv()
        return time.perf_counter() - began

    def close(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.kill()
            process.join()


def _bare(workload: Workload, x: Tensor, y: Tensor, kernels: Kernels, connection: Connection) -> None:
    """An ordinary training loop on floats in memory; answers when it is done."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    torch.set_num_threads(1)
    module = nets.Cnn(SHAPE, 10, "none", 1.0).train()
    if kernels == "channels last":
        torch.nn.utils.convert_conv2d_weight_memory_format(module, torch.channels_last)
    torch._C._set_mkldnn_enabled(kernels != "without oneDNN")  # its public context manager warns about absent GPUs
    optimizer = torch.optim.SGD(module.parameters(), lr=workload.lr, momentum=workload.momentum)
    batches = list(zip(x.split(workload.batch), y.split(workload.batch), strict=True))
    while True:
        for _ in range(connection.recv() * workload.cohort // WORKERS):
            for inputs, labels in batches:
                optimizer.zero_grad()
                cross_entropy(module(inputs), labels).backward()
                optimizer.step()
        connection.send("done")


# --- how it is measured -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Times:
    """What each block took per round: seconds on the clock, and seconds of processor over all processes."""

    clock: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)


def race(racers: Mapping[str, Racer], rounds: int, block: int) -> dict[str, Times]:
    """The times of each racer, all taking turns in blocks of a few rounds."""
    for racer in racers.values():
        racer.play(1)
    times = {name: Times() for name in racers}
    for _ in range(max(1, round(rounds / block))):
        for name, racer in racers.items():
            before = processor(racer.workers)
            times[name].clock.append(racer.play(block) / block)
            times[name].processor.append((processor(racer.workers) - before) / block)
    return times


def processor(workers: Sequence[int]) -> float:
    """Seconds of processor this process and these workers have used."""
    used = time.process_time()
    for worker in workers:
        with suppress(OSError):  # a peer's process may just have ended
            numbers = Path(f"/proc/{worker}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            used += (int(numbers[11]) + int(numbers[12])) / os.sysconf("SC_CLK_TCK")
    return used


def table(times: Mapping[str, Times], workload: Workload, limit: str) -> dict[str, float]:
    """Print every block and the medians; each racer's samples per second as a ratio to the limit's."""
    ratios = {name: median(times[limit].clock) / median(taken.clock) for name, taken in times.items()}
    for name, taken in times.items():
        seconds, used = median(taken.clock), median(taken.processor)
        print(f"{name}: {ratios[name]:.3f} × {limit}, {workload.per_round / seconds:.0f} samples/s,", end=" ")
        print(f"{seconds:.3f} s/round; by processor time {median(times[limit].processor) / used:.3f}, {used:.3f} s")
        print(f"    blocks: {' '.join(f'{seconds:.3f}' for seconds in taken.clock)}")
    return ratios


@contextmanager
def bounded(seconds: int) -> Iterator[None]:
    """Give up after so long, with everything that was started being ended on the way out."""

    def give_up(number: int, frame: object) -> None:
        raise TimeoutError(f"not done after {seconds} s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def print_at_once() -> None:
    """Keep what was measured when a run is ended half-way and its output goes to a file."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)


def print_load() -> None:
    """How busy the machine is: on a busy one the ratios are noisy too."""
    one, five, fifteen = os.getloadavg()
    print(f"load average {one:.2f} {five:.2f} {fifteen:.2f} on {os.cpu_count()} cores, torch {torch.__version__}")


# --- where a round's time goes ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Watched(FedAvg):
    """FedAvg whose clients also log when they began and ended, and in which process."""

    def client_update(
        self, client: ClientContext, memory: LocalState | None, down: WeightsDown
    ) -> Reply[LocalState, WeightsUp]:
        """FedAvg's, on the clock all processes share."""
        began = time.perf_counter()
        reply = super().client_update(client, memory, down)
        times = {"began": began, "ended": time.perf_counter(), "worker": float(os.getpid())}
        return replace(reply, metrics={**reply.metrics, **times})


def anatomy(workload: Workload, data: Federation, rounds: int) -> dict[str, float]:
    """Shares of a round's time in which workers do not train."""
    job = make_job(workload, data, Watched(Supervised(view="plain")))
    encode, decode, merge = _message_costs(job)
    shares: dict[str, list[float]] = defaultdict(list)
    with closing(Ours(job)) as ours:
        for _ in range(rounds):
            took, visits = ours.play(1), ours.transport.last
            first, last = min(visit["began"] for visit in visits), max(visit["ended"] for visit in visits)
            ends = {visit["worker"]: visit["ended"] for visit in sorted(visits, key=lambda visit: visit["ended"])}
            trained = sum(visit["ended"] - visit["began"] for visit in visits)
            idle = sum(last - end for end in ends.values())
            messages = encode + workload.cohort * (decode + (encode + decode) / WORKERS)
            shares["what comes before the first client and after the last"].append(1 - (last - first) / took)
            shares["what comes between clients"].append((last - first - (trained + idle) / WORKERS) / took)
            shares["workers that idle while the last client ends"].append(idle / WORKERS / took)
            shares["encode and decode, in the first two"].append(messages / took)
            shares["merge, in the first"].append(merge / took)
    return {name: median(values) for name, values in shares.items()}


def _message_costs(job: Job) -> tuple[float, float, float]:
    """Seconds to encode a model, to decode it, and to merge a cohort's."""
    server = job.server(0, {})
    state: WeightsState = job.method.start(server)
    up = WeightsUp(state.w, 1)
    encoded = job.codec.encode(up)
    ups = dict.fromkeys(server.cohort, up)
    return (
        seconds_of(lambda: job.codec.encode(up)),
        seconds_of(lambda: job.codec.decode(encoded)),
        seconds_of(lambda: job.method.merge(server, state, ups)),
    )


def seconds_of(act: Callable[[], object], times: int = 101) -> float:
    """The median time of something short."""
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        act()
        taken.append(time.perf_counter() - began)
    return median(taken)


# --- start-up ---------------------------------------------------------------------------------------------------------


def first(options: argparse.Namespace) -> None:
    """Play one round and print when it ended: the work of a process that has just been started."""
    with bounded(60), one_thread(), closing(Ours(make_job(W1, make_data(W1)))):
        print(time.time())


def new_process(*arguments: str) -> float:
    """Seconds from starting a Python interpreter to the moment it prints."""
    began = time.time()
    done = subprocess.run([sys.executable, *arguments], check=True, capture_output=True, text=True, timeout=60)
    return float(done.stdout) - began


# --- peers ------------------------------------------------------------------------------------------------------------


class Peer:
    """Another framework in processes of its own: told a number of rounds, it answers with the seconds they took."""

    def __init__(self, name: str, workload: Workload) -> None:
        """Start it; `benchmarks/peers.py` says how it is used."""
        self._mark = f"TACIT_BENCH={uuid4()}"
        self._scratch = tempfile.TemporaryDirectory(prefix="peer-", ignore_cleanup_errors=True)
        variable, value = self._mark.split("=")
        self._log = (Path(self._scratch.name) / "log").open("w+")
        self._process = subprocess.Popen(
            [sys.executable, Path(__file__).with_name("peers.py"), name, json.dumps(asdict(workload))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=os.environ | {variable: value, "OMP_NUM_THREADS": "1", "PEER_SCRATCH": self._scratch.name},
            process_group=0,
        )

    @property
    def workers(self) -> list[int]:
        """Every process that carries its mark.

        Not a session: it would not hold Ray's, and on a busy Linux each session gets its own share of the processor.
        """
        marked = []
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if self._mark.encode() in (folder / "environ").read_bytes().split(b"\0"):
                    marked.append(int(folder.name))
        return marked

    def play(self, rounds: int) -> float:
        """Play so many rounds; the seconds they took."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(f"{rounds}\n")
        self._process.stdin.flush()
        for line in self._process.stdout:  # frameworks print too
            if line.startswith("seconds "):
                return float(line.split()[1])
        raise RuntimeError(f"it ended: {Path(self._log.name).read_text()[-2000:]}")

    def close(self) -> None:
        """Let it end by itself for a moment, then end whatever is left of it."""
        assert self._process.stdin
        with suppress(OSError, subprocess.TimeoutExpired):
            self._process.stdin.close()
            self._process.wait(timeout=15)
        for process in self.workers:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self._process.wait()
        self._log.close()
        self._scratch.cleanup()


def race_peers(workload: Workload, limit: Bare, blocks: int) -> dict[str, float]:
    """Each peer that is installed against the limit, one after the other: an idle Ray still takes processor time."""
    ratios = {}
    for name, module in PEERS.items():
        if importlib.util.find_spec(module) is None:
            print(f"{name}: not installed, see `make bench-peers`")
            continue
        try:
            with bounded(240), closing(Peer(name, workload)) as peer:
                times = race({name: peer, "limit": limit}, rounds=2 * blocks, block=2)
        except (TimeoutError, RuntimeError) as error:
            print(f"{name}: {error}")
            continue
        ratios[name] = table(times, workload, "limit")[name]
    return ratios


# --- the benchmarks ---------------------------------------------------------------------------------------------------


def w1(options: argparse.Namespace) -> None:
    """FedAvg on 100 clients of 600 small images, 10 a round, against the bare loop."""
    with bounded(900), one_thread(), ExitStack() as stack:
        print_load()
        data = make_data(W1)
        limit = stack.enter_context(closing(Bare(W1, data)))
        others = {
            f"limit {kernels}": stack.enter_context(closing(Bare(W1, data, kernels)))
            for kernels in ("without oneDNN", "channels last")
        }
        ours = stack.enter_context(closing(Ours(make_job(W1, data))))
        if ours.steps != W1.per_round // W1.batch:
            raise RuntimeError(f"{ours.steps} steps a round are not the work of the limit")
        times = race({"ours": ours, "limit": limit, **others}, options.rounds, block=3)
        ratios = table(times, W1, "limit")
        ratio, own = ratios["ours"], ratios["limit channels last"]
        print(f"w1 with the same kernels ratio={ratio / own:.2f}")
        steady = median(times["ours"].clock)
        anew, torch_alone = new_process(__file__, "first"), new_process("-c", "import time, torch; print(time.time())")
        print(f"start-up, beyond a steady round: {ours.first - steady:.2f} s in this process,", end=" ")
        print(f"{anew - steady:.2f} s in a new one, of which {torch_alone:.2f} s are `import torch`")
        for name, share in anatomy(W1, data, rounds=9).items():
            print(f"lost to {name}: {share:.2%}")
        if options.peers:
            for name, found in race_peers(W1, limit, blocks=4).items():
                print(f"w1 on {name} ratio={found:.2f}")
        print_load()
    print(f"w1 ratio={ratio:.2f}")


def scale(options: argparse.Namespace) -> None:
    """A cohort of 100 out of 100,000 clients against the same out of 1,000: time per round, memory beyond the data."""
    with bounded(900), one_thread(), ExitStack() as stack:
        print_load()
        data, own = make_data(FEW), anonymous()
        few = stack.enter_context(closing(Ours(make_job(FEW, data))))
        few.play(3)
        print(f"memory with 1,000 clients: {megabytes(data):.0f} MB of data, {anonymous() - own:.0f} MB more")
        data, own, rest = make_data(MANY), anonymous(), reset_peak()
        many = stack.enter_context(closing(Ours(make_job(MANY, data))))
        times = race({"1,000 clients": few, "100,000 clients": many}, options.rounds, block=1)
        print(f"memory with 100,000 clients: {megabytes(data):.0f} MB of data, {anonymous() - own:.0f} MB more", end="")
        print(f" (peak of the main process: {peak() - rest:.0f} MB more)")
        ratios = table(times, MANY, "1,000 clients")
        many.close()
        scale_memories(data, rounds=6)
        print_load()
    print(f"scale ratio={1 / ratios['100,000 clients']:.2f}")


def scale_memories(data: Federation, rounds: int) -> None:
    """A method whose clients remember a model each: what is kept grows with the clients seen, not with all."""
    own = anonymous()
    with closing(Ours(make_job(MANY, data, Scaffold(Supervised(view="plain"))))) as ours:
        times = [ours.play(1) for _ in range(rounds)]
        grown = anonymous() - own
        ours.memories.save()
        files = [path.stat().st_size for path in ours.scratch.iterdir()]
    print(f"scaffold, {rounds + 1} rounds: memories of {len(files)} clients, {sum(files) / 1e6:.0f} MB,", end=" ")
    print(f"memory grew by {grown:.0f} MB; rounds took {' '.join(f'{seconds:.3f}' for seconds in times)} s")


# --- one step of semi-supervised learning -----------------------------------------------------------------------------


@dataclass(frozen=True)
class SslCase:
    """The step of a client: images, batches, and normalisation of LeNet."""

    shape: tuple[int, int, int]
    batch: int
    unlabeled_batch: int
    norm: nets.Norm = "none"


SSL_CASES = {
    "ssl": SslCase((3, 32, 32), 10, 100),
    "ssl LeNet 32+32": SslCase(SHAPE, 32, 32, "group"),
}


def ssl(options: argparse.Namespace) -> None:
    """FixMatch at a client against its passes alone, with views of many batches at once and batch by batch."""
    tune_malloc()  # as every worker does
    ratios = {name: _ssl_case(name, SslStep(case), options.rounds) for name, case in reversed(SSL_CASES.items())}
    print_load()
    for name, ratio in ratios.items():
        print(f"{name} ratio={ratio:.2f}")


def _ssl_case(name: str, step: "SslStep", rounds: int) -> float:
    acts: dict[str, Callable[[], None]] = {
        "passes alone": step.passes,
        "local labels": partial(step.ours, "local"),
        "local labels, views batch by batch": partial(step.ours, "local", together=False),
        "global labels": partial(step.ours, "global"),
        "global labels, views batch by batch": partial(step.ours, "global", together=False),
        "views alone": step.views_alone,
    }
    times: dict[str, list[float]] = {each: [] for each in acts}
    with bounded(300), one_thread():
        for _ in range(rounds + 1):
            for each, act in acts.items():
                begin = time.perf_counter()
                act()
                times[each].append(time.perf_counter() - begin)
    medians = {each: median(blocks[1:]) for each, blocks in times.items()}  # the first block warms up
    for each, seconds in medians.items():
        share = seconds / medians["passes alone"]
        print(f"{name}, {each}: {seconds / SslStep.STEPS * 1e3:.2f} ms a step, {share:.3f}")
    return medians["local labels"] / medians["passes alone"]


def ssl_job(method: Method[Any, Any, Any, Any], clients: int, steps: int, case: SslCase = SSL_CASES["ssl"]) -> Job:
    """Clients with 100 labeled and 1,900 unlabeled random images, and a net of LeNet's size."""
    random, each, moments = np.random.default_rng(0), 2000, ((0.5,) * case.shape[0], (0.29,) * case.shape[0])
    x = torch.from_numpy(random.integers(0, 256, (clients * each, *case.shape), dtype=np.uint8))
    y = torch.cat([torch.arange(100) % 10, torch.full((each - 100,), -1)]).repeat(clients)
    none = Samples(x[:0], y[:0])
    data = Federation(
        pool=Samples(x, y),
        order=torch.arange(len(x)),
        starts=torch.arange(0, len(x) + 1, each),
        server=ServerData(none, none),
        test=none,
        classes=tuple("0123456789"),
        inputs=ImageInputs(case.shape, *moments, flip=True),
        views=ImageViews(*moments, flip=True),
    )
    train = Training(batch=case.batch, unlabeled_batch=case.unlabeled_batch, steps=steps, lr=1e-3, momentum=0.0)
    net = nets.build("lenet", case.shape, 10, case.norm)
    return Job(
        method=method,
        net=net,
        federation=data,
        streams=Streams(0),
        rounds=FOREVER,
        cohort=clients,
        train=train,
        server_train=train,
        evaluate_every=FOREVER,
    )


def fedmatch(options: argparse.Namespace) -> None:
    """A round of FedMatch with two helpers against one of fedavg+fixmatch with as many steps."""
    methods: dict[str, Method[Any, Any, Any, Any]] = {
        "fedavg+fixmatch": FedAvg(FixMatch(view="plain")),
        "fedmatch, every sample kept": FedMatch(threshold=0.0),
        "fedmatch, no sample kept": FedMatch(threshold=1.0),
    }
    with bounded(900), one_thread(), ExitStack() as stack:
        racers = {
            name: stack.enter_context(closing(Ours(ssl_job(method, clients=4, steps=SslStep.STEPS))))
            for name, method in methods.items()
        }
        times = race(racers, options.rounds, block=1)  # the first rounds, without helpers, are over by then
        ratios = table(times, Workload(clients=4, samples=SslStep.STEPS * 110, cohort=4), "fedavg+fixmatch")
    print_load()
    # Only kept samples have a strong view, so the cost grows in proportion to their share; half is what counts.
    most, least = (1 / ratios[f"fedmatch, {kept} sample kept"] for kept in ("every", "no"))
    print(f"fedmatch, no sample kept ratio={least:.2f}")
    print(f"fedmatch, every sample kept ratio={most:.2f}")
    print(f"fedmatch ratio={(most + least) / 2:.2f}")


class BatchByBatch:
    """The views of a federation without those of several batches at once."""

    def __init__(self, views: Views) -> None:
        """The three views as they are."""
        self.plain, self.weak, self.strong = views.plain, views.weak, views.strong


class SslStep:
    """One client, and the forward and backward passes of its steps on views made beforehand."""

    STEPS = 19  # an epoch over 1,900 unlabeled images in batches of 100

    def __init__(self, case: SslCase) -> None:
        """Random images; ten labels per class."""
        job = ssl_job(FedAvg(), 1, self.STEPS, case)
        data = job.federation.pool
        self.views, self.net = job.federation.views, job.net
        self.client = job.client(0, 0)
        self.start = self.client.initial()
        self._x, self._u = data.x[: case.batch], data.x[100 : 100 + case.unlabeled_batch]
        self._y, self._stream = data.y[: case.batch], torch.Generator().manual_seed(0)
        self._labeled, self._weak, self._strong = self._looks()

    def ours(self, labeler: Any, together: bool = True) -> None:
        """The steps as a client does them; every sample is kept, which costs the most."""
        client = self.client if together else replace(self.client, views=BatchByBatch(self.views))
        fit(client, self.start, FixMatch(threshold=0.0, labeler=labeler))

    def passes(self) -> None:
        """What no implementation can spare: a pass to label, two passes and the gradient to learn."""
        w = channels_last(self.start)
        leaves = [w[name].requires_grad_() for name in self.net.trainable]
        for _ in range(self.STEPS):
            with torch.no_grad():
                labels = self.net.apply(w, self._weak, train=True).argmax(dim=1)
            loss = cross_entropy(self.net.apply(w, self._labeled, train=True), self._y)
            loss = loss + cross_entropy(self.net.apply(w, self._strong, train=True), labels)
            torch.autograd.grad(loss, leaves)

    def views_alone(self) -> None:
        """The augmentation of the steps."""
        for _ in range(self.STEPS):
            self._looks()

    def _looks(self) -> tuple[Tensor, Tensor, Tensor]:
        views, stream = self.views, self._stream
        return views.weak(self._x, stream), views.weak(self._u, stream), views.strong(self._u, stream)


# --- memory -----------------------------------------------------------------------------------------------------------


def megabytes(data: Federation) -> float:
    """What the data itself takes."""
    return sum(tensor.nbytes for tensor in (data.pool.x, data.pool.y, data.order, data.starts)) / 1e6


def anonymous() -> float:
    """Megabytes this process and its children hold, without files; pages they share are counted once."""
    processes = [os.getpid(), *(child.pid for child in multiprocessing.active_children())]
    return sum(_kilobytes(f"/proc/{process}/smaps_rollup", "Pss_Anon") for process in processes) / 1e3


def reset_peak() -> float:
    """Forget this process's peak; the megabytes it holds now."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return peak()


def peak() -> float:
    """The most megabytes this process held since its peak was reset."""
    return _kilobytes("/proc/self/status", "VmHWM") / 1e3


def _kilobytes(path: str, name: str) -> int:
    lines = Path(path).read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


COMMANDS: dict[str, Callable[[argparse.Namespace], None]] = {
    "w1": w1,
    "scale": scale,
    "ssl": ssl,
    "fedmatch": fedmatch,
    "first": first,
}


def main() -> None:
    """One benchmark by its name."""
    parser = argparse.ArgumentParser(description="Speed of Tacit as ratios; the last line is the result.")
    commands = parser.add_subparsers(required=True, metavar="benchmark")
    for name, command in COMMANDS.items():
        sub = commands.add_parser(name, help=command.__doc__, description=command.__doc__)
        sub.set_defaults(command=command)
        sub.add_argument("--rounds", type=int, default=18, help="rounds to measure (default: 18)")
        sub.add_argument("--peers", action="store_true", help="also measure other frameworks that are installed")
    options = parser.parse_args()
    signal.signal(
        signal.SIGTERM, lambda number, frame: sys.exit(f"ended by signal {number}")
    )  # and reap on the way out
    print_at_once()
    options.command(options)


if __name__ == "__main__":
    main()
