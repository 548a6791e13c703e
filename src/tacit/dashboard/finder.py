"""Finds runs, plans of several runs, and hubs below folders, again and again at little cost."""

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tacit.runs.directory import layout, planned

DEEPEST = 8  # folders below a root
MOST = 20_000  # folders that are looked at
FRESH = 2.0  # seconds in which the clock of a file system may not tell two changes apart
# Folders of runs, hubs and sites without runs in them, and others that are large.
SKIPPED = {
    layout.CHECKPOINT, layout.EVALUATIONS, layout.TENSORBOARD, "memories", "memory", "private", "flower", "app",
    "sites", "node_modules", "site-packages", "__pycache__",
}  # fmt: skip
HUB = "hub.toml"


@dataclass
class Found:
    """What lies below the roots: folders, in the order of the names."""

    runs: list[Path] = field(default_factory=list)
    plans: list[Path] = field(default_factory=list)
    hubs: list[Path] = field(default_factory=list)
    full: bool = False  # there are more folders than are looked at


@dataclass(frozen=True)
class _Listing:
    """A folder as it was when its time stamp was `changed`."""

    changed: int
    folders: tuple[str, ...]
    files: frozenset[str]


class Finder:
    """Looks below its roots. A folder is listed again only after it has changed; symbolic links are not followed."""

    def __init__(self, roots: Sequence[Path]) -> None:
        """The roots need not exist yet."""
        self.roots = [root.absolute() for root in roots]
        self._known: dict[Path, _Listing] = {}

    def find(self) -> Found:
        """Everything that is there now."""
        found, seen = Found(), dict[Path, _Listing]()
        for root in self.roots:
            for folder, listing in self._below(root, 0, seen):
                if layout.is_run(listing.files):
                    found.runs.append(folder)
                if planned.FILE in listing.files:
                    found.plans.append(folder)
                if HUB in listing.files:
                    found.hubs.append(folder)
        found.full = len(seen) >= MOST
        self._known = seen
        return found

    def _below(self, folder: Path, depth: int, seen: dict[Path, _Listing]) -> Iterator[tuple[Path, _Listing]]:
        if folder in seen or len(seen) >= MOST:
            return
        listing = self._listing(folder)
        if listing is None:
            return
        seen[folder] = listing
        yield folder, listing
        if depth < DEEPEST and not layout.is_run(listing.files):
            for name in listing.folders:
                yield from self._below(folder / name, depth + 1, seen)

    def _listing(self, folder: Path) -> _Listing | None:
        try:
            changed = folder.stat().st_mtime_ns
            known = self._known.get(folder)
            if known is not None and known.changed == changed and time.time() - changed / 1e9 > FRESH:
                return known
            folders, files = [], set()
            with os.scandir(folder) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        folders += [entry.name] if _may_hold_runs(entry.name) else []
                    elif entry.is_file(follow_symlinks=False):
                        files.add(entry.name)
        except OSError:
            return None
        return _Listing(changed, tuple(sorted(folders)), frozenset(files))


def _may_hold_runs(name: str) -> bool:
    return not name.startswith(".") and name not in SKIPPED and not layout.is_set_aside(name)
