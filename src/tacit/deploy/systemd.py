"""Units for systemd: a hub or a site as a service in a sandbox, which starts with its machine."""

import ipaddress
import sys
from collections.abc import Sequence
from pathlib import Path

from tacit.deploy.hub_directory import HubDirectory
from tacit.deploy.settings import Site, load_settings, resolve_path
from tacit.storage import OPEN, write_durably

_UNIT = """\
[Unit]
Description={title}
Wants=network-online.target
After=network-online.target

[Service]
Type=exec
User={user}
WorkingDirectory={folder}
ExecStart={command}
Restart=on-failure
RestartSec=30
KillMode=mixed
TimeoutStopSec=60
UMask=0077

# The service writes to its own folders only, and gains no rights.
NoNewPrivileges=yes
CapabilityBoundingSet=
AmbientCapabilities=
ProtectSystem=strict
ProtectHome=read-only
ReadWritePaths={writable}
PrivateTmp=yes
{devices}ProtectClock=yes
ProtectControlGroups=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectProc=invisible
LockPersonality=yes
RemoveIPC=yes
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallErrorNumber=EPERM
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
{network}
[Install]
WantedBy=multi-user.target
"""


def write_hub_unit(hub: HubDirectory) -> Path:
    """Write the unit of a hub into its folder."""
    words = ["hub", "start", "--hub", str(hub.path)]
    unit = _unit(f"Tacit hub in {hub.path}", hub.path, words, [hub.path, hub.runs_folder])
    return _write(hub.path / "tacit-hub.service", unit)


def write_site_unit(settings_file: Path, address: str) -> Path:
    """Write the unit of a site, which joins the hub at an address, into its folder.

    If the address is numeric, the service reaches no other machine.
    """
    file = settings_file.absolute()
    site, folder = load_settings(Site, file), file.parent
    host = address.rpartition(":")[0].strip("[]")
    words = ["site", "join", address, "--site", str(file)]
    unit = _unit(
        f"Tacit site {site.name}",
        folder,
        words,
        [folder, resolve_path(file, site.memory)],
        devices=site.device != "cpu",
        only_host=host if _is_numeric(host) else None,
    )
    return _write(folder / f"tacit-site-{site.name}.service", unit)


def _unit(
    title: str,
    folder: Path,
    words: Sequence[str],
    writable: Sequence[Path],
    *,
    devices: bool = False,
    only_host: str | None = None,
) -> str:
    command = [sys.executable, "-m", "tacit", *words]
    return _UNIT.format(
        title=_escaped(title),
        user=folder.owner(),
        folder=_escaped(str(folder)),
        command=" ".join(map(_quoted, command)),
        writable=" ".join(_quoted(str(path)) for path in dict.fromkeys(writable)),
        devices="" if devices else "PrivateDevices=yes\n",
        network=f"IPAddressDeny=any\nIPAddressAllow=localhost {only_host}\n" if only_host else "",
    )


def _write(path: Path, unit: str) -> Path:
    write_durably(path, unit.encode(), OPEN)
    return path


def _is_numeric(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _escaped(text: str) -> str:
    return text.replace("%", "%%")


def _quoted(text: str) -> str:
    """A word of a command or of a list of paths, in the quotes of systemd."""
    escaped = _escaped(text).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"' if any(letter in " \t\"'\\" for letter in text) else escaped
