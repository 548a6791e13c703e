"""What samples a model has seen, in a few numbers, so that a prediction can notice samples of another kind."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

MOST = 500  # samples that are measured: enough for means and shares, and a moment's work
QUANTILES = 21  # of the confidence
DIGITS = 6  # the last bits of a float say nothing here


@dataclass(frozen=True)
class Reference:
    """Statistics of the samples that a model was tested on."""

    samples: int
    levels: tuple[float, ...]  # mean of each channel (0..1) or feature; empty for text
    spread: tuple[float, ...]  # deviation of that between samples
    confidence: tuple[float, ...]  # quantiles of the largest probability, from the least to the most confident sample

    def __post_init__(self) -> None:
        """Refuse parts that do not belong together."""
        if len(self.levels) != len(self.spread) or len(self.confidence) < 2:
            raise ValueError("its reference statistics are incomplete")

    def to_plain(self) -> dict[str, Any]:
        """As plain values."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    @classmethod
    def from_plain(cls, values: Mapping[str, Any]) -> "Reference":
        """From `to_plain`."""
        levels, spread, confidence = (tuple(map(float, values[name])) for name in ("levels", "spread", "confidence"))
        return cls(int(values["samples"]), levels, spread, confidence)

    def share_below(self, threshold: float) -> float:
        """The share of samples whose confidence is below a threshold."""
        steps = len(self.confidence) - 1
        below = sum(value < threshold for value in self.confidence)
        if below in (0, len(self.confidence)):
            return float(below > 0)
        low, high = self.confidence[below - 1], self.confidence[below]
        return (below - 1 + (threshold - low) / (high - low)) / steps


def some_rows(count: int) -> Tensor:
    """Positions of at most MOST samples, spread evenly over all."""
    return torch.arange(count) if count <= MOST else torch.arange(MOST) * count // MOST


def measure(levels: Tensor, probabilities: Tensor) -> Reference | None:
    """From the levels (n, k) and the probabilities (n, c) of some samples; None if any number is not finite."""
    if not len(probabilities) or not (torch.isfinite(levels).all() and torch.isfinite(probabilities).all()):
        return None
    of_samples, sure = levels.double().numpy(), probabilities.double().amax(dim=1).numpy()
    return Reference(
        len(levels),
        _rounded(of_samples.mean(axis=0)),
        _rounded(of_samples.std(axis=0)),
        _rounded(np.quantile(sure, np.linspace(0, 1, QUANTILES))),
    )


def _rounded(values: NDArray[np.float64]) -> tuple[float, ...]:
    """With as many digits as count, whatever their size."""
    return tuple(_significant(value) for value in values.tolist())


def _significant(value: float) -> float:
    return round(value, DIGITS - 1 - math.floor(math.log10(abs(value)))) if value else 0.0
