"""Splits: every sample in one place, and the requested number of labels in the requested place."""

import json
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.data.split.apportion import Indices
from tacit.data.split.config import DataConfig
from tacit.data.split.split import class_counts, draw_split
from tacit.random import Streams
from tests.data.splits import CLASSES, EVEN, HALF_KNOWN, PLACES, SKEWED, make, per_class, shown
from tests.refusals import refused


@given(
    y=st.sampled_from([EVEN, SKEWED, HALF_KNOWN]),
    place=st.sampled_from(PLACES),
    partition=st.sampled_from(["iid", "even", "dirichlet:1", "classes:3", "shards:2", "fedsiam-2", "main-class:0.4"]),
    validation=st.integers(0, 40),
    clients=st.integers(2, 12),
    seed=st.integers(0, 3),
)
def test_every_sample_is_in_one_place(
    y: Indices, place: dict[str, Any], partition: str, validation: int, clients: int, seed: int
) -> None:
    if y is SKEWED and place.get("per_class"):
        validation = 0  # the smallest class has no more than these labels
        partition = "iid" if partition == "fedsiam-2" else partition
    if partition == "fedsiam-2" and clients < 3:
        clients = 3  # two classes each, of five
    result = make(y, seed, clients=clients, partition=partition, validation=validation, **place)
    everywhere = np.concatenate([*result.clients, result.server, result.validation, result.test])
    assert np.array_equal(np.sort(everywhere), np.arange(len(y)))
    assert len(result.clients) == clients
    assert len(result.validation) == validation
    assert (y[np.concatenate([result.server, result.validation, np.flatnonzero(result.labeled)])] >= 0).all()
    assert not result.labeled[np.concatenate([result.server, result.validation])].any()
    assert bool(len(result.server)) == (place["labels"] == "server")
    assert result.labeled.any() == (place["labels"] != "server")


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("validation", [0, 20])
def test_the_seed_determines_the_split(place: dict[str, Any], validation: int) -> None:
    first, again, other = (make(seed=seed, validation=validation, **place) for seed in (1, 1, 2))
    assert first.hash() == again.hash()
    assert first.hash() != other.hash()


def test_the_seed_changes_each_draw() -> None:
    def drawn(seed: int) -> list[Indices]:
        alone = make(seed=seed, clients=1, labels="client", per_class=10)  # the only client holds everything
        return [
            make(seed=seed, labels="server", per_class=10).server,
            make(seed=seed, labels="all", validation=20).validation,
            make(seed=seed, labels="all").clients[0],
            np.flatnonzero(alone.labeled),
        ]

    assert not any(np.array_equal(a, b) for a, b in zip(drawn(1), drawn(2), strict=True))


def test_clients_draw_labels_independently() -> None:
    result = make(labels="client", label_fraction=0.5, clients=2)
    first, second = (result.labeled[part] for part in result.clients)
    assert not np.array_equal(first, second)


def test_any_class_may_get_the_odd_label() -> None:
    extra = {np.argmax(per_class(EVEN, make(seed=seed, labels="server", n_labels=6).server)) for seed in range(40)}
    assert extra == set(range(CLASSES))


def test_server_labels_are_even_over_classes() -> None:
    assert per_class(EVEN, make(labels="server", per_class=7).server) == [7] * 5
    assert sorted(per_class(EVEN, make(labels="server", n_labels=17).server)) == [3, 3, 3, 4, 4]
    assert per_class(EVEN, make(labels="server", label_fraction=0.1).server) == [10] * 5


def test_a_small_class_gives_all_it_has() -> None:
    # 100 labels: 3 and 20 from the small classes, and 77 over the three others.
    assert sorted(per_class(SKEWED, make(SKEWED, labels="server", n_labels=100).server)) == [3, 20, 25, 26, 26]


def test_a_larger_number_of_labels_includes_a_smaller_one() -> None:
    sets = [set(make(labels="server", n_labels=n).server.tolist()) for n in (3, 8, 17, 100)]
    assert all(fewer < more for fewer, more in pairwise(sets))


def test_validation_is_even_and_the_same_for_any_labels() -> None:
    results = [make(validation=22, **place) for place in PLACES]
    assert sorted(per_class(EVEN, results[0].validation)) == [4, 4, 4, 5, 5]
    assert all(np.array_equal(result.validation, results[0].validation) for result in results)


