"""Faults that a simulation can inject, so that the engine's promises under faults can be tested."""

from dataclasses import dataclass
from typing import Literal

from tacit.method import Natural, Positive, Probability
from tacit.random import Streams


@dataclass(frozen=True)
class Faults:
    """The section `[faults]` of a config: probabilities, each drawn per client and round, and hostile clients."""

    lost: Probability = 0.0  # the upload is lost after the client has finished
    nonfinite: Probability = 0.0  # the upload holds a NaN
    slow: Probability = 0.0  # the client takes longer than engine.deadline
    crash: Probability = 0.0  # the client's process dies; drawn again for the second attempt
    hostile: Natural = 0  # clients that attack in every round; which ones, the seed decides
    attack: Literal["sign", "scale", "random", "labels", "little"] = "sign"  # what hostile clients do
    strength: Positive | None = None  # of the attack: 1 for sign and random, 10 for scale, 1.5 for little if not given

    def occurs(self, kind: str, streams: Streams, round: int, client: int, attempt: int = 0) -> bool:
        """Whether this kind of fault hits this client in this round."""
        probability: float = getattr(self, kind)
        if not probability:
            return False
        return bool(streams.numpy_at(f"fault {kind} {attempt}", round=round, client=client).random() < probability)
