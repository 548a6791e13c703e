"""A site's images as they were decoded, kept on its disk: every message is a new process, and decoding takes long.

The copy is for its owner alone to read, and counts only for the very same files, read in the very same way.
"""

import csv
import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import PIL
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from tacit import __version__
from tacit.data import sources
from tacit.data.folders import PARTS
from tacit.data.images import Scale
from tacit.data.sources import Source
from tacit.engines.memory import DiskError, write_durably

FILE = "_images.safetensors"  # no run has such a name, which would begin with a letter or a digit
SETTLED = 2.0  # seconds: whoever writes a file twice within one tick of a disk's clock changes it unseen


def load_part(path: Path, classes: tuple[str, ...], scale: Scale, file: Path | None) -> Source:
    """What `sources.load_part` gives, from the copy in `file` if that is of the same; a new copy is left there if not.

    Arrays are as quick to read as a copy of them, so that these have none.
    """
    key = _key(path, classes, scale) if file and path.suffix != ".npz" else ""
    if file and key and (found := _read(file, key)):
        return found
    source = sources.load_part(path, classes, scale)
    if file and key and key == _key(path, classes, scale):  # else it changed while it was read
        _write(file, key, source)
    return source


def _key(path: Path, classes: tuple[str, ...], scale: Scale) -> str:
    """A hash over all that the samples depend on; empty where something can not be read, which the reader will name.

    The time of a file's last writing can be set by anybody, that of its last change (ctime) can not.
    """
    with suppress(OSError, ValueError, KeyError, csv.Error):
        stats = {name: Path(name).stat() for name in sorted(set(_files(path)))}
        seen = [(name, at.st_ino, at.st_size, at.st_mtime_ns, at.st_ctime_ns) for name, at in stats.items()]
        way = [__version__, PIL.__version__, str(path), classes, scale.size, scale.bits]
        if time.time() > max(at.st_ctime for at in stats.values()) + SETTLED:
            return sha256(json.dumps([way, seen]).encode()).hexdigest()
    return ""


def _files(path: Path) -> Iterator[str]:
    """All files and folders whose change may change the samples."""
    if path.suffix == ".csv":
        yield str(path)
        with path.open(newline="", encoding="utf-8-sig") as file:
            yield from (str(path.parent / (row["path"] or "").strip()) for row in csv.DictReader(file))
        return
    parts = [path / name for name in PARTS if (path / name).is_dir()]
    links = [entry for part in parts for entry in part.iterdir() if entry.is_symlink()]  # a class may be elsewhere
    for top in (*parts, *links):
        for place, _, names in os.walk(top):
            yield from (place, *(str(Path(place, name)) for name in names))


def _read(file: Path, key: str) -> Source | None:
    with suppress(OSError, SafetensorError), safe_open(file, framework="pt") as held:
        about = held.metadata() or {}
        if about.get("key") == key:
            plain = json.loads(about["plain"]).items()
            fields: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in plain}
            return Source(**fields, **{name: held.get_tensor(name) for name in held.keys()})  # noqa: SIM118  # no dict
    return None


def _write(file: Path, key: str, source: Source) -> None:
    """Keep it; without room for it, or with another process at it, it is decoded again next time."""
    tensors = {name: value for name, value in vars(source).items() if isinstance(value, Tensor)}
    plain = {name: value for name, value in vars(source).items() if name not in tensors}
    with suppress(OSError, DiskError):
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with (file.parent / f"{file.name}.lock").open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            write_durably(file, save(tensors, {"key": key, "plain": json.dumps(plain)}), mode=0o600)
