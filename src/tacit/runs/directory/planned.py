"""What a comparison, a benchmark or a search is going to run: `plan.json` in its folder, locked while it works."""

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from tacit import storage
from tacit.storage import LockedError, on_disk, write_durably

FILE = "plan.json"
LARGEST = 1 << 24  # bytes of a plan that is read


@dataclass(frozen=True)
class PlannedRun:
    """One run of a plan; its folder may not exist yet."""

    folder: str  # relative to that of the plan
    label: str  # runs with the same label and column differ in their seed
    seed: int
    rounds: int
    column: str = ""


@dataclass(frozen=True)
class Plan:
    """The runs of one command."""

    kind: str  # comparison, benchmark or search
    title: str
    runs: tuple[PlannedRun, ...]


@contextmanager
def working(folder: Path, plan: Plan) -> Iterator[None]:
    """Save the plan and hold its lock while the block runs, so that others see what is going on here."""
    path = folder / FILE
    with on_disk(path):
        folder.mkdir(parents=True, exist_ok=True)
    if read(folder) != plan:  # a new file would not carry the lock of another process
        write_durably(path, json.dumps(asdict(plan)).encode())
    with ExitStack() as stack:
        with suppress(LockedError):  # the same command runs twice: its runs have their own locks
            stack.enter_context(storage.locked(path))
        yield


def read(folder: Path) -> Plan | None:
    """The plan in a folder; None if there is none, or it cannot be read."""
    try:
        path = folder / FILE
        if path.stat().st_size > LARGEST:
            return None
        values = json.loads(path.read_text(encoding="utf-8"))
        runs = tuple(
            PlannedRun(
                str(each["folder"]), str(each["label"]), int(each["seed"]), int(each["rounds"]), str(each["column"])
            )
            for each in values["runs"]
        )
        return Plan(str(values["kind"]), str(values["title"]), runs)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def is_working(folder: Path) -> bool:
    """Whether a process is at work on the plan in a folder."""
    try:
        return storage.is_locked(folder / FILE)
    except OSError:
        return False
