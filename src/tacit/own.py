"""A user's own code, by `module:name`: methods, objectives and networks that live outside the package."""

import importlib
import sys
from pathlib import Path
from typing import Any

from tacit.errors import TacitError


def load(what: str, name: str) -> Any:
    """The thing called `module:name`; modules are found on the path and in the folder the command is run in."""
    module, _, attribute = name.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise TacitError(f"can not load the {what} '{name}': {error}; write it as module:name") from error
