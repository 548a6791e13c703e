"""Where the labels are: every sample in one place, as many labels as promised, hidden ones really hidden."""

import json
import re
from dataclasses import replace
from itertools import chain, pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tacit.data.partition import Indices
from tacit.data.scenario import Scenario, Split, counts, federation, pooled, split, views
from tacit.data.sources import Source
from tacit.errors import TacitError
from tacit.random import Streams

CLASSES = 5
EVEN = np.arange(500) % CLASSES
SKEWED = np.repeat(np.arange(CLASSES), [200, 100, 50, 20, 3])
HALF_KNOWN = np.where(np.arange(500) % 2, EVEN, -1)

PLACES: list[dict[str, Any]] = [
    {"labels": "server", "per_class": 3},
    {"labels": "server", "n_labels": 17},
    {"labels": "server", "label_fraction": 0.1},
    {"labels": "client", "per_class": 2},
    {"labels": "client", "n_labels": 37},
    {"labels": "client", "label_fraction": 0.2},
    {"labels": "some", "some": 0.3},
    {"labels": "some", "some": 0.01, "per_class": 1},
    {"labels": "some", "some": 0.5, "n_labels": 12},
    {"labels": "some", "some": 0.5, "label_fraction": 0.5},
    {"labels": "all"},
]


def make(y: Indices = EVEN, seed: int = 0, **settings: Any) -> Split:
    return split(y, CLASSES, Scenario(**settings), Streams(seed))


def per_class(y: Indices, samples: Indices) -> list[int]:
    counts: list[int] = np.bincount(y[samples], minlength=CLASSES).tolist()
    return counts


def shown(result: Split) -> list[Indices]:
    """The samples that show their label, client by client."""
    return [part[result.labeled[part]] for part in result.clients]


