"""Rules in place of the mean: small cases by hand, what no rule may depend on, and Flower's own implementations."""

from collections.abc import Callable
from itertools import permutations
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tacit.params import Params, equal
from tacit.protect.clipping import length, lower_median, median_factors
from tacit.protect.rules import (
    FALLBACK,
    NAMES,
    RobustRule,
    bulyan,
    canonical,
    krum,
    least_clients,
    median,
    multi_krum,
    parse,
    trimmed,
)
from tests.refusals import refused

RULES: dict[str, Callable[[list[Params]], Params]] = {
    "median": median,
    "trimmed": lambda models: trimmed(models, 0.2),
    "krum": lambda models: krum(models, 1),
    "multi-krum": lambda models: multi_krum(models, 1),
    "bulyan": lambda models: bulyan(models, 1),
}


def points(*values: float) -> list[Params]:
    return [{"w": torch.tensor([float(value)])} for value in values]


def random_models(count: int, seed: int = 0) -> list[Params]:
    stream = torch.Generator().manual_seed(seed)
    return [{"a": torch.randn(3, 4, generator=stream), "b": torch.randn(5, generator=stream)} for _ in range(count)]


def value(model: Params) -> float:
    return float(model["w"].item())


@pytest.mark.parametrize("given, expected", [((5, 1, 9), 5), ((4, 1, 100, 2), 3), ((7,), 7), ((1, 2), 1.5)])
def test_the_median_of_each_coordinate(given: tuple[float, ...], expected: float) -> None:
    assert value(median(points(*given))) == expected


def test_the_median_is_taken_coordinate_by_coordinate() -> None:
    models = [{"w": torch.tensor(row)} for row in ([1.0, 30.0], [2.0, 10.0], [3.0, 20.0])]
    assert median(models)["w"].tolist() == [2.0, 20.0]


def test_the_trimmed_mean_drops_the_smallest_and_the_largest() -> None:
    assert value(trimmed(points(-100, 1, 2, 6, 1000), 0.2)) == (1 + 2 + 6) / 3
    assert value(trimmed(points(-100, 1, 2, 6, 1000), 0.4)) == 2


def test_krum_takes_the_model_with_the_closest_neighbours() -> None:
    """f = 1, n = 5: the squared distances to the two nearest others are summed.

    0: 1 + 9 = 10; 1: 1 + 4 = 5; 3: 4 + 9 = 13; 6: 9 + 25 = 34; 50: more than 1,936.
    """
    assert value(krum(points(0, 1, 3, 6, 50), 1)) == 1


def test_multi_krum_takes_the_mean_of_all_but_f() -> None:
    """Of the same five, the four with the smallest scores: 5, 10, 13 and 9 + 25 = 34."""
    assert value(multi_krum(points(0, 1, 3, 6, 50), 1)) == (0 + 1 + 3 + 6) / 4


def test_bulyan_by_hand() -> None:
    """f = 1, n = 7: Krum chooses θ = 5 of them; of these, the mean of the β = 3 that are closest to their median.

    -100 and 1000 are never chosen. 10, 11, 12, 13 and 15 are left: their median is 12, and 11, 12, 13 are closest.
    """
    assert value(bulyan(points(10, -100, 11, 13, 1000, 12, 15), 1)) == 12
    # With 10.5 in place of 11, the three closest to 12 are 12, 13 and 10.5.
    assert value(bulyan(points(10, -100, 10.5, 13, 1000, 12, 15), 1)) == pytest.approx((12 + 13 + 10.5) / 3)


@pytest.mark.parametrize("name", RULES)
def test_no_rule_depends_on_the_order_of_the_clients(name: str) -> None:
    models = random_models(7)
    first = RULES[name](models)
    for order in list(permutations(range(7)))[::611]:
        assert equal(RULES[name]([models[index] for index in order]), first)


@pytest.mark.parametrize("name", RULES)
def test_one_hostile_model_of_seven_moves_no_rule_outside_of_the_honest_ones(name: str) -> None:
    honest = points(1.0, 1.1, 1.2, 1.3, 1.4, 1.5)
    for far in (-1e6, 1e6):
        assert 1.0 - 1e-6 <= value(RULES[name]([*honest, *points(far)])) <= 1.5 + 1e-6


@pytest.mark.parametrize("name", RULES)
def test_equal_models_stay_as_they_are(name: str) -> None:
    model = random_models(1)[0]
    result = RULES[name]([model] * 7)
    assert all(torch.allclose(result[key], model[key], atol=1e-6) for key in model)


