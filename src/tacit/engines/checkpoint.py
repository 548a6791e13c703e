"""Checkpoints: the state of a run on disk, complete at every moment; the last few are kept.

latest.json       what the last checkpoint consists of: rounds played, files, and the SHA-256 of each
round.<r>.json    the same of an earlier one, after r rounds
state.<r>         the method's state after r rounds
entries/          what a state holds for single clients, one file each, written once: <field>.<client>.<round>
memories/         what each client remembers
"""

import json
import os
import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

from tacit.engines.job import RunState
from tacit.engines.memory import BrokenMemoryError, Index, Memories, read_verified
from tacit.engines.wire import Codec, WireError, tensors
from tacit.errors import TacitError
from tacit.per_client import Cell, PerClient
from tacit.protect.sample_budget import Spent
from tacit.storage import on_disk, sync_folder, write_durably

LATEST = "latest.json"
_OURS = re.compile(r"(state\.\d+|round\.\d+\.json|latest\.json)(\.partial)?")
_ENTRY = re.compile(r"[A-Za-z_]\w*\.\d+\.\d+(\.partial)?")


@dataclass(frozen=True)
class StoredEntries:
    """In a stored state, in place of a `PerClient`: the file and the SHA-256 of each client's value."""

    files: dict[int, tuple[str, str]]


@dataclass(frozen=True)
class _Place:
    """Where a value of a `PerClient` is stored."""

    folder: Path
    file: str
    digest: str


def save(folder: Path, run_state: RunState, codec: Codec, log_bytes: int, keep: int = 1) -> None:
    """Write memories and state under new names, then switch `latest.json` to them in one step.

    `log_bytes` is the length of the round log at this point; a resume cuts off what a killed run wrote after it. The
    last `keep` checkpoints stay.
    """
    with on_disk(folder):
        folder.mkdir(parents=True, exist_ok=True)
        stored, entries = _with_stored_entries(folder, run_state, codec)
        name, state = f"state.{run_state.round}", _complete(codec).encode(stored)
        memories = run_state.memories.save()
        latest = {
            "round": run_state.round,
            "state": name,
            "sha256": sha256(state).hexdigest(),
            "log_bytes": log_bytes,
            "local_accuracy": run_state.local_accuracy,
            "spent": {client: [asdict(each) for each in spent] for client, spent in run_state.spent.items()},
            "memories": memories,
            "entries": sorted(entries),
        }
        write_durably(folder / name, state)
        _set_aside(folder)
        write_durably(folder / LATEST, json.dumps(latest | {"digest": _digest(latest)}).encode())
        sync_folder(folder)
        _prune(folder, run_state, keep)


def load(folder: Path, codec: Codec, memories: Memories, device: torch.device) -> tuple[RunState, int]:
    """The run state at the last checkpoint and the length of the round log then; the start if there is none."""
    if not (folder / LATEST).exists():
        _tidy(folder, {})
        memories.restore({})
        return RunState(memories), 0
    try:
        latest = _read(folder / LATEST)
        state = _complete(codec).decode(read_verified(folder / latest["state"], latest["sha256"]), device)
        state = _with_read_entries(folder, state, codec, device)
        local = {int(client): float(value) for client, value in latest["local_accuracy"].items()}
        spent = {int(client): [Spent(**each) for each in known] for client, known in latest.get("spent", {}).items()}
        run_state = RunState(memories, int(latest["round"]), state, local, spent=spent)
        length = int(latest["log_bytes"])
        kept = {round: found for round, found in _earlier(folder).items() if round < run_state.round}
        memories.restore(_index(latest), [_index(each) for each in kept.values()])
    except BrokenMemoryError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, WireError) as error:
        raise TacitError(
            f"cannot read the checkpoint in {folder} ({error})",
            "resume from an earlier round with `--from`, or start the run again in another folder",
            code="run.broken-checkpoint",
        ) from error
    _tidy(folder, kept | {run_state.round: latest})
    return run_state, length


def rounds(folder: Path) -> list[int]:
    """After how many rounds there is a checkpoint, ascending; 0, the start, is always one."""
    found = set(_earlier(folder))
    with suppress(OSError, ValueError, KeyError, TypeError):  # it may be broken, so somebody looks for another
        found.add(int(_read(folder / LATEST)["round"]))
    return sorted({0, *found})


def rewind(folder: Path, round: int) -> None:
    """Make the checkpoint after this many rounds the last one; `load` deletes what is newer."""
    with on_disk(folder):
        if round == 0:
            (folder / LATEST).unlink(missing_ok=True)
        elif (folder / _aside(round)).exists():
            (folder / _aside(round)).replace(folder / LATEST)
        if folder.is_dir():
            sync_folder(folder)


# --- manifests --------------------------------------------------------------------------------------------------------


def _aside(round: int) -> str:
    return f"round.{round}.json"


def _read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_bytes())
    if found.get("digest") != _digest(found):
        raise ValueError(f"{path.name} was changed")
    if not isinstance(found["round"], int) or not isinstance(found["log_bytes"], int) or found["log_bytes"] < 0:
        raise ValueError(f"{path.name} has no number of rounds")
    if not re.fullmatch(r"state\.\d+", found["state"]) or not isinstance(found["entries"], list):
        raise ValueError(f"{path.name} names no state")
    _index(found)
    return found


