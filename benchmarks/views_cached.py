"""What it takes and brings to compute frozen layers once: rounds per second and accuracy for `net.views` = 1, 4, 16.

    python benchmarks/views_cached.py           about three minutes of one core; an interrupted run continues
    python benchmarks/views_cached.py --fill    only write the stored results into docs/pretrained.md

Every run is FedAvg with FixMatch on a part of fashion-small and trains the head of EfficientNet-lite0. Seconds are
those of a core, without the evaluation at the end, so that a busy machine hardly changes them. Results are in
results/views-cached.json.
"""

import argparse
import json
import os
import re
import tempfile
import time
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from tacit.process import one_thread
from tacit.runs import config as configs
from tacit.runs.experiment import Experiment

ROOT = Path(__file__).parent.parent
STORED = ROOT / "benchmarks/results/views-cached.json"
PAGE = ROOT / "docs/pretrained.md"
BLOCK = re.compile(r"(?<=^<!-- views cached -->\n).*?(?=^<!-- end views cached -->$)", re.MULTILINE | re.DOTALL)
SEEDS = (0, 1, 2)
VIEWS = (None, 1, 4, 16)  # None: not cached
ROUNDS = 12
ABOUT = """With FedAvg and FixMatch on 300 images of Fashion-MNIST at five uneven clients, one label per class at each,
the head of EfficientNet-lite0 at 64 pixels, 12 rounds; seconds are those of one core; mean and standard deviation of
three seeds, by `python benchmarks/views_cached.py`:
"""
CELL: dict[str, Any] = {
    "method": "fedavg+fixmatch",
    "data": "fashion-small",
    "data.samples": 300,
    "clients": 5,
    "partition": "dirichlet:0.3",
    "labels": "client",
    "per_class": 1,
    "net": "efficientnet-lite0",
    "net.train": "head",
    "net.zero_head": True,
    "net.options.side": 64,
    "rounds": ROUNDS,
    "lr": 0.03,
    "train.schedule": "cosine",
    "log.evaluate_every": ROUNDS,
    "workers": 0,
}


@dataclass(frozen=True)
class Measured:
    """One run."""

    views: int | None
    seed: int
    accuracy: float
    once: float  # core-seconds before the first round, for all views of all samples
    rate: float  # rounds per core-second


def measure(views: int | None, seed: int) -> Measured:
    """Run once, with nothing on disk before."""
    with tempfile.TemporaryDirectory(prefix="tacit-views-") as name, one_thread():
        os.environ["TACIT_CACHE"] = name
        config = configs.from_options(CELL | {"net.views": views, "seed": seed})
        experiment = Experiment.create(config, Path(name) / "run")
        began = time.process_time()
        _ = experiment.work
        ready = time.process_time()
        ends = [time.process_time() for _ in experiment.rounds()]
        return Measured(
            views,
            seed,
            experiment.result().accuracy,
            round(ready - began, 1),
            round((ROUNDS - 1) / (ends[-2] - ready), 3),
        )


def table(measured: list[Measured]) -> str:
    """What the page says: one row for each number of views with a run of every seed; nothing if there is none."""
    complete = [views for views in VIEWS if sum(each.views == views for each in measured) == len(SEEDS)]
    if not complete:
        return ""
    lines = [
        ABOUT,
        "| `net.views` | accuracy (%) | rounds per second | seconds before the first round |",
        "|---|--:|--:|--:|",
    ]
    for views in complete:
        rows = [each for each in measured if each.views == views]
        accuracy = [100 * each.accuracy for each in rows]
        lines.append(
            f"| {'not cached' if views is None else views} | {mean(accuracy):.1f} ± {stdev(accuracy):.1f} | "
            f"{mean(each.rate for each in rows):.2g} | {mean(each.once for each in rows):.0f} |"
        )
    return "\n".join(lines) + "\n"


def stored() -> list[Measured]:
    """The stored results; none before the first run."""
    values = json.loads(STORED.read_text(encoding="utf-8"))["runs"] if STORED.exists() else []
    return [Measured(**each) for each in values]


def measure_all() -> None:
    """Run what is not stored yet, and store each run as it ends."""
    done = json.loads(STORED.read_text(encoding="utf-8")) if STORED.exists() else {}
    runs = done["runs"] if done.get("settings") == CELL else []
    for views, seed in product(VIEWS, SEEDS):
        if not any((each["views"], each["seed"]) == (views, seed) for each in runs):
            runs.append(asdict(measure(views, seed)))
            print(runs[-1], flush=True)
            STORED.write_text(json.dumps({"settings": CELL, "runs": runs}, indent=1) + "\n", encoding="utf-8")


def filled(page: str) -> str:
    """A page with the table of the stored results."""
    return BLOCK.sub(lambda _: table(stored()), page)


def main() -> None:
    """Run everything, store it, and write the table into the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fill", action="store_true", help="only write the stored results into the page")
    if not parser.parse_args().fill:
        measure_all()
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(table(stored()))


if __name__ == "__main__":
    main()
