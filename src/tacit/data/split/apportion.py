"""Turn shares into whole numbers of samples, and owners into positions."""

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]


def by_owner(owner: Indices, clients: int) -> list[Indices]:
    """The ascending positions each client owns, where sample i belongs to client `owner[i]`."""
    ends = np.cumsum(np.bincount(owner, minlength=clients))
    return np.split(np.argsort(owner, kind="stable"), ends[:-1])


def by_shares(labels: Indices, shares: NDArray[np.float64], rng: np.random.Generator) -> list[Indices]:
    """Divide every class among the clients at random, in proportion to its column of `shares` (clients, classes)."""
    names, of_class = np.unique(labels, return_counts=True)
    counts = _rounded(shares / shares.sum(axis=0) * of_class, rng)
    owner = np.empty(len(labels), dtype=np.int64)
    for column, name in enumerate(names):
        samples = rng.permutation(np.flatnonzero(labels == name))
        owner[samples] = np.repeat(np.arange(len(shares)), counts[:, column])
    return by_owner(owner, len(shares))


def largest_remainder(share: NDArray[np.float64], total: int) -> Indices:
    """`total` in whole parts proportional to `share`."""
    exact = share / share.sum() * total
    parts: Indices = np.floor(exact + 1e-9).astype(np.int64)
    parts[np.argsort(parts - exact, kind="stable")[: total - parts.sum()]] += 1
    return parts


def _rounded(expected: NDArray[np.float64], rng: np.random.Generator) -> Indices:
    """Round `expected` (clients, classes) to its column sums exactly and to its row sums as closely as possible."""
    counts: Indices = np.floor(expected + 1e-9).astype(np.int64)
    cut = expected - counts > 1e-9  # clients rounded down in a class; each may get one sample more
    missing = largest_remainder(expected.sum(axis=1), round(expected.sum())) - counts.sum(axis=1)
    chances = cut.sum(axis=1)
    for column, left in enumerate(np.rint(expected.sum(axis=0)).astype(np.int64) - counts.sum(axis=0)):
        spare = chances - missing
        last = np.where(cut[:, column], missing < 1, 2)  # clients with enough come later, those not cut here last
        first = np.lexsort((rng.random(len(counts)), spare, last))[:left]  # fewest spare chances first
        counts[first, column] += 1
        missing[first] -= 1
        chances -= cut[:, column]
    return counts
