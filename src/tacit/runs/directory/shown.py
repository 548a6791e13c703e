"""The files of a run or of several that others may be shown: known names only, never through a link."""

import os
import stat
from pathlib import Path
from typing import IO, Any

from tacit.runs.directory import folders, layout, planned

TEXT, PAGE, DATA = "text/plain; charset=utf-8", "text/html; charset=utf-8", "application/octet-stream"
# Checkpoints, client memories and keys are not among them, whatever a folder holds.
KINDS = {
    layout.REPORT: PAGE,
    layout.CARD: TEXT,
    layout.CONFIG: TEXT,
    folders.BEST: TEXT,
    layout.ROUNDS: TEXT,
    layout.SPLIT: TEXT,
    layout.NOTICES: TEXT,
    layout.END: TEXT,
    layout.STOP: TEXT,
    layout.CELL: TEXT,
    layout.ABOUT: TEXT,
    layout.SITES: TEXT,
    layout.SITE_SCORES: TEXT,
    layout.LOCAL_HEADS: TEXT,
    planned.FILE: TEXT,
    folders.COMMAND: TEXT,
    folders.LEDGER: TEXT,
    layout.ERRORS: TEXT,
    layout.PROGRESS: TEXT,
    layout.FLOWER: TEXT,
    layout.MODEL: DATA,
    layout.PREDICTIONS: DATA,
}


def opened(folder: Path, name: str) -> IO[bytes]:
    """A file of a folder, to be closed; raises FileNotFoundError for a name that is not known, a link, or a folder.

    The folder is opened first and the file relative to it, so nothing that is moved meanwhile leads elsewhere.
    """
    if name not in KINDS:
        raise FileNotFoundError(name)
    place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=place)
    finally:
        os.close(place)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise FileNotFoundError(name)
    return os.fdopen(handle, "rb")


def listing(folder: Path) -> list[dict[str, Any]]:
    """The known files that a folder has, with their sizes."""
    found = []
    for name in KINDS:
        try:
            with opened(folder, name) as file:
                found.append({"name": name, "size": os.fstat(file.fileno()).st_size})
        except OSError:
            continue
    return found
