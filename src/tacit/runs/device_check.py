"""`tacit check`: every method on a device for two rounds, its agreement with the CPU, and the speed of the parts."""

import platform
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from tacit import __version__, nets, params
from tacit.data.inputs import ImageInputs
from tacit.data.sources import Source
from tacit.data.views.augment import ImageViews
from tacit.engines.events import round_records
from tacit.engines.in_process import InProcessTransport
from tacit.engines.job import Job, RunState
from tacit.engines.memory import Memories
from tacit.engines.rounds import run_rounds
from tacit.engines.wire import Codec
from tacit.errors import TacitError
from tacit.method import Variant
from tacit.nets import Precision
from tacit.process import cores, one_thread
from tacit.runs.build import build_job
from tacit.runs.config import from_options
from tacit.runs.devices import devices
from tacit.runs.registry import build_method, methods
from tacit.runs.sections import EngineConfig

CPU = torch.device("cpu")
SIDE, CLASSES = 16, 3  # of the invented images
ROUNDS = 2
TOLERANCE = 0.01  # largest difference of a weight from the CPU's, in parts of the largest weight
ENOUGH = 0.2  # seconds that a part is timed for
STEPS: tuple[tuple[str, Precision], ...] = (("lenet", "fp32"), ("resnet9", "fp32"), ("resnet9", "bf16"))  # timed
NOT_TRIED = "not tried, the time is up"


@dataclass(frozen=True)
class MethodCheck:
    """How a method did: seconds of two rounds, how far its model is from the CPU's, and what went wrong."""

    name: str
    seconds: float = 0.0
    apart: float = 0.0
    problem: str = ""

    @property
    def fine(self) -> bool:
        """Whether it ran and agrees; one that was not tried is no failure."""
        return not self.problem or self.problem == NOT_TRIED


@dataclass(frozen=True)
class PartCheck:
    """The speed of a part, in `unit`s per second, on the device and on one core."""

    name: str
    unit: str
    there: float
    here: float


def machine(device: torch.device) -> list[tuple[str, str]]:
    """What a bug report has to say: versions, processor, device."""
    lines = [
        ("tacit", f"{__version__}, torch {torch.__version__}, Python {platform.python_version()}"),
        ("system", f"{platform.platform(terse=True)}, {platform.machine()}, {cores()} cores"),
        ("device", str(device)),
    ]
    if device.type == "cuda":
        about = torch.cuda.get_device_properties(device)
        lines.append(("", f"{about.name}, {about.total_memory / 1e9:.1f} GB, CUDA {torch.version.cuda}"))
    return lines


def device_of(name: str) -> torch.device:
    """The one device of this name; refuses one that this machine does not have."""
    found = devices(EngineConfig(device=name))
    if len(found) > 1:
        raise TacitError("one device is checked at a time", "name one device", code="engine.several-devices")
    return found[0]


def check_methods(device: torch.device, until: float) -> Iterator[MethodCheck]:
    """Every method for two rounds on tiny data; those that `until` (`time.monotonic`) leaves no time for, untried."""
    for name, kind in methods().items():
        composed = any(item.name == "objective" for item in fields(Variant.of(kind).kind))
        full = f"{name}+fixmatch" if composed else name
        if time.monotonic() > until:
            yield MethodCheck(full, problem=NOT_TRIED)
        else:
            yield check_method(full, device)


def check_method(name: str, device: torch.device) -> MethodCheck:
    """One method on the device and on the CPU; whatever goes wrong is its problem."""
    try:
        job = tiny_job(name)
        expected, _ = _played(replace(job, device=CPU))
        found, seconds = _played(replace(job, device=device))
        apart = _apart(found, expected)
    except Exception as error:  # the page is about what fails, whatever it is
        return MethodCheck(name, problem=f"{type(error).__name__}: {error}".splitlines()[0])
    return MethodCheck(name, seconds, apart, "" if apart <= TOLERANCE else "differs from the CPU")


def tiny_job(name: str) -> Job:
    """Two rounds of three clients with a few invented images each, and labels where the method wants them."""
    place = "server" if build_method(name, {}, {}).needs.server_labels else "client"
    config = from_options(
        {
            "method": name,
            "data": "mnist",
            "data.validation": 12,
            "clients": 3,
            "labels": place,
            "per_class": 4,
            "net": "lenet",
            "net.norm": "batch",
            "net.width": 0.5,
            "rounds": ROUNDS,
            "batch": 6,
            "train.steps": 2,
            "server.steps": 2,
        }
    )
    return build_job(config, _invented())[0]


