"""Partitions that only grow: with more samples of one order (`Orders`), clients keep those that they had.

Positions follow that order, so the first n labels are those of the first n samples used.
"""

import numpy as np
from numpy.typing import NDArray

from tacit.data.split.apportion import Indices, by_owner

TRIES = 300  # how often `dirichlet` draws again because a client would get too few samples


def iid(labels: Indices, clients: int, rng: np.random.Generator) -> list[Indices]:
    """Every client gets a random part of the same size: one of every `clients` samples in succession."""
    turns = np.tile(np.arange(clients), (-(-len(labels) // clients), 1))
    return by_owner(rng.permuted(turns, axis=1).reshape(-1)[: len(labels)], clients)


def dirichlet(
    labels: Indices,
    clients: int,
    rng: np.random.Generator,
    beta: float,
    minimum: int = 10,
    *,
    population: Indices | None = None,
) -> list[Indices]:
    """Each class is divided among the clients by Dirichlet(β) shares; a smaller β is less even (MOON).

    Every client gets at least `minimum` samples, or half an equal part if that is less. Shares that give a client less
    than one in fifty of an equal part, ten samples for CIFAR-10 over 100 clients, are drawn again. What is still
    missing comes from the largest clients.

    How much of each class a client may get depends on the class proportions of the `population`, not of these
    samples: theirs differ a little with their number, and one client more or less that is full moves everything.
    """
    names, of_class = np.unique(labels, return_counts=True)
    proportion = np.array([np.mean(population == name) for name in names]) if population is not None else of_class
    proportion = proportion / max(1e-12, proportion.sum())
    least = min(minimum, max(len(labels) // clients // 2, int(len(labels) >= clients)))
    for _ in range(TRIES):
        shares = _shares(proportion, clients, rng, beta)
        if (proportion @ shares).min() >= 1 / clients / 50:
            break
    owner = np.empty(len(labels), dtype=np.int64)
    for name, count, share, phase in zip(names, of_class, shares, rng.random(shares.shape), strict=True):
        owner[labels == name] = _dealt(share, phase, int(count))
    return by_owner(_filled_up(owner, clients, least), clients)


def _shares(of_class: NDArray[np.float64], clients: int, rng: np.random.Generator, beta: float) -> NDArray[np.float64]:
    """(classes, clients): one draw; `of_class` is the share of each class in all samples."""
    held, shares = np.zeros(clients), np.zeros((len(of_class), clients))
    for number, size in enumerate(of_class):
        open_to = held < 1 / clients  # a client that has an equal part gets nothing of later classes
        share = rng.dirichlet(np.full(clients, beta)) * open_to
        if not share.sum():  # a tiny β can give everything to clients that are full
            share = open_to.astype(np.float64) if open_to.any() else np.ones(clients)
        shares[number] = share / share.sum()
        held += size * shares[number]
    return shares


def _dealt(share: NDArray[np.float64], phase: NDArray[np.float64], count: int) -> Indices:
    """The owners of the first `count` samples of a class: at every moment each client has about its share.

    Client k takes its j-th sample at the time (j + phase_k)/share_k, so a later sample moves no earlier one.
    """
    many = np.where(share > 0, np.ceil(share * (count + len(share))) + 1, 0).astype(np.int64)
    client = np.repeat(np.arange(len(share)), many)
    turn = np.arange(len(client)) - np.repeat(np.cumsum(many) - many, many)
    with np.errstate(over="ignore"):  # of a share next to nothing: never
        time = (turn + phase[client]) / share[client]
    dealt: Indices = client[np.argsort(time, kind="stable")[:count]]
    return dealt


def _filled_up(owner: Indices, clients: int, least: int) -> Indices:
    """The owners, after clients with fewer than `least` samples got the last ones of the largest clients."""
    held = np.bincount(owner, minlength=clients)
    for client in np.flatnonzero(held < least):
        while held[client] < least:
            giver = held.argmax()
            owner[np.flatnonzero(owner == giver)[-1]] = client
            held[giver] -= 1
            held[client] += 1
    return owner
