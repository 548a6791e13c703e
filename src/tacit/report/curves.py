"""Accuracy against rounds, one curve per label over its seeds."""

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean

from tacit.report.read import Run, by_label


@dataclass(frozen=True)
class Curve:
    """Mean, least and largest accuracy over the seeds in percent, after the rounds that all of them have evaluated."""

    label: str
    rounds: list[int]
    mean: list[float]
    low: list[float]
    high: list[float]


def curves(runs: Iterable[Run]) -> list[Curve]:
    """A curve per label, in the order of their first appearance."""
    return [_curve(label, [dict(run.accuracy_curve) for run in group]) for label, group in by_label(runs).items()]


def _curve(label: str, seeds: list[dict[int, float]]) -> Curve:
    evaluated = [set(seed) for seed in seeds]
    rounds = sorted(set.intersection(*evaluated) or set.union(*evaluated))  # all of them where nothing is common
    values = [[100 * seed[round] for seed in seeds if round in seed] for round in rounds]
    return Curve(label, rounds, [fmean(v) for v in values], [min(v) for v in values], [max(v) for v in values])
