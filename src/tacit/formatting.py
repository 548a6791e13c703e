"""For people: numbers as percent, bytes, counts and times, with their spread over seeds; text of others made safe."""

import re
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

# Characters that move a cursor, forge a line or hide text: controls, marks of direction, zero width, half pairs.
_HIDDEN = "\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb\ud800-\udfff"
COLUMNS = 80  # of a terminal
_CONTROL = re.compile(f"[\x00-\x1f{_HIDDEN}]")
_CONTROL_IN_LINES = re.compile(f"[\x00-\x08\x0b-\x1f{_HIDDEN}]")


def printable(text: object, most: int | None = None, *, lines: bool = False) -> str:
    """Text that others wrote, safe to print: on one line unless `lines`, without control characters, cut to `most`."""
    plain = str(text)
    if most is not None and len(plain) > most:
        plain = f"{plain[: most - 1]}…"
    return (_CONTROL_IN_LINES if lines else _CONTROL).sub(" ", plain)


def wrapped(text: str, width: int = COLUMNS) -> str:
    """A line broken between words; after a first word and two spaces or more, the rest stays in a column of its own."""
    column = re.match(r"\S+ {2,}", text)
    indent = " " * len(column[0]) if column else ""
    return textwrap.fill(text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


@dataclass(frozen=True)
class Stat:
    """A number over seeds: its mean, and its standard deviation (n - 1), which needs two seeds."""

    mean: float
    std: float | None = None

    @classmethod
    def of(cls, values: Sequence[float]) -> "Stat":
        """The statistic of one value per seed."""
        return cls(fmean(values), stdev(values) if len(values) > 1 else None)


def percent(stat: Stat) -> str:
    """`75.1 ± 0.4`, from a fraction between 0 and 1."""
    spread = "" if stat.std is None else f" ± {stat.std * 100:.1f}"
    return f"{stat.mean * 100:.1f}{spread}"


def count(stat: Stat) -> str:
    """`12,000`, or `1.23 M` from a million on; the spread only if it does not round to 0."""
    if stat.mean >= 1e6:
        return _with_spread(stat, 1e6, ".2f", " M")
    return _with_spread(stat, 1, ",.0f", "")


def size(stat: Stat) -> str:
    """`12.3 MB`, in decimal units; the spread only if it does not round to 0."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if round(stat.mean / factor, 1) >= 1:
            return _with_spread(stat, factor, ".1f", f" {unit}")
    return _with_spread(stat, 1, ".0f", " B")


def size_of(count: float) -> str:
    """`12.3 MB`, from a single number of bytes."""
    return size(Stat(count))


def format_range(counts: Iterable[int]) -> str:
    """`12`, or `3 to 1,200` if they differ."""
    found = [int(count) for count in counts]
    low, high = min(found), max(found)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def duration(stat: Stat) -> str:
    """`41 s`, `12.3 min` or `2.1 h`; the spread only if it does not round to 0."""
    if stat.mean < 100:
        return _with_spread(stat, 1, ".0f" if stat.mean >= 10 else ".1f", " s")
    if stat.mean < 6000:
        return _with_spread(stat, 60, ".1f", " min")
    return _with_spread(stat, 3600, ".1f", " h")


def duration_of(seconds: float) -> str:
    """`41 s`, from a single number of seconds."""
    return duration(Stat(seconds))


def _with_spread(stat: Stat, factor: float, form: str, unit: str) -> str:
    mean = format(stat.mean / factor, form)
    spread = format((stat.std or 0) / factor, form)
    visible = spread != format(0, form)
    return f"{mean} ± {spread}{unit}" if visible else f"{mean}{unit}"
