"""What `tacit show` prints: what a thing is, every setting of it, and how it is asked for."""

import inspect
import json

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tacit import catalog
from tacit.config import KINDS
from tacit.data import partition
from tacit.objectives import OBJECTIVES

OPTIONS = {"datasets": "data", "nets": "net", "partitions": "partition", "splits": "split"}  # by which each is chosen
SECTIONS = KINDS | {"server": KINDS["train"]}  # of a config


def show(name: str, console: Console) -> None:
    """Explain a method, with its objective; an objective; what else has this name in `tacit ls`; a config's section."""
    if name in OBJECTIVES:
        _explain("objective", OBJECTIVES[name], console)
        console.print(f"as in --method fedavg+{name}", highlight=False, markup=False)
    elif name in SECTIONS:
        _explain(name, SECTIONS[name], console)
        console.print(f"in a config below [{name}], on the command line with --set", highlight=False, markup=False)
    elif name not in catalog.methods() and _choice(name, console):
        return
    else:
        for section, kind in zip(("method", "objective"), catalog.method_kinds(name), strict=True):
            if kind is not None:
                _explain(section, kind, console)


def _choice(name: str, console: Console) -> bool:
    """Say what a data set, network, partition or split is; False if none has this name."""
    for kind, option in OPTIONS.items():
        for known, about in catalog.listing(kind).items():
            if known == name or known.partition(":")[0] == name.partition(":")[0]:
                console.print(f"[bold]{escape(known)}[/bold]\n{escape(about)}", highlight=False)
                asked = partition.example(name) if kind == "partitions" else name
                console.print(f"as in --{option} {asked}", highlight=False, markup=False)
                return True
    return False


def _explain(section: str, kind: type, console: Console) -> None:
    """What a class is, then every setting with its default and meaning."""
    console.print(f"[bold]{escape(_title(section, kind))}[/bold]", highlight=False)
    console.print(inspect.getdoc(kind), highlight=False, markup=False)
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("setting", "default", "meaning"):
        table.add_column(column, no_wrap=column != "meaning")
    for item in catalog.settings(kind):
        if item.name != "objective":
            default = json.dumps(item.default, default=str)
            words = f"\n[dim]{escape(' | '.join(item.words))}[/dim]" if item.words else ""
            table.add_row(f"{section}.{item.name}", escape(default), escape(item.comment) + words)
    console.print(table)
    if presets := getattr(kind, "PRESETS", None):
        console.print(f"method.preset: {', '.join(presets)}", highlight=False, markup=False)
    console.print()


def _title(section: str, kind: type) -> str:
    """A method's paper, as its file says; else the class."""
    source = inspect.getmodule(kind)
    about = inspect.cleandoc((source.__doc__ if source else "") or "") if section == "method" else ""
    return about.partition("\n")[0] or kind.__name__
