"""A method whose clients wait while a file tells them to, for tests that need a site to hang."""

import time
from dataclasses import dataclass
from pathlib import Path

from tacit.method import ClientContext, Reply
from tests.engines.farm import PATIENCE, Tally, TallyDown, TallyMemory, TallyUp


@dataclass(frozen=True)
class Obedient(Tally):
    """A tally whose client k waits while there is a file `wait-k` in a folder, and says so by a file `waits-k`."""

    folder: str = ""  # where the files are

    def client_update(
        self, client: ClientContext, memory: TallyMemory | None, down: TallyDown
    ) -> Reply[TallyMemory, TallyUp]:
        """Wait, then go on."""
        folder, until = Path(self.folder), time.monotonic() + 2 * PATIENCE
        while (folder / f"wait-{client.client}").exists() and time.monotonic() < until:
            (folder / f"waits-{client.client}").touch()
            time.sleep(0.05)
        return super().client_update(client, memory, down)
