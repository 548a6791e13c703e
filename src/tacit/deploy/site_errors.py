"""Errors at a site: its own operator sees them in full, the hub never learns anything about the site's disk."""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from tacit.errors import TacitError

_MARK = "tacit refuses: "  # begins the line in a SuperNode's log that says why the site does not take part
_FAILED = "tacit failed: "  # begins the line that says why the site could not do its work


class ShareableError(TacitError):
    """An error that names no path and no file of this machine, so the hub may read it.

    All other errors reach the hub as their code only.
    """


@contextmanager
def shared_with_hub() -> Iterator[None]:
    """Print an error on this machine in full, and raise what the hub may read of it.

    The cause is cut off, since the traceback may be sent too.
    """
    try:
        yield
    except TacitError as error:
        print(refusing(str(error)), flush=True)
        raise for_hub(error) from None
    except Exception as error:
        traceback.print_exc()
        print(refusing(f"{type(error).__name__}: {error}"), flush=True)
        raise for_hub(TacitError("the site failed", code="site.failed")) from None


def withheld_code(error: Exception) -> str:
    """Print an error in full on this machine, while it is handled; the hub may learn the code that this returns."""
    if isinstance(error, ShareableError):  # printed when it was raised, and written for the hub
        return _one_line(str(error))
    traceback.print_exc()
    known = isinstance(error, TacitError)
    print(_FAILED + _one_line(str(error) if known else f"{type(error).__name__}: {error}"), flush=True)
    return error.code if isinstance(error, TacitError) else type(error).__name__


def for_hub(error: TacitError) -> ShareableError:
    """The same error without anything about this machine."""
    if isinstance(error, ShareableError):
        return error
    return ShareableError(
        f"the site has a problem with its data or settings ({error.code})",
        "ask its operator, whose terminal shows the details",
        code=error.code,
    )


def refusing(reason: str) -> str:
    """The line that tells this site's operator a reason."""
    return _MARK + _one_line(reason)


def printed_reason(line: str) -> str:
    """What a line that was printed here says to the site's operator; empty for any other line."""
    if refusal := line.partition(_MARK)[2].strip():
        return f"not taking part: {refusal}"
    failure = line.partition(_FAILED)[2].strip()
    return f"failed in this round: {failure}" if failure else ""


def _one_line(text: str) -> str:
    return " ".join(text.split())
