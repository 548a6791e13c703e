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
    except ModuleNotFoundError as error:
        if error.name != module.partition(".")[0] and error.name != module:
            raise TacitError(
                f"can not load the {what} '{name}': its module needs '{error.name}', install that"
            ) from error
        raise TacitError(f"there is no module '{module}': run this where {module}.py lies, and write {name}") from error
    except AttributeError as error:
        raise TacitError(f"can not load the {what} '{name}': {error}; write it as module:name") from error
    except Exception as error:  # whatever a user's module does when it is imported
        raise TacitError(f"can not load the {what} '{name}': {type(error).__name__}: {error}; mend {module}") from error
