"""RandAugment: every image of a batch gets its own few operations, in its own order and strength, then a cut-out.

Pixels are uint8 (n, c, h, w) all the way. An operation does what Pillow's of that name does, to its last rounding
where that makes sense; those that move pixels take the nearest one, as Pillow does unless told otherwise.
Images that drew the same operation are worked on together: all first operations, then all second ones, and so on. So
the drawn order is kept. All numbers are drawn at once, so what an image becomes depends on the batch it is in.
This is NumPy, not torch: the work is hundreds of small steps, each of which costs torch several times as much before
it begins, on any device; and so all devices get the same images.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from math import pi
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from tacit.errors import TacitError, unknown

Pixels = NDArray[np.uint8]
Floats = NDArray[np.float32]

LUMA = (19595 / 65536, 38470 / 65536, 7471 / 65536)  # grey of red, green and blue: ITU-R 601 as Pillow rounds it


class Range(NamedTuple):
    """The amounts of an operation, in its unit: from `low` at the share 0 to `high` at the share 1."""

    low: float = 0.0
    high: float = 0.0
    mirror: float | None = None  # half of the amounts are mirrored at this value


@dataclass(frozen=True)
class RandAugment:
    """How strong views are made; the operations are those in `KINDS`."""

    operations: Mapping[str, Range]
    count: int = 2  # operations drawn for an image, with replacement
    chance: float = 1.0  # that a drawn operation is carried out
    levels: tuple[float, ...] = ()  # the shares of a range that are drawn from; any share if there are none
    fill: int | None = None  # pixel value that comes in from outside an image; the mean colour if not given
    cutout: tuple[float, float] = (0.5, 0.5)  # least and largest side of the last cut-out, as shares of the image's
    cutout_fill: int | None = None  # pixel value of cut-outs; the mean colour if not given
    pixels: bool = False  # amounts of "translate" and "cutout" are pixels, not shares of the side

    def __post_init__(self) -> None:
        """Refuse operations that do not exist and numbers that mean nothing."""
        for name in self.operations:
            if name not in KINDS:
                raise unknown("operation", name, KINDS)
        if self.count < 0 or (self.count and not self.operations):
            raise TacitError(f"{self.count} operations can not be drawn: name operations, or use count=0")
        if not 0 <= self.chance <= 1 or not all(0 <= level <= 1 for level in self.levels):
            raise TacitError("the chance and the levels of RandAugment are shares: use numbers from 0 to 1")
        if not 0 <= self.cutout[0] <= self.cutout[1]:
            raise TacitError(f"cutout {self.cutout} is no range: use (least, largest), or (0, 0) for none")

    def __call__(self, x: Pixels, mean: Pixels, stream: torch.Generator) -> Pixels:
        """Changed copies of images (n, c, h, w) whose mean colour is (c, 1, 1)."""
        fill, cutout_fill = (mean if f is None else np.full_like(mean, f) for f in (self.fill, self.cutout_fill))
        for drawn in self.draw(x.shape, stream):
            x = _carry_out(x, drawn, fill, cutout_fill)
        least, largest = self.cutout
        if not largest:
            return x
        number, *centre = torch.rand(3, len(x), generator=stream).numpy()
        side = (least + number * (largest - least)) * min(x.shape[2:])
        return _cut_out(x, side, np.stack(centre), cutout_fill)

    def draw(self, shape: tuple[int, ...], stream: torch.Generator) -> list["Draw"]:
        """What images (n, c, h, w) get first, second, and so on."""
        h, w = (1, 1) if self.pixels else shape[2:]
        table = _table(tuple(self.operations.items()), (("translate x", w), ("translate y", h), ("cutout", min(h, w))))
        which, share, side, luck, *centre = torch.rand(6, self.count, shape[0], generator=stream).numpy()
        kind, low, high, low_mirrored, high_mirrored = table[:, (which * len(self.operations)).astype(np.int64)]
        if self.levels:
            share = np.array(self.levels, np.float32)[(share * len(self.levels)).astype(np.int64)]
        straight, mirrored = low + share * (high - low), low_mirrored + share * (high_mirrored - low_mirrored)
        amount = np.where(side < 0.5, straight, mirrored)
        kind = np.where(luck < self.chance, kind, KINDS.index("identity")).astype(np.int64)
        return [Draw(*of) for of in zip(kind, amount, np.stack(centre, 1), strict=True)]


class Draw(NamedTuple):
    """One operation for each of n images."""

    kind: NDArray[np.int64]  # (n,) positions in KINDS
    amount: Floats  # (n,) in the operation's unit, lengths in pixels
    centre: Floats  # (2, n) row and column from 0 to 1, should it be a cut-out


@lru_cache
def _table(operations: tuple[tuple[str, Range], ...], units: tuple[tuple[str, int], ...]) -> Floats:
    """(5, operations): the kind of each, and its range in these units, as it is and mirrored."""
    unit, rows = dict(units), []
    for name, (low, high, mirror) in operations:
        ends = (low, high, *((low, high) if mirror is None else (2 * mirror - low, 2 * mirror - high)))
        rows.append([KINDS.index(name), *(end * unit.get(name, 1) for end in ends)])
    return np.array(rows, np.float32).reshape(-1, 5).T


def _carry_out(x: Pixels, drawn: Draw, fill: Pixels, cutout_fill: Pixels) -> Pixels:
    """One operation for each image. Once sorted, images of one kind are a slice: none is copied to be worked on."""
    order = drawn.kind.argsort(kind="stable")
    x, amount, centre = x[order], drawn.amount[order], drawn.centre[:, order]
    many = np.bincount(drawn.kind, minlength=len(KINDS)).tolist()
    ends = [0, *accumulate(many)]
    for kind, operation in enumerate(SINGLE.values()):
        start, end = ends[kind : kind + 2]
        if start < end:
            x[start:end] = operation(x[start:end], amount[start:end, None, None, None])
    start, end = ends[CUTOUT : CUTOUT + 2]
    if start < end:
        x[start:end] = _cut_out(x[start:end], amount[start:end], centre[:, start:end], cutout_fill)
    if end < len(x):
        x[end:] = _affine(x[end:], amount[end:], many[CUTOUT + 1 :], fill)
    back = np.empty_like(x)
    back[order] = x
    return back


# --- values: images (n, c, h, w) and amounts (n, 1, 1, 1) -------------------------------------------------------------


def _identity(x: Pixels, amount: Floats) -> Pixels:
    return x


def _autocontrast(x: Pixels, amount: Floats) -> Pixels:
    """Each channel stretched to all values."""
    low, high = x.min((2, 3), keepdims=True), x.max((2, 3), keepdims=True)
    flat = low == high
    low[flat], high[flat] = 0, 255
    return _whole((x - low) * (np.float32(255) / (high - low)))


def _equalize(x: Pixels, amount: Floats) -> Pixels:
    """Each channel with its values spread to be about equally frequent."""
    n, c, h, w = x.shape
    channel = np.arange(0, n * c * 256, 256)[:, None]
    value = x.reshape(n * c, h * w) + channel
    many = np.bincount(value.reshape(-1), minlength=n * c * 256).reshape(n * c, 256)
    step = (h * w - many.reshape(-1)[value.max(1, keepdims=True)]) // 255
    table = np.minimum((many.cumsum(1) - many + step // 2) // np.maximum(step, 1), 255)
    table = np.where(step > 0, table, np.arange(256)).astype(np.uint8)
    return table.reshape(-1).take(value).reshape(x.shape)


def _invert(x: Pixels, amount: Floats) -> Pixels:
    """Dark for bright."""
    return ~x


def _posterize(x: Pixels, bits: Floats) -> Pixels:
    """Only the first whole `bits` of each value."""
    mask: Pixels = (256 - np.exp2(8 - np.floor(bits))).astype(np.uint8)
    return x & mask


def _solarize(x: Pixels, threshold: Floats) -> Pixels:
    """Values from the threshold on inverted."""
    below = np.ceil(threshold).astype(np.int16) - 1  # -1 .. 255
    return np.where(x > below, ~x, x)


def _brightness(x: Pixels, factor: Floats) -> Pixels:
    """From black at the factor 0 to the image at 1 and beyond."""
    return _whole(x * factor)


def _contrast(x: Pixels, factor: Floats) -> Pixels:
    """From the mean grey at the factor 0 to the image at 1 and beyond."""
    level = np.floor(_grey(x).mean((1, 2, 3), keepdims=True) + np.float32(0.5))
    return _whole(x * factor + level * (1 - factor))


def _color(x: Pixels, factor: Floats) -> Pixels:
    """From the grey image at the factor 0 to the image at 1 and beyond; a grey image stays as it is."""
    return _whole(x * factor + _grey(x) * (1 - factor))


def _sharpness(x: Pixels, factor: Floats) -> Pixels:
    """From the smooth image at the factor 0 to the image at 1 and beyond.

    Smooth is the mean of nine pixels, the middle one five times, and at the border the image itself.
    """
    smooth = x.astype(np.float32)
    inner = smooth[:, :, 1:-1, 1:-1]
    rows = smooth[:, :, :-2] + smooth[:, :, 1:-1] + smooth[:, :, 2:]
    inner[:] = np.floor((rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:] + 4 * inner) / 13 + np.float32(0.5))
    return _whole(x * factor + smooth * (1 - factor))


def _grey(x: Pixels) -> Floats:
    """(n, c, h, w) -> (n, 1, h, w); channels other than three weigh the same, so one alone stays as it is."""
    n, c, h, w = x.shape
    weight = np.array(LUMA if c == 3 else (1 / c,) * c, np.float32)
    grey: Floats = np.floor(weight @ x.reshape(n, c, h * w).astype(np.float32) + np.float32(0.5))
    return grey.reshape(n, 1, h, w)


def _whole(x: Floats) -> Pixels:
    """Floats cut to whole numbers; one that is a little too small for a whole number still becomes it."""
    x += np.float32(1e-3)
    return np.clip(x, 0, 255, out=x).astype(np.uint8)


# --- places -----------------------------------------------------------------------------------------------------------


def _affine(x: Pixels, amount: Floats, sizes: list[int], fill: Pixels) -> Pixels:
    """Images moved by one of MOVES each, so many of them by each; amounts (n,); `fill` (c, 1, 1) comes in."""
    n, c, h, w = x.shape
    each = np.zeros((len(sizes), n, 1), np.float32)
    each[np.arange(len(sizes)).repeat(sizes), np.arange(n), 0] = amount
    rotate, shear_x, shear_y, right, down = each
    cos, sin = np.cos(rotate * np.float32(pi / 180)), np.sin(rotate * np.float32(pi / 180))
    xs, ys = (np.arange(0.5, side, dtype=np.float32) for side in (w, h))
    # Where a pixel comes from: what its column (n, w) and its row (n, h) add to that.
    column = _sums(cos * (xs - w / 2), shear_x * ys - sin * (ys - h / 2) + np.trunc(right) + w / 2, w)
    row = _sums(shear_y * xs + sin * (xs - w / 2), cos * (ys - h / 2) + np.trunc(down) + h / 2, h)
    # A frame of one pixel around the image is all that lies outside.
    framed = np.empty((c, n, h + 2, w + 2), np.uint8)
    framed[:] = fill[:, None]
    framed[:, :, 1:-1, 1:-1] = x.swapaxes(0, 1)
    index = (row * (w + 2) + column).astype(np.intp)
    index += (np.arange(n) * ((h + 2) * (w + 2)))[:, None, None]
    moved = np.empty_like(x)
    for channel, pixels in enumerate(framed):
        moved[:, channel] = pixels.reshape(-1).take(index)
    return moved


def _sums(of_column: Floats, of_row: Floats, side: int) -> Floats:
    """(n, w) and (n, h) -> (n, h, w): their sums as places in a frame, from 0 to side + 1."""
    place = of_column[:, None, :] + of_row[:, :, None]
    place += 1
    return np.clip(np.floor(place, out=place), 0, side + 1, out=place)


def _cut_out(x: Pixels, side: Floats, centre: Floats, fill: Pixels) -> Pixels:
    """Images with `fill` (c, 1, 1) in a square of side (n,) around a centre (2, n) in 0..1, cut at the border."""
    rows, columns = (
        np.abs(np.arange(0.5, length, dtype=np.float32) - length * place[:, None]) <= side[:, None] / 2
        for length, place in zip(x.shape[2:], centre, strict=True)
    )
    kept = (rows[:, None, :, None] & columns[:, None, None, :]).view(np.uint8) - np.uint8(1)  # 0 inside, else 255
    out = x ^ fill  # bits are several times faster than numpy.where
    out &= kept
    out ^= fill
    return out


SINGLE: dict[str, Callable[[Pixels, Floats], Pixels]] = {
    "identity": _identity,
    "autocontrast": _autocontrast,
    "brightness": _brightness,
    "color": _color,
    "contrast": _contrast,
    "equalize": _equalize,
    "invert": _invert,
    "posterize": _posterize,  # bits that stay
    "sharpness": _sharpness,
    "solarize": _solarize,  # the least value that is inverted
}
# Degrees against the clock; columns per row and rows per column from the upper left corner; whole pixels.
MOVES = ("rotate", "shear x", "shear y", "translate x", "translate y")
KINDS = (*SINGLE, "cutout", *MOVES)  # in this order images are sorted
CUTOUT = KINDS.index("cutout")
