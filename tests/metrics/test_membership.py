"""Membership inference: the numbers of the attacks, on outputs made by hand."""

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from tacit.metrics.membership import BY_CLASS, LOSS, calibrated, log_odds, membership
from tacit.metrics.predictions import Predictions


def outputs(margins: np.ndarray, y: np.ndarray) -> Predictions:
    """Two classes; `margins` (n,) are the log-odds of the true class."""
    logits = np.zeros((len(y), 2))
    logits[np.arange(len(y)), y] = margins
    return Predictions(y.astype(np.int64), logits, ("a", "b"))


def drawn(count: int, mean: float, seed: int) -> Predictions:
    generator = np.random.default_rng(seed)
    return outputs(generator.normal(mean, 1.0, count), generator.integers(0, 2, count))


def test_log_odds_are_those_of_the_true_class() -> None:
    given = outputs(np.array([0.0, 1.5, -2.0]), np.array([0, 1, 1]))
    assert log_odds(given) == pytest.approx([0.0, 1.5, -2.0])


def test_the_area_is_that_of_scikit_learn() -> None:
    members, others = drawn(300, 0.8, 1), drawn(200, 0.0, 2)
    found = membership("x", {"labeled": members}, others, draws=200).attacks["labeled"][LOSS].auc
    scores = np.concatenate([log_odds(members), log_odds(others)])
    expected = roc_auc_score([1] * 300 + [0] * 200, scores)
    assert found.value == pytest.approx(expected)
    assert found.low < found.value < found.high
    assert found.high - found.low == pytest.approx(4 * 0.022, rel=0.5)  # Hanley and McNeil for this area and size


def test_equal_outputs_tell_nothing() -> None:
    same = outputs(np.ones(40), np.arange(40) % 2)
    found = membership("x", {"labeled": same}, same, draws=50).attacks["labeled"]
    assert [attack.auc.value for attack in found.values()] == [0.5, 0.5]


def test_samples_without_difference_are_not_told_apart() -> None:
    found = membership("x", {"labeled": drawn(400, 1.0, 3)}, drawn(400, 1.0, 4))
    for attack in found.attacks["labeled"].values():
        assert attack.auc.low < 0.5 < attack.auc.high


def test_calibration_sees_what_a_common_threshold_hides() -> None:
    # Class b is hard: its members are as sure as held-out samples of class a. Within a class members stand out.
    y = np.arange(400) % 2
    noise = np.random.default_rng(5).normal(0, 0.5, (2, 400))
    level = np.where(y == 0, 10.0, 0.0)
    members, others = outputs(level + 1.5 + noise[0], y), outputs(level + noise[1], y)
    found = membership("x", {"labeled": members}, others, draws=50).attacks["labeled"]
    assert found[BY_CLASS].auc.value > 0.95
    assert found[LOSS].auc.value < 0.8


def test_a_class_is_calibrated_by_the_attackers_own_samples() -> None:
    own = outputs(np.array([1.0, 3.0] * 5 + [10.0]), np.array([0] * 10 + [1]))
    given = outputs(np.array([4.0]), np.array([0]))
    assert calibrated(given, own) == pytest.approx([2.0])  # mean 2, deviation 1


def test_the_share_found_needs_enough_held_out_samples() -> None:
    members = outputs(np.full(50, 9.0), np.arange(50) % 2)
    many, few = drawn(300, 0.0, 6), drawn(80, 0.0, 7)
    found = membership("x", {"labeled": members}, many, draws=50).attacks["labeled"][LOSS].found
    assert found is not None
    assert found.value == 1.0
    assert membership("x", {"labeled": members}, few, draws=50).attacks["labeled"][LOSS].found is None


def test_the_same_seed_gives_the_same_intervals() -> None:
    given = {"labeled": drawn(60, 1.0, 1)}, drawn(60, 0.0, 2)
    assert membership("x", *given, seed=3).to_json() == membership("x", *given, seed=3).to_json()
    assert membership("x", *given, seed=3).to_json() != membership("x", *given, seed=4).to_json()
