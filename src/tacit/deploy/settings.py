"""The settings of a site and a hub, `site.toml` and `hub.toml`, and the paths in them."""

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Annotated, Any, TypeVar

import tomli_w
from pydantic import Field

from tacit.errors import TacitError
from tacit.runs import toml_file
from tacit.runs.settings import Setting, check, settings

Port = Annotated[int, Field(ge=1, le=65535)]
MaxEpsilon = Annotated[float, Field(gt=0)] | None
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
        description="1 to 64 plain letters, digits, '.', '_' and '-', starting with a letter or digit",
    ),
]


@dataclass(frozen=True)
class Site:
    """One data holder: the file `site.toml`. Paths are relative to its folder."""

    name: Name  # the site's name at the hub, in every run
    data: str | None = None  # image folder, .csv, .npz or .parquet; default: a share of the run's data set
    device: str = "cpu"  # torch device
    memory: str = "memory"  # folder for what methods remember between rounds; only its owner can read it
    federation: str = "federation.toml"  # the run that this site has agreed to, from the hub
    min_group: Annotated[int, Field(ge=1)] = 10  # fewest samples in a mean that may leave; 1: also samples themselves
    share_scores: bool = False  # let scores of the common model on your test or held-out samples leave, as numbers
    max_epsilon: MaxEpsilon = None  # privacy budget: largest ε of all that leaves, in all runs
    certificate: str | None = None  # the hub's ca.crt; without it nothing is encrypted
    key: str | None = None  # this site's private key; the hub gets the file with .pub
    port: Port = 9094  # local port for Flower's processes
    allow: tuple[str, ...] = ()  # code outside Tacit that runs may use here, as "module:name"
    allow_data: tuple[str, ...] = ()  # files and folders that runs may name as their data set, if data is not set


@dataclass(frozen=True)
class Hub:
    """The coordinator: the file `hub.toml`. Paths are relative to its folder."""

    host: Host = "127.0.0.1"  # address at which sites reach this machine
    port: Port = 8443  # the only port that sites need
    listen: Host | None = None  # address to listen on, e.g. 0.0.0.0 for all; default: host
    sites: list[Name] | None = None  # sites that may take part; default: all with a key, or the first to join
    insecure: bool = False  # no encryption and no keys: for trials on one machine
    join_seconds: Annotated[float, Field(gt=0)] = 600.0  # seconds to wait for the sites before the first round
    runs: str = "runs"  # folder for the runs


# What a site tells its client processes, through Flower's node.
SITE_FILE, HUB_ADDRESS, ANY_RUN = "site", "hub", "any-run"

Settings = TypeVar("Settings", Site, Hub)


def load_settings(kind: type[Settings], path: Path) -> Settings:
    """The settings in a file."""
    if not path.is_file():
        raise TacitError(
            f"there is no {path}",
            f"create it with `tacit {kind.__name__.lower()} init`, or give its folder",
            code="deploy.no-settings",
        )
    try:
        values = check(kind, toml_file.read(path), "")
    except TacitError as error:
        raise error.within(str(path)) from error
    if name := missing_field(kind, values):
        raise TacitError(f"{path} has no {name}", "set it there", code="deploy.incomplete-settings")
    return kind(**values)


def missing_field(kind: type, values: Mapping[str, Any]) -> str | None:
    """The first field without a default that is not among the values."""
    return next((item.name for item in fields(kind) if item.default is MISSING and item.name not in values), None)


def settings_toml(kind: type, given: Mapping[str, Any], title: str) -> str:
    """A settings file with these values; all other settings are comments with their defaults."""
    return f"# {title} Paths are relative to the folder of this file.\n\n" + "\n".join(
        _entry(setting, given) for setting in settings(kind)
    )


def _entry(setting: Setting, given: Mapping[str, Any]) -> str:
    value = given.get(setting.name, setting.default)
    line = tomli_w.dumps({setting.name: "…" if value is None else value})
    return f"# {setting.comment}\n{line if setting.name in given else f'# {line}'}"


def resolve_path(settings_file: Path, name: str) -> Path:
    """The absolute path of a path in a settings file."""
    return (settings_file.parent / Path(name).expanduser()).absolute()
