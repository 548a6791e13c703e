"""Views of images: normalised, weakly and strongly augmented, a whole batch at a time.

Batches are pixels as stored, uint8 (n, c, h, w). Every decision about an image is a number drawn from the given stream
on the CPU, so it does not depend on the device.
"""

from dataclasses import dataclass
from math import radians

import torch
from torch import Tensor
from torch.nn import functional as F

# The operations of the strong view and the largest change each makes; first those that move pixels.
GEOMETRY = {
    "rotate": radians(30),
    "shear x": 0.3,
    "shear y": 0.3,
    "translate x": 0.6,  # of half a side, the unit of a sampling grid
    "translate y": 0.6,
}
COLOUR = {
    "brightness": 0.7,
    "contrast": 0.7,
    "posterize": 4.0,  # bits taken away
    "solarize": 256.0,  # pixel values from the top that are inverted
    "invert": 1.0,  # any amount inverts everything
}
CHOSEN = 2  # operations that act on one image, as in RandAugment


@dataclass(frozen=True)
class ImageViews:
    """The three views (`tacit.federation.Views`) of images whose training pixels have this mean and deviation."""

    mean: tuple[float, ...]  # per channel, of pixels scaled to 0..1
    std: tuple[float, ...]
    flip: bool  # a horizontal flip keeps the label, so the weak view may do it
    pad: int | None = None  # pixels the weak view shifts by at most; an eighth of the side if not given

    def plain(self, x: Tensor) -> Tensor:
        """Normalised only."""
        mean, std = self._moments(x.device)
        return x.to(torch.float32).sub_(mean).div_(std)

    def weak(self, x: Tensor, stream: torch.Generator) -> Tensor:
        """Shifted by a few pixels with mirrored borders and, where that keeps the label, flipped half the time."""
        return self.plain(self._moved(x, stream))

    def strong(self, x: Tensor, stream: torch.Generator) -> Tensor:
        """The weak view, then two random operations, then a square of half the side replaced by the mean colour."""
        moved = self._moved(x, stream)
        amounts = _amounts(len(x), stream).to(x.device)
        centre = torch.rand(2, len(x), 1, generator=stream).to(x.device)
        geometry, colour = amounts.split((len(GEOMETRY), len(COLOUR)))
        return _cut_out(_affine(self._coloured(moved, colour), geometry), centre)

    def _moments(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Mean and deviation of pixels as stored, each (c, 1, 1)."""
        mean, std = torch.tensor([self.mean, self.std], device=device).mul_(255)[:, :, None, None].unbind()
        return mean, std

    def _moved(self, x: Tensor, stream: torch.Generator) -> Tensor:
        """Flipped and shifted pixels in one gather, several times faster than sampling a grid."""
        n, c, h, w = x.shape
        flip, down, right = torch.rand(3, n, 1, generator=stream).to(x.device).unbind()
        rows, columns = _mirrored(down, h, self.pad), _mirrored(right, w, self.pad)
        if self.flip:
            columns = torch.where(flip < 0.5, w - 1 - columns, columns)
        index = (rows[:, :, None] * w + columns[:, None, :]).reshape(n, 1, h * w)
        return x.reshape(n, c, h * w).gather(2, index.expand(n, c, h * w)).reshape(n, c, h, w)

    def _coloured(self, x: Tensor, amounts: Tensor) -> Tensor:
        """Normalised images after the colour operations.

        These act on each pixel alone, so together they are a table of 256 values per image, and pixels are read once.
        """
        n, c, h, w = x.shape
        mean, std = self._moments(x.device)
        brightness = x.mean((1, 2, 3), dtype=torch.float32)[:, None]
        table = _table(brightness, amounts)[:, None, :].sub(mean[..., 0]).div_(std[..., 0])
        return table.gather(2, x.reshape(n, c, h * w).long()).reshape(n, c, h, w)


def _mirrored(number: Tensor, side: int, pad: int | None) -> Tensor:
    """(n, 1) numbers in 0..1 -> (n, side): which row comes to each row when images shift by up to `pad` rows."""
    pad = side // 8 if pad is None else min(pad, side - 1)
    place = torch.arange(side, device=number.device) + (number * (2 * pad + 1)).long() - pad
    return (side - 1) - ((side - 1) - place.abs()).abs()


def _amounts(n: int, stream: torch.Generator) -> Tensor:
    """(operations, n, 1): how much of each operation each image gets, 0 of those not chosen for it."""
    largest = torch.tensor([*GEOMETRY.values(), *COLOUR.values()])[:, None, None]
    amount, score = torch.rand(2, len(largest), n, 1, generator=stream).unbind()
    chosen = score <= score.kthvalue(CHOSEN, dim=0, keepdim=True).values
    return (2 * amount - 1) * largest * chosen


def _table(level: Tensor, amounts: Tensor) -> Tensor:
    """(n, 1) mean pixels and (operations, n, 1) -> (n, 256): what each pixel value becomes."""
    brightness, contrast, posterize, solarize, invert = amounts.unbind()
    gain, spread = 1 + brightness, 1 + contrast
    value = torch.arange(256.0, device=level.device) * (gain * spread) + level * gain * (1 - spread)
    step = posterize.abs().round_().exp2_()
    value = value.clamp_(0, 255).div_(step).floor_().mul_(step)
    value = torch.where(value >= 256 - solarize.abs(), 255 - value, value)
    return torch.where(invert != 0, 255 - value, value)


def _affine(x: Tensor, amounts: Tensor) -> Tensor:
    """Images rotated, sheared and translated, each amount (n, 1); the mean colour, 0, where nothing is known."""
    rotate, shear_x, shear_y, right, down = amounts.unbind()
    h, w = x.shape[2:]
    cos, sin = rotate.cos(), rotate.sin()
    # (n, 2, 1): how the place looked at moves with x and with y; both run from -1 to 1 whatever the sides are.
    along_x = torch.stack((cos, (sin + shear_y) * (w / h)), 1)
    along_y = torch.stack(((shear_x - sin) * (h / w), cos), 1)
    offset = torch.stack((right, down), 1)
    xs, ys = (torch.linspace(1 / side - 1, 1 - 1 / side, side, device=x.device) for side in (w, h))
    # Outer sums; F.affine_grid multiplies a matrix for every pixel and takes twenty times as long.
    grid = (along_x * xs)[:, :, None, :] + (along_y * ys + offset)[:, :, :, None]
    return F.grid_sample(x, grid.permute(0, 2, 3, 1), align_corners=False)


def _cut_out(x: Tensor, centre: Tensor) -> Tensor:
    """Images with 0, the mean colour, in a square of half the side around a (2, n, 1) centre in 0..1."""
    h, w = x.shape[2:]
    rows, columns = (
        ((torch.arange(0.5, side, device=x.device) - side * place).abs() > min(h, w) / 4).to(x.dtype)
        for side, place in zip((h, w), centre, strict=True)
    )
    return x.mul_(torch.maximum(rows[:, None, :, None], columns[:, None, None, :]))
