"""The one exception for mistakes a user can mend."""

from collections.abc import Iterable
from difflib import SequenceMatcher, get_close_matches


class TacitError(Exception):
    """A mistake outside the program; its message is one sentence that names the remedy."""


def unknown(kind: str, name: str, known: Iterable[str], otherwise: str = "") -> TacitError:
    """The error for a name that is not in `known`, with the closest one that is; with all, or `otherwise`, if none is.

    `otherwise` says where to find them, if they are too many for a sentence.
    """
    names = sorted(set(known))
    remedy = meant(name, names) or otherwise or f"choose one of {', '.join(names)}"
    return TacitError(f"unknown {kind} '{name}': {remedy}")


def meant(name: str, known: Iterable[str]) -> str:
    """A question after the name that is close to this one; empty where none is."""
    close = get_close_matches(name, sorted(set(known)), n=1, cutoff=0.5)
    return f"did you mean '{close[0]}'?" if close else ""


def closest_first(name: str, known: Iterable[str]) -> list[str]:
    """What is known, beginning with what is most like `name`; by the alphabet where nothing is."""
    return sorted(set(known), key=lambda other: (-SequenceMatcher(None, name, other).ratio(), other))
