"""One evaluation of a model: scores with intervals, per class, per group, confusion and calibration, and its JSON."""

import csv
import io
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, median, pstdev
from typing import Any

import numpy as np

from tacit.metrics import bootstrap
from tacit.metrics import scores as of
from tacit.metrics.predictions import Integers, Predictions, positive_class
from tacit.metrics.wilson import wilson

GROUP_SCORES = ("accuracy", "balanced_accuracy", "log_loss")


@dataclass(frozen=True)
class Estimate:
    """A number and its 95 % interval; NaN where the samples do not define it."""

    value: float
    low: float = math.nan
    high: float = math.nan


@dataclass(frozen=True)
class ClassScores:
    """How one class is recognised."""

    name: str
    count: int  # samples of the class
    predicted: int  # samples taken for the class
    precision: Estimate
    recall: Estimate
    f1: float
    auroc: float  # against all other classes
    average_precision: float


@dataclass(frozen=True)
class Bin:
    """The samples whose predicted class has a probability in a range: their mean confidence and their accuracy."""

    low: float
    high: float
    count: int
    confidence: float
    accuracy: float


@dataclass(frozen=True)
class GroupScores:
    """The scores of one group, client or site."""

    name: str
    count: int
    scores: dict[str, float]


@dataclass(frozen=True)
class Spread:
    """A score over groups."""

    mean: float
    deviation: float
    worst: GroupScores
    median: float
    best: float


@dataclass(frozen=True, repr=False)
class Evaluation:
    """How good a model is on some labeled samples."""

    about: str  # which samples
    count: int
    classes: tuple[str, ...]
    positive: str | None  # of two classes, the one that sensitivity is about
    scores: dict[str, Estimate]
    per_class: tuple[ClassScores, ...]
    confusion: tuple[tuple[int, ...], ...]  # true class, predicted class
    reliability: tuple[Bin, ...]  # without empty bins
    groups: tuple[GroupScores, ...] = ()
    group_word: str = "group"  # what a group is: group, client or site
    resampled: str = "sample"  # what the bootstrap draws: a sample, or a group

    def __repr__(self) -> str:
        """One line."""
        found = self.scores["accuracy"]
        around = f" [{found.low:.1%}, {found.high:.1%}]" if math.isfinite(found.low) else ""
        return f"<Evaluation of {self.count:,} samples: accuracy {found.value:.1%}{around}>"

    @property
    def accuracy(self) -> float:
        """The share of correct predictions."""
        return self.scores["accuracy"].value

    @property
    def majority(self) -> float:
        """The accuracy of always answering the most frequent class."""
        return max(each.count for each in self.per_class) / self.count

    def spread(self, name: str = "accuracy") -> Spread | None:
        """A score over the groups; None if fewer than two groups have it."""
        known = [group for group in self.groups if math.isfinite(group.scores.get(name, math.nan))]
        if len(known) < 2:
            return None
        ordered = sorted(known, key=lambda group: group.scores[name], reverse=not of.ABOUT[name].rises)
        values = [group.scores[name] for group in ordered]
        return Spread(fmean(values), pstdev(values), ordered[0], median(values), values[-1])

    def confusions(self) -> list[tuple[str, str, int]]:
        """True class, predicted class and number of samples of every kind of mistake, the most frequent first."""
        found = [
            (true, predicted, number)
            for true, row in zip(self.classes, self.confusion, strict=True)
            for predicted, number in zip(self.classes, row, strict=True)
            if true != predicted and number
        ]
        return sorted(found, key=lambda each: -each[2])

    def to_json(self) -> str:
        """All of it as one JSON object; JSON has no NaN, so an undefined number is null."""
        return json.dumps(_without_nan(asdict(self)), indent=1)

    @classmethod
    def from_json(cls, text: str | bytes) -> "Evaluation":
        """What `to_json` wrote; raises ValueError for anything else."""
        try:
            return _read(json.loads(text))
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not an evaluation ({type(error).__name__}: {error})") from error

    def to_csv(self) -> str:
        """One line per number: what it is, of which class or group, its value and its interval."""
        text = io.StringIO()
        lines = csv.writer(text, lineterminator="\n")
        lines.writerow(["score", "class", self.group_word, "count", "value", "low", "high"])
        for row in self._rows():
            lines.writerow(["" if isinstance(cell, float) and math.isnan(cell) else cell for cell in row])
        return text.getvalue()

    def _rows(self) -> Iterator[tuple[Any, ...]]:
        for name, found in self.scores.items():
            yield name, "", "", self.count, found.value, found.low, found.high
        for each in self.per_class:
            for name, found in (("precision", each.precision), ("recall", each.recall)):
                yield name, each.name, "", each.count, found.value, found.low, found.high
            for name in ("f1", "auroc", "average_precision"):
                yield name, each.name, "", each.count, getattr(each, name), math.nan, math.nan
        for group in self.groups:
            for name, value in group.scores.items():
                yield name, "", group.name, group.count, value, math.nan, math.nan
        for true, row in zip(self.classes, self.confusion, strict=True):
            for predicted, number in zip(self.classes, row, strict=True):
                yield f"predicted as {predicted}", true, "", number, number, math.nan, math.nan


