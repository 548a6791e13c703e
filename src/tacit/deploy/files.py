"""Files of a new site or hub: none is overwritten, and either all are there or none; and what is added to a log."""

import os
from collections.abc import Mapping
from pathlib import Path

from tacit.errors import TacitError

SECRET, OPEN = 0o600, 0o644  # who may read a file: its owner, or all


def write_new(folder: Path, files: Mapping[str, tuple[bytes, int]]) -> None:
    """Write files with their modes; where one holds a secret, nobody else may read it at any moment."""
    for name in files:
        if (folder / name).exists():
            raise TacitError(f"{folder / name} is there already: choose another folder, or move it away")
    done: list[Path] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, (content, mode) in files.items():
            (folder / name).parent.mkdir(exist_ok=True, mode=0o700)
            handle = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
            done.append(folder / name)
            with os.fdopen(handle, "wb") as file:
                file.write(content)
    except OSError as error:
        for path in done:
            path.unlink(missing_ok=True)
        raise TacitError(f"can not write to {folder}: {error.strerror}; choose another folder") from error


class Tail:
    """What is added to a file from now on, whole lines only; nothing is read twice, since a log may become long."""

    def __init__(self, path: Path) -> None:
        """Begin where the file ends now; it need not be there yet."""
        self._path, self._at = path, path.stat().st_size if path.exists() else 0

    def lines(self) -> list[str]:
        """The lines that are new."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._at)
            new = file.read()
        whole = new[: new.rfind(b"\n") + 1]
        self._at += len(whole)
        return whole.decode(errors="replace").splitlines()
