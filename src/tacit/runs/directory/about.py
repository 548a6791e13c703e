"""run.json of a run's folder: its schema, the fingerprints of its settings, and the clients that are left out."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from tacit.errors import TacitError
from tacit.storage import text_of, write_durably

SCHEMA = 2  # of the folder; 1 was 0.1, which wrote no run.json
# Left out of the fingerprints of 0.1. Since schema 2 the fields of Config have roles, and run.json has the hashes.
FREE_IN_0_1 = {"outcome": ("engine", "track"), "settings": ("seed", "engine", "track")}


@dataclass(frozen=True)
class Fingerprints:
    """Two hashes of a run's settings; runs with equal ones can be compared or joined."""

    outcome: str  # of all that determines the model, the seed included
    settings: str  # the same without the seed: runs of one row of a table


def fingerprint(settings: Mapping[str, Any], free: tuple[str, ...] = ()) -> str:
    """A SHA-256 of nested settings as TOML has them, without the top-level names in `free`."""
    bound = {name: value for name, value in settings.items() if name not in free}
    return sha256(json.dumps(bound, sort_keys=True, default=str).encode()).hexdigest()


@dataclass(frozen=True)
class About:
    """What run.json holds."""

    path: Path
    values: Mapping[str, Any]

    @classmethod
    def read(cls, path: Path) -> "About":
        """The file, or nothing for a run of 0.1; refuses a damaged one and one of a newer version."""
        try:
            values = json.loads(text_of(path)) if path.exists() else {}
            if not isinstance(values, dict) or not isinstance(values.get("schema", 1), int):
                raise ValueError("no schema number")
        except (OSError, ValueError, RecursionError) as error:
            raise _broken(path, error) from error
        if values.get("schema", 1) > SCHEMA:
            raise TacitError(
                f"{path.parent} was written by a newer version of Tacit ({values.get('tacit', 'unknown')})",
                "use that version",
                code="run.newer-version",
            )
        return cls(path, values)

    @staticmethod
    def first(version: str, fingerprints: Fingerprints) -> str:
        """The text of the file of a new run."""
        return json.dumps({"schema": SCHEMA, "tacit": version} | vars(fingerprints))

    @property
    def schema(self) -> int:
        """The schema of the folder; 1 for runs of Tacit 0.1."""
        return int(self.values.get("schema", 1))

    @property
    def fingerprints(self) -> Fingerprints | None:
        """The fingerprints written when the run began; None for a run of 0.1."""
        if {"outcome", "settings"} <= self.values.keys():
            return Fingerprints(str(self.values["outcome"]), str(self.values["settings"]))
        return None

    @property
    def before(self) -> str | None:
        """The fingerprint of the outcome before the run was extended, if it was."""
        return self.values.get("before")

    def replan(self, fingerprints: Fingerprints) -> None:
        """Write other fingerprints, since the run is extended; the old one stays known."""
        self._write(vars(fingerprints) | {"before": str(self.values["outcome"])})

    def left_out(self) -> dict[int, int]:
        """The clients that are no longer asked, and from which round on."""
        try:
            return {int(each["client"]): int(each["from"]) for each in self.values.get("left_out", [])}
        except (KeyError, TypeError, ValueError) as error:
            raise _broken(self.path, error) from error

    def leave_out(self, clients: Mapping[int, str], start: int) -> None:
        """Note that clients, by number and name, are left out of all rounds from `start` on."""
        before = self.left_out()
        more = [
            {"client": client, "name": name, "from": start}
            for client, name in clients.items()
            if client not in before or start < before[client]
        ]
        again = {each["client"] for each in more}
        others = [each for each in self.values.get("left_out", []) if int(each["client"]) not in again]
        self._write({"left_out": others + more})

    def _write(self, changes: Mapping[str, Any]) -> None:
        write_durably(self.path, json.dumps({**self.values, **changes}).encode())


def _broken(path: Path, error: Exception) -> TacitError:
    return TacitError(f"cannot read {path} ({error})", "restore it, or start a new run", code="run.broken")
