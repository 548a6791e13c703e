"""A hub's folder: what is where, and the commands of Flower that follow from it.

hub.toml       the settings
ca.crt         the authority's certificate, for every site
server.pem     the hub's own certificate; private/server.key its key
sites/         a public key per site that may join, NAME.pub
flower/        Flower's own: connection, state, logs, and which node has which site's key
app/           what Flower runs at the hub and at every site
runs/          one folder per run
"""

import fcntl
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from shlex import quote

import tomli_w

from tacit.deploy import certificates, programs
from tacit.deploy.files import OPEN, SECRET, write_new
from tacit.deploy.settings import Hub, beside, load, settings_text
from tacit.engines.memory import write_durably
from tacit.errors import TacitError

CONNECTION = "hub"  # by this name Flower's programs know the hub
EVERY = ("0.0.0.0", "::")  # listens at all addresses of this machine


@dataclass(frozen=True)
class HubFolder:
    """A folder with a `hub.toml`."""

    folder: Path

    @classmethod
    def create(cls, folder: Path, hub: Hub) -> "HubFolder":
        """A new hub, with certificates unless it is insecure."""
        made = cls(folder.absolute())
        if made.file.exists():
            raise TacitError(f"{made.file} is there already: choose another folder, or change the settings in it")
        text = settings_text(Hub, {"host": hub.host, "port": hub.port, "insecure": hub.insecure}, "A hub.")
        files = {made.file: (text.encode(), OPEN)}
        if not hub.insecure:
            new = certificates.create(hub.host)
            files |= {made.authority_file: (new.authority, OPEN), made.certificate: (new.certificate, OPEN)}
            files[made.key] = new.key, SECRET
        write_new(made.folder, {str(path.relative_to(made.folder)): file for path, file in files.items()})
        return made

    @classmethod
    def open(cls, folder: Path) -> "HubFolder":
        """A hub that is there."""
        found = cls(folder.absolute())
        if not found.file.exists():
            raise TacitError(f"there is no hub in {folder}: make one with `tacit hub init`, or name its folder")
        missing = [path for path in (found.authority_file, found.certificate, found.key) if not path.exists()]
        if missing and not found.hub.insecure:
            raise TacitError(f"the certificate {missing[0]} is missing: make a hub with `tacit hub init` elsewhere")
        hub = found.hub
        if hub.listen not in (None, hub.host, *EVERY, *certificates.EVERYWHERE) and not hub.insecure:
            raise TacitError(
                f"{found.file}: listen = '{hub.listen}' is not in the hub's certificate, so that its own programs can "
                "not reach it: leave listen out, or use '0.0.0.0'"
            )
        return found

    @property
    def file(self) -> Path:
        """The settings."""
        return self.folder / "hub.toml"

    @cached_property
    def hub(self) -> Hub:
        """What is in them."""
        return load(Hub, self.file)

    @property
    def authority_file(self) -> Path:
        """The certificate that sites check the hub's by."""
        return self.folder / "ca.crt"

    @property
    def authority(self) -> Path | None:
        """The same, None where nothing is encrypted."""
        return None if self.hub.insecure else self.authority_file

    @property
    def certificate(self) -> Path:
        """The hub's own."""
        return self.folder / "server.pem"

    @property
    def key(self) -> Path:
        """Of the hub's certificate, for nobody else to read."""
        return self.folder / "private" / "server.key"

    @property
    def home(self) -> Path:
        """Flower's own folder."""
        return self.folder / "flower"

    @property
    def database(self) -> Path:
        """What Flower remembers: nodes, their keys, runs."""
        return self.home / "state.db"

    @property
    def app(self) -> Path:
        """What Flower runs."""
        return self.folder / "app"

    @property
    def runs(self) -> Path:
        """The folder of the runs."""
        return beside(self.file, self.hub.runs)

    @property
    def keys(self) -> dict[str, Path]:
        """The public key of each site that may join."""
        return {path.stem: path for path in sorted((self.folder / "sites").glob("*.pub"))}

    @property
    def sites(self) -> list[str] | None:
        """The sites that are expected, sorted; None where the first to join are taken."""
        names = self.hub.sites or (None if self.hub.insecure else list(self.keys))
        return sorted(set(names)) if names else None

    @property
    def address(self) -> str:
        """Where this machine's own programs reach the hub."""
        listen = self.hub.listen or self.hub.host
        host = "127.0.0.1" if listen in EVERY else listen
        return f"[{host}]:{self.hub.port}" if ":" in host else f"{host}:{self.hub.port}"

    def accepted(self) -> dict[int, tuple[str, str]]:
        """The name and the public key of each node that Flower lets in."""
        file = self.home / "nodes.json"
        if self.hub.insecure or not file.exists():
            return {}
        try:
            told = json.loads(file.read_text(encoding="utf-8"))
            return {int(node): (str(name), str(key)) for node, (name, key) in told.items()}
        except (ValueError, TypeError, AttributeError) as error:
            raise TacitError(f"{file} is broken: {self.anew}") from error

    def accept(self, nodes: Mapping[int, tuple[str, str]]) -> None:
        """Remember these."""
        write_durably(self.home / "nodes.json", json.dumps(dict(nodes)).encode())

    @contextmanager
    def alone(self) -> Iterator[None]:
        """While the block runs nobody else changes who is accepted, here or at Flower; whoever comes second waits."""
        self.home.mkdir(parents=True, exist_ok=True, mode=0o700)
        with (self.home / "nodes.lock").open("wb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    @property
    def anew(self) -> str:
        """What helps when Flower's memory of the sites and the hub's do not fit."""
        return f"end the hub, move {self.home} away, start the hub again, and have all sites join again"

    def nodes(self) -> dict[int, str]:
        """Which site's key each node has, as far as keys are in use."""
        return {node: name for node, (name, _) in self.accepted().items()}

    def superlink(self) -> list[str]:
        """The command that starts the SuperLink."""
        hub = self.hub
        options: dict[str, object] = {
            "host": hub.listen or hub.host,
            "port": hub.port,
            "database": self.database,
            "disable-runtime-dependency-installation": True,
        }
        if hub.insecure:
            options["insecure"] = True
        else:
            options |= {"ssl-certfile": self.certificate, "ssl-keyfile": self.key, "enable-supernode-auth": True}
            options["ssl-ca-certfile"] = self.authority_file
        return [programs.find("flower-superlink"), *programs.arguments(options)]

    def connect(self) -> None:
        """Tell Flower's programs where the hub is."""
        self.home.mkdir(parents=True, exist_ok=True, mode=0o700)
        way = {"insecure": True} if self.hub.insecure else {"root-certificates": str(self.authority_file)}
        connection = {"default": CONNECTION, CONNECTION: {"address": self.address} | way}
        (self.home / "config.toml").write_text(tomli_w.dumps({"superlink": connection}), encoding="utf-8")

    def running(self) -> bool:
        """Whether the hub's SuperLink answers."""
        return programs.healthy(self.address, self.authority)

    def need_running(self) -> None:
        """Refuse what needs the SuperLink when there is none."""
        if not self.running():
            raise TacitError(f"the hub does not run: start it with `{self.command('start')}` in another terminal")

    def command(self, words: str) -> str:
        """A command of `tacit hub` for this hub, as typed where this program was started."""
        return f"tacit hub {words}" + ("" if self.folder == Path.cwd() else f" --hub {quote(str(_near(self.folder)))}")


def _near(folder: Path) -> Path:
    return folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder
