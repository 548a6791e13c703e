"""Which stored results belong to a cell: a hash of its settings, and the version of the code that makes its numbers."""

import hashlib
import inspect
import json
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from tacit import nets
from tacit.runs import registry
from tacit.runs.config import SETTINGS, Config, names_of
from tacit.runs.settings import default_of

# The version of all code that makes numbers. Raise it by one when, and only when, the output of
# `python -m scripts.hashes --against COMMIT` differs; results of equal versions add up their seeds.
NUMBERS = 1

# Settings newer than stored results, and what the code did before it had them. Such a value counts as the default, so
# that results stored before are still found by a benchmark that sets it.
FORMERLY = {"data.draw": "0.1"}


def settings(config: Config) -> dict[str, Any]:
    """Every setting that determines the numbers, given or default, by dotted name and as JSON has it."""
    found = {name: value for name, value, _ in _flat(config)}
    return dict(json.loads(json.dumps(found, default=str)))


def fingerprint(config: Config) -> str:
    """A hash of the method's name and of every such setting that is not at its default, or at what it was formerly.

    These are left out so that stored results survive a new setting. A default that changes is noticed by comparing
    the settings stored with every result.
    """
    given = {name: value for name, value, default in _flat(config) if value != default}
    given["method"] = registry.canonical(config.method_name)
    return hashlib.sha256(json.dumps(given, sort_keys=True, default=str).encode()).hexdigest()[:16]


def code(config: Config) -> int | str:
    """The version of the code behind a cell: NUMBERS, and a hash of the source of a user's own classes, if any."""
    method: Any = config.build_method()
    parts = [method, getattr(method, "objective", None)]
    own: list[Any] = [type(part) for part in parts if part is not None and not _is_ours(type(part))]
    own += [nets.find(config.net.name)] if ":" in config.net.name else []
    digest = hashlib.sha256()
    for path in sorted({path for thing in own if (path := _source(thing)) is not None}):
        digest.update(path.read_bytes())
    return f"{NUMBERS}+{digest.hexdigest()[:16]}" if own else NUMBERS


def _is_ours(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == "tacit"


def _flat(config: Config) -> Iterator[tuple[str, Any, Any]]:
    """Name, value and default of every setting; a split's name is left out, since its settings are all there."""
    resolved = {"server": ("server_train", config.server_train), "method": ("method", config.build_method())}
    for section in names_of(*SETTINGS):
        if section != "objective":  # it is part of the method
            name, value = resolved.get(section, (section, getattr(config, section)))
            yield from (item for item in _fields(name, value, None) if item[0] != "data.split")


def _fields(name: str, value: Any, default: Any) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(value, dict):  # options of a network: each is a setting, without a default that is known here
        yield from ((f"{name}.{key}", each, None) for key, each in value.items())
        return
    if not is_dataclass(value):
        yield name, value, default
        return
    for item in fields(value):
        path = f"{name}.{item.name}"
        yield from _fields(path, getattr(value, item.name), FORMERLY.get(path, default_of(item)))


def _source(thing: Any) -> Path | None:
    """The file something is defined in; a class of a notebook has none."""
    try:
        path = inspect.getsourcefile(thing)
    except TypeError:
        return None
    return Path(path) if path and Path(path).is_file() else None
