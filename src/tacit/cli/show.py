"""`tacit show`: what a name stands for, all its settings, and the option that chooses it."""

import inspect
import json
from dataclasses import fields

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tacit.data.split import partition
from tacit.method import Variant
from tacit.objectives import OBJECTIVES
from tacit.runs import registry
from tacit.runs.config import SECTION_TYPES, SERVER
from tacit.runs.net.options import options_of
from tacit.runs.settings import Setting, default_of

SECTIONS = SECTION_TYPES | {"server": SECTION_TYPES["train"]}  # [server] has the settings of [train]
EXPLAINED_AS_CLASS = ("methods", "objectives")  # kinds whose classes have settings


def show(name: str, console: Console) -> None:
    """Explain a method and its objective, an objective, a section of the config, or any other name of `tacit ls`."""
    if name in OBJECTIVES:
        _explain("objective", OBJECTIVES[name], console)
        console.print(f"Use it with --method fedavg+{name}", highlight=False, markup=False)
    elif name in SECTIONS:
        _explain(name, SECTIONS[name], console)
        console.print(
            f"Set these below [{name}] in a config, or with --set {name}.NAME=VALUE", highlight=False, markup=False
        )
    elif name not in registry.methods() and _show_choice(name, console):
        return
    else:
        for section, kind in zip(("method", "objective"), registry.method_kinds(name), strict=True):
            if kind is not None:
                _explain(section, kind, console)


def _show_choice(name: str, console: Console) -> bool:
    """Explain a data set, network, partition or split; False if none has this name."""
    for kind in (kind for kind in registry.KINDS if kind not in EXPLAINED_AS_CLASS):
        for known, about in registry.listing(kind).items():
            if known == name or known.partition(":")[0] == name.partition(":")[0]:
                console.print(f"[bold]{escape(known)}[/bold]\n{escape(about)}", highlight=False)
                for item in fields(options_of(known)) if kind == "nets" else ():
                    default = json.dumps(default_of(item), default=str)
                    console.print(f"net.options.{item.name}  {default}", highlight=False, markup=False)
                chosen = partition.example(name) if kind == "partitions" else name
                console.print(f"Use it with --{registry.KINDS[kind].option} {chosen}", highlight=False, markup=False)
                return True
    return False


def _explain(section: str, kind: type | Variant, console: Console) -> None:
    """Print what a class or a variant of a method is, then each setting with its default and meaning."""
    variant = Variant.of(kind)
    console.print(f"[bold]{escape(_title(section, variant.kind))}[/bold]", highlight=False)
    console.print(variant.about, highlight=False, markup=False)
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("setting", "default", "meaning"):
        table.add_column(column, no_wrap=column != "meaning")
    for item in registry.settings_of(kind):
        if item.name != "objective":
            default = _default(section, item)
            words = f"\n[dim]{escape(' | '.join(item.words))}[/dim]" if item.words else ""
            table.add_row(f"{section}.{item.name}", escape(default), escape(item.comment) + words)
    console.print(table)
    if variant.presets:
        console.print(f"method.preset: {', '.join(variant.presets)}", highlight=False, markup=False)
    console.print()


def _default(section: str, item: Setting) -> str:
    """The default as a config has it; the server does what the clients do, unless runs have a default of its own."""
    if section == "server" and item.name not in SERVER:
        return f"train.{item.name}"
    return json.dumps(SERVER[item.name] if section == "server" else item.default, default=str)


def _title(section: str, kind: type) -> str:
    """The paper of a method, from the first line of its file; the section of a config; or the name of a class."""
    if section in SECTIONS:
        return f"[{section}]"
    source = inspect.getmodule(kind)
    about = inspect.cleandoc((source.__doc__ if source else "") or "") if section == "method" else ""
    return about.partition("\n")[0] or kind.__name__
