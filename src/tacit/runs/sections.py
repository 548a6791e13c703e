"""The sections `[engine]`, `[log]` and `[track]` of a config: where a run computes, what it measures, who follows."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from tacit.engines.selection import Select
from tacit.method import Count, Natural, Positive
from tacit.metrics.scores import Name as ScoreName


@dataclass(frozen=True)
class EngineConfig:
    """Where and how the rounds run. Only these change the model: `device`, `threads`, `stack`, a missed deadline.

    A GPU adds numbers in another order than a CPU, and GPUs of different types need not give the same bits.
    """

    name: Literal["local", "flower"] = "local"  # `local`: worker processes; `flower`: Flower simulation on Ray
    ray: str | None = None  # address of a Ray cluster, for flower; RAY_ADDRESS, or a new local one when not given
    workers: Natural | None = None  # worker processes, 0 for none; when not given, one per core, or 1 with a GPU
    strict: bool = False  # with workers = 0, also encode and decode every message
    workers_per_device: Count | None = None  # worker processes for each device, in place of workers
    stack: Count = 1  # clients that train as one batched model, where they can; in place of workers, with other bits
    threads: Count = 1  # torch threads of each process; the last bits of a model depend on their number
    device: str = "cpu"  # torch device: cpu, cuda, cuda:1, …; several with commas share the clients
    deadline: Positive | None = None  # seconds until a round continues without a client; not with workers = 0
    min_clients: Natural = 1  # the run stops if fewer clients reply in a round
    memory_mb: Positive = 1024.0  # RAM for client memories; the rest is on disk


def _listed(value: Any) -> Any:
    """Names separated by commas as a list, so that they can be given on the command line."""
    return [name.strip() for name in value.split(",") if name.strip()] if isinstance(value, str) else value


@dataclass(frozen=True)
class LogConfig:
    """What is measured and saved, and how often."""

    evaluate_every: Count = 1  # rounds between evaluations
    local: bool = False  # also evaluate each client's own model
    metrics: Annotated[tuple[ScoreName, ...], BeforeValidator(_listed)] | None = None  # more scores: auroc, ece, …
    checkpoint_every: Count = 1  # rounds between checkpoints
    keep_checkpoints: Count = 3  # the last ones, to which `tacit resume --from` can return
    select: Select = "last"  # the model to save, by validation: last, best, average (of the last five), or guard


@dataclass(frozen=True)
class TrackConfig:
    """Experiment trackers that also get the rounds; nothing here changes a number."""

    tensorboard: bool = False  # event files in the run's folder; needs tacit[tensorboard]
    mlflow: str | None = None  # a folder for MLflow's database, or the address of its server; needs tacit[mlflow]
