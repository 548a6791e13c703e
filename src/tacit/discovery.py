"""What the modules of a package offer by name, such as methods or networks: a new file is known because it is there."""

from collections.abc import Iterable
from importlib import import_module
from pkgutil import iter_modules
from typing import Any


def offered(package: str, path: Iterable[str], attribute: str) -> dict[str, Any]:
    """What each module states in a dictionary of this name, all in one, by alphabet; modules without one offer nothing.

    `path` is the package's `__path__`.
    """
    found: dict[str, Any] = {}
    for module in iter_modules(path):
        offers = getattr(import_module(f"{package}.{module.name}"), attribute, {})
        if twice := sorted(found.keys() & offers.keys()):
            raise ValueError(f"two modules of {package} offer {', '.join(twice)}")
        found |= offers
    return dict(sorted(found.items()))
