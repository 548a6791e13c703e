"""Small files of every format, and refusals of wrong ones."""

import io
import struct
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from tacit.data.sources import load
from tests.refusals import refused


def pixels(*shape: int, seed: int = 0) -> NDArray[np.uint8]:
    """Random bytes."""
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def save_image(path: Path, array: NDArray[np.generic]) -> Path:
    """An image file, in folders that need not exist yet."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(array).save(path)
    return path


def write(path: Path, raw: bytes) -> Path:
    """A file with these bytes, in folders that need not exist yet."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(raw)
    return path


def idx_bytes(array: NDArray[np.uint8]) -> bytes:
    """An IDX file."""
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def load_refused(name: str | Path, code: str, *mentions: str) -> None:
    """Loading this data set must be refused with this code, in one line that mentions these words."""
    with refused(code) as refusal:
        load(str(name))
    assert "\n" not in str(refusal.error)
    assert refusal.error.remedy
    for words in mentions:
        assert words in str(refusal.error)


def python2_pickle(value: dict[bytes, Any]) -> bytes:
    """A dict of uint8 arrays and of lists of small numbers or strings, as Python 2 pickled CIFAR."""
    out = io.BytesIO()

    def text(raw: bytes) -> bytes:
        return b"U" + bytes([len(raw)]) + raw if len(raw) < 256 else b"T" + struct.pack("<i", len(raw)) + raw

    out.write(b"\x80\x02}q\x01(")
    for key, item in value.items():
        out.write(text(key))
        if isinstance(item, np.ndarray):
            out.write(b"cnumpy.core.multiarray\n_reconstruct\nq\x02cnumpy\nndarray\nq\x03K\x00\x85" + text(b"b"))
            out.write(b"\x87R(K\x01" + b"".join(b"M" + struct.pack("<H", n) for n in item.shape) + b"\x86")
            out.write(b"cnumpy\ndtype\nq\x04" + text(b"u1") + b"K\x00K\x01\x87R(K\x03" + text(b"|") + b"NNN")
            out.write(b"J\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89" + text(item.tobytes()) + b"tb")
        else:
            out.write(b"](" + b"".join(b"K" + bytes([i]) if isinstance(i, int) else text(i) for i in item) + b"e")
    out.write(b"u.")
    return out.getvalue()
