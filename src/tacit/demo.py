"""The demo: one federation, with its few labels, with its unlabeled images too, and with all labels."""

import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from tacit.compare import plan, play_once
from tacit.display import say
from tacit.folders import safe
from tacit.report import page, plots, tables
from tacit.report.read import Run, load

COMMON: dict[str, Any] = {
    "data": "fashion-small",
    "clients": 10,
    "cohort": 5,
    "labels": "server",
    "per_class": 5,
    "net": "lenet",
    "net.norm": "group",
    "rounds": 30,
    "epochs": 2,
    "lr": 0.03,
    "train.schedule": "cosine",
    "server.epochs": 10,
    "server.batch": 10,
    "server.lr": 0.02,
}
ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    "labels only": ("server-only", {}),
    "fedavg+fixmatch": ("fedavg+fixmatch", {"objective.labeler": "global"}),
    "all labels": ("all-labels", {}),
}
NEXT = (
    ("every method, objective, data set, network and partition", "ls"),
    ("who holds what, before training", "data --partition dirichlet:0.5 --labels server --per-class 10"),
    ("the same with other methods", "compare {config} --methods labels-only,fedavg+uda,semifl"),
)


def show(folder: Path, console: Console) -> None:
    """Play the three runs and show what came out."""
    console.print(
        "The server has 50 labeled images of clothes, 5 of each class. Ten clients hold 595 images each, "
        "none of them labeled. No image leaves its holder.\n",
        highlight=False,
    )
    runs = [_play(label, *row, folder, console) for label, row in ROWS.items()]
    rows = tables.summarise(runs)
    width = min(console.width, 100)
    console.print()
    console.print(tables.to_rich(rows, "test accuracy on 1,000 images"))
    console.print()
    print(plots.terminal_curve(runs, width, 15, color=console.color_system is not None))
    page.write_with_command(runs, folder, "tacit demo")
    plots.save(plots.figure(runs), folder / "curve.png")
    say(f"\nreport: {folder / 'report.html'}\n\nnext:", console)
    config = shlex.quote(str(folder / "fedavg+fixmatch" / "config.toml"))
    for what, arguments in NEXT:
        command = f"{_program()} {arguments.format(config=config)}"
        console.print(f"  {escape(command)}\n      [dim]{what}[/dim]", highlight=False, soft_wrap=True)


def _program() -> str:
    """How to call this program from here: by its name, or as it was called where the shell does not find it."""
    if shutil.which("tacit"):
        return "tacit"
    module = Path(sys.argv[0]).name == "__main__.py"
    return "python -m tacit" if module else shlex.quote(os.path.relpath(sys.argv[0]))


def _play(label: str, method: str, options: dict[str, Any], folder: Path, console: Console) -> Run:
    place = folder / safe(label)
    play_once(plan({}, COMMON | options, method, 0), place, "auto", console, label)
    return load(place, label)
