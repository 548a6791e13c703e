"""Background programs that leave nothing behind, signals that end them in order, launchers, and ports."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from types import FrameType

from tacit.deploy import supervisor
from tacit.storage import write_durably


class Program:
    """A program that runs until it ends, `stop` is called, or this process is gone for whatever reason."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        """Start it; its output is appended to `log`."""
        self.log = log
        self._start = log.stat().st_size if log.exists() else 0
        with open(log, "ab", opener=lambda name, flags: os.open(name, flags, 0o600)) as output:
            self._supervisor = subprocess.Popen(
                [sys.executable, "-I", supervisor.__file__, *command],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )

    @property
    def group(self) -> int:
        """The id of the process, and of the process group, that the whole program runs under."""
        return self._supervisor.pid

    def exit_code(self) -> int | None:
        """The exit code; None while the program runs."""
        return self._supervisor.poll()

    def wait(self) -> int:
        """Wait for the program to end; its exit code."""
        return self._supervisor.wait()

    def output(self) -> str:
        """The output so far, without what earlier programs wrote to the same log."""
        with self.log.open("rb") as file:
            file.seek(self._start)
            return file.read().decode(errors="replace")

    def stop(self) -> None:
        """End the program and everything it started; returns when they are gone."""
        if self._supervisor.stdin:
            self._supervisor.stdin.close()
        try:
            self._supervisor.wait(2 * supervisor.GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            self._supervisor.kill()
            self._supervisor.wait()


@contextmanager
def running(command: Sequence[str], environment: Mapping[str, str], log: Path) -> Iterator[Program]:
    """A program that runs while the block does."""
    program = Program(command, environment, log)
    try:
        yield program
    finally:
        program.stop()


@contextmanager
def interrupt_on_termination() -> Iterator[None]:
    """Treat SIGTERM and a closed terminal (SIGHUP) like Ctrl-C, so that started programs are ended too.

    Under nohup a closed terminal is ignored.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    nohup = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    signals = (signal.SIGTERM,) if nohup else (signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, interrupt) for number in signals}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def write_launcher(path: Path, command: Sequence[str]) -> None:
    """Write a program that runs a command, with the arguments it is given."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    text = f'#!/bin/sh\nexec {" ".join(map(quote, command))} "$@"\n'
    write_durably(path, text.encode(), mode=0o700)


def free_port() -> int:
    """A port of this machine that no program uses."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def wait_for_port(program: Program, host: str, port: int, seconds: float) -> bool:
    """Whether a program that was started listens on a port in time."""
    until = time.monotonic() + seconds
    while program.exit_code() is None and time.monotonic() < until:
        try:
            socket.create_connection((host, port), timeout=5).close()
            return True
        except OSError:
            time.sleep(0.1)
    return False


def port_is_free(host: str, port: int) -> bool:
    """Whether a program can listen on a port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True
