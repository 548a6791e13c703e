"""Hands a task over to the warm process: a script of its own, `python knock.py DOOR PROGRAM ARGUMENT…`.

Where nobody opens, or whoever does has no process for it, PROGRAM does it itself. It imports next to nothing, so that
it starts at once.
"""

import json
import os
import socket
import sys
from pathlib import Path

OUTPUTS = (1, 2)  # what the process that takes over writes to
TAKEN = b"!"  # the answer once there is such a process


def send(door: str, arguments: list[str]) -> None:
    """Ask for a process with these arguments, in this folder and environment, that writes where this one does.

    Raises an OSError where there is none: a request that waits in line is lost with whoever was to take it.
    """
    asked = json.dumps({"arguments": arguments, "folder": str(Path.cwd()), "environment": dict(os.environ)})
    with socket.socket(socket.AF_UNIX) as visitor:
        visitor.connect(door)
        socket.send_fds(visitor, [b"?"], OUTPUTS)
        visitor.sendall(asked.encode())
        visitor.shutdown(socket.SHUT_WR)
        if visitor.recv(len(TAKEN)) != TAKEN:
            raise ConnectionAbortedError("nobody has taken the task")


def receive(visitor: socket.socket) -> tuple[dict[str, object] | None, list[int]]:
    """What is asked for, and where it is to write; None if whoever knocked went away."""
    _, outputs, _, _ = socket.recv_fds(visitor, 1, len(OUTPUTS))
    said = b"".join(iter(lambda: visitor.recv(65536), b""))
    try:
        return json.loads(said), outputs
    except ValueError:
        return None, outputs


if __name__ == "__main__":
    try:
        send(sys.argv[1], sys.argv[3:])
    except OSError:
        os.execv(sys.argv[2], sys.argv[2:])
