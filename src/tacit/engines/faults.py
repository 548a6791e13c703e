"""Faults a simulation can inject, so that what the engine promises under faults is tested for real."""

from dataclasses import dataclass

from tacit.method import Probability
from tacit.random import Streams


@dataclass(frozen=True)
class Faults:
    """Probabilities, each drawn per client and round from a stream of its own: the section `[faults]` of a config."""

    lost: Probability = 0.0  # the upload gets lost after the client did its work
    nonfinite: Probability = 0.0  # the upload holds a NaN
    slow: Probability = 0.0  # the client takes longer than engine.deadline
    crash: Probability = 0.0  # the client's process dies; drawn again for the second attempt

    def strikes(self, kind: str, streams: Streams, round: int, client: int, attempt: int = 0) -> bool:
        """Whether this kind of fault hits this client in this round."""
        probability: float = getattr(self, kind)
        if not probability:
            return False
        return bool(streams.numpy_at(f"fault {kind} {attempt}", round=round, client=client).random() < probability)
