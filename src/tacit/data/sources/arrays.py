"""A data set in memory, and helpers for readers that make one."""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.data.inputs import CharacterInputs, ImageInputs, VectorInputs
from tacit.errors import TacitError
from tacit.federation import UNLABELED, Inputs
from tacit.random import Streams

TEST_EVERY = 5  # without a test set, every fifth labeled sample (20 %) becomes one
_ROUNDING = 1e-6  # relative deviation below which float32 features differ by rounding only
_BLOCK = 1000  # images counted at a time: bincount makes its input eight times larger

Array = NDArray[np.generic]
Pixels = NDArray[np.uint8]
Floats = NDArray[np.float32]
Labels = NDArray[np.int64]
Pair = tuple[Pixels, Labels]  # images (n, c, h, w) or texts (n, length), and labels (n,)
Rows = tuple[Floats, Labels]  # features (n, d), and labels (n,)


@dataclass(frozen=True, eq=False)
class Source:
    """A data set in memory, with what a network needs to know about its samples."""

    name: str
    x: Tensor = field(repr=False)  # (n, …), stored as `inputs` says
    y: Tensor = field(repr=False)  # (n,) int64, -1 where the label is unknown
    x_test: Tensor = field(repr=False)
    y_test: Tensor = field(repr=False)
    classes: tuple[str, ...]
    inputs: Inputs  # what a sample is
    groups: Tensor | None = field(default=None, repr=False)  # (n,) int64: the writer, speaker or patient, 0, 1, 2, …
    note: str = ""  # what the reader did to the samples, in sentences
    whole_groups: bool = False  # a group is never divided between validation and training, or between clients
    unknown: tuple[str, ...] = ()  # classes that the model does not have, numbered after `classes`
    left_out: int = 0  # files that could not be read
    held_out: bool = False  # test samples are labeled ones that the reader held out, since there were no others
    test_groups: Tensor | None = field(
        default=None, repr=False
    )  # of samples held out; numbers that mean others than `groups`

    @property
    def every_class(self) -> tuple[str, ...]:
        """The classes of the model and the unknown ones: what a number in `y` stands for."""
        return self.classes + self.unknown


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
    sizes: tuple[int, ...] = (),
    whole_groups: bool = False,
) -> Source:
    """Images and labels as a `Source`, with the statistics of the training pixels."""
    shape = (int(train[0].shape[1]), int(train[0].shape[2]), int(train[0].shape[3]))
    inputs = ImageInputs(shape, *_statistics(train[0]), flip, shift, bits, sizes)
    return Source(name, *_tensors(train, test), classes, inputs, _grouped(groups), note, whole_groups)


def text_source(name: str, train: Pair, test: Pair, alphabet: tuple[str, ...], groups: Labels) -> Source:
    """Windows of character codes and the code after each, as a `Source`."""
    inputs = CharacterInputs((int(train[0].shape[1]),), alphabet)
    return Source(name, *_tensors(train, test), alphabet, inputs, _grouped(groups))


def vector_source(
    name: str,
    train: Rows,
    test: Rows,
    classes: tuple[str, ...],
    features: tuple[str, ...],
    groups: Labels | None = None,
) -> Source:
    """Rows of features and labels as a `Source`, with the statistics of the training rows."""
    x = train[0].astype(np.float64)
    mean, std = x.mean(axis=0), x.std(axis=0)
    std[std <= _ROUNDING * np.abs(mean)] = 1.0  # a constant feature
    inputs = VectorInputs(features, tuple(mean.tolist()), tuple(std.tolist()))
    return Source(name, *_tensors(train, test), classes, inputs, _grouped(groups), whole_groups=groups is not None)


def hold_out(where: Path, y: Labels, remedy: str) -> tuple[Labels, Labels]:
    """Positions of the training and test part of data without a test set.

    The test part is 20 % of the labeled samples, always the same ones, with the class proportions of the labels.
    """
    labeled = Streams(0).numpy_at("hold out").permutation(np.flatnonzero(y != UNLABELED))
    by_class = labeled[np.argsort(y[labeled], kind="stable")]
    test = np.sort(by_class[TEST_EVERY - 1 :: TEST_EVERY])
    if not len(test):
        problem = f"{where} has too few labeled samples to test on ({len(labeled)})"
        raise TacitError(problem, remedy, code="data.too-few-labels")
    return np.setdiff1d(np.arange(len(y)), test, assume_unique=True), test


def hold_out_groups(where: Path, y: Labels, groups: Labels, remedy: str) -> tuple[Labels, Labels]:
    """Like `hold_out`, but whole groups: about 20 % of the labeled samples, and none of a class's last group.

    Unlabeled samples of the groups held out are in neither part.
    """
    held = groups_to_hold_out(y, groups, Streams(0).numpy_at("hold out"))
    if not held.any():
        problem = f"{where} has too few groups with labels to test on"
        raise TacitError(problem, remedy, code="data.too-few-groups-to-test")
    return np.flatnonzero(~held[groups]), np.flatnonzero(held[groups] & (y != UNLABELED))


def groups_to_hold_out(y: Labels, groups: Labels, stream: np.random.Generator) -> NDArray[np.bool_]:
    """By the number of a group, whether it is among those held out: about 20 % of the labels, no class's last group."""
    labeled = y != UNLABELED
    counts = np.zeros((groups.max() + 1, y.max() + 1), dtype=np.int64)
    np.add.at(counts, (groups[labeled], y[labeled]), 1)
    left, held = counts.sum(axis=0), np.zeros(len(counts), dtype=np.bool_)
    for group in stream.permutation(np.flatnonzero(counts.any(axis=1))):
        enough = counts[held].sum() * TEST_EVERY >= labeled.sum()
        if not enough and ((left - counts[group]) > 0)[counts[group] > 0].all():
            held[group], left = True, left - counts[group]
    return held


def _tensors(train: Pair | Rows, test: Pair | Rows) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    # Arrays over the bytes of a file are read-only, which torch does not accept.
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
    return tuple(mean.tolist()), tuple(max(s, 1 / 255) for s in std.tolist())  # 1 / 255 for a constant channel, not 0
