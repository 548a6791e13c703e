"""Run one program and leave nothing of it behind. A script: `python supervisor.py PROGRAM ARGUMENT…`.

Flower's programs start others, some in their own sessions, which outlive a program that is killed. So each program runs
below this script, which ends all of them when the program ends, when it gets a signal, and when its starter is gone,
which closes its standard input.
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

GRACE_SECONDS = 8.0  # between the request to end and the kill
SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER: orphaned descendants become children of this process, so it finds them


def main(command: list[str]) -> int:
    """Run the program; its exit code."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
    stop_requested = threading.Event()
    nohup = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    for name in (signal.SIGTERM, signal.SIGINT) if nohup else (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(name, lambda *_: stop_requested.set())
    program = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    threading.Thread(target=_wait_for_end_of_input, args=[stop_requested], daemon=True).start()
    while program.poll() is None and not stop_requested.is_set():
        stop_requested.wait(0.1)
    code = _terminate(program)
    _kill_descendants(program.pid)
    return code if code >= 0 else 128 - code


def _wait_for_end_of_input(stop_requested: threading.Event) -> None:
    while os.read(0, 4096):  # not sys.stdin: a thread that waits there breaks the shutdown of the interpreter
        pass
    stop_requested.set()


def _terminate(program: "subprocess.Popen[bytes]") -> int:
    with suppress(ProcessLookupError):
        program.terminate()
    try:
        return program.wait(GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        program.kill()
        return program.wait()


def _kill_descendants(group: int) -> None:
    """Kill what the program left behind; the next pass finds processes that start meanwhile."""
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)
    while remaining := list(_descendants(os.getpid())):
        for pid in remaining:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.02)


def _descendants(ancestor: int) -> Iterator[int]:
    """All processes below one; none where the system has no /proc."""
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
