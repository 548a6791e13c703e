"""Partitions: nothing lost, nothing twice, sizes as promised."""

import re
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from tacit.data.partition import PARTITIONS, Indices, dirichlet, iid, parse, partition
from tacit.errors import TacitError

TEN_CLASSES = np.repeat(np.arange(10), 60)
SPECS = ["iid", "dirichlet:0.5", "classes:2", "shards:2"]


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def labels_of(sizes: list[int]) -> Indices:
    """Labels with so many samples of class 0, 1, …, in mixed order."""
    return rng().permutation(np.repeat(np.arange(len(sizes)), sizes))


@given(
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=7),
    unlabeled=st.integers(0, 20),
    clients=st.integers(1, 12),
    spec=st.sampled_from(["iid", "dirichlet:0.3", "dirichlet:20", "classes:1", "classes:3", "shards:1", "shards:3"]),
    seed=st.integers(0, 9),
)
def test_every_sample_has_one_owner(sizes: list[int], unlabeled: int, clients: int, spec: str, seed: int) -> None:
    labels = rng().permutation(np.concatenate([labels_of(sizes), np.full(unlabeled, -1)]))
    try:
        parts = partition(spec, labels, clients, rng(seed))
    except TacitError:
        reject()  # too few samples or classes for this partition; the refusals have their own tests
    assert len(parts) == clients
    assert all((np.diff(part) > 0).all() for part in parts)
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(len(labels)))


