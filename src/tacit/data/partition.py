"""Who holds which sample: ways to deal a labeled pool to clients.

Each way takes the labels of the pool, the number of clients and a random generator, and returns one ascending array
of positions per client. No sample is lost and none is dealt twice.
"""

from collections.abc import Callable
from math import ceil

import numpy as np
from numpy.typing import NDArray

from tacit.errors import TacitError, unknown
from tacit.federation import UNLABELED

Indices = NDArray[np.int64]

TRIES = 300  # how often `dirichlet` draws again for a client that got too little


def iid(labels: Indices, clients: int, rng: np.random.Generator) -> list[Indices]:
    """Every client gets a random part of the same size."""
    return _by_owner(rng.permutation(np.arange(len(labels)) % clients), clients)


def dirichlet(labels: Indices, clients: int, rng: np.random.Generator, beta: float, minimum: int = 10) -> list[Indices]:
    """Each class is cut over the clients by Dirichlet(β) shares; a smaller β is less even (MOON)."""
    minimum = min(minimum, _attainable(len(labels), clients))
    for _ in range(TRIES):
        owner = _dirichlet_owner(labels, clients, rng, beta)
        if np.bincount(owner, minlength=clients).min() >= minimum:
            return _by_owner(owner, clients)
    raise TacitError(
        f"in {TRIES} draws of dirichlet:{beta:g} one of {clients} clients always had fewer than {minimum} of "
        f"{len(labels)} samples: use fewer clients, or a number greater than {beta:g}"
    )


def classes(labels: Indices, clients: int, rng: np.random.Generator, count: int) -> list[Indices]:
    """Every client gets samples of so many random classes; a class is dealt evenly to those who have it."""
    names = np.unique(labels)
    if not len(names) / clients <= count <= len(names):
        raise TacitError(
            f"classes:{count} over {clients} clients does not fit {len(names)} classes: "
            f"use a number from {ceil(len(names) / clients)} to {len(names)}"
        )
    has = _classes_per_client(len(names), clients, rng, count)
    owner = np.empty(len(labels), dtype=np.int64)
    for position, name in enumerate(names):
        owners = rng.permutation(np.flatnonzero((has == position).any(axis=1)))
        samples = rng.permutation(np.flatnonzero(labels == name))
        owner[samples] = np.resize(owners, len(samples))
    return _by_owner(owner, clients)


def shards(labels: Indices, clients: int, rng: np.random.Generator, count: int) -> list[Indices]:
    """Samples sorted by label are cut into equal shards; every client gets so many of them (McMahan)."""
    total = clients * count
    if len(labels) < total:
        raise TacitError(f"shards:{count} over {clients} clients needs {total} samples, not {len(labels)}: use fewer")
    by_label = np.lexsort((rng.permutation(len(labels)), labels))
    shard_owner = rng.permutation(np.repeat(np.arange(clients), count))
    owner = np.empty(len(labels), dtype=np.int64)
    owner[by_label] = shard_owner[np.arange(len(labels)) * total // len(labels)]
    return _by_owner(owner, clients)


PARTITIONS: dict[str, Callable[..., list[Indices]]] = {
    "iid": iid,
    "dirichlet": dirichlet,
    "classes": classes,
    "shards": shards,
}

# What follows the colon: how it is read, and how to say what is missing.
_NUMBERS: dict[str, tuple[type[int] | type[float], str]] = {
    "dirichlet": (float, "a positive number, such as dirichlet:0.3"),
    "classes": (int, "a whole number of classes, such as classes:2"),
    "shards": (int, "a whole number of shards, such as shards:2"),
}


def partition(spec: str, labels: Indices, clients: int, rng: np.random.Generator) -> list[Indices]:
    """Deal as `spec` says: `iid`, `dirichlet:0.3`, `classes:2`, `shards:2`.

    Samples without a label have no class to go by and are dealt evenly.
    """
    name, numbers = parse(spec)
    if clients < 1:
        raise TacitError(f"{clients} clients can not hold data: use at least 1")
    known, rest = np.flatnonzero(labels != UNLABELED), np.flatnonzero(labels == UNLABELED)
    parts = PARTITIONS[name](labels[known], clients, rng, *numbers)
    if not len(rest):
        return parts
    extra = iid(labels[rest], clients, rng)
    return [np.sort(np.concatenate([known[a], rest[b]])) for a, b in zip(parts, extra, strict=True)]


def parse(spec: str) -> tuple[str, tuple[float, ...]]:
    """The name of a partition and the numbers it takes, out of what a user wrote."""
    name, colon, text = spec.partition(":")
    if name not in PARTITIONS:
        raise unknown("partition", name, PARTITIONS)
    if name not in _NUMBERS:
        if colon:
            raise TacitError(f"{name} takes no number: write {name} instead of {spec}")
        return name, ()
    read, form = _NUMBERS[name]
    try:
        number = read(text)
    except ValueError:
        number = 0
    if not 0 < number < np.inf:
        raise TacitError(f"{name} needs {form}")
    return name, (number,)


def _by_owner(owner: Indices, clients: int) -> list[Indices]:
    """The ascending positions each client owns, when sample i belongs to client `owner[i]`."""
    ends = np.cumsum(np.bincount(owner, minlength=clients))
    return np.split(np.argsort(owner, kind="stable"), ends[:-1])


def _attainable(samples: int, clients: int) -> int:
    """The fewest samples a skewed draw can promise a client: one in fifty of an equal part.

    Ten is that for CIFAR-10 over 100 clients, a usual setting; with fewer samples per client ten is hardly ever drawn.
    """
    return min(ceil(samples / clients / 50), samples // clients)


def _dirichlet_owner(labels: Indices, clients: int, rng: np.random.Generator, beta: float) -> Indices:
    """One draw: the client of every sample."""
    owner = np.empty(len(labels), dtype=np.int64)
    held = np.zeros(clients, dtype=np.int64)
    for name in np.unique(labels):
        samples = rng.permutation(np.flatnonzero(labels == name))
        open_to = held < len(labels) / clients  # a client with its equal part gets nothing of later classes
        share = rng.dirichlet(np.full(clients, beta)) * open_to
        if not share.sum():  # a tiny β can give everything to clients that are full
            share = open_to.astype(np.float64)
        cuts = (np.cumsum(share / share.sum()) * len(samples)).astype(np.int64)[:-1]
        counts = np.diff(cuts, prepend=0, append=len(samples))
        owner[samples] = np.repeat(np.arange(clients), counts)
        held += counts
    return owner


def _classes_per_client(names: int, clients: int, rng: np.random.Generator, count: int) -> Indices:
    """(clients, count): random different classes for every client, such that no class is left out."""
    has = np.argsort(rng.random((clients, names)), axis=1)[:, :count]
    for orphan in np.setdiff1d(np.arange(names), has):
        owners = np.bincount(has.reshape(-1), minlength=names)
        shared = np.flatnonzero(owners[has].reshape(-1) > 1)  # someone else has this class too
        has.flat[rng.choice(shared)] = orphan
    return has
