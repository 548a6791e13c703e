"""A process that has imported everything, from which a site's client processes are forked.

Flower starts a new program for every message. Each would import torch again, which can take longer than the work of a
round. So `tacit site join` also runs `python -m tacit.deploy.fork_server SOCKET`, and puts a launcher with the name of
Flower's program first in the PATH, which hands its task over (`fork_client.py`).
"""

import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from shlex import quote
from typing import Any

from tacit.deploy import client_program, fork_client
from tacit.deploy.processes import write_launcher
from tacit.deploy.site_errors import refusing

CLIENT = client_program.NAME
# Flower's programs for all other kinds of tasks. They would run what the hub sends.
OTHERS = ("flwr-agentapp", "flwr-connector", "flwr-model", "flwr-serverapp", "flwr-simulation")


def command(socket_path: Path) -> list[str]:
    """The command that starts this process."""
    return [sys.executable, "-m", "tacit.deploy.fork_server", str(socket_path)]


def write_launchers(folder: Path, socket_path: Path) -> None:
    """Write programs with the names of Flower's: one connects to the fork server, the others refuse their task."""
    alone = folder / "tacit-client"
    write_launcher(alone, [sys.executable, "-m", client_program.__name__])
    write_launcher(folder / CLIENT, [sys.executable, "-IS", fork_client.__file__, str(socket_path), str(alone)])
    for name in OTHERS:
        line = refusing(f"the hub asks for {name}, and this site runs only {CLIENT}")
        write_launcher(folder / name, ["sh", "-c", f"echo {quote(line)}"])


def main(socket_path: Path) -> None:
    """Import everything, then fork a process per request until this one is ended."""
    program = client_program.load()
    assert threading.active_count() == 1, "a process with threads cannot be forked safely"
    guard: int | None = None  # the process above the last client process
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(socket_path))
        listening.listen()
        while True:
            connection, _ = listening.accept()
            with connection:
                guard = _serve(program, connection, listening, guard)


def _serve(
    program: Callable[[], Any], connection: socket.socket, listening: socket.socket, before: int | None = None
) -> int | None:
    """Fork a process for one request and confirm it; a client without a confirmation runs the task without us.

    A site works on one message at a time. So the process `before`, of an earlier request, is ended, if it has not.
    """
    outputs: list[int] = []
    guard = before
    try:
        request, outputs = fork_client.receive_request(connection)
        if request:
            _end(before)
            guard = None
            guard = os.fork()
            if not guard:
                listening.close()
                connection.close()
                _guard(program, request, outputs)
            with suppress(OSError):
                os.setpgid(guard, guard)  # by both, since either may come first
            connection.sendall(fork_client.ACCEPTED)
    except OSError as error:  # no memory for a process, or the client is gone: later requests must not fail with it
        print(f"a task was not accepted: {error}", file=sys.stderr, flush=True)
    finally:
        for output in outputs:
            os.close(output)
    return guard


def _end(guard: int | None) -> None:
    """Kill a guard and its client process, and wait for the guard, so that its number is not given to another."""
    if guard is not None:
        with suppress(ProcessLookupError):
            os.killpg(guard, signal.SIGKILL)
        os.waitpid(guard, 0)


def _guard(program: Callable[[], Any], request: dict[str, Any], outputs: list[int]) -> None:
    """Become the process above the requested one, and report a task that it leaves unfinished; never returns."""
    from tacit.engines.flower import report_lost_task

    try:
        os.setpgid(0, 0)
        client = os.fork()
        if not client:
            _run(program, request, outputs)
        _, status = os.waitpid(client, 0)
        if status:
            report_lost_task(request["arguments"])
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)


def _run(program: Callable[[], Any], request: dict[str, Any], outputs: list[int]) -> None:
    """Become the requested process; never returns."""
    code: Any = 1
    try:
        for number, output in enumerate(outputs, start=1):
            os.dup2(output, number)
        os.environ.clear()
        os.environ.update(request["environment"])
        os.chdir(request["folder"])
        sys.argv = [CLIENT, *request["arguments"]]
        code = program()
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else int(code is not None))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
