"""Updates scaled down to a length: to the median of a round, or to a bound that the noise is made for."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor


def length(update: Iterable[Tensor]) -> float:
    """The Euclidean norm over all entries of all tensors, summed in float64."""
    return math.sqrt(sum(float(torch.linalg.vector_norm(value.double())) ** 2 for value in update))


def lower_median(values: list[Any]) -> Any:
    """The lower median: with an even number of senders, the one that a single sender cannot raise."""
    return sorted(values)[(len(values) - 1) // 2]


def median_factors(lengths: Mapping[int, Mapping[str, float]]) -> dict[int, dict[str, float]]:
    """By which factor each client's parts are scaled so that none is longer than the median of its round.

    The median is over the clients that have such a part. A part of no more than that length has the factor 1.
    """
    parts = {part for each in lengths.values() for part in each}
    medians = {part: lower_median([each[part] for each in lengths.values() if part in each]) for part in parts}
    return {
        client: {part: 1.0 if value <= medians[part] else medians[part] / value for part, value in each.items()}
        for client, each in lengths.items()
    }
