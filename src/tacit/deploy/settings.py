"""What a site and a hub are set up with: `site.toml` and `hub.toml`, and the paths in them."""

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Annotated, Any, TypeVar

import tomli_w
from pydantic import Field

from tacit import config as configs
from tacit.catalog import Setting, check, settings
from tacit.errors import TacitError

REFUSED = "tacit refuses: "  # how a site's client begins the line that says why it does not take part

Port = Annotated[int, Field(ge=1, le=65535)]
Host = Annotated[
    str,
    Field(
        pattern=r"^([A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?|[0-9A-Fa-f:.]{2,45})$",
        description="an IP address, or a name of plain letters, digits, '.' and '-'",
    ),
]
Name = Annotated[
    str,
    Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$",
        description="1 to 64 plain letters, digits, '.', '_' and '-', of which the first is a letter or digit",
    ),
]


@dataclass(frozen=True)
class Site:
    """One data holder: the file `site.toml`. Paths are relative to its folder."""

    name: Name  # by which the hub knows this site, in every run
    data: str | None = None  # image folder, .csv or .npz; its share of the run's own data set when not given
    device: str = "cpu"  # torch device
    memory: str = "memory"  # folder of what methods remember here between rounds, for nobody else to read
    federation: str = "federation.toml"  # what the hub says of the federation
    certificate: str | None = None  # of the hub's authority, ca.crt; without one nothing is encrypted
    key: str | None = None  # of this site, private; its other half, with .pub, is for the hub
    port: Port = 9094  # of this machine, for Flower's own processes to meet


@dataclass(frozen=True)
class Hub:
    """The coordinator: the file `hub.toml`. Paths are relative to its folder."""

    host: Host = "127.0.0.1"  # address that sites reach this machine at
    port: Port = 8443  # one for everything
    listen: Host | None = None  # address to listen at, such as 0.0.0.0 for all; the host's when not given
    sites: list[Name] | None = None  # names that may take part; the first to join when not given
    insecure: bool = False  # no encryption and no keys: for trials on one machine
    join_seconds: Annotated[float, Field(gt=0)] = 600.0  # to wait for the sites before the first round
    runs: str = "runs"  # folder of the runs


Kind = TypeVar("Kind", Site, Hub)


def load(kind: type[Kind], path: Path) -> Kind:
    """The settings in a file."""
    if not path.is_file():
        raise TacitError(f"there is no {path}: make it with `tacit {kind.__name__.lower()} init`, or name its folder")
    try:
        values = check(kind, configs.read(path), "")
    except TacitError as error:
        raise TacitError(f"{path}: {error}") from error
    if name := missing(kind, values):
        raise TacitError(f"{path} has no {name}: set it there")
    return kind(**values)


def missing(kind: type, values: Mapping[str, Any]) -> str | None:
    """The first field without a default that is not among the values."""
    return next((item.name for item in fields(kind) if item.default is MISSING and item.name not in values), None)


def settings_text(kind: type, given: Mapping[str, Any], head: str) -> str:
    """A settings file with these values; what is not given stands there as a comment, with its default."""
    return f"# {head} Paths are relative to the folder of this file.\n\n" + "\n".join(
        _entry(setting, given) for setting in settings(kind)
    )


def _entry(setting: Setting, given: Mapping[str, Any]) -> str:
    value = given.get(setting.name, setting.default)
    line = tomli_w.dumps({setting.name: "…" if value is None else value})
    return f"# {setting.comment}\n{line if setting.name in given else f'# {line}'}"


def agreed(path: Path, site: Site) -> Path | None:
    """The file with the run that a site has agreed to; None where it names none and there is none."""
    file = beside(path, site.federation)
    if file.exists():
        return file
    if site.federation != Site.federation:  # a slip of the pen must not open the door to every run
        raise TacitError(f"there is no {file}, which {path} names: get it from the hub, or mend {path}")
    return None


def beside(path: Path, name: str) -> Path:
    """A path that is written in a settings file, as seen from anywhere."""
    return (path.parent / Path(name).expanduser()).absolute()
