"""Code of the user, by `module:name`: methods, objectives and networks outside the package."""

import importlib
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from tacit.errors import TacitError

_allowed: ContextVar[frozenset[str] | None] = ContextVar("allowed", default=None)  # None: every name


@contextmanager
def only(names: Iterable[str]) -> Iterator[None]:
    """While the block runs, load these names and no others: its settings come from somebody else."""
    before = _allowed.set(frozenset(names))
    try:
        yield
    finally:
        _allowed.reset(before)


def load(what: str, name: str) -> Any:
    """The object `module:name`; modules are found on the path and in the current folder."""
    module, _, attribute = name.partition(":")
    allowed = _allowed.get()
    if allowed is not None and name not in allowed:
        raise TacitError(
            f"the {what} '{name}' is code outside Tacit, which this site does not allow",
            f'add allow = ["{name}"] to site.toml if you trust it',
            code="user.not-allowed",
        )
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError as error:
        if error.name != module.partition(".")[0] and error.name != module:
            problem, remedy = f"cannot load the {what} '{name}': its module needs '{error.name}'", "install that"
            raise TacitError(problem, remedy, code="user.missing-dependency") from error
        remedy = f"run this where {module}.py is, and write {name}"
        raise TacitError(f"there is no module '{module}'", remedy, code="user.no-module") from error
    except AttributeError as error:
        problem = f"cannot load the {what} '{name}': {error}"
        raise TacitError(problem, "write it as module:name", code="user.no-such-name") from error
    except Exception as error:  # importing a user's module may raise anything
        problem = f"cannot load the {what} '{name}': {type(error).__name__}: {error}"
        raise TacitError(problem, f"fix {module}", code="user.import-failed") from error
