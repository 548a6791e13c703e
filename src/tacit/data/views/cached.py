"""Views that were computed before: a stored sample holds its plain view, then some weak and as many strong ones."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class CachedViews:
    """The three views of samples (n, 1 + 2·count, …); a random one of the `count` weak or strong views is seen."""

    count: int

    def plain(self, x: Tensor) -> Tensor:
        """The first."""
        return x[:, 0].contiguous()

    def weak(self, x: Tensor, stream: torch.Generator) -> Tensor:
        """A random one of the weak views."""
        return _picked(x, self._draw("weak", len(x), stream))

    def strong(self, x: Tensor, stream: torch.Generator) -> Tensor:
        """A random one of the strong views."""
        return _picked(x, self._draw("strong", len(x), stream))

    def of_batches(
        self, x: Tensor, sizes: Sequence[int], kinds: Sequence[str], stream: torch.Generator
    ) -> list[Tensor]:
        """See `tacit.federation.BatchedViews`."""
        drawn = [[self._draw(kind, size, stream) for kind in kinds] for size in sizes]
        return [_picked(x, torch.cat(rows)) for rows in zip(*drawn, strict=True)]

    def _draw(self, kind: str, size: int, stream: torch.Generator) -> Tensor:
        first = 1 if kind == "weak" else 1 + self.count
        return first + torch.randint(self.count, (size,), generator=stream)


def _picked(x: Tensor, rows: Tensor) -> Tensor:
    return x[torch.arange(len(x), device=x.device), rows.to(x.device, non_blocking=True)]
