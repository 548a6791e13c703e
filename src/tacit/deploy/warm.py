"""A process that has imported everything, out of which a site's client processes are forked.

Flower starts a new program for every message, and each would import torch anew, which can take longer than a round's
work. So `tacit site join` runs this one, `python -m tacit.deploy.warm DOOR`, beside the SuperNode, and puts a program
of the same name before Flower's own, which hands its task over (`knock.py`).
"""

import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from shlex import quote
from typing import Any

from tacit.deploy import knock, programs

CLIENT = "flwr-clientapp"  # Flower's program for a client


def command(door: Path) -> list[str]:
    """The command that starts this process."""
    return [sys.executable, "-m", "tacit.deploy.warm", str(door)]


def write_program(folder: Path, door: Path) -> None:
    """A program that goes by the name of Flower's and knocks at the door instead."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    words = [sys.executable, "-IS", knock.__file__, str(door), programs.find(CLIENT)]
    text = f'#!/bin/sh\nexec {" ".join(map(quote, words))} "$@"\n'
    partial = folder / f".{CLIENT}"
    partial.write_text(text, encoding="utf-8")
    partial.chmod(0o700)
    partial.replace(folder / CLIENT)


def main(door: Path) -> None:
    """Import, then fork for whoever knocks, until it is ended."""
    program = _prepared()
    assert threading.active_count() == 1, "a process with threads can not be forked safely"
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how they ended, so they need not be waited for
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(door))
        listening.listen()
        while True:
            visitor, _ = listening.accept()
            with visitor:
                _serve(program, visitor, listening)


def _serve(program: Callable[[], Any], visitor: socket.socket, listening: socket.socket) -> None:
    """Fork a process for whoever knocks, and say so; without that word the visitor does it by itself."""
    outputs: list[int] = []
    try:
        asked, outputs = knock.receive(visitor)
        if asked and not os.fork():
            listening.close()
            visitor.close()
            _run(program, asked, outputs)
        if asked:
            visitor.sendall(knock.TAKEN)
    except OSError as error:  # no room for a process, or the visitor is gone: no reason to fail those who come next
        print(f"a task was not taken: {error}", file=sys.stderr, flush=True)
    finally:
        for output in outputs:
            os.close(output)


def _prepared() -> Callable[[], Any]:
    """Flower's program as a function, once it and all that a site works with are imported."""
    from tacit.deploy import apps
    from tacit.engines.flower import look_often

    apps.client()
    look_often()
    (found,) = entry_points(group="console_scripts", name=CLIENT)
    program: Callable[[], Any] = found.load()
    return program


def _run(program: Callable[[], Any], asked: dict[str, Any], outputs: list[int]) -> None:
    """Become the process that was asked for; never returns."""
    code: Any = 1
    try:
        for place, output in enumerate(outputs, start=1):
            os.dup2(output, place)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.environ.clear()
        os.environ.update(asked["environment"])
        os.chdir(asked["folder"])
        sys.argv = [CLIENT, *asked["arguments"]]
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
