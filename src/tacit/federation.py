"""Who holds what: the data of every client, of the server, and the test set.

Label -1 means "no label". Where the labels are is a matter of content, never of code: labels at the clients, at
the server, at some clients or everywhere are different numbers in the same tensors.
"""

from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

UNLABELED = -1


@dataclass(frozen=True)
class Samples:
    """Inputs `x` (n, …) as stored (pixels as uint8) and labels `y` (n,), -1 where there is none."""

    x: Tensor
    y: Tensor

    def __post_init__(self) -> None:
        """Refuse inputs and labels of different length."""
        if len(self.x) != len(self.y):
            raise ValueError(f"{len(self.x)} inputs but {len(self.y)} labels")

    def __len__(self) -> int:
        """Number of samples."""
        return len(self.y)

    @property
    def labeled(self) -> Tensor:
        """Positions of the samples with a label."""
        return (self.y != UNLABELED).nonzero().reshape(-1)

    @property
    def unlabeled(self) -> Tensor:
        """Positions of the samples without a label."""
        return (self.y == UNLABELED).nonzero().reshape(-1)

    def take(self, index: Tensor) -> "Samples":
        """The samples at these positions, as copies."""
        return Samples(self.x.index_select(0, index), self.y.index_select(0, index))  # x[index] takes 20 times as long


@dataclass(frozen=True)
class ServerData:
    """What the server holds: labeled samples to train on and a validation set, each possibly empty."""

    labeled: Samples
    validation: Samples


class Views(Protocol):
    """How stored inputs become what a network sees: floats, normalised, augmented or not."""

    def plain(self, x: Tensor) -> Tensor:
        """Normalised only."""
        ...

    def weak(self, x: Tensor, stream: torch.Generator) -> Tensor:
        """Slightly changed, the label surely kept."""
        ...

    def strong(self, x: Tensor, stream: torch.Generator) -> Tensor:
        """Heavily changed, the label most likely kept."""
        ...


class Arrivals(Protocol):
    """Which samples of a client are there when: data that streams in."""

    def present(self, samples: Tensor, round: int) -> Tensor:
        """Those of these positions in the pool that are there in this round."""
        ...


@dataclass(frozen=True)
class Federation:
    """All data of one run. Client k owns the samples `order[starts[k]:starts[k + 1]]` of the pool.

    One pool and one index array, not a list of clients: a hundred thousand clients cost no objects. A sample may
    be at several clients (data sharing), or at its client in some rounds only (`arrivals`).
    `truth` holds the labels the clients do not see; it belongs to the simulator and no context leads to it.
    """

    pool: Samples
    order: Tensor
    starts: Tensor
    server: ServerData
    test: Samples
    classes: tuple[str, ...]
    views: Views
    truth: Tensor | None = field(default=None, repr=False)
    arrivals: Arrivals | None = field(default=None, repr=False)
    bits: int | None = None  # of 16 that deep grey images use, for who is to read others alike; None: nobody knows

    @property
    def clients(self) -> int:
        """How many clients there are."""
        return len(self.starts) - 1

    def client(self, client: int, round: int) -> Samples:
        """What a client holds in a round, as copies."""
        return self.pool.take(self._owned(client, round))

    def true_labels(self, client: int, round: int) -> Tensor | None:
        """The labels the client would see if nothing were hidden, or None where nobody knows them."""
        return None if self.truth is None else self.truth[self._owned(client, round)]

    def share_memory(self) -> None:
        """Move the tensors to shared memory, for worker processes that do not inherit them."""
        for samples in (self.pool, self.test):
            samples.x.share_memory_()
            samples.y.share_memory_()

    def _owned(self, client: int, round: int) -> Tensor:
        owned = self.order[int(self.starts[client]) : int(self.starts[client + 1])]
        return owned if self.arrivals is None else self.arrivals.present(owned, round)
