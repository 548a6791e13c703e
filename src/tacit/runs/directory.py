"""A run's folder. `RunDirectory` is its only reader and writer; it needs no torch, so that reports work anywhere.

run.json           the schema of this folder, the version of Tacit, fingerprints of the settings, and which clients were
                   left out of all rounds from which one on, if any were
config.toml        the full config; running it again gives the same model
split.json         who holds which sample, the hash of that, and how many of each class
rounds.jsonl       one record per round
model.safetensors  the final model, with all that is needed to use it
card.md            what a person should know before using it
predictions.npz    the test samples' classes and the final model's outputs for them, for reports
evaluations/       what `tacit evaluate` found on other samples
local_heads.json   what `tacit evaluate --local-heads` found
report.html        the page about it, if `tacit report` has written one
checkpoint/        how far the run got
round.json         while the run makes progress: which clients of the current round work, have answered, have failed
errors.log         tracebacks of clients that failed, if any did
notices.json       signs of collapse, by code: the round that showed them, likely cause and remedy
end.json           after how many rounds the run stopped before its last one, and why, if it did
protection.json    what `[protect]` promises and what it does not, line by line, if it is used
secret.json        of a run over several machines with client-level privacy: what its noise is drawn from
cell.json          which cell of a benchmark it is, if it is one
tensorboard/       event files for TensorBoard, if switched on
mlflow.json        the id of the run in MLflow, if switched on
sites.json         of a run over several machines: the sites in the order of their numbers, and the id of the run there
introductions.json of such a run: what each site said about itself
site_scores.json   of such a run: scores of the model at the sites whose owners share them
progress.log       of such a run: what the hub prints, line by line
error.json         why it stopped, if it cannot go on (diverged), or if it runs over several machines
flower.log         of such a run: the output of Flower's program
"""

import json
import os
import shlex
import shutil
import time
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from tacit import storage
from tacit.engines.events import RoundProgress
from tacit.engines.record import RoundRecord
from tacit.errors import TacitError
from tacit.formatting import printable
from tacit.storage import DiskError, LockedError, on_disk, writable, write_durably, write_quickly

if TYPE_CHECKING:  # it needs numpy, which most commands do not
    from tacit.metrics.predictions import Predictions

_SECRET = "secret.json"
_PROTECTION = "protection.json"
_NOTICES = "notices.json"
LONGEST_LINE = 1 << 26  # bytes of a round's record; one with a million clients has fewer
LARGEST_FILE = 1 << 30  # bytes of any other file that is read as text
PRIVATE = 0o700  # of a run's folder: it holds models of every client, so only its owner enters
SCHEMA = 2  # of the folder; 1 was 0.1, which wrote no run.json
# Left out of the fingerprints of 0.1. Since schema 2 the fields of Config have roles, and run.json has the hashes.
_FREE_IN_0_1 = {"outcome": ("engine", "track"), "settings": ("seed", "engine", "track")}


@dataclass(frozen=True)
class Fingerprints:
    """Two hashes of a run's settings; runs with equal ones can be compared or joined."""

    outcome: str  # of all that determines the model, the seed included
    settings: str  # the same without the seed: runs of one row of a table