@pytest.mark.flower
@pytest.mark.parametrize("count, seed", [(7, 0), (9, 1), (15, 2), (20, 3)])
def test_the_rules_are_those_of_flower(count: int, seed: int) -> None:
    from flwr.server.strategy import aggregate as theirs

    models = random_models(count, seed)
    hostile = (count - 3) // 4

    def same(ours: Params, other: Any) -> bool:
        return all(np.allclose(ours[name].numpy(), array, atol=1e-6) for name, array in zip("ab", other, strict=True))

    def results() -> list[tuple[list[Any], int]]:
        return [([model["a"].numpy(), model["b"].numpy()], 1) for model in models]

    assert same(median(models), theirs.aggregate_median(results()))
    for share in (0.1, 0.2, 0.45):
        assert same(trimmed(models, share), theirs.aggregate_trimmed_avg(results(), share))
    assert same(krum(models, hostile), theirs.aggregate_krum(results(), hostile, 0))
    assert same(multi_krum(models, hostile), theirs.aggregate_krum(results(), hostile, count - hostile))
    if hostile > 2:  # up to 2, Krum's last choice is a tie, in which Flower takes the first client
        bulyans = theirs.aggregate_bulyan(results(), hostile, theirs.aggregate_krum, to_keep=0)
        assert same(bulyan(models, hostile), bulyans)


@pytest.mark.parametrize(
    "text, least", [("mean", 1), ("clipped", 3), ("median", 3), ("trimmed:0.2", 5), ("trimmed:0.4", 3)]
)
def test_how_many_clients_a_rule_needs(text: str, least: int) -> None:
    assert least_clients(text) == least


def test_krum_needs_2f_plus_3_and_bulyan_4f_plus_3() -> None:
    assert [least_clients(f"{name}:2") for name in ("krum", "multi-krum", "bulyan")] == [7, 7, 11]


def test_too_few_uploads_give_their_median_and_are_logged() -> None:
    logged: dict[str, float] = {}
    rule = RobustRule("krum", 1, logged.__setitem__)
    assert value(rule(points(1, 2, 9, 3))) == 2.5
    assert logged == {FALLBACK: 4}
    logged.clear()
    assert value(rule(points(0, 1, 3, 6, 50))) == 1
    assert logged == {}


@pytest.mark.parametrize("text", ["trimmed:0.2", "krum:1", "multi-krum:1", "bulyan:1", "median"])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_any_number_of_uploads_gives_a_model(text: str, count: int) -> None:
    rule = parse(text)
    assert rule is not None
    assert equal(rule(points(*range(count))), median(points(*range(count))))


def test_weights_are_ignored() -> None:
    rule = parse("median")
    assert rule is not None
    assert value(rule(points(1, 2, 9), [1.0, 1.0, 1e9])) == 2


@pytest.mark.parametrize(
    "text", ["median:1", "mean:2", "clipped:1", "krum", "krum:0", "krum:1.5", "krum:x", "bulyan:-1"]
)
def test_a_rule_with_a_wrong_number_is_refused(text: str) -> None:
    with refused("protect.bad-rule-number"):
        parse(text)


@pytest.mark.parametrize("text", ["trimmed", "trimmed:0", "trimmed:0.5", "trimmed:nan", "trimmed:inf"])
def test_a_trimmed_mean_needs_a_share_below_one_half(text: str) -> None:
    with refused("protect.bad-rule-number"):
        parse(text)


def test_an_unknown_rule_is_refused() -> None:
    with refused("protect.unknown-rule"):
        parse("medain")
    assert NAMES[0] == "mean"


def test_a_rule_has_one_spelling() -> None:
    assert [canonical(text) for text in (" mean", "trimmed:0.20", "krum:01")] == ["mean", "trimmed:0.2", "krum:1"]


# --- clipping ---------------------------------------------------------------------------------------------------------


def test_longer_updates_are_scaled_to_the_median_length() -> None:
    """The lengths 1, 2 and 8 have the median 2: only the last one is scaled, by 2/8."""
    factors = median_factors({0: {"weights": 1.0}, 1: {"weights": 8.0}, 2: {"weights": 2.0}})
    assert factors == {0: {"weights": 1.0}, 1: {"weights": 0.25}, 2: {"weights": 1.0}}


def test_of_an_even_number_the_lower_median_counts() -> None:
    assert lower_median([4, 1, 3, 2]) == 2
    assert median_factors({0: {"w": 1.0}, 1: {"w": 4.0}}) == {0: {"w": 1.0}, 1: {"w": 0.25}}


def test_updates_of_length_zero_are_no_problem() -> None:
    assert median_factors({0: {"w": 0.0}, 1: {"w": 0.0}, 2: {"w": 3.0}})[2] == {"w": 0.0}


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=9))
def test_nobody_is_longer_than_the_median(lengths: list[float]) -> None:
    factors = median_factors({client: {"w": value} for client, value in enumerate(lengths)})
    most = lower_median(lengths)
    assert all(lengths[client] * each["w"] <= most * (1 + 1e-12) for client, each in factors.items())


def test_the_length_is_over_all_tensors() -> None:
    assert length([torch.tensor([3.0]), torch.tensor([[0.0, 4.0]])]) == 5.0
