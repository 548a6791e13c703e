"""The user's own `.npz` file."""

import zipfile
import zlib
from pathlib import Path

import numpy as np

from tacit.data.arrays import Array, Labels, Pair, Pixels, Source, hold_out, image_source
from tacit.errors import TacitError
from tacit.federation import UNLABELED

MOST_CHANNELS = 4  # an axis this short holds colours; a longer one is a side of the image
_WRAPPED = {255: "uint8", 65_535: "uint16", 4_294_967_295: "uint32"}  # what -1 becomes in types without a sign


def from_file(path: Path) -> Source:
    """The data set in a `.npz` file with `x`, `y` and, if there is one, a test set `x_test`, `y_test`.

    x is uint8 of shape (n, h, w), (n, h, w, channels) or (n, channels, h, w); y holds classes 0, 1, 2, … and -1 for
    unlabeled samples, whose true label then nobody knows. Without test arrays, 20 % of the labeled samples become
    the test set, always the same ones. Images are never flipped: a file does not say whether that keeps labels.
    """
    arrays = read(path, "write it again with numpy.savez(path, x=…, y=…)")
    x, y = pair(path, arrays, "x", "y")
    classes = _count_classes(path, y)
    if {"x_test", "y_test"} & arrays.keys():
        train, test = (x, y), pair(path, arrays, "x_test", "y_test")
        _check_test(path, x, *test, classes)
    else:
        parts = hold_out(path, y, "add the arrays x_test and y_test")
        train, test = ((x[part], y[part]) for part in parts)
    return image_source(str(path), train, test, tuple(map(str, range(classes))), flip=False)


def part_of_file(path: Path, classes: tuple[str, ...]) -> Source:
    """What one holder of a federation with these classes has in a `.npz` file as `from_file` reads them.

    Labels count the federation's classes; some or all of these may be missing. Nothing is held out for testing.
    """
    arrays = read(path, "write it again with numpy.savez(path, x=…, y=…)")
    x, y = pair(path, arrays, "x", "y")
    has_test = bool({"x_test", "y_test"} & arrays.keys())
    x_test, y_test = pair(path, arrays, "x_test", "y_test") if has_test else (x[:0], y[:0])
    for found in (y, y_test):
        if len(strange := found[(found < UNLABELED) | (found >= len(classes))]):
            raise TacitError(
                f"{path} has a sample of class {strange[0]} and the federation's classes are 0 to {len(classes) - 1}, "
                f"from {classes[0]} to {classes[-1]}: number its classes like that, with -1 for unlabeled"
            )
    if has_test:
        _check_test(path, x, x_test, y_test, len(classes))
    return image_source(str(path), (x, y), (x_test, y_test), classes, flip=False)


def read(path: Path, remedy: str) -> dict[str, Array]:
    """All arrays of a `.npz` file."""
    if not path.is_file():
        raise TacitError(f"there is no file {path}: check the path")
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return dict(archive)
    except (OSError, ValueError, EOFError, TypeError, zipfile.BadZipFile, zlib.error, NotImplementedError):
        raise TacitError(f"{path} can not be read: {remedy}") from None


def pair(path: Path, arrays: dict[str, Array], x_name: str, y_name: str) -> Pair:
    """Images (n, c, h, w) and labels (n,) of one part of a file."""
    for name in (x_name, y_name):
        if name not in arrays:
            raise TacitError(f"{path} has no array {name}: add it with numpy.savez(path, {x_name}=…, {y_name}=…)")
    y = arrays[y_name]
    if y.ndim != 1 or y.dtype.kind not in "iu":
        raise TacitError(f"{y_name} in {path} is {_form(y)}: make it one whole number per image")
    try:
        x = _images(arrays[x_name])
    except ValueError as reason:
        raise TacitError(f"{x_name} in {path} is {reason}: make it uint8 of shape (n, h, w) or (n, h, w, c)") from None
    if len(x) != len(y) or not len(x):
        raise TacitError(f"{path} has {len(x)} images in {x_name} and {len(y)} labels in {y_name}: give each a label")
    return x, y.astype(np.int64)


def _images(x: Array) -> Pixels:
    """Any of the three layouts as (n, c, h, w)."""
    if x.dtype != np.uint8 or x.ndim not in (3, 4) or 0 in x.shape[1:]:
        raise ValueError(_form(x))
    pixels = x.astype(np.uint8, copy=False)
    if x.ndim == 3:
        return pixels[:, None]
    if x.shape[1] <= MOST_CHANNELS:
        return pixels
    if x.shape[3] <= MOST_CHANNELS:
        return pixels.transpose(0, 3, 1, 2)
    raise ValueError(_form(x))


def _form(array: Array) -> str:
    return f"{array.dtype} of shape {array.shape}"


def _count_classes(path: Path, y: Labels) -> int:
    """How many classes there are; they must be numbered 0, 1, 2, … without a gap."""
    found = np.unique(y[y != UNLABELED])
    if not len(found):
        raise TacitError(f"y in {path} is -1 everywhere: give at least some samples of every class a label")
    if found[0] < 0 or found[-1] != len(found) - 1:
        if kind := _WRAPPED.get(int(found[-1])):
            raise TacitError(f"{found[-1]} in y of {path} looks like -1 stored as {kind}: save y as int64")
        raise TacitError(
            f"the {len(found)} classes in {path} are numbered {found[0]} to {found[-1]}: "
            f"number them 0 to {len(found) - 1}, with -1 for unlabeled"
        )
    return len(found)


def _check_test(path: Path, x: Pixels, x_test: Pixels, y_test: Labels, classes: int) -> None:
    if x.shape[1:] != x_test.shape[1:]:
        raise TacitError(f"images in {path} are {x.shape[1:]} in x and {x_test.shape[1:]} in x_test: make them alike")
    if y_test.min() < 0 or y_test.max() >= classes:
        raise TacitError(f"y_test in {path} has labels outside 0 to {classes - 1}: keep only classes that y has")