@dataclass(frozen=True)
class RunDirectory:
    """The folder of one run."""

    path: Path

    @property
    def config_file(self) -> Path:
        """The file with the full config."""
        return self.path / "config.toml"

    @property
    def rounds_file(self) -> Path:
        """The file with one record per round."""
        return self.path / "rounds.jsonl"

    @property
    def model_file(self) -> Path:
        """The file with the final model."""
        return self.path / "model.safetensors"

    @property
    def predictions_file(self) -> Path:
        """The file with the final model's outputs on the test set."""
        return self.path / "predictions.npz"

    @property
    def checkpoint(self) -> Path:
        """The folder of the last checkpoint."""
        return self.path / "checkpoint"

    @property
    def errors_file(self) -> Path:
        """The file with tracebacks of clients that failed."""
        return self.path / "errors.log"

    @property
    def _round_file(self) -> Path:
        return self.path / "round.json"

    def exists(self) -> bool:
        """Whether the folder holds a run."""
        return self.config_file.exists()

    def refuse_if_taken(self) -> None:
        """Refuse a folder that holds a run or anything else."""
        with writable(self.path):
            if self.exists():
                raise TacitError(
                    f"{self.path} already holds a run",
                    f"choose another --out, or continue it with `{self.resume_command}`",
                    code="run.exists",
                )
            if self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir())):
                raise TacitError(f"{self.path} is not an empty folder", "choose another --out", code="run.not-empty")

    def create(self, config: str, split: Mapping[str, Any], fingerprints: Fingerprints, version: str) -> None:
        """Write a new run's files; afterwards all of them are there, or none."""
        about = {"schema": SCHEMA, "tacit": version} | vars(fingerprints)
        files = {"run.json": json.dumps(about), "split.json": json.dumps(split), "config.toml": config}
        with writable(self.path):
            partial = self.path.with_name(f".{self.path.name}.partial-{os.getpid()}")
            try:
                partial.mkdir(parents=True, mode=PRIVATE)
                for name, text in files.items():
                    (partial / name).write_text(text, encoding="utf-8")
                partial.rename(self.path)
            finally:
                shutil.rmtree(partial, ignore_errors=True)

    def replan(self, config: str, fingerprints: Fingerprints) -> None:
        """Replace the config; until it is there, the run is valid with the old one."""
        about = self._about()
        before = str(about["outcome"])
        write_durably(self.path / "run.json", json.dumps(about | vars(fingerprints) | {"before": before}).encode())
        write_durably(self.config_file, config.encode())

    def is_begun_with(self, *outcomes: str) -> bool:
        """Whether the run began, or was extended, with settings that have one of these fingerprints."""
        known = {self.fingerprints().outcome, self._about().get("before")}
        return not known.isdisjoint(outcomes)

    # --- settings and data --------------------------------------------------------------------------------------------

    def config(self) -> dict[str, Any]:
        """The nested settings in config.toml as they are written there."""
        if not self.path.is_dir():
            raise TacitError(
                f"there is no folder {self.path}",
                "give the folder of a run, as printed by `tacit run`",
                code="run.no-folder",
            )
        try:
            config = tomllib.loads(_text(self.config_file))
            _ = config["method"]["name"], int(config["seed"]), int(config["rounds"])
        except FileNotFoundError:
            raise TacitError(
                f"{self.path} holds no run", "give the folder a run was started in", code="run.none"
            ) from None
        except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise TacitError(
                f"{self.config_file} is not the config of a run ({error})",
                "restore it, or start a new run",
                code="run.broken-config",
            ) from error
        return config

    def total_rounds(self) -> int:
        """How many rounds the run has in the end: as many as the config asks for, or fewer if it stopped early."""
        early = self.read_note("end.json")
        if early is not None and early.get("rounds") == self.finished_rounds():
            return int(early["rounds"])
        return int(self.config()["rounds"])

    def is_finished(self) -> bool:
        """Whether the last checkpoint is that of the last round."""
        return self.finished_rounds() >= self.total_rounds()

    def write_end(self, rounds: int, why: str) -> None:
        """Note that the run stops early, after this number of rounds; it counts once there is a checkpoint of them."""
        self.write_note("end.json", {"rounds": rounds, "why": why})

    def schema(self) -> int:
        """The schema of the folder; 1 for runs of Tacit 0.1."""
        return int(self._about().get("schema", 1))

    def fingerprints(self) -> Fingerprints:
        """The fingerprints written when the run began; for a run of 0.1, computed from its config."""
        about = self._about()
        if {"outcome", "settings"} <= about.keys():
            return Fingerprints(str(about["outcome"]), str(about["settings"]))
        config = self.config()
        found = {name: fingerprint(config, free) for name, free in _FREE_IN_0_1.items()}
        with suppress(TacitError):
            found["outcome"] = str(self.split().get("config", found["outcome"]))
        return Fingerprints(**found)

    def _about(self) -> dict[str, Any]:
        path = self.path / "run.json"
        try:
            about = json.loads(_text(path)) if path.exists() else {}
            if not isinstance(about, dict) or not isinstance(about.get("schema", 1), int):
                raise ValueError("no schema number")
        except (OSError, ValueError, RecursionError) as error:
            raise TacitError(
                f"cannot read {path} ({error})", "restore it, or start a new run", code="run.broken"
            ) from error
        if about.get("schema", 1) > SCHEMA:
            raise TacitError(
                f"{self.path} was written by a newer version of Tacit ({about.get('tacit', 'unknown')})",
                "use that version",
                code="run.newer-version",
            )
        return about

    def left_out(self) -> dict[int, int]:
        """The clients that are no longer asked, and from which round on."""
        try:
            return {int(each["client"]): int(each["from"]) for each in self._about().get("left_out", [])}
        except (KeyError, TypeError, ValueError) as error:
            raise TacitError(
                f"cannot read {self.path / 'run.json'} ({error})", "restore it, or start a new run", code="run.broken"
            ) from error

    def leave_out(self, clients: Mapping[int, str], start: int) -> None:
        """Note that clients, by number and name, are left out of all rounds from `start` on."""
        about, before = self._about(), self.left_out()
        more = [
            {"client": client, "name": name, "from": start}
            for client, name in clients.items()
            if client not in before or start < before[client]
        ]
        others = [each for each in about.get("left_out", []) if int(each["client"]) not in {m["client"] for m in more}]
        write_durably(self.path / "run.json", json.dumps(about | {"left_out": others + more}).encode())

    def forget_result(self) -> None:
        """Delete the final model and why the run stopped, since the run returned to an earlier round."""
        with on_disk(self.path):
            self.model_file.unlink(missing_ok=True)
            self.clear_stop_reason()

    def split(self) -> dict[str, Any]:
        """Who holds which sample, as written when the run began."""
        path = self.path / "split.json"
        try:
            split = json.loads(_text(path))
            _ = split["hash"]
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise TacitError(
                f"cannot read {path} ({error})", "restore it, or start a new run", code="run.broken-split"
            ) from error
        return dict(split)

    # --- results ------------------------------------------------------------------------------------------------------

    def rounds(self, count: int | None = None) -> list[RoundRecord]:
        """The complete records, or the first `count`; a last line without its end is still being written."""
        path, records = self.rounds_file, list[RoundRecord]()
        try:
            for line in _complete_lines(path) if path.exists() else ():
                if count is not None and len(records) == count:
                    break
                records.append(RoundRecord.from_json(line))
                if len(records) > 1 and records[-2].round >= records[-1].round:
                    raise ValueError(f"round {records[-1].round + 1} comes after round {records[-2].round + 1}")
        except (OSError, ValueError) as error:
            raise TacitError(
                f"cannot read {path} ({error})", "start the run again in another folder", code="run.broken-log"
            ) from error
        return records

    @contextmanager
    def log(self, length: int) -> Iterator["RoundLog"]:
        """The round log, cut back to the `length` in bytes that the checkpoint knows, open for more rounds."""
        path = self.rounds_file
        with on_disk(path):
            path.touch()
            file = path.open("r+b")
        try:
            if path.stat().st_size < length:
                raise TacitError(
                    f"{path} has lost rounds that the checkpoint knows",
                    "start the run again in another folder",
                    code="run.broken-log",
                )
            file.truncate(length)
            file.seek(length)
            yield RoundLog(path, file)
        finally:
            with suppress(OSError):  # what a full disk refuses now is newer than the checkpoint
                file.close()

    def finished_rounds(self) -> int:
        """How many rounds the last checkpoint holds."""
        path = self.checkpoint / "latest.json"
        try:
            return int(json.loads(path.read_bytes())["round"]) if path.exists() else 0
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise TacitError(
                f"cannot read the checkpoint in {self.checkpoint} ({error})",
                "start the run again in another folder",
                code="run.broken-checkpoint",
            ) from error

    def current_round(self) -> RoundProgress | None:
        """Where the current round stands; None if the run is not running, or its first round has not begun."""
        for pause in (0.01, 0.05, None):
            if not self.is_running():
                return None  # the file may be left from a process that was killed
            try:
                return RoundProgress.from_json(self._round_file.read_bytes())
            except FileNotFoundError:
                if pause:
                    time.sleep(pause)  # it may be just being written
            except (OSError, ValueError):
                return None
        return None

    def write_current_round(self, progress: RoundProgress) -> None:
        """Note where the current round stands. Only a view: a file that cannot be written is left as it is."""
        with suppress(DiskError):
            write_quickly(self._round_file, f"{progress.to_json()}\n".encode())

    def clear_current_round(self) -> None:
        """Remove what `write_current_round` wrote."""
        with suppress(OSError):
            self._round_file.unlink(missing_ok=True)

    def write_model(self, data: bytes) -> None:
        """Write the final model. If it is another one than before, as after more rounds, its outputs go."""
        with on_disk(self.model_file):
            if self.model_file.exists() and self.model_file.read_bytes() != data:
                self.predictions_file.unlink(missing_ok=True)
        write_durably(self.model_file, data)

    def write_card(self, text: str) -> None:
        """Write the card of the final model."""
        write_durably(self.path / "card.md", text.encode())

    def card(self) -> str | None:
        """What `write_card` wrote; None if it is missing or cannot be read."""
        try:
            return (self.path / "card.md").read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            return None

    def write_predictions(self, given: "Predictions") -> None:
        """Write the test samples' classes and the final model's outputs for them."""
        write_durably(self.predictions_file, given.to_bytes())

    def predictions(self) -> "Predictions | None":
        """What `write_predictions` wrote; None if nothing was, or it cannot be read."""
        from tacit.metrics.predictions import Predictions

        try:
            return Predictions.from_bytes(self.predictions_file.read_bytes())
        except (OSError, ValueError):
            return None

    def write_evaluation(self, name: str, text: str) -> None:
        """Note what an evaluation of the model found; one of the same name is replaced."""
        folder = self.path / "evaluations"
        with on_disk(folder):
            folder.mkdir(exist_ok=True)
        write_durably(folder / f"{name}.json", text.encode())

    def write_membership(self, text: str) -> None:
        """Note what attacks on the model found, as JSON."""
        write_durably(self.path / "membership.json", text.encode())

    def local_heads(self) -> dict[str, Any] | None:
        """What `write_local_heads` wrote; None if nothing was measured."""
        return self.read_note("local_heads.json")

    def write_local_heads(self, found: Mapping[str, Any]) -> None:
        """Note the accuracies of local heads and of the common one."""
        self.write_note("local_heads.json", found)

    def evaluations(self) -> list[str]:
        """What `write_evaluation` wrote, by name."""
        return [path.read_text(encoding="utf-8") for path in sorted((self.path / "evaluations").glob("*.json"))]

    def write_errors(self, round: int, details: Mapping[str, str]) -> None:
        """Append tracebacks, by who failed, to the error log; empty ones are left out."""
        found = {who: detail for who, detail in details.items() if detail}
        if found:
            with on_disk(self.errors_file), self.errors_file.open("a", encoding="utf-8") as file:
                file.writelines(
                    f"round {round + 1}, {who}\n{printable(detail, lines=True)}\n" for who, detail in found.items()
                )

    def read_note(self, name: str) -> dict[str, Any] | None:
        """A small JSON object written by `write_note`; None if it is missing or incomplete."""
        try:
            note = json.loads((self.path / name).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return note if isinstance(note, dict) else None

    def write_note(self, name: str, values: Mapping[str, Any]) -> None:
        """Write a small JSON object, such as which cell of a benchmark the run is."""
        write_durably(self.path / name, (json.dumps(dict(values)) + "\n").encode())

    def protection(self) -> list[str]:
        """What `[protect]` promises, as `write_protection` noted it."""
        lines = (self.read_note(_PROTECTION) or {}).get("lines", [])
        return [str(line) for line in lines] if isinstance(lines, list) else []

    def write_protection(self, lines: list[str]) -> None:
        """Note what `[protect]` promises, for reports."""
        self.write_note(_PROTECTION, {"lines": list(lines)})

    def secret(self) -> int | None:
        """The number that client-level privacy draws from in place of the seed; None for a simulation."""
        path = self.path / _SECRET
        if not path.exists():
            return None
        try:
            return int(json.loads(_text(path))["secret"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise TacitError(f"cannot read {path}", "restore it, or start a new run", code="run.broken") from error

    def write_secret(self, secret: int) -> None:
        """Fix that number, for this user alone."""
        write_durably(self.path / _SECRET, json.dumps({"secret": str(secret)}).encode())
        (self.path / _SECRET).chmod(0o600)

    def notices(self) -> dict[str, str]:
        """Signs of collapse, by code, as `write_notices` noted them."""
        found = self.read_note(_NOTICES) or {}
        return {str(code): str(text) for code, text in found.items()}

    def write_notices(self, notices: Mapping[str, str]) -> None:
        """Note signs of collapse, by code."""
        self.write_note(_NOTICES, notices)

    # --- a run over several machines ---------------------------------------------------------------------------------

    @property
    def progress_file(self) -> Path:
        """What the hub prints, line by line."""
        return self.path / "progress.log"

    @property
    def flower_log(self) -> Path:
        """The output of Flower's program."""
        return self.path / "flower.log"

    @property
    def _error_file(self) -> Path:
        return self.path / "error.json"

    def append_progress(self, line: str) -> None:
        """Add a line to the progress log."""
        with on_disk(self.progress_file), self.progress_file.open("a", encoding="utf-8") as file:
            file.write(f"{printable(line)}\n")

    def sites(self) -> dict[str, Any] | None:
        """What `write_sites` wrote; None before the first round."""
        path = self.path / "sites.json"
        try:
            sites = json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
            if sites is not None:
                _ = str(sites["run"]), [str(name) for name in sites["names"]]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise TacitError(
                f"cannot read {path} ({error})", "restore it, or start a new run", code="run.broken-sites"
            ) from error
        return sites

    def write_sites(self, sites: Mapping[str, Any]) -> None:
        """Fix who takes part: `run`, the run's id at the sites, and their `names` in the order of their numbers."""
        write_durably(self.path / "sites.json", json.dumps(dict(sites)).encode())

    def site_scores(self) -> dict[str, dict[str, float]]:
        """What `write_site_scores` wrote; nothing if no site has sent a score."""
        note = self.read_note("site_scores.json") or {}
        return {
            site: {name: value for name, value in scores.items() if isinstance(value, int | float)}
            for site, scores in note.items()
            if isinstance(scores, dict)
        }

    def write_site_scores(self, found: Mapping[str, Mapping[str, float]]) -> None:
        """Note the scores of the final model at the sites that sent them, by site and score."""
        self.write_note("site_scores.json", found)

    def stop_reason(self) -> TacitError | None:
        """Why the run stopped, as far as `write_stop_reason` has noted it."""
        note = self.read_note(self._error_file.name)
        try:
            return None if note is None else TacitError.from_json(note)
        except KeyError:
            return None

    def write_stop_reason(self, error: TacitError) -> None:
        """Note why the run stopped."""
        self.write_note(self._error_file.name, error.to_json())

    def clear_stop_reason(self) -> None:
        """Forget why the run stopped, since it continues."""
        self._error_file.unlink(missing_ok=True)

    # --- resuming and locking -----------------------------------------------------------------------------------------

    @property
    def resume_command(self) -> str:
        """The command that continues the run."""
        return shlex.join(["tacit", "resume", str(self.path)])

    def interrupted(self, resume_command: str = "") -> str:
        """What to print after Ctrl-C: how far the run got, and the command that continues it."""
        done, total = self.finished_rounds(), self.total_rounds()
        return f"stopped after round {done} of {total}; continue with: {resume_command or self.resume_command}"

    @contextmanager
    def lock(self) -> Iterator[IO[bytes]]:
        """Keep other processes from running the run while the block runs."""
        with ExitStack() as stack:
            try:
                file = stack.enter_context(storage.locked(self.config_file))
            except LockedError:
                raise LockedError(
                    f"another process is running {self.path}", "wait for it, or stop it first", code="run.locked"
                ) from None
            yield file

    def is_running(self) -> bool:
        """Whether some process holds the run's lock."""
        return storage.is_locked(self.config_file)


@dataclass(frozen=True)
class RoundLog:
    """The open round log of a run."""

    path: Path
    file: IO[bytes]

    def append(self, record: RoundRecord) -> None:
        """Add a round; others can read it at once."""
        with on_disk(self.path):
            self.file.write(f"{record.to_json()}\n".encode())
            self.file.flush()

    def sync(self) -> int:
        """Bring everything to disk; the length in bytes, for the checkpoint."""
        with on_disk(self.path):
            self.file.flush()
            os.fsync(self.file.fileno())
        return self.file.tell()


def _complete_lines(path: Path) -> Iterator[bytes]:
    """The lines of a file; a last one without its end is left out, and one that no round can have is refused."""
    with path.open("rb") as file:
        while line := file.readline(LONGEST_LINE + 1):
            if len(line) > LONGEST_LINE:
                raise ValueError(f"a line is longer than {LONGEST_LINE:,} bytes")
            if line.endswith(b"\n"):
                yield line[:-1]


def _text(path: Path) -> str:
    """The text of a small file."""
    if path.stat().st_size > LARGEST_FILE:
        raise ValueError(f"{path.name} has {path.stat().st_size:,} bytes")
    return path.read_text(encoding="utf-8-sig")


def fingerprint(settings: Mapping[str, Any], free: tuple[str, ...] = ()) -> str:
    """A SHA-256 of nested settings as TOML has them, without the top-level names in `free`."""
    bound = {name: value for name, value in settings.items() if name not in free}
    return sha256(json.dumps(bound, sort_keys=True, default=str).encode()).hexdigest()
