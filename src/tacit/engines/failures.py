"""Every reason why a client is missing from a round: a code for programs, and words that follow the client's name."""

import re
import traceback

from tacit.engines.job import ClientFailure
from tacit.errors import TacitError
from tacit.formatting import printable

REASON = 500  # characters of a reason
DETAIL = 20_000  # characters of a traceback, the last ones, which say most


def worker_died() -> ClientFailure:
    """Two worker processes died while they worked for the client."""
    return ClientFailure("client.worker-died", "its worker died twice")


def too_slow(deadline: float | None) -> ClientFailure:
    """The client did not finish within the deadline, in seconds."""
    return ClientFailure("client.too-slow", f"took longer than {deadline} s")


def upload_lost() -> ClientFailure:
    """The client worked, but its upload did not arrive."""
    return ClientFailure("client.upload-lost", "upload lost")


def not_finite() -> ClientFailure:
    """The upload holds a NaN or an infinity."""
    return ClientFailure("client.not-finite", "sent non-finite numbers")


def broken_model() -> ClientFailure:
    """The upload is not finite, and neither was what the client had received: it is not the one to blame."""
    return ClientFailure("client.broken-model", "received a model that was not finite")


def diverged() -> ClientFailure:
    """The uploads of all clients are not finite: that lies in the model they received, not in one of them."""
    return ClientFailure("client.diverged", "sent non-finite numbers, as all clients did: training diverges")


def breaks_the_model() -> ClientFailure:
    """Every number in the upload is finite, but the average is only without it."""
    return ClientFailure("client.breaks-model", "sent numbers so large that they would break the merged model")


def cannot_be_merged(error: Exception) -> ClientFailure:
    """The uploads can be merged without this one only."""
    what = f"{type(error).__name__}: {error}"
    return ClientFailure("client.cannot-merge", f"sent an upload that cannot be merged ({_one_line(what)})")


def not_aggregated(why: str) -> ClientFailure:
    """Secure aggregation gave no sum, or one without this client."""
    return ClientFailure("client.not-aggregated", f"is in no sum: {_one_line(why)}")


def too_far(how: str) -> ClientFailure:
    """The update is longer than `[limits]` allows; `how` says by how much."""
    return ClientFailure("client.too-far", f"sent an update that {how}")


def too_much_memory(size: int, most: int) -> ClientFailure:
    """The reply carries more memory than a client may have."""
    return ClientFailure("client.too-much-memory", f"sent {size:,} bytes of memory, more than {most:,}")


def left_out() -> ClientFailure:
    """The operator left the client out of this and all later rounds."""
    return ClientFailure("client.left-out", "was left out with --without")


def bad_upload(problem: str) -> ClientFailure:
    """The upload does not have the form that its method declares."""
    return ClientFailure("client.bad-upload", f"sent a bad upload: {_one_line(problem)}")


def too_large(size: int, longest: int) -> ClientFailure:
    """The upload is larger than any upload of its method can be."""
    return ClientFailure("client.too-large", f"sent {size:,} bytes, more than the {longest:,} an upload can have")


def failed(error: Exception) -> ClientFailure:
    """The client's work raised; call it while the error is handled, since it takes the traceback along."""
    reason = str(error) if isinstance(error, TacitError) else f"{type(error).__name__}: {error}"
    return _failed(reason, traceback.format_exc())


def withheld(code: str, count: int) -> ClientFailure:
    """The client's work raised, and its site keeps the error's text and traceback to itself."""
    return _failed(f"{code}, failure {count} of this site in this run; its operator's terminal shows the details")


def reported(code: str, reason: str, detail: str) -> ClientFailure:
    """A failure in the words of another process, which may say anything: short, printable, under a code of ours."""
    known = code if re.fullmatch(r"[a-z-]{1,40}\.[a-z0-9-]{1,60}", code) else "client.failed"
    return ClientFailure(known, _one_line(reason), _detail(detail))


def not_connected() -> ClientFailure:
    """No node is connected under the client's name."""
    return ClientFailure("client.not-connected", "is not connected")


def refused(reason: str) -> ClientFailure:
    """The site does not take part in this run."""
    return ClientFailure("client.refused", f"refused: {_one_line(reason)}")


def unreadable(error: Exception) -> ClientFailure:
    """The client's answer is not what this version sends."""
    what = f"sent a message that cannot be read ({type(error).__name__}: {_one_line(error)})"
    return ClientFailure("client.unreadable", f"{what}; check that it runs the same version of Tacit")


def unreachable() -> ClientFailure:
    """The message to the client was not accepted."""
    return ClientFailure("client.unreachable", "could not be reached")


def no_answer() -> ClientFailure:
    """The node has the message but has not answered."""
    return ClientFailure("client.no-answer", "did not answer in time")


def disconnected() -> ClientFailure:
    """The node left before it answered."""
    return ClientFailure("client.disconnected", "has disconnected")


def incomplete() -> ClientFailure:
    """The client's answer was announced, but not all of it arrived, or the client was removed meanwhile."""
    return ClientFailure("client.incomplete", "was removed, or its answer did not arrive as a whole")


def crashed() -> ClientFailure:
    """The client's process ended without an answer."""
    return ClientFailure("client.crashed", "failed: its process ended without an answer")


EXPIRED = (3, 4)  # Flower's codes for a message or an answer that is gone, also since its time was over
_LOST = {3: incomplete, 4: no_answer, 5: disconnected, 8: crashed}  # by Flower's code


def lost(code: int, reason: str | None) -> ClientFailure:
    """Flower answers with an error instead of the node."""
    return _LOST[code]() if code in _LOST else _failed(reason or f"Flower reports error {code}")


def _failed(reason: str, detail: str = "") -> ClientFailure:
    return ClientFailure("client.failed", f"failed: {_one_line(reason)}", _detail(detail))


def _one_line(text: object) -> str:
    return printable(" ".join(printable(str(text)[: 4 * REASON]).split()), REASON)


def _detail(text: str) -> str:
    return printable(text[-DETAIL:], lines=True)
