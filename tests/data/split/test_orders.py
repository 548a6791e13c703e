"""Nested draws: no amount changes which samples another draw takes, as far as there is room."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.data.split.apportion import Indices
from tacit.data.split.config import DataConfig
from tacit.data.split.nested import dirichlet, iid
from tacit.data.split.orders import Orders
from tacit.data.split.pool import spread
from tacit.data.split.split import Split, draw_split
from tacit.random import Streams
from tests.data.splits import CLASSES, EVEN, SKEWED, make, per_class

AT_SERVER: dict[str, Any] = {"labels": "server", "per_class": 4}
AT_CLIENTS: dict[str, Any] = {"labels": "client", "per_class": 2, "clients": 4}
MINIMUM = 10  # samples of a client under `dirichlet`
LARGE = np.arange(5000) % CLASSES
TESTED = np.concatenate([LARGE, np.arange(1000) % CLASSES])  # the last 1,000 are the source's own test samples


def with_tests(seed: int = 0, **settings: Any) -> Split:
    """A split of a source with 1,000 test samples, which are in the pool where `test` draws from it."""
    spare = 1000 if "test" in settings else 0
    y = TESTED if spare else LARGE
    return draw_split(y, CLASSES, DataConfig(**settings), Streams(seed), spare=spare)


# Positions that Tacit 0.1 drew for seed 3: test=5, validation=5, samples=100, 2 labels per class at the server.
KNOWN = {
    "server": [37, 81, 120, 157, 183, 200, 266, 309, 339, 448],
    "validation": [50, 63, 69, 122, 396],
    "client 0": [56, 141, 188, 208, 298, 299, 375, 447, 486],
}


def same(a: Indices, b: Indices) -> bool:
    return bool(np.array_equal(a, b))


def same_clients(a: Split, b: Split) -> bool:
    return all(same(mine, others) for mine, others in zip(a.clients, b.clients, strict=True))


@given(
    seed=st.integers(0, 20),
    test=st.integers(1, 1000),
    validation=st.integers(0, 500),
    samples=st.integers(500, 1500),
    partition=st.sampled_from(["iid", "dirichlet:0.3"]),
)
def test_amounts_do_not_change_the_labels_at_the_server(
    seed: int, test: int, validation: int, samples: int, partition: str
) -> None:
    common: dict[str, Any] = {**AT_SERVER, "partition": partition}
    plain = with_tests(seed, **common)
    moved = with_tests(seed, test=test, validation=validation, samples=samples, **common)
    assert same(plain.server, moved.server)


@given(seed=st.integers(0, 20), test=st.integers(1, 1000), validation=st.integers(0, 500))
def test_test_and_validation_do_not_change_what_clients_hold(seed: int, test: int, validation: int) -> None:
    for partition in ("iid", "dirichlet:0.3", "classes:2", "shards:2"):
        common: dict[str, Any] = {**AT_CLIENTS, "samples": 1000, "partition": partition}
        plain, moved = with_tests(seed, **common), with_tests(seed, test=test, validation=validation, **common)
        assert same_clients(plain, moved)
        assert same(np.flatnonzero(plain.labeled), np.flatnonzero(moved.labeled))


@given(seed=st.integers(0, 20), few=st.integers(200, 800), more=st.integers(800, 2000))
@pytest.mark.parametrize("partition", ["iid", "dirichlet:1"])
def test_more_samples_leave_clients_what_they_had(partition: str, seed: int, few: int, more: int) -> None:
    small, large = (with_tests(seed, samples=n, partition=partition, **AT_CLIENTS) for n in (few, more))
    held = [len(np.intersect1d(a, b)) for a, b in zip(small.clients, large.clients, strict=True)]
    if partition == "iid" or min(len(part) for split in (small, large) for part in split.clients) > MINIMUM:
        assert sum(held) == few
    else:  # clients with too few got some of the largest client's
        assert sum(held) >= few - 2 * MINIMUM * len(small.clients)


@given(seed=st.integers(0, 20), few=st.integers(0, 300), more=st.integers(300, 800))
@pytest.mark.parametrize("name", ["validation", "test", "shared"])
def test_a_larger_draw_includes_a_smaller_one(name: str, seed: int, few: int, more: int) -> None:
    few = max(few, 1)
    small, large = (getattr(make(LARGE, seed, labels="all", **{name: n}), name) for n in (few, more))
    assert set(small.tolist()) <= set(large.tolist())
    assert len(small) == few


def test_the_draw_of_validation_depends_on_nothing_else() -> None:
    found = [
        make(LARGE, validation=100, **more).validation
        for more in (AT_SERVER, {"labels": "all"}, {**AT_SERVER, "test": 700, "samples": 900}, AT_CLIENTS)
    ]
    assert all(same(first, second) for first, second in pairwise(found))


def test_test_samples_come_from_the_sources_own_test_set_first() -> None:
    assert (with_tests(test=700, **AT_SERVER).test >= len(LARGE)).all()
    assert (with_tests(test=1200, **AT_SERVER).test >= len(LARGE)).sum() == 1000


def test_shared_samples_do_not_move_labels() -> None:
    plain, moved = (make(LARGE, shared=shared, **AT_SERVER) for shared in (0, 50))
    assert same(plain.server, moved.server)


def test_draws_of_0_1_depend_on_amounts_and_are_still_there() -> None:
    plain, moved = (make(LARGE, draw="0.1", test=test, **AT_SERVER) for test in (500, 600))
    assert not same(plain.server, moved.server)
    known = make(draw="0.1", seed=3, labels="server", per_class=2, validation=5, test=5, samples=100)
    assert known.server.tolist() == KNOWN["server"]
    assert known.validation.tolist() == KNOWN["validation"]
    assert known.clients[0].tolist() == KNOWN["client 0"]


@pytest.mark.parametrize("y", [EVEN, SKEWED])
@pytest.mark.parametrize("n", [10, 100, 250, 333])
def test_the_first_samples_have_the_class_proportions_of_the_whole(y: Indices, n: int) -> None:
    first = Orders.draw(y, 0, Streams(1)).prefer("samples", np.arange(len(y)))[:n]
    assert np.abs(per_class(y, first) - np.bincount(y) * n / len(y)).max() <= 2


def test_a_class_that_runs_out_does_not_move_the_remainder_of_others() -> None:
    full, short = np.full(6, 100), np.array([100, 100, 1, 100, 100, 100])
    for seed in range(10):
        a, b = (spread(there, 62, np.random.default_rng(seed), fixed=True) for there in (full, short))
        assert a.sum() == b.sum() == 62
        order = np.random.default_rng(seed).permutation(6)
        assert set(np.flatnonzero(a > a.min())) == set(order[:2].tolist())
        assert b[2] == 1


# Partitions


@given(n=st.integers(0, 300), clients=st.integers(1, 40), seed=st.integers(0, 5))
def test_iid_parts_are_equal_and_grow(n: int, clients: int, seed: int) -> None:
    labels = np.zeros(n + 17, dtype=np.int64)
    small, large = (iid(labels[:count], clients, np.random.default_rng(seed)) for count in (n, n + 17))
    sizes = [len(part) for part in small]
    assert max(sizes) - min(sizes) <= 1
    assert all(same(part, more[more < n]) for part, more in zip(small, large, strict=True))


@given(
    sizes=st.lists(st.integers(1, 200), min_size=1, max_size=6),
    clients=st.integers(1, 12),
    beta=st.sampled_from([1e-300, 0.05, 0.3, 1.0, 100.0]),
    seed=st.integers(0, 5),
)
def test_dirichlet_gives_every_client_ten_samples_or_half_an_equal_part(
    sizes: list[int], clients: int, beta: float, seed: int
) -> None:
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes))
    parts = dirichlet(labels, clients, np.random.default_rng(seed), beta)
    assert same(np.sort(np.concatenate(parts)), np.arange(len(labels)))
    assert min(map(len, parts)) >= min(10, len(labels) // clients // 2)
    assert len(labels) < clients or min(map(len, parts)) >= 1


def test_dirichlet_shares_have_the_distribution_of_moons_rule() -> None:
    from tacit.data.split import partitioners

    labels = np.repeat(np.arange(10), 300)
    mixed = np.random.default_rng(0).permutation(labels)

    def largest(draw: Any, seed: int) -> float:
        parts = draw(mixed, 10, np.random.default_rng(seed), 0.3)
        return float(np.mean([np.bincount(mixed[part]).max() / len(part) for part in parts]))

    new, old = (np.mean([largest(draw, s) for s in range(60)]) for draw in (dirichlet, partitioners.dirichlet))
    assert abs(new - old) < 0.03
