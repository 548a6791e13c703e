"""What `tacit site watch` shows on a site's own machine: what left it, what never does, and how to leave."""

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tacit.deploy import flower_cli, journal, local_scores
from tacit.deploy.consent import checked_consent
from tacit.deploy.flower_cli import SuperNodeEvent
from tacit.deploy.journal import Entry, Journal
from tacit.deploy.settings import Site, load_settings, resolve_path
from tacit.errors import TacitError
from tacit.formatting import printable, size_of
from tacit.runs.followers.progress import score_texts

SHOWN = 200  # entries of the journal, the latest first
TAIL = 1 << 16  # bytes at the end of the log of `tacit site join`
DOING = {
    SuperNodeEvent.JOINED: "Joined the hub and waits for work.",
    SuperNodeEvent.RECONNECTED: "Connected to the hub again and waits for work.",
    SuperNodeEvent.TRAINING: "Trains for a round of a run.",
    SuperNodeEvent.IDENTIFYING: "Tells the hub who it is.",
}
FIELDS = {
    "w": "model weights",
    "n": "the number of samples behind them",
    "name": "its name",
    "samples": "its number of samples",
    "labeled": "its number of labels",
    "shares_scores": "whether it shares scores",
    "version": "its version of Tacit",
}


def site_panel(path: Path) -> Callable[[], dict[str, Any]]:
    """The facts about the site with the settings file `path`, each time it is called."""
    found: tuple[object, Journal] = None, Journal(())

    def panel() -> dict[str, Any]:
        nonlocal found
        stamp = _stamp(path.parent / journal.FILE)
        if stamp != found[0]:  # a journal may be long, and is read again only when it has grown
            found = stamp, journal.read(path.parent)
        return site_facts(path, found[1])

    return panel


def site_facts(path: Path, found: Journal) -> dict[str, Any]:
    """Everything the page shows about a site, as JSON has it."""
    site = load_settings(Site, path)
    joined = _responds(site.port)
    entries = found.entries
    rounds = [entry.round for entry in entries if entry.round is not None]
    return {
        "kind": "site",
        "title": printable(f"Site {site.name}"),
        "state": "joined" if joined else "not joined",
        "doing": _doing(path, site, joined),
        "bytes": sum(entry.bytes for entry in entries),
        "replies": len(entries),
        "runs": len({entry.run for entry in entries}),
        "round": rounds[-1] if rounds else None,
        "entries": [{"at": entry.at, "text": in_words(entry)} for entry in entries[: -SHOWN - 1 : -1]],
        "warning": _warning(found),
        "never": _never(site),
        "scores": _scores(path, site, entries),
        "leave": _leave(path, site),
    }


def in_words(entry: Entry) -> str:
    """One entry of the journal as a sentence."""
    run = f"run {entry.run[:8] or '?'}" + (f" ({entry.method})" if entry.method else "")
    if entry.kind == journal.REFUSAL:
        text = f"Refused to take part in {run}: {entry.reason}"
    elif entry.kind == journal.FAILURE:
        text = f"Reported a failure in {run} to the hub: {entry.reason}"
    elif entry.kind == journal.INTRODUCTION:
        text = f"Sent {_listed(entry.fields)} to the hub for {run}"
    elif entry.kind == journal.EXCHANGE:
        text = f"Sent {_listed(entry.fields)} for the secure sum of round {entry.round} of {run}"
    elif entry.scores:
        text = f"Sent {len(entry.scores)} scores of the final model of {run}"
    else:
        text = f"Sent {_listed(entry.fields) or 'nothing'} after round {entry.round} of {run}"
    return printable(f"{text}; {size_of(entry.bytes)}" + (f" to {entry.hub}" if entry.hub else ""), 600)


def _listed(fields: tuple[str, ...]) -> str:
    words = [FIELDS.get(name, name.replace("_", " ")) for name in fields]
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _doing(path: Path, site: Site, joined: bool) -> str:
    """The latest event of `tacit site join`, and what the site has agreed to."""
    if not joined:
        state = f"Not joined: nothing leaves this machine. Join with `tacit site join HOST:PORT --site {path.parent}`."
    else:
        events = [event for line in _tail(path) if (event := flower_cli.supernode_event(line))]
        state = DOING[events[-1]] if events else "Is about to join."
    try:
        agreed = checked_consent(path, site).config
        return printable(f"{state} Agreed to runs of {agreed.method_name} with up to {agreed.rounds} rounds.")
    except (TacitError, OSError) as error:
        return printable(f"{state} No run is agreed to: {error}", 600)


def _responds(port: int) -> bool:
    """Whether Flower's node of this site runs: it listens on its local port."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=0.5):
            return True
    except OSError:
        return False


def _tail(path: Path) -> list[str]:
    try:
        with (path.parent / "flower" / "join.log").open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL))
            return file.read(TAIL).decode(errors="replace").splitlines()
    except OSError:
        return []


def _warning(found: Journal) -> str:
    if found.broken:
        return f"Before {found.broken} lines, the journal was changed after it was written."
    return f"{found.damaged} lines of the journal cannot be read." if found.damaged else ""


def _never(site: Site) -> list[str]:
    lines = ["samples" if site.min_group > 1 else "samples, unless the method sends them (min_group = 1)"]
    lines += [f"means of fewer than {site.min_group} samples"] if site.min_group > 1 else []
    lines += ["individual labels", "what methods remember between rounds", "texts and tracebacks of errors"]
    lines += [] if site.share_scores else ["scores on your own test samples (share_scores is off)"]
    return [*lines, "the private key"] if site.key else lines


def _scores(path: Path, site: Site, entries: tuple[Entry, ...]) -> list[str]:
    """The latest scores of each run: measured for this page, and sent to the hub; or why there are none."""
    measured = local_scores.read(resolve_path(path, site.memory))
    lines = [
        f"run {run[:8]}: {_listed_scores({'accuracy': own.accuracy})} after training here in round {own.round}, "
        f"on your {own.samples:,} test samples. Only this machine knows it."
        for run, own in measured.items()
    ]
    sent = {entry.run: entry.scores for entry in entries if entry.scores}
    lines += [
        f"run {run[:8]}: {_listed_scores(found)} for the final model, sent to the hub" for run, found in sent.items()
    ]
    if lines:
        return [printable(line) for line in lines]
    return [
        "Not measured yet. After every round, this machine evaluates the model that it has trained on your test "
        "samples, if `data` in site.toml has some (folder test/<class>, or x_test). Nothing leaves.",
        "For the final model, with its file from the hub: tacit evaluate MODEL.safetensors --data YOUR_SAMPLES.",
    ]


def _listed_scores(found: dict[str, float]) -> str:
    return ", ".join(score_texts(found))


def _leave(path: Path, site: Site) -> list[str]:
    return [
        "Press Ctrl-C where tacit site join runs. The hub continues without this site.",
        printable(f"Ask the hub for `tacit hub remove {site.name}`, so that the key is no longer accepted."),
        printable(f"To remove what you contributed: `tacit hub resume RUN --from 0 --without {site.name}` at the hub."),
        printable(f"Then delete {path.parent / site.memory}, which holds what methods remember of this site."),
    ]


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size
