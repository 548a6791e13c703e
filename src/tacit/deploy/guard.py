"""Runs one program and leaves nothing of it behind. A script of its own: `python guard.py PROGRAM ARGUMENT…`.

Flower's programs start others, some in sessions of their own, and these outlive a program that is killed. So each runs
below this one, which ends all of them when the program ends, when it is asked to, and when whoever started it is gone
and its standard input therefore closed.
"""

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

GRACE = 8.0  # seconds to end in good order
SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER: orphans below become children of this process, so that it finds them


def main(command: list[str]) -> int:
    """Run the program; its exit code."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
    asked = threading.Event()
    nohup = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    for name in (signal.SIGTERM, signal.SIGINT) if nohup else (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(name, lambda *_: asked.set())
    program = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    threading.Thread(target=_await_end_of_input, args=[asked], daemon=True).start()
    while program.poll() is None and not asked.is_set():
        asked.wait(0.1)
    code = _end(program)
    _end_orphans(program.pid)
    return code if code >= 0 else 128 - code


def _await_end_of_input(asked: threading.Event) -> None:
    while os.read(0, 4096):  # not sys.stdin: a thread that waits there breaks the end of the interpreter
        pass
    asked.set()


def _end(program: "subprocess.Popen[bytes]") -> int:
    with suppress(ProcessLookupError):
        program.terminate()
    try:
        return program.wait(GRACE)
    except subprocess.TimeoutExpired:
        program.kill()
        return program.wait()


def _end_orphans(group: int) -> None:
    """End what the program has left; those that start meanwhile are found at the next look."""
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)
    while below := list(_below(os.getpid())):
        for pid in below:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.02)


def _below(ancestor: int) -> Iterator[int]:
    """All processes below one, where the system has a table of them to read."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents[int(path.parent.name)] = int(path.read_text(errors="replace").rpartition(")")[2].split()[1])
    for pid in parents:
        above: int | None = pid
        while above := parents.get(above or 0):
            if above == ancestor:
                yield pid
                break


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