def check_parts(device: torch.device) -> Iterator[PartCheck]:
    """How fast the parts of a run are on the device and on one core."""
    images = _invented(512, side=32).x
    views = ImageViews((0.5,), (0.25,), flip=True)
    with one_thread():
        for kind, make in (("weak", views.weak), ("strong", views.strong)):
            yield _part(f"{kind} views, 1x32x32", "images", len(images), device, _viewed(make, images))
        for net, precision in STEPS:
            yield _part(f"{net} steps of 32 in {precision}", "images", 32, device, _step(net, precision, images[:32]))
        yield _part("weights to bytes and back", "MB", 4, device, _wired)
        yield _part("samples to the device", "MB", 16, device, _moved)


# --- parts ------------------------------------------------------------------------------------------------------------

Task = Callable[[torch.device], Callable[[], object]]  # prepares something on a device, to be run and timed


def _viewed(make: Callable[[Tensor, torch.Generator], Tensor], images: Tensor) -> Task:
    def prepare(device: torch.device) -> Callable[[], object]:
        x, stream = images.to(device), torch.Generator().manual_seed(0)
        return lambda: make(x, stream)

    return prepare


def _step(name: str, precision: Precision, images: Tensor) -> Task:
    def prepare(device: torch.device) -> Callable[[], object]:
        net = nets.build(name, (1, 32, 32), CLASSES, width=0.5).with_precision(precision)
        start = net.init(torch.Generator().manual_seed(0))
        w = params.channels_last({key: value.to(device) for key, value in start.items()})
        leaves = [w[key].requires_grad_() for key in net.trainable]
        x, y = images.to(device).float(), torch.zeros(len(images), dtype=torch.int64, device=device)
        return lambda: torch.autograd.grad(functional.cross_entropy(net.apply(w, x, train=True), y), leaves)

    return prepare


def _wired(device: torch.device) -> Callable[[], object]:
    codec, weights = Codec({}), {"w": torch.zeros(1_000_000, device=device)}
    return lambda: codec.decode(codec.encode(weights), device)


def _moved(device: torch.device) -> Callable[[], object]:
    x = torch.zeros(16_000_000, dtype=torch.uint8)
    return lambda: x.to(device, copy=True)


def _part(name: str, unit: str, amount: int, device: torch.device, task: Task) -> PartCheck:
    here = amount / _seconds(task(CPU), CPU)
    return PartCheck(name, unit, here if device == CPU else amount / _seconds(task(device), device), here)


def _seconds(run: Callable[[], object], device: torch.device) -> float:
    """Of one run, on average over some after the first."""
    run()
    _wait(device)
    began, count = time.perf_counter(), 0
    while not count or time.perf_counter() - began < ENOUGH:
        run()
        _wait(device)
        count += 1
    return (time.perf_counter() - began) / count


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


# --- methods ----------------------------------------------------------------------------------------------------------


def _invented(count: int = 90, side: int = SIDE) -> Source:
    """Images in which the height of a bright band says the class."""
    stream, y = torch.Generator().manual_seed(0), torch.arange(count) % CLASSES
    x = torch.randint(0, 100, (count, 1, side, side), generator=stream)
    band = torch.arange(side)[None, :] * CLASSES // side == y[:, None]
    x = (x + 150 * band[:, None, :, None]).to(torch.uint8)
    inputs = ImageInputs((1, side, side), (0.4,), (0.3,))
    return Source("mnist", x, y, x[:30], y[:30], tuple("abc"), inputs)


def _played(job: Job) -> tuple[list[Tensor], float]:
    """The model after all rounds, or the clients' own models, on the CPU; and the seconds."""
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, one_thread():
        position = RunState(Memories(Path(folder), 1 << 30))
        for record in round_records(run_rounds(job, InProcessTransport(job), position)):
            if record.skipped:
                raise RuntimeError(next(iter(record.skipped.values())))
        model = job.method.model(position.state)
        if model is None:
            memory = position.memories.get(0)
            model = {} if memory is None else job.codec.decode(memory).w
        found = [value.detach().cpu() for value in model.values()]
    return found, time.perf_counter() - began


def _apart(found: list[Tensor], expected: list[Tensor]) -> float:
    """The largest difference of a number, in parts of the largest number of its tensor."""
    pairs = zip(found, expected, strict=True)
    shares = [float((a - b).abs().max() / b.abs().max().clamp(min=1e-3)) for a, b in pairs if b.numel()]
    return max(shares, default=0.0)
