"""Partitions by name: `iid`, `dirichlet:0.3`, `classes:2`, … divide samples among clients."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import inf

import numpy as np
from numpy.typing import NDArray

from tacit.data.split import nested as growing
from tacit.data.split import partitioners
from tacit.data.split.apportion import Indices
from tacit.errors import TacitError, notice_renamed, unknown
from tacit.federation import UNLABELED

Partitioner = Callable[..., list[Indices]]

SITES = "sites"  # the partition of data that is already at its clients

PARTITIONS: dict[str, Partitioner] = {
    "iid": partitioners.iid,
    "even": partitioners.even,
    "dirichlet": partitioners.dirichlet,
    "client-dirichlet": partitioners.client_dirichlet,
    "quantity-skew": partitioners.quantity_skew,
    "classes": partitioners.classes,
    "shards": partitioners.shards,
    "main-class": partitioners.main_class,
    "fedmatch": partitioners.fedmatch,
    "fedsiam-1": partitioners.fedsiam_1,
    "fedsiam-2": partitioners.fedsiam_2,
    "fedsiam-3": partitioners.fedsiam_3,
    "class-grid": partitioners.class_grid,
    "by-writer": partitioners.by_group,
    "by-speaker": partitioners.by_group,
    SITES: partitioners.sites,
}
OLD_NAMES = {"mixes": "client-dirichlet", "sizes": "quantity-skew", "r": "main-class"}  # as in tacit 0.1

# Partitions under which clients keep their samples if there are more, for draws that are nested.
NESTED: dict[str, Partitioner] = {
    "iid": growing.iid,
    "dirichlet": growing.dirichlet,
    "fedsiam-2": growing.iid,
    "fedsiam-3": growing.iid,
}
# Partitions that divide the samples which show their label at a client differently from the rest.
OF_LABELED: dict[str, Partitioner] = {"fedmatch": partitioners.even, "fedsiam-2": partitioners.fedsiam_1}
# Partitions where clients know different shares of their labels: (clients, mean share) -> share per client.
RATES: dict[str, Callable[[int, float], NDArray[np.float64]]] = {"fedsiam-3": partitioners.fedsiam_3_rates}


@dataclass(frozen=True)
class _Number:
    """The number after the colon: its type, its range, and words for what is expected."""

    read: type[int] | type[float]
    form: str
    example: float
    lowest: float = np.nextafter(0, 1)
    highest: float = np.finfo(np.float64).max
    optional: bool = False


_WRITERS = _Number(int, "a whole number of writers or speakers per client", 1, optional=True)
_NUMBERS = {
    "dirichlet": _Number(float, "a positive number", 0.3),
    "client-dirichlet": _Number(float, "a positive number", 0.3),
    "quantity-skew": _Number(float, "a positive number", 0.5),
    "classes": _Number(int, "a whole number of classes", 2),
    "shards": _Number(int, "a whole number of shards", 2),
    "main-class": _Number(float, "a number from 0 to 1", 0.4, lowest=0, highest=1),
    "by-writer": _WRITERS,
    "by-speaker": _WRITERS,
}


def partition(
    spec: str,
    labels: Indices,
    clients: int,
    rng: np.random.Generator,
    groups: Indices | None = None,
    *,
    whole_groups: bool = False,
    population: Indices | None = None,
) -> list[Indices]:
    """Divide samples as `spec` says; `groups` says who made each one, for partitions by writer or speaker.

    Samples without a label have no class to go by and are divided evenly. With `whole_groups` every partition divides
    groups, each with the class that most of its samples have. With the labels of the whole `population`, the samples
    are in the order in which a larger number would include them, and clients keep theirs then.
    """
    name, numbers = parse(spec)
    if clients < 1:
        raise TacitError(f"{clients} clients cannot hold data", "use at least 1", code="data.no-clients")
    if PARTITIONS[name] is partitioners.by_group:
        if groups is None:
            raise TacitError(
                f"this data does not say who made each sample, so {name} is not possible",
                "use iid, or add a column group to a manifest",
                code="data.no-groups",
            )
        return partitioners.by_group(groups, clients, rng, *map(int, numbers))
    if whole_groups and groups is not None and len(groups):
        return _by_whole_groups(spec, labels, clients, rng, groups, population)
    if name == SITES:
        return partitioners.sites(labels, clients, rng)
    return _with_unlabeled(_partitioner(name, population), labels, clients, rng, *numbers, population=population)


def _partitioner(name: str, population: Indices | None) -> Partitioner:
    if population is None or name not in NESTED:
        return PARTITIONS[name]
    return partial(growing.dirichlet, population=population) if name == "dirichlet" else NESTED[name]


def _by_whole_groups(
    spec: str, labels: Indices, clients: int, rng: np.random.Generator, groups: Indices, population: Indices | None
) -> list[Indices]:
    """Divide groups as if each were one sample."""
    found, group = np.unique(groups, return_inverse=True)
    if len(found) < clients and parse(spec)[0] != SITES:
        raise TacitError(
            f"the data has {len(found)} groups for {clients} clients, and a group is not divided",
            "lower --clients",
            code="data.too-few-groups",
        )
    known = labels != UNLABELED
    counts = np.zeros((len(found), labels.max(initial=0) + 1), dtype=np.int64)
    np.add.at(counts, (group[known], labels[known]), 1)
    label = np.where(counts.any(axis=1), counts.argmax(axis=1), UNLABELED)
    name, numbers = parse(spec)
    if population is not None and name == "dirichlet":  # ten groups would often be all that there are
        numbers = (*numbers, 1)
    if name == SITES:
        parts = partitioners.sites(label, clients, rng)
    else:
        parts = _with_unlabeled(_partitioner(name, population), label, clients, rng, *numbers, population=population)
    return [np.flatnonzero(np.isin(group, part)) for part in parts]


def canonical(spec: str) -> str:
    """The spec with its present name: `client-dirichlet:0.3` for `mixes:0.3`, with a notice on standard error."""
    name, colon, text = spec.partition(":")
    if name not in OLD_NAMES:
        return spec
    notice_renamed(name, OLD_NAMES[name])
    return f"{OLD_NAMES[name]}{colon}{text}"


def parse(spec: str) -> tuple[str, tuple[float, ...]]:
    """The name of a partition and its numbers: ("dirichlet", (0.3,)) for `dirichlet:0.3`."""
    name, colon, text = canonical(spec).partition(":")
    if name not in PARTITIONS:
        raise unknown("partition", name, PARTITIONS)
    number = _NUMBERS.get(name)
    if number is None and colon:
        raise TacitError(
            f"{name} takes no number", f"write {name} instead of {spec}", code="data.partition-takes-no-number"
        )
    if number is None or (number.optional and not colon):
        return name, ()
    try:
        value = number.read(text)
    except ValueError:
        value = -inf
    if not number.lowest <= value <= number.highest:
        raise TacitError(
            f"{name} needs {number.form}", f"write {name}:{number.example:g}", code="data.bad-partition-number"
        )
    return name, (value,)


def example(spec: str) -> str:
    """The spec, with a number added if it needs one and has none."""
    number = _NUMBERS.get(spec)
    return spec if number is None or number.optional else f"{spec}:{number.example:g}"


def heterogeneity(counts: Indices) -> float:
    """R of the SSFL paper (Definition 1): the mean total variation distance between the classes of two clients.

    `counts` is (clients, classes); clients without samples are left out. 0: all alike; 1: no class in common.
    """
    counts = counts[counts.sum(axis=1) > 0]
    if len(counts) < 2:
        return 0.0
    mix = np.sort(counts / counts.sum(axis=1, keepdims=True), axis=0)
    # Of K sorted numbers, the i-th is the larger one in i pairs and the smaller one in K-1-i, so no loop over pairs.
    weight = 2 * np.arange(len(mix)) - (len(mix) - 1)
    pairs = len(mix) * (len(mix) - 1) / 2
    return max(0.0, float((weight[:, None] * mix).sum() / 2 / pairs))


def _with_unlabeled(
    partitioner: Partitioner,
    labels: Indices,
    clients: int,
    rng: np.random.Generator,
    *numbers: float,
    population: Indices | None = None,
) -> list[Indices]:
    """Divide samples that have a label with `partitioner` and the others evenly."""
    known, rest = np.flatnonzero(labels != UNLABELED), np.flatnonzero(labels == UNLABELED)
    parts = partitioner(labels[known], clients, rng, *numbers)
    if not len(rest):
        return parts
    extra = _partitioner("iid", population)(labels[rest], clients, rng)
    return [np.sort(np.concatenate([known[a], rest[b]])) for a, b in zip(parts, extra, strict=True)]
