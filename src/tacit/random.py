"""Random streams by name, not by order.

Every draw in a run comes from `streams.at(use, round=…, client=…)`. A stream depends only on the seed and on that
name, so results do not depend on which process draws first, or on a resume.
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
        """Separate streams for a part of the work that uses the same names as another part."""
        return replace(self, scope=f"{self.scope}{scope}/")

    def at(self, use: str, *, round: int = -1, client: int = -1) -> torch.Generator:
        """A new torch generator for `use`; the same name always gives the same numbers."""
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
    """Run a block with torch's global generators seeded from `stream`, then restore them.

    Layers such as dropout draw from the global generator; this way their draws have a name too.
    """
    cuda, seed = device.type == "cuda", stream.initial_seed()
    with torch.random.fork_rng(devices=[device] if cuda else []):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would touch every device, and takes a millisecond
        if cuda:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield
