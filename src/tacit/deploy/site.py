"""A site at work: what Flower's node asks of it. Every message is a new process, so nothing is kept in memory."""

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tacit import config as configs
from tacit.deploy.description import Description
from tacit.deploy.holding import Holding, hold
from tacit.deploy.settings import Site, beside, load
from tacit.engines.flower import About, Desk, Place
from tacit.engines.memory import Shelf
from tacit.errors import TacitError


def introduce(about: About, node: Mapping[str, Any]) -> Place:
    """Who this site is and what it brings to the run, or why it can not take part."""
    name = load(Site, _path(node)).name
    try:
        holding = _hold(about, node)
        holding.job(0)
        _shelf(about, node)
    except TacitError as error:
        return Place(name, refusal=str(error))
    return Place(name, samples=holding.samples, labeled=holding.labeled)


def open_desk(about: About, node: Mapping[str, Any], client: int) -> Desk:
    """Where this site works as client number `client`; its memory stays on its disk, apart for every run."""
    return Desk(_hold(about, node).job(client), _shelf(about, node))


def _path(node: Mapping[str, Any]) -> Path:
    if "site" not in node:
        raise TacitError("the node was not told its site.toml: start it with `tacit site join`")
    return Path(str(node["site"]))


def _hold(about: About, node: Mapping[str, Any]) -> Holding:
    config = configs.make(tomllib.loads(_said(about, "config")))
    return hold(_path(node), config, Description.from_text(_said(about, "description")))


def _shelf(about: About, node: Mapping[str, Any]) -> Shelf:
    """For this run alone; its name comes from outside and must not lead out of the folder."""
    run = _said(about, "run")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,127}", run):
        raise TacitError(f"the hub calls its run {run!r}: give it a name of letters, digits, '-', '_', '+' and '.'")
    return Shelf(beside(_path(node), load(Site, _path(node)).memory) / run)


def _said(about: About, name: str) -> str:
    if name not in about:
        raise TacitError(f"the hub does not say its {name}: use the same version of Tacit there")
    return about[name]
