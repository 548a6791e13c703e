"""The one exception for mistakes a user can mend."""

from collections.abc import Iterable
from difflib import get_close_matches


class TacitError(Exception):
    """A mistake outside the program; its message is one sentence that names the remedy."""


def unknown(kind: str, name: str, known: Iterable[str], otherwise: str = "") -> TacitError:
    """The error for a name that is not in `known`, with the closest one that is; with all, or `otherwise`, if none is.

    `otherwise` says where to find them, if they are too many for a sentence.
    """
    names = sorted(set(known))
    close = get_close_matches(name, names, n=1, cutoff=0.5)
    remedy = f"did you mean '{close[0]}'?" if close else otherwise or f"choose one of {', '.join(names)}"
    return TacitError(f"unknown {kind} '{name}': {remedy}")
