"""Data sets: the one that ships with the package, and the user's own `.npz` file."""

import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import resources
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.errors import TacitError, unknown
from tacit.federation import UNLABELED
from tacit.random import Streams

TEST_EVERY = 5  # a file without test arrays lends every fifth labeled sample (20 %) to the test set
MOST_CHANNELS = 4  # an axis this short holds colours; a longer one is a side of the image

Array = NDArray[np.generic]
Pair = tuple[NDArray[np.uint8], NDArray[np.int64]]  # images (n, c, h, w) and labels (n,)


@dataclass(frozen=True, eq=False)
class Source:
    """A data set in memory, with what a network needs to know about its images."""

    name: str
    x: Tensor = field(repr=False)  # (n, channels, height, width) uint8
    y: Tensor = field(repr=False)  # (n,) int64, -1 where nobody knows the label
    x_test: Tensor = field(repr=False)
    y_test: Tensor = field(repr=False)
    classes: tuple[str, ...]
    mean: tuple[float, ...]  # per channel, of training pixels scaled to 0..1
    std: tuple[float, ...]
    flip: bool  # flipped images look like others of their class
    shift: int | None = None  # pixels the weak view moves images by at most; an eighth of the side when not given


def find(name: str) -> Callable[[], Source]:
    """What loads the data set of this name, or the one in the `.npz` file of this path."""
    if name.endswith(".npz"):
        return partial(from_file, Path(name))
    if name not in SOURCES:
        raise unknown("data set", name, SOURCES)
    return SOURCES[name]


def load(name: str) -> Source:
    """The data set of this name, or the one in the `.npz` file of this path."""
    return find(name)()


def fashion_small() -> Source:
    """6,000 + 1,000 images of clothes, 28×28 grey, 10 classes (a subset of Fashion-MNIST)."""
    classes = ("T-shirt", "trousers", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
    with resources.as_file(resources.files("tacit.data") / "fashion_small.npz") as path:
        arrays = _read(path)
    train, test = (_pair(path, arrays, f"x_{part}", f"y_{part}") for part in ("train", "test"))
    # All shoes point left and every garment fills its frame, so flips and wide shifts make images there are none of.
    return replace(_source("fashion-small", train, test, classes, flip=False), shift=2)


def from_file(path: Path) -> Source:
    """The data set in a `.npz` file with `x`, `y` and, if there is one, a test set `x_test`, `y_test`.

    x is uint8 of shape (n, h, w), (n, h, w, channels) or (n, channels, h, w); y holds classes 0, 1, 2, … and -1 for
    unlabeled samples, whose true label then nobody knows. Without test arrays, 20 % of the labeled samples become
    the test set, always the same ones. Images are never flipped: a file does not say whether that keeps labels.
    """
    arrays = _read(path)
    train = _pair(path, arrays, "x", "y")
    classes = _count_classes(path, train[1])
    if {"x_test", "y_test"} & arrays.keys():
        test = _pair(path, arrays, "x_test", "y_test")
        _check_test(path, train[0], *test, classes)
    else:
        train, test = _hold_out(path, *train)
    return _source(str(path), train, test, tuple(map(str, range(classes))), flip=False)


SOURCES: dict[str, Callable[[], Source]] = {"fashion-small": fashion_small}


def _source(name: str, train: Pair, test: Pair, classes: tuple[str, ...], *, flip: bool) -> Source:
    mean, std = _statistics(train[0])
    x, y, x_test, y_test = (torch.from_numpy(np.ascontiguousarray(array)) for array in (*train, *test))
    return Source(name, x, y, x_test, y_test, classes, mean, std, flip)


def _statistics(x: NDArray[np.uint8]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation per channel of (n, c, h, w), from exact counts of the 256 values."""
    values = np.arange(256) / 255
    mean, std = [], []
    for channel in range(x.shape[1]):
        share = np.bincount(x[:, channel].reshape(-1), minlength=256) / x[:, channel].size
        mean.append(float(share @ values))
        std.append(float(np.sqrt(share @ (values - mean[-1]) ** 2)))
    return tuple(mean), tuple(max(s, 1 / 255) for s in std)  # a constant channel must not divide by zero


def _read(path: Path) -> dict[str, Array]:
    """All arrays of a `.npz` file."""
    if not path.is_file():
        raise TacitError(f"there is no file {path}: check the path")
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return dict(archive)
    except (OSError, ValueError, EOFError, TypeError, zipfile.BadZipFile, zlib.error, NotImplementedError):
        raise TacitError(f"{path} can not be read: write it again with numpy.savez(path, x=…, y=…)") from None


def _pair(path: Path, arrays: dict[str, Array], x_name: str, y_name: str) -> Pair:
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


def _images(x: Array) -> NDArray[np.uint8]:
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


def _count_classes(path: Path, y: NDArray[np.int64]) -> int:
    """How many classes there are; they must be numbered 0, 1, 2, … without a gap."""
    found = np.unique(y[y != UNLABELED])
    if not len(found):
        raise TacitError(f"y in {path} is -1 everywhere: give at least some samples of every class a label")
    if found[0] < 0 or found[-1] != len(found) - 1:
        raise TacitError(
            f"the {len(found)} classes in {path} are numbered {found[0]} to {found[-1]}: "
            f"number them 0 to {len(found) - 1}, with -1 for unlabeled"
        )
    return len(found)


def _check_test(
    path: Path, x: NDArray[np.uint8], x_test: NDArray[np.uint8], y_test: NDArray[np.int64], classes: int
) -> None:
    if x.shape[1:] != x_test.shape[1:]:
        raise TacitError(f"images in {path} are {x.shape[1:]} in x and {x_test.shape[1:]} in x_test: make them alike")
    if y_test.min() < 0 or y_test.max() >= classes:
        raise TacitError(f"y_test in {path} has labels outside 0 to {classes - 1}: keep only classes that y has")


def _hold_out(path: Path, x: NDArray[np.uint8], y: NDArray[np.int64]) -> tuple[Pair, Pair]:
    """Training and test part of a file without test arrays, the test classes in the proportion of the labels."""
    labeled = Streams(0).numpy_at("hold out").permutation(np.flatnonzero(y != UNLABELED))
    by_class = labeled[np.argsort(y[labeled], kind="stable")]
    test = np.sort(by_class[TEST_EVERY - 1 :: TEST_EVERY])
    if not len(test):
        raise TacitError(f"{path} has {len(labeled)} labels, too few to test on: add the arrays x_test and y_test")
    train = np.setdiff1d(np.arange(len(y)), test, assume_unique=True)
    return (x[train], y[train]), (x[test], y[test])
