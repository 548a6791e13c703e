"""Small run directories made by hand."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tomli_w

from tacit.report.history import Run, load


def record(round: int, accuracy: float | None, **changes: Any) -> dict[str, Any]:
    """A line of rounds.jsonl: 2 s, 10 steps, 1,000 bytes down and 500 up."""
    return {
        "round": round,
        "seconds": 2.0,
        "accuracy": accuracy,
        "loss": None,
        "local_accuracy": None,
        "clients": 2,
        "steps": 10,
        "bytes_down": 1000,
        "bytes_up": 500,
        "traffic": {"0": [500, 250], "1": [500, 250]},
        "metrics": {},
        "server": {},
        "skipped": {},
    } | changes


def write_run(folder: Path, records: Sequence[dict[str, Any]], **config: Any) -> Path:
    """A finished run directory of fedavg+fixmatch with seed 0, unless `config` changes that."""
    folder.mkdir(parents=True)
    full = {"seed": 0, "rounds": len(records), "method": {"name": "fedavg+fixmatch"}} | config
    (folder / "config.toml").write_text(tomli_w.dumps(full), encoding="utf-8")
    lines = "".join(json.dumps(line) + "\n" for line in records)
    (folder / "rounds.jsonl").write_text(lines, encoding="utf-8")
    return folder


def a_run(folder: Path, accuracies: Sequence[float | None], label: str | None = None, **config: Any) -> Run:
    """A run with these accuracies, one per round."""
    records = [record(round, accuracy) for round, accuracy in enumerate(accuracies)]
    return load(write_run(folder, records, **config), label)


def two_seeds(folder: Path, label: str, first: float, second: float, **config: Any) -> list[Run]:
    """Two runs of one round each."""
    return [
        a_run(folder / f"{label}-{seed}", [accuracy], label, seed=seed, **config)
        for seed, accuracy in enumerate((first, second))
    ]


def write_counts(run: Run, name: str, labeled: Sequence[Sequence[int]], unlabeled: Sequence[Sequence[int]]) -> None:
    """Write a run's samples per client of the classes a, b and unknown; the server has one label of a and of b."""
    counts = {
        "classes": ["a", "b"],
        "labeled": labeled,
        "unlabeled": unlabeled,
        "server": [1, 1],
        "heterogeneity": 0.25,
    }
    (run.folder / "split.json").write_text(json.dumps({"hash": name, "counts": counts}), encoding="utf-8")


def spread(mean: float) -> dict[str, float]:
    """A number over the clients, from 0.1 below its mean to 0.2 above it."""
    return {"mean": mean, "min": mean - 0.1, "max": mean + 0.2}
