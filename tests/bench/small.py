"""A benchmark that runs in seconds, and finished runs of its cells made by hand."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tacit.bench import plan, spec
from tacit.bench.plan import CellRun
from tacit.runs.config import dumps
from tests.engines import farm
from tests.report.runs import record

TOML = """
title = "A small table"
paper = "Nobody, Table 1"
about = "Three bright bands."
bounds_in_rounds = true
seeds = [0]

[settings]
rounds = 3
[settings.data]
name = "{data}"
clients = 4
labels = "client"
per_class = 2
[settings.train]
steps = 1
batch = 6
[settings.net]
name = "linear"
[settings.engine]
workers = 0

[quick]
rounds = 1

[columns.iid]
title = "IID"
settings.data.partition = "iid"
[columns.classes]
title = "Two classes"
settings.data.partition = "classes:2"

[rows.fedavg]
title = "FedAvg"
settings.method.name = "fedavg+supervised"
settings.objective.view = "plain"
[rows.fixmatch]
title = "FixMatch"
settings.method.name = "fedavg+fixmatch"
columns = ["iid"]

[published.fedavg]
iid = 95.13
classes = 40.0
[published.fixmatch]
iid = 97.5

[[caveats]]
why = "all of it was chosen on the test set"
[[caveats]]
rows = ["fixmatch"]
columns = ["iid"]
why = "its helpers too"
"""


def write(folder: Path, text: str = TOML) -> Path:
    """Write the benchmark as `small_table.toml`, with its images in the same folder."""
    farm.write_images(folder / "images.npz")
    path = folder / "small_table.toml"
    path.write_text(text.replace("{data}", str(folder / "images.npz")), encoding="utf-8")
    return path


def changed(folder: Path, old: str, new: str) -> Path:
    """Write the benchmark with one change in its text."""
    assert old in TOML
    return write(folder, TOML.replace(old, new))


def planned(
    path: Path, out: Path, seeds: Sequence[int] = (0,), quick: bool = False, extra: Mapping[str, Any] | None = None
) -> list[CellRun]:
    """The runs of all cells of a file."""
    benchmark = spec.read(path)
    return plan.runs_of(plan.cells(benchmark, quick, extra), seeds, plan.run_folder(out, benchmark, quick))


def pretend(run: CellRun, accuracies: Sequence[float]) -> None:
    """Write a finished run to its folder: 2 s, 10 steps, 1,000 bytes down and 500 up in each round."""
    (run.folder / "checkpoint").mkdir(parents=True)
    (run.folder / "config.toml").write_text(dumps(run.config), encoding="utf-8")
    lines = "".join(json.dumps(record(i, accuracy)) + "\n" for i, accuracy in enumerate(accuracies))
    (run.folder / "rounds.jsonl").write_text(lines, encoding="utf-8")
    (run.folder / "cell.json").write_text(json.dumps(run.note), encoding="utf-8")
    (run.folder / "checkpoint/latest.json").write_text(json.dumps({"round": len(accuracies)}), encoding="utf-8")


def numbers(folder: Path) -> list[dict[str, Any]]:
    """The records of a run without their times."""
    lines = (folder / "rounds.jsonl").read_text(encoding="utf-8").splitlines()
    return [{k: v for k, v in json.loads(line).items() if k != "seconds"} for line in lines]
