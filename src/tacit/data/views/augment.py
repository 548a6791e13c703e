"""Views of images and of text: plain, weakly and strongly augmented, a whole batch at a time.

Batches of images are stored pixels, uint8 (n, c, h, w). All random numbers are drawn from the given stream on the CPU,
so they depend neither on the device nor on the worker process.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from tacit.data.views import torch_randaugment
from tacit.data.views.randaugment import DrawnChanges, RandAugment, Range

# --- what each paper does; amounts are those of its release -----------------------------------------------------------

# The table of the FixMatch paper. Brightness, color, contrast and sharpness change nothing at 1.
FIXMATCH = {
    "autocontrast": Range(),
    "brightness": Range(0.05, 0.95),
    "color": Range(0.05, 0.95),
    "contrast": Range(0.05, 0.95),
    "equalize": Range(),
    "identity": Range(),
    "posterize": Range(4, 8),
    "rotate": Range(0, 30, mirror=0),
    "sharpness": Range(0.05, 0.95),
    "shear x": Range(0, 0.3, mirror=0),
    "shear y": Range(0, 0.3, mirror=0),
    "solarize": Range(256, 0),
    "translate x": Range(0, 0.3, mirror=0),
    "translate y": Range(0, 0.3, mirror=0),
}
# 13 operations; its "equalize" does nothing, rotations and shifts have one direction. 8.5: bits are rounded, not cut.
FEDMATCH = {
    "autocontrast": Range(),
    "brightness": Range(1, 1.3, mirror=1),
    "color": Range(1, 1.9, mirror=1),
    "contrast": Range(1, 1.5, mirror=1),
    "identity": Range(),
    "posterize": Range(8.5, 4.5),
    "rotate": Range(0, 360),
    "sharpness": Range(1, 1.9, mirror=1),
    "shear x": Range(0, 0.3, mirror=0),
    "shear y": Range(0, 0.3, mirror=0),
    "solarize": Range(256, 231),
    "translate x": Range(0, 0.2),
    "translate y": Range(0, 0.2),
}
# 15 operations with one amount each; a shift by 100 pixels empties a small image.
SEMIFL = {
    "autocontrast": Range(),
    "brightness": Range(0.1, 1.9),
    "color": Range(0.1, 1.9),
    "contrast": Range(0.1, 1.9),
    "cutout": Range(0, 40),
    "equalize": Range(),
    "invert": Range(),
    "posterize": Range(0, 4),
    "rotate": Range(0, 30, mirror=0),
    "sharpness": Range(0.1, 1.9),
    "shear x": Range(0, 0.3, mirror=0),
    "shear y": Range(0, 0.3, mirror=0),
    "solarize": Range(256, 0),
    "translate x": Range(0, 100, mirror=0),
    "translate y": Range(0, 100, mirror=0),
}
# Ours, for images whose brightness carries the label, such as X-rays: small moves, small changes of tone, some noise.
GENTLE = {
    "brightness": Range(1, 1.2, mirror=1),
    "contrast": Range(1, 1.2, mirror=1),
    "identity": Range(),
    "noise": Range(0, 12),
    "rotate": Range(0, 10, mirror=0),
    "translate x": Range(0, 0.08, mirror=0),
    "translate y": Range(0, 0.08, mirror=0),
}
TENTHS = tuple(k / 10 for k in range(1, 10))
# An index below M into a table of ten, for M from 2 to 5; every M has 60 entries here.
WEAK_NINTHS = tuple(k / 9 for m in (2, 3, 4, 5) for k in range(m) for _ in range(60 // m))

VARIANTS = {
    # As written: 2 of 14, any amount, always applied, half the side cut out; the mean colour, not the release's grey.
    "fixmatch": RandAugment(FIXMATCH),
    # 6 weak operations, no cut-out. We draw M for each operation.
    "fedmatch": RandAugment(FEDMATCH, count=6, levels=WEAK_NINTHS, fill=128, cutout=(0, 0)),
    # FixMatch's 14 in tenths, each applied half the time. We crop squares at the border, the release moves them inside.
    "ssfl": RandAugment(FIXMATCH, chance=0.5, levels=TENTHS, fill=0, cutout_fill=127),
    # 2 of 15 at full strength, applied half the time, no final cut-out. We take the nearest pixel, not bilinear ones.
    "semifl": RandAugment(SEMIFL, chance=0.5, levels=(1.0,), fill=0, cutout=(0, 0), cutout_fill=127, pixels=True),
    # FixMatch's list and a cut-out of random size. Two operations are our assumption, as in the code it is based on.
    "fl2": RandAugment(FIXMATCH, fill=0, cutout=(0, 0.5), cutout_fill=127),
    # The release's baselines: ssfl's rule with 10 operations (15 in one file); FedSiam itself uses weak views only.
    "fedsiam": RandAugment(FIXMATCH, count=10, chance=0.5, levels=TENTHS, fill=0, cutout_fill=127),
    # 2 of 7, without the operations that invert, flatten or cover parts of an image.
    "gentle": RandAugment(GENTLE, cutout=(0, 0)),
    # The strong view is the weak one.
    "none": RandAugment({}, count=0, cutout=(0, 0)),
}


# --- views ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ImageViews:
    """The three views (`tacit.federation.Views`) of images whose training pixels have this mean and deviation."""

    mean: tuple[float, ...]  # per channel, of pixels scaled to 0..1
    std: tuple[float, ...]
    flip: bool  # the weak view may flip images horizontally, because that preserves the label
    pad: int | None = None  # pixels the weak view shifts by at most; an eighth of the side when not given
    variant: RandAugment = VARIANTS["fixmatch"]  # what the strong view does

    def plain(self, x: Tensor) -> Tensor:
        """Normalised only."""
        mean, std = self._moments(x.device)
        return (x - mean).div_(std)

    def weak(self, x: Tensor, stream: torch.Generator) -> Tensor:
        """Shifted by a few pixels with mirrored borders and, if `flip` allows it, flipped half the time."""
        return self._seen(x, self._draw("weak", x.shape, stream))

    def strong(self, x: Tensor, stream: torch.Generator) -> Tensor:
        """The weak view's pixels after RandAugment."""
        return self._seen(x, self._draw("strong", x.shape, stream))

    def of_batches(
        self, x: Tensor, sizes: Sequence[int], kinds: Sequence[str], stream: torch.Generator
    ) -> list[Tensor]:
        """See `tacit.federation.BatchedViews`: what happens to an image depends only on its own numbers."""
        drawn = [[self._draw(kind, (size, *x.shape[1:]), stream) for kind in kinds] for size in sizes]
        return [self._seen(x, _Drawn.joined(parts)) for parts in zip(*drawn, strict=True)]

    def _draw(self, kind: str, shape: tuple[int, ...], stream: torch.Generator) -> "_Drawn":
        moves = torch.rand(3, shape[0], 1, generator=stream)
        return _Drawn(moves, self.variant.draw_all(shape, stream) if kind == "strong" else None)

    def _seen(self, x: Tensor, drawn: "_Drawn") -> Tensor:
        pixels = self._moved(x, drawn.moves)
        if drawn.changes is None:
            return self.plain(pixels)
        mean = (np.array(self.mean)[:, None, None] * 255).round().astype(np.uint8)
        if x.device.type != "cpu" and torch_randaugment.can_apply(x.shape):
            return self.plain(torch_randaugment.apply(self.variant, pixels, mean, drawn.changes))
        changed = self.variant.apply(pixels.cpu().numpy(), mean, drawn.changes)
        return self.plain(torch.from_numpy(changed).to(x.device))

    def _moments(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Mean and deviation of stored pixels, each (c, 1, 1)."""
        moments = torch.tensor([self.mean, self.std]).to(device, non_blocking=True)
        mean, std = moments.mul_(255)[:, :, None, None].unbind()
        return mean, std

    def _moved(self, x: Tensor, moves: Tensor) -> Tensor:
        """Flipped and shifted pixels in one gather, several times faster than sampling a grid."""
        n, c, h, w = x.shape
        flip, down, right = moves.to(x.device, non_blocking=True).unbind()
        rows, columns = _mirrored(down, h, self.pad), _mirrored(right, w, self.pad)
        if self.flip:
            columns = torch.where(flip < 0.5, w - 1 - columns, columns)
        index = (rows[:, :, None] * w + columns[:, None, :]).reshape(n, 1, h * w)
        return x.reshape(n, c, h * w).gather(2, index.expand(n, c, h * w)).reshape(n, c, h, w)


class _Drawn(NamedTuple):
    """The random numbers of a view of n images."""

    moves: Tensor  # (3, n, 1) from 0 to 1: flip, shift down, shift right
    changes: DrawnChanges | None  # of the strong view

    @classmethod
    def joined(cls, parts: Sequence["_Drawn"]) -> "_Drawn":
        """The numbers of several batches, one after the other."""
        changes = [part.changes for part in parts if part.changes is not None]
        moves = torch.cat([part.moves for part in parts], dim=1)
        return cls(moves, DrawnChanges.joined(changes) if changes else None)


def _mirrored(number: Tensor, side: int, pad: int | None) -> Tensor:
    """(n, 1) numbers in 0..1 -> (n, side): the source of each row when images shift by up to `pad` rows."""
    pad = side // 8 if pad is None else min(pad, side - 1)
    place = torch.arange(side, device=number.device) + (number * (2 * pad + 1)).long() - pad
    return (side - 1) - ((side - 1) - place.abs()).abs()


@dataclass(frozen=True)
class TextViews:
    """The three views of text: (n, length) uint8 codes of characters in, int64 codes out, for an embedding.

    A shift or a swap changes the next character, so the weak view is the plain one.
    """

    alphabet: int  # number of characters; codes run from 0 to one less
    noise: float = 0.1  # share of characters the strong view replaces

    def plain(self, x: Tensor) -> Tensor:
        """The codes."""
        return x.long()

    def weak(self, x: Tensor, stream: torch.Generator) -> Tensor:
        """The codes, unchanged."""
        return x.long()

    def strong(self, x: Tensor, stream: torch.Generator) -> Tensor:
        """About one character in ten replaced by a random one, which may be the same."""
        hit = torch.rand(x.shape, generator=stream) < self.noise
        other = torch.randint(self.alphabet, x.shape, generator=stream)
        return torch.where(hit.to(x.device, non_blocking=True), other.to(x.device, non_blocking=True), x.long())
