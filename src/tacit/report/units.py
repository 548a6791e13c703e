"""Numbers as people read them: percent, bytes, counts and times, with their spread over seeds."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev


@dataclass(frozen=True)
class Stat:
    """A number over seeds: its mean, and its standard deviation (n - 1), which one seed does not have."""

    mean: float
    std: float | None = None

    @classmethod
    def of(cls, values: Sequence[float]) -> "Stat":
        """The statistic of one value per seed."""
        return cls(fmean(values), stdev(values) if len(values) > 1 else None)


def percent(stat: Stat) -> str:
    """`75.1 ± 0.4`, for a share between 0 and 1."""
    spread = "" if stat.std is None else f" ± {stat.std * 100:.1f}"
    return f"{stat.mean * 100:.1f}{spread}"


def count(stat: Stat) -> str:
    """`12,000`, or `1.23 M` where a million is a detail; the spread only if it shows."""
    if stat.mean >= 1e6:
        return _with_spread(stat, 1e6, ".2f", " M")
    return _with_spread(stat, 1, ",.0f", "")


def size(stat: Stat) -> str:
    """`12.3 MB`, in decimal units; the spread only if it shows."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if round(stat.mean / factor, 1) >= 1:
            return _with_spread(stat, factor, ".1f", f" {unit}")
    return _with_spread(stat, 1, ".0f", " B")


def size_of(count: float) -> str:
    """The same of one number of bytes."""
    return size(Stat(count))


def span(counts: Iterable[int]) -> str:
    """`12`, or `3 to 1,200` where they differ."""
    found = [int(count) for count in counts]
    low, high = min(found), max(found)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def duration(stat: Stat) -> str:
    """`41 s`, `12.3 min` or `2.1 h`; the spread only if it shows."""
    if stat.mean < 100:
        return _with_spread(stat, 1, ".0f" if stat.mean >= 10 else ".1f", " s")
    if stat.mean < 6000:
        return _with_spread(stat, 60, ".1f", " min")
    return _with_spread(stat, 3600, ".1f", " h")


def duration_of(seconds: float) -> str:
    """The same of one time."""
    return duration(Stat(seconds))


def _with_spread(stat: Stat, factor: float, form: str, unit: str) -> str:
    mean = format(stat.mean / factor, form)
    spread = format((stat.std or 0) / factor, form)
    visible = spread != format(0, form)
    return f"{mean} ± {spread}{unit}" if visible else f"{mean}{unit}"
