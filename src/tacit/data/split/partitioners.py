"""Ways to divide labeled samples among clients.

Each function takes the labels of the samples, the number of clients and a random generator, and returns one ascending
array of positions per client. Every sample gets exactly one owner, with two exceptions: `by-writer:1` leaves samples
out, and `sites` leaves out all of them, since sites have their own data.
"""

from math import ceil

import numpy as np
from numpy.typing import NDArray

from tacit.data.split.apportion import Indices, by_owner, by_shares, largest_remainder
from tacit.errors import TacitError

SWEEPS = 300  # how often `client-dirichlet` scales clients and classes in turn, until both are right
TRIES = 300  # how often `dirichlet` draws again because a client got too few samples

# FedMatch's class imbalance: the share of each class in a client's data, counted upward from the client's own class.
FEDMATCH_ROW = np.array([0.50, 0.15, 0.03, 0.03, 0.03, 0.02, 0.03, 0.03, 0.03, 0.15])
FEDSIAM_LOW_RATE = 0.05  # FedSiam Non-IID-III: the share of its labels that most clients know


def iid(labels: Indices, clients: int, rng: np.random.Generator) -> list[Indices]:
    """Every client gets a random part of the same size."""
    return by_owner(rng.permutation(np.arange(len(labels)) % clients), clients)


def even(labels: Indices, clients: int, rng: np.random.Generator) -> list[Indices]:
    """Every client gets the same number of samples of every class."""
    return by_shares(labels, np.ones((clients, len(np.unique(labels)))), rng)


def dirichlet(labels: Indices, clients: int, rng: np.random.Generator, beta: float, minimum: int = 10) -> list[Indices]:
    """Each class is divided among the clients by Dirichlet(β) shares; a smaller β is less even (MOON)."""
    minimum = min(minimum, _attainable(len(labels), clients))
    for _ in range(TRIES):
        owner = _dirichlet_owner(labels, clients, rng, beta)
        if np.bincount(owner, minlength=clients).min() >= minimum:
            return by_owner(owner, clients)
    raise TacitError(
        f"in {TRIES} draws of dirichlet:{beta:g} one of {clients} clients always got fewer than {minimum} of"
        f" {len(labels)} samples",
        f"use fewer clients, or a number greater than {beta:g}",
        code="data.dirichlet-too-uneven",
    )


def client_dirichlet(labels: Indices, clients: int, rng: np.random.Generator, beta: float) -> list[Indices]:
    """Clients have the same size, and each its own Dirichlet(β) mix of classes; a smaller β is less even (FedSEAL)."""
    names, of_class = np.unique(labels, return_counts=True)
    shares = rng.dirichlet(np.full(len(names), beta), size=clients) + 1e-6  # a class that no client drew goes to all
    for _ in range(SWEEPS):  # no draw has equal clients and also uses all samples: scale it until it does
        shares *= of_class / shares.sum(axis=0)
        shares *= len(labels) / clients / shares.sum(axis=1, keepdims=True)
    return by_shares(labels, shares, rng)


def quantity_skew(labels: Indices, clients: int, rng: np.random.Generator, beta: float) -> list[Indices]:
    """Clients have the class mix of the whole, and their sizes follow Dirichlet(β); a smaller β is less even."""
    if len(labels) < clients:
        raise TacitError(
            f"{clients} clients cannot each have one of {len(labels)} samples",
            "lower --clients",
            code="data.fewer-samples-than-clients",
        )
    share = rng.dirichlet(np.full(clients, beta))
    extra = largest_remainder(share if share.sum() else np.ones(clients), len(labels) - clients)
    return by_owner(rng.permutation(np.repeat(np.arange(clients), 1 + extra)), clients)


def classes(labels: Indices, clients: int, rng: np.random.Generator, count: int) -> list[Indices]:
    """Every client gets samples of this many random classes, and all classes are equally frequent (FedMix, FedSiam)."""
    names = np.unique(labels)
    if not len(names) / clients <= count <= len(names):
        raise TacitError(
            f"classes:{count} over {clients} clients does not fit {len(names)} classes",
            f"use a number from {ceil(len(names) / clients)} to {len(names)}",
            code="data.classes-do-not-fit",
        )
    return by_shares(labels, _classes_per_client(len(names), clients, rng, count), rng)


