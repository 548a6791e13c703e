"""Flower's own programs: where they are, what they are started with, and that none of them stays behind."""

import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from types import FrameType

from tacit.deploy import guard
from tacit.errors import TacitError

COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
READY = 120.0  # seconds a program may take to start on a busy machine
SETTINGS = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "PYTHONUNBUFFERED": "1",
}
PACE = {  # of Flower's programs, which wait for longer and fetch less at once by themselves
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.5",  # seconds between two looks for work
    "FLWR_PRIVATE_MAX_CONCURRENT_OBJ_PULLS": "8",  # every array is an object that is fetched by itself
    "FLWR_PRIVATE_MAX_CONCURRENT_OBJ_PUSHES": "8",
}


def find(name: str) -> str:
    """The path of one of Flower's programs, of the same environment as this one if it is there."""
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    if not found:
        raise TacitError(f"there is no {name} here: install tacit[flower]")
    return found


def environment(home: Path) -> dict[str, str]:
    """This process's variables, with those that keep Flower to itself and to a folder of its own.

    Flower's programs look for each other; those in the folder's `bin` come before its own, and no proxy stands between
    those that meet on this machine.
    """
    path = os.pathsep.join([str(home / "bin"), str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    direct = [os.environ.get("no_proxy") or os.environ.get("NO_PROXY"), "127.0.0.1", "localhost"]
    own = {"PATH": path, "FLWR_HOME": str(home), "no_proxy": ",".join(filter(None, direct))}
    return {**os.environ, **SETTINGS, **PACE, **own}


class Program:
    """A program that runs until it ends by itself, `stop` is called, or this process is gone, however that happened."""

    def __init__(self, command: Sequence[str], home: Path, log: Path) -> None:
        """Start it; all it says goes to the end of `log`."""
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.log = log
        self._from = log.stat().st_size if log.exists() else 0
        with open(log, "ab", opener=lambda name, flags: os.open(name, flags, 0o600)) as output:
            self._guard = subprocess.Popen(
                [sys.executable, "-I", guard.__file__, *command],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment(home),
                start_new_session=True,
            )

    @property
    def group(self) -> int:
        """The id of the process, and of its group, below which all of the program runs."""
        return self._guard.pid

    def ended(self) -> int | None:
        """Its exit code, None while it runs."""
        return self._guard.poll()

    def wait(self) -> int:
        """Its exit code, once it has ended."""
        return self._guard.wait()

    def said(self) -> str:
        """What it has said so far."""
        with self.log.open("rb") as file:
            file.seek(self._from)
            return file.read().decode(errors="replace")

    def stop(self) -> None:
        """End it and all it has started; returns when they are gone."""
        if self._guard.stdin:
            self._guard.stdin.close()
        try:
            self._guard.wait(2 * guard.GRACE)
        except subprocess.TimeoutExpired:
            self._guard.kill()
            self._guard.wait()


@contextmanager
def running(command: Sequence[str], home: Path, log: Path) -> Iterator[Program]:
    """A program while the block runs."""
    program = Program(command, home, log)
    try:
        yield program
    finally:
        program.stop()


@contextmanager
def ending_in_order() -> Iterator[None]:
    """Let a request to end (SIGTERM, a closed terminal) be like Ctrl-C, so that what was started is ended too.

    Under nohup a closed terminal is no such request.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    nohup = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    requests = (signal.SIGTERM,) if nohup else (signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, interrupt) for number in requests}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def call(name: str, arguments: Sequence[str], home: Path, timeout: float = READY) -> str:
    """What a short program says; it is refused in its own words when it fails."""
    with tempfile.TemporaryDirectory() as folder, running([find(name), *arguments], home, Path(folder) / "said") as it:
        until = time.monotonic() + timeout
        while (code := it.ended()) is None:
            if time.monotonic() > until:
                raise TacitError(
                    f"{name} {arguments[0]} did not end within {timeout:g} s: see whether the hub still runs"
                )
            time.sleep(0.05)
        if code:
            raise TacitError(f"Flower refuses: {last_words(it.said())}; mend that and try again")
        return it.said()


def last_words(text: str, lines: int = 1) -> str:
    """The last lines that say something, without colours and frames."""
    plain = (plain_line(line) for line in text.splitlines())
    return " ".join([line for line in plain if line][-lines:])


def plain_line(line: str) -> str:
    """A line without the marks that terminals need."""
    return COLOURS.sub("", line).strip(" │╭╮╰╯─\t")


def free(host: str, port: int) -> bool:
    """Whether a port can still be listened at."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def healthy(address: str, authority: Path | None) -> bool:
    """Whether a SuperLink answers there, on this machine: a proxy would look for it on its own."""
    try:
        context = ssl.create_default_context(cafile=str(authority)) if authority else None
        direct = urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
        url = f"http{'s' if authority else ''}://{address}/health"
        with urllib.request.build_opener(*direct).open(url, timeout=5):
            return True
    except (OSError, HTTPException):  # an OSError is also what urllib and a damaged certificate raise
        return False


def wait_until_healthy(program: Program, address: str, authority: Path | None) -> None:
    """Return once the SuperLink that was started answers."""
    until = time.monotonic() + READY
    while not healthy(address, authority):
        if program.ended() is not None or time.monotonic() > until:
            raise TacitError(f"Flower's SuperLink did not start: {last_words(program.said())}; see {program.log}")
        time.sleep(0.2)


def arguments(options: Mapping[str, object]) -> list[str]:
    """`--name value` for each, `--name` for True, nothing for None and False."""
    pairs = ([f"--{name}"] if value is True else [f"--{name}", str(value)] for name, value in options.items() if value)
    return [word for pair in pairs for word in pair]
