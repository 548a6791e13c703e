"""Scores by name, each one number. scikit-learn computes them; it is imported only when a score is asked for."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import nan
from typing import Literal, get_args

import numpy as np

from tacit.metrics.predictions import Floats, Integers, Predictions, positive_class

Name = Literal[
    "accuracy",
    "balanced_accuracy",
    "macro_f1",
    "sensitivity",
    "specificity",
    "auroc",
    "average_precision",
    "log_loss",
    "brier",
    "ece",
]
NAMES: tuple[Name, ...] = get_args(Name)
TWO_CLASSES = ("sensitivity", "specificity")  # defined for two classes only
BINS = 15  # of confidence, all equally wide
SMALLEST = 1e-15  # a probability below this counts as this in the log loss


@dataclass(frozen=True)
class About:
    """What a score is called in a table, and whether it is a share, which is shown in percent."""

    title: str
    meaning: str
    share: bool = True
    rises: bool = True  # with better predictions


ABOUT: dict[str, About] = {
    "accuracy": About("accuracy", "share of correct predictions"),
    "balanced_accuracy": About("balanced accuracy", "mean of the classes' recalls: every class counts the same"),
    "macro_f1": About("macro F1", "mean over the classes of F1, the harmonic mean of precision and recall"),
    "sensitivity": About("sensitivity", "share of the positive class that is found"),
    "specificity": About("specificity", "share of the other class that is recognised as such"),
    "auroc": About("AUROC", "probability that a sample of a class scores higher for it than one of another class"),
    "average_precision": About("average precision", "area under the curve of precision against recall"),
    "log_loss": About("log loss", "mean of -log p of the true class", share=False, rises=False),
    "brier": About("Brier score", "squared distance of the probabilities from the truth", share=False, rises=False),
    "ece": About("calibration error", "how far confidence is from accuracy, on average (ECE)", rises=False),
}


def scores(given: Predictions, names: Iterable[str] = NAMES, positive: int | None = None) -> dict[str, float]:
    """Each named score; NaN where the samples do not define it.

    Classes without a sample are left out of means over classes. `positive` is one of two classes, see
    `positive_class`.
    """
    positive = positive_class(given.classes) if positive is None else positive
    return {name: FUNCTIONS[name](given, positive) if len(given) else nan for name in names}


def confusion(given: Predictions) -> Integers:
    """(c, c): samples by true class (rows) and predicted class (columns)."""
    from sklearn.metrics import confusion_matrix

    return np.asarray(confusion_matrix(given.y, given.predicted, labels=range(len(given.classes))), dtype=np.int64)


def one_vs_rest(given: Predictions, function: Callable[[Integers, Floats], float], label: int) -> float:
    """A score of one class against all others; NaN unless both sides have a sample."""
    is_it = (given.y == label).astype(np.int64)
    return float(function(is_it, given.probabilities[:, label])) if 0 < is_it.sum() < len(given) else nan


def class_auroc(given: Predictions, label: int) -> float:
    """The area under the ROC curve of one class against all others."""
    from sklearn.metrics import roc_auc_score

    return one_vs_rest(given, roc_auc_score, label)


def class_average_precision(given: Predictions, label: int) -> float:
    """The average precision of one class against all others."""
    from sklearn.metrics import average_precision_score

    return one_vs_rest(given, average_precision_score, label)


def calibration_bins(confidence: Floats) -> Integers:
    """(n,) The bin of each confidence; bins are (0, 1/15], (1/15, 2/15] and so on."""
    return np.clip(np.ceil(confidence * BINS).astype(np.int64) - 1, 0, BINS - 1)


def _accuracy(given: Predictions, positive: int | None) -> float:
    from sklearn.metrics import accuracy_score

    return float(accuracy_score(given.y, given.predicted))


def _balanced_accuracy(given: Predictions, positive: int | None) -> float:
    from sklearn.metrics import recall_score

    return float(recall_score(given.y, given.predicted, labels=given.present, average="macro", zero_division=0))


def _macro_f1(given: Predictions, positive: int | None) -> float:
    from sklearn.metrics import f1_score

    return float(f1_score(given.y, given.predicted, labels=given.present, average="macro", zero_division=0))


def _sensitivity(given: Predictions, positive: int | None) -> float:
    return nan if positive is None else _recall(given, positive)


def _specificity(given: Predictions, positive: int | None) -> float:
    return nan if positive is None else _recall(given, 1 - positive)


def _recall(given: Predictions, label: int) -> float:
    from sklearn.metrics import recall_score

    if label not in given.present:
        return nan
    return float(recall_score(given.y, given.predicted, labels=[label], average="macro", zero_division=0))


def _auroc(given: Predictions, positive: int | None) -> float:
    return _mean([class_auroc(given, label) for label in _sides(given, positive)])


def _average_precision(given: Predictions, positive: int | None) -> float:
    return _mean([class_average_precision(given, label) for label in _sides(given, positive)])


def _sides(given: Predictions, positive: int | None) -> list[int]:
    """The classes whose one-vs-rest scores are averaged: all that occur, or the positive one of two."""
    return given.present if positive is None else [positive]


def _mean(values: list[float]) -> float:
    known = [value for value in values if not np.isnan(value)]
    return float(np.mean(known)) if known else nan


def _log_loss(given: Predictions, positive: int | None) -> float:
    from sklearn.metrics import log_loss

    p = np.clip(given.probabilities, SMALLEST, 1)
    return float(log_loss(given.y, p / p.sum(axis=1, keepdims=True), labels=range(len(given.classes))))


def _brier(given: Predictions, positive: int | None) -> float:
    """Brier's own definition, from 0 to 2; with two classes its usual half."""
    return float(brier_of_each(given).mean())


def brier_of_each(given: Predictions) -> Floats:
    """(n,): the squared distance of each prediction from the truth; half of it with two classes."""
    truth = np.eye(len(given.classes))[given.y]
    squares = ((given.probabilities - truth) ** 2).sum(axis=1)
    return np.asarray(squares / 2 if len(given.classes) == 2 else squares)


def _ece(given: Predictions, positive: int | None) -> float:
    gap = np.bincount(calibration_bins(given.confidence), weights=given.correct - given.confidence, minlength=BINS)
    return float(np.abs(gap).sum() / len(given))


FUNCTIONS: dict[str, Callable[[Predictions, int | None], float]] = {
    "accuracy": _accuracy,
    "balanced_accuracy": _balanced_accuracy,
    "macro_f1": _macro_f1,
    "sensitivity": _sensitivity,
    "specificity": _specificity,
    "auroc": _auroc,
    "average_precision": _average_precision,
    "log_loss": _log_loss,
    "brier": _brier,
    "ece": _ece,
}
