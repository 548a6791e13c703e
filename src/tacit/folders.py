"""Folders of runs: one for each, named after what it is of."""

from pathlib import Path


def fresh(name: str, runs: Path = Path("runs")) -> Path:
    """A folder under `runs` that is not there yet."""
    safe = "".join(letter if letter.isalnum() or letter in "+-._" else "-" for letter in name)
    folder, number = runs / safe, 2
    while folder.exists():
        folder, number = runs / f"{safe}-{number}", number + 1
    return folder