@pytest.mark.parametrize("spec", SPECS)
def test_the_seed_decides(spec: str) -> None:
    first, again, other = (partition(spec, TEN_CLASSES, 10, rng(seed)) for seed in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not any(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


@given(n=st.integers(0, 200), clients=st.integers(1, 30))
def test_iid_parts_are_equal(n: int, clients: int) -> None:
    sizes = [len(part) for part in iid(np.zeros(n, dtype=np.int64), clients, rng())]
    assert max(sizes) - min(sizes) <= 1


def test_iid_parts_have_the_mix_of_the_whole() -> None:
    counts = [np.bincount(TEN_CLASSES[part], minlength=10) for part in iid(TEN_CLASSES, 2, rng())]
    assert np.min(counts) > 15  # of 30 expected; a partition that keeps the order of labels gives 0


def test_a_hundred_thousand_clients() -> None:
    parts = partition("iid", np.arange(200_000) % 10, 100_000, rng())
    assert len(parts) == 100_000
    assert all(len(part) == 2 for part in parts)


def moon(labels: Indices, clients: int, beta: float, generator: np.random.Generator) -> list[list[int]]:
    """One draw of MOON's rule, sample by sample."""
    held: list[list[int]] = [[] for _ in range(clients)]
    for name in sorted(set(labels.tolist())):
        samples = generator.permutation([i for i, label in enumerate(labels) if label == name]).tolist()
        share = generator.dirichlet([beta] * clients)
        share = np.array([s if len(h) < len(labels) / clients else 0.0 for s, h in zip(share, held, strict=True)])
        share = share / share.sum()
        ends = [int(end) for end in np.cumsum(share) * len(samples)]
        ends[-1] = len(samples)
        for client, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
            held[client] += samples[start:end]
    return [sorted(h) for h in held]


@given(seed=st.integers(0, 1000))
def test_dirichlet_is_moons_rule(seed: int) -> None:
    found = dirichlet(TEN_CLASSES, 4, rng(seed), beta=0.5, minimum=0)
    assert [part.tolist() for part in found] == moon(TEN_CLASSES, 4, 0.5, rng(seed))


def test_dirichlet_gives_everyone_ten_samples() -> None:
    labels = np.repeat(np.arange(10), 500)
    once = [min(map(len, dirichlet(labels, 10, rng(seed), 0.05, minimum=0))) for seed in range(30)]
    assert min(once) < 10  # the first draw alone would not do
    assert min(min(map(len, dirichlet(labels, 10, rng(seed), 0.05))) for seed in range(30)) >= 10


def test_a_smaller_beta_is_less_even() -> None:
    def largest_class(beta: float) -> float:
        parts = dirichlet(TEN_CLASSES, 10, rng(), beta)
        return float(np.mean([np.bincount(TEN_CLASSES[part]).max() / len(part) for part in parts]))

    assert largest_class(100) < 0.2 < largest_class(0.5) < 0.5 < largest_class(0.1)


def test_dirichlet_gives_up_with_a_remedy() -> None:
    with pytest.raises(TacitError, match=r"one of 100 clients .* of 600 samples: use fewer clients"):
        dirichlet(TEN_CLASSES, 100, rng(), 0.01)


def test_dirichlet_with_fewer_samples_than_clients() -> None:
    assert sum(map(len, partition("dirichlet:0.3", np.arange(5), 20, rng()))) == 5


def test_dirichlet_with_a_beta_that_underflows() -> None:
    assert sum(map(len, dirichlet(TEN_CLASSES, 3, rng(), 1e-300, minimum=0))) == len(TEN_CLASSES)


@given(count=st.integers(1, 10), clients=st.integers(1, 25), seed=st.integers(0, 9))
def test_classes_are_dealt_evenly_to_their_owners(count: int, clients: int, seed: int) -> None:
    if clients * count < 10:
        with pytest.raises(TacitError, match="does not fit 10 classes: use a number from"):
            partition(f"classes:{count}", TEN_CLASSES, clients, rng(seed))
        return
    parts = partition(f"classes:{count}", TEN_CLASSES, clients, rng(seed))
    counts = np.array([np.bincount(TEN_CLASSES[part], minlength=10) for part in parts])
    assert ((counts > 0).sum(axis=1) == count).all()
    for column in counts.T:
        assert np.ptp(column[column > 0]) <= 1


def test_classes_differ_between_clients() -> None:
    parts = partition("classes:2", TEN_CLASSES, 20, rng())
    assert len({tuple(np.unique(TEN_CLASSES[part])) for part in parts}) > 10


@given(count=st.integers(1, 4), clients=st.integers(1, 20))
def test_shards_are_equal_runs_of_the_sorted_labels(count: int, clients: int) -> None:
    parts = partition(f"shards:{count}", TEN_CLASSES, clients, rng())
    assert np.ptp([len(part) for part in parts]) <= count
    shard = len(TEN_CLASSES) / (clients * count)
    most = count * (int(np.ceil(shard / 60)) + 1)  # classes of 60 that a run of this length can touch
    assert max(len(np.unique(TEN_CLASSES[part])) for part in parts) <= most


def test_two_shards_are_two_classes() -> None:
    parts = partition("shards:2", TEN_CLASSES, 10, rng())  # shards of 30 lie within classes of 60
    assert [len(part) for part in parts] == [60] * 10
    assert max(len(np.unique(TEN_CLASSES[part])) for part in parts) == 2


def test_samples_without_a_label_are_dealt_evenly() -> None:
    labels = np.concatenate([TEN_CLASSES, np.full(100, -1)])
    parts = partition("classes:2", labels, 10, rng())
    assert [int((labels[part] == -1).sum()) for part in parts] == [10] * 10


@pytest.mark.parametrize(
    "spec, message",
    [
        ("dirichet:0.3", "unknown partition 'dirichet': did you mean 'dirichlet'?"),
        ("dirichlet", "dirichlet needs a positive number, such as dirichlet:0.3"),
        ("dirichlet:0", "dirichlet needs a positive number, such as dirichlet:0.3"),
        ("dirichlet:nan", "dirichlet needs a positive number, such as dirichlet:0.3"),
        ("dirichlet:inf", "dirichlet needs a positive number, such as dirichlet:0.3"),
        ("dirichlet:a lot", "dirichlet needs a positive number, such as dirichlet:0.3"),
        ("classes:1.5", "classes needs a whole number of classes, such as classes:2"),
        ("shards:-1", "shards needs a whole number of shards, such as shards:2"),
        ("iid:2", "iid takes no number: write iid instead of iid:2"),
        ("classes:11", "classes:11 over 10 clients does not fit 10 classes: use a number from 1 to 10"),
        ("shards:61", "shards:61 over 10 clients needs 610 samples, not 600: use fewer"),
    ],
)
def test_a_wrong_partition_is_one_sentence(spec: str, message: str) -> None:
    with pytest.raises(TacitError, match=f"^{re.escape(message)}$"):
        partition(spec, TEN_CLASSES, 10, rng())


def test_no_clients() -> None:
    with pytest.raises(TacitError, match="use at least 1"):
        partition("iid", TEN_CLASSES, 0, rng())


def test_parse() -> None:
    assert parse("dirichlet:0.3") == ("dirichlet", (0.3,))
    assert parse("classes:2") == ("classes", (2,))
    assert parse("iid") == ("iid", ())


@pytest.mark.parametrize("way", PARTITIONS.values())
def test_every_partition_says_what_it_does(way: Callable[..., list[Indices]]) -> None:
    assert way.__doc__ is not None
    assert way.__doc__.partition("\n")[0].endswith(".")
