"""`tacit site`: one data holder of a federation, its settings and keys, and what would leave its machine."""

from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from tacit.cli.options import Open, Port
from tacit.runs.followers.progress import say

if TYPE_CHECKING:
    from tacit.deploy.check import Report
    from tacit.deploy.dry_run import MessageContent, MessageItem, RoundTraffic
    from tacit.deploy.journal import Entry, Journal

app = typer.Typer(help="A site: take part in a federation with data that stays on this machine.", no_args_is_help=True)


@app.command()
def init(
    name: Annotated[str, typer.Option(help="The site's name at the hub.")],
    folder: Annotated[Path, typer.Argument(help="The site's folder; created if it does not exist.")] = Path(),
    data: Annotated[
        Path | None, typer.Option(help="Image folder, .csv, .npz or .parquet; default: a share of the run's data set.")
    ] = None,
    port: Annotated[
        int | None, typer.Option(help="Local port for Flower's processes; each site on a machine needs its own.")
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="No keys, no encryption: for trials on one machine.")
    ] = False,
) -> None:
    """Create a site: site.toml and keys; overwrites nothing."""
    from tacit.deploy import site_init

    files, console = site_init.create(folder, name, data, insecure=insecure, port=port), Console()
    say(f"The site {name} is set up in {files.settings}. Next:", console)
    key, from_hub = files.public_key, "federation.toml"
    first = ("Let the hub know that this site takes part without keys.", "")
    if key is not None:
        first = (f"Send {key} to the hub, which adds this site with", f"tacit hub add {name} {quote(key.name)}")
        from_hub = f"{site_init.CERTIFICATE} and federation.toml"
    check_text = f"Put the hub's {from_hub} into this folder, and see what would leave this machine:"
    steps = (
        first,
        (check_text, f"tacit site check {quote(str(files.settings))}"),
        ("Take part:", f"tacit site join HOST:PORT --site {quote(str(files.settings.parent))}"),
    )
    for number, (text, command) in enumerate(steps, start=1):
        console.print(Padding(escape(f"{number}. {text}"), (0, 0, 0, 2)), highlight=False)
        if command:
            say(f"     {command}", console)


@app.command()
def check(
    site: Annotated[Path, typer.Argument(help="The file site.toml, or its folder.")] = Path("site.toml"),
) -> None:
    """Check the data for a run and list what would leave; sends nothing.

    The run is the one in federation.toml, from the hub. A site can join once its check has passed.
    """
    from tacit.deploy.check import check as check_site
    from tacit.deploy.consent import record_check

    report = check_site(_settings_file(site))
    _show(report, Console())
    report.require_safe()
    record_check(_settings_file(site), report.agreement)
    say("\nThe check has passed. `tacit site join` agrees to this run, and to no other.")


def _settings_file(site: Path) -> Path:
    return site / "site.toml" if site.is_dir() else site


def _list(lines: list[str], console: Console) -> None:
    table = Table(box=None, show_header=False, padding=(0, 1, 0, 0))
    for line in lines:
        table.add_row(" –", escape(line))
    console.print(table, highlight=False)


def _show(report: "Report", console: Console) -> None:
    say(f"{report.site.name} in a run of {report.method} ({report.net})", console, "bold")
    _list(_data_lines(report), console)
    for index, each in enumerate(report.rounds):
        last = each is report.rounds[-1]
        later = report.rounds[index + 1].number - 1 if not last else 0
        when = f"round {each.number}" + (" and after" if last else f" to {later}" if later > each.number else "")
        _show_round(each, when, console)
    say("\nAlso leaves", console, "bold")
    _list(_also_leaves(report), console)
    say("\nNever leaves", console, "bold")
    _list(_never_leaves(report), console)
    if report.secure:
        say("\nTowards the hub: secure aggregation", console, "bold")
        _list(report.secure, console)
    if report.protection:
        say("\nPrivacy of this site at the end of the run, towards everyone but the hub", console, "bold")
        _list(report.protection, console)
    say("\nWhat it can reveal about one sample", console, "bold")
    _list(_privacy_lines(report), console)
    console.print(
        f"This is the run in federation.toml, with up to {report.rounds_agreed} rounds; "
        "for another run, ask the hub for its file.",
        highlight=False,
    )


def _data_lines(report: "Report") -> list[str]:
    if report.samples is None:
        return ["no own data: a share of the run's data set; dry run with noise"]
    counts = f"{report.labeled:,} with a label"
    if report.hidden:
        counts += f", {report.hidden:,} with a label that is not used (labels = {report.labels})"
    lines = [f"{report.samples:,} samples: {counts}", f"{report.test or 'no'} test samples"]
    classes = ", ".join(f"{name} ({count:,})" for name, count in report.classes.items() if count)
    lines += [f"labels by class: {classes}"] if classes else []
    lines += [report.note] if report.note else []
    return [*lines, f"dry run with {report.dry_run_samples:,} of them, one training step per round"]


def _show_round(each: "RoundTraffic", when: str, console: Console) -> None:
    from tacit.formatting import size_of

    for title, message in ((f"Leaves in {when}", each.up), (f"Arrives in {when}", each.down)):
        size = f": {size_of(message.size)}" if message else ": nothing in the dry run"
        say(f"\n{title}{size}", console, "bold")
        if message is not None:
            _show_message(message, console)
    if each.memory is not None:
        say(f"\nStays here: {size_of(each.memory)} of memory between rounds", console, "bold")


def _show_message(message: "MessageContent", console: Console) -> None:
    from tacit.formatting import size_of

    for text in message.about:
        console.print(Padding(escape(text), (0, 0, 0, 2)), highlight=False, style="dim")
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column()
    table.add_column(justify="right", no_wrap=True)
    for item in message.items:
        table.add_row(escape(f"  {item.name}"), escape(_form(item)), size_of(item.size) if item.size else "")
    console.print(table, highlight=False)


def _form(item: "MessageItem") -> str:
    if item.copies_samples:
        return f"{item.form}: UNCHANGED SAMPLES OF THIS SITE"
    return f"{item.form}: has the shape of samples and may be computed from them" if item.like_samples else item.form


def _also_leaves(report: "Report") -> list[str]:
    metrics = sorted({name for each in report.rounds for name in each.metrics})
    lines = ["this site's name, its number of samples and of labels, or why it cannot take part (without paths)"]
    lines += [f"numbers about every round: {', '.join(metrics)}"] if metrics else []
    if report.hold_out is not None and report.site.share_scores:
        lines.append(f"in judged rounds: of the {report.hold_out:.0%} of labels held out, how many are right")
    if report.secure:
        lines.append(
            "new public keys for every round, encrypted shares for the other sites, and shares that open the sum"
        )
    lines += (
        ["the number of the last round that its memory knows, and a digest of that memory"]
        if _remembers(report)
        else []
    )
    return [*lines, "if training fails, the code of the error and how often that has happened"]


def _privacy_lines(report: "Report") -> list[str]:
    found = report.privacy
    if found is None:
        return [
            "the hub sees what leaves, and a model can reveal something about its training samples: nothing limits it"
        ]
    after = f"after all {report.rounds_agreed} rounds ({found.steps:,} steps)"
    lines = [
        f"at most ε = {found.epsilon:.3g} with δ = {found.delta:.0e} {after}, by noise that is drawn on this machine"
    ]
    if found.total > found.epsilon:
        lines.append(f"together with what has left before, by the journal: ε = {found.total:.3g}")
    return [*lines, "not protected: how many samples and labels this site has"]


def _never_leaves(report: "Report") -> list[str]:
    if copies := report.sample_copies:
        return [f"samples other than those in {', '.join(copies)}"]
    but = f" other than mixed into {', '.join(report.sample_like_items)}" if report.sample_like_items else ""
    lines = [f"samples{but}", "individual labels"]
    lines += [f"what the method remembers, in {report.memory}"] if _remembers(report) else []
    return [*lines, "the private key"] if report.site.key else lines


def _remembers(report: "Report") -> bool:
    return any(each.memory is not None for each in report.rounds)


@app.command()
def join(
    address: Annotated[str, typer.Argument(help="The hub's address, such as 192.0.2.7:8443.")],
    site: Annotated[Path, typer.Option(help="The file site.toml, or its folder.")] = Path("site.toml"),
    any_run: Annotated[
        bool, typer.Option("--any-run", help="Without federation.toml: for trials with a hub on this machine.")
    ] = False,
) -> None:
    """Take part in the run that was checked until you press Ctrl-C."""
    from tacit.deploy import supernode
    from tacit.deploy.processes import interrupt_on_termination

    with interrupt_on_termination():
        supernode.join(_settings_file(site), address, say, any_run=any_run)


