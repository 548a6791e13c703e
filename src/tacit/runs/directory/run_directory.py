"""A run's folder. `RunDirectory` is its only reader and writer; `layout` says what each file is for."""

import json
import os
import shlex
import shutil
import time
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from tacit import storage
from tacit.engines.events import RoundProgress
from tacit.engines.record import RoundRecord
from tacit.errors import TacitError
from tacit.formatting import printable
from tacit.runs.directory import layout, round_log
from tacit.runs.directory.about import FREE_IN_0_1, About, Fingerprints, fingerprint
from tacit.runs.directory.round_log import RoundLog
from tacit.storage import DiskError, LockedError, on_disk, text_of, writable, write_durably, write_quickly

if TYPE_CHECKING:  # it needs numpy, which most commands do not
    from tacit.metrics.predictions import Predictions

PRIVATE = 0o700  # of a run's folder: it holds models of every client, so only its owner enters


@dataclass(frozen=True)
class RunDirectory:
    """The folder of one run."""

    path: Path

    @property
    def config_file(self) -> Path:
        """The file with the full config."""
        return self.path / layout.CONFIG

    @property
    def rounds_file(self) -> Path:
        """The file with one record per round."""
        return self.path / layout.ROUNDS

    @property
    def model_file(self) -> Path:
        """The file with the final model."""
        return self.path / layout.MODEL

    @property
    def predictions_file(self) -> Path:
        """The file with the final model's outputs on the test set."""
        return self.path / layout.PREDICTIONS

    @property
    def checkpoint(self) -> Path:
        """The folder of the last checkpoint."""
        return self.path / layout.CHECKPOINT

    @property
    def errors_file(self) -> Path:
        """The file with tracebacks of clients that failed."""
        return self.path / layout.ERRORS

    @property
    def card_file(self) -> Path:
        """The file with what a person should know about the model."""
        return self.path / layout.CARD

    @property
    def _round_file(self) -> Path:
        return self.path / layout.CURRENT

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
        about = About.first(version, fingerprints)
        files = {layout.ABOUT: about, layout.SPLIT: json.dumps(split), layout.CONFIG: config}
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
        self._about().replan(fingerprints)
        write_durably(self.config_file, config.encode())

    def is_begun_with(self, *outcomes: str) -> bool:
        """Whether the run began, or was extended, with settings that have one of these fingerprints."""
        known = {self.fingerprints().outcome, self._about().before}
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
            config = tomllib.loads(text_of(self.config_file))
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
        early = self.early_end()
        return early if early is not None and early == self.finished_rounds() else int(self.config()["rounds"])

    def early_end(self) -> int | None:
        """After how many rounds the run stopped, as `write_end` noted it; it counts once a checkpoint has them."""
        rounds = (self.read_note(layout.END) or {}).get("rounds")
        return rounds if isinstance(rounds, int) else None

    def is_finished(self) -> bool:
        """Whether the last checkpoint is that of the last round."""
        return self.finished_rounds() >= self.total_rounds()

    def write_end(self, rounds: int, why: str) -> None:
        """Note that the run stops early, after this number of rounds; it counts once there is a checkpoint of them."""
        self.write_note(layout.END, {"rounds": rounds, "why": why})

    def schema(self) -> int:
        """The schema of the folder; 1 for runs of Tacit 0.1."""
        return self._about().schema

    def fingerprints(self) -> Fingerprints:
        """The fingerprints written when the run began; for a run of 0.1, computed from its config."""
        if (known := self._about().fingerprints) is not None:
            return known
        config = self.config()
        found = {name: fingerprint(config, free) for name, free in FREE_IN_0_1.items()}
        with suppress(TacitError):
            found["outcome"] = str(self.split().get("config", found["outcome"]))
        return Fingerprints(**found)

    def _about(self) -> About:
        return About.read(self.path / layout.ABOUT)

    def left_out(self) -> dict[int, int]:
        """The clients that are no longer asked, and from which round on."""
        return self._about().left_out()

    def leave_out(self, clients: Mapping[int, str], start: int) -> None:
        """Note that clients, by number and name, are left out of all rounds from `start` on."""
        self._about().leave_out(clients, start)

    def forget_result(self) -> None:
        """Delete the final model and why the run stopped, since the run returned to an earlier round."""
        with on_disk(self.path):
            self.model_file.unlink(missing_ok=True)
            self.clear_stop_reason()

    def split(self) -> dict[str, Any]:
        """Who holds which sample, as written when the run began."""
        path = self.path / layout.SPLIT
        try:
            split = json.loads(text_of(path))
            _ = split["hash"]
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise TacitError(
                f"cannot read {path} ({error})", "restore it, or start a new run", code="run.broken-split"
            ) from error
        return dict(split)

    # --- results ------------------------------------------------------------------------------------------------------

    def rounds(self, count: int | None = None) -> list[RoundRecord]:
        """The complete records, or the first `count`; a last line without its end is still being written."""
        return round_log.read(self.rounds_file, count)

    def log(self, length: int) -> AbstractContextManager[RoundLog]:
        """The round log, cut back to the `length` in bytes that the checkpoint knows, open for more rounds."""
        return round_log.opened(self.rounds_file, length)

    def finished_rounds(self) -> int:
        """How many rounds the last checkpoint holds."""
        path = self.path / layout.LATEST
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
        write_durably(self.card_file, text.encode())

    def card(self) -> str | None:
        """What `write_card` wrote; None if it is missing or cannot be read."""
        try:
            return self.card_file.read_text(encoding="utf-8")
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
        folder = self.path / layout.EVALUATIONS
        with on_disk(folder):
            folder.mkdir(exist_ok=True)
        write_durably(folder / f"{name}.json", text.encode())

    def write_membership(self, text: str) -> None:
        """Note what attacks on the model found, as JSON."""
        write_durably(self.path / layout.MEMBERSHIP, text.encode())

    def local_heads(self) -> dict[str, Any] | None:
        """What `write_local_heads` wrote; None if nothing was measured."""
        return self.read_note(layout.LOCAL_HEADS)

    def write_local_heads(self, found: Mapping[str, Any]) -> None:
        """Note the accuracies of local heads and of the common one."""
        self.write_note(layout.LOCAL_HEADS, found)

    def evaluations(self) -> list[str]:
        """What `write_evaluation` wrote, by name."""
        return [path.read_text(encoding="utf-8") for path in sorted((self.path / layout.EVALUATIONS).glob("*.json"))]

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
        lines = (self.read_note(layout.PROTECTION) or {}).get("lines", [])
        return [str(line) for line in lines] if isinstance(lines, list) else []

    def write_protection(self, lines: list[str]) -> None:
        """Note what `[protect]` promises, for reports."""
        self.write_note(layout.PROTECTION, {"lines": list(lines)})

    def secret(self) -> int | None:
        """The number that client-level privacy draws from in place of the seed; None for a simulation."""
        path = self.path / layout.SECRET
        if not path.exists():
            return None
        try:
            return int(json.loads(text_of(path))["secret"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise TacitError(f"cannot read {path}", "restore it, or start a new run", code="run.broken") from error

    def write_secret(self, secret: int) -> None:
        """Fix that number, for this user alone."""
        write_durably(self.path / layout.SECRET, json.dumps({"secret": str(secret)}).encode())
        (self.path / layout.SECRET).chmod(0o600)

    def notices(self) -> dict[str, str]:
        """Signs of collapse, by code, as `write_notices` noted them."""
        found = self.read_note(layout.NOTICES) or {}
        return {str(code): str(text) for code, text in found.items()}

    def write_notices(self, notices: Mapping[str, str]) -> None:
        """Note signs of collapse, by code."""
        self.write_note(layout.NOTICES, notices)

    # --- a run over several machines ---------------------------------------------------------------------------------

    @property
    def progress_file(self) -> Path:
        """What the hub prints, line by line."""
        return self.path / layout.PROGRESS

    @property
    def flower_log(self) -> Path:
        """The output of Flower's program."""
        return self.path / layout.FLOWER

    @property
    def _error_file(self) -> Path:
        return self.path / layout.STOP

    def append_progress(self, line: str) -> None:
        """Add a line to the progress log."""
        with on_disk(self.progress_file), self.progress_file.open("a", encoding="utf-8") as file:
            file.write(f"{printable(line)}\n")

    def sites(self) -> dict[str, Any] | None:
        """What `write_sites` wrote; None before the first round."""
        path = self.path / layout.SITES
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
        write_durably(self.path / layout.SITES, json.dumps(dict(sites)).encode())

    def site_scores(self) -> dict[str, dict[str, float]]:
        """What `write_site_scores` wrote; nothing if no site has sent a score."""
        note = self.read_note(layout.SITE_SCORES) or {}
        return {
            site: {name: value for name, value in scores.items() if isinstance(value, int | float)}
            for site, scores in note.items()
            if isinstance(scores, dict)
        }

    def write_site_scores(self, found: Mapping[str, Mapping[str, float]]) -> None:
        """Note the scores of the final model at the sites that sent them, by site and score."""
        self.write_note(layout.SITE_SCORES, found)

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

    # --- from outside -------------------------------------------------------------------------------------------------

    def changes(self) -> tuple[tuple[int, int] | None, ...]:
        """Time stamp and size of each file that tells how the run stands; two equal answers tell the same."""
        return tuple(self._stamp(name) for name in layout.LIVE)

    def log_changed(self) -> int:
        """When the round log was last written, in nanoseconds; 0 if there is none."""
        return (self._stamp(layout.ROUNDS) or (0, 0))[0]

    def last_sign(self) -> float | None:
        """When the run last wrote something, in seconds; None if it never did."""
        stamps = [self._stamp(name) for name in (layout.ROUNDS, layout.CONFIG, layout.CURRENT)]
        return max((stamp[0] / 1e9 for stamp in stamps if stamp), default=None)

    def _stamp(self, name: str) -> tuple[int, int] | None:
        try:
            status = (self.path / name).stat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size

    def purpose(self) -> str | None:
        """What the run is a part of, if its folder tells: a benchmark or a search."""
        notes = {layout.CELL: "benchmark", layout.TRIAL: "search"}
        return next((purpose for name, purpose in notes.items() if (self.path / name).exists()), None)

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
