"""Run directories made by hand, as small as a test needs them."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tomli_w

from tacit.report.read import Run, load


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
    """A run directory of the method fedavg+fixmatch with seed 0 that is finished, unless the config says otherwise."""
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


def deal(run: Run, name: str, labeled: Sequence[Sequence[int]], unlabeled: Sequence[Sequence[int]]) -> None:
    """Write who holds what of the classes a and b, and of no known class, beside a run; the server has one of each."""
    counts = {
        "classes": ["a", "b"],
        "labeled": labeled,
        "unlabeled": unlabeled,
        "server": [1, 1],
        "heterogeneity": 0.25,
    }
    (run.folder / "split.json").write_text(json.dumps({"hash": name, "counts": counts}), encoding="utf-8")


def spread(mean: float) -> dict[str, float]:
    """A number over the clients that reaches a tenth below its mean and a fifth above it."""
    return {"mean": mean, "min": mean - 0.1, "max": mean + 0.2}
