"""Wilson's 95 % interval of a share of independent samples; unlike the bootstrap, it has a width at 0 % and 100 %."""

import math

from tacit.metrics.bootstrap import Interval

Z = 1.959964  # the normal quantile of a 95 % interval


def wilson(correct: float, count: int) -> Interval:
    """The interval of a share, from how many of `count` are correct; NaN without samples."""
    if not count:
        return Interval(math.nan, math.nan)
    share, weight = correct / count, Z**2 / count
    middle = (share + weight / 2) / (1 + weight)
    half = Z / (1 + weight) * math.sqrt(share * (1 - share) / count + weight / (4 * count))
    return Interval(max(0.0, middle - half), min(1.0, middle + half))
