"""Draw samples without replacement: what one draw takes is gone for the next.

A draw takes from orders that are the same for any amount (`Orders`), or as in Tacit 0.1 from a stream of its own.
"""

from collections.abc import Sequence

import numpy as np

from tacit.data.split.apportion import Indices, largest_remainder
from tacit.data.split.orders import Orders
from tacit.errors import TacitError
from tacit.federation import UNLABELED
from tacit.random import Streams


class SamplePool:
    """Samples that are still available; every draw removes what it takes."""

    def __init__(
        self, y: Indices, classes: int, streams: Streams, names: Sequence[str], orders: Orders | None = None
    ) -> None:
        """All samples with these true labels; without `orders`, draws as in 0.1.

        A label is -1 if it is not known, and at least `classes` if it is that of a class the model does not have. Draws
        of labels, validation and test samples take neither.
        """
        self.y, self.classes, self.streams, self.orders = y, classes, streams, orders
        self.names = names or [str(number) for number in range(classes)]
        self.left: Indices = np.arange(len(y))
        self.has_class = (y != UNLABELED) & (y < classes)  # of the model's

    @property
    def known(self) -> Indices:
        """The samples left that have a known label, of a class of the model."""
        known: Indices = self.left[self.has_class[self.left]]
        return known

    @property
    def available(self) -> Indices:
        """How many samples of each class have a known label."""
        counts: Indices = np.bincount(self.y[self.known], minlength=self.classes)
        return counts

    @property
    def rarest(self) -> str:
        """The name of the class with the fewest known labels."""
        return self.names[int(self.available.argmin())]

    def take(self, use: str, want: Indices) -> Indices:
        """Draw `want[c]` random samples of every class c."""
        taken = self.choose(use, self.known, want, self.streams.numpy_at(use))
        self.left = np.setdiff1d(self.left, taken, assume_unique=True)
        return taken

    def choose(self, use: str, samples: Indices, want: Indices, rng: np.random.Generator) -> Indices:
        """`want[c]` of these samples of every class c, ascending; nothing is removed."""
        return first_per_class(self.y, self.mixed(use, samples, rng), want)

    def mixed(self, use: str, samples: Indices, rng: np.random.Generator) -> Indices:
        """These samples in random order."""
        mixed: Indices = rng.permutation(samples) if self.orders is None else self.orders.prefer(use, samples)
        return mixed

    def spread(self, available: Indices, total: int, rng: np.random.Generator) -> Indices:
        """Spread `total` as evenly as what is `available` at each place allows; random places get the remainder."""
        return spread(available, total, rng, fixed=self.orders is not None)

    def take_evenly(self, use: str, count: int) -> Indices:
        """Draw `count` random samples, as evenly over the classes as possible."""
        if not 0 <= count <= len(self.known):
            raise _too_few(use, count, len(self.known))
        return self.take(use, self.spread(self.available, count, self.streams.numpy_at(f"{use} classes")))

    def take_groups(self, use: str, count: int, groups: Indices) -> Indices:
        """Draw whole groups until they have `count` samples with a known label, and leave some of every class.

        The other samples of these groups are gone too.
        """
        if not 0 <= count <= len(self.known):
            raise _too_few(use, count, len(self.known))
        taken, label = self.left[:0], self.y[self.known]
        for group in self.streams.numpy_at(use).permutation(np.unique(groups[self.known])):
            mine = groups[self.known] == group
            if len(taken) < count and np.isin(label[mine], label[~mine & ~np.isin(self.known, taken)]).all():
                taken = np.concatenate([taken, self.known[mine]])
        if len(taken) < count:
            raise _too_few(use, count, len(taken))
        self.left = self.left[~np.isin(groups[self.left], groups[taken])]
        return np.sort(taken)

    def reduce_to(self, count: int | None) -> None:
        """Leave `count` samples in the same class proportions, unlabeled ones included; all if `count` is None."""
        if count is None:
            return
        if count > len(self.left):
            raise TacitError(
                f"data.samples asks for {count} training samples and there are {len(self.left)}",
                "lower data.samples",
                code="data.too-few-samples",
            )
        if self.orders is not None:
            self.left = np.sort(self.orders.prefer("samples", self.left)[:count])
            return
        kinds = self.y + 1  # unlabeled samples count as one more class, the first
        want = largest_remainder(np.bincount(kinds[self.left]).astype(np.float64), count)
        self.left = first_per_class(kinds, self.streams.numpy_at("samples").permutation(self.left), want)


def _too_few(use: str, count: int, there: int) -> TacitError:
    return TacitError(
        f"{count} {use} samples cannot be drawn from {there} with a known label",
        f"lower data.{use}",
        code="data.too-few-samples",
    )


def first_per_class(y: Indices, mixed: Indices, want: Indices) -> Indices:
    """The first `want[c]` samples of every class c in this order; ascending."""
    by_class = mixed[np.argsort(y[mixed], kind="stable")]
    label = y[by_class]
    rank = np.arange(len(label)) - np.searchsorted(label, label)  # how many of its class come before it
    return np.sort(by_class[rank < want[label]])


def spread(available: Indices, total: int, rng: np.random.Generator, *, fixed: bool = False) -> Indices:
    """Spread `total` as evenly as what is `available` at each place allows; random places get the remainder.

    With `fixed`, the order of these places does not depend on which of them have room.
    """
    low, high = 0, total
    while low < high:  # find the highest level to which all places can be filled
        level = (low + high + 1) // 2
        low, high = (level, high) if np.minimum(available, level).sum() <= total else (low, level - 1)
    filled = np.minimum(available, low)
    if fixed:
        order = rng.permutation(len(available))
        order = order[available[order] > low]
    else:
        order = rng.permutation(np.flatnonzero(available > low))
    filled[order[: total - filled.sum()]] += 1
    return filled