@given(
    y=st.sampled_from([EVEN, SKEWED, HALF_KNOWN]),
    place=st.sampled_from(PLACES),
    partition=st.sampled_from(["iid", "even", "dirichlet:1", "classes:3", "shards:2", "fedsiam-2", "r:0.4"]),
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
def test_the_seed_decides(place: dict[str, Any], validation: int) -> None:
    first, again, other = (make(seed=seed, validation=validation, **place) for seed in (1, 1, 2))
    assert first.hash() == again.hash()
    assert first.hash() != other.hash()


def test_the_seed_decides_each_draw() -> None:
    def drawn(seed: int) -> list[Indices]:
        alone = make(seed=seed, clients=1, labels="client", per_class=10)  # the only client holds everything
        return [
            make(seed=seed, labels="server", per_class=10).server,
            make(seed=seed, labels="all", validation=20).validation,
            make(seed=seed, labels="all").clients[0],
            np.flatnonzero(alone.labeled),
        ]

    assert not any(np.array_equal(a, b) for a, b in zip(drawn(1), drawn(2), strict=True))


def test_clients_draw_apart() -> None:
    result = make(labels="client", label_fraction=0.5, clients=2)
    first, second = (result.labeled[part] for part in result.clients)
    assert not np.array_equal(first, second)


def test_any_class_may_get_one_more() -> None:
    extra = {np.argmax(per_class(EVEN, make(seed=seed, labels="server", n_labels=6).server)) for seed in range(40)}
    assert extra == set(range(CLASSES))


def test_server_labels_are_even_over_classes() -> None:
    assert per_class(EVEN, make(labels="server", per_class=7).server) == [7] * 5
    assert sorted(per_class(EVEN, make(labels="server", n_labels=17).server)) == [3, 3, 3, 4, 4]
    assert per_class(EVEN, make(labels="server", label_fraction=0.1).server) == [10] * 5


def test_a_small_class_gives_what_it_has() -> None:
    # 100 labels: 3 and 20 from the small classes, and 77 over the three others.
    assert sorted(per_class(SKEWED, make(SKEWED, labels="server", n_labels=100).server)) == [3, 20, 25, 26, 26]


def test_more_labels_include_the_fewer() -> None:
    sets = [set(make(labels="server", n_labels=n).server.tolist()) for n in (3, 8, 17, 100)]
    assert all(fewer < more for fewer, more in pairwise(sets))


def test_validation_is_even_and_the_same_for_any_labels() -> None:
    results = [make(validation=22, **place) for place in PLACES]
    assert sorted(per_class(EVEN, results[0].validation)) == [4, 4, 4, 5, 5]
    assert all(np.array_equal(result.validation, results[0].validation) for result in results)


def test_a_fraction_is_of_what_validation_leaves() -> None:
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


def test_fewer_labels_than_clients() -> None:
    assert sorted(map(len, shown(make(labels="client", n_labels=4)))) == [0] * 6 + [1] * 4


def test_a_fraction_of_each_client() -> None:
    result = make(labels="client", label_fraction=0.3, partition="dirichlet:1")
    for part, labeled in zip(result.clients, shown(result), strict=True):
        assert len(labeled) == round(0.3 * len(part))


@pytest.mark.parametrize("some, clients, count", [(0.3, 10, 3), (0.01, 10, 1), (1.0, 10, 10), (0.5, 3, 2)])
def test_some_clients_show_every_label(some: float, clients: int, count: int) -> None:
    result = make(labels="some", some=some, clients=clients)
    sizes = [(len(labeled), len(part)) for part, labeled in zip(result.clients, shown(result), strict=True)]
    assert sum(labeled == held for labeled, held in sizes) == count
    assert sum(labeled == 0 for labeled, _ in sizes) == clients - count


def test_some_clients_show_a_few_labels() -> None:
    few: dict[str, Any] = {"labels": "some", "some": 0.3}
    assert sorted(map(len, shown(make(per_class=2, **few)))) == [0] * 7 + [10] * 3
    assert sorted(map(len, shown(make(n_labels=20, **few)))) == [0] * 7 + [6, 7, 7]
    assert sorted(map(len, shown(make(label_fraction=0.2, **few)))) == [0] * 7 + [10] * 3


def test_all_with_a_number_shows_what_the_clients_hold_with_that_number() -> None:
    few, everything = (make(labels=place, per_class=2, partition="fedsiam-2") for place in ("client", "all"))
    assert all(np.array_equal(a, b) for a, b in zip(few.clients, everything.clients, strict=True))
    assert everything.labeled.all()
    assert few.labeled.sum() == 2 * 10 * CLASSES


def test_labeled_samples_can_be_dealt_in_their_own_way() -> None:
    result = make(np.arange(5000) % CLASSES, labels="client", label_fraction=0.1, partition="fedsiam-2")
    for part, labeled in zip(result.clients, shown(result), strict=True):
        assert len(labeled) == 50
        assert np.count_nonzero(per_class(np.arange(5000) % CLASSES, labeled)) == 2
        assert min(per_class(np.arange(5000) % CLASSES, part)) > 50  # 450 unlabeled samples of all five classes


def test_a_few_clients_know_most_labels() -> None:
    y = np.arange(20_000) % CLASSES
    result = make(y, labels="client", label_fraction=0.1, partition="fedsiam-3", clients=20)
    assert sorted(map(len, shown(result))) == [50] * 18 + [550] * 2  # 5 % and 55 % of 1,000
    assert len(shown(result)[0]) == 50 or len(shown(result)[1]) == 50  # not simply the first ones


def test_writers_stay_together() -> None:
    writers = np.arange(500) // 20
    result = split(EVEN, CLASSES, Scenario(labels="all", partition="by-writer"), Streams(0), writers)
    assert sum(len(np.unique(writers[part])) for part in result.clients) == 25
    held = split(EVEN, CLASSES, Scenario(labels="all", partition="by-writer:1", clients=7), Streams(0), writers)
    assert [len(part) for part in held.clients] == [20] * 7


def test_test_samples_come_first_and_from_everywhere() -> None:
    results = [make(test=50, validation=10, **place) for place in PLACES]
    assert per_class(EVEN, results[0].test) == [10] * 5
    assert all(np.array_equal(result.test, results[0].test) for result in results)
    everywhere = np.concatenate([*results[0].clients, results[0].server, results[0].validation, results[0].test])
    assert np.array_equal(np.sort(everywhere), np.arange(500))


def test_the_samples_that_are_used_keep_their_mix() -> None:
    result = make(SKEWED, labels="all", samples=186)  # half of 373
    assert per_class(SKEWED, np.concatenate(result.clients)) in ([100, 50, 25, 10, 1], [99, 50, 25, 10, 2])
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


def test_unlabeled_samples_arrive_in_steps_and_labels_stay() -> None:
    toy, result = source(EVEN), make(labels="client", per_class=2, shared=5, steps=4, step_rounds=3, validation=10)
    built = federation(toy, result, Scenario())
    seen = [built.client(2, round) for round in range(14)]
    assert [len(samples.labeled) for samples in seen] == [15] * 14  # two of each class, and the shared ones
    mine, arrival = torch.from_numpy(result.clients[2]), result.arrival
    assert arrival is not None
    chunks = [[i for i in arrival.present(mine, round).tolist() if not result.labeled[i]] for round in (0, 3, 6, 9)]
    assert max(map(len, chunks)) - min(map(len, chunks)) <= 1
    assert sorted(chain.from_iterable(chunks)) == [i for i in mine.tolist() if not result.labeled[i]]
    assert torch.equal(seen[0].x, seen[2].x)
    assert not torch.equal(seen[2].x[:5], seen[3].x[:5]) or len(seen[2]) != len(seen[3])
    assert torch.equal(seen[9].x, seen[13].x)  # the last step lasts
    true = built.true_labels(2, 4)
    assert true is not None
    assert len(true) == len(seen[4])


def test_where_all_samples_are_there_from_the_start_nobody_plans_arrivals(monkeypatch: pytest.MonkeyPatch) -> None:
    def plan(*_: object) -> None:
        raise AssertionError("it is a loop over all clients")

    monkeypatch.setattr("tacit.data.scenario.arrivals", plan)
    assert make(labels="client", per_class=2, steps=1).arrival is None


def test_samples_of_earlier_steps_can_stay() -> None:
    built = federation(source(EVEN), make(labels="server", per_class=2, steps=5, step_rounds=1, keep=True), Scenario())
    assert [len(built.client(0, round)) for round in range(6)] == [10, 20, 30, 40, 49, 49]


def test_with_all_labels_the_unlabeled_part_still_streams() -> None:
    few, everything = (
        federation(source(EVEN), make(labels=place, per_class=2, steps=4, step_rounds=1), Scenario())
        for place in ("client", "all")
    )
    for round in range(4):
        assert torch.equal(few.client(1, round).x, everything.client(1, round).x)
        assert not len(everything.client(1, round).unlabeled)


def test_all_shows_every_known_label() -> None:
    assert make(labels="all").labeled.all()
    assert np.array_equal(make(HALF_KNOWN, labels="all").labeled, HALF_KNOWN >= 0)


def test_the_labels_of_a_client_do_not_depend_on_the_others() -> None:
    few, many = (shown(make(labels="some", some=some, per_class=2)) for some in (0.2, 0.7))
    both = [(a, b) for a, b in zip(few, many, strict=True) if len(a) and len(b)]
    assert len(both) == 2
    assert all(np.array_equal(a, b) for a, b in both)


@pytest.mark.parametrize(
    "settings, message",
    [
        (
            {"labels": "server"},
            "labels at the server need a number: give --per-class, --n-labels or --label-fraction, or use --labels all",
        ),
        ({"labels": "client"}, "labels at the client need a number: give --per-class"),
        ({"labels": "client", "per_class": 1, "n_labels": 1}, "exclude each other: give one of them"),
        ({"labels": "sever", "per_class": 1}, "unknown place of labels 'sever': did you mean 'server'?"),
        ({"labels": "server", "per_class": 101}, "101 labels per class are asked for and class 0 has 100 samples"),
        ({"labels": "server", "n_labels": 501}, "501 labels can not be drawn from 500 samples"),
        ({"labels": "client", "n_labels": 501}, "501 labels can not be drawn from 500 samples"),
        ({"labels": "some", "some": 0.2, "n_labels": 101}, "101 labels can not be drawn from 100 samples"),
        ({"labels": "server", "label_fraction": 0.0001}, "0 labels can not be drawn"),
        ({"labels": "client", "label_fraction": 0.001}, "no client would have a single label"),
        ({"labels": "server", "label_fraction": 1.1}, "a label fraction also at most 1"),
        ({"labels": "server", "n_labels": 0}, "must be above 0"),
        ({"labels": "server", "label_fraction": 1.0}, "leaves the clients none: lower the number of labels"),
        ({"labels": "some", "some": 0.0}, "share 0 of the clients: set data.some above 0"),
        ({"labels": "all", "validation": 501}, "501 validation samples can not be drawn from 500"),
        ({"labels": "all", "validation": -1}, "lower data.validation"),
        (
            {"labels": "all", "test": 501},
            "501 test samples can not be drawn from 500 with a known label: lower data.test",
        ),
        ({"labels": "all", "shared": 501}, "501 shared samples can not be drawn from 500"),
        ({"labels": "all", "samples": 501}, "501 training samples are asked for and 500 are there: lower data.samples"),
        ({"labels": "all", "samples": 491, "test": 10}, "491 training samples are asked for and 490 are there"),
        (
            {"labels": "client", "partition": "fedsiam-3", "per_class": 2},
            "fedsiam-3 says which share of its labels a client knows: use --label-fraction",
        ),
        (
            {"labels": "client", "partition": "fedsiam-2", "per_class": 11},
            "11 labels per class at 10 clients need 110 samples of each class and class 0 has 100: lower --per-class",
        ),
        (
            {"labels": "all", "partition": "by-writer"},
            "so by-writer is not possible: use iid, or add a column group to a manifest",
        ),
        ({"labels": "all", "partition": "idd"}, "unknown partition 'idd': did you mean 'iid'?"),
    ],
)
def test_what_is_not_possible_is_one_sentence(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(TacitError, match=re.escape(message)) as caught:
        make(**settings)
    assert "\n" not in str(caught.value)


def test_unknown_labels_do_not_count_as_labels() -> None:
    with pytest.raises(TacitError, match="251 labels can not be drawn from 250 samples"):
        make(HALF_KNOWN, labels="server", n_labels=251)


def test_the_hash_sees_every_move() -> None:
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
        replace(base, arrival=make(labels="client", per_class=1, validation=10, steps=2).arrival),
        replace(base, arrival=make(labels="client", per_class=1, validation=10, steps=3).arrival),
    ]
    assert len({split.hash() for split in [base, *moved]}) == 9


def test_the_plain_form_can_be_written() -> None:
    result = make(labels="client", per_class=1, validation=10)
    plain = json.loads(json.dumps(result.to_json()))
    assert plain["clients"] == [part.tolist() for part in result.clients]
    assert plain["labeled"] == np.flatnonzero(result.labeled).tolist()
    assert plain["server"] == []
    assert plain["validation"] == result.validation.tolist()


def source(y: Indices) -> Source:
    """A data set whose sample i is an image of the number i."""
    x = torch.arange(len(y))[:, None, None, None] % 251 * torch.ones(1, 1, 4, 4)
    test = torch.zeros(3, 1, 4, 4, dtype=torch.uint8), torch.tensor([0, 1, 2])
    return Source("toy", x.to(torch.uint8), torch.from_numpy(y), *test, tuple("abcde"), (0.5,), (0.5,), flip=False)


@given(place=st.sampled_from(PLACES), y=st.sampled_from([EVEN, HALF_KNOWN]))
def test_a_federation_shows_what_the_split_shows(place: dict[str, Any], y: Indices) -> None:
    toy, result = source(y), make(y, validation=10, **place)
    built = federation(toy, result, Scenario())
    assert built.clients == 10
    assert built.pool.x.data_ptr() == toy.x.data_ptr()
    for k, part in enumerate(result.clients):
        seen = built.client(k, round=0)
        assert seen.x[:, 0, 0, 0].tolist() == (part % 251).tolist()
        assert seen.y.tolist() == [int(y[i]) if result.labeled[i] else -1 for i in part]
        true = built.true_labels(k, round=0)
        assert true is not None
        assert true.tolist() == y[part].tolist()
    assert built.server.labeled.y.tolist() == y[result.server].tolist()
    assert built.server.validation.x[:, 0, 0, 0].tolist() == (result.validation % 251).tolist()
    assert (built.pool.y[torch.from_numpy(~result.labeled)] == -1).all()
    assert built.test.x is toy.x_test
    assert toy.y.tolist() == y.tolist()


def test_all_there_is_can_be_pooled_to_draw_the_test_from() -> None:
    toy = source(EVEN)
    assert pooled(toy, Scenario(), Streams(0)) is toy
    whole = pooled(toy, Scenario(test=10), Streams(0))
    assert len(whole.y) == 503
    assert whole.y[500:].tolist() == toy.y_test.tolist()
    result = split(whole.y.numpy(), CLASSES, Scenario(test=10, labels="all"), Streams(0))
    built = federation(whole, result, Scenario(test=10))
    assert built.test.x[:, 0, 0, 0].tolist() == whole.x[torch.from_numpy(result.test), 0, 0, 0].tolist()
    assert len(built.test) == 10


def test_where_samples_have_their_makers_fewer_tests_are_drawn_from_the_test_samples() -> None:
    x_test = torch.arange(200, dtype=torch.uint8)[:, None, None, None] * torch.ones(1, 1, 4, 4, dtype=torch.uint8)
    groups = torch.arange(500) % 20
    toy = replace(source(EVEN), x_test=x_test, y_test=torch.arange(200) % 5, groups=groups)
    assert pooled(toy, Scenario(), Streams(0)) is toy

    def drawn(seed: int = 0, count: int = 30, **place: Any) -> list[int]:
        scenario = Scenario(test=count, clients=10, partition="by-writer", **place)
        fewer = pooled(toy, scenario, Streams(seed))
        result = split(fewer.y.numpy(), CLASSES, scenario, Streams(seed), groups.numpy())
        assert sum(map(len, result.clients)) + len(result.server) == 500
        test = federation(fewer, result, scenario).test
        found: list[int] = test.x[:, 0, 0, 0].tolist()
        assert test.y.tolist() == [number % 5 for number in found]
        return found

    base = drawn(labels="all")
    assert len(set(base)) == 30
    assert base == drawn(labels="server", per_class=3) == drawn(labels="client", label_fraction=0.5)
    assert base != drawn(seed=1, labels="all")
    assert base != list(range(30))
    assert drawn(count=200, labels="all") == list(range(200))
    with pytest.raises(TacitError, match="201 test samples are asked for and toy has 200: lower data.test"):
        pooled(toy, Scenario(test=201), Streams(0))


@pytest.mark.parametrize("more", [{"labels": "server"}, {"labels": "client", "partition": "fedsiam-2"}])
def test_a_class_with_too_few_samples_is_named(more: dict[str, Any]) -> None:
    y = np.concatenate([np.zeros(40), np.ones(19), np.full(40, 2)]).astype(np.int64)
    with pytest.raises(TacitError, match="and class dog has 19"):
        split(y, 3, Scenario(per_class=20, clients=2, **more), Streams(0), names=("cat", "dog", "eel"))


def test_counts_know_labeled_and_unlabeled_by_true_class() -> None:
    result = make(HALF_KNOWN, labels="client", per_class=2, clients=4)
    labeled, unlabeled = counts(HALF_KNOWN, CLASSES, result)
    assert labeled.shape == unlabeled.shape == (4, CLASSES + 1)
    for k, (part, of_client) in enumerate(zip(result.clients, shown(result), strict=True)):
        assert labeled[k].tolist() == [*per_class(HALF_KNOWN, of_client), 0]
        rest = [int(np.count_nonzero(HALF_KNOWN[part] == c)) for c in (*range(CLASSES), -1)]
        assert (labeled[k] + unlabeled[k]).tolist() == rest


@pytest.mark.parametrize("normalise, black, white", [("data", -1, 1), ("unit", 0, 1), ("half", -1, 1)])
def test_what_a_network_sees(normalise: Any, black: float, white: float) -> None:
    toy = replace(source(EVEN), mean=(0.5,), std=(0.5,))
    seen = views(toy, Scenario(normalise=normalise)).plain(torch.tensor([[[[0, 255]]]], dtype=torch.uint8))
    assert seen.reshape(-1).tolist() == pytest.approx([black, white])


def test_flips_and_shifts_can_be_chosen() -> None:
    toy = replace(
        source(EVEN), x=torch.arange(500 * 64, dtype=torch.int64).remainder(256).to(torch.uint8).reshape(500, 1, 8, 8)
    )
    still = views(toy, Scenario(flip=False, shift=0))
    assert torch.equal(still.weak(toy.x, Streams(0).at("a")), still.plain(toy.x))
    flipped = views(toy, Scenario(flip=True, shift=0)).weak(toy.x, Streams(0).at("a"))
    mirrored = still.plain(toy.x).flip(-1)
    turned = [bool(torch.equal(a, b)) for a, b in zip(flipped, mirrored, strict=True)]
    assert 200 < sum(turned) < 300


def test_text_is_seen_as_codes() -> None:
    text = replace(source(EVEN), x=torch.ones(500, 7, dtype=torch.uint8), text=True, mean=(), std=())
    assert views(text, Scenario()).plain(text.x[:2]).dtype == torch.int64


# Sites with data of their own


@pytest.mark.parametrize("labels", ["server", "client", "some", "all"])
def test_where_sites_hold_the_data_nothing_is_dealt(labels: Any) -> None:
    result = make(HALF_KNOWN, clients=3, partition="sites", labels=labels, validation=10, test=20)
    assert [len(part) for part in result.clients] == [0, 0, 0]
    assert not result.labeled.any()
    assert (len(result.validation), len(result.test)) == (10, 20)
    assert len(result.server) == (220 if labels == "server" else 0)  # all of 250 labels that are left
    assert result.hash() == make(HALF_KNOWN, clients=3, partition="sites", labels=labels, validation=10, test=20).hash()
    json.dumps(result.to_json())


def test_a_hub_may_use_fewer_of_its_labels() -> None:
    assert per_class(EVEN, make(partition="sites", per_class=3).server) == [3] * CLASSES


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"labels": "client", "per_class": 2}, "sites show the labels they have"),
        ({"shared": 5}, "sites have their own samples"),
        ({"steps": 2}, "sites have their own samples"),
    ],
)
def test_what_nobody_can_do_for_sites_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(TacitError, match=message):
        make(partition="sites", **settings)