def test_a_label_fraction_excludes_validation_samples() -> None:
    assert len(make(labels="server", label_fraction=0.5, validation=100).server) == 200


def test_every_client_shows_labels_of_each_class_it_has() -> None:
    result = make(SKEWED, labels="client", per_class=2, partition="dirichlet:1", clients=6)
    for part, labeled in zip(result.clients, shown(result), strict=True):
        assert per_class(SKEWED, labeled) == [min(2, n) for n in per_class(SKEWED, part)]


def test_labels_in_total_are_even_over_clients_and_their_classes() -> None:
    labeled = shown(make(labels="client", n_labels=124))
    assert sorted(map(len, labeled)) == [12] * 6 + [13] * 4
    assert max(max(per_class(EVEN, part)) for part in labeled) == 3
    assert min(min(per_class(EVEN, part)) for part in labeled) == 2


def test_with_fewer_labels_than_clients_some_have_none() -> None:
    assert sorted(map(len, shown(make(labels="client", n_labels=4)))) == [0] * 6 + [1] * 4


def test_a_label_fraction_applies_to_each_client() -> None:
    result = make(labels="client", label_fraction=0.3, partition="dirichlet:1")
    for part, labeled in zip(result.clients, shown(result), strict=True):
        assert len(labeled) == round(0.3 * len(part))


@pytest.mark.parametrize("some, clients, count", [(0.3, 10, 3), (0.01, 10, 1), (1.0, 10, 10), (0.5, 3, 2)])
def test_some_clients_show_every_label(some: float, clients: int, count: int) -> None:
    result = make(labels="some", labeled_clients=some, clients=clients)
    sizes = [(len(labeled), len(part)) for part, labeled in zip(result.clients, shown(result), strict=True)]
    assert sum(labeled == held for labeled, held in sizes) == count
    assert sum(labeled == 0 for labeled, _ in sizes) == clients - count


def test_some_clients_show_a_few_labels() -> None:
    few: dict[str, Any] = {"labels": "some", "labeled_clients": 0.3}
    assert sorted(map(len, shown(make(per_class=2, **few)))) == [0] * 7 + [10] * 3
    assert sorted(map(len, shown(make(n_labels=20, **few)))) == [0] * 7 + [6, 7, 7]
    assert sorted(map(len, shown(make(label_fraction=0.2, **few)))) == [0] * 7 + [10] * 3


def test_labels_all_with_a_number_divides_samples_as_labels_client_does() -> None:
    few, everything = (make(labels=place, per_class=2, partition="fedsiam-2") for place in ("client", "all"))
    assert all(np.array_equal(a, b) for a, b in zip(few.clients, everything.clients, strict=True))
    assert everything.labeled.all()
    assert few.labeled.sum() == 2 * 10 * CLASSES


def test_labeled_samples_can_have_their_own_partition() -> None:
    result = make(np.arange(5000) % CLASSES, labels="client", label_fraction=0.1, partition="fedsiam-2")
    for part, labeled in zip(result.clients, shown(result), strict=True):
        assert len(labeled) == 50
        assert np.count_nonzero(per_class(np.arange(5000) % CLASSES, labeled)) == 2
        assert min(per_class(np.arange(5000) % CLASSES, part)) > 50  # 450 unlabeled samples of all five classes


def test_fedsiam_3_gives_a_few_clients_most_labels() -> None:
    y = np.arange(20_000) % CLASSES
    result = make(y, labels="client", label_fraction=0.1, partition="fedsiam-3", clients=20)
    assert sorted(map(len, shown(result))) == [50] * 18 + [550] * 2  # 5 % and 55 % of 1,000
    assert len(shown(result)[0]) == 50 or len(shown(result)[1]) == 50  # not simply the first ones


def test_all_samples_of_a_writer_go_to_one_client() -> None:
    writers = np.arange(500) // 20
    result = draw_split(EVEN, CLASSES, DataConfig(labels="all", partition="by-writer"), Streams(0), writers)
    assert sum(len(np.unique(writers[part])) for part in result.clients) == 25
    held = draw_split(EVEN, CLASSES, DataConfig(labels="all", partition="by-writer:1", clients=7), Streams(0), writers)
    assert [len(part) for part in held.clients] == [20] * 7


