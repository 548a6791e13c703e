"""A site's decoded images on its disk: every message is a new process, and decoding takes long.

Only the owner can read the file. It is used only for exactly the same files, read with the same settings.
"""

import csv
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
from tacit.data.inputs import from_plain
from tacit.data.sources import Source, pixel_cache
from tacit.data.sources.image_folder import PARTS
from tacit.data.sources.images import Scale
from tacit.data.sources.tables import is_table
from tacit.errors import TacitError
from tacit.storage import locked, write_durably

FILE = "_images.safetensors"  # no run has this name, since ids of runs begin with a letter or a digit
SETTLE_SECONDS = 2.0  # a file written twice within one tick of the disk's clock may change unnoticed


def load_part(path: Path, classes: tuple[str, ...], scale: Scale, file: Path | None) -> Source:
    """The result of `sources.load_part`, from the cache in `file` if it is valid; otherwise `file` is written.

    Arrays (.npz) and tables are not cached: they are as fast to read as the cache.
    """
    fast = path.suffix == ".npz" or is_table(path)
    key = _cache_key(path, classes, scale) if file and not fast else ""
    if file and key and (found := _read(file, key)):
        return found
    source = sources.load_part(path, classes, scale)
    if source.x.nbytes >= pixel_cache.LARGE:
        return source  # its pixels are in a file that every process maps
    if file and key and key == _cache_key(path, classes, scale):  # otherwise a file changed in the meantime
        _write(file, key, source)
    return source


def _cache_key(path: Path, classes: tuple[str, ...], scale: Scale) -> str:
    """A hash over everything the samples depend on; empty if a file cannot be read, which the reader will report.

    Anyone can set a file's modification time, but not its change time (ctime).
    """
    with suppress(OSError, ValueError, KeyError, csv.Error):
        stats = {name: Path(name).stat() for name in sorted(set(_files(path)))}
        files = [(name, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns) for name, stat in stats.items()]
        settings = [__version__, PIL.__version__, str(path), classes, *vars(scale).values()]
        if time.time() > max(stat.st_ctime for stat in stats.values()) + SETTLE_SECONDS:
            return sha256(json.dumps([settings, files]).encode()).hexdigest()
    return ""


def _files(path: Path) -> Iterator[str]:
    """All files and folders whose change may change the samples."""
    if path.suffix == ".csv":
        yield str(path)
        with path.open(newline="", encoding="utf-8-sig") as file:
            yield from (str(path.parent / (row["path"] or "").strip()) for row in csv.DictReader(file))
        return
    parts = [path / name for name in PARTS if (path / name).is_dir()]
    links = [entry for part in parts for entry in part.iterdir() if entry.is_symlink()]  # of a class elsewhere
    for top in (*parts, *links):
        for folder, _, names in os.walk(top):
            yield from (folder, *(str(Path(folder, name)) for name in names))


def _read(file: Path, key: str) -> Source | None:
    with suppress(OSError, SafetensorError), safe_open(file, framework="pt") as stored:
        about = stored.metadata() or {}
        if about.get("key") == key:
            plain: dict[str, Any] = json.loads(about["plain"])
            classes, plain["unknown"] = tuple(plain.pop("classes")), tuple(plain["unknown"])
            inputs = from_plain(plain.pop("inputs"), classes)
            names = stored.keys()  # a method: the file is no dict
            tensors = {name: stored.get_tensor(name) for name in names}
            return Source(**plain, **tensors, classes=classes, inputs=inputs)
    return None


def _write(file: Path, key: str, source: Source) -> None:
    """Store the samples. If the disk is full or another process does it, they are decoded again next time."""
    tensors = {name: value for name, value in vars(source).items() if isinstance(value, Tensor)}
    plain = {name: value for name, value in vars(source).items() if name not in tensors}
    plain["inputs"] = source.inputs.to_plain()
    with suppress(OSError, TacitError):
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with locked(file.with_name(f"{file.name}.lock"), "ab", pauses=()):
            write_durably(file, save(tensors, {"key": key, "plain": json.dumps(plain)}), mode=0o600)
