"""Inputs for every network, and networks narrow enough to be fast."""

import torch
from torch import Tensor

from tacit.nets import Net, build
from tacit.random import Streams

GREY = (1, 28, 28)
COLOUR = (3, 32, 32)
LINE = (12,)  # characters of text
SMALL = 0.06


def stream(use: str = "init") -> torch.Generator:
    """A separate random stream for every use."""
    return Streams(0).at(use)


def shape_of(name: str) -> tuple[int, ...]:
    """The shape of inputs for a network."""
    return LINE if name == "lstm" else GREY


def inputs(shape: tuple[int, ...], n: int = 5) -> Tensor:
    """Grey values, or codes of ten characters."""
    if len(shape) == 1:
        return torch.randint(10, (n, *shape), generator=stream("inputs"))
    return torch.rand(n, *shape, generator=stream("inputs"))


def small(name: str) -> Net:
    """A narrow network for ten classes."""
    return build(name, shape_of(name), 10, width=SMALL)
