"""`tacit hub`: the coordinator of a federation of real machines."""

import sys
from importlib.util import find_spec
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from tacit.display import say
from tacit.errors import TacitError

app = typer.Typer(help="A hub: coordinate a federation of sites on machines of their own.", no_args_is_help=True)
Folder = Annotated[Path, typer.Option("--hub", help="The hub's folder.")]
Set = Annotated[list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Any setting, e.g. method.mu=0.1")]
HERE = Path()


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(help="For all that belongs to the hub; made when not there.")] = HERE,
    host: Annotated[str, typer.Option(help="IP address or name that sites reach this machine at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="One for everything.")] = 8443,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="No keys, no encryption: trials on one machine.")
    ] = False,
) -> None:
    """Write hub.toml and the certificates, and say what comes next; nothing is overwritten."""
    from tacit.catalog import check
    from tacit.deploy.folder import HubFolder
    from tacit.deploy.settings import Hub

    made = HubFolder.create(folder, Hub(**check(Hub, {"host": host, "port": port, "insecure": insecure}, "")))
    say(f"The hub is set up in {made.file}. Next:")
    if not insecure:
        say(f"  1. Give {made.authority_file.name} to every site; let each in by the public key it sends back:")
        say(f"       {made.command('add NAME KEY.pub')}")
    say(f"  {1 if insecure else 2}. Start it, and leave it running:")
    say(f"       {made.command('start')}")
    say(f"  {2 if insecure else 3}. Once the sites have joined {host}:{port}, play a run from another terminal:")
    say(f"       {made.command('run CONFIG.toml')}")


@app.command()
def add(
    name: Annotated[str, typer.Argument(help="The site's name, as in its site.toml.")],
    key: Annotated[Path, typer.Argument(help="Its public key, a file that ends in .pub.")],
    hub: Folder = HERE,
) -> None:
    """Let a site join, by its public key."""
    folder = _open(hub)
    from tacit.deploy import control

    at_once = control.add(folder, name, key)
    say(f"{name} may join" + ("." if at_once else " once the hub runs."))


@app.command()
def remove(name: Annotated[str, typer.Argument(help="The site's name.")], hub: Folder = HERE) -> None:
    """Let a site no longer join: its key is forgotten, and asked for again with `add`."""
    folder = _open(hub)
    from tacit.deploy import control

    at_once = control.remove(folder, name)
    say(f"{name} is let in no longer" + ("." if at_once else " once the hub runs."))


@app.command()
def start(hub: Folder = HERE) -> None:
    """Run the hub until Ctrl-C, which ends it and all it has started."""
    folder = _open(hub)
    from tacit.deploy import control, programs

    with programs.ending_in_order(), control.serving(folder) as superlink:
        names = ", ".join(folder.sites) if folder.sites else "any site"
        say(f"The hub listens at {folder.hub.host}:{folder.hub.port} for {names}. Ctrl-C ends it.")
        superlink.wait()
    raise TacitError(f"Flower's SuperLink ended: {programs.last_words(superlink.said())}; see {superlink.log}")


@app.command()
def describe(config: Path, set: Set = None, hub: Folder = HERE) -> None:
    """Write federation.toml: what sites need to check their data, and what would leave them, before a run."""
    folder = _open(hub)
    from tacit import config as configs
    from tacit.deploy import hub as hubs

    path = hubs.describe(folder, config, configs.assignments(set))
    say(f"{path}: give it to every site, for `tacit site check`.")


@app.command()
def run(config: Path, set: Set = None, hub: Folder = HERE) -> None:
    """Play a new run with the sites, and show its rounds; Ctrl-C stops it and it can be resumed."""
    folder = _open(hub)
    from tacit import config as configs
    from tacit.deploy.hub import prepare

    folder.need_running()
    _play(folder, prepare(folder, config, configs.assignments(set)))


@app.command()
def resume(
    run: Annotated[str, typer.Argument(help="Name or folder of a run, of `tacit hub status`.")], hub: Folder = HERE
) -> None:
    """Go on with a run after its last finished round, with the same sites."""
    folder = _open(hub)
    from tacit.deploy import control

    place = control.find_run(folder, run)
    standing = control.stand(place)
    if standing.playing:
        raise TacitError(f"{standing.name} is being played: see `{folder.command('status')}`, or wait for its end")
    if standing.done == standing.rounds:
        raise TacitError(f"{standing.name} is finished: look at it with `tacit report {quote(str(place))}`")
    _play(folder, place)


@app.command()
def status(hub: Folder = HERE) -> None:
    """Who may join, who has, and how far every run is."""
    folder, console = _open(hub), Console()
    from tacit.deploy import control

    running = folder.running()
    there = control.connected(folder) if running else {}
    say(f"The hub {'runs' if running else 'does not run'} at {folder.hub.host}:{folder.hub.port}.")
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("site")
    table.add_column("state")
    for name in sorted({*(folder.sites or ()), *there}):
        table.add_row(name, {"online": "connected"}.get(there.get(name, ""), "not connected"))
    if table.row_count:
        console.print(table, highlight=False)
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for head in ("run", "round", "state", "sites"):
        table.add_column(head, justify="right" if head == "round" else "left")
    troubles: list[str] = []
    for each in control.runs(folder):
        state = "playing" if each.playing else "finished" if each.done == each.rounds else "stopped"
        known = (f"{each.done}/{each.rounds}", state, ", ".join(each.sites))
        table.add_row(each.name, *(("", "broken", "") if each.trouble else known))
        troubles += [f"{each.name}: {each.trouble}"] if each.trouble else []
    if table.row_count:
        console.print(table, highlight=False)
    for trouble in troubles:
        say(trouble)


@app.command("app")
def write_app(
    out: Annotated[Path | None, typer.Argument(help="Where to; app/ in the hub's folder when not given.")] = None,
    hub: Folder = HERE,
) -> None:
    """Write the folder of Flower's app, for those who use `flwr run` themselves."""
    from tacit.deploy import apps

    folder = _open(hub)
    place = apps.write(out or folder.app, folder.folder)
    say(f"{place}: play a run with")
    home, app_folder = (quote(str(path)) for path in (folder.home, place))
    say(f"  FLWR_HOME={home} flwr run {app_folder} hub --stream --run-config 'config=\"CONFIG.toml\"'")


def _open(folder: Path) -> Any:
    """The hub in a folder. First of all, since most of what follows can not even be imported without Flower."""
    from tacit.deploy.folder import HubFolder

    if find_spec("flwr") is None:
        raise TacitError("a hub needs Flower: pip install 'tacit[flower]'")
    return HubFolder.open(folder)


def _play(folder: Any, run: Path) -> None:
    from tacit.deploy import control, programs

    say(f"{run.name}: playing in {run}")
    try:
        with programs.ending_in_order():
            control.play(folder, run, say)
    except KeyboardInterrupt:
        done = control.stand(run)
        again = folder.command(f"resume {run.name}")
        said = f"stopped after round {done.done} of {done.rounds}; go on with: {again}"
        print(said, file=sys.stderr)
        raise
    say(f"saved in {run}")
