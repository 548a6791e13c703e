"""Views of a block of batches at once: the numbers are drawn batch by batch, the pixels are computed together.

A view of 32 images costs several times as much per image as one of 500, since most of it is overhead per call. Which
samples the next batches hold does not depend on the model, so their views can be made ahead. Random numbers are drawn
in the order of single batches, so the views have the same bits.
"""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from tacit.federation import BatchedViews, Views
from tacit.learn.batching import Batch, Block, Part

View = Literal["plain", "weak", "strong"]


class Looks:
    """The views that an objective takes of one part of every batch, from one random stream, in this order."""

    def __init__(self, views: Views, kinds: Sequence[View], part: Part, stream: torch.Generator) -> None:
        """Nothing is drawn yet; the batches must be asked for in their order, and for all kinds in this order."""
        self._views, self._kinds, self._part, self._stream = views, tuple(kinds), part, stream
        self._block: Block | None = None
        self._made: list[Tensor] = []

    def __call__(self, batch: Batch, number: int = 0) -> Tensor:
        """What the network sees of a batch in its view of this number."""
        kind, block = self._kinds[number], batch.block
        if kind == "plain" or block is None or not isinstance(self._views, BatchedViews):
            return seen_as(self._views, kind, batch.part(self._part), self._stream)
        if block is not self._block:
            parts = [part for part in block.parts(self._part) if len(part)]
            random = [kind for kind in self._kinds if kind != "plain"]
            made = iter(self._views.of_batches(torch.cat(parts), [len(part) for part in parts], random, self._stream))
            self._made = [torch.empty(0) if kind == "plain" else next(made) for kind in self._kinds]
            self._block = block
        start = block.start(self._part, batch.number)
        # A copy: kernels may give other bits for memory that begins elsewhere.
        return self._made[number][start : start + len(batch.part(self._part))].clone()


def seen_as(views: Views, kind: View, x: Tensor, stream: torch.Generator) -> Tensor:
    """A batch as the network sees it."""
    if kind == "plain":
        return views.plain(x)
    return views.weak(x, stream) if kind == "weak" else views.strong(x, stream)