def evaluate(
    given: Predictions,
    about: str = "",
    *,
    positive: int | None = None,
    groups: Sequence[str] | None = None,
    group_word: str = "group",
    resample_groups: bool = True,
    draws: int = bootstrap.DRAWS,
    seed: int = 0,
) -> Evaluation:
    """Everything about some predictions.

    Args:
        given: labels and outputs.
        about: which samples these are.
        positive: of two classes, the one that sensitivity is about; default: see `positive_class`.
        groups: the name of each sample's group, if there are any.
        group_word: what a group is called.
        resample_groups: whether the bootstrap draws whole groups, as it must if samples of a group are alike.
        draws: how many times the bootstrap draws; 0: no intervals.
        seed: of these draws.
    """
    positive = positive_class(given.classes) if positive is None else positive
    found = of.scores(given, positive=positive)
    found = {name: value for name, value in found.items() if positive is not None or name not in of.TWO_CLASSES}
    numbers = None if groups is None else np.unique(np.asarray(groups), return_inverse=True)[1].astype(np.int64)
    clustered = numbers if resample_groups and numbers is not None and numbers.max() > 0 else None
    around = bootstrap.intervals(given, found, positive, clustered, draws=draws, seed=seed) if draws else None
    if around is not None and clustered is None:
        around = _with_wilson(given, around, positive)
    return Evaluation(
        about=about,
        count=len(given),
        classes=given.classes,
        positive=None if positive is None else given.classes[positive],
        scores={name: Estimate(value, *(around.scores[name] if around else ())) for name, value in found.items()},
        per_class=tuple(_classes(given, around)),
        confusion=tuple(tuple(int(n) for n in row) for row in of.confusion(given)),
        reliability=tuple(_reliability(given)),
        groups=tuple(_groups(given, groups, numbers)) if groups is not None and numbers is not None else (),
        group_word=group_word,
        resampled=group_word if clustered is not None else "sample",
    )


def _with_wilson(given: Predictions, around: bootstrap.Intervals, positive: int | None) -> bootstrap.Intervals:
    """The same intervals, but Wilson's for shares of independent samples, as in a run's card and on validation."""
    matrix = of.confusion(given)
    right = matrix.diagonal().tolist()
    precision, recall = (
        [wilson(part, int(whole)) for part, whole in zip(right, matrix.sum(axis=axis), strict=True)] for axis in (0, 1)
    )
    shares = {"accuracy": wilson(sum(right), len(given))}
    if positive is not None:
        shares |= {"sensitivity": recall[positive], "specificity": recall[1 - positive]}
    scores = around.scores | {name: each for name, each in shares.items() if name in around.scores}
    return bootstrap.Intervals(scores, precision, recall)


def _classes(given: Predictions, around: bootstrap.Intervals | None) -> Iterator[ClassScores]:
    from sklearn.metrics import precision_recall_fscore_support

    labels, nothing = list(range(len(given.classes))), math.nan
    rows = precision_recall_fscore_support(given.y, given.predicted, labels=labels, zero_division=nothing)
    for label, (precision, recall, f1, count) in enumerate(zip(*rows, strict=True)):
        yield ClassScores(
            name=given.classes[label],
            count=int(count),
            predicted=int((given.predicted == label).sum()),
            precision=Estimate(float(precision), *(around.precision[label] if around else ())),
            recall=Estimate(float(recall), *(around.recall[label] if around else ())),
            f1=float(f1) if count else nothing,
            auroc=of.class_auroc(given, label),
            average_precision=of.class_average_precision(given, label),
        )


def _reliability(given: Predictions) -> Iterator[Bin]:
    place = of.calibration_bins(given.confidence)
    for number in range(of.BINS):
        here = place == number
        if here.any():
            confidence, accuracy = float(given.confidence[here].mean()), float(given.correct[here].mean())
            yield Bin(number / of.BINS, (number + 1) / of.BINS, int(here.sum()), confidence, accuracy)


def _groups(given: Predictions, names: Sequence[str], numbers: Integers) -> Iterator[GroupScores]:
    for name in dict.fromkeys(names):  # in the order of first appearance, so clients stay in theirs
        rows = np.flatnonzero(numbers == numbers[list(names).index(name)])
        yield GroupScores(str(name), len(rows), of.scores(given.take(rows), GROUP_SCORES))


def _without_nan(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _without_nan(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    return {name: _number(value) for name, value in values.items()}


def _read(values: Mapping[str, Any]) -> Evaluation:
    return Evaluation(
        about=str(values["about"]),
        count=int(values["count"]),
        classes=tuple(map(str, values["classes"])),
        positive=None if values["positive"] is None else str(values["positive"]),
        scores={name: Estimate(**_numbers(each)) for name, each in values["scores"].items()},
        per_class=tuple(_read_class(each) for each in values["per_class"]),
        confusion=tuple(tuple(map(int, row)) for row in values["confusion"]),
        reliability=tuple(Bin(**each) for each in values["reliability"]),
        groups=tuple(_read_groups(values["groups"])),
        group_word=str(values["group_word"]),
        resampled=str(values["resampled"]),
    )


def _read_class(values: Mapping[str, Any]) -> ClassScores:
    return ClassScores(
        name=str(values["name"]),
        count=int(values["count"]),
        predicted=int(values["predicted"]),
        precision=Estimate(**_numbers(values["precision"])),
        recall=Estimate(**_numbers(values["recall"])),
        f1=_number(values["f1"]),
        auroc=_number(values["auroc"]),
        average_precision=_number(values["average_precision"]),
    )


def _read_groups(values: Iterable[Mapping[str, Any]]) -> Iterator[GroupScores]:
    return (GroupScores(str(each["name"]), int(each["count"]), _numbers(each["scores"])) for each in values)
