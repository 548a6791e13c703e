"""Everything else about one run, read when someone opens it: config, who holds what, log, files, card."""

import os
from pathlib import Path
from typing import Any

from tacit.dashboard.followed import FollowedRun
from tacit.errors import TacitError
from tacit.formatting import printable
from tacit.runs.directory import shown
from tacit.runs.directory.folders import read_command

CLIENTS, CLASSES = 100, 100  # that the table of who holds what shows
LONGEST = 200_000  # characters of a text
TAIL = 1 << 16  # bytes at the end of a log


def of_run(run: FollowedRun) -> dict[str, Any]:
    """What the page shows about one run, as JSON has it."""
    return {
        "id": run.id,
        "folder": printable(run.folder),
        "config": _text(run.directory.config_file),
        "card": _text(run.directory.card_file),
        "holdings": _holdings(run),
        "skips": [
            {"round": round, "client": run.name_of(client), "reason": reason}
            for round, client, reason in reversed(run.skips)
        ],
        "left_out": _left_out(run),
        "log": _log(run),
        "errors": _tail(run.directory.errors_file),
        "files": shown.listing(run.folder),
        "resume": printable(run.directory.resume_command),
        "choice": _choice(run),
        "scores": _scores(run),
    }


def _text(path: Path) -> str:
    try:
        with shown.opened(path.parent, path.name) as file:
            return printable(file.read(LONGEST).decode(errors="replace"), lines=True)
    except OSError:
        return ""


def _tail(path: Path) -> list[str]:
    """The last lines of a log."""
    try:
        with shown.opened(path.parent, path.name) as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - TAIL))
            text = file.read(TAIL).decode(errors="replace")
    except OSError:
        return []
    lines = text.split("\n")[1 if size > TAIL else 0 :]
    return [printable(line, 1000) for line in lines if line][-200:]


def _log(run: FollowedRun) -> list[str]:
    """What a hub printed, or a line per round."""
    return _tail(run.directory.progress_file) or list(run.lines)


def _holdings(run: FollowedRun) -> dict[str, Any] | None:
    """Labeled and unlabeled samples by client and class; the last column of the file is of unknown class."""
    try:
        counts = run.directory.split()["counts"]
        labeled, unlabeled = counts["labeled"], counts["unlabeled"]
        unknown = counts.get("unknown", ())  # to the model
        names = [f"({name})" if name in unknown else name for name in counts["classes"]]
        classes = [printable(name, 60) for name in names]
        clients = [
            {
                "name": run.name_of(client),
                "labeled": sum(map(int, with_label)),
                "unlabeled": sum(map(int, without)),
                "classes": [int(a) + int(b) for a, b in zip(with_label, without, strict=True)][:CLASSES],
            }
            for client, (with_label, without) in enumerate(zip(labeled, unlabeled, strict=True))
        ]
        server = [int(count) for count in counts["server"]]
    except (TacitError, OSError, KeyError, TypeError, ValueError):
        return None
    return {"classes": classes[:CLASSES], "clients": clients[:CLIENTS], "count": len(clients), "server": sum(server)}


def _left_out(run: FollowedRun) -> list[str]:
    try:
        return [
            f"{run.name_of(client)} from round {start + 1} on" for client, start in run.directory.left_out().items()
        ]
    except (TacitError, OSError):
        return []


def _choice(run: FollowedRun) -> str:
    from tacit.runs.followers.progress import choice_line

    try:
        return printable(choice_line(run.last)) if run.last is not None else ""
    except (KeyError, TypeError, ValueError):
        return ""


def _scores(run: FollowedRun) -> list[dict[str, Any]]:
    """Scores at sites that share them."""
    found = run.directory.site_scores()
    return [{"site": printable(site, 128), "scores": scores} for site, scores in found.items()]


def of_group(folder: Path) -> dict[str, Any]:
    """What the page shows about a comparison, a benchmark or a search."""
    return {"folder": printable(folder), "command": printable(read_command(folder)), "files": shown.listing(folder)}
