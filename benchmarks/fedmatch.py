"""FedMatch and the rows its paper compares it with, on real data, at a scale that fits two cores.

    python benchmarks/fedmatch.py streaming-client [--seed 0]   Table 2, labels at clients
    python benchmarks/fedmatch.py streaming-server              Table 2, labels at the server
    python benchmarks/fedmatch.py batch-server                  Table 1, CIFAR-10, labels at the server
    python benchmarks/fedmatch.py interference                  Figure 6 (c): accuracy on the labeled samples themselves

Smaller than in the paper: a ResNet-9 of a sixteenth of the width (25,988 parameters on Fashion-MNIST), 5 rounds
per streaming step instead of 10, 60 rounds of the batch task instead of 200. The data folder is TACIT_DATA.
The paper's λ_s = 10 at a learning rate of 0.001 corresponds to a rate of 0.01 and a weight of 0.1 in the other rows.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from tacit.data import sources
from tacit.report import tables
from tacit.report.history import Run, load
from tacit.runs.compare import run_once
from tacit.runs.config import from_options

Settings = dict[str, Any]

COMMON: Settings = {
    "net": "resnet9",
    "net.width": 1 / 16,
    "epochs": 1,
    "batch": 10,
    "train.unlabeled_batch": 100,
    "train.momentum": 0.0,
    "train.weight_decay": 1e-4,
    "server.epochs": 1,
    "server.batch": 100,
    "data.augment": "fedmatch",
}
SLOW: Settings = {"lr": 1e-3}  # λ_s = 10 is a setting of FedMatch
FAST: Settings = {"lr": 1e-2, "train.weight_decay": 1e-5}
BASELINE: Settings = FAST | {"objective.weight": 0.1, "objective.view": "plain", "method.mu": 0.01}
ROWS: dict[str, Settings] = {
    "fedmatch": SLOW | {"method": "fedmatch"},
    "fedmatch as released": SLOW | {"method": "fedmatch", "method.preset": "as-released"},
    "fedmatch, λ_ICCS = 0": SLOW | {"method": "fedmatch", "method.lambda_iccs": 0.0},
    "fedmatch, λ_L2 = 0": SLOW | {"method": "fedmatch", "method.lambda_l2": 0.0},
    "fedprox+uda": BASELINE | {"method": "fedprox+uda"},
    "fedprox+fixmatch": BASELINE
    | {"method": "fedprox+fixmatch", "objective.threshold": 0.85, "objective.teacher": "plain"},
    "server only": FAST | {"method": "server-only+supervised", "objective.view": "plain"},
    "server only, 20 epochs": FAST
    | {"method": "server-only+supervised", "objective.view": "plain", "server.epochs": 20},
    "server only, 5 epochs": FAST | {"method": "server-only+supervised", "objective.view": "plain", "server.epochs": 5},
    "labels only": FAST | {"method": "fedavg+supervised", "objective.view": "plain"},
    "labels only, 20 epochs": FAST | {"method": "fedavg+supervised", "objective.view": "plain", "epochs": 20},
    "all labels": FAST | {"method": "fedprox+supervised", "objective.view": "plain", "labels": "all"},
}
STREAMING: Settings = {"data.rounds_per_step": 5, "rounds": 50, "log.local": True, "log.evaluate_every": 5}
TASKS: dict[str, tuple[Settings, tuple[str, ...]]] = {
    "streaming-client": (
        STREAMING | {"split": "fedmatch-streaming"},
        (
            "labels only",
            "labels only, 20 epochs",
            "fedprox+uda",
            "fedprox+fixmatch",
            "fedmatch",
            "fedmatch as released",
            "all labels",
        ),
    ),
    "streaming-server": (
        STREAMING | {"split": "fedmatch-streaming-server"},
        (
            "server only",
            "server only, 20 epochs",
            "fedprox+uda",
            "fedprox+fixmatch",
            "fedmatch, λ_ICCS = 0",
            "fedmatch, λ_L2 = 0",
            "fedmatch",
            "fedmatch as released",
            "all labels",
        ),
    ),
    "batch-server": (
        {"split": "fedmatch-batch-iid-server", "cohort": 5, "rounds": 60, "log.evaluate_every": 3},
        ("server only", "server only, 5 epochs", "fedmatch, λ_ICCS = 0", "fedmatch", "fedmatch as released"),
    ),
    "interference": (
        {"clients": 1, "labels": "all", "rounds": 100, "log.evaluate_every": 5},
        ("fedprox+uda", "fedprox+fixmatch", "fedmatch"),
    ),
}


def run_task(task: str, seed: int, only: str | None, folder: Path, console: Console) -> list[Run]:
    """Run all rows of a task, each in a separate run directory; finished ones are not run again."""
    settings, rows = TASKS[task]
    runs = []
    for row in rows if only is None else [only]:
        chosen = COMMON | settings | ROWS[row] | {"seed": seed}
        if task.endswith("server") and chosen.get("method.preset") == "as-released":
            chosen["method.preset"] = "as-released-server"
        if task == "interference":
            chosen["data"] = str(labeled_as_test(folder))
        place = folder / task / row.replace(" ", "-") / f"seed-{seed}"
        run_once(from_options(chosen), place, "auto", console, row)
        runs.append(load(place, row))
    return runs


def labeled_as_test(folder: Path) -> Path:
    """5 labeled images per class and 1,000 unlabeled ones; the labeled ones are the test set too."""
    path = folder / "interference.npz"
    if not path.exists():
        source = sources.load("cifar10")
        x, y = source.x.numpy(), source.y.numpy()
        shown = np.concatenate([np.flatnonzero(y == name)[:5] for name in range(10)])
        rest = np.setdiff1d(np.arange(5000), shown)[:1000]
        labels = np.concatenate([y[shown], np.full(1000, -1)])
        folder.mkdir(parents=True, exist_ok=True)
        np.savez(path, x=x[np.concatenate([shown, rest])], y=labels, x_test=x[shown], y_test=y[shown])
    return path


def main() -> None:
    """Run a task and print its table, and the communication in the paper's unit."""
    parser = argparse.ArgumentParser(description="FedMatch and the rows its paper compares it with.")
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=ROWS, help="one row of the table")
    parser.add_argument("--out", type=Path, default=Path("runs/fedmatch"))
    options = parser.parse_args()
    console = Console()
    runs = run_task(options.task, options.seed, options.only, options.out, console)
    console.print(tables.to_rich(tables.summarise(runs), f"{options.task}, seed {options.seed}"))
    for run in runs:
        local = [record.local_accuracy for record in run.rounds if record.local_accuracy is not None]
        numbers = {"mean accuracy of the clients' own models": local[-1] if local else None}
        for name in ("s2c", "c2s"):
            found = [record.server[name] for record in run.rounds if name in record.server]
            numbers[name] = sum(found) / len(found) if found else None
        print(run.label, *(f"{name} {value:.1%}" for name, value in numbers.items() if value is not None), sep="  ")


if __name__ == "__main__":
    main()
