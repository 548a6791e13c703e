"""Real processes on loopback: commands of `tacit` as a person would type them, with time limits, killed at the end."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

ROOT = Path(__file__).parents[2]
MARK = "TACIT_TEST_MACHINES"
# Killed tests clean up nothing: the system then sends SIGTERM to the commands, which end what they started.
END_WITH_TESTS = ["setpriv", "--pdeathsig", "TERM"] if shutil.which("setpriv") else []
TIMEOUT = 600.0  # seconds; a run of two rounds took 240 on a busy machine


def free_port() -> int:
    """A port that no program uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def descendants(ancestor: int) -> list[int]:
    """All descendants of a process."""
    parents: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parent = int(path.read_text(errors="replace").rpartition(")")[2].split()[1])
            parents.setdefault(parent, []).append(int(path.parent.name))
    children = parents.get(ancestor, [])
    return [*children, *(pid for child in children for pid in descendants(child))]


class Command:
    """A running command of `tacit`, with its output in a file."""

    def __init__(self, words: list[str], folder: Path, log: Path, mark: str, source: Path) -> None:
        path = os.pathsep.join([str(source), str(ROOT)])  # this checkout, from any folder
        env = {**os.environ, MARK: mark, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "COLUMNS": "80"}
        self.words, self.log = words, log
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                [*END_WITH_TESTS, sys.executable, "-m", "tacit", *words],
                cwd=folder,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def output(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def wait_for(self, text: str, timeout: float = TIMEOUT, after: int = 0) -> str:
        """Wait until the command prints this, after the first `after` characters; its whole output."""
        until = time.monotonic() + timeout
        while text not in self.output()[after:]:
            assert self.process.poll() is None, f"{self.words} ended before it printed '{text}': {self.output()}"
            assert time.monotonic() < until, f"{self.words} never printed '{text}': {self.output()}"
            time.sleep(0.1)
        return self.output()

    def wait_for_exit(self, code: int = 0, timeout: float = TIMEOUT) -> str:
        """Wait until the command exits with this code; its output."""
        assert self.process.wait(timeout) == code, f"{self.words}: {self.output()}"
        return self.output()

    def signal(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def signal_all(self, number: int) -> None:
        """Send a signal to the command and all its descendants, as if to their machine."""
        for pid in (self.process.pid, *descendants(self.process.pid)):
            with suppress(ProcessLookupError):
                os.kill(pid, number)


class Machines:
    """Commands that one test starts, and all their descendants."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.mark = folder, uuid4().hex
        self._started: list[Command] = []

    def start(self, *words: str, at: Path | None = None, source: Path = ROOT / "src") -> Command:
        """Start `tacit WORDS` in a folder, with the package in `source`."""
        name = "-".join(Path(word).name for word in words[:2])  # a word may be a path
        log = self.folder / f"{len(self._started) + 1:02}-{name}.log"
        self._started.append(Command(list(words), at or self.folder, log, self.mark, source))
        return self._started[-1]

    def call(self, *words: str, at: Path | None = None, code: int = 0) -> str:
        """Run `tacit WORDS` to its end; its output."""
        return self.start(*words, at=at).wait_for_exit(code)

    def processes(self, containing: str = "") -> dict[int, str]:
        """All processes that still run, and their command lines."""
        found = {}
        for path in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if self.mark.encode() in (path / "environ").read_bytes():
                    line = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                    state = (path / "stat").read_text().rpartition(")")[2].split()[0]
                    if containing in line and state not in "ZX":
                        found[int(path.name)] = line
        return found

    def wait_until_gone(self, containing: str = "", timeout: float = 30.0) -> bool:
        """Whether all of them end within the time limit."""
        until = time.monotonic() + timeout
        while self.processes(containing) and time.monotonic() < until:
            time.sleep(0.1)
        return not self.processes(containing)

    def kill_all(self) -> None:
        """Kill what still runs."""
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for command in self._started:
            command.process.wait(TIMEOUT)


@contextmanager
def machines(folder: Path) -> Iterator[Machines]:
    """Machines whose processes are all killed afterwards."""
    made = Machines(folder)
    try:
        yield made
    finally:
        made.kill_all()
