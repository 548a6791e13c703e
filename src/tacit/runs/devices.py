"""Which devices a run computes on, and how many worker processes it has."""

import torch

from tacit.errors import TacitError
from tacit.process import default_workers, make_deterministic
from tacit.runs.sections import EngineConfig


def devices(engine: EngineConfig) -> tuple[torch.device, ...]:
    """The devices, if this machine has them and their random numbers can be seeded; sets up deterministic algorithms.

    The server computes on the first one.
    """
    names = [name.strip() for name in engine.device.split(",") if name.strip()] or [engine.device]
    found = tuple(_device(name) for name in names)
    if len({device.type for device in found}) > 1:
        raise TacitError(
            f"with --device {engine.device}, numbers would depend on which client ran where",
            "use devices of one type",
            code="engine.devices-of-two-types",
        )
    return found


def worker_count(engine: EngineConfig, found: tuple[torch.device, ...]) -> int:
    """How many worker processes a run has, 0 for none: as many as asked for, else some for each device."""
    if engine.workers is not None and engine.workers_per_device is not None:
        raise TacitError(
            "engine.workers and engine.workers_per_device both say how many workers there are",
            "leave out one of them",
            code="engine.workers-twice",
        )
    if engine.workers is not None:
        if not engine.workers and len(found) > 1:
            raise TacitError(
                "several devices need worker processes", "leave out --workers 0", code="engine.devices-without-workers"
            )
        return engine.workers
    if engine.workers_per_device is not None:
        return engine.workers_per_device * len(found)
    return max(1, default_workers(found[0]) // engine.threads) if len(found) == 1 else len(found)


def _device(name: str) -> torch.device:
    """The device, if this machine has it and its random numbers can be seeded; sets up deterministic algorithms."""
    try:
        device = torch.device(name)
        if device.type not in ("cpu", "cuda"):
            raise TacitError(
                f"runs on device '{name}' would not be reproducible",
                "use --device cpu or cuda",
                code="engine.device-not-reproducible",
            )
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError):
        raise TacitError(f"this machine has no device '{name}'", "use --device cpu", code="engine.no-device") from None
    make_deterministic(device)
    return device
