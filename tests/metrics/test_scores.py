"""Scores against arithmetic by hand and against scikit-learn; the bootstrap's weights against both."""

from math import isnan
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from sklearn import metrics as reference

from tacit.metrics.bootstrap import drawn_weights, intervals, weighted_scores
from tacit.metrics.predictions import Predictions, positive_class
from tacit.metrics.scores import ABOUT, BINS, FUNCTIONS, NAMES, confusion, scores


def invented(seed: int, n: int = 60, c: int = 3, skill: float = 1.0, ties: bool = False) -> Predictions:
    """Random predictions that are right more often with more skill."""
    random = np.random.default_rng(seed)
    y = random.integers(c, size=n)
    logits = random.normal(size=(n, c)) + skill * np.eye(c)[y]
    return Predictions(y, np.round(logits) if ties else logits, tuple(f"class {k}" for k in range(c)))


def by_hand() -> Predictions:
    """Two classes, four samples; p(sick) is 0.9, 0.4, 0.2, 0.6 and the truth is sick, sick, well, well."""
    p = np.array([0.9, 0.4, 0.2, 0.6])
    return Predictions(np.array([0, 0, 1, 1]), np.log(np.stack([p, 1 - p], axis=1)), ("sick", "normal"))


def test_scores_by_hand() -> None:
    found = scores(by_hand())
    assert found["accuracy"] == 0.5
    assert found["sensitivity"] == 0.5  # one of two sick found
    assert found["specificity"] == 0.5
    assert found["auroc"] == pytest.approx(3 / 4)  # of the four pairs only 0.4 < 0.6 is in the wrong order
    assert found["average_precision"] == pytest.approx(1 / 2 * 1 + 1 / 2 * 2 / 3)
    assert found["brier"] == pytest.approx((0.1**2 + 0.6**2 + 0.2**2 + 0.6**2) / 4)
    assert found["log_loss"] == pytest.approx(-np.log([0.9, 0.4, 0.8, 0.4]).mean())
    # Confidences 0.9 right, 0.6 wrong, 0.8 right, 0.6 wrong: bins 14, 9 (twice), 12.
    assert found["ece"] == pytest.approx((0.1 + 1.2 + 0.2) / 4)


def test_the_confusion_matrix_has_the_truth_in_its_rows() -> None:
    wrong = Predictions(np.array([0, 0, 1]), np.array([[0.0, 1, 0], [1, 0, 0], [0, 1, 0]]), ("a", "b", "c"))
    assert confusion(wrong).tolist() == [[1, 1, 0], [0, 1, 0], [0, 0, 0]]


@pytest.mark.parametrize(
    "classes, positive",
    [
        (("COVID", "Normal"), 0),
        (("negative", "positive"), 1),
        (("benign", "malignant"), 1),
        (("cat", "dog"), 1),
        (("a", "b", "c"), None),
    ],
)
def test_the_class_to_be_found(classes: tuple[str, ...], positive: int | None) -> None:
    assert positive_class(classes) == positive


def test_perfect_predictions_score_perfectly() -> None:
    y = np.array([0, 1, 2, 2])
    found = scores(Predictions(y, 50 * np.eye(3)[y], ("a", "b", "c")))
    for name, value in found.items():
        if name not in ("sensitivity", "specificity"):
            assert value == pytest.approx(1.0 if ABOUT[name].rises else 0.0, abs=1e-12)
    assert isnan(found["sensitivity"])


def test_classes_without_a_sample_do_not_count() -> None:
    seen = invented(0, c=3)
    two = seen.take(np.flatnonzero(seen.y < 2))
    recalls = [(two.predicted[two.y == k] == k).mean() for k in (0, 1)]
    assert scores(two)["balanced_accuracy"] == pytest.approx(np.mean(recalls))
    assert all(isnan(value) == (name in ("sensitivity", "specificity")) for name, value in scores(two).items())


def test_one_class_alone_has_no_auroc() -> None:
    alone = Predictions(np.zeros(4, dtype=np.int64), np.eye(4, 2), ("a", "b"))
    found = scores(alone)
    assert isnan(found["auroc"])
    assert isnan(found["average_precision"])
    assert found["accuracy"] == 0.75


def test_outputs_that_are_not_numbers_still_give_scores() -> None:
    broken = Predictions(np.array([0, 1]), np.full((2, 2), np.nan), ("a", "b"))
    assert np.isfinite([value for name, value in scores(broken).items()]).all()


