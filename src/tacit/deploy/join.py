"""A site takes part: Flower's SuperNode for it, and in plain words what that meets."""

import re
import socket
import ssl
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tacit.deploy import programs, warm
from tacit.deploy.description import read_federation
from tacit.deploy.files import Tail
from tacit.deploy.settings import REFUSED, Site, agreed, beside, load
from tacit.errors import TacitError

Say = Callable[[str], None]

UNKNOWN = "[code: 2004]"  # by which a SuperNode is told that it is not let in
NOTICED = 150.0  # seconds after which the hub has surely missed the heartbeat of a site that was killed
AGAIN = 5.0  # seconds between two tries

WRONG_NAME = "the hub's certificate is not for {address}: use the address that `tacit hub init --host` was given"

# What the SuperNode says when it is not let in, what that means, and what to do; the first that fits counts.
REASONS = {
    UNKNOWN: "the hub does not know this site's key: have it added there with `tacit hub add {name} KEY.pub`",
    "[code: 2001]": "the hub asks for a key and site.toml names none: mend it as `tacit site init` does",
    "IP address mismatch": WRONG_NAME,
    "Hostname mismatch": WRONG_NAME,
    "certificate has expired": "the hub's certificate has expired: have the hub set up anew with `tacit hub init`",
    "CERTIFICATE_VERIFY_FAILED": "the hub at {address} is not the one that {certificate} is of: get ca.crt from it",
}
MARKS = {
    "SuperNode ID": "joined as {name}; waiting for work (Ctrl-C to leave)",
    "Connection successful after": "the hub is back",
}


def command(path: Path, site: Site, address: str) -> list[str]:
    """The command that starts a site's SuperNode."""
    options: dict[str, object] = {"superlink": address, "port": site.port, "insecure": site.certificate is None}
    if site.certificate is not None:
        options["root-certificates"] = _certificate(path, site.certificate)
    if site.key is not None:
        remedy = "bring it back, or make a new pair and have its .pub added at the hub"
        options["auth-supernode-private-key"] = _there(path, site.key, remedy)
    options["node-config"] = f'site="{path.absolute()}"'
    return [programs.find("flower-supernode"), *programs.arguments(options)]


def _there(path: Path, name: str, remedy: str) -> Path:
    found = beside(path, name)
    if not found.exists():
        raise TacitError(f"there is no {found}, which {path} names: {remedy}, or mend {path}")
    return found


def _certificate(path: Path, name: str) -> Path:
    """The hub's, if it is one: a SuperNode with another file tries for ever."""
    found = _there(path, name, "get it from the hub")
    try:
        ssl.create_default_context(cafile=str(found))
    except OSError as error:
        raise TacitError(f"{found} is no certificate: get ca.crt from the hub again") from error
    return found


def _refuse_early(path: Path, site: Site) -> None:
    """What every run would be refused for, said before the hub is asked; `tacit site check` looks closer."""
    if site.data is not None:
        _there(path, site.data, "give the path of an image folder, a .csv or a .npz")
    if file := agreed(path, site):
        read_federation(file)


def join(path: Path, address: str, say: Say) -> None:
    """Take part until interrupted; a refusal is said in one sentence."""
    site = load(Site, path)
    host, port = _address(address)
    words = command(path, site, address)
    _refuse_early(path, site)
    if not programs.free("127.0.0.1", site.port):
        raise TacitError(f"port {site.port} is in use on this machine: set another port in {path}")
    if not _answers(host, port):
        say(f"nothing answers at {address} yet; waiting for the hub")
    if not agreed(path, site):
        say(f"there is no {site.federation}: this site takes part in whatever run the hub starts")
    home = path.absolute().parent / "flower"
    log = home / "join.log"
    was_in, until = log.exists() and "SuperNode ID" in log.read_text(errors="replace"), time.monotonic() + NOTICED
    while True:
        said = _take_part(words, home, log, site, say)
        if UNKNOWN not in said or not was_in or time.monotonic() > until:
            raise TacitError(refusal(said, site, address, log))
        say("the hub has not noticed yet that this site was gone; trying again")
        time.sleep(AGAIN)


def _take_part(words: list[str], home: Path, log: Path, site: Site, say: Say) -> str:
    """Run the SuperNode until it ends by itself, and beside it what its clients are forked from; what it said."""
    tail = Tail(log)
    with (
        tempfile.TemporaryDirectory() as den,  # for its owner alone, and with a short path, as sockets need
        programs.running(warm.command(Path(den) / "door"), home, home / "warm.log"),
        programs.running(words, home, log) as node,
    ):
        warm.write_program(home / "bin", Path(den) / "door")
        while node.ended() is None:
            _pass_on(tail.lines(), site, say)
            time.sleep(0.3)
        return node.said()


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise TacitError(f"'{text}' is not the address of a hub: give host and port, such as 192.0.2.7:8443")
    return host.strip("[]"), int(port)


def _answers(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=5):
            return True
    except socket.gaierror as error:
        raise TacitError(f"there is no host {host}: check the address that the hub gave you") from error
    except OSError:
        return False


def _pass_on(lines: list[str], site: Site, say: Say) -> None:
    """Say what a person wants to know of what the SuperNode says."""
    for line in lines:
        if found := re.search(r"Receiving: (train|query) message", line):
            say("training for a round" if found.group(1) == "train" else "telling the hub who this is")
        if REFUSED in line:
            say(f"not taking part: {line.partition(REFUSED)[2].strip()}")
        for mark, words in MARKS.items():
            if mark in line:
                say(words.format(name=site.name))


def refusal(said: str, site: Site, address: str, log: Path) -> str:
    """Why a SuperNode ended by itself."""
    for mark, words in REASONS.items():
        if mark in said:
            return words.format(name=site.name, address=address, certificate=site.certificate)
    return f"Flower's SuperNode ended: {programs.last_words(said, 2)}; see {log}"
