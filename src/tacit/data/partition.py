"""Who holds which sample: ways to deal a labeled pool to clients.

Each way takes the labels of the pool, the number of clients and a random generator, and returns one ascending array
of positions per client. No sample is lost and none is dealt twice; only `by-writer:1` leaves samples to nobody, and
`sites` all of them, since those hold data of their own.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, inf

import numpy as np
from numpy.typing import NDArray

from tacit.errors import TacitError, unknown
from tacit.federation import UNLABELED

Indices = NDArray[np.int64]
Way = Callable[..., list[Indices]]

SWEEPS = 300  # how often `mixes` scales clients and classes in turn, until both are right
TRIES = 300  # how often `dirichlet` draws again for a client that got too little

# FedMatch's class imbalance: how much of a client's data each class is, counted upward from the client's own class.
FEDMATCH_ROW = np.array([0.50, 0.15, 0.03, 0.03, 0.03, 0.02, 0.03, 0.03, 0.03, 0.15])
SITES = "sites"  # the partition of data that is where it is
FEDSIAM_LOW_RATE = 0.05  # FedSiam Non-IID-III: what most clients know of their own labels


def iid(labels: Indices, clients: int, rng: np.random.Generator) -> list[Indices]:
    """Every client gets a random part of the same size."""
    return _by_owner(rng.permutation(np.arange(len(labels)) % clients), clients)


def even(labels: Indices, clients: int, rng: np.random.Generator) -> list[Indices]:
    """Every client gets the same number of samples of every class."""
    return _by_shares(labels, np.ones((clients, len(np.unique(labels)))), rng)


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


def mixes(labels: Indices, clients: int, rng: np.random.Generator, beta: float) -> list[Indices]:
    """Clients of the same size, each with its own Dirichlet(β) mix of classes: a smaller β is less even (FedSEAL)."""
    names, of_class = np.unique(labels, return_counts=True)
    shares = rng.dirichlet(np.full(len(names), beta), size=clients) + 1e-6  # a class that nobody drew still goes to all
    for _ in range(SWEEPS):  # no draw has both equal clients and all samples dealt: scale it until it has
        shares *= of_class / shares.sum(axis=0)
        shares *= len(labels) / clients / shares.sum(axis=1, keepdims=True)
    return _by_shares(labels, shares, rng)


def sizes(labels: Indices, clients: int, rng: np.random.Generator, beta: float) -> list[Indices]:
    """The classes mixed as in the whole, the sizes by Dirichlet(β) shares: a smaller β is less even."""
    if len(labels) < clients:
        raise TacitError(f"{clients} clients can not each have one of {len(labels)} samples: lower --clients")
    share = rng.dirichlet(np.full(clients, beta))
    extra = largest_remainder(share if share.sum() else np.ones(clients), len(labels) - clients)
    return _by_owner(rng.permutation(np.repeat(np.arange(clients), 1 + extra)), clients)


def classes(labels: Indices, clients: int, rng: np.random.Generator, count: int) -> list[Indices]:
    """Every client gets samples of so many random classes, every class goes to as many clients (FedMix, FedSiam)."""
    names = np.unique(labels)
    if not len(names) / clients <= count <= len(names):
        raise TacitError(
            f"classes:{count} over {clients} clients does not fit {len(names)} classes: "
            f"use a number from {ceil(len(names) / clients)} to {len(names)}"
        )
    return _by_shares(labels, _classes_per_client(len(names), clients, rng, count), rng)


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


def main_class(labels: Indices, clients: int, rng: np.random.Generator, level: float) -> list[Indices]:
    """A part R of each class goes to the clients whose main class it is, the rest to all (SSFL, appendix A.2)."""
    counts = np.bincount(labels)[np.unique(labels)]
    main = _main_classes(len(counts), clients)
    of_class = main / main.sum(axis=0)  # 1/m_j for the m_j clients with main class j
    of_all = of_class @ (counts / counts.sum())  # q_j/m_j of every class
    return _by_shares(labels, level * of_class + (1 - level) * of_all[:, None], rng)


def fedmatch(labels: Indices, clients: int, rng: np.random.Generator) -> list[Indices]:
    """Half of one class, less of its neighbours, little of the others; labeled samples evenly (FedMatch)."""
    names = len(np.unique(labels))
    if names != len(FEDMATCH_ROW):
        raise TacitError(f"fedmatch is a table for 10 classes and the data has {names}: use dirichlet:0.3")
    above = (
        np.arange(names) - np.arange(clients)[:, None]
    )  # how far a class is from the client's own; 0, 10, … share one
    return _by_shares(labels, FEDMATCH_ROW[above % names], rng)


def fedsiam_1(labels: Indices, clients: int, rng: np.random.Generator) -> list[Indices]:
    """Two random classes per client, labeled and unlabeled alike (FedSiam, Non-IID-I)."""
    return classes(labels, clients, rng, 2)


def fedsiam_2(labels: Indices, clients: int, rng: np.random.Generator) -> list[Indices]:
    """Labeled samples of two random classes per client, unlabeled samples of all (FedSiam, Non-IID-II)."""
    return iid(labels, clients, rng)


def fedsiam_3(labels: Indices, clients: int, rng: np.random.Generator) -> list[Indices]:
    """As iid, but a few clients know most of their labels and the others 5 % of theirs (FedSiam, Non-IID-III)."""
    return iid(labels, clients, rng)


def class_grid(labels: Indices, clients: int, rng: np.random.Generator) -> list[Indices]:
    """Client 10·a + b holds classes a and b, of ten; some hold a single one (FedSiam as released)."""
    names = len(np.unique(labels))
    if clients != names * names:
        raise TacitError(f"class-grid needs a client for each pair of {names} classes: use --clients {names * names}")
    a, b = np.divmod(np.arange(clients), names)
    return _by_shares(labels, np.maximum(np.eye(names)[a], np.eye(names)[b]), rng)


def by_group(groups: Indices, clients: int, rng: np.random.Generator, count: int | None = None) -> list[Indices]:
    """A client holds all samples of its writers or speakers, as many as everybody; by-writer:1 gives each one."""
    found, group = np.unique(groups, return_inverse=True)
    needed = clients * (count or 1)
    if len(found) < needed:
        raise TacitError(f"the data has {len(found)} writers or speakers and {needed} are needed: lower --clients")
    client_of = np.full(len(found), clients)  # one more than there are: nobody
    chosen = rng.permutation(len(found))[: needed if count else None]
    client_of[chosen] = np.arange(len(chosen)) % clients
    return _by_owner(client_of[group], clients + 1)[:-1]


def sites(labels: Indices, clients: int, rng: np.random.Generator) -> list[Indices]:
    """Nothing is dealt: every site holds data of its own, on its own machine (`tacit hub run`)."""
    return [np.empty(0, dtype=np.int64)] * clients


def fedsiam_3_rates(clients: int, mean: float) -> NDArray[np.float64]:
    """The share of its labels each client knows: γ·K clients so much that the mean is γ, the others 5 %."""
    many = max(1, round(mean * clients))
    high = FEDSIAM_LOW_RATE + (mean - FEDSIAM_LOW_RATE) * clients / many
    if not FEDSIAM_LOW_RATE <= high <= 1:
        raise TacitError(
            f"fedsiam-3 gives most clients {FEDSIAM_LOW_RATE:.0%} of their labels and can not reach {mean:.0%}: "
            "use a --label-fraction from 0.05 to 0.5"
        )
    return np.where(np.arange(clients) < many, high, FEDSIAM_LOW_RATE)


PARTITIONS: dict[str, Way] = {
    "iid": iid,
    "even": even,
    "dirichlet": dirichlet,
    "mixes": mixes,
    "sizes": sizes,
    "classes": classes,
    "shards": shards,
    "r": main_class,
    "fedmatch": fedmatch,
    "fedsiam-1": fedsiam_1,
    "fedsiam-2": fedsiam_2,
    "fedsiam-3": fedsiam_3,
    "class-grid": class_grid,
    "by-writer": by_group,
    "by-speaker": by_group,
    SITES: sites,
}

# Where samples that show their label at a client are dealt in another way than the rest.
OF_LABELED: dict[str, Way] = {"fedmatch": even, "fedsiam-2": fedsiam_1}
# Where clients know different shares of their labels: (clients, mean share) -> share per client.
RATES: dict[str, Callable[[int, float], NDArray[np.float64]]] = {"fedsiam-3": fedsiam_3_rates}


@dataclass(frozen=True)
class _Number:
    """What may follow the colon: how it is read, what it may be, and how to say what is missing."""

    read: type[int] | type[float]
    form: str
    lowest: float = np.nextafter(0, 1)
    highest: float = np.finfo(np.float64).max
    optional: bool = False


_WRITERS = _Number(int, "a whole number of writers or speakers per client, such as by-writer:1", optional=True)
_NUMBERS = {
    "dirichlet": _Number(float, "a positive number, such as dirichlet:0.3"),
    "mixes": _Number(float, "a positive number, such as mixes:0.3"),
    "sizes": _Number(float, "a positive number, such as sizes:0.5"),
    "classes": _Number(int, "a whole number of classes, such as classes:2"),
    "shards": _Number(int, "a whole number of shards, such as shards:2"),
    "r": _Number(float, "a number from 0 to 1, such as r:0.4", lowest=0, highest=1),
    "by-writer": _WRITERS,
    "by-speaker": _WRITERS,
}


def example(spec: str) -> str:
    """The spec, with a number where it needs one and has none."""
    number = _NUMBERS.get(spec)
    return spec if number is None or number.optional else number.form.rpartition("such as ")[2]


def partition(
    spec: str, labels: Indices, clients: int, rng: np.random.Generator, groups: Indices | None = None
) -> list[Indices]:
    """Deal as `spec` says: `iid`, `dirichlet:0.3`, `classes:2`, … or by who wrote them, when `groups` tells that.

    Samples without a label have no class to go by and are dealt evenly.
    """
    name, numbers = parse(spec)
    if clients < 1:
        raise TacitError(f"{clients} clients can not hold data: use at least 1")
    if PARTITIONS[name] is by_group:
        if groups is None:
            raise TacitError(
                f"this data does not say who made each sample, so {name} is not possible: use iid,"
                " or add a column group to a manifest"
            )
        return by_group(groups, clients, rng, *map(int, numbers))
    if name == SITES:
        return sites(labels, clients, rng)
    return deal(PARTITIONS[name], labels, clients, rng, *numbers)


def deal(way: Way, labels: Indices, clients: int, rng: np.random.Generator, *numbers: float) -> list[Indices]:
    """Deal samples with a label in this way and the others evenly."""
    known, rest = np.flatnonzero(labels != UNLABELED), np.flatnonzero(labels == UNLABELED)
    parts = way(labels[known], clients, rng, *numbers)
    if not len(rest):
        return parts
    extra = iid(labels[rest], clients, rng)
    return [np.sort(np.concatenate([known[a], rest[b]])) for a, b in zip(parts, extra, strict=True)]


def parse(spec: str) -> tuple[str, tuple[float, ...]]:
    """The name of a partition and the numbers it takes, out of what a user wrote."""
    name, colon, text = spec.partition(":")
    if name not in PARTITIONS:
        raise unknown("partition", name, PARTITIONS)
    number = _NUMBERS.get(name)
    if number is None and colon:
        raise TacitError(f"{name} takes no number: write {name} instead of {spec}")
    if number is None or (number.optional and not colon):
        return name, ()
    try:
        value = number.read(text)
    except ValueError:
        value = -inf
    if not number.lowest <= value <= number.highest:
        raise TacitError(f"{name} needs {number.form}")
    return name, (value,)


def heterogeneity(counts: Indices) -> float:
    """R of the SSFL paper (Definition 1): the mean total variation distance between the classes of two clients.

    `counts` is (clients, classes); clients that hold nothing are left out. 0: all alike; 1: no class in common.
    """
    counts = counts[counts.sum(axis=1) > 0]
    if len(counts) < 2:
        return 0.0
    mix = np.sort(counts / counts.sum(axis=1, keepdims=True), axis=0)
    # Of sorted numbers, the i-th is the larger one in i pairs and the smaller one in K-1-i: no pair is visited.
    weight = 2 * np.arange(len(mix)) - (len(mix) - 1)
    pairs = len(mix) * (len(mix) - 1) / 2
    return max(0.0, float((weight[:, None] * mix).sum() / 2 / pairs))


def _by_owner(owner: Indices, clients: int) -> list[Indices]:
    """The ascending positions each client owns, when sample i belongs to client `owner[i]`."""
    ends = np.cumsum(np.bincount(owner, minlength=clients))
    return np.split(np.argsort(owner, kind="stable"), ends[:-1])


def _by_shares(labels: Indices, shares: NDArray[np.float64], rng: np.random.Generator) -> list[Indices]:
    """Every class cut over the clients in proportion to its column of `shares` (clients, classes), at random."""
    names, of_class = np.unique(labels, return_counts=True)
    counts = _rounded(shares / shares.sum(axis=0) * of_class, rng)
    owner = np.empty(len(labels), dtype=np.int64)
    for column, name in enumerate(names):
        samples = rng.permutation(np.flatnonzero(labels == name))
        owner[samples] = np.repeat(np.arange(len(shares)), counts[:, column])
    return _by_owner(owner, len(shares))


def _rounded(expected: NDArray[np.float64], rng: np.random.Generator) -> Indices:
    """Whole numbers next to `expected` (clients, classes) with its column sums and, as far as they go, its row sums."""
    counts: Indices = np.floor(expected + 1e-9).astype(np.int64)
    cut = expected - counts > 1e-9  # who was rounded down in which class, and may get one sample more
    missing = largest_remainder(expected.sum(axis=1), round(expected.sum())) - counts.sum(axis=1)
    chances = cut.sum(axis=1)
    for column, left in enumerate(np.rint(expected.sum(axis=0)).astype(np.int64) - counts.sum(axis=0)):
        spare = chances - missing
        last = np.where(cut[:, column], missing < 1, 2)  # who has enough, and who was not cut here at all
        first = np.lexsort((rng.random(len(counts)), spare, last))[:left]  # those with the fewest chances to spare
        counts[first, column] += 1
        missing[first] -= 1
        chances -= cut[:, column]
    return counts


def largest_remainder(share: NDArray[np.float64], total: int) -> Indices:
    """`total` in whole parts proportional to `share`."""
    exact = share / share.sum() * total
    parts: Indices = np.floor(exact + 1e-9).astype(np.int64)
    parts[np.argsort(parts - exact, kind="stable")[: total - parts.sum()]] += 1
    return parts


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


def _classes_per_client(names: int, clients: int, rng: np.random.Generator, count: int) -> NDArray[np.float64]:
    """(clients, names): 1 for `count` random classes of every client, every class as often as the others."""
    has, owners = np.zeros((clients, names)), np.zeros(names)
    for client in range(clients):
        rarest = np.lexsort((rng.random(names), owners))[:count]
        has[client, rarest] = 1
        owners[rarest] += 1
    return has


def _main_classes(names: int, clients: int) -> NDArray[np.float64]:
    """(clients, names): 1 where a class is a client's main class, in turn; few clients have several."""
    main = np.zeros((clients, names))
    turns = np.arange(max(names, clients))
    main[turns % clients, turns % names] = 1
    return main
