"""Partitions: every sample has one owner, and sizes are as promised."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from tacit.data.split.apportion import Indices
from tacit.data.split.partition import OLD_NAMES, PARTITIONS, canonical, example, heterogeneity, parse, partition
from tacit.data.split.partitioners import by_group, dirichlet, fedsiam_3_rates, iid
from tacit.errors import TacitError, notice_renamed
from tests.refusals import refused

TEN_CLASSES = np.repeat(np.arange(10), 60)
SPECS = ["iid", "even", "dirichlet:0.5", "client-dirichlet:0.3", "quantity-skew:0.5", "classes:2", "shards:2"]
SPECS += ["main-class:0.4", "fedmatch", "fedsiam-1", "fedsiam-2", "fedsiam-3"]
MORE_SPECS = ["dirichlet:20", "classes:1", "classes:3", "shards:3", "main-class:0", "main-class:1"]
MORE_SPECS += ["quantity-skew:0.01", "client-dirichlet:0.001"]


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def table(labels: Indices, parts: list[Indices]) -> Indices:
    """(clients, classes) samples."""
    return np.array([np.bincount(labels[part], minlength=int(labels.max()) + 1) for part in parts])


def labels_of(sizes: list[int]) -> Indices:
    """Labels with these numbers of samples of class 0, 1, …, in random order."""
    return rng().permutation(np.repeat(np.arange(len(sizes)), sizes))


@given(
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=7),
    unlabeled=st.integers(0, 20),
    clients=st.integers(1, 12),
    spec=st.sampled_from(SPECS + MORE_SPECS),
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
def test_the_seed_determines_the_partition(spec: str) -> None:
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


def test_a_partition_can_have_100_000_clients() -> None:
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
def test_dirichlet_follows_moons_rule(seed: int) -> None:
    found = dirichlet(TEN_CLASSES, 4, rng(seed), beta=0.5, minimum=0)
    assert [part.tolist() for part in found] == moon(TEN_CLASSES, 4, 0.5, rng(seed))


def test_dirichlet_gives_every_client_ten_samples() -> None:
    labels = np.repeat(np.arange(10), 500)
    once = [min(map(len, dirichlet(labels, 10, rng(seed), 0.05, minimum=0))) for seed in range(30)]
    assert min(once) < 10  # the first draw alone is not enough
    assert min(min(map(len, dirichlet(labels, 10, rng(seed), 0.05))) for seed in range(30)) >= 10


def test_a_smaller_beta_is_less_even() -> None:
    def largest_class(beta: float) -> float:
        parts = dirichlet(TEN_CLASSES, 10, rng(), beta)
        return float(np.mean([np.bincount(TEN_CLASSES[part]).max() / len(part) for part in parts]))

    assert largest_class(100) < 0.2 < largest_class(0.5) < 0.5 < largest_class(0.1)


def test_dirichlet_gives_up_after_many_draws() -> None:
    with refused("data.dirichlet-too-uneven"):
        dirichlet(TEN_CLASSES, 100, rng(), 0.01)


def test_dirichlet_works_with_fewer_samples_than_clients() -> None:
    assert sum(map(len, partition("dirichlet:0.3", np.arange(5), 20, rng()))) == 5


def test_dirichlet_works_with_a_beta_that_underflows() -> None:
    assert sum(map(len, dirichlet(TEN_CLASSES, 3, rng(), 1e-300, minimum=0))) == len(TEN_CLASSES)


@given(sizes=st.lists(st.integers(1, 60), min_size=1, max_size=7), clients=st.integers(1, 12), seed=st.integers(0, 9))
def test_even_parts_have_equal_numbers_of_every_class(sizes: list[int], clients: int, seed: int) -> None:
    counts = table(labels_of(sizes), partition("even", labels_of(sizes), clients, rng(seed)))
    assert np.ptp(counts, axis=0).max() <= 1
    assert np.ptp(counts.sum(axis=1)) <= 1


@given(beta=st.sampled_from([0.01, 0.5, 100.0]), clients=st.integers(1, 40), seed=st.integers(0, 9))
def test_quantity_skew_leaves_no_client_empty(beta: float, clients: int, seed: int) -> None:
    assert min(map(len, partition(f"quantity-skew:{beta}", TEN_CLASSES, clients, rng(seed)))) >= 1


@pytest.mark.parametrize("beta", [0.01, 0.1, 0.3, 0.9, 100])
@pytest.mark.parametrize("seed", range(5))
def test_client_dirichlet_clients_differ_in_classes_and_not_in_size(beta: float, seed: int) -> None:
    labels = labels_of([1200] * 10)
    counts = table(labels, partition(f"client-dirichlet:{beta}", labels, 10, rng(seed)))
    assert np.abs(counts.sum(axis=1) - 1200).max() <= (0 if beta >= 0.1 else 5)  # a class or two each fits only nearly
    assert (heterogeneity(counts) > 0.55) == (beta <= 0.3)


def test_quantity_skew_clients_differ_in_size_and_not_in_classes() -> None:
    labels = np.repeat(np.arange(10), 2000)
    counts = table(labels, partition("quantity-skew:0.5", labels, 10, rng()))
    assert counts.sum(axis=1).max() > 10 * counts.sum(axis=1).min()
    large = counts[counts.sum(axis=1) > 1000]
    assert np.abs(large / large.sum(axis=1, keepdims=True) - 0.1).max() < 0.05


@given(count=st.integers(1, 10), clients=st.integers(1, 25), seed=st.integers(0, 9))
def test_every_class_goes_to_equally_many_clients(count: int, clients: int, seed: int) -> None:
    if clients * count >= 10:
        counts = table(TEN_CLASSES, partition(f"classes:{count}", TEN_CLASSES, clients, rng(seed)))
        assert np.ptp((counts > 0).sum(axis=0)) <= 1


def test_fedsiam_1_clients_have_two_classes_and_equal_sizes() -> None:
    labels = np.repeat(np.arange(10), 500)
    counts = table(labels, partition("fedsiam-1", labels, 100, rng()))
    assert ((counts > 0).sum(axis=1) == 2).all()
    assert (counts.sum(axis=1) == 50).all()


@given(count=st.integers(1, 10), clients=st.integers(1, 25), seed=st.integers(0, 9))
def test_a_class_is_divided_evenly_among_its_clients(count: int, clients: int, seed: int) -> None:
    if clients * count < 10:
        with refused("data.classes-do-not-fit"):
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


def test_two_shards_hold_at_most_two_classes() -> None:
    parts = partition("shards:2", TEN_CLASSES, 10, rng())  # shards of 30 lie within classes of 60
    assert [len(part) for part in parts] == [60] * 10
    assert max(len(np.unique(TEN_CLASSES[part])) for part in parts) == 2


def r_by_definition(counts: Indices) -> float:
    """Definition 1 of the SSFL paper, pair by pair."""
    mix = [row / row.sum() for row in counts if row.sum()]
    pairs = [(a, b) for i, a in enumerate(mix) for b in mix[i + 1 :]]
    return float(np.mean([np.abs(a - b).sum() / 2 for a, b in pairs])) if pairs else 0.0


@given(rows=st.lists(st.lists(st.integers(0, 9), min_size=3, max_size=3), min_size=1, max_size=8))
def test_heterogeneity_is_definition_1(rows: list[list[int]]) -> None:
    assert heterogeneity(np.array(rows)) == pytest.approx(r_by_definition(np.array(rows)))


def test_heterogeneity_is_0_for_equal_clients_and_1_for_disjoint_ones() -> None:
    assert heterogeneity(np.eye(10, dtype=np.int64)) == 1
    assert heterogeneity(np.ones((10, 10), dtype=np.int64)) == 0
    assert (
        heterogeneity(np.array([[3, 1], [1, 3], [0, 0]])) == 0.5
    )  # |3/4 - 1/4|; a client without samples does not count


@pytest.mark.parametrize("level", [0, 0.1, 0.4, 0.5, 1])
def test_main_class_has_the_requested_heterogeneity(level: float) -> None:
    labels = np.repeat(np.arange(10), 4900)  # CIFAR-10 without the server's 1,000
    counts = table(labels, partition(f"main-class:{level}", labels, 10, rng()))
    assert heterogeneity(counts) == pytest.approx(level, abs=1e-3)
    # A.2 by hand: R·4900 of its main class and (1-R)·490 of every class.
    assert counts[3, 3] == pytest.approx(4900 * level + 490 * (1 - level), abs=1)
    assert counts[3, 4] == pytest.approx(490 * (1 - level), abs=1)
    assert (counts.sum(axis=1) == 4900).all()


def test_clients_that_share_a_main_class_are_alike() -> None:
    labels = np.repeat(np.arange(10), 4900)
    counts = table(labels, partition("main-class:0.4", labels, 20, rng()))
    assert np.abs(counts[3] - counts[13]).max() <= 1
    # Of the 190 pairs the 10 with a common main class are at distance 0, the others at 0.4.
    assert heterogeneity(counts) == pytest.approx(0.4 * 180 / 190, abs=2e-3)


def test_fewer_clients_than_classes_have_several_main_classes() -> None:
    counts = table(TEN_CLASSES, partition("main-class:1", TEN_CLASSES, 4, rng()))
    assert [np.flatnonzero(row).tolist() for row in counts] == [[0, 4, 8], [1, 5, 9], [2, 6], [3, 7]]


def test_fedmatch_follows_its_table() -> None:
    labels = np.repeat(np.arange(10), 4900)  # 49,000 unlabeled samples, 490 for each of 100 clients
    counts = table(labels, partition("fedmatch", labels, 100, rng()))
    first = np.array([0.50, 0.15, 0.03, 0.03, 0.03, 0.02, 0.03, 0.03, 0.03, 0.15])
    for client in range(100):
        assert np.abs(counts[client] - 490 * np.roll(first, client)).max() < 1
    assert (counts.sum(axis=1) == 490).all()


def test_fedmatch_needs_ten_classes() -> None:
    with refused("data.needs-ten-classes"):
        partition("fedmatch", np.arange(60) % 3, 10, rng())


def test_class_grid_is_fedsiam_as_released() -> None:
    labels = np.repeat(np.arange(10), 1900)
    counts = table(labels, partition("class-grid", labels, 100, rng()))
    assert [np.flatnonzero(counts[client]).tolist() for client in (0, 1, 37, 73, 99)] == [
        [0],
        [0, 1],
        [3, 7],
        [3, 7],
        [9],
    ]
    with refused("data.wrong-client-count"):
        partition("class-grid", TEN_CLASSES, 10, rng())


@pytest.mark.parametrize("mean, many, high", [(0.1, 10, 0.55), (0.15, 15, 0.05 + 0.1 / 0.15), (0.2, 20, 0.8)])
def test_fedsiam_3_rates_have_the_requested_mean(mean: float, many: int, high: float) -> None:
    rates = fedsiam_3_rates(100, mean)
    assert rates[:many] == pytest.approx(high)
    assert rates[many:] == pytest.approx(0.05)
    assert rates.mean() == pytest.approx(mean)


@pytest.mark.parametrize("mean", [0.01, 0.0])
def test_impossible_fedsiam_3_rates_are_refused(mean: float) -> None:
    with refused("data.label-fraction-out-of-range"):
        fedsiam_3_rates(100, mean)


WRITERS = np.repeat([7, 3, 9, 4, 1], [5, 8, 2, 6, 4])


@given(clients=st.integers(1, 5), seed=st.integers(0, 9))
def test_all_samples_of_a_writer_are_at_one_client(clients: int, seed: int) -> None:
    parts = by_group(WRITERS, clients, rng(seed))
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(len(WRITERS)))
    held = [set(WRITERS[part].tolist()) for part in parts]
    assert sum(map(len, held)) == 5
    assert max(map(len, held)) - min(map(len, held)) <= 1


def test_one_writer_per_client_leaves_the_others_out() -> None:
    parts = partition("by-writer:1", TEN_CLASSES[: len(WRITERS)], 3, rng(), WRITERS)
    assert [len(set(WRITERS[part].tolist())) for part in parts] == [1, 1, 1]
    assert all(len(part) == (WRITERS[part[0]] == WRITERS).sum() for part in parts)


def test_partitions_by_writer_need_enough_writers() -> None:
    with refused("data.too-few-groups"):
        partition("by-speaker", WRITERS, 6, rng(), WRITERS)
    with refused("data.no-groups"):
        partition("by-writer", WRITERS, 3, rng())


def test_samples_without_a_label_are_divided_evenly() -> None:
    labels = np.concatenate([TEN_CLASSES, np.full(100, -1)])
    parts = partition("classes:2", labels, 10, rng())
    assert [int((labels[part] == -1).sum()) for part in parts] == [10] * 10


@pytest.mark.parametrize(
    "spec, code",
    [
        ("dirichet:0.3", "names.unknown-partition"),
        ("dirichlet", "data.bad-partition-number"),
        ("dirichlet:0", "data.bad-partition-number"),
        ("dirichlet:nan", "data.bad-partition-number"),
        ("dirichlet:inf", "data.bad-partition-number"),
        ("dirichlet:a lot", "data.bad-partition-number"),
        ("classes:1.5", "data.bad-partition-number"),
        ("shards:-1", "data.bad-partition-number"),
        ("iid:2", "data.partition-takes-no-number"),
        ("main-class:1.1", "data.bad-partition-number"),
        ("by-writer:x", "data.bad-partition-number"),
        ("classes:11", "data.classes-do-not-fit"),
        ("shards:61", "data.too-few-samples"),
    ],
)
def test_a_wrong_partition_is_refused(spec: str, code: str) -> None:
    with refused(code) as refusal:
        partition(spec, TEN_CLASSES, 10, rng())
    assert "\n" not in str(refusal.error)


def test_a_refusal_shows_how_to_write_the_partition() -> None:
    with refused("data.bad-partition-number") as refusal:
        parse("main-class")
    assert str(refusal.error) == "main-class needs a number from 0 to 1; write main-class:0.4"
    with refused("data.classes-do-not-fit") as refusal:
        partition("classes:11", TEN_CLASSES, 10, rng())
    assert refusal.error.remedy == "use a number from 1 to 10"


def test_a_partition_needs_a_client() -> None:
    with refused("data.no-clients"):
        partition("iid", TEN_CLASSES, 0, rng())


def test_parse_splits_name_and_number() -> None:
    assert parse("dirichlet:0.3") == ("dirichlet", (0.3,))
    assert parse("classes:2") == ("classes", (2,))
    assert parse("iid") == ("iid", ())
    assert parse("main-class:0") == ("main-class", (0,))
    assert parse("by-writer") == ("by-writer", ())
    assert parse("by-writer:1") == ("by-writer", (1,))


@pytest.mark.parametrize("name", PARTITIONS)
def test_every_example_can_be_parsed(name: str) -> None:
    assert parse(example(name))[0] == name


@pytest.mark.parametrize("old", OLD_NAMES)
def test_an_old_name_still_works_and_is_noticed_once(old: str, capsys: pytest.CaptureFixture[str]) -> None:
    notice_renamed.cache_clear()
    new = OLD_NAMES[old]
    assert canonical(f"{old}:0.3") == canonical(f"{new}:0.3") == f"{new}:0.3"
    assert canonical(old) == new
    by_old, by_new = (partition(f"{name}:0.3", TEN_CLASSES, 10, rng()) for name in (old, new))
    assert all(np.array_equal(a, b) for a, b in zip(by_old, by_new, strict=True))
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", f"tacit: {old} is now {new}\n")


@pytest.mark.parametrize("partitioner", PARTITIONS.values())
def test_every_partition_has_a_one_line_description(partitioner: Callable[..., list[Indices]]) -> None:
    assert partitioner.__doc__ is not None
    assert partitioner.__doc__.partition("\n")[0].endswith(".")
