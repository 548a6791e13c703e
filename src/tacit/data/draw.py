"""Drawing without putting back: samples for one use are gone for the next, and every use has its own stream."""

from collections.abc import Sequence

import numpy as np

from tacit.data import partition as partitions
from tacit.data.partition import Indices
from tacit.errors import TacitError
from tacit.federation import UNLABELED
from tacit.random import Streams


class Draw:
    """Samples that are still to be had; every draw takes its own away."""

    def __init__(self, y: Indices, classes: int, streams: Streams, names: Sequence[str]) -> None:
        """All samples with these true labels, -1 where nobody knows it."""
        self.y, self.classes, self.streams = y, classes, streams
        self.names = names or [str(number) for number in range(classes)]
        self.left: Indices = np.arange(len(y))

    @property
    def known(self) -> Indices:
        """Those with a known label."""
        known: Indices = self.left[self.y[self.left] != UNLABELED]
        return known

    @property
    def room(self) -> Indices:
        """How many of each class have a known label."""
        counts: Indices = np.bincount(self.y[self.known], minlength=self.classes)
        return counts

    @property
    def rarest(self) -> str:
        """The name of the class with the fewest known labels."""
        return self.names[int(self.room.argmin())]

    def take(self, use: str, want: Indices) -> Indices:
        """`want[c]` random samples of every class c."""
        taken = draw_of_classes(self.y, self.known, want, self.streams.numpy_at(use))
        self.left = np.setdiff1d(self.left, taken, assume_unique=True)
        return taken

    def evenly(self, use: str, count: int) -> Indices:
        """So many random samples, as evenly over the classes as these allow."""
        if not 0 <= count <= len(self.known):
            raise TacitError(
                f"{count} {use} samples can not be drawn from {len(self.known)} with a known label: lower data.{use}"
            )
        return self.take(use, spread(self.room, count, self.streams.numpy_at(f"{use} classes")))

    def keep_only(self, count: int | None) -> None:
        """Leave so many samples in all, the mix of classes (and of samples without one) kept."""
        if count is None:
            return
        if count > len(self.left):
            raise TacitError(
                f"{count} training samples are asked for and {len(self.left)} are there: lower data.samples"
            )
        kinds = self.y + 1  # those without a class are one more, the first
        want = partitions.largest_remainder(np.bincount(kinds[self.left]).astype(np.float64), count)
        self.left = draw_of_classes(kinds, self.left, want, self.streams.numpy_at("samples"))


def draw_of_classes(y: Indices, samples: Indices, want: Indices, rng: np.random.Generator) -> Indices:
    """Ascending: `want[c]` random samples of every class c."""
    mixed = rng.permutation(samples)
    by_class = mixed[np.argsort(y[mixed], kind="stable")]
    label = y[by_class]
    rank = np.arange(len(label)) - np.searchsorted(label, label)  # how many of its class stand before it
    return np.sort(by_class[rank < want[label]])


def spread(room: Indices, total: int, rng: np.random.Generator) -> Indices:
    """Spread `total` over places, as evenly as their `room` allows; random places get what is left over."""
    low, high = 0, total
    while low < high:  # the highest level to which all places can be filled
        level = (low + high + 1) // 2
        low, high = (level, high) if np.minimum(room, level).sum() <= total else (low, level - 1)
    filled = np.minimum(room, low)
    filled[rng.permutation(np.flatnonzero(room > low))[: total - filled.sum()]] += 1
    return filled
