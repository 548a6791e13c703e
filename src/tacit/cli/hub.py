"""`tacit hub`: the coordinator of a federation of real machines."""

import sys
from importlib.util import find_spec
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from tacit.cli.options import From, Open, Port
from tacit.errors import TacitError
from tacit.runs.assignments import assignments
from tacit.runs.directory import RunDirectory
from tacit.runs.followers.progress import say, say_wrapped

if TYPE_CHECKING:
    from tacit.deploy.hub_directory import HubDirectory

app = typer.Typer(help="A hub: coordinate a federation of sites on separate machines.", no_args_is_help=True)
Folder = Annotated[Path, typer.Option("--hub", help="The hub's folder.")]
Config = Annotated[Path, typer.Argument(help="A TOML config, as for `tacit run`.")]
Set = Annotated[list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Any setting, e.g. method.mu=0.1")]
HERE = Path()


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(help="The hub's folder; created if it does not exist.")] = HERE,
    host: Annotated[str, typer.Option(help="IP address or name at which sites reach this machine.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The only port that sites need.")] = 8443,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="No keys, no encryption: for trials on one machine.")
    ] = False,
) -> None:
    """Create a hub: hub.toml and certificates; overwrites nothing."""
    from tacit.deploy.hub_directory import HubDirectory
    from tacit.deploy.settings import Hub
    from tacit.runs.settings import check

    made = HubDirectory.create(folder, Hub(**check(Hub, {"host": host, "port": port, "insecure": insecure}, "")))
    say(f"The hub is set up in {made.settings_file}. Next:")
    if not insecure:
        say(f"  1. Give {made.authority_file.name} to every site, and add the public key that each sends back:")
        say(f"       {made.command('add NAME KEY.pub')}")
    say(f"  {1 if insecure else 2}. Start it, and leave it running:")
    say(f"       {made.command('start')}")
    say(f"  {2 if insecure else 3}. Once the sites have joined {host}:{port}, start a run in another terminal:")
    say(f"       {made.command('run CONFIG.toml')}")


@app.command()
def add(
    name: Annotated[str, typer.Argument(help="The site's name, as in its site.toml.")],
    key: Annotated[Path, typer.Argument(help="Its public key, a file that ends in .pub.")],
    hub: Folder = HERE,
) -> None:
    """Let a site join, by its public key."""
    directory = _open(hub)
    from tacit.deploy import hub_sites

    at_once = hub_sites.add_site(directory, name, key)
    say(f"{name} may join" + ("." if at_once else " once the hub runs."))


@app.command()
def remove(name: Annotated[str, typer.Argument(help="The site's name.")], hub: Folder = HERE) -> None:
    """Remove a site and its public key, so that it can no longer join."""
    directory = _open(hub)
    from tacit.deploy import hub_sites

    at_once = hub_sites.remove_site(directory, name)
    say(f"{name} can no longer join" + ("." if at_once else " once the hub runs."))


@app.command()
def start(hub: Folder = HERE) -> None:
    """Run the hub until you press Ctrl-C."""
    directory = _open(hub)
    from tacit.deploy import hub_service, processes

    with processes.interrupt_on_termination(), hub_service.serving(directory) as service:
        names = ", ".join(directory.expected_sites) if directory.expected_sites else "any site"
        say(f"The hub listens at {directory.settings.host}:{directory.settings.port} for {names}. Ctrl-C stops it.")
        ended = service.wait()
    raise ended


@app.command()
def renew(
    hub: Folder = HERE,
    authority: Annotated[
        bool, typer.Option("--authority", help="Create another authority, whose ca.crt every site then needs.")
    ] = False,
) -> None:
    """Renew the hub's certificate; sites stay connected."""
    directory = _open(hub)
    from tacit.deploy import renewal

    if authority:
        renewal.renew_authority(directory)
        say(f"Give {directory.authority_file} to every site. When all have it, run `{directory.command('renew')}`.")
        return
    until = renewal.renew_certificate(directory)
    say(f"The new certificate is valid until {until:%Y-%m-%d}. Restart the hub to use it.")


@app.command()
def unit(hub: Folder = HERE) -> None:
    """Write a systemd unit that runs the hub in a sandbox."""
    directory = _open(hub)
    from tacit.deploy import systemd

    path = systemd.write_hub_unit(directory)
    say(f"{path}: install it with")
    say(f"  sudo systemctl enable --now {quote(str(path))}")


@app.command()
def describe(config: Config, set: Set = None, hub: Folder = HERE) -> None:
    """Write federation.toml, which sites need to check their data."""
    directory = _open(hub)
    from tacit.deploy.hub import write_federation_file

    path = write_federation_file(directory, config, assignments(set), say_wrapped)
    say(f"{path}: give it to every site, for `tacit site check`.")


@app.command()
def run(config: Config, set: Set = None, hub: Folder = HERE) -> None:
    """Start a new run with the sites and show its rounds."""
    directory = _open(hub)
    from tacit.deploy.hub import create_run

    directory.require_running()
    _run_to_end(directory, create_run(directory, config, assignments(set), notify=say_wrapped))


