"""The server's connection to the nodes: Flower's grid, polled faster, and the app that gets it."""

import math
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from typing import Any

from flwr.app import Context, Message
from flwr.serverapp import Grid, ServerApp
from flwr.supercore.inflatable import inflatable_utils

from tacit.engines import failures
from tacit.engines.job import ClientFailure
from tacit.errors import TacitError

PART_POLL = 0.1  # seconds between two requests for a part of a message that has not arrived yet
PART_WAIT = (
    300.0  # seconds after which such a part is given up; Flower gives up a message that stops arriving after 180
)

Answer = Message | ClientFailure | None  # the failure: it was not sent; None: no answer came in time


class GridClient:
    """Sends messages over a grid and waits for the answers; it polls faster than the grid's own three seconds."""

    def __init__(self, grid: Grid, alive: Callable[[], bool] = lambda: True) -> None:
        """`alive` says whether the grid still works."""
        self.grid, self._alive = grid, alive

    def node_ids(self) -> Iterable[int]:
        """The nodes that are connected."""
        ids: Iterable[int] = self.grid.get_node_ids()
        return ids

    def ask(self, messages: Mapping[int, Message], timeout: float | None) -> Generator[tuple[int, Answer] | None]:
        """Send messages and yield the answer to each as it arrives, and None whenever there is nothing new."""
        taken = set(self.grid.push_messages(list(messages.values()))) if messages else set()
        if messages and not taken:
            raise TacitError(
                "Flower does not accept messages of this size", "use a smaller network", code="flower.message-too-large"
            )
        sent = {key: message.metadata.message_id for key, message in messages.items()}
        waiting = {id: key for key, id in sent.items() if id in taken}
        yield from ((key, failures.unreachable()) for key, id in sent.items() if id not in taken)
        began, late = time.monotonic(), False
        while waiting and not late:
            late = timeout is not None and time.monotonic() >= began + timeout
            arrived = list(self.grid.pull_messages(list(waiting)))
            yield from ((waiting.pop(answer.metadata.reply_to_message_id), answer) for answer in arrived)
            if waiting and not self._alive():
                raise TacitError(
                    "Flower's simulation ended before the run was finished",
                    "read its output above",
                    code="flower.simulation-ended",
                    resumable=True,
                )
            if waiting and not arrived:
                yield None
            time.sleep(min(0.02 + (time.monotonic() - began) / 20, 1.0) if waiting else 0)
        yield from ((key, None) for key in waiting.values())


def poll_faster() -> None:
    """Make Flower poll for the parts of a message every PART_POLL seconds, not after one second, then two, then four.

    A message is announced before its arrays have arrived, so a process that starts fast would wait longest. A part that
    does not arrive is given up after PART_WAIT seconds, not after an hour; a large message may take longer as a whole.
    """
    pace = {"initial_backoff": PART_POLL, "backoff_cap": PART_POLL, "max_tries_per_object": int(PART_WAIT / PART_POLL)}
    for name in ("pull_objects", "pull_and_inflate_object_from_tree"):
        defaults = getattr(inflatable_utils, name).__kwdefaults__
        defaults |= pace | {"max_time": math.inf}


def server_app(main: Callable[[GridClient, Mapping[str, Any]], None]) -> ServerApp:
    """The app of a hub: `main` gets the connection to the nodes and the settings that the run was started with."""
    app = ServerApp()

    @app.main()
    def begin(grid: Grid, context: Context) -> None:
        poll_faster()
        main(GridClient(grid), context.run_config)

    return app
