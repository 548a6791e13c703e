"""All clients one after the other in the calling process: for debugging, and where no processes can be started."""

from collections.abc import Generator, Mapping
from dataclasses import replace

from tacit.engines import failures
from tacit.engines.client import evaluate_all, injected_failure, run_client
from tacit.engines.events import ClientStarted
from tacit.engines.job import ClientNews, ClientOutcome, ClientTask, Job
from tacit.learn import Score
from tacit.params import Params


class InProcessTransport:
    """Runs every task in this process; `strict` still sends every message through the codec."""

    def __init__(self, job: Job, strict: bool = False) -> None:
        """`strict` decodes what was encoded; otherwise messages are encoded only to count their bytes."""
        self._job, self._strict = job, strict

    def run(self, round: int, tasks: Mapping[int, ClientTask]) -> Generator[ClientNews]:
        """Run one client after the other."""
        for client, task in tasks.items():
            yield ClientStarted(round, client)
            yield client, self._run(round, client, task)

    def evaluate(self, model: Params, *, outputs: bool = False) -> Score:
        """The model's score on the whole test set."""
        return evaluate_all(self._job, model, outputs=outputs)

    def close(self) -> None:
        """Nothing to end."""

    def _run(self, round: int, client: int, task: ClientTask) -> ClientOutcome:
        job, sent = self._job, self._job.codec.encode(task.down)
        if failure := injected_failure(job, round, client):
            return failure.with_bytes(len(sent))
        try:
            result = run_client(job, round, client, replace(task, down=self._delivered(sent, task.down)))
            returned = b"" if result.up is None else job.codec.encode(result.up)
        except Exception as error:
            return failures.failed(error).with_bytes(len(sent))
        if result.up is not None:
            result = replace(result, up=self._delivered(returned, result.up))
        return result.with_bytes(len(sent), len(returned))

    def _delivered(self, encoded: bytes, message: object) -> object:
        return self._job.codec.decode(encoded, self._job.device) if self._strict else message
