"""`tacit site`: one data holder of a federation, its settings and keys, and what would leave its machine."""

from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from tacit.display import say

if TYPE_CHECKING:
    from tacit.deploy.check import Report
    from tacit.deploy.rehearsal import Item, Round, Sent

app = typer.Typer(help="A site: take part in a federation with data that stays on this machine.", no_args_is_help=True)


@app.command()
def init(
    name: Annotated[str, typer.Option(help="By which the hub knows this site.")],
    folder: Annotated[Path, typer.Argument(help="For the settings and keys; made when not there.")] = Path(),
    data: Annotated[
        Path | None, typer.Option(help="Image folder, .csv or .npz; without, a share of the run's data set.")
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="No keys, no encryption: trials on one machine.")
    ] = False,
) -> None:
    """Write site.toml and a pair of keys, and say what comes next; nothing is overwritten."""
    from tacit.deploy import setup

    written, console = setup.create(folder, name, data, insecure=insecure), Console()
    say(f"The site {name} is set up in {written.site}. Next:", console)
    key, certificate = written.public_key, f"{setup.CERTIFICATE} and "
    first = ("Tell the hub that this site takes part without keys.", "")
    if key is not None:
        first = (f"Send {key} to the hub, which lets this site in with", f"tacit hub add {name} {quote(key.name)}")
    files = f"{certificate if key else ''}federation.toml"
    comes = f"Put the hub's {files} into this folder, and see what would leave this machine:"
    steps = (
        first,
        (comes, f"tacit site check {quote(str(written.site))}"),
        ("Take part:", f"tacit site join HOST:PORT --site {quote(str(written.site.parent))}"),
    )
    for number, (text, command) in enumerate(steps, start=1):
        console.print(Padding(escape(f"{number}. {text}"), (0, 0, 0, 2)), highlight=False)
        if command:
            say(f"     {command}", console)


@app.command()
def check(
    site: Annotated[Path, typer.Argument(help="The file site.toml, or its folder.")] = Path("site.toml"),
) -> None:
    """Read this site's data as the run in federation.toml would, and list what would leave; nothing is sent."""
    from tacit.deploy.check import check as look

    _show(look(site / "site.toml" if site.is_dir() else site), Console())


def _list(lines: list[str], console: Console) -> None:
    table = Table(box=None, show_header=False, padding=(0, 1, 0, 0))
    for line in lines:
        table.add_row(" –", escape(line))
    console.print(table, highlight=False)


def _show(report: "Report", console: Console) -> None:
    say(f"{report.site.name} in a run of {report.method} ({report.net})", console, "bold")
    _list(_holding(report), console)
    for place, each in enumerate(report.rounds):
        last = each is report.rounds[-1]
        later = report.rounds[place + 1].number - 1 if not last else 0
        when = f"round {each.number}" + (" and after" if last else f" to {later}" if later > each.number else "")
        _show_round(each, when, console)
    say("\nAlso leaves", console, "bold")
    _list(_also(report), console)
    say("\nNever leaves", console, "bold")
    _list(_never(report), console)
    console.print("\nThe hub sees what leaves, and a model can tell something of the samples it learned from.")
    console.print("This is the run in federation.toml; for another run, ask the hub for its file.", highlight=False)


def _holding(report: "Report") -> list[str]:
    if report.samples is None:
        return ["no data of its own: a share of the run's data set; rehearsed with noise"]
    counts = f"{report.labeled:,} show their label"
    if report.hidden:
        counts += f", {report.hidden:,} have one that is not used (labels = {report.labels})"
    lines = [f"{report.samples:,} samples: {counts}", f"{report.test or 'no'} test samples"]
    classes = ", ".join(f"{name} ({count:,})" for name, count in report.classes.items() if count)
    lines += [f"labels by class: {classes}"] if classes else []
    lines += [report.note] if report.note else []
    return [*lines, f"rehearsed with {report.rehearsed:,} of them, one step of training per round"]


def _show_round(each: "Round", when: str, console: Console) -> None:
    from tacit.report.units import size_of

    for title, sent in ((f"Leaves in {when}", each.up), (f"Comes in {when}", each.down)):
        size = f": {size_of(sent.size)}" if sent else ": nothing in the rehearsal"
        say(f"\n{title}{size}", console, "bold")
        if sent is not None:
            _show_sent(sent, console)
    if each.memory is not None:
        say(f"\nStays here: {size_of(each.memory)} of memory between rounds", console, "bold")


def _show_sent(sent: "Sent", console: Console) -> None:
    from tacit.report.units import size_of

    for words in sent.about:
        console.print(Padding(escape(words), (0, 0, 0, 2)), highlight=False, style="dim")
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column()
    table.add_column(justify="right", no_wrap=True)
    for item in sent.items:
        table.add_row(escape(f"  {item.name}"), escape(_form(item)), size_of(item.size) if item.size else "")
    console.print(table, highlight=False)


def _form(item: "Item") -> str:
    if item.copies:
        return f"{item.what}: SAMPLES OF THIS SITE AS THEY ARE"
    return f"{item.what}: has the form of samples and may be made of them" if item.like_samples else item.what


def _also(report: "Report") -> list[str]:
    metrics = sorted({name for each in report.rounds for name in each.metrics})
    lines = ["this site's name, its number of samples and of labels, or why it can not take part"]
    lines += [f"numbers about every round: {', '.join(metrics)}"] if metrics else []
    lines += ["the number of the round that its memory is of"] if _remembers(report) else []
    return [*lines, "where its work fails, the error's text, which may name a file, and its place in the program"]


def _never(report: "Report") -> list[str]:
    if copies := report.copies_samples:
        return [f"samples other than those in {', '.join(copies)}"]
    but = f" other than mixed into {', '.join(report.shows_samples)}" if report.shows_samples else ""
    lines = [f"samples{but}", "labels one by one"]
    lines += [f"what the method remembers, in {report.memory}"] if _remembers(report) else []
    return [*lines, "the private key"] if report.site.key else lines


def _remembers(report: "Report") -> bool:
    return any(each.memory is not None for each in report.rounds)


@app.command()
def join(
    address: Annotated[str, typer.Argument(help="The hub's, such as 192.0.2.7:8443.")],
    site: Annotated[Path, typer.Option(help="The file site.toml, or its folder.")] = Path("site.toml"),
) -> None:
    """Take part in the hub's runs until Ctrl-C; the data stays on this machine."""
    from tacit.deploy import programs
    from tacit.deploy.join import join as take_part

    with programs.ending_in_order():
        take_part(site / "site.toml" if site.is_dir() else site, address, say)
