"""How precise confident predictions are, measured on held-out labels, and the threshold that follows."""

from collections.abc import Sequence
from functools import cache
from math import inf

import torch
from torch import Tensor

# The confidence levels that are audited. They do not depend on the data, so that the bound of each is valid.
LEVELS = (0.0, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.98, 0.99)


@cache
def lower_bound(right: int, count: int, certainty: float) -> float:
    """The one-sided lower confidence bound of Clopper and Pearson for `right` of `count`.

    Whatever the true share, at least this share of all samples of `count` gives a bound that is not above it.
    """
    if not right:
        return 0.0
    from scipy.stats import beta  # slow to import, and only an audit needs it

    return float(beta.ppf(1 - certainty, right, count - right + 1))


def audited_threshold(
    confidence: Tensor, right: Tensor, precision: float, certainty: float, levels: Sequence[float] = LEVELS
) -> float:
    """(n,), (n,) bool -> the lowest level whose predictions are shown to reach `precision`; infinity if none is.

    With a probability of at least `certainty` the predictions above the level returned are that precise. Since the
    lowest of several levels is chosen, each is held to a share of the error: 1 - (1 - certainty)/levels.
    """
    each = 1 - (1 - certainty) / len(levels)
    for level in sorted(levels):
        above = confidence >= level
        if lower_bound(int((right & above).sum()), int(above.sum()), each) >= precision:
            return level
    return inf


def audited_thresholds(probabilities: Tensor, y: Tensor, precision: float, certainty: float) -> Tensor:
    """Held-out predictions (n, c) and labels (n,) -> (c,) thresholds.

    A class has its own if it is predicted often enough to pass without an error; the other classes share one, found
    on all predictions.
    """
    confidence, label = probabilities.max(dim=1)
    right, classes = label == y, probabilities.shape[1]
    shared = audited_threshold(confidence, right, precision, certainty)
    found = torch.full((classes,), shared)
    for place in range(classes):
        mine = label == place
        if lower_bound(count := int(mine.sum()), count, 1 - (1 - certainty) / len(LEVELS)) >= precision:
            found[place] = audited_threshold(confidence[mine], right[mine], precision, certainty)
    return found
