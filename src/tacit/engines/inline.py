"""All clients one after the other in the calling process: for debugging, and where processes can not be had."""

import traceback
from collections.abc import Mapping

from tacit.engines.loop import Absent, Arrived, Job, Parcel
from tacit.engines.work import evaluate_all, struck, visit
from tacit.learn import Score
from tacit.params import Params


class InlineCourier:
    """Carries parcels nowhere. `strict` sends everything through the wire all the same."""

    def __init__(self, job: Job, strict: bool = False) -> None:
        """`strict` decodes what was encoded; otherwise bytes are only counted."""
        self._job, self._strict = job, strict

    def exchange(self, round: int, parcels: Mapping[int, Parcel]) -> Mapping[int, Arrived | Absent]:
        """Every client's outcome."""
        return {client: self._visit(round, client, parcel) for client, parcel in parcels.items()}

    def evaluate(self, model: Params) -> Score:
        """The model's score on the whole test set."""
        return evaluate_all(self._job, model)

    def close(self) -> None:
        """Nothing to end."""

    def _visit(self, round: int, client: int, parcel: Parcel) -> Arrived | Absent:
        job, codec = self._job, self._job.codec
        sent = codec.encode(parcel.down)
        if absent := struck(job, round, client, len(sent)):
            return absent
        down = codec.decode(sent, job.device) if self._strict else parcel.down
        try:
            done = visit(job, round, client, parcel.memory, down, parcel.evaluate)
            returned = b"" if done.up is None else codec.encode(done.up)
        except Exception as error:
            return Absent(f"failed: {type(error).__name__}: {error}", traceback.format_exc(), len(sent))
        up = codec.decode(returned, job.device) if self._strict and done.up is not None else done.up
        return Arrived(up, done.memory, done.metrics, len(sent), len(returned))
