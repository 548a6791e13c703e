"""A hub's folder: its files, and the commands of Flower that follow from them.

hub.toml       the settings
ca.crt         the authority's certificate, for every site
server.pem     the hub's certificate; private/ has its key, server.key, and the authority's, ca.key
sites/         the public key of each site that may join, NAME.pub
flower/        Flower's folder: connection, secrets, database, logs, and which node has which site's key
app/           the app that Flower runs at the hub and at every site
runs/          one folder per run
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from shlex import quote

import tomli_w

from tacit.deploy import certificates, flower_cli, gateway
from tacit.deploy.settings import Hub, load_settings, resolve_path, settings_toml
from tacit.errors import TacitError
from tacit.storage import OPEN, SECRET, in_turn, write_durably, write_new

CONNECTION = "hub"  # the name of the hub in the settings of Flower's programs
INTRODUCTIONS = "introductions.json"  # in a run's folder: what each site said about itself when it was last asked
LOOPBACK = "127.0.0.1"  # where the SuperLink listens, whatever the settings say
ANY_ADDRESS = ("0.0.0.0", "::")  # listen on all addresses of this machine


@dataclass(frozen=True)
class HubDirectory:
    """A folder with a `hub.toml`."""

    path: Path

    @classmethod
    def create(cls, path: Path, hub: Hub) -> "HubDirectory":
        """A new hub, with certificates unless it is insecure."""
        made = cls(path.absolute())
        if made.settings_file.exists():
            raise TacitError(
                f"{made.settings_file} already exists",
                "choose another folder, or change the settings in it",
                code="hub.exists",
            )
        text = settings_toml(Hub, {"host": hub.host, "port": hub.port, "insecure": hub.insecure}, "A hub.")
        files = {made.settings_file: (text.encode(), OPEN)}
        if not hub.insecure:
            authority = certificates.create_authority(hub.host)
            server = certificates.issue(hub.host, authority)
            files |= {
                made.authority_file: (authority.certificate, OPEN),
                made.certificate_file: (server.certificate, OPEN),
            }
            files |= {made.authority_key_file: (authority.key, SECRET), made.key_file: (server.key, SECRET)}
        write_new(made.path, {str(file.relative_to(made.path)): content for file, content in files.items()})
        return made

    @classmethod
    def open(cls, path: Path) -> "HubDirectory":
        """An existing hub."""
        found = cls(path.absolute())
        if not found.settings_file.exists():
            raise TacitError(
                f"there is no hub in {path}", "create one with `tacit hub init`, or give its folder", code="hub.none"
            )
        missing = [file for file in (found.authority_file, found.certificate_file, found.key_file) if not file.exists()]
        if missing and not found.settings.insecure:
            raise TacitError(
                f"the certificate {missing[0]} is missing",
                "restore it, or create a new hub elsewhere with `tacit hub init`",
                code="hub.no-certificate",
            )
        return found

    @property
    def settings_file(self) -> Path:
        """The settings, hub.toml."""
        return self.path / "hub.toml"

    @cached_property
    def settings(self) -> Hub:
        """The settings in hub.toml."""
        return load_settings(Hub, self.settings_file)

    @property
    def authority_file(self) -> Path:
        """The certificate with which sites verify the hub's."""
        return self.path / "ca.crt"

    @property
    def authority(self) -> Path | None:
        """The same; None if nothing is encrypted."""
        return None if self.settings.insecure else self.authority_file

    @property
    def certificate_file(self) -> Path:
        """The hub's certificate."""
        return self.path / "server.pem"

    @property
    def key_file(self) -> Path:
        """The private key of the hub's certificate."""
        return self.path / "private" / "server.key"

    @property
    def authority_key_file(self) -> Path:
        """The private key of the authority, which only a renewal needs."""
        return self.path / "private" / "ca.key"

    @property
    def flower_home(self) -> Path:
        """Flower's folder."""
        return self.path / "flower"

    @property
    def database(self) -> Path:
        """Flower's database of nodes, their keys, and runs."""
        return self.flower_home / "state.db"

    @property
    def app_folder(self) -> Path:
        """The app that Flower runs."""
        return self.path / "app"

    @property
    def runs_folder(self) -> Path:
        """The folder of the runs."""
        return resolve_path(self.settings_file, self.settings.runs)

    @property
    def site_keys(self) -> dict[str, Path]:
        """The public key of each site that may join."""
        return {path.stem: path for path in sorted((self.path / "sites").glob("*.pub"))}

    @property
    def expected_sites(self) -> list[str] | None:
        """The sites that should take part, sorted; None if the first to join do."""
        names = self.settings.sites or (None if self.settings.insecure else list(self.site_keys))
        return sorted(set(names)) if names else None

    @property
    def local_host(self) -> str:
        """The host at which this machine reaches the gateway."""
        listen = self.settings.listen or self.settings.host
        return LOOPBACK if listen in ANY_ADDRESS else listen

    @property
    def address(self) -> str:
        """Where sites on this machine reach the hub."""
        host = f"[{self.local_host}]" if ":" in self.local_host else self.local_host
        return f"{host}:{self.settings.port}"

    @property
    def superlink_address(self) -> str:
        """Where the hub's own programs reach the SuperLink, once it has been started."""
        return f"{LOOPBACK}:{self._superlink_port()}"

    @property
    def operator_secret(self) -> Path:
        """The secret without which the SuperLink takes no orders."""
        return self.flower_home / "operator.secret"

    @property
    def _port_file(self) -> Path:
        return self.flower_home / "superlink.port"

    def _superlink_port(self) -> int:
        try:
            return int(self._port_file.read_text(encoding="ascii"))
        except (OSError, ValueError) as error:
            raise TacitError(
                f"cannot read {self._port_file}",
                f"start the hub again with `{self.command('start')}`",
                code="hub.no-superlink-port",
            ) from error

    # --- which node is which site -------------------------------------------------------------------------------------

    @property
    def _nodes_file(self) -> Path:
        return self.flower_home / "nodes.json"

    def registered_nodes(self) -> dict[int, tuple[str, str]]:
        """The name and the public key of each node that Flower accepts."""
        if self.settings.insecure or not self._nodes_file.exists():
            return {}
        try:
            nodes = json.loads(self._nodes_file.read_text(encoding="utf-8"))
            return {int(node): (str(name), str(key)) for node, (name, key) in nodes.items()}
        except (ValueError, TypeError, AttributeError) as error:
            raise TacitError(f"{self._nodes_file} is broken", self.reset_remedy, code="hub.broken-nodes") from error

    def write_registered_nodes(self, nodes: Mapping[int, tuple[str, str]]) -> None:
        """Store which nodes Flower accepts."""
        write_durably(self._nodes_file, json.dumps(dict(nodes)).encode())

    def node_names(self) -> dict[int, str]:
        """The name of the site whose key each node has; empty if the hub uses no keys."""
        return {node: name for node, (name, _) in self.registered_nodes().items()}

    @contextmanager
    def nodes_locked(self) -> Iterator[None]:
        """While the block runs, no other process changes which nodes are registered; a second one waits."""
        self.flower_home.mkdir(parents=True, exist_ok=True, mode=0o700)
        with in_turn(self.flower_home / "nodes.lock"):
            yield

    @property
    def reset_remedy(self) -> str:
        """What to do when Flower and the hub disagree about the sites."""
        return f"stop the hub, move {self.flower_home} away, start the hub again, and let all sites join again"

    # --- Flower's programs --------------------------------------------------------------------------------------------

    def superlink_options(self, secret: Path) -> list[str]:
        """The options of the SuperLink, which gives its tasks to the executor with a secret."""
        options: dict[str, object] = {
            "host": LOOPBACK,
            "port": self._superlink_port(),
            "database": self.database,
            "disable-runtime-dependency-installation": True,
        }
        if self.settings.insecure:
            options["insecure"] = True
        else:
            options |= {"ssl-certfile": self.certificate_file, "ssl-keyfile": self.key_file}
            options |= {"enable-supernode-auth": True, "ssl-ca-certfile": self.authority_file}
        return [*flower_cli.options(options), *flower_cli.guarded(secret)]

    def gateway_settings(self) -> gateway.Settings:
        """The settings of the gateway, which sites reach."""
        listen, port = self.settings.listen or self.settings.host, self.settings.port
        if self.settings.insecure:
            return gateway.Settings(listen, port, self._superlink_port())
        files = map(str, (self.certificate_file, self.key_file, self.authority_file))
        return gateway.Settings(listen, port, self._superlink_port(), *files)

    def write_connection(self, port: int) -> None:
        """Store the port of the SuperLink, and the settings with which Flower's programs find it."""
        write_durably(self._port_file, str(port).encode())
        security = {"insecure": True} if self.settings.insecure else {"root-certificates": str(self.authority_file)}
        connection = {"default": CONNECTION, CONNECTION: {"address": self.superlink_address} | security}
        write_durably(self.flower_home / "config.toml", tomli_w.dumps({"superlink": connection}).encode())

    def is_running(self) -> bool:
        """Whether the hub's SuperLink responds."""
        return self._port_file.exists() and flower_cli.is_healthy(self.superlink_address, self.authority)

    def require_running(self) -> None:
        """Refuse to continue without a SuperLink."""
        if not self.is_running():
            raise TacitError(
                "the hub does not run",
                f"start it with `{self.command('start')}` in another terminal",
                code="hub.not-running",
            )

    def command(self, words: str) -> str:
        """A command of `tacit hub` for this hub, as you type it in the current folder."""
        return f"tacit hub {words}" + ("" if self.path == Path.cwd() else f" --hub {quote(str(_short(self.path)))}")


def _short(folder: Path) -> Path:
    return folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder
