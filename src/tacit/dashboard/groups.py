"""Runs that belong together: a comparison, a benchmark, a search, or the runs of one folder."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tacit.dashboard.followed import FollowedRun, id_of
from tacit.formatting import printable
from tacit.runs.directory import RunDirectory, planned
from tacit.runs.directory.planned import Plan

LEVELS = {"benchmark": 2, "search": 1}  # how far above a run's folder its group is


@dataclass
class Group:
    """A folder with several runs, and what is planned there."""

    folder: Path
    kind: str = "folder"
    title: str = ""
    plan: Plan | None = None
    working: bool = False  # a process is at work on the plan
    revision: int = 0

    @property
    def id(self) -> str:
        """Its name in addresses."""
        return id_of(self.folder)

    def summary(self) -> dict[str, Any]:
        """As JSON has it; the page counts its runs."""
        name = self.title or self.folder.name or str(self.folder)
        return {"id": self.id, "kind": self.kind, "title": printable(name, 200), "working": self.working}


def place_of(folder: Path, plans: Mapping[Path, Plan], roots: Sequence[Path]) -> tuple[Path, str]:
    """The group that a run belongs to, and its kind: the nearest plan above it, else what its folder tells."""
    for above in folder.parents:
        if above in plans:
            return above, plans[above].kind
        if above in roots:
            break
    if (purpose := RunDirectory(folder).purpose()) is not None:
        return _up(folder.parent, LEVELS[purpose], roots), purpose
    if folder.name.startswith("seed-"):
        return _up(folder.parent, 1, roots), "comparison"
    return _up(folder, 1, roots), "folder"


def _up(folder: Path, levels: int, roots: Sequence[Path]) -> Path:
    for _ in range(levels):
        if folder in roots:
            break
        folder = folder.parent
    return folder


def planned_runs(folder: Path, plan: Plan) -> dict[Path, planned.PlannedRun]:
    """The runs of a plan by their folders, without those that lead out of it."""
    found = {}
    for run in plan.runs:
        parts = Path(run.folder).parts
        if parts and ".." not in parts and not Path(run.folder).is_absolute():
            found[folder / run.folder] = run
    return found


def label_searches(runs: Sequence[FollowedRun]) -> None:
    """Name the trials of a search by the settings in which they differ."""
    flat = {run.id: dict(_flat(run.config)) for run in runs if run.config}
    names = {name for settings in flat.values() for name in settings}
    first = next(iter(flat.values()), {})
    differing = sorted(n for n in names if any(each.get(n) != first.get(n) for each in flat.values()))
    for run in runs:
        words = [f"{name}={_short(flat[run.id].get(name))}" for name in differing[:4] if run.id in flat]
        run.label = printable(f"trial {run.folder.name}: {' '.join(words)}" if words else f"trial {run.folder.name}")


def _flat(tree: Mapping[str, Any], before: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for name, value in tree.items():
        found += _flat(value, f"{before}{name}.") if isinstance(value, Mapping) else [(f"{before}{name}", value)]
    return found


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
