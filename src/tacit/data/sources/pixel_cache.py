"""Images that are larger than memory: decoded once into a file on disk, which all processes map.

Only its owner can read the file, and it holds pixels, nothing else. Its name is a hash of the image files (name, size,
times) and of how they are read. A build that is interrupted continues where it stopped.
"""

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from tacit.data.sources.fetch import cache_folder
from tacit.storage import in_turn, on_disk

LARGE = 1 << 28  # bytes of pixels from which on they are mapped
BLOCK = 256  # images between two notes of how far it is
Put = Callable[[int, Any], None]  # first row, a block of rows to fill


def key_of(names: Sequence[str], settings: Sequence[object]) -> str:
    """A hash over everything that the pixels depend on."""
    stats = [(name, (at := Path(name).stat()).st_size, at.st_mtime_ns, at.st_ctime_ns) for name in names]
    return sha256(json.dumps([list(map(str, settings)), stats]).encode()).hexdigest()[:32]


def mapped(key: str, shape: tuple[int, ...], put: Put, dtype: type = np.uint8, folder_name: str = "images") -> Any:
    """The array of this shape and type under this key; `put` fills the blocks that are not there yet.

    It is mapped copy-on-write: writing to it changes nothing on disk, and reading takes no more memory than is in use.
    """
    folder = cache_folder() / folder_name
    file, done = folder / f"{key}.pixels", folder / f"{key}.done"
    with on_disk(file):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with in_turn(folder / f"{key}.lock"):
            _complete(file, done, shape, put, np.dtype(dtype))
        return np.memmap(file, dtype, "c", shape=shape)


def _complete(file: Path, done: Path, shape: tuple[int, ...], put: Put, dtype: np.dtype[Any]) -> None:
    starts = range(0, shape[0], BLOCK)
    for path, size in ((file, dtype.itemsize * prod(shape)), (done, len(starts))):
        if not path.exists() or path.stat().st_size != size:
            with open(path, "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as new:
                new.truncate(size)
            if path == file:
                done.unlink(missing_ok=True)  # notes on a file that is gone
    ready = np.memmap(done, np.uint8, "r+", shape=(len(starts),))
    if ready.all():
        return
    pixels = np.memmap(file, dtype, "r+", shape=shape)
    with _progress(shape[0]) as advance:
        for number, start in enumerate(starts):
            rows = pixels[start : start + BLOCK]
            if not ready[number]:
                put(start, rows)
                pixels.flush()
                ready[number] = 1
                ready.flush()
            advance(len(rows))


@contextmanager
def _progress(total: int) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal."""
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("images", total=total)
        yield lambda count: bar.advance(task, count)
