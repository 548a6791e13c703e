"""Real processes on loopback: each command of `tacit` as a person would start it, bounded in time and reaped."""

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
# Tests that are killed reap nothing: then the system asks the commands to end, and these end what they have started.
END_WITH_TESTS = ["setpriv", "--pdeathsig", "TERM"] if shutil.which("setpriv") else []
PATIENCE = 600.0  # seconds until a test gives up; a run of two rounds took 240 on a busy machine


def free_port() -> int:
    """A port that nobody uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def below(ancestor: int) -> list[int]:
    """All processes below one, however far."""
    parents: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parent = int(path.read_text(errors="replace").rpartition(")")[2].split()[1])
            parents.setdefault(parent, []).append(int(path.parent.name))
    children = parents.get(ancestor, [])
    return [*children, *(pid for child in children for pid in below(child))]


class Command:
    """A command of `tacit` that was started; its output is in a file."""

    def __init__(self, words: list[str], folder: Path, log: Path, mark: str) -> None:
        path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])  # this checkout, from any folder
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

    def said(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def says(self, text: str, patience: float = PATIENCE, after: int = 0) -> str:
        """Wait until it says this, behind so many characters; all it said."""
        until = time.monotonic() + patience
        while text not in self.said()[after:]:
            assert self.process.poll() is None, f"{self.words} ended before it said '{text}': {self.said()}"
            assert time.monotonic() < until, f"{self.words} never said '{text}': {self.said()}"
            time.sleep(0.1)
        return self.said()

    def ends(self, code: int = 0, patience: float = PATIENCE) -> str:
        """Wait until it ends, with this exit code; what it said."""
        assert self.process.wait(patience) == code, f"{self.words}: {self.said()}"
        return self.said()

    def signal(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def signal_all(self, number: int) -> None:
        """Send this to the command and to all that it has started, as if to their machine."""
        for pid in (self.process.pid, *below(self.process.pid)):
            with suppress(ProcessLookupError):
                os.kill(pid, number)


class Machines:
    """Commands that are started by one test, and all processes that come of them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.mark = folder, uuid4().hex
        self._started: list[Command] = []

    def start(self, *words: str, at: Path | None = None) -> Command:
        """Start `tacit WORDS` in a folder."""
        log = self.folder / f"{len(self._started) + 1:02}-{'-'.join(words[:2])}.log"
        self._started.append(Command(list(words), at or self.folder, log, self.mark))
        return self._started[-1]

    def call(self, *words: str, at: Path | None = None, code: int = 0) -> str:
        """Run `tacit WORDS` to its end; what it said."""
        return self.start(*words, at=at).ends(code)

    def processes(self, containing: str = "") -> dict[int, str]:
        """All that still run, however far below, and their command lines."""
        found = {}
        for path in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if self.mark.encode() in (path / "environ").read_bytes():
                    line = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                    state = (path / "stat").read_text().rpartition(")")[2].split()[0]
                    if containing in line and state not in "ZX":
                        found[int(path.name)] = line
        return found

    def gone(self, containing: str = "", patience: float = 30.0) -> bool:
        """Whether all of them end by themselves before patience does."""
        until = time.monotonic() + patience
        while self.processes(containing) and time.monotonic() < until:
            time.sleep(0.1)
        return not self.processes(containing)

    def reap(self) -> None:
        """End whatever is left."""
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for command in self._started:
            command.process.wait(PATIENCE)


@contextmanager
def machines(folder: Path) -> Iterator[Machines]:
    """Machines whose processes are all ended afterwards."""
    made = Machines(folder)
    try:
        yield made
    finally:
        made.reap()
