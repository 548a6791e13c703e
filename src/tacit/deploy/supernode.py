"""`tacit site join`: run Flower's SuperNode for a site, and explain what happens to it in plain words."""

import ipaddress
import socket
import ssl
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tacit import engines
from tacit.deploy import flower_cli, fork_server
from tacit.deploy.clock import require_clock
from tacit.deploy.consent import checked_consent
from tacit.deploy.flower_cli import SuperNodeEvent, SuperNodeFailure
from tacit.deploy.processes import port_is_free, wait_for_port
from tacit.deploy.settings import ANY_RUN, HUB_ADDRESS, SITE_FILE, Site, load_settings, resolve_path
from tacit.deploy.site_errors import printed_reason
from tacit.errors import TacitError
from tacit.storage import Tail

Notify = Callable[[str], None]  # shows a line to a person

HEARTBEAT_SECONDS = 150.0  # by then the hub has noticed that a killed site missed its heartbeat
RETRY_SECONDS = 5.0
_PROGRAM = Path(engines.__file__).parent / "flower" / "supernode.py"  # Flower's SuperNode, with waits that end

_EVENTS = {
    SuperNodeEvent.JOINED: "joined as {name}; waiting for work (Ctrl-C to leave)",
    SuperNodeEvent.RECONNECTED: "connected to the hub again",
    SuperNodeEvent.TRAINING: "training for a round",
    SuperNodeEvent.IDENTIFYING: "identifying this site to the hub",
}


def command(path: Path, site: Site, address: str, *, any_run: bool = False) -> list[str]:
    """The command that starts a site's SuperNode."""
    options: dict[str, object] = {"superlink": address, "host": "127.0.0.1", "port": site.port}
    options["insecure"] = site.certificate is None
    if site.certificate is not None:
        options["root-certificates"] = _certificate(path, site.certificate)
    if site.key is not None:
        remedy = "restore it, or create a new pair and send its .pub to the hub"
        options["auth-supernode-private-key"] = _existing(path, site.key, remedy)
    anything = f" {ANY_RUN}=true" if any_run else ""
    options["node-config"] = f'{SITE_FILE}="{path.absolute()}" {HUB_ADDRESS}="{address}"{anything}'
    flower_cli.find_program("flower-supernode")  # refuses to go on without Flower
    return [sys.executable, "-I", str(_PROGRAM), str(_home(path)), *flower_cli.options(options)]


def _home(path: Path) -> Path:
    """Flower's folder of the site with the settings file `path`."""
    return path.absolute().parent / "flower"


def _existing(path: Path, name: str, remedy: str) -> Path:
    found = resolve_path(path, name)
    if not found.exists():
        raise TacitError(
            f"there is no {found}, which {path} names", f"{remedy}, or correct {path}", code="site.missing-file"
        )
    return found


def _certificate(path: Path, name: str) -> Path:
    """The authority's certificate; with any other file a SuperNode retries forever."""
    found = _existing(path, name, "get it from the hub")
    try:
        ssl.create_default_context(cafile=str(found))
    except OSError as error:
        raise TacitError(
            f"{found} is not a certificate", "get ca.crt from the hub again", code="site.broken-certificate"
        ) from error
    return found


def _check_agreement(path: Path, site: Site, host: str, notify: Notify, *, any_run: bool) -> None:
    """Refuse early what would be refused in every run, and say what the site has agreed to."""
    if site.data is not None:
        _existing(path, site.data, "give the path of an image folder, a .csv, a .npz or a .parquet")
    if not any_run:
        agreed = checked_consent(path, site).config
        notify(f"agreed to runs of {agreed.method_name} with up to {agreed.rounds} rounds, as checked")
    elif _is_this_machine(host):
        notify("WARNING: with --any-run the hub decides what leaves this site; use it for trials only")
    else:
        raise TacitError(
            f"--any-run is for trials on one machine, and the hub is at {host}",
            "get federation.toml from the hub and run `tacit site check`",
            code="site.any-run-elsewhere",
        )


