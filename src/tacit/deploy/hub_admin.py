"""What an operator does with the runs of a hub: start, follow, stop and list them."""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tacit.deploy import apps, flower_cli
from tacit.deploy.hub_directory import CONNECTION, HubDirectory
from tacit.deploy.processes import Program
from tacit.engines.events import RoundProgress
from tacit.errors import TacitError
from tacit.runs.directory import RunDirectory
from tacit.storage import Tail

END_SECONDS = 3.0  # between the end of a run's process and that of Flower's program that follows it
Notify = Callable[[str], None]  # shows a line to a person
STOP_SECONDS = 60.0  # a run that is stopped ends within this time


def run_to_end(hub: HubDirectory, folder: Path, notify: Notify) -> None:
    """Let the hub run the rounds of a run, and show its progress until it ends. An interrupt stops the run."""
    hub.require_running()
    directory = RunDirectory(folder.absolute())
    apps.write(hub.app_folder)
    directory.clear_stop_reason()
    progress = Tail(directory.progress_file)
    settings = apps.run_settings(hub=hub.path, run=directory.path)
    words = ["run", str(hub.app_folder), CONNECTION, "--stream", "--run-config", settings]
    command = [flower_cli.find_program("flwr", hub.flower_home), *words]
    with flower_cli.running(command, hub.flower_home, directory.flower_log) as program:
        ended = _EndOfRun(directory)
        try:
            while program.exit_code() is None and not ended():
                _show_new(progress, notify)
                time.sleep(0.2)
            if program.exit_code() is None and hub.is_running():
                with suppress(TacitError):  # it may have ended meanwhile
                    flower_cli.stop_run(program.output(), CONNECTION, hub.flower_home)
        except KeyboardInterrupt:
            flower_cli.stop_run(program.output(), CONNECTION, hub.flower_home)
            _has_ended(directory)  # so that the run can be resumed at once
            raise
        _show_new(progress, notify)
        _raise_if_unfinished(hub, directory, program)


class _EndOfRun:
    """Whether the process that plays a run has ended: it holds the run's lock. Flower notices a killed one later."""

    def __init__(self, directory: RunDirectory) -> None:
        self._directory, self._seen = directory, False
        self._free_since = math.inf

    def __call__(self) -> bool:
        if self._directory.is_running():
            self._seen, self._free_since = True, math.inf
        elif self._seen:
            self._free_since = min(self._free_since, time.monotonic())
        return time.monotonic() > self._free_since + END_SECONDS


def stop_run(hub: HubDirectory, folder: Path) -> None:
    """End a run that is in progress; it can be resumed after its last finished round."""
    hub.require_running()
    directory = RunDirectory(folder)
    if not directory.is_running():
        raise TacitError(f"{folder.name} is not running", f"see `{hub.command('status')}`", code="hub.run-not-running")
    directory.write_stop_reason(
        TacitError("the run was stopped with `tacit hub stop`", code="hub.run-stopped", resumable=True)
    )
    flower_cli.stop_run(directory.flower_log.read_text(errors="replace"), CONNECTION, hub.flower_home)
    if not _has_ended(directory):
        raise TacitError(
            f"{folder.name} has not ended within {STOP_SECONDS:g} s", "restart the hub", code="hub.run-not-stopped"
        )


def _has_ended(directory: RunDirectory) -> bool:
    """Whether the process of a run that was asked to stop ends in time."""
    until = time.monotonic() + STOP_SECONDS
    while directory.is_running() and time.monotonic() < until:
        time.sleep(0.2)
    return not directory.is_running()


def return_to(folder: Path, start: int | None, without: Sequence[str]) -> None:
    """Return a run to the end of a round and leave sites out of all later ones."""
    from tacit.runs import replay  # imports torch, which `tacit hub status` need not wait for

    directory = RunDirectory(folder)
    names = (directory.sites() or {"names": []})["names"]
    replay.prepare(directory, start, without, {name: number for number, name in enumerate(names)})


def _show_new(progress: Tail, notify: Notify) -> None:
    for line in progress.lines():
        notify(line)


def resume_command(hub: HubDirectory, folder: Path) -> str:
    """The command that continues a run."""
    return hub.command(f"resume {folder.name}")


def _raise_if_unfinished(hub: HubDirectory, directory: RunDirectory, program: Program) -> None:
    """Raise why a run has not reached its last round."""
    resume = f"continue with `{resume_command(hub, directory.path)}`"
    if error := directory.stop_reason():
        if error.resumable:
            error.remedy = f"{error.remedy}, then {resume}" if error.remedy else resume
        raise error
    status = run_status(directory.path)
    if status.finished == status.rounds:
        return
    after = f"after round {status.finished} of {status.rounds}"
    if not hub.is_running():
        start = f"start it again with `{hub.command('start')}`"
        raise TacitError(f"the hub ended {after}", f"{start}, then {resume}", code="hub.ended", resumable=True)
    raise TacitError(
        f"the run's process stopped {after}",
        f"see {program.log}, then {resume}",
        code="hub.run-ended",
        resumable=True,
    )


@dataclass(frozen=True)
class RunStatus:
    """How far a run is."""

    name: str
    finished: int  # rounds
    rounds: int
    running: bool
    sites: list[str]  # empty before the first round
    current: RoundProgress | None = None  # where the current round stands, if one is running
    problem: str = ""  # why nothing else is known

    @property
    def state(self) -> str:
        """The state in one word."""
        if self.problem:
            return "broken"
        return "running" if self.running else "finished" if self.finished == self.rounds else "stopped"

    @property
    def current_line(self) -> str:
        """The current round in one line: `round 3 of 30: 2 of 3 sites answered, waiting for oslo`; may be empty."""
        current = self.current
        if current is None or self.state != "running":
            return ""
        late = ", ".join(self._name(client) for client in sorted(current.working))
        failed = "; ".join(f"without {self._name(client)} ({why})" for client, why in sorted(current.failed.items()))
        line = f"round {current.round + 1} of {self.rounds}: {current.answered_text('sites')}"
        return line + (f", waiting for {late}" if late else "") + (f"; {failed}" if failed else "")

    def _name(self, client: int) -> str:
        return self.sites[client] if client < len(self.sites) else f"client {client}"


def run_status(folder: Path) -> RunStatus:
    """How far the run in a folder is."""
    directory = RunDirectory(folder)
    sites = directory.sites()
    return RunStatus(
        name=folder.name,
        finished=directory.finished_rounds(),
        rounds=directory.total_rounds(),
        running=directory.is_running(),
        sites=sites["names"] if sites else [],
        current=directory.current_round(),
    )


def list_runs(hub: HubDirectory) -> list[RunStatus]:
    """All runs of a hub, the one started last first; a broken one does not hide the others."""
    found = sorted(hub.runs_folder.glob("*/config.toml"), key=lambda path: path.stat().st_mtime, reverse=True)
    return [_status_or_problem(path.parent) for path in found]


def _status_or_problem(folder: Path) -> RunStatus:
    try:
        return run_status(folder)
    except (TacitError, OSError) as error:
        return RunStatus(folder.name, 0, 0, running=False, sites=[], problem=str(error))


def find_run(hub: HubDirectory, name: str) -> Path:
    """The folder of a run, by its name or its folder."""
    for folder in (hub.runs_folder / name, Path(name)):
        if RunDirectory(folder).exists():
            return folder.absolute()
    known = ", ".join(status.name for status in list_runs(hub)[:5])
    raise TacitError(
        f"there is no run {name} in {hub.runs_folder}",
        f"choose one of {known}" if known else "start one first",
        code="hub.unknown-run",
    )
