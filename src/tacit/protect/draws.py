"""Random numbers that protect samples: from a named stream in a simulation, from the operating system at a site.

A hub knows the seed of its runs. It could repeat what a site draws from it, subtract the noise, and see which samples
were in a batch. So a site draws from its operating system, which cannot be repeated.
"""

import math
import os

import torch
from torch import Tensor

_RESOLUTION = 2.0**-53  # of a double between 1/2 and 1


def uniform(count: int, stream: torch.Generator | None) -> Tensor:
    """(count,) numbers between 0 and 1, as doubles; without a stream they come from the operating system."""
    if stream is not None:
        return torch.rand(count, dtype=torch.float64, generator=stream)
    whole = torch.frombuffer(bytearray(os.urandom(8 * count)), dtype=torch.int64) if count else torch.empty(0)
    return ((whole & (2**53 - 1)).double() + 0.5) * _RESOLUTION if count else whole.double()


def normal(like: Tensor, stream: torch.Generator | None) -> Tensor:
    """Standard normal numbers in the shape, type and place of a tensor, independent of each other."""
    if stream is not None:
        drawn = torch.randn(like.shape, dtype=like.dtype, generator=stream)
    else:
        u, v = uniform(2 * like.numel(), None).chunk(2) if like.numel() else (torch.empty(0), torch.empty(0))
        drawn = ((-2 * u.log()).sqrt() * (2 * math.pi * v).cos()).reshape(like.shape)  # Box and Muller
    return drawn.to(like)
