"""Samples that arrive in steps: which sample is at its client in which round."""

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from tacit.data.split.apportion import Indices
from tacit.random import Streams

ALWAYS = -1  # the step of samples that are there from the start and stay


@dataclass(frozen=True)
class Arrival:
    """When each sample of the pool is at its client; implements `tacit.federation.Arrivals`."""

    step: Tensor = field(repr=False)  # (n,) int32: the step in which a sample arrives, -1: there from the start
    steps: int
    rounds: int  # per step; the last step lasts until the end
    keep: bool  # samples of earlier steps stay

    def present(self, samples: Tensor, round: int) -> Tensor:
        """Those of these positions in the pool that are there in this round."""
        step, now = self.step[samples], min(round // self.rounds, self.steps - 1)
        arrived = step <= now if self.keep else (step == now) | (step == ALWAYS)
        return samples[arrived]


def arrivals(
    clients: list[Indices], always: Indices, total: int, steps: int, rounds: int, keep: bool, streams: Streams
) -> Arrival:
    """Divide each client's samples at random into `steps` equal parts, except those that are `always` there."""
    step = np.full(total, ALWAYS, dtype=np.int32)
    order = streams.numpy_at("arrival").random(total)
    stays = np.zeros(total, dtype=np.bool_)
    stays[always] = True
    for part in clients:
        coming = part[~stays[part]]
        mixed = coming[np.argsort(order[coming])]
        step[mixed] = np.arange(len(mixed)) * steps // max(1, len(mixed))
    return Arrival(torch.from_numpy(step), steps, rounds, keep)
