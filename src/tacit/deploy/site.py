"""A site at work: what Flower's node asks of it. Every message is a new process, so nothing is kept in memory."""

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tacit import __version__
from tacit import config as configs
from tacit.config import Config
from tacit.deploy import kept
from tacit.deploy.description import Description, read_federation
from tacit.deploy.holding import Holding, hold
from tacit.deploy.settings import REFUSED, Site, agreed, beside, load
from tacit.engines.flower import About, Desk, Place
from tacit.engines.memory import Shelf
from tacit.errors import TacitError

FREE = {"seed", "rounds", "engine", "faults", "log", "track"}  # what a run may change after a site has looked at it


def introduce(about: About, node: Mapping[str, Any]) -> Place:
    """Who this site is and what it brings to the run, or why it can not take part."""
    path = _path(node)
    site = load(Site, path)
    try:
        holding = _hold(about, path, site)
        holding.job(0)
        _shelf(about, path, site)
    except TacitError as error:
        print(f"{REFUSED}{error}", flush=True)  # for who looks after this site; the hub is told by the answer
        return Place(site.name, refusal=str(error))
    return Place(site.name, samples=holding.samples, labeled=holding.labeled)


def open_desk(about: About, node: Mapping[str, Any], client: int) -> Desk:
    """Where this site works as client number `client`; its memory stays on its disk, apart for every run."""
    path = _path(node)
    site = load(Site, path)
    return Desk(_hold(about, path, site).job(client), _shelf(about, path, site))


def _path(node: Mapping[str, Any]) -> Path:
    if "site" not in node:
        raise TacitError("the node was not told its site.toml: start it with `tacit site join`")
    return Path(str(node["site"]))


def _hold(about: About, path: Path, site: Site) -> Holding:
    if (there := _said(about, "version")) != __version__:  # first of all: another's settings may mean something else
        raise TacitError(f"the hub has version {there} of Tacit and this site {__version__}: install the same at both")
    config = configs.make(tomllib.loads(_said(about, "config")))
    description = Description.from_text(_said(about, "description"))
    _agree(agreed(path, site), config, description)
    return hold(path, site, config, description, _said(about, "split"), beside(path, site.memory) / kept.FILE)


def _agree(file: Path | None, config: Config, description: Description) -> None:
    """Refuse a run other than that in federation.toml, if it is there: it is what the site was shown to be sent."""
    if file is None:
        return
    shown, described = read_federation(file)
    before, now = (_fixed(each) for each in (shown, config))
    other = sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
    if other or described != description:
        what = f"{other[0]} is {now.get(other[0])!r}, not {before.get(other[0])!r}" if other else "other samples"
        raise TacitError(
            f"this is not the run that the site has agreed to ({what}): give it the run's federation.toml, "
            "made with `tacit hub describe`"
        )


def _fixed(config: Config) -> dict[str, Any]:
    """Settings by their dotted names, without those that are free."""
    tree = tomllib.loads(configs.dumps(config))
    return configs.flat({name: value for name, value in tree.items() if name not in FREE})


def _shelf(about: About, path: Path, site: Site) -> Shelf:
    """For this run alone; its name comes from outside and must not lead out of the folder."""
    run = _said(about, "run")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,127}", run):
        raise TacitError(f"the hub calls its run {run!r}: give it a name of letters, digits, '-', '_', '+' and '.'")
    memory = beside(path, site.memory)
    memory.mkdir(parents=True, exist_ok=True, mode=0o700)
    return Shelf(memory / run)


def _said(about: About, name: str) -> str:
    if name not in about:
        raise TacitError(f"the hub does not say its {name}: use the same version of Tacit there")
    return about[name]
