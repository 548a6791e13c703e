"""Lists as they are typed in an option: names or seeds, separated by commas."""

from tacit.errors import TacitError

LONGEST = 300  # digits; a setting takes no longer number
SHOWN = 20  # letters of what is wrong


def names(text: str, option: str) -> list[str]:
    """Each name once, in the order of the text."""
    found = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not found:
        raise TacitError(f"{option} is empty: give one or more, separated by commas")
    return found


def seeds(text: str) -> list[int]:
    """Each seed once."""
    return list(dict.fromkeys(map(_seed, names(text, "--seeds"))))


def _seed(text: str) -> int:
    if not text.isdecimal() or len(text) > LONGEST:
        raise TacitError(f"'{text[:SHOWN]}' is not a seed: give whole numbers, such as --seeds 0,1,2")
    return int(text)
