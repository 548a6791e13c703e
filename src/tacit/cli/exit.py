"""How the program ends: a user's mistake is one sentence on standard error and exit code 2, never a traceback."""

import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from typing import NoReturn

import typer

from tacit.errors import TacitError
from tacit.formatting import printable


def call(program: typer.Typer) -> NoReturn:
    """Run the command line and exit."""
    _replace_unprintable()
    try:
        code = program(standalone_mode=False)
        print(end="", flush=True)  # a full disk shows up here at the latest
    except TacitError as error:
        _fail(str(error))
    except (typer.Abort, KeyboardInterrupt):
        sys.exit(130)
    except BrokenPipeError:  # `tacit … | head`
        _discard_output()
        sys.exit(1)
    except OSError as error:
        _discard_output()
        _fail(str(_system_error(error)))
    except Exception as error:
        # typer's errors are click's up to 0.20, which Flower requires, and its own in later versions.
        if not hasattr(error, "format_message"):
            raise
        _fail(_first_guess(error.format_message()))
    sys.exit(code if isinstance(code, int) else 0)


@contextmanager
def interruptible(command: str = "", how_far: Callable[[], str] = lambda: "") -> Iterator[None]:
    """On Ctrl-C, print how far the block got and the command that continues it; default: the same command."""
    try:
        yield
    except KeyboardInterrupt:
        resume = f"continue with: {command}" if command else "run the same command to continue"
        print(f"stopped{how_far()}; {resume}", file=sys.stderr)
        raise


def _replace_unprintable() -> None:
    """Print a question mark for a character that the terminal's encoding lacks, instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="replace")


def _discard_output() -> None:
    """Discard what standard output did not take; Python would try to write it again at exit, and complain."""
    try:
        print(end="", flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _system_error(error: OSError) -> TacitError:
    """An error of the operating system as one sentence; standard output has no file name."""
    what = "cannot continue" if error.filename is None else f"cannot use {error.filename}"
    return TacitError(f"{what}: {error.strerror or error}", "correct this and try again", code="cli.system-error")


def _first_guess(message: str) -> str:
    """A message with only the first suggestion: some versions of click add theirs to typer's."""
    first, *_ = re.split(r"(?<=\?) \(?Did you mean", message)
    return first


def _fail(message: str) -> NoReturn:
    if message:  # without a command there is none: the help was printed instead
        print(f"tacit: {printable(' '.join(message.split()))}", file=sys.stderr)
    sys.exit(2)
