"""What `tacit hub watch` shows about a hub: its sites, their contact and refusals, certificate and storage."""

import datetime
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tacit.deploy import certificates, flower_database
from tacit.deploy.hub_directory import INTRODUCTIONS, HubDirectory
from tacit.deploy.renewal import SOON
from tacit.errors import TacitError
from tacit.formatting import printable
from tacit.runs.directory import RunDirectory

NAMED = 5  # runs whose protection is listed one by one, the latest first


def hub_panel(folder: Path) -> Callable[[], dict[str, Any]]:
    """The facts about the hub in a folder, each time it is called."""

    def panel() -> dict[str, Any]:
        return hub_facts(HubDirectory.open(folder))

    return panel


def hub_facts(hub: HubDirectory) -> dict[str, Any]:
    """Everything the page shows about a hub, as JSON has it."""
    running = hub.is_running()
    runs = [RunDirectory(path.parent) for path in sorted(hub.runs_folder.glob("*/config.toml"))]
    known = {run: _counted(run) for run in runs}
    ends = None if hub.settings.insecure else certificates.valid_until(hub.certificate_file.read_bytes())
    privacy, note = _privacy(known)
    return {
        "kind": "hub",
        "title": printable(f"Hub {hub.path.name}"),
        "running": running,
        "address": f"{hub.settings.host}:{hub.settings.port}",
        "sites": _sites(hub, known, running),
        "next": f"No site has been added yet: {hub.command('add NAME KEY.pub')}",
        "certificate": f"until {ends:%Y-%m-%d}" if ends else "none: not encrypted",
        "certificate_note": _certificate_note(hub, ends),
        "storage": _storage(hub.path),
        "privacy": privacy,
        "privacy_note": note,
        "problem": "" if running else f"The hub does not run; start it with {hub.command('start')}",
    }


def _certificate_note(hub: HubDirectory, ends: datetime.datetime | None) -> str:
    if ends is None or ends > datetime.datetime.now(datetime.UTC) + SOON:
        return ""
    return f"The hub's certificate ends on {ends:%Y-%m-%d}; renew it with {hub.command('renew')}"


def _sites(hub: HubDirectory, known: dict[RunDirectory, "_Counted"], running: bool) -> list[dict[str, Any]]:
    """A row for each site that may take part, is connected, or took part."""
    names = hub.node_names()
    nodes = {
        names.get(node.id, f"node {node.id}"): node for node in flower_database.nodes(hub.database) if not node.removed
    }
    said = _introductions(list(known))
    rows = []
    for name in sorted({*(hub.expected_sites or ()), *nodes, *said}):
        node, about = nodes.get(name), said.get(name, {})
        rows.append(
            {
                "name": printable(name, 128),
                "connected": bool(running and node is not None and node.connected),
                "contact": None if node is None else node.contact,
                "version": printable(str(about.get("version") or "unknown"), 32),
                "declares": _declares(about),
                "refusal": printable(about.get("refusal", ""), 500),
                "joined": sum(each.joined.get(name, 0) for each in known.values()),
                "left_out": sum(each.left_out.get(name, 0) for each in known.values()),
            }
        )
    return rows


def _declares(about: dict[str, Any]) -> str:
    """What a site says it holds: `1,200 samples, 40 with a label`."""
    samples, labeled = about.get("samples"), about.get("labeled")
    if about.get("refusal") or not isinstance(samples, int) or not isinstance(labeled, int):
        return ""
    return f"{samples:,} samples, {labeled:,} with a label"


def _introductions(runs: list[RunDirectory]) -> dict[str, dict[str, Any]]:
    """What each site said about itself in the latest run that asked it."""
    found: dict[str, dict[str, Any]] = {}
    for run in sorted(runs, key=lambda each: _changed(each.path / INTRODUCTIONS)):
        note = run.read_note(INTRODUCTIONS) or {}
        found |= {str(name): about for name, about in note.items() if isinstance(about, dict)}
    return found


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


@dataclass
class _Counted:
    """What the config and the records of a run say, and when the two files had changed."""

    changed: tuple[float, float]
    joined: dict[str, int] = field(default_factory=dict)  # in how many rounds each site answered
    left_out: dict[str, int] = field(default_factory=dict)  # and out of how many it was left
    protect: dict[str, Any] = field(default_factory=dict)  # its section [protect]
    sample_privacy: dict[str, float | None] | None = None  # of the latest round that has it


_COUNTED: dict[Path, _Counted] = {}  # records are many, and are read again only when there are more


def _counted(run: RunDirectory) -> _Counted:
    changed = _changed(run.config_file), _changed(run.rounds_file)
    known = _COUNTED.get(run.path)
    if known is None or known.changed != changed:
        known = _COUNTED[run.path] = _count(run, _Counted(changed))
    return known


def _count(run: RunDirectory, found: _Counted) -> _Counted:
    try:
        protect = run.config().get("protect", {})
        found.protect = protect if isinstance(protect, dict) else {}
        names = (run.sites() or {"names": []})["names"]
        for record in run.rounds():
            found.sample_privacy = record.sample_privacy or found.sample_privacy
            for client, (_, up) in record.traffic.items():
                if client < len(names) and up and client not in record.skipped:
                    found.joined[names[client]] = found.joined.get(names[client], 0) + 1
            for client in record.skipped:
                if client < len(names):
                    found.left_out[names[client]] = found.left_out.get(names[client], 0) + 1
    except TacitError:  # a damaged run: the table of runs says so
        pass
    return found


def _privacy(known: dict[RunDirectory, _Counted]) -> tuple[str, str]:
    """How many runs protect the samples of the sites, and how each of the latest does."""
    if not known:
        return "no run yet", "A run protects samples if its config says so: protect.sample_noise."
    noisy = [run for run, each in known.items() if isinstance(each.protect.get("sample_noise"), int | float)]
    short = f"DP-SGD in {len(noisy)} of {len(known)} runs" if noisy else "no differential privacy"
    latest = sorted(known, key=lambda run: known[run].changed, reverse=True)
    lines = [f"{run.path.name}: {', '.join(_protection(known[run]))}." for run in latest[:NAMED]]
    more = [f"And {len(latest) - NAMED} more runs."] if len(latest) > NAMED else []
    seen = ["The hub sees what every site sends after each round."]
    return short, " ".join(printable(line, 300) for line in [*lines, *more, *seen])


def _protection(run: _Counted) -> Sequence[str]:
    """What a run does to protect samples, and itself against sites, in words."""
    noise, combine = run.protect.get("sample_noise"), run.protect.get("combine", "mean")
    said = []
    if not isinstance(noise, int | float):
        said.append("no differential privacy")
    else:
        found = run.sample_privacy or {}
        epsilon, delta = found.get("epsilon"), found.get("delta")
        spent = (
            "no round yet"
            if run.sample_privacy is None
            else "no ε holds"
            if epsilon is None or delta is None
            else f"ε ≤ {epsilon:.3g} and δ = {delta:.0e} for each sample so far"
        )
        said.append(f"DP-SGD with noise {noise:g} ({spent})")
    return said if combine == "mean" else [*said, f"updates combined by {combine}"]


def _storage(folder: Path) -> int:
    """Bytes of all files in the hub's folder."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                total += (Path(place) / name).lstat().st_size
            except OSError:
                continue
    return total


def run_folders(hub: HubDirectory) -> list[Path]:
    """The folders in which the runs of a hub are looked for."""
    return [hub.runs_folder] if hub.runs_folder.is_dir() else [hub.path]
