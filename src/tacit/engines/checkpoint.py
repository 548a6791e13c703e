"""Checkpoints: how far a run got, on disk, whole at every moment."""

import json
from hashlib import sha256
from pathlib import Path

import torch

from tacit.engines.loop import Position
from tacit.engines.memory import Memories, on_disk, sync_folder, write_durably
from tacit.engines.wire import Codec, WireError
from tacit.errors import TacitError


def save(folder: Path, position: Position, codec: Codec, log_bytes: int) -> None:
    """Write memories and state under new names, then switch `latest.json` to them in one step.

    `log_bytes` is the length of the round log at this point; what a killed run wrote after it is cut off at resume.
    """
    name, state = f"state.{position.round}", codec.encode(position.state)
    latest = {
        "round": position.round,
        "state": name,
        "sha256": sha256(state).hexdigest(),
        "log_bytes": log_bytes,
        "local_accuracy": position.local_accuracy,
    }
    with on_disk(folder):
        folder.mkdir(parents=True, exist_ok=True)
        position.memories.save()
        write_durably(folder / name, state)
        write_durably(folder / "latest.json", json.dumps(latest).encode())
        sync_folder(folder)
        position.memories.forget_older()
        for path in folder.glob("state.*"):
            if path.name != name:
                path.unlink()


def load(folder: Path, codec: Codec, memories: Memories, device: torch.device) -> tuple[Position, int]:
    """The position at the last checkpoint and the length of the round log there; the start where there is none."""
    path = folder / "latest.json"
    if not path.exists():
        _tidy(folder, keep=())
        memories.restore(-1)
        return Position(memories), 0
    try:
        latest = json.loads(path.read_bytes())
        data = (folder / latest["state"]).read_bytes()
        if sha256(data).hexdigest() != latest["sha256"]:
            raise ValueError(f"{latest['state']} was changed")
        state = codec.decode(data, device)
        local = {int(client): float(value) for client, value in latest["local_accuracy"].items()}
        position = Position(memories, int(latest["round"]), state, local)
        length = int(latest["log_bytes"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, WireError) as error:
        raise _unreadable(folder, error) from error
    _tidy(folder, keep=(path.name, latest["state"]))
    memories.restore(position.round - 1)
    return position, length


def finished_rounds(folder: Path) -> int:
    """How many rounds the checkpoint in this folder holds."""
    path = folder / "latest.json"
    try:
        return int(json.loads(path.read_bytes())["round"]) if path.exists() else 0
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _unreadable(folder, error) from error


def _tidy(folder: Path, keep: tuple[str, ...]) -> None:
    """Delete what a killed run left half done: states before or after the checkpoint, and partial files."""
    for path in folder.glob("*.*"):
        if path.is_file() and path.name not in keep:
            path.unlink()


def _unreadable(folder: Path, error: Exception) -> TacitError:
    return TacitError(f"the checkpoint in {folder} can not be read ({error}): start the run again elsewhere")
