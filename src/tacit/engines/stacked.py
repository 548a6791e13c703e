"""Clients in this process, several at a time as one batched model where their training allows it."""

from collections.abc import Generator, Mapping, Sequence
from functools import partial

from tacit.engines.client import run_client
from tacit.engines.events import ClientStarted
from tacit.engines.in_process import InProcessTransport
from tacit.engines.job import ClientNews, ClientTask, Job
from tacit.learn import Trained
from tacit.learn.stacked import answered, asked, fit_stacked


class StackedTransport(InProcessTransport):
    """Trains up to `size` clients at once; those that cannot be stacked train one after the other."""

    def __init__(self, job: Job, size: int) -> None:
        """For methods and settings that can be stacked see `fit_stacked`."""
        super().__init__(job)
        self._size = size

    def run(self, round: int, tasks: Mapping[int, ClientTask]) -> Generator[ClientNews]:
        """Run the clients group by group."""
        every = list(tasks.items())
        for first in range(0, len(every), self._size):
            group = every[first : first + self._size]
            for client, _ in group:
                yield ClientStarted(round, client)
            visits = [asked(partial(run_client, self._job, round, client, task)) for client, task in group]
            known = [visit for visit in visits if visit is not None]
            stacked: Sequence[Trained | None] | None = fit_stacked(known)
            trained = iter(stacked or [None] * len(known))
            for (client, task), visit in zip(group, visits, strict=True):
                with answered(None if visit is None else next(trained)):
                    outcome = self._run(round, client, task)
                yield client, outcome
