"""All runs below some folders, kept up to date by one thread, and what changed since someone last asked."""

import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tacit.dashboard.finder import Finder, Found
from tacit.dashboard.followed import FollowedRun
from tacit.dashboard.groups import Group, label_searches, place_of, planned_runs
from tacit.runs.directory import planned
from tacit.runs.directory.planned import Plan

TICK = 0.4  # seconds between two looks at the runs
SEARCH = 1.6  # between two searches for runs
BUDGET = 0.3  # that one look may take before what is known is shown
MOST_RUNS = 2000  # that are followed, the first by name
MOST_SERIES = 64  # whose numbers one answer has

Panel = Callable[[], dict[str, Any]]  # facts about a hub or a site, as JSON has them
FindPanel = Callable[[Path], Panel]  # for the folder of a hub


class Board:
    """What is known about everything below the roots. Every change has a number, which only grows."""

    def __init__(
        self, roots: Sequence[Path], panels: Mapping[str, Panel] | None = None, of_hub: FindPanel | None = None
    ) -> None:
        """`panels` are always shown; `of_hub` makes the panel of each hub that is found below the roots."""
        self.finder = Finder([root.resolve() for root in roots])
        self.runs: dict[str, FollowedRun] = {}
        self.groups: dict[str, Group] = {}
        self.boot = secrets.token_hex(4)  # another process has other numbers
        self.revision = 0
        self.members = 0  # the revision in which the list of runs last changed
        self.complete = False  # every run has been read once
        self._panels = dict(panels or {})
        self._found_panels: dict[str, Panel] = {}
        self._shown: dict[str, tuple[int, dict[str, Any]]] = {}
        self._of_hub = of_hub
        self._lock = threading.Lock()
        self._search_at = self._panels_at = 0.0
        self._waiting: list[FollowedRun] = []

    # --- keeping up ---------------------------------------------------------------------------------------------------

    def follow(self, until: threading.Event) -> None:
        """Look again and again, until the event is set."""
        while not until.is_set():
            self.look()
            self.look_at_panels()
            until.wait(0.02 if self._waiting else TICK)

    def look(self) -> None:
        """Look once at every run, as far as the time for it reaches; the next call continues."""
        began = time.monotonic()
        if began >= self._search_at:
            found = self.finder.find()
            with self._lock:
                self._arrange(found)
            self._search_at = time.monotonic() + SEARCH
        waiting = self._waiting or self._newest_first()
        self._waiting = []
        for place, run in enumerate(waiting):
            with self._lock:
                if run.refresh(time.time()):
                    self.revision += 1
                    run.revision = self.revision
            if time.monotonic() - began > BUDGET:
                self._waiting = waiting[place + 1 :]
                break
        with self._lock:
            self._label()
        self.complete = self.complete or not self._waiting

    def _newest_first(self) -> list[FollowedRun]:
        """All runs that exist, those whose log changed last in front: reading thousands of rounds takes a while."""
        there = [run for run in self.runs.values() if not run.planned_only]
        return sorted(there, key=lambda run: run.directory.log_changed(), reverse=True)

    def _arrange(self, found: Found) -> None:
        """Take in what a search found: new runs and groups, and those that are gone."""
        plans: dict[Path, Plan] = {}
        for folder in found.plans:
            if (plan := planned.read(folder)) is not None:
                plans[folder] = plan
        there = dict.fromkeys(found.runs[:MOST_RUNS])
        expected = {place: run for folder, plan in plans.items() for place, run in planned_runs(folder, plan).items()}
        wanted = {folder: folder in there for folder in [*there, *list(expected)[:MOST_RUNS]]}
        before = set(self.runs)
        runs = {run.folder: run for run in self.runs.values()}
        self.runs, groups = {}, dict[Path, Group]()
        for folder, exists in wanted.items():
            run = runs.get(folder)
            if run is None or run.planned_only == exists:
                run = FollowedRun(folder, planned_only=not exists)
                self.revision += 1
                run.revision = self.members = self.revision
            self._place(run, plans, groups)
            if (plan_of := expected.get(folder)) is not None:
                run.label, run.column = plan_of.label, plan_of.column
                run.planned_rounds, run.planned_seed = plan_of.rounds, plan_of.seed
            self.runs[run.id] = run
        if before != set(self.runs):
            self.revision += 1
            self.members = self.revision
        self._keep_groups(groups)
        self._arrange_panels(found.hubs)

    def _place(self, run: FollowedRun, plans: Mapping[Path, Plan], groups: dict[Path, Group]) -> None:
        place, kind = place_of(run.folder, plans, self.finder.roots)
        if place not in groups:
            plan = plans.get(place)
            groups[place] = Group(place, kind, plan.title if plan else "", plan, planned.is_working(place))
        run.group = groups[place].id

    def _keep_groups(self, groups: Mapping[Path, Group]) -> None:
        before, self.groups = self.groups, {group.id: group for group in groups.values()}
        for group in self.groups.values():
            old = before.get(group.id)
            if old is None or old.summary() != group.summary():
                self.revision += 1
                group.revision = self.members = self.revision
            else:
                group.revision = old.revision

    def _label(self) -> None:
        for group in self.groups.values():
            if group.kind == "search":
                runs = [run for run in self.runs.values() if run.group == group.id]
                before = [run.label for run in runs]
                label_searches(runs)
                for run, label in zip(runs, before, strict=True):
                    if run.label != label:
                        self.revision += 1
                        run.revision = self.revision

    # --- hubs and sites -----------------------------------------------------------------------------------------------

    def _arrange_panels(self, hubs: Sequence[Path]) -> None:
        if self._of_hub is not None:
            names = {f"hub {folder}": folder for folder in hubs}
            self._found_panels = {
                name: self._found_panels.get(name) or self._of_hub(folder)
                for name, folder in names.items()
                if name not in self._panels
            }

    def look_at_panels(self) -> None:
        """Ask every hub and site for what is known there; one that fails says so and does not disturb the others."""
        if time.monotonic() < self._panels_at:
            return
        now: dict[str, dict[str, Any]] = {}
        for name, panel in {**self._panels, **self._found_panels}.items():
            try:
                now[name] = panel()
            except Exception as error:  # whatever a damaged folder causes: the page shows it and continues
                now[name] = {"kind": "problem", "title": name, "problem": str(error)[:500]}
        with self._lock:
            for name in [*now, *self._shown]:
                if name not in now:
                    del self._shown[name]
                    self.revision += 1
                    self.members = self.revision
                elif name not in self._shown or self._shown[name][1] != now[name]:
                    self.revision += 1
                    self._shown[name] = self.revision, now[name]
        self._panels_at = time.monotonic() + SEARCH

    # --- answers ------------------------------------------------------------------------------------------------------

    def updates(self, boot: str, since: int, series: Mapping[str, tuple[int, int]]) -> dict[str, Any]:
        """What has changed since a revision of this process, and the new rows of some runs.

        `series` gives, for each run whose numbers are wanted, the epoch and the number of rows that are known.
        """
        with self._lock:
            since = since if boot == self.boot else -1
            answer: dict[str, Any] = {
                "boot": self.boot,
                "revision": self.revision,
                "now": round(time.time(), 1),
                "complete": self.complete,
                "runs": [run.summary() for run in self.runs.values() if run.revision > since],
                "panels": {name: panel for name, (revision, panel) in self._shown.items() if revision > since},
                "series": self._rows(series),
            }
            if self.members > since:
                answer["ids"] = list(self.runs)
                answer["groups"] = [group.summary() for group in self.groups.values()]
                answer["panel_names"] = list(self._shown)
            return answer

    def _rows(self, wanted: Mapping[str, tuple[int, int]]) -> dict[str, Any]:
        rows: dict[str, Any] = {}
        for id, (epoch, known) in list(wanted.items())[:MOST_SERIES]:
            run = self.runs.get(id)
            if run is not None:
                start = known if epoch == run.epoch and known <= len(run.series) else 0
                if start < len(run.series) or start != known:
                    rows[id] = {"epoch": run.epoch} | run.series.rows(start)
        return rows

    def run(self, id: str) -> FollowedRun | None:
        """A run by its name in addresses."""
        with self._lock:
            return self.runs.get(id)

    def folder(self, id: str) -> Path | None:
        """The folder of a run or a group."""
        with self._lock:
            found = self.runs.get(id) or self.groups.get(id)
            return found.folder if found else None
