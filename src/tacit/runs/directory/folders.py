"""Folders that hold several runs: a new folder for a run, the runs below a folder, and the command that made them."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tacit.runs.directory import RunDirectory, layout
from tacit.storage import writable, write_durably

COMMAND = "command.txt"  # the command that made the runs in a folder
LEDGER, BEST = "ledger.jsonl", "best.toml"  # of a search: its trials, and the config of the best one


def safe(name: str) -> str:
    """A name that every file system accepts for a folder."""
    return "".join(letter if letter.isalnum() or letter in "+-._" else "-" for letter in name)


@contextmanager
def fresh(name: str, runs: Path = Path("runs")) -> Iterator[Path]:
    """A new folder under `runs`, created at once to reserve its name; removed again if it stays empty."""
    folder, number, first = runs / safe(name), 2, not runs.exists()
    with writable(folder):
        while not _made(folder):
            folder, number = runs / f"{safe(name)}-{number}", number + 1
    try:
        yield folder
    finally:
        for empty in (folder, runs) if first else (folder,):
            with suppress(OSError):  # it is not empty
                empty.rmdir()


def _made(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        return False
    return True


def find_runs(folder: Path) -> list[Path]:
    """The runs in a folder: itself, those of a comparison, or those of a benchmark, which are three levels down."""
    if RunDirectory(folder).exists():
        return [folder]
    found = (path.parent for depth in ("*", "*/*", "*/*/*") for path in folder.glob(f"{depth}/{layout.CONFIG}"))
    return sorted(place for place in found if not layout.is_set_aside(place.name) and not place.name.startswith("."))


def write_command(folder: Path, command: str) -> None:
    """Save the command that made the runs in a folder."""
    write_durably(folder / COMMAND, f"{command}\n".encode())


def read_command(folder: Path) -> str:
    """The command that made the runs in a folder; empty if none was saved."""
    try:
        return (folder / COMMAND).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""
