"""How long a run will take and how much memory it needs, from one traced step; an estimate, not a promise."""

import time
from dataclasses import dataclass
from math import ceil

import torch
from torch.nn import functional

from tacit import params
from tacit.engines.job import Job
from tacit.formatting import duration_of, size_of
from tacit.method import Training
from tacit.nets import Precision
from tacit.process import default_workers, one_thread

LONG = 60.0  # seconds from which on an estimate is worth a line
FEW, LARGE = 8, 20_000  # samples of the traced step; only 2 of samples with more numbers than this
COPIES = 4  # of the weights while a client trains: received, trained, gradient, momentum
FORWARD = 1 / 3  # of a step's time
WORTH = 0.8  # of the time of a step: bf16 that takes less is worth a line


@dataclass(frozen=True)
class Traced:
    """What one sample costs in a training step."""

    seconds: float
    bytes: float


@dataclass(frozen=True)
class Work:
    """How many samples pass through training in a round, on average, and how many the largest step has."""

    at_clients: float
    at_server: float
    step: int


@dataclass(frozen=True)
class Estimate:
    """Of the rounds that are left."""

    seconds: float
    bytes: float

    @property
    def line(self) -> str:
        """One line for people."""
        return (
            f"estimate from one step: about {duration_of(self.seconds)} and {size_of(self.bytes)} of memory on this "
            "machine; methods with several passes take longer"
        )


def estimate(job: Job, rounds: int, workers: int | None) -> Estimate | None:
    """For these rounds of a job; None where nothing can be traced: on a GPU, or without samples."""
    if job.device.type != "cpu" or not len(job.federation.pool):
        return None
    traced, todo = trace(job), work(job)
    workers = max(1, min(job.cohort, default_workers(job.device) if workers is None else workers))
    tested = len(job.federation.test) * FORWARD / job.evaluate_every / workers
    seconds = rounds * traced.seconds * (todo.at_clients / workers + todo.at_server + tested)
    weights = sum(value.nbytes for value in job.net.init(job.streams.at("init")).values())
    samples = job.federation.pool.x.nbytes + job.federation.test.x.nbytes
    return Estimate(seconds, samples + workers * (traced.bytes * todo.step + COPIES * weights))


def bf16_line(job: Job) -> str | None:
    """A line for people where a step in bf16 takes clearly less time; None where it does not, or is already chosen."""
    if job.device.type != "cpu" or not len(job.federation.pool) or job.train.precision or job.sample_noise:
        return None
    both: tuple[Precision, ...] = ("fp32", "bf16")
    full, half = (min(trace(job, precision).seconds for _ in range(2)) for precision in both)
    if half > WORTH * full:
        return None
    return (
        f"--set train.precision=bf16 would take about {half / full:.0%} of the time of a step on this machine; "
        "the model would differ slightly"
    )


def trace(job: Job, precision: Precision | None = None) -> Traced:
    """Run one step on a few samples; the second time counts, since the first one sets things up."""
    pool, net = job.federation.pool.x, job.net.with_precision(precision or job.train.precision)
    x = pool[: 2 if pool[0].numel() > LARGE else FEW]
    weights = params.channels_last(net.init(job.streams.at("init")))
    leaves = [weights[name].requires_grad_() for name in net.trainable]
    held: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        held[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with one_thread(), torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        for _ in range(2):
            began = time.perf_counter()
            held.clear()
            seen = job.federation.views.strong(x, job.streams.at("estimate"))
            logits = net.apply(weights, seen, train=True)
            loss = functional.cross_entropy(logits, torch.zeros(len(x), dtype=torch.int64))
            if leaves:
                torch.autograd.grad(loss, leaves, allow_unused=True)
            seconds = time.perf_counter() - began
    return Traced(seconds / len(x), sum(held.values()) / len(x))


def work(job: Job) -> Work:
    """The samples of a round: those of an average cohort, and the server's."""
    federation, objective = job.federation, getattr(job.method, "objective", None)
    labels_only = objective is not None and objective.labels_only
    sizes = federation.starts.diff()
    owner = torch.arange(len(sizes)).repeat_interleave(sizes)
    labeled = torch.bincount(owner[federation.pool.y[federation.order] >= 0], minlength=len(sizes))
    each = [
        _visit(job.train, known, 0 if labels_only else size - known)
        for known, size in zip(labeled.tolist(), sizes.tolist(), strict=True)
    ]
    mean = sum(each) / max(1, len(each))
    step = max(job.train.batch + (job.train.unlabeled_batch or job.train.batch), job.server_train.batch)
    return Work(mean * job.cohort, _visit(job.server_train, len(federation.server.labeled), 0), step)


def _visit(train: Training, labeled: int, unlabeled: int) -> int:
    """The samples that pass through one visit: the longer of both sets makes an epoch, the shorter one is repeated."""
    batch_u = train.unlabeled_batch or train.batch
    steps = max(ceil(labeled / train.batch), ceil(unlabeled / batch_u))
    steps = (train.steps or steps * train.epochs) if steps else 0
    return steps * (min(labeled, train.batch) + min(unlabeled, batch_u))
