"""Accuracies and logged numbers of runs against rounds or costs, one curve per label over its seeds."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from tacit.engines.record import RoundRecord
from tacit.formatting import Stat, count, duration_of, size_of
from tacit.report.history import Run, by_label


@dataclass(frozen=True)
class Curve:
    """Mean, minimum and maximum over the seeds in percent, at the values of x that all of them have."""

    label: str
    x: list[float]
    mean: list[float]
    low: list[float]
    high: list[float]


@dataclass(frozen=True)
class Axis:
    """The horizontal axis of a chart: rounds, or the cost accumulated over them."""

    name: str  # in file names
    title: str
    units: tuple[tuple[str, float], ...]  # names and sizes, the largest first
    cost: Callable[[RoundRecord], float] | None  # of a round; None if the axis shows rounds
    in_words: Callable[[float], str]  # a position on it, in words

    def unit(self, found: Sequence[Curve]) -> tuple[str, float]:
        """The largest unit of which the longest curve has at least two, and its size."""
        end = max(curve.x[-1] for curve in found)
        return next((unit for unit in self.units if end >= 2 * unit[1]), self.units[-1])


ROUNDS = Axis("rounds", "rounds", (("", 1),), None, lambda x: f"round {x:.0f}")
BYTES = Axis(
    "bytes",
    "communication",
    (("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("B", 1)),
    lambda record: record.all_bytes,
    size_of,
)
STEPS = Axis(
    "steps",
    "training steps",
    (("millions", 1e6), ("thousands", 1e3), ("", 1)),
    lambda record: record.all_steps,
    lambda x: f"{count(Stat(x))} steps",
)
TIME = Axis(
    "time",
    "time",
    (("h", 3600), ("min", 60), ("s", 1)),
    lambda record: record.seconds,
    duration_of,
)
AXES = (ROUNDS, BYTES, STEPS, TIME)


def accuracy(runs: Iterable[Run], axis: Axis = ROUNDS) -> list[Curve]:
    """The accuracy of each label in percent, in order of first appearance."""
    return [
        _curve(label, [dict(run.accuracy_curve) for run in group], [_positions(run, axis) for run in group])
        for label, group in by_label(runs).items()
    ]


def logged(runs: Iterable[Run], name: str) -> list[Curve]:
    """The mean over clients of a number they log, in percent against rounds, for each label that has it."""
    found = []
    for label, group in by_label(runs).items():
        seeds = [{round: mean for round, (mean, _, _) in run.metric(name).items()} for run in group]
        if any(seeds):
            found.append(_curve(label, seeds, [_positions(run, ROUNDS) for run in group]))
    return found


def scored(runs: Iterable[Run], name: str) -> list[Curve]:
    """A score that `log.metrics` asked for, times 100 against rounds, for each label whose runs all have it."""
    found = []
    for label, group in by_label(runs).items():
        seeds = [run.score_curve(name) for run in group]
        if all(seeds):
            found.append(_curve(label, seeds, [_positions(run, ROUNDS) for run in group]))
    return found


def among_clients(runs: Iterable[Run], name: str) -> list[Curve]:
    """The same, with the minimum and maximum over the clients of a round instead of over the seeds."""
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


def _positions(run: Run, axis: Axis) -> dict[int, float]:
    """The position of each round on the axis. A log may begin after round 1, so rounds are read, not counted."""
    if axis.cost is None:
        return {record.round + 1: record.round + 1 for record in run.rounds}
    return run.spent(axis.cost)


def _curve(label: str, seeds: Sequence[Mapping[int, float]], positions: Sequence[Mapping[int, float]]) -> Curve:
    evaluated = [set(seed) for seed in seeds]
    rounds = sorted(set.intersection(*evaluated) or set.union(*evaluated))  # without common rounds, all of them
    pairs = list(zip(seeds, positions, strict=True))
    values = [[100 * seed[round] for seed in seeds if round in seed] for round in rounds]
    x = [fmean(position[round] for seed, position in pairs if round in seed) for round in rounds]
    return Curve(label, x, [fmean(v) for v in values], [min(v) for v in values], [max(v) for v in values])