def _is_this_machine(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def join(path: Path, address: str, notify: Notify, *, any_run: bool = False) -> None:
    """Take part in the hub's runs until interrupted; raises why the hub refuses this site, if it does.

    The site takes part only in the run it has agreed to; with `any_run`, in every run of a hub on this machine.
    """
    site = load_settings(Site, path)
    host, port = _parse_address(address)
    words = command(path, site, address, any_run=any_run)
    _check_agreement(path, site, host, notify, any_run=any_run)
    if not port_is_free("127.0.0.1", site.port):
        raise TacitError(
            f"port {site.port} is in use on this machine", f"set another port in {path}", code="site.port-in-use"
        )
    if not _responds(host, port):
        notify(f"nothing responds at {address} yet; waiting for the hub")
    authority = None if site.certificate is None else resolve_path(path, site.certificate)
    require_clock(address, authority)
    home = _home(path)
    log = home / "join.log"
    joined_before, until = flower_cli.has_joined(log), time.monotonic() + HEARTBEAT_SECONDS
    while True:
        output = _run_supernode(words, home, log, site, notify)
        unknown = flower_cli.supernode_failure(output) is SuperNodeFailure.UNKNOWN_KEY
        if not unknown or not joined_before or time.monotonic() > until:
            require_clock(address, authority)  # it may have gone wrong since, or the hub was not there before
            raise refusal(output, site, address, log)
        notify("the hub has not noticed yet that this site was gone; retrying")
        time.sleep(RETRY_SECONDS)


def _run_supernode(words: list[str], home: Path, log: Path, site: Site, notify: Notify) -> str:
    """Run the SuperNode, and the fork server for its clients, until the SuperNode ends; its output."""
    tail = Tail(log)
    with tempfile.TemporaryDirectory() as folder:  # readable by its owner only, and with a short path for the socket
        socket_path = Path(folder) / "socket"
        secret = flower_cli.new_secret(home / "executor.secret")
        # Before anything starts: what is not found there is Flower's own, which runs the programs that a hub sends.
        fork_server.write_launchers(home / "bin", socket_path)
        with (
            flower_cli.running(fork_server.command(socket_path), home, home / "fork_server.log"),
            flower_cli.running([*words, *flower_cli.guarded(secret)], home, log) as node,
        ):
            if not wait_for_port(node, "127.0.0.1", site.port, flower_cli.START_SECONDS):
                return node.output()
            executor = flower_cli.executor_command(f"127.0.0.1:{site.port}", secret)
            with flower_cli.running(executor, home, log) as started:
                while node.exit_code() is None and started.exit_code() is None:
                    _report(tail.lines(), site, notify)
                    time.sleep(0.3)
                return node.output()


def _parse_address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise TacitError(
            f"'{text}' is not the address of a hub",
            "give host and port, such as 192.0.2.7:8443",
            code="site.bad-address",
        )
    return host.strip("[]"), int(port)


def _responds(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=5):
            return True
    except socket.gaierror as error:
        raise TacitError(
            f"there is no host {host}", "check the address that the hub gave you", code="site.unknown-host"
        ) from error
    except OSError:
        return False


def _report(lines: list[str], site: Site, notify: Notify) -> None:
    """Show what the lines of the SuperNode's log mean to a person."""
    for line in lines:
        if event := flower_cli.supernode_event(line):
            notify(_EVENTS[event].format(name=site.name))
        if reason := printed_reason(line):
            notify(reason)


def refusal(output: str, site: Site, address: str, log: Path) -> TacitError:
    """Why a SuperNode ended, from its output."""
    match flower_cli.supernode_failure(output):
        case SuperNodeFailure.UNKNOWN_KEY:
            return TacitError(
                "the hub does not know this site's key",
                f"have it added there with `tacit hub add {site.name} KEY.pub`",
                code="site.unknown-key",
            )
        case SuperNodeFailure.NO_KEY:
            return TacitError(
                "the hub requires a key and site.toml names none",
                "create the settings and keys with `tacit site init`",
                code="site.no-key",
            )
        case SuperNodeFailure.WRONG_ADDRESS | SuperNodeFailure.WRONG_HOST:
            return TacitError(
                f"the hub's certificate is not for {address}",
                "use the address that was given to `tacit hub init --host`",
                code="site.wrong-host",
            )
        case SuperNodeFailure.EXPIRED:
            return TacitError(
                "the hub's certificate has expired",
                "have it renewed with `tacit hub renew`",
                code="site.expired-certificate",
            )
        case SuperNodeFailure.WRONG_CERTIFICATE:
            return TacitError(
                f"{site.certificate} does not belong to the hub at {address}",
                "get ca.crt from that hub",
                code="site.wrong-certificate",
            )
        case None:
            return TacitError(
                f"Flower's SuperNode ended: {flower_cli.last_lines(output, 2)}", f"see {log}", code="flower.supernode"
            )
