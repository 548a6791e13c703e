"""The audit of confident predictions: the bound of Clopper and Pearson, the threshold that follows, and its promise."""

from math import inf

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from tacit.learn.audit import LEVELS, audited_threshold, audited_thresholds, lower_bound


def test_the_bound_of_no_errors_by_hand() -> None:
    # all n right: the share p with pⁿ = 0.1, so 0.1^(1/22) = 0.9006 for 22 samples
    assert lower_bound(22, 22, 0.9) == pytest.approx(0.1 ** (1 / 22))
    assert lower_bound(1, 1, 0.9) == pytest.approx(0.1)


def test_nothing_right_and_nothing_at_all_have_the_bound_0() -> None:
    assert lower_bound(0, 5, 0.9) == 0
    assert lower_bound(0, 0, 0.9) == 0


@given(st.integers(1, 60), st.data())
def test_the_bound_is_the_share_at_which_such_a_result_becomes_rare(count: int, data: st.DataObject) -> None:
    right = data.draw(st.integers(1, count))
    share = lower_bound(right, count, 0.9)
    assert share < right / count
    assert binom.sf(right - 1, count, share) == pytest.approx(0.1, abs=1e-6)


@pytest.mark.parametrize("share", [0.5, 0.8, 0.9, 0.97])
@pytest.mark.parametrize("count", [10, 45, 200])
def test_the_bound_holds_as_often_as_it_says(share: float, count: int) -> None:
    held = sum(binom.pmf(right, count, share) for right in range(count + 1) if lower_bound(right, count, 0.9) <= share)
    assert held >= 0.9


def test_the_lowest_level_that_passes_is_chosen() -> None:
    # 100 at 0.97 all right, 100 at 0.83 all right, 100 at 0.55 all wrong
    confidence = torch.tensor([0.97, 0.83, 0.55]).repeat_interleave(100)
    right = torch.tensor([True, True, False]).repeat_interleave(100)
    assert audited_threshold(confidence, right, 0.9, 0.9) == 0.6
    assert audited_threshold(confidence, right, 0.55, 0.9) == 0.0  # two thirds are right: the bound is 0.599


def test_too_few_samples_show_nothing() -> None:
    # 99 % for each of ten levels: 0.01^(1/44) = 0.9006 passes, 0.01^(1/43) = 0.8984 does not
    sure = torch.full((44,), 0.995)
    assert audited_threshold(sure, torch.ones(44, dtype=torch.bool), 0.9, 0.9) == 0.0
    assert audited_threshold(sure[:43], torch.ones(43, dtype=torch.bool), 0.9, 0.9) == inf


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), max_size=80), st.floats(0.3, 0.95), st.floats(0.3, 0.95))
def test_more_precision_never_lowers_the_threshold(found: list[tuple[float, bool]], one: float, two: float) -> None:
    confidence, right = torch.tensor([c for c, _ in found]), torch.tensor([r for _, r in found], dtype=torch.bool)
    low, high = (audited_threshold(confidence, right, wanted, 0.9) for wanted in sorted((one, two)))
    assert low <= high
    assert low in (*LEVELS, inf)


@pytest.mark.parametrize("count", [100, 200])
def test_the_promise_holds_in_simulation(count: int) -> None:
    """Confidence is uniform and a prediction is right with probability c², so above t it is (1 - t³)/(3·(1 - t))."""
    stream, wanted, broken, audits = torch.Generator().manual_seed(0), 0.7, 0, 400
    for _ in range(audits):
        confidence = torch.rand(count, generator=stream)
        right = torch.rand(count, generator=stream) < confidence.square()
        t = audited_threshold(confidence, right, wanted, 0.9)
        broken += t < inf and (1 - t**3) / (3 * (1 - t)) < wanted
    assert broken <= 0.1 * audits


def predictions(rows: list[tuple[int, float, bool]]) -> tuple[torch.Tensor, torch.Tensor]:
    """(label, confidence, right) of each sample -> probabilities (n, 3) and true labels."""
    label, c = torch.tensor([row[0] for row in rows]), torch.tensor([row[1] for row in rows])
    q = ((1 - c) / 2)[:, None].repeat(1, 3).scatter(1, label[:, None], c[:, None])
    return q, torch.where(torch.tensor([row[2] for row in rows]), label, (label + 1) % 3)


def test_a_class_with_enough_samples_has_its_own_threshold() -> None:
    # class 0: sure and right; class 1: as sure, half of it wrong; class 2 is predicted five times
    rows = [(0, 0.9, True)] * 100 + [(1, 0.9, k % 2 == 0) for k in range(100)] + [(2, 0.9, True)] * 5
    q, y = predictions(rows)
    assert audited_thresholds(q, y, 0.9, 0.9).tolist() == [0.0, inf, inf]  # class 2: that of all, 0.76 right
    assert audited_thresholds(q, y, 0.6, 0.9).tolist() == [0.0, inf, 0.0]


def test_without_held_out_labels_nothing_passes() -> None:
    q, y = predictions([(0, 0.9, True)])
    assert audited_thresholds(q[:0], y[:0], 0.5, 0.9).tolist() == [inf] * 3