@app.command()
def resume(
    run: Annotated[str, typer.Argument(help="Name of a run, see `tacit hub status`, or its folder.")],
    start: From = None,
    without: Annotated[
        list[str] | None, typer.Option(metavar="SITE", help="Leave out this site from now on; can be repeated.")
    ] = None,
    hub: Folder = HERE,
) -> None:
    """Continue a run after its last finished round, with the same sites.

    `--from 0 --without SITE` replays the whole run without that site's data.
    """
    directory = _open(hub)
    from tacit.deploy import hub_admin

    folder = hub_admin.find_run(directory, run)
    status = hub_admin.run_status(folder)
    if status.state == "running":
        raise TacitError(
            f"{status.name} is running", f"wait for its end; see `{directory.command('status')}`", code="run.locked"
        )
    if status.state == "finished" and start is None:
        raise TacitError(
            f"{status.name} is finished",
            f"see its result with `tacit report {quote(str(folder))}`",
            code="run.finished",
        )
    if start is not None or without:
        directory.require_running()
        hub_admin.return_to(folder, start, without or ())
    _run_to_end(directory, folder)


@app.command()
def stop(
    run: Annotated[str, typer.Argument(help="Name of a run, see `tacit hub status`, or its folder.")],
    hub: Folder = HERE,
) -> None:
    """End a run in progress; `tacit hub resume` continues it."""
    directory = _open(hub)
    from tacit.deploy import hub_admin

    folder = hub_admin.find_run(directory, run)
    hub_admin.stop_run(directory, folder)
    say(f"{folder.name} is stopped; continue with: {hub_admin.resume_command(directory, folder)}")


@app.command()
def status(hub: Folder = HERE) -> None:
    """Show which sites are connected, and how far every run is."""
    directory, console = _open(hub), Console()
    from tacit.deploy import hub_admin, hub_sites, renewal

    running = directory.is_running()
    states = hub_sites.site_states(directory) if running else {}
    verb = "runs" if running else "does not run"
    say(f"The hub {verb} at {directory.settings.host}:{directory.settings.port}.")
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("site")
    table.add_column("state")
    for name in sorted({*(directory.expected_sites or ()), *states}):
        table.add_row(name, "connected" if states.get(name) else "not connected")
    if table.row_count:
        console.print(table, highlight=False)
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for head in ("run", "round", "state", "sites"):
        table.add_column(head, justify="right" if head == "round" else "left")
    runs = hub_admin.list_runs(directory)
    for each in runs:
        rounds = "" if each.problem else f"{each.finished}/{each.rounds}"
        table.add_row(each.name, rounds, each.state, ", ".join(each.sites))
    if table.row_count:
        console.print(table, highlight=False)
    if ends := renewal.certificate_ends(directory):
        say(f"The hub's certificate ends on {ends:%Y-%m-%d}; renew it with `{directory.command('renew')}`.")
    for each in runs:
        if line := each.problem or each.current_line:
            say(f"{each.name}: {line}")


@app.command()
def watch(hub: Folder = HERE, port: Port = None, open: Open = False) -> None:
    """Show a live page about the hub, its sites and its runs, until Ctrl-C; it never changes anything."""
    directory = _open(hub)
    from tacit.cli import watch as watching
    from tacit.deploy import hub_watch

    panels = {f"hub {directory.path}": hub_watch.hub_panel(directory.path)}
    watching.serve(hub_watch.run_folders(directory), port, show=open, panels=panels)


@app.command("app")
def write_app(
    out: Annotated[Path | None, typer.Argument(help="Where to write it; default: app/ in the hub's folder.")] = None,
    hub: Folder = HERE,
) -> None:
    """Write the folder of Flower's app, to use `flwr run` yourself."""
    from tacit.deploy import apps

    directory = _open(hub)
    folder = apps.write(out or directory.app_folder)
    settings = apps.run_settings(hub=directory.path, config=Path("CONFIG.toml"))
    say(f"{folder}: while the hub runs, start a run with")
    home, flwr, app_folder = (
        quote(str(path)) for path in (directory.flower_home, directory.flower_home / "bin" / "flwr", folder)
    )
    say(f"  FLWR_HOME={home} {flwr} run {app_folder} hub --stream --run-config {quote(settings)}")


def _open(folder: Path) -> "HubDirectory":
    """The hub in a folder. Called first: without Flower most other modules cannot be imported."""
    from tacit.deploy.hub_directory import HubDirectory

    if find_spec("flwr") is None:
        raise TacitError("a hub needs Flower", "pip install 'tacit[flower]'", code="flower.missing")
    return HubDirectory.open(folder)


def _run_to_end(directory: "HubDirectory", folder: Path) -> None:
    from tacit.deploy import hub_admin, processes

    say(f"{folder.name}: running in {folder}")
    try:
        with processes.interrupt_on_termination():
            hub_admin.run_to_end(directory, folder, say)
    except KeyboardInterrupt:
        print(RunDirectory(folder).interrupted(hub_admin.resume_command(directory, folder)), file=sys.stderr)
        raise
    say(f"saved in {folder}")
