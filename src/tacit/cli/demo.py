"""`tacit demo`: one federation of uneven clients, trained on its few labels, by `auto`, and on all labels.

Where pretrained weights are installed, the few labels with these follow.
"""

import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from tacit.report import page, plots, tables
from tacit.report.history import Run, load
from tacit.runs.choices.pretrained import NET, weights_installed
from tacit.runs.compare import run_once
from tacit.runs.directory import RunDirectory, layout
from tacit.runs.directory.folders import safe
from tacit.runs.followers.progress import say
from tacit.runs.resolve import resolve

COMMON: dict[str, Any] = {
    "data": "fashion-small",
    "clients": 10,
    "cohort": 5,
    "partition": "dirichlet:0.3",
    "labels": "server",
    "per_class": 5,
    "net": "lenet",
    "net.norm": "group",
    "rounds": 30,
    "lr": 0.03,
    "train.schedule": "cosine",
}
ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    # Strong views are worth five points to the labels alone, and auto has them too.
    "labels only": (
        "server-only+supervised",
        {"server.steps": 40, "server.batch": 32, "server.lr": 0.02, "objective.view": "strong"},
    ),
    "auto": ("auto", {}),
    "all labels": ("fedavg+supervised", {"labels": "all", "per_class": None, "epochs": 2}),
}
# A network from ImageNet and a logistic regression on the same labels; no client takes part.
PRETRAINED: dict[str, tuple[str, dict[str, Any]]] = {
    "labels only, ImageNet": (
        "logreg",
        {"net": NET, "net.norm": None, "net.train": "head", "rounds": 1, "train.schedule": None},
    ),
}
NEXT = (
    ("list the methods, objectives, data sets, networks and partitions", "ls"),
    ("see who holds what, before training", "data --partition dirichlet:0.5 --labels server --per-class 10"),
    ("compare other methods on the same data", "compare {config} --methods labels-only,fedavg+fixmatch,semifl"),
)


def show(folder: Path, console: Console) -> None:
    """Run the rows and print the results."""
    console.print(
        "The server has 50 labeled images of clothes, 5 of each class. Ten clients have 5,950 unlabeled images, each "
        "with another mix of classes. No image leaves its owner.\n",
        highlight=False,
    )
    runs = [_run(label, *row, folder, console) for label, row in rows().items()]
    width = min(console.width, 100)
    console.print()
    console.print(tables.to_rich(tables.summarise(runs), "test accuracy on 1,000 images"))
    console.print()
    print(plots.terminal_curve(runs, width, 15, color=console.color_system is not None))
    page.write_with_command(runs, folder, "tacit demo")
    plots.save(plots.figure(runs), folder / "curve.png")
    say(f"\nreport: {folder / layout.REPORT}\n\nnext:", console)
    config = shlex.quote(str(RunDirectory(folder / "auto").config_file))
    for what, arguments in NEXT:
        command = f"{_program()} {arguments.format(config=config)}"
        console.print(f"  {escape(command)}\n      [dim]{what}[/dim]", highlight=False, soft_wrap=True)


def rows() -> dict[str, tuple[str, dict[str, Any]]]:
    """The rows by their label; the last starts from pretrained weights, where the extra with these is installed."""
    return ROWS | (PRETRAINED if weights_installed() else {})


def _program() -> str:
    """How to call this program: `tacit`, or the way it was called if the shell does not find that."""
    if shutil.which("tacit"):
        return "tacit"
    module = Path(sys.argv[0]).name == "__main__.py"
    return "python -m tacit" if module else shlex.quote(os.path.relpath(sys.argv[0]))


def _run(label: str, method: str, options: dict[str, Any], folder: Path, console: Console) -> Run:
    place = folder / safe(label)
    asked = resolve(COMMON | options | {"method": method})
    for line in asked.lines:
        say(line, console)
    run_once(asked.config, place, "auto", console, label)
    return load(place, label)
