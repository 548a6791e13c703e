"""What a process sets before it computes: cores, threads, repeatable results, memory allocation."""

import ctypes
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of malloc.h


def cores() -> int:
    """The number of cores this process may use, which can be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def available_memory() -> int:
    """Bytes of RAM that this process can still get: what is free, within the limits it runs under."""
    found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    with suppress(OSError, ValueError, IndexError, StopIteration):
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
        found.append(1024 * next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")))
    with suppress(OSError, ValueError):
        found.append(int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="utf-8")))  # "max" is no number
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return min([*found, *([limit] if limit != resource.RLIM_INFINITY else [])])


def tune_malloc() -> None:
    """Make the C library reuse the memory of freed tensors; returning it to the kernel costs a fifth of the time."""
    with suppress(OSError, AttributeError):  # other C libraries have no mallopt
        library = ctypes.CDLL(None)
        library.mallopt(M_MMAP_THRESHOLD, 1 << 25)
        library.mallopt(M_TRIM_THRESHOLD, 1 << 30)


def make_deterministic(device: torch.device) -> None:
    """Make GPU results repeatable, as CPU results already are; an operation that cannot be will warn."""
    if device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # required for repeatable matrix products
        torch.backends.cudnn.deterministic = True
        torch.use_deterministic_algorithms(True, warn_only=True)


def default_workers(device: torch.device) -> int:
    """One worker for each usable core; a single one with a GPU, where each would need its own context."""
    return cores() if device.type == "cpu" else 1


def use_one_thread() -> None:
    """From now on torch computes on one thread here: more threads sum in another order and compete with the workers."""
    torch.set_num_threads(1)


@contextmanager
def one_thread() -> Iterator[None]:
    """Run a block with torch on one thread; see `use_one_thread`."""
    with threads(1):
        yield


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Run a block with torch on this many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
