"""Background programs: they and everything they started end with their starter, and on signals."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from tacit.deploy.processes import interrupt_on_termination
from tests.engines.farm import eventually, processes

SLEEPERS = "import subprocess, time; subprocess.Popen(['sleep', '77.5'], start_new_session=True); time.sleep(60)"


def alive(among: Iterable[int]) -> set[int]:
    return set(among) & {process.pid for process in processes()}


def with_descendants(pid: int) -> set[int]:
    found, table = {pid}, list(processes())
    while more := {each.pid for each in table if each.parent in found} - found:
        found |= more
    return found


@pytest.mark.parametrize("end", ["stop", "kill the starter", "kill the program"])
def test_a_program_leaves_no_process_behind(end: str, tmp_path: Path) -> None:
    """The program starts another one in a new session, as Flower's programs do."""
    starter = f"""
import os, sys, time
from pathlib import Path
from tacit.deploy.processes import Program
program = Program([sys.executable, "-c", {SLEEPERS!r}], os.environ, Path({str(tmp_path / "log")!r}))
print(program.group, flush=True)
sys.stdin.read()
program.stop()
"""
    with subprocess.Popen([sys.executable, "-c", starter], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stdin
        group = int(process.stdout.readline())
        assert eventually(lambda: len(with_descendants(group)) == 3)
        started = with_descendants(group)
        if end == "stop":
            process.stdin.close()
        elif end == "kill the starter":
            process.kill()
        else:
            os.kill(min(started - {group}), signal.SIGKILL)
        assert eventually(lambda: not alive(started))
        process.kill()


def test_a_closed_terminal_interrupts_except_under_nohup() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interrupt_on_termination():
            os.kill(os.getpid(), signal.SIGHUP)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        with pytest.raises(KeyboardInterrupt), interrupt_on_termination():
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)
