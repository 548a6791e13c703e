"""Flower's SuperExec, which hands tokens over in files. A script: `python superexec.py FOLDER ARGUMENT…`.

The arguments are those of `flower-superexec`. It starts a process for every task and gives it a token, with which the
process fetches its message and sends its reply. Flower's own puts the token into the command line, which every user of
the machine can read, and with it answer as the site, or read what all sites send. Here the token is in a file in
FOLDER, which only its owner can read.

The script imports nothing of Tacit, so it starts as fast as Flower's program.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

KEPT = 100  # files; the oldest belong to tasks that have ended, whose tokens are worth nothing


def with_token_file(words: Sequence[str], folder: Path) -> list[str]:
    """The command with its token in a file."""
    if "--token" not in words:
        return list(words)
    place = words.index("--token")
    file = folder / uuid4().hex
    handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w", encoding="ascii") as output:
        output.write(words[place + 1])
    for old in sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime_ns)[:-KEPT]:
        old.unlink(missing_ok=True)
    return [*words[:place], "--token-file", str(file), *words[place + 2 :]]


def hide_tokens(folder: Path) -> None:
    """Make the SuperExec that this process will run start its programs with `with_token_file`."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    executor: Any = import_module("flwr.supercore.superexec.executor.subprocess_executor")

    def start(words: Sequence[str], **options: Any) -> Any:
        return subprocess.Popen(with_token_file(words, folder), **options)

    executor.subprocess = SimpleNamespace(Popen=start, DEVNULL=subprocess.DEVNULL)


if __name__ == "__main__":
    hide_tokens(Path(sys.argv[1]))
    sys.argv = ["flower-superexec", *sys.argv[2:]]
    sys.exit(import_module("flwr.supercore.cli").flower_superexec())
