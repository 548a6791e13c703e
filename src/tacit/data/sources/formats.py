"""Readers of data set formats: IDX, CIFAR's batches, MATLAB, LEAF's JSON, and archives of them.

Each takes the path and the bytes of a file, and refuses a damaged file in one sentence that names it.
"""

import gzip
import io
import json
import math
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from tacit.data.sources import pickled
from tacit.data.sources.arrays import Array, Pair, Pixels
from tacit.data.sources.fetch import broken

_UNREADABLE = (OSError, EOFError, zlib.error, zipfile.BadZipFile, tarfile.TarError, NotImplementedError, RuntimeError)
_IDX_BYTES = 8  # the code of unsigned bytes in the header of an IDX file
_SIDE = 32  # pixels, of CIFAR images
_ROW = 3 * _SIDE * _SIDE


def content(path: Path) -> bytes:
    """All bytes of a file, unzipped if it is a gzip file."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise broken(path, f"cannot be read ({error.strerror})", code="data.unreadable-file") from None
    return ungzip(path, raw)


def ungzip(path: Path, raw: bytes) -> bytes:
    """The bytes inside a gzip file; any other bytes as they are."""
    if raw[:2] != b"\x1f\x8b":
        return raw
    try:
        return gzip.decompress(raw)
    except _UNREADABLE:
        raise broken(path, "is damaged or cut short", code="data.damaged-file") from None


def idx(path: Path, raw: bytes, axes: int) -> Pixels:
    """The array in an IDX file: two zeros, the type, the number of axes, their lengths, the values."""
    start = 4 + 4 * axes
    if len(raw) < start or tuple(raw[:4]) != (0, 0, _IDX_BYTES, axes):
        raise broken(path, f"is not an IDX file of bytes with {axes} axes", code="data.wrong-format")
    shape = struct.unpack(f">{axes}I", raw[4:start])
    if len(raw) - start != math.prod(shape):
        raise broken(
            path, f"has {len(raw) - start:,} bytes where its header says {math.prod(shape):,}", code="data.wrong-length"
        )
    return np.frombuffer(raw, np.uint8, offset=start).reshape(shape)


def cifar_binary(path: Path, raw: bytes, labels: int) -> Pair:
    """Images (n, 3, 32, 32) and the last of the `labels` label bytes before each."""
    row = labels + _ROW
    if not raw or len(raw) % row:
        raise broken(path, f"has {len(raw):,} bytes, which is not a whole number of images", code="data.wrong-length")
    rows = np.frombuffer(raw, np.uint8).reshape(-1, row)
    return rows[:, labels:].reshape(-1, 3, _SIDE, _SIDE), rows[:, labels - 1].astype(np.int64)


def cifar_pickle(path: Path, raw: bytes, label: str) -> Pair:
    """Images (n, 3, 32, 32) and labels of a batch of the Python version."""
    batch = _unpickled(path, raw)
    try:
        x, y = batch["data"], np.asarray(batch[label])
        if x.dtype != np.uint8 or x.shape != (len(y), _ROW) or y.dtype.kind not in "iu":
            raise TypeError
    except (KeyError, TypeError, AttributeError, ValueError):
        raise broken(path, "is not a batch of CIFAR images", code="data.wrong-format") from None
    return x.reshape(-1, 3, _SIDE, _SIDE), y.astype(np.int64)


def cifar_names(path: Path, raw: bytes) -> list[str]:
    """The class names of CIFAR-100 in the file `meta` of the Python version."""
    try:
        return [str(name) for name in _unpickled(path, raw)["fine_label_names"]]
    except (KeyError, TypeError):
        raise broken(path, "has no class names", code="data.wrong-class-names") from None


def _unpickled(path: Path, raw: bytes) -> Any:
    try:
        return pickled.read(raw)
    except ValueError as error:
        raise broken(path, f"cannot be read ({error})", code="data.wrong-format") from None


def matlab(path: Path, raw: bytes, *names: str) -> list[Array]:
    """The variables of these names in a MATLAB file."""
    from scipy.io import loadmat

    try:
        found = loadmat(io.BytesIO(raw), variable_names=names)
        return [np.asarray(found[name]) for name in names]
    except Exception:  # a damaged file can make the parser raise anything
        raise broken(path, f"is not a MATLAB file with {' and '.join(names)}", code="data.wrong-format") from None


def leaf(folder: Path) -> Iterator[tuple[Path, str, list[Any], list[Any]]]:
    """File, user, inputs and labels of each user in a folder of JSON files from LEAF."""
    paths = sorted(folder.glob("*.json"))
    if not paths:
        raise broken(folder, "has no JSON files", code="data.missing-file")
    for path in paths:
        try:
            data = json.loads(content(path))
            users = [(user, data["user_data"][user]["x"], data["user_data"][user]["y"]) for user in data["users"]]
            counts = [(len(x), len(y)) for _, x, y in users]
        except (ValueError, KeyError, TypeError, RecursionError):
            raise broken(path, "is not a JSON file of LEAF", code="data.wrong-format") from None
        if counts != [(number, number) for number in data.get("num_samples", [len(x) for _, x, _ in users])]:
            raise broken(path, "does not have the numbers of samples it states", code="data.wrong-length")
        yield from ((path, *user) for user in users)


def files(place: Path, names: Iterable[str]) -> dict[str, bytes]:
    """The content of these files in a folder or a tar archive, by name."""
    wanted = set(names)
    found = {name: (place / name).read_bytes() for name in wanted if (place / name).is_file()}
    if place.is_file():
        found = _untar(place, wanted)
    if missing := sorted(wanted - found.keys()):
        raise broken(place, f"has no file {missing[0]}", code="data.missing-file")
    return found


def _untar(path: Path, wanted: set[str]) -> dict[str, bytes]:
    found = {}
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                file = archive.extractfile(member)
                if file and (name := Path(member.name).name) in wanted:
                    found[name] = file.read()
    except _UNREADABLE:
        raise broken(path, "is damaged or cut short", code="data.damaged-file") from None
    return found


@contextmanager
def tree(place: Path) -> Iterator[tuple[list[str], Callable[[str], IO[bytes]]]]:
    """The sorted names of all files in a folder or a zip archive, and a function that opens one of them."""
    if place.is_dir():
        paths = (path for path in place.rglob("*") if path.is_file())
        yield sorted(path.relative_to(place).as_posix() for path in paths), lambda name: (place / name).open("rb")
        return
    try:
        archive = zipfile.ZipFile(place)
    except _UNREADABLE:
        raise broken(place, "is damaged or cut short", code="data.damaged-file") from None
    with archive:
        names = sorted(item.filename for item in archive.infolist() if not item.is_dir())
        yield names, lambda name: io.BytesIO(_member(place, archive, name))


def _member(path: Path, archive: zipfile.ZipFile, name: str) -> bytes:
    try:
        return archive.read(name)
    except KeyError:
        raise broken(path, f"has no file {name}", code="data.missing-file") from None
    except _UNREADABLE:
        raise broken(path, f"is damaged at {name}", code="data.damaged-file") from None


def zipped(path: Path, name: str) -> bytes:
    """The bytes of one file in a zip archive."""
    with tree(path) as (_, opener), opener(name) as file:
        return file.read()


def checked(path: Path, x: Pixels, y: NDArray[np.integer[Any]], shape: tuple[int, ...], classes: int) -> Pair:
    """Images and labels, if their number and shape are as expected."""
    if x.shape != shape or y.shape != shape[:1]:
        raise broken(
            path, f"has {len(y):,} labels and images {x.shape}, and should have images {shape}", code="data.wrong-shape"
        )
    if y.min() < 0 or y.max() >= classes:
        raise broken(
            path,
            f"has labels from {y.min()} to {y.max()}, and should have 0 to {classes - 1}",
            code="data.wrong-labels",
        )
    return x, y.astype(np.int64)
