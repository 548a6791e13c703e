"""Accuracy against rounds, one curve per label over its seeds."""

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean

from tacit.report.read import Run, by_label


@dataclass(frozen=True)
class Curve:
    """Mean, least and largest accuracy of all seeds in percent, after the rounds that every seed has evaluated."""

    label: str
    rounds: list[int]
    mean: list[float]
    low: list[float]
    high: list[float]


def curves(runs: Iterable[Run]) -> list[Curve]:
    """A curve per label, in the order of their first appearance."""
    found = [_curve(label, [dict(run.accuracy_curve) for run in group]) for label, group in by_label(runs).items()]
    return [curve for curve in found if curve.rounds]


def _curve(label: str, seeds: list[dict[int, float]]) -> Curve:
    rounds = sorted(set.intersection(*(set(seed) for seed in seeds)))
    values = [[100 * seed[round] for seed in seeds] for round in rounds]
    return Curve(label, rounds, [fmean(v) for v in values], [min(v) for v in values], [max(v) for v in values])
