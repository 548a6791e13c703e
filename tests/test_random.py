"""A stream has a name, never an order."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.random import Streams, seeded

CPU = torch.device("cpu")

names = st.tuples(
    st.integers(0, 5), st.sampled_from(["a", "b", "a|1", "a|1|2", ""]), st.integers(-1, 20), st.integers(-1, 20)
)


def draw(seed: int = 0, use: str = "augment", round: int = 3, client: int = 5) -> list[float]:
    numbers: list[float] = torch.rand(4, generator=Streams(seed).at(use, round=round, client=client)).tolist()
    return numbers


def draw_numpy(seed: int = 0, use: str = "augment", round: int = 3, client: int = 5) -> list[float]:
    numbers: list[float] = Streams(seed).numpy_at(use, round=round, client=client).random(4).tolist()
    return numbers


@pytest.mark.parametrize("numbers", [draw, draw_numpy])
def test_the_same_name_gives_the_same_numbers(numbers: Callable[[], list[float]]) -> None:
    assert numbers() == numbers()


@pytest.mark.parametrize("other", [{"seed": 1}, {"use": "split"}, {"round": 4}, {"client": 6}], ids=str)
def test_another_name_gives_other_numbers(other: dict[str, Any]) -> None:
    assert draw(**other) != draw()
    assert draw_numpy(**other) != draw_numpy()


@settings(deadline=None)
@given(names, names)
def test_names_never_run_into_each_other(one: tuple[int, str, int, int], two: tuple[int, str, int, int]) -> None:
    numbers = [Streams(seed).number(use, round=r, client=c) for seed, use, r, c in (one, two)]
    assert (numbers[0] == numbers[1]) == (one == two)


def test_parts_of_a_name_do_not_change_places_or_flow_together() -> None:
    assert draw(round=1, client=2) != draw(round=2, client=1)
    assert draw(round=1, client=23) != draw(round=12, client=3)
    assert draw(seed=1, use="2a") != draw(seed=12, use="a")
    assert draw(use="a1", round=2) != draw(use="a", round=12)


scoped = st.tuples(st.lists(st.sampled_from(["start", "bootstrap", "s"]), max_size=2), names)


@settings(deadline=None)
@given(scoped, scoped)
def test_streams_of_different_scopes_have_nothing_in_common(one: Any, two: Any) -> None:
    """One scope within another is a third one; without a scope, names are what they always were."""
    numbers = []
    for scopes, (seed, use, r, c) in (one, two):
        streams = Streams(seed)
        for scope in scopes:
            streams = streams.within(scope)
        numbers.append(streams.number(use, round=r, client=c))
    assert (numbers[0] == numbers[1]) == (one == two)


def test_a_scope_holds_for_all_kinds_of_streams_and_leaves_the_others_alone() -> None:
    streams = Streams(3)
    scope = streams.within("start")
    assert streams == Streams(3)
    assert scope.seed == 3
    assert scope.at("a", round=1).initial_seed() != streams.at("a", round=1).initial_seed()
    assert scope.numpy_at("a", round=1).random() != streams.numpy_at("a", round=1).random()
    assert scope.at("a", round=1).initial_seed() == streams.within("start").at("a", round=1).initial_seed()


def test_the_order_of_asking_does_not_matter() -> None:
    streams = Streams(3)
    first = torch.rand(5, generator=streams.at("a", round=1)), torch.rand(5, generator=streams.at("b", round=1))
    again = torch.rand(5, generator=streams.at("b", round=1)), torch.rand(5, generator=streams.at("a", round=1))
    assert torch.equal(first[0], again[1])
    assert torch.equal(first[1], again[0])


def test_two_streams_of_one_name_do_not_disturb_each_other() -> None:
    one, two = Streams(0).at("a"), Streams(0).at("a")
    torch.rand(100, generator=one)
    assert torch.equal(torch.rand(3, generator=two), torch.rand(3, generator=Streams(0).at("a")))


def test_streams_do_not_depend_on_the_global_generators() -> None:
    torch.manual_seed(1)
    first = draw()
    torch.manual_seed(2)
    np.random.default_rng(2)
    assert draw() == first


def test_seeds_fit_both_generators() -> None:
    numbers = [Streams(0).number("a", round=r) for r in range(200)]
    assert all(0 <= number < 2**63 for number in numbers)
    assert len(set(numbers)) == 200


def test_seeded_names_the_draws_of_layers() -> None:
    def dropped(use: str) -> torch.Tensor:
        with seeded(Streams(0).at(use), CPU):
            return torch.nn.functional.dropout(torch.ones(50), 0.5)

    assert torch.equal(dropped("a"), dropped("a"))
    assert not torch.equal(dropped("a"), dropped("b"))


def test_seeded_puts_the_global_generator_back() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    with seeded(Streams(0).at("a"), CPU):
        torch.rand(7)
    assert torch.equal(torch.rand(3), expected)


def test_seeded_puts_the_global_generator_back_after_an_error() -> None:
    def fail() -> None:
        with seeded(Streams(0).at("a"), CPU):
            torch.rand(7)
            raise RuntimeError("inside")

    torch.manual_seed(5)
    before = torch.get_rng_state()
    with pytest.raises(RuntimeError, match="inside"):
        fail()
    assert torch.equal(torch.get_rng_state(), before)
