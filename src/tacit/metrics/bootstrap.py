"""Bootstrap intervals: the same scores with every sample weighted by how often it was drawn, many draws at once.

scikit-learn scores one draw at a time, which takes minutes for a thousand; here a draw is a row of weights. With all
weights 1 these are the scores of `metrics.scores`.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tacit.metrics.predictions import Floats, Integers, Predictions, positive_class
from tacit.metrics.scores import BINS, NAMES, SMALLEST, brier_of_each, calibration_bins

DRAWS = 1000
LEVEL = 0.95
_BLOCK = 2_000_000  # weights in memory at a time


class Interval(NamedTuple):
    """The central 95 % of the draws; NaN where no draw defines the score."""

    low: float
    high: float


class Intervals(NamedTuple):
    """Intervals of the scores by name, and of precision and recall of each class."""

    scores: dict[str, Interval]
    precision: list[Interval]
    recall: list[Interval]


def intervals(
    given: Predictions,
    names: Iterable[str] = NAMES,
    positive: int | None = None,
    groups: Integers | None = None,
    *,
    draws: int = DRAWS,
    seed: int = 0,
) -> Intervals:
    """Bootstrap intervals from draws of samples, or of whole groups (n,) if there are any."""
    positive = positive_class(given.classes) if positive is None else positive
    parts = [weighted_scores(given, w, names, positive) for w in drawn_weights(len(given), groups, draws, seed)]
    joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    precision, recall = (_each_class(joined.pop(name)) for name in ("class precision", "class recall"))
    return Intervals({name: _interval(values) for name, values in joined.items()}, precision, recall)


def drawn_weights(count: int, groups: Integers | None, draws: int, seed: int) -> Iterator[Floats]:
    """Blocks (b, n) of how often each sample is drawn, with replacement; samples of a group are drawn together."""
    generator = np.random.default_rng([seed, 95])
    units, of_sample = (count, np.arange(count)) if groups is None else _numbered(groups)
    block = max(1, _BLOCK // count)
    for start in range(0, draws, block):
        drawn = generator.multinomial(units, np.full(units, 1 / units), size=min(block, draws - start))
        yield drawn[:, of_sample].astype(np.float64)


def weighted_scores(given: Predictions, w: Floats, names: Iterable[str], positive: int | None) -> dict[str, Floats]:
    """Weights (b, n) -> each score (b,), and precision and recall of each class (b, c)."""
    total, matrix = w.sum(axis=1), _confusions(given, w)
    true, found, right = matrix.sum(axis=2), matrix.sum(axis=1), np.diagonal(matrix, axis1=1, axis2=2)
    precision, recall = _ratio(right, found), _ratio(right, true)
    f1 = np.where(true > 0, 2 * right / np.maximum(true + found, 1e-300), np.nan)
    sides = range(len(given.classes)) if positive is None else [positive]

    def one_class(label: int | None) -> Floats:
        return np.full(len(w), np.nan) if label is None else recall[:, label]

    def over_sides(score: Callable[[Floats, Floats], Floats]) -> Floats:
        return _mean_of_known(np.stack([_ranked(given, w, label, score) for label in sides], axis=1))

    ways: dict[str, Callable[[], Floats]] = {
        "accuracy": lambda: right.sum(axis=1) / total,
        "balanced_accuracy": lambda: _mean_of_known(recall),
        "macro_f1": lambda: _mean_of_known(f1),
        "sensitivity": lambda: one_class(positive),
        "specificity": lambda: one_class(None if positive is None else 1 - positive),
        "auroc": lambda: over_sides(_area),
        "average_precision": lambda: over_sides(_average_precision),
        "log_loss": lambda: w @ _log_loss_of_each(given) / total,
        "brier": lambda: w @ brier_of_each(given) / total,
        "ece": lambda: _calibration_error(given, w) / total,
    }
    return {name: ways[name]() for name in names} | {"class precision": precision, "class recall": recall}


def _confusions(given: Predictions, w: Floats) -> Floats:
    """(b, n) -> (b, c, c)."""
    c = len(given.classes)
    cell = given.y * c + given.predicted
    counts = [np.bincount(cell, weights=row, minlength=c * c) for row in w]
    return np.asarray(counts, dtype=np.float64).reshape(-1, c, c)


def _ranked(given: Predictions, w: Floats, label: int, score: Callable[[Floats, Floats], Floats]) -> Floats:
    """A score of one class against the rest, from the true and false positives (b, t) at every threshold."""
    p = given.probabilities[:, label]
    order = np.argsort(-p, kind="stable")
    last = np.flatnonzero(np.append(np.diff(p[order]) != 0, True))  # samples with equal outputs share a threshold
    sorted_w, is_it = w[:, order], (given.y == label)[order]
    hits = np.cumsum(sorted_w * is_it, axis=1)[:, last]
    alarms = np.cumsum(sorted_w * ~is_it, axis=1)[:, last]
    found = score(hits, alarms)
    return np.where((hits[:, -1] > 0) & (alarms[:, -1] > 0), found, np.nan)


def _area(hits: Floats, alarms: Floats) -> Floats:
    """Under the ROC curve, by trapezoids."""
    before_hits, before = (np.pad(each, ((0, 0), (1, 0)))[:, :-1] for each in (hits, alarms))
    areas = ((alarms - before) * (hits + before_hits) / 2).sum(axis=1)
    return np.asarray(areas / np.maximum(hits[:, -1] * alarms[:, -1], 1e-300))


def _average_precision(hits: Floats, alarms: Floats) -> Floats:
    """Σ (R_t - R_(t-1))·P_t."""
    gained = np.diff(np.pad(hits, ((0, 0), (1, 0))), axis=1)
    weighted = (gained * hits / np.maximum(hits + alarms, 1e-300)).sum(axis=1)
    return np.asarray(weighted / np.maximum(hits[:, -1], 1e-300))


def _log_loss_of_each(given: Predictions) -> Floats:
    p = np.clip(given.probabilities, SMALLEST, 1)
    return np.asarray(-np.log((p / p.sum(axis=1, keepdims=True))[np.arange(len(given)), given.y]))


def _calibration_error(given: Predictions, w: Floats) -> Floats:
    inside = np.eye(BINS)[calibration_bins(given.confidence)] * (given.correct - given.confidence)[:, None]
    return np.asarray(np.abs(w @ inside).sum(axis=1))


def _numbered(groups: Integers) -> tuple[int, Integers]:
    """How many groups there are, and which one each sample belongs to, counted from 0."""
    names, of_sample = np.unique(groups, return_inverse=True)
    return len(names), of_sample


def _ratio(part: Floats, whole: Floats) -> Floats:
    return np.where(whole > 0, part / np.maximum(whole, 1e-300), np.nan)


def _mean_of_known(values: Floats) -> Floats:
    """(b, c) -> (b,): the mean of the numbers in each row, NaN for a row without any."""
    known = ~np.isnan(values)
    return _ratio(np.where(known, values, 0).sum(axis=1), known.sum(axis=1))


def _each_class(values: Floats) -> list[Interval]:
    return [_interval(column) for column in values.T]


def _interval(values: NDArray[np.float64]) -> Interval:
    known = values[~np.isnan(values)]
    if not len(known):
        return Interval(float("nan"), float("nan"))
    low, high = np.quantile(known, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(float(low), float(high))