def shards(labels: Indices, clients: int, rng: np.random.Generator, count: int) -> list[Indices]:
    """Samples sorted by label are cut into equal shards, and every client gets this many of them (McMahan)."""
    total = clients * count
    if len(labels) < total:
        raise TacitError(
            f"shards:{count} over {clients} clients needs {total} samples, and there are {len(labels)}",
            "use fewer shards or clients",
            code="data.too-few-samples",
        )
    by_label = np.lexsort((rng.permutation(len(labels)), labels))
    shard_owner = rng.permutation(np.repeat(np.arange(clients), count))
    owner = np.empty(len(labels), dtype=np.int64)
    owner[by_label] = shard_owner[np.arange(len(labels)) * total // len(labels)]
    return by_owner(owner, clients)


def main_class(labels: Indices, clients: int, rng: np.random.Generator, level: float) -> list[Indices]:
    """A share R of each class goes to the clients whose main class it is, the rest to all (SSFL, appendix A.2)."""
    counts = np.bincount(labels)[np.unique(labels)]
    main = _main_classes(len(counts), clients)
    of_class = main / main.sum(axis=0)  # 1/m_j for the m_j clients with main class j
    of_all = of_class @ (counts / counts.sum())  # q_j/m_j of every class
    return by_shares(labels, level * of_class + (1 - level) * of_all[:, None], rng)


def fedmatch(labels: Indices, clients: int, rng: np.random.Generator) -> list[Indices]:
    """Half of one class, less of its neighbours, little of the others; labeled samples evenly (FedMatch)."""
    names = len(np.unique(labels))
    if names != len(FEDMATCH_ROW):
        raise TacitError(
            f"fedmatch is a table for 10 classes and the data has {names}",
            "use dirichlet:0.3",
            code="data.needs-ten-classes",
        )
    above = np.arange(names) - np.arange(clients)[:, None]  # distance to the client's class, equal for 0, 10, 20, …
    return by_shares(labels, FEDMATCH_ROW[above % names], rng)


def fedsiam_1(labels: Indices, clients: int, rng: np.random.Generator) -> list[Indices]:
    """Two random classes per client, labeled and unlabeled (FedSiam, Non-IID-I)."""
    return classes(labels, clients, rng, 2)


def fedsiam_2(labels: Indices, clients: int, rng: np.random.Generator) -> list[Indices]:
    """Labeled samples of two random classes per client, unlabeled samples of all (FedSiam, Non-IID-II)."""
    return iid(labels, clients, rng)


def fedsiam_3(labels: Indices, clients: int, rng: np.random.Generator) -> list[Indices]:
    """As iid, but a few clients know most of their labels and the others 5 % (FedSiam, Non-IID-III)."""
    return iid(labels, clients, rng)


def fedsiam_3_rates(clients: int, mean: float) -> NDArray[np.float64]:
    """The share of its labels each client knows: γ·K clients as much as makes the mean γ, the others 5 %."""
    many = max(1, round(mean * clients))
    high = FEDSIAM_LOW_RATE + (mean - FEDSIAM_LOW_RATE) * clients / many
    if not FEDSIAM_LOW_RATE <= high <= 1:
        raise TacitError(
            f"fedsiam-3 gives most clients {FEDSIAM_LOW_RATE:.0%} of their labels and cannot reach {mean:.0%}",
            "use a --label-fraction from 0.05 to 0.5",
            code="data.label-fraction-out-of-range",
        )
    return np.where(np.arange(clients) < many, high, FEDSIAM_LOW_RATE)


def class_grid(labels: Indices, clients: int, rng: np.random.Generator) -> list[Indices]:
    """Client 10·a + b holds classes a and b of ten; some hold a single one (FedSiam as released)."""
    names = len(np.unique(labels))
    if clients != names * names:
        raise TacitError(
            f"class-grid needs a client for each pair of {names} classes",
            f"use --clients {names * names}",
            code="data.wrong-client-count",
        )
    a, b = np.divmod(np.arange(clients), names)
    return by_shares(labels, np.maximum(np.eye(names)[a], np.eye(names)[b]), rng)


def by_group(groups: Indices, clients: int, rng: np.random.Generator, count: int | None = None) -> list[Indices]:
    """A client holds all samples of its writers or speakers, equally many per client; by-writer:1 gives each one."""
    found, group = np.unique(groups, return_inverse=True)
    needed = clients * (count or 1)
    if len(found) < needed:
        raise TacitError(
            f"the data has {len(found)} writers or speakers and {needed} are needed",
            "lower --clients",
            code="data.too-few-groups",
        )
    client_of = np.full(len(found), clients)  # one past the last client: left out
    chosen = rng.permutation(len(found))[: needed if count else None]
    client_of[chosen] = np.arange(len(chosen)) % clients
    return by_owner(client_of[group], clients + 1)[:-1]


def sites(labels: Indices, clients: int, rng: np.random.Generator) -> list[Indices]:
    """Nothing is divided: every site has its own data on its own machine (`tacit hub run`)."""
    return [np.empty(0, dtype=np.int64)] * clients


def _attainable(samples: int, clients: int) -> int:
    """The fewest samples a skewed draw can promise a client: one in fifty of an equal part.

    That is ten for CIFAR-10 over 100 clients, a usual setting; with fewer samples per client, a draw hardly ever gives
    everyone ten.
    """
    return min(ceil(samples / clients / 50), samples // clients)


def _dirichlet_owner(labels: Indices, clients: int, rng: np.random.Generator, beta: float) -> Indices:
    """One draw: the client of every sample."""
    owner = np.empty(len(labels), dtype=np.int64)
    held = np.zeros(clients, dtype=np.int64)
    for name in np.unique(labels):
        samples = rng.permutation(np.flatnonzero(labels == name))
        open_to = held < len(labels) / clients  # a client that has an equal part gets nothing of later classes
        share = rng.dirichlet(np.full(clients, beta)) * open_to
        if not share.sum():  # a tiny β can give everything to clients that are full
            share = open_to.astype(np.float64)
        cuts = (np.cumsum(share / share.sum()) * len(samples)).astype(np.int64)[:-1]
        counts = np.diff(cuts, prepend=0, append=len(samples))
        owner[samples] = np.repeat(np.arange(clients), counts)
        held += counts
    return owner


def _classes_per_client(names: int, clients: int, rng: np.random.Generator, count: int) -> NDArray[np.float64]:
    """(clients, names): 1 for `count` random classes of every client, all classes equally often."""
    has, owners = np.zeros((clients, names)), np.zeros(names)
    for client in range(clients):
        rarest = np.lexsort((rng.random(names), owners))[:count]
        has[client, rarest] = 1
        owners[rarest] += 1
    return has


def _main_classes(names: int, clients: int) -> NDArray[np.float64]:
    """(clients, names): 1 where a class is a client's main class, assigned in turn; few clients have several each."""
    main = np.zeros((clients, names))
    turns = np.arange(max(names, clients))
    main[turns % clients, turns % names] = 1
    return main
