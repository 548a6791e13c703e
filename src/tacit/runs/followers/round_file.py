"""Notes in a run's folder where the current round stands, for `tacit hub status` and others that look from outside."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tacit.engines.events import Event, RoundProgress
from tacit.runs.directory import RunDirectory

PAUSE = 0.25  # seconds between two writes, on average
BURST = 8  # writes that may follow each other without a pause, after as many pauses without one
SHARE = 0.005  # of the run's time that writes may take


@contextmanager
def opened(directory: RunDirectory) -> Iterator[Callable[[Event], None]]:
    """Call what it yields with every event of a run; the file is gone after the block."""
    progress, next_write = RoundProgress(), 0.0

    def follow(event: Event) -> None:
        nonlocal next_write
        progress.follow(event)
        began = time.monotonic()
        if began >= next_write and progress.clients:
            directory.write_current_round(progress)
            pause = max(PAUSE, (time.monotonic() - began) / SHARE)
            next_write = max(next_write, began - BURST * PAUSE) + pause

    try:
        yield follow
    finally:
        directory.clear_current_round()
