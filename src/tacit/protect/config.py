"""The section `[protect]` of a config: against hostile clients, and for the privacy of clients and samples."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from tacit.method import NonNegative, Positive

FEWEST = 3  # vectors in a sum of secure aggregation: with two, each client knows the other's
OpenShare = Annotated[float, Field(gt=0, lt=1)]


@dataclass(frozen=True)
class Protection:
    """Nothing is protected unless it is set, and then the numbers of a run change."""

    combine: str = "mean"  # how updates become one: mean, clipped, median, trimmed:0.2, krum:1, multi-krum:1, bulyan:1
    client_noise: NonNegative | None = None  # hides who took part: noise on the sum of updates, in units of client_clip
    client_clip: Positive | None = None  # with client_noise: the largest length of a client's update
    delta: OpenShare | None = None  # δ of (ε, δ); when not given, 1e-5 or clients^-1.1, whichever is smaller
    sample_noise: NonNegative | None = None  # DP-SGD at clients: noise of a step, in multiples of sample_clip
    sample_clip: Positive = 1.0  # largest norm of the gradient of one sample, with sample_noise
    secure: bool = False  # secure aggregation: the server sees the sum of the uploads only

    @property
    def hides_clients(self) -> bool:
        """Whether client-level differential privacy is on: clients come by chance, and only a noisy sum counts."""
        return self.client_noise is not None

    @property
    def silences_clients(self) -> bool:
        """Whether a count of right labels would tell more about a client than its protected updates do."""
        return self.secure or self.hides_clients or self.sample_noise is not None

    def delta_for(self, clients: int) -> float:
        """δ: the setting, or far less than one in the number of clients."""
        return min(1e-5, clients**-1.1) if self.delta is None else self.delta


def threshold(clients: int, least: int = FEWEST) -> int:
    """How many clients must stay in a round of secure aggregation, of this many that begin; not fewer than `least`."""
    return max(FEWEST, least, 2 * clients // 3 + 1)