def _digest(manifest: Mapping[str, Any]) -> str:
    """A SHA-256 of everything else in a manifest, as JSON has it."""
    rest = json.loads(json.dumps({name: value for name, value in manifest.items() if name != "digest"}))
    return sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def _index(manifest: Mapping[str, Any]) -> Index:
    return {int(client): (int(round), str(digest)) for client, (round, digest) in manifest["memories"].items()}


def _earlier(folder: Path) -> dict[int, dict[str, Any]]:
    """What checkpoints that were set aside consist of, by their round; one that is broken is no checkpoint."""
    found = {}
    for path in folder.glob("round.*.json"):
        try:
            manifest = _read(path)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue
        if path.name == _aside(manifest["round"]):
            found[manifest["round"]] = manifest
    return found


def _set_aside(folder: Path) -> None:
    """Give the last checkpoint a second name, before a newer one takes its first."""
    path = folder / LATEST
    if not path.exists():
        return
    data = path.read_bytes()
    aside = folder / _aside(int(json.loads(data)["round"]))
    aside.unlink(missing_ok=True)
    try:
        os.link(path, aside)
    except OSError:  # a file system without links
        write_durably(aside, data)


def _prune(folder: Path, run_state: RunState, keep: int) -> None:
    """Delete all but the last `keep` checkpoints."""
    earlier = {round: found for round, found in _earlier(folder).items() if round < run_state.round}
    newest = sorted(earlier)[len(earlier) - keep + 1 :] if keep > 1 else []
    kept = {round: earlier[round] for round in newest} | {run_state.round: _read(folder / LATEST)}
    run_state.memories.prune([_index(each) for each in kept.values()])
    _tidy(folder, kept)


def _tidy(folder: Path, kept: Mapping[int, Mapping[str, Any]]) -> None:
    """Delete files of checkpoints other than these, and partial ones; a file that is not ours stays."""
    manifests = {_aside(round) for round in kept} | ({LATEST} if kept else set())
    last = max(kept, default=0)
    states = {str(each["state"]) for each in kept.values()}
    entries = {str(name) for each in kept.values() for name in each["entries"]}
    _delete(folder, _OURS, (manifests | states) - {_aside(last)})
    _delete(folder / "entries", _ENTRY, entries)


def _delete(folder: Path, ours: re.Pattern[str], keep: Collection[str]) -> None:
    for path in folder.glob("*.*"):
        if ours.fullmatch(path.name) and path.name not in keep and path.is_file():
            path.unlink()


# --- values of single clients -----------------------------------------------------------------------------------------


def _complete(codec: Codec) -> Codec:
    return Codec({**codec.types, StoredEntries.__name__: StoredEntries})


def _per_client(state: Any, kind: type) -> dict[str, Any]:
    """The fields of a state that hold something of this kind."""
    if not is_dataclass(state) or isinstance(state, type):
        return {}
    values = {item.name: getattr(state, item.name) for item in fields(state)}
    return {name: value for name, value in values.items() if isinstance(value, kind)}


def _with_stored_entries(folder: Path, run_state: RunState, codec: Codec) -> tuple[Any, list[str]]:
    """The state as it is stored, after every new value of a single client was written; and all their files."""
    changed: dict[str, StoredEntries] = {}
    for name, values in _per_client(run_state.state, PerClient).items():
        places = {k: _stored(folder, f"{name}.{k}.{run_state.round}", cell, codec) for k, cell in values.cells.items()}
        changed[name] = StoredEntries({client: (place.file, place.digest) for client, place in places.items()})
    if changed and (folder / "entries").is_dir():
        sync_folder(folder / "entries")
    entries = [file for each in changed.values() for file, _ in each.files.values()]
    return (replace(run_state.state, **changed) if changed else run_state.state), entries


def _stored(folder: Path, file: str, cell: Cell[Any], codec: Codec) -> _Place:
    if isinstance(cell.place, _Place) and cell.place.folder == folder:
        return cell.place
    value = cell.get()
    data, device = codec.encode(value), next((each.device for each in tensors(value)), None)
    place = _Place(folder, file, sha256(data).hexdigest())
    (folder / "entries").mkdir(exist_ok=True)
    write_durably(folder / "entries" / file, data)
    cell.stored(place, partial(_entry, place, codec, device))
    return place


def _with_read_entries(folder: Path, state: Any, codec: Codec, device: torch.device) -> Any:
    """The state with its values of single clients, which are read when they are needed, but verified now."""
    changed = {}
    for name, stored in _per_client(state, StoredEntries).items():
        cells: dict[int, Cell[Any]] = {}
        for client, (file, digest) in stored.files.items():
            if not _ENTRY.fullmatch(file):
                raise ValueError(f"{file} is not a file of a checkpoint")
            place, cell = _Place(folder, file, digest), Cell[Any](None)
            read_verified(folder / "entries" / file, digest)
            cell.stored(place, partial(_entry, place, codec, device))
            cells[client] = cell
        changed[name] = PerClient.of(cells)
    return replace(state, **changed) if changed else state


def _entry(place: _Place, codec: Codec, device: torch.device | None) -> Any:
    return codec.decode(read_verified(place.folder / "entries" / place.file, place.digest), device)
