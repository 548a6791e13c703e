"""The one exception for problems a user can solve."""

import sys
from collections.abc import Iterable, Mapping
from difflib import SequenceMatcher, get_close_matches
from functools import cache
from typing import Any


class TacitError(Exception):
    """A problem outside the program, and what to do about it. `str()` is one sentence with both.

    Code checks `code` and `resumable`, never the sentence, which may be reworded at any time.
    """

    def __init__(
        self, problem: str, remedy: str = "", *, code: str = "tacit.unspecified", resumable: bool = False
    ) -> None:
        """`code` is `room.reason` in kebab case; `resumable`: the run can be resumed after the remedy."""
        super().__init__(problem, remedy)
        self.problem, self.remedy, self.code, self.resumable = problem, remedy, code, resumable

    def __str__(self) -> str:
        """What is wrong, then what to do."""
        return f"{self.problem}; {self.remedy}" if self.remedy else self.problem

    def within(self, place: str) -> "TacitError":
        """The same error, its problem prefixed by where it occurred."""
        return TacitError(f"{place}: {self.problem}", self.remedy, code=self.code, resumable=self.resumable)

    def to_json(self) -> dict[str, Any]:
        """The error as plain values, for another process."""
        return {"problem": self.problem, "remedy": self.remedy, "code": self.code, "resumable": self.resumable}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "TacitError":
        """The error another process wrote; refuses anything else with a KeyError."""
        problem, remedy, code = (str(values[name]) for name in ("problem", "remedy", "code"))
        return TacitError(problem, remedy, code=code, resumable=values["resumable"] is True)


def unknown(kind: str, name: str, known: Iterable[str], otherwise: str = "", *, code: str = "") -> TacitError:
    """The error for a name that is not in `known`. It suggests the closest one; without one, it lists all of them.

    `otherwise` replaces the list if it is too long for a sentence. The default code is `names.unknown-KIND`.
    """
    names = sorted(set(known))
    remedy = did_you_mean(name, names) or otherwise or f"choose one of {', '.join(names)}"
    return TacitError(f"unknown {kind} '{name}'", remedy, code=code or f"names.unknown-{kind.replace(' ', '-')}")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A question with the closest known name; empty if none is close."""
    close = get_close_matches(name, sorted(set(known)), n=1, cutoff=0.5)
    return f"did you mean '{close[0]}'?" if close else ""


def closest_first(name: str, known: Iterable[str]) -> list[str]:
    """The known names, the most similar to `name` first; alphabetical where nothing is similar."""
    return sorted(set(known), key=lambda other: (-SequenceMatcher(None, name, other).ratio(), other))


@cache
def notice_renamed(old: str, new: str) -> None:
    """Say on standard error that a name has changed, once per process and pair; the old name still works."""
    print(f"tacit: {old} is now {new}", file=sys.stderr)