@app.command()
def journal(
    site: Annotated[Path, typer.Argument(help="The file site.toml, or its folder.")] = Path("site.toml"),
    last: Annotated[int, typer.Option(min=0, help="Show this many of the latest lines; 0 for all.")] = 20,
) -> None:
    """Show what has left this site, when, and to which run."""
    from tacit.deploy import journal as journals
    from tacit.deploy.settings import Site, load_settings

    path = _settings_file(site)
    load_settings(Site, path)
    found = journals.read(path.parent)
    for entry in found.entries[-last:]:
        say(_journal_line(entry))
    say(_journal_summary(found, path.parent / journals.FILE))


def _journal_line(entry: "Entry") -> str:
    from tacit.formatting import size_of

    where = f"run {entry.run[:8] or '?'}" + ("" if entry.round is None else f", round {entry.round}")
    what = {
        "introduction": f"said {', '.join(entry.fields)}",
        "update": f"sent {', '.join(entry.fields) or 'nothing'}",
        "exchange": f"sent {', '.join(entry.fields)}",
        "refusal": f"refused: {entry.reason}",
        "failure": entry.reason,
    }.get(entry.kind, entry.kind)
    method = f" ({entry.method})" if entry.method else ""
    return f"{entry.at}  {where}{method}: {what}; {size_of(entry.bytes)}"


def _journal_summary(found: "Journal", path: Path) -> str:
    from tacit.formatting import size_of

    runs, total = len({entry.run for entry in found.entries}), sum(entry.bytes for entry in found.entries)
    text = f"In all {size_of(total)} in {len(found.entries)} replies to {runs} runs; every line is in {path}."
    if any(entry.privacy.get("noise") for entry in found.entries):
        epsilon, delta = found.privacy()
        text += f" All that was trained reveals at most ε = {epsilon:.3g} with δ = {delta:.0e} about one sample."
    if found.damaged:
        text += f" {found.damaged} lines cannot be read."
    if found.broken:
        text += f" WARNING: before {found.broken} lines, the journal was changed after it was written."
    return text


@app.command()
def watch(
    site: Annotated[Path, typer.Argument(help="The file site.toml, or its folder.")] = Path("site.toml"),
    port: Port = None,
    open: Open = False,
) -> None:
    """Show a live page for the owner of this site: what left, what never does, and how to leave."""
    from tacit.cli import watch as watching
    from tacit.deploy.settings import Site, load_settings
    from tacit.deploy.site_watch import site_panel

    path = _settings_file(site).absolute()
    load_settings(Site, path)
    watching.serve([], port, show=open, panels={"site": site_panel(path)}, only_panels=True)


@app.command("local-head")
def local_head(
    model: Annotated[Path, typer.Argument(help="The final model, model.safetensors from the hub.")],
    site: Annotated[Path, typer.Option(help="The file site.toml, or its folder.")] = Path("site.toml"),
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="File to write; default: local-model.safetensors.")
    ] = None,
) -> None:
    """Fit the model's last layer to this site's own labels; sends nothing.

    Shows the accuracy of the common model and of the new one on the site's test samples.
    """
    from tacit.deploy import local_head as heads

    found, path = heads.fit_site_head(_settings_file(site), model, out)
    say(f"On {found.held_out:,} test samples of {found.name}, which neither head was fitted to:")
    say(f"  {100 * found.common:.1f} % with the common head")
    say(f"  {100 * found.local:.1f} % with a head fitted to {found.labels:,} labels of this site")
    if not found.strength:
        say("The labels do not support another head, so both are the same.")
    say(f"{path}: only you can read it, and nothing has left this machine. Use it with")
    say(f"  tacit predict {quote(str(path))} SAMPLES")


@app.command("renew-key")
def renew_key(
    site: Annotated[Path, typer.Option(help="The file site.toml, or its folder.")] = Path("site.toml"),
) -> None:
    """Give this site a new pair of keys, in place of the old one."""
    from tacit.deploy import renewal
    from tacit.deploy.settings import Site, load_settings

    public, name = renewal.renew_site_key(_settings_file(site)), load_settings(Site, _settings_file(site)).name
    say(f"Send {public} to the hub, which replaces the key of this site with")
    say(f"  tacit hub remove {name}")
    say(f"  tacit hub add {name} {quote(public.name)}")
    say("Then join again.")


@app.command()
def unit(
    address: Annotated[str, typer.Argument(help="The hub's address, such as 192.0.2.7:8443.")],
    site: Annotated[Path, typer.Option(help="The file site.toml, or its folder.")] = Path("site.toml"),
) -> None:
    """Write a systemd unit that joins the hub in a sandbox."""
    from tacit.deploy import systemd

    path = systemd.write_site_unit(_settings_file(site), address)
    say(f"{path}: install it with")
    say(f"  sudo systemctl enable --now {quote(str(path))}")