@settings(max_examples=25, deadline=None)
@given(seed=some.integers(0, 10_000), c=some.integers(2, 5), ties=some.booleans())
def test_equal_weights_give_the_scores(seed: int, c: int, ties: bool) -> None:
    made = invented(seed, c=c, ties=ties)
    positive = positive_class(made.classes)
    found, weighted = scores(made), weighted_scores(made, np.ones((1, len(made))), NAMES, positive)
    for name in NAMES:
        assert weighted[name][0] == pytest.approx(found[name], rel=1e-9, abs=1e-12, nan_ok=True), name


@settings(max_examples=25, deadline=None)
@given(seed=some.integers(0, 10_000), ties=some.booleans())
def test_weights_mean_what_they_mean_to_scikit_learn(seed: int, ties: bool) -> None:
    made, w = invented(seed, c=2, ties=ties), np.random.default_rng(seed + 1).integers(0, 4, 60).astype(float)
    found = {name: values[0] for name, values in weighted_scores(made, w[None], NAMES, 1).items()}
    is_it, p = made.y, made.probabilities[:, 1]
    expected = {
        "accuracy": reference.accuracy_score(made.y, made.predicted, sample_weight=w),
        "auroc": reference.roc_auc_score(is_it, p, sample_weight=w),
        "average_precision": reference.average_precision_score(is_it, p, sample_weight=w),
        "log_loss": reference.log_loss(is_it, p, sample_weight=w),
        "brier": reference.brier_score_loss(is_it, p, sample_weight=w),
        "sensitivity": reference.recall_score(made.y, made.predicted, sample_weight=w),
    }
    assert found.keys() >= expected.keys()
    for name, value in expected.items():
        assert found[name] == pytest.approx(value), name


def test_every_score_has_a_title_and_a_function() -> None:
    assert set(NAMES) == ABOUT.keys() == FUNCTIONS.keys()


def test_the_page_explains_every_score() -> None:
    page = (Path(__file__).parents[2] / "docs" / "evaluating.md").read_text(encoding="utf-8")
    for name, about in ABOUT.items():
        assert f"| {about.title} (`{name}`) | {about.meaning} | {'higher' if about.rises else 'lower'} |" in page


def test_samples_are_drawn_with_replacement() -> None:
    (w,) = drawn_weights(50, None, 200, seed=0)
    assert w.shape == (200, 50)
    assert (w.sum(axis=1) == 50).all()
    assert w.max() > 1


def test_a_group_is_drawn_as_a_whole() -> None:
    groups = np.repeat(np.array([7, 3, 5]), 4)
    (w,) = drawn_weights(12, groups, 50, seed=0)
    assert (w.reshape(50, 3, 4) == w.reshape(50, 3, 4)[:, :, :1]).all()


def test_intervals_depend_on_the_seed_only() -> None:
    made = invented(0, c=2)
    assert intervals(made, draws=50) == intervals(made, draws=50)
    assert intervals(made, draws=50) != intervals(made, draws=50, seed=1)


def test_groups_that_agree_within_widen_the_interval() -> None:
    """Ten identical copies of each sample bring no information, which only a draw of groups knows."""
    made = invented(1, n=30, c=2)
    rows = np.repeat(np.arange(30), 10)
    copies = made.take(rows)
    alone, together = (intervals(copies, ["accuracy"], groups=g).scores["accuracy"] for g in (None, rows))
    original = intervals(made, ["accuracy"]).scores["accuracy"]
    assert together.high - together.low == pytest.approx(original.high - original.low, rel=0.25)
    assert alone.high - alone.low < 0.5 * (together.high - together.low)


def test_an_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    """p = 0.7: in 200 samples of 80, about 95 % of the intervals hold it; 88 % leaves room for the small number."""
    covered = 0
    for seed in range(200):
        random = np.random.default_rng(seed)
        right = random.random(80) < 0.7
        y = random.integers(2, size=80)
        made = Predictions(y, np.eye(2)[np.where(right, y, 1 - y)], ("a", "b"))
        low, high = intervals(made, ["accuracy"], draws=200, seed=seed).scores["accuracy"]
        covered += low <= 0.7 <= high
    assert covered >= 176


def test_bins_hold_their_upper_end() -> None:
    assert BINS == 15
    made = Predictions(np.array([0]), np.array([[0.0, -np.inf]]), ("a", "b"))
    assert made.confidence[0] == 1.0
    assert scores(made)["ece"] == 0.0
