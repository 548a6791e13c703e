"""Whether this machine's clock agrees with the hub's: the hub refuses signatures from another time without a reason."""

import ssl
import time
import urllib.request
from email.utils import parsedate_to_datetime
from http.client import HTTPException
from pathlib import Path

from tacit.errors import TacitError

# Flower accepts a signature that is up to 5 s from the future and 305 s from the past. A Date header has whole seconds.
AHEAD, BEHIND = 4.0, 300.0
PATIENCE = 5.0  # seconds to wait for the hub


def clock_ahead(address: str, authority: Path | None) -> float | None:
    """By how many seconds this machine's clock is ahead of that of the hub; None if the hub does not say its time."""
    try:
        context = ssl.create_default_context(cafile=str(authority)) if authority else None
        handlers = [urllib.request.HTTPSHandler(context=context)] if context else []
        url = f"http{'s' if authority else ''}://{address}/health"
        with urllib.request.build_opener(*handlers).open(url, timeout=PATIENCE) as answer:
            there = parsedate_to_datetime(answer.headers["Date"]).timestamp()
            return time.time() - there
    except (OSError, HTTPException, ValueError, TypeError):  # no answer, no certificate of this hub, or no date
        return None


def require_clock(address: str, authority: Path | None) -> None:
    """Refuse to join with a clock that the hub would not accept."""
    ahead = clock_ahead(address, authority)
    if ahead is not None and not -BEHIND <= ahead <= AHEAD:
        how = f"{abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} the hub's"
        raise TacitError(
            f"this machine's clock is {how}, so the hub refuses this site",
            "set the clock, and keep it right with NTP",
            code="site.wrong-clock",
        )