def test_test_samples_are_the_same_for_any_labels() -> None:
    results = [make(test=50, validation=10, **place) for place in PLACES]
    assert per_class(EVEN, results[0].test) == [10] * 5
    assert all(np.array_equal(result.test, results[0].test) for result in results)
    everywhere = np.concatenate([*results[0].clients, results[0].server, results[0].validation, results[0].test])
    assert np.array_equal(np.sort(everywhere), np.arange(500))


def test_a_subset_has_the_class_proportions_of_the_whole() -> None:
    result = make(SKEWED, labels="all", samples=186)  # half of 373
    half = np.array([100, 50, 25, 10, 1.5])
    assert np.abs(per_class(SKEWED, np.concatenate(result.clients)) - half).max() <= 1
    unknown = make(HALF_KNOWN, labels="all", samples=100)
    assert int((HALF_KNOWN[np.concatenate(unknown.clients)] == -1).sum()) == 50


def test_shared_samples_are_at_every_client_with_their_label() -> None:
    result = make(labels="server", per_class=2, shared=15)
    assert per_class(EVEN, result.shared) == [3] * 5
    for part in result.clients:
        assert set(result.shared.tolist()) <= set(part.tolist())
        assert sorted(part[result.labeled[part]].tolist()) == result.shared.tolist()
    once = np.concatenate([*(np.setdiff1d(part, result.shared) for part in result.clients), result.shared])
    assert np.array_equal(np.sort(np.concatenate([once, result.server])), np.arange(500))


def test_without_streaming_no_arrivals_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    def plan(*_: object) -> None:
        raise AssertionError("a needless loop over all clients")

    monkeypatch.setattr("tacit.data.split.split.arrivals", plan)
    assert make(labels="client", per_class=2, stream_steps=1).arrival is None


def test_all_shows_every_known_label() -> None:
    assert make(labels="all").labeled.all()
    assert np.array_equal(make(HALF_KNOWN, labels="all").labeled, HALF_KNOWN >= 0)


def test_the_labels_of_a_client_do_not_depend_on_the_others() -> None:
    few, many = (shown(make(labels="some", labeled_clients=some, per_class=2)) for some in (0.2, 0.7))
    both = [(a, b) for a, b in zip(few, many, strict=True) if len(a) and len(b)]
    assert len(both) == 2
    assert all(np.array_equal(a, b) for a, b in both)


@pytest.mark.parametrize(
    "settings, code",
    [
        ({"labels": "server"}, "data.needs-label-amount"),
        ({"labels": "client"}, "data.needs-label-amount"),
        ({"labels": "client", "per_class": 1, "n_labels": 1}, "data.conflicting-label-amounts"),
        ({"labels": "sever", "per_class": 1}, "names.unknown-place-of-labels"),
        ({"labels": "server", "per_class": 101}, "data.too-few-of-class"),
        ({"labels": "server", "n_labels": 501}, "data.label-amount-out-of-range"),
        ({"labels": "client", "n_labels": 501}, "data.label-amount-out-of-range"),
        ({"labels": "some", "labeled_clients": 0.2, "n_labels": 101}, "data.label-amount-out-of-range"),
        ({"labels": "server", "label_fraction": 0.0001}, "data.label-amount-out-of-range"),
        ({"labels": "client", "label_fraction": 0.001}, "data.no-client-labels"),
        ({"labels": "server", "label_fraction": 1.1}, "data.bad-label-amount"),
        ({"labels": "server", "n_labels": 0}, "data.bad-label-amount"),
        ({"labels": "server", "label_fraction": 1.0}, "data.no-client-samples"),
        ({"labels": "some", "labeled_clients": 0.0}, "data.bad-labeled-clients"),
        ({"labels": "all", "validation": 501}, "data.too-few-samples"),
        ({"labels": "all", "validation": -1}, "data.too-few-samples"),
        ({"labels": "all", "test": 501}, "data.too-few-samples"),
        ({"labels": "all", "shared": 501}, "data.too-few-samples"),
        ({"labels": "all", "samples": 501}, "data.too-few-samples"),
        ({"labels": "all", "samples": 491, "test": 10}, "data.too-few-samples"),
        ({"labels": "client", "partition": "fedsiam-3", "per_class": 2}, "data.needs-label-fraction"),
        ({"labels": "client", "partition": "fedsiam-2", "per_class": 11}, "data.too-few-of-class"),
        ({"labels": "all", "partition": "by-writer"}, "data.no-groups"),
        ({"labels": "all", "partition": "idd"}, "names.unknown-partition"),
        ({"partition": "sites", "labels": "client", "per_class": 2}, "data.labels-fixed-at-sites"),
        ({"partition": "sites", "shared": 5}, "data.samples-fixed-at-sites"),
        ({"partition": "sites", "stream_steps": 2}, "data.samples-fixed-at-sites"),
    ],
)
def test_an_impossible_split_is_refused(settings: dict[str, Any], code: str) -> None:
    with refused(code) as refusal:
        make(**settings)
    assert "\n" not in str(refusal.error)


