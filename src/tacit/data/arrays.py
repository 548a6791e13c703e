"""A data set in memory, and what every reader of files needs to make one."""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.errors import TacitError
from tacit.federation import UNLABELED
from tacit.random import Streams

TEST_EVERY = 5  # data without a test set lends every fifth labeled sample (20 %) to it
_BLOCK = 1000  # images counted at a time: the counter widens its input eightfold

Array = NDArray[np.generic]
Pixels = NDArray[np.uint8]
Labels = NDArray[np.int64]
Pair = tuple[Pixels, Labels]  # images (n, c, h, w) or texts (n, length), and labels (n,)


@dataclass(frozen=True, eq=False)
class Source:
    """A data set in memory, with what a network needs to know about its samples."""

    name: str
    x: Tensor = field(repr=False)  # (n, channels, height, width) uint8; text: (n, length) uint8 character codes
    y: Tensor = field(repr=False)  # (n,) int64, -1 where nobody knows the label
    x_test: Tensor = field(repr=False)
    y_test: Tensor = field(repr=False)
    classes: tuple[str, ...]
    mean: tuple[float, ...]  # per channel, of training pixels scaled to 0..1; empty for text
    std: tuple[float, ...]
    flip: bool  # flipped images look like others of their class
    shift: int | None = None  # pixels the weak view moves images by at most; an eighth of the side when not given
    groups: Tensor | None = field(default=None, repr=False)  # (n,) int64: who wrote or spoke each, numbered 0, 1, 2, …
    note: str = ""  # what its reader did to the images, in sentences
    bits: int | None = None  # of the 16 that deep grey images were scaled from; None without such images
    text: bool = False  # x holds codes 0 … of the characters in `classes`, and y is the character that follows


def image_source(
    name: str,
    train: Pair,
    test: Pair,
    classes: tuple[str, ...],
    *,
    flip: bool,
    shift: int | None = None,
    groups: Labels | None = None,
    note: str = "",
    bits: int | None = None,
) -> Source:
    """Images and labels as a `Source`, with the statistics of the training pixels."""
    mean, std = _statistics(train[0])
    return Source(name, *_tensors(train, test), classes, mean, std, flip, shift, _grouped(groups), note, bits)


def text_source(name: str, train: Pair, test: Pair, alphabet: tuple[str, ...], groups: Labels) -> Source:
    """Windows of character codes and the code that follows each, as a `Source`."""
    return Source(name, *_tensors(train, test), alphabet, (), (), flip=False, groups=_grouped(groups), text=True)


def hold_out(where: Path, y: Labels, remedy: str) -> tuple[Labels, Labels]:
    """Positions of the training and test part of data without a test set.

    20 % of the labeled samples, always the same ones, the test classes in the proportion of the labels.
    """
    labeled = Streams(0).numpy_at("hold out").permutation(np.flatnonzero(y != UNLABELED))
    by_class = labeled[np.argsort(y[labeled], kind="stable")]
    test = np.sort(by_class[TEST_EVERY - 1 :: TEST_EVERY])
    if not len(test):
        raise TacitError(f"{where} has too few labeled samples to test on ({len(labeled)}): {remedy}")
    return np.setdiff1d(np.arange(len(y)), test, assume_unique=True), test


def _tensors(train: Pair, test: Pair) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    # Arrays over the bytes of a file may not be written to, and torch wants no such memory.
    arrays = (np.require(array, requirements=["C", "W"]) for array in (*train, *test))
    x, y, x_test, y_test = map(torch.from_numpy, arrays)
    return x, y, x_test, y_test


def _grouped(groups: Labels | None) -> Tensor | None:
    return None if groups is None else torch.from_numpy(groups.astype(np.int64))


def _statistics(x: Pixels) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation per channel of (n, c, h, w), from exact counts of the 256 values."""
    values = np.arange(256) / 255
    counts = np.zeros((x.shape[1], 256), dtype=np.int64)
    for start in range(0, len(x), _BLOCK):
        for channel in range(x.shape[1]):
            counts[channel] += np.bincount(x[start : start + _BLOCK, channel].reshape(-1), minlength=256)
    share = counts / counts.sum(axis=1, keepdims=True)
    mean = share @ values
    std = np.sqrt((share * (values - mean[:, None]) ** 2).sum(axis=1))
    return tuple(mean.tolist()), tuple(max(s, 1 / 255) for s in std.tolist())  # a constant channel divides by no zero
