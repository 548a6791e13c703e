"""Files that are either all there or as they were."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tacit.errors import TacitError


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path to write to, which takes the place of `path` once everything is written."""
    try:
        if path.is_dir():
            raise TacitError(f"can not write {path}: it is a folder; give the path of a file")
        partial = path.with_name(f".{path.name}.partial-{os.getpid()}")
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield partial
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise TacitError(f"can not write {path}: {error.strerror or error}; choose another place") from error