def test_a_refusal_names_the_numbers_and_the_setting_to_change() -> None:
    with refused("data.too-few-samples") as refusal:
        make(labels="all", samples=491, test=10)
    assert str(refusal.error) == "data.samples asks for 491 training samples and there are 490; lower data.samples"


def test_unknown_labels_do_not_count_as_labels() -> None:
    make(HALF_KNOWN, labels="server", n_labels=250)
    with refused("data.label-amount-out-of-range"):
        make(HALF_KNOWN, labels="server", n_labels=251)


def test_the_hash_changes_with_every_move() -> None:
    base = make(labels="client", per_class=1, validation=10)
    first, second, *rest = base.clients
    flipped = base.labeled.copy()
    flipped[0] ^= True
    moved = [
        replace(base, clients=[first[:-1], np.concatenate([first[-1:], second]), *rest]),
        replace(base, clients=[second, first, *rest]),
        replace(base, labeled=flipped),
        replace(base, server=base.validation, validation=base.server),
        replace(base, test=base.validation, validation=base.test),
        replace(base, shared=base.validation, validation=base.shared),
        replace(base, arrival=make(labels="client", per_class=1, validation=10, stream_steps=2).arrival),
        replace(base, arrival=make(labels="client", per_class=1, validation=10, stream_steps=3).arrival),
    ]
    assert len({split.hash() for split in [base, *moved]}) == 9


def test_a_split_can_be_written_as_json() -> None:
    result = make(labels="client", per_class=1, validation=10)
    plain = json.loads(json.dumps(result.to_json()))
    assert plain["clients"] == [part.tolist() for part in result.clients]
    assert plain["labeled"] == np.flatnonzero(result.labeled).tolist()
    assert plain["server"] == []
    assert plain["validation"] == result.validation.tolist()


@pytest.mark.parametrize("more", [{"labels": "server"}, {"labels": "client", "partition": "fedsiam-2"}])
def test_a_class_with_too_few_samples_is_named(more: dict[str, Any]) -> None:
    y = np.concatenate([np.zeros(40), np.ones(19), np.full(40, 2)]).astype(np.int64)
    with refused("data.too-few-of-class") as refusal:
        draw_split(y, 3, DataConfig(per_class=20, clients=2, **more), Streams(0), names=("cat", "dog", "eel"))
    assert "class dog" in refusal.error.problem
    assert "19" in refusal.error.problem


def test_class_counts_are_by_true_class() -> None:
    result = make(HALF_KNOWN, labels="client", per_class=2, clients=4)
    labeled, unlabeled = class_counts(HALF_KNOWN, CLASSES, result)
    assert labeled.shape == unlabeled.shape == (4, CLASSES + 1)
    for k, (part, of_client) in enumerate(zip(result.clients, shown(result), strict=True)):
        assert labeled[k].tolist() == [*per_class(HALF_KNOWN, of_client), 0]
        rest = [int(np.count_nonzero(HALF_KNOWN[part] == c)) for c in (*range(CLASSES), -1)]
        assert (labeled[k] + unlabeled[k]).tolist() == rest


# Sites with their own data


@pytest.mark.parametrize("labels", ["server", "client", "some", "all"])
def test_at_sites_no_samples_are_divided(labels: Any) -> None:
    result = make(HALF_KNOWN, clients=3, partition="sites", labels=labels, validation=10, test=20)
    assert [len(part) for part in result.clients] == [0, 0, 0]
    assert not result.labeled.any()
    assert (len(result.validation), len(result.test)) == (10, 20)
    assert len(result.server) == (220 if labels == "server" else 0)  # all labels left of 250
    assert result.hash() == make(HALF_KNOWN, clients=3, partition="sites", labels=labels, validation=10, test=20).hash()
    json.dumps(result.to_json())


def test_a_hub_can_use_fewer_of_its_labels() -> None:
    assert per_class(EVEN, make(partition="sites", per_class=3).server) == [3] * CLASSES
