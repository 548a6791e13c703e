"""Numbers of runs against what they cost, one curve per label over its seeds."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from tacit.report.read import Run, by_label, bytes_of, steps_of
from tacit.report.units import Stat, count, duration_of, size_of


@dataclass(frozen=True)
class Curve:
    """Mean, least and largest over the seeds, mostly in percent, at the values of x that all of them have."""

    label: str
    x: list[float]
    mean: list[float]
    low: list[float]
    high: list[float]


@dataclass(frozen=True)
class Axis:
    """What a curve is drawn against: rounds, or what the rounds until then have cost."""

    name: str  # in file names
    words: str
    units: tuple[tuple[str, float], ...]  # the largest first
    cost: Callable[[dict[str, Any]], float] | None  # of a round; None where rounds themselves are drawn
    said: Callable[[float], str]  # a place on it, in words

    def unit(self, found: Sequence[Curve]) -> tuple[str, float]:
        """The unit in which the longest curve ends at a handy number, and how much one of it is."""
        end = max(curve.x[-1] for curve in found)
        return next((unit for unit in self.units if end >= 2 * unit[1]), self.units[-1])


ROUNDS = Axis("rounds", "rounds", (("", 1),), None, lambda x: f"round {x:.0f}")
BYTES = Axis(
    "bytes",
    "bytes, both ways",
    (("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("B", 1)),
    bytes_of,
    size_of,
)
STEPS = Axis(
    "steps",
    "steps of training",
    (("millions", 1e6), ("thousands", 1e3), ("", 1)),
    steps_of,
    lambda x: f"{count(Stat(x))} steps",
)
TIME = Axis(
    "time",
    "time",
    (("h", 3600), ("min", 60), ("s", 1)),
    lambda record: float(record["seconds"]),
    duration_of,
)
AXES = (ROUNDS, BYTES, STEPS, TIME)


def curves(runs: Iterable[Run], axis: Axis = ROUNDS) -> list[Curve]:
    """The accuracy of each label in percent, in the order of their first appearance."""
    return [
        _curve(label, [dict(run.accuracy_curve) for run in group], [_spent(run, axis) for run in group])
        for label, group in by_label(runs).items()
    ]


def logged(runs: Iterable[Run], name: str) -> list[Curve]:
    """A number that clients log, the mean of those in a round, in percent against rounds; of each label that has it."""
    found = []
    for label, group in by_label(runs).items():
        seeds = [{round: mean for round, (mean, _, _) in run.metric(name).items()} for run in group]
        if any(seeds):
            found.append(_curve(label, seeds, [_spent(run, ROUNDS) for run in group]))
    return found


def among_clients(runs: Iterable[Run], name: str) -> list[Curve]:
    """The same, within the least and the largest of any client in that round instead of any seed."""
    found = []
    for label, group in by_label(runs).items():
        seeds = [run.metric(name) for run in group]
        rounds = sorted(set().union(*seeds))
        if rounds:
            values = [[seed[round] for seed in seeds if round in seed] for round in rounds]
            mean = [100 * fmean(each[0] for each in here) for here in values]
            low = [100 * min(each[1] for each in here) for here in values]
            found.append(Curve(label, [*map(float, rounds)], mean, low, [100 * max(e[2] for e in h) for h in values]))
    return found


def _spent(run: Run, axis: Axis) -> dict[int, float]:
    """Where each round is on the axis; a log may begin after round 1, so rounds are not counted but read."""
    if axis.cost is None:
        return {record["round"] + 1: record["round"] + 1 for record in run.rounds}
    return run.spent(axis.cost)


def _curve(label: str, seeds: Sequence[Mapping[int, float]], spent: Sequence[Mapping[int, float]]) -> Curve:
    evaluated = [set(seed) for seed in seeds]
    rounds = sorted(set.intersection(*evaluated) or set.union(*evaluated))  # all of them where nothing is common
    pairs = list(zip(seeds, spent, strict=True))
    values = [[100 * seed[round] for seed in seeds if round in seed] for round in rounds]
    x = [fmean(cost[round] for seed, cost in pairs if round in seed) for round in rounds]
    return Curve(label, x, [fmean(v) for v in values], [min(v) for v in values], [max(v) for v in values])
