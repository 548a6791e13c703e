"""Comma-separated lists in an option: names, or seeds."""

from tacit.errors import TacitError

LONGEST = 300  # digits; settings accept no longer number
SHOWN = 20  # characters of a wrong seed in the error


def names(text: str, option: str) -> list[str]:
    """Each name once, in the order given."""
    found = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not found:
        raise TacitError(f"{option} is empty", "give one or more names, separated by commas", code="cli.empty-list")
    return found


def seeds(text: str) -> list[int]:
    """Each seed once, in the order given."""
    return list(dict.fromkeys(map(_seed, names(text, "--seeds"))))


def _seed(text: str) -> int:
    if not text.isdecimal() or len(text) > LONGEST:
        raise TacitError(
            f"'{text[:SHOWN]}' is not a seed", "give whole numbers, such as --seeds 0,1,2", code="cli.not-a-seed"
        )
    return int(text)
