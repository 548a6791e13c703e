"""A private sum: every client's update is clipped, and Gaussian noise hides whether any one of them is in it.

Everything is in float64: a client's part is no longer than the bound up to its last bits, and the noise is not rounded
before it is added.
"""

from collections.abc import Iterable, Mapping

import numpy as np
import torch
from torch import Tensor

from tacit.protect.clipping import length

Parts = dict[str, dict[str, Tensor]]  # tensors by field and name


def clipped(update: Mapping[str, Mapping[str, Tensor]], most: float | None) -> Parts:
    """An update in float64, scaled so that its length over all fields is at most `most`."""
    exact = {path: {name: value.double() for name, value in each.items()} for path, each in update.items()}
    total = length(value for each in exact.values() for value in each.values())
    if most is None or total <= most:
        return exact
    return {path: {name: value * (most / total) for name, value in each.items()} for path, each in exact.items()}


def added(updates: Iterable[Mapping[str, Mapping[str, Tensor]]], like: Mapping[str, Mapping[str, Tensor]]) -> Parts:
    """The sum of updates in the shape of `like`, in float64; zeros if there is none."""
    total = {
        path: {name: torch.zeros_like(value, dtype=torch.float64) for name, value in each.items()}
        for path, each in like.items()
    }
    for update in updates:
        for path, each in total.items():
            for name in each:
                each[name] += update[path][name].to(each[name])
    return total


def noised(total: Parts, std: float, draw: np.random.Generator) -> Parts:
    """The sum with Gaussian noise on every entry."""
    return {
        path: {name: value + _normal(value, std, draw) for name, value in each.items()} for path, each in total.items()
    }


def _normal(like: Tensor, std: float, draw: np.random.Generator) -> Tensor:
    # numpy's generators have 128 bits of state from their seed; torch's on the CPU take 32 bits of it.
    return torch.from_numpy(np.asarray(draw.standard_normal(tuple(like.shape)))).to(like) * std
