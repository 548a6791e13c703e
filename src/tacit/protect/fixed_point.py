"""Models as whole numbers modulo 2^64, so that masks can hide them and their sum is exact.

A number x becomes round(x·2^24). The sum of K such numbers differs from the real sum by at most K·2^-25, whatever their
order: sums of whole numbers are exact.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Words = NDArray[np.uint64]

FRACTION = 24  # bits after the point
BYTES = 8  # of a number


class OutOfRangeError(ValueError):
    """A number that is not finite, or so large that the sum of all clients could overflow."""


def encode(values: Sequence[Tensor], weight: float, clients: int) -> Words:
    """weight · values, flattened and joined, as whole numbers; the sum over this many clients cannot overflow."""
    flat = torch.cat([value.detach().double().cpu().reshape(-1) for value in values]) * weight
    limit = 2.0 ** (63 - FRACTION) / clients
    if not bool((flat.abs() < limit).all()):  # False for NaN too
        raise OutOfRangeError(f"a number of the update is not finite, or not below {limit:.3g} with its weight")
    return (flat * 2.0**FRACTION).round().to(torch.int64).numpy().view(np.uint64)


def decode(words: Words) -> Tensor:
    """The numbers (n,) as doubles."""
    return torch.from_numpy(words.view(np.int64).astype(np.float64) / 2.0**FRACTION)
