"""Settings to search over, as users write them: `train.lr=0.003..0.3`, `objective.threshold=0.8,0.95`."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tacit.errors import TacitError
from tacit.runs.assignments import parse_assignment

WIDE = 10  # a range whose ends differ by this factor is searched by its logarithm


@dataclass(frozen=True)
class Range:
    """All numbers between two ends; whole ones if both ends are."""

    low: float
    high: float

    @property
    def whole(self) -> bool:
        """Whether only whole numbers are tried."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    @property
    def log(self) -> bool:
        """Whether factors count and not differences: 0.003 to 0.03 is as far as 0.03 to 0.3."""
        return self.low > 0 and self.high / self.low >= WIDE

    def to_plain(self) -> str:
        """As users write it."""
        return f"{self.low}..{self.high}"


@dataclass(frozen=True)
class Choices:
    """Some values."""

    values: tuple[Any, ...]

    def to_plain(self) -> list[Any]:
        """As JSON has it."""
        return list(self.values)


Space = Mapping[str, Range | Choices]


def parse(texts: Iterable[str]) -> dict[str, Range | Choices]:
    """The settings of several `NAME=…`; a range has two dots, choices have commas."""
    found: dict[str, Range | Choices] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        if not equals or not name.strip() or not values.strip():
            raise _unreadable(text)
        if name.strip() in found:
            raise TacitError(f"{name.strip()} is given twice", "give each setting once", code="tune.given-twice")
        found[name.strip()] = _dimension(text, name.strip(), values)
    if not found:
        raise TacitError(
            "there is nothing to search over", "add --space, such as train.lr=0.003..0.3", code="tune.no-space"
        )
    return found


def as_space(given: Mapping[str, Any]) -> dict[str, Range | Choices]:
    """The settings of a dictionary: a string as on the command line, a list of choices, or a pair (low, high)."""
    made: dict[str, Range | Choices] = {}
    for name, value in given.items():
        if isinstance(value, str):
            made |= parse([f"{name}={value}"])
        elif isinstance(value, tuple) and len(value) == 2 and all(isinstance(end, int | float) for end in value):
            made[name] = _ordered(f"{name}={value[0]}..{value[1]}", Range(*value))
        elif isinstance(value, list) and value:
            made[name] = Choices(tuple(value))
        else:
            raise _unreadable(f"{name}={value}")
    return made or parse([])


def _dimension(text: str, name: str, values: str) -> Range | Choices:
    low, dots, high = values.partition("..")
    if not dots:
        return Choices(tuple(parse_assignment(f"{name}={value}")[1] for value in _split(values)))
    ends = [parse_assignment(f"{name}={end}")[1] for end in (low, high)]
    if any(isinstance(end, bool) or not isinstance(end, int | float) or not math.isfinite(end) for end in ends):
        raise _unreadable(text)
    return _ordered(text, Range(*ends))


def _split(values: str) -> list[str]:
    """Values separated by commas; those within brackets belong together."""
    if values.strip().startswith("["):
        return [values]
    return [value.strip() for value in values.split(",") if value.strip()]


def _ordered(text: str, found: Range) -> Range:
    if found.low < found.high:
        return found
    raise TacitError(f"the range {text} is empty", "put the smaller number first", code="tune.empty-range")


def _unreadable(text: str) -> TacitError:
    return TacitError(
        f"'{text}' is no setting with values to try",
        "write a range such as train.lr=0.003..0.3, or values such as objective.threshold=0.8,0.95",
        code="tune.not-a-space",
    )
