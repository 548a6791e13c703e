"""A federation shows each client its samples, and only the labels that the split shows."""

from dataclasses import replace
from itertools import chain
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tacit.data.federate import federate, pooled
from tacit.data.inputs import CharacterInputs
from tacit.data.split.apportion import Indices
from tacit.data.split.config import DataConfig
from tacit.data.split.split import draw_split
from tacit.federation import Samples
from tacit.random import Streams
from tests.data.splits import CLASSES, EVEN, HALF_KNOWN, PLACES, make, source
from tests.refusals import refused


def test_unlabeled_samples_arrive_in_steps_and_labels_stay() -> None:
    toy, result = (
        source(EVEN),
        make(labels="client", per_class=2, shared=5, stream_steps=4, rounds_per_step=3, validation=10),
    )
    built = federate(toy, result, DataConfig())
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


def test_with_keep_samples_of_earlier_steps_stay() -> None:
    built = federate(
        source(EVEN), make(labels="server", per_class=2, stream_steps=5, rounds_per_step=1, keep=True), DataConfig()
    )
    assert [len(built.client(0, round)) for round in range(6)] == [10, 20, 30, 40, 49, 49]


def test_with_all_labels_samples_still_arrive_in_steps() -> None:
    few, everything = (
        federate(source(EVEN), make(labels=place, per_class=2, stream_steps=4, rounds_per_step=1), DataConfig())
        for place in ("client", "all")
    )
    for round in range(4):
        assert torch.equal(few.client(1, round).x, everything.client(1, round).x)
        assert not len(everything.client(1, round).unlabeled)


@given(place=st.sampled_from(PLACES), y=st.sampled_from([EVEN, HALF_KNOWN]))
def test_a_federation_shows_what_the_split_shows(place: dict[str, Any], y: Indices) -> None:
    toy, result = source(y), make(y, validation=10, **place)
    built = federate(toy, result, DataConfig())
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


def test_test_samples_can_be_drawn_from_all_samples() -> None:
    toy = source(EVEN)
    assert pooled(toy, DataConfig(), Streams(0)) is toy
    whole = pooled(toy, DataConfig(test=10), Streams(0))
    assert len(whole.y) == 503
    assert whole.y[500:].tolist() == toy.y_test.tolist()
    result = draw_split(whole.y.numpy(), CLASSES, DataConfig(test=10, labels="all"), Streams(0))
    built = federate(whole, result, DataConfig(test=10))
    assert built.test.x[:, 0, 0, 0].tolist() == whole.x[torch.from_numpy(result.test), 0, 0, 0].tolist()
    assert len(built.test) == 10


def test_with_groups_test_samples_are_drawn_from_the_test_set() -> None:
    x_test = torch.arange(200, dtype=torch.uint8)[:, None, None, None] * torch.ones(1, 1, 4, 4, dtype=torch.uint8)
    groups = torch.arange(500) % 20
    toy = replace(source(EVEN), x_test=x_test, y_test=torch.arange(200) % 5, groups=groups)
    assert pooled(toy, DataConfig(), Streams(0)) is toy

    def drawn(seed: int = 0, count: int = 30, **place: Any) -> list[int]:
        data = DataConfig(test=count, clients=10, partition="by-writer", **place)
        fewer = pooled(toy, data, Streams(seed))
        result = draw_split(fewer.y.numpy(), CLASSES, data, Streams(seed), groups.numpy())
        assert sum(map(len, result.clients)) + len(result.server) == 500
        test = federate(fewer, result, data).test
        found: list[int] = test.x[:, 0, 0, 0].tolist()
        assert test.y.tolist() == [number % 5 for number in found]
        return found

    base = drawn(labels="all")
    assert len(set(base)) == 30
    assert base == drawn(labels="server", per_class=3) == drawn(labels="client", label_fraction=0.5)
    assert base != drawn(seed=1, labels="all")
    assert base != list(range(30))
    assert drawn(count=200, labels="all") == list(range(200))
    with refused("data.too-few-samples"):
        pooled(toy, DataConfig(test=201), Streams(0))


@pytest.mark.parametrize("normalise, black, white", [("data", -1, 1), ("unit", 0, 1), ("half", -1, 1)])
def test_normalise_sets_the_range_of_pixels(normalise: Any, black: float, white: float) -> None:
    toy = source(EVEN)
    seen = toy.inputs.views(DataConfig(normalise=normalise)).plain(torch.tensor([[[[0, 255]]]], dtype=torch.uint8))
    assert seen.reshape(-1).tolist() == pytest.approx([black, white])


def test_flip_and_shift_override_the_data_sets_choice() -> None:
    toy = replace(
        source(EVEN), x=torch.arange(500 * 64, dtype=torch.int64).remainder(256).to(torch.uint8).reshape(500, 1, 8, 8)
    )
    still = toy.inputs.views(DataConfig(flip=False, shift=0))
    assert torch.equal(still.weak(toy.x, Streams(0).at("a")), still.plain(toy.x))
    flipped = toy.inputs.views(DataConfig(flip=True, shift=0)).weak(toy.x, Streams(0).at("a"))
    mirrored = still.plain(toy.x).flip(-1)
    turned = [bool(torch.equal(a, b)) for a, b in zip(flipped, mirrored, strict=True)]
    assert 200 < sum(turned) < 300


def test_text_becomes_codes() -> None:
    x, inputs = torch.ones(500, 7, dtype=torch.uint8), CharacterInputs((7,), tuple("abcde"))
    text = replace(source(EVEN), x=x, inputs=inputs)
    assert text.inputs.views(DataConfig()).plain(text.x[:2]).dtype == torch.int64


def test_folds_take_samples_in_turn_and_groups_as_a_whole() -> None:
    order = torch.tensor([4, 0, 3, 1, 2])
    x, y = torch.zeros(5, 1), torch.zeros(5, dtype=torch.int64)
    assert Samples(x, y).folds(order, 2).tolist() == [0, 1, 0, 1, 0]
    # along the order the groups are 7, 9, 5, 9, 7: the first is dealt to fold 0, the second to 1, the third to 0
    group = torch.tensor([9, 9, 7, 5, 7])
    assert Samples(x, y, group).folds(order, 2).tolist() == [0, 1, 0, 1, 0]
    assert Samples(x, y, group).folds(order, 3).tolist() == [0, 1, 2, 1, 0]
