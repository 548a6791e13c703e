"""How the program ends: a mistake of its user is one sentence on standard error and exit code 2, never a traceback."""

import os
import re
import sys
from io import TextIOWrapper
from typing import NoReturn

import typer

from tacit.errors import TacitError


def call(program: typer.Typer) -> NoReturn:
    """Run what the command line asks for, and end."""
    _print_what_can_be()
    try:
        code = program(standalone_mode=False)
        print(end="", flush=True)  # here at the latest, a disk that is full says so
    except TacitError as error:
        _fail(str(error))
    except (typer.Abort, KeyboardInterrupt):
        sys.exit(130)
    except BrokenPipeError:  # `tacit … | head` has seen enough
        _drop_the_rest()
        sys.exit(1)
    except OSError as error:
        _drop_the_rest()
        _fail(_refusal(error))
    except Exception as error:
        # typer's errors are click's up to 0.20, which Flower asks for, and its own in later versions.
        if not hasattr(error, "format_message"):
            raise
        _fail(_once(error.format_message()))
    sys.exit(code if isinstance(code, int) else 0)


def _print_what_can_be() -> None:
    """A letter that a terminal does not know is a question mark there, and no reason to end."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="replace")


def _drop_the_rest() -> None:
    """Forget what standard output did not take, which Python would try again, and complain about, at its end."""
    try:
        print(end="", flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _refusal(error: OSError) -> str:
    """What the system has against a file; standard output has no name."""
    what = "can not go on" if error.filename is None else f"can not use {error.filename}"
    return f"{what}: {error.strerror or error}; mend that, then try again"


def _once(message: str) -> str:
    """A message with the first of its guesses: some versions of click add theirs to typer's."""
    first, *_ = re.split(r"(?<=\?) \(?Did you mean", message)
    return first


def _fail(message: str) -> NoReturn:
    if message:  # without a command there is none: the help was shown instead
        print(f"tacit: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(2)
