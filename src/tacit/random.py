"""Named random streams: a stream has a name, never an order.

Every draw in a run comes from `streams.at(use, round=…, client=…)`. The stream depends on the seed and
on that name only, so it does not matter who draws first, in which process, or after which resume.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import blake2b

import numpy as np
import torch


@dataclass(frozen=True)
class Streams:
    """All random streams of one run, derived from its seed."""

    seed: int
    scope: str = ""  # streams of different scopes have nothing in common

    def within(self, scope: str) -> "Streams":
        """Streams of their own for a part of the work that uses the same names as another part."""
        return replace(self, scope=f"{self.scope}{scope}/")

    def at(self, use: str, *, round: int = -1, client: int = -1) -> torch.Generator:
        """A fresh torch generator for `use`; the same name always starts at the same place."""
        return torch.Generator().manual_seed(self.number(use, round=round, client=client))

    def numpy_at(self, use: str, *, round: int = -1, client: int = -1) -> np.random.Generator:
        """The same for numpy, whose distributions (Dirichlet, multinomial) torch generators lack."""
        return np.random.default_rng(self.number(use, round=round, client=client))

    def number(self, use: str, *, round: int = -1, client: int = -1) -> int:
        """The 63-bit seed of a named stream."""
        name = f"{self.seed}|{self.scope}{use}|{round}|{client}"
        return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big") >> 1


@contextmanager
def seeded(stream: torch.Generator, device: torch.device) -> Iterator[None]:
    """Run a block with torch's global generators seeded from `stream`, and put them back after.

    Layers such as dropout draw from the global generator; this gives those draws a name too.
    """
    cuda, seed = device.type == "cuda", stream.initial_seed()
    with torch.random.fork_rng(devices=[device] if cuda else []):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would touch every device, and takes a millisecond
        if cuda:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield
