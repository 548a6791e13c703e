"""Hand a task over to the fork server. A script: `python fork_client.py SOCKET PROGRAM ARGUMENT…`.

If the fork server does not respond, or cannot start a process, PROGRAM runs here instead. The script imports next to
nothing, so it starts at once.
"""

import json
import os
import socket
import sys
from pathlib import Path

OUTPUTS = (1, 2)  # standard output and error, which the forked process takes over
ACCEPTED = b"!"  # the fork server's reply once the process runs


def request_process(socket_path: str, arguments: list[str]) -> None:
    """Ask for a process with these arguments, in this folder and environment, with the outputs of this one.

    Raises an OSError if none was started: a request still in the queue is lost when the fork server ends.
    """
    request = json.dumps({"arguments": arguments, "folder": str(Path.cwd()), "environment": dict(os.environ)})
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(socket_path)
        socket.send_fds(connection, [b"?"], OUTPUTS)
        connection.sendall(request.encode())
        connection.shutdown(socket.SHUT_WR)
        if connection.recv(len(ACCEPTED)) != ACCEPTED:
            raise ConnectionAbortedError("the fork server did not accept the task")


def receive_request(connection: socket.socket) -> tuple[dict[str, object] | None, list[int]]:
    """A request and the outputs sent with it; None if the connection was closed before it was complete."""
    _, outputs, _, _ = socket.recv_fds(connection, 1, len(OUTPUTS))
    received = b"".join(iter(lambda: connection.recv(65536), b""))
    try:
        return json.loads(received), outputs
    except ValueError:
        return None, outputs


if __name__ == "__main__":
    try:
        request_process(sys.argv[1], sys.argv[3:])
    except OSError:
        os.execv(sys.argv[2], sys.argv[2:])
