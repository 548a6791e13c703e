"""RandAugment: every image of a batch gets a few random operations in random order and strength, then a cut-out.

Pixels are uint8 (n, c, h, w) throughout. An operation does the same as Pillow's operation of that name, including its
rounding where that makes sense; operations that move pixels take the nearest one, Pillow's default.
Images that drew the same operation are processed together: all first operations, then all second ones, and so on, which
preserves the drawn order. All numbers are drawn at once, so the result for an image depends on its batch.
This is NumPy, not torch: the work is hundreds of small steps, and torch has several times the overhead per step. For
images on a GPU, `torch_randaugment` makes the same pixels there.
"""

from collections.abc import Callable, Mapping, Sequence
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
    """The amounts of an operation in its unit: `low` at level 0, `high` at level 1."""

    low: float = 0.0
    high: float = 0.0
    mirror: float | None = None  # half of the amounts are mirrored at this value


@dataclass(frozen=True)
class RandAugment:
    """A recipe for strong views; `KINDS` lists the operations."""

    operations: Mapping[str, Range]
    count: int = 2  # operations drawn for an image, with replacement
    chance: float = 1.0  # probability that a drawn operation is applied
    levels: tuple[float, ...] = ()  # levels of a range to draw from; any level if empty
    fill: int | None = None  # pixel value outside the image; the mean colour when not given
    cutout: tuple[float, float] = (0.5, 0.5)  # smallest and largest side of the final cut-out, relative to the image
    cutout_fill: int | None = None  # pixel value of cut-outs; the mean colour when not given
    pixels: bool = False  # amounts of "translate" and "cutout" are in pixels, not relative to the side

    def __post_init__(self) -> None:
        """Refuse unknown operations and numbers out of range."""
        for name in self.operations:
            if name not in KINDS:
                raise unknown("operation", name, KINDS)
        if self.count < 0 or (self.count and not self.operations):
            problem = f"{self.count} operations cannot be drawn from {len(self.operations)}"
            raise TacitError(problem, "name operations, or use count=0", code="data.no-operations")
        if not 0 <= self.chance <= 1 or not all(0 <= level <= 1 for level in self.levels):
            problem = "the chance or a level of RandAugment is out of range"
            raise TacitError(problem, "use numbers from 0 to 1", code="data.level-out-of-range")
        if not 0 <= self.cutout[0] <= self.cutout[1]:
            problem = f"cutout {self.cutout} is not a range"
            raise TacitError(problem, "use (smallest, largest), or (0, 0) for none", code="data.bad-cutout")

    def __call__(self, x: Pixels, mean: Pixels, stream: torch.Generator) -> Pixels:
        """Changed copies of images (n, c, h, w) whose mean colour is (c, 1, 1)."""
        return self.apply(x, mean, self.draw_all(x.shape, stream))

    def draw_all(self, shape: tuple[int, ...], stream: torch.Generator) -> "DrawnChanges":
        """All random numbers for images (n, c, h, w)."""
        operations = self.draw(shape, stream)
        return DrawnChanges(operations, torch.rand(3, shape[0], generator=stream).numpy() if self.cutout[1] else None)

    def apply(self, x: Pixels, mean: Pixels, drawn: "DrawnChanges") -> Pixels:
        """Changed copies of images by numbers that were drawn for them."""
        fill, cutout_fill = (mean if f is None else np.full_like(mean, f) for f in (self.fill, self.cutout_fill))
        for operations in drawn.operations:
            x = _apply(x, operations, fill, cutout_fill)
        if drawn.cutout is None:
            return x
        side, centre = self.final_cutout(drawn.cutout, min(x.shape[2:]))
        return _cut_out(x, side, centre, cutout_fill)

    def final_cutout(self, drawn: Floats, length: int) -> tuple[Floats, Floats]:
        """Numbers (3, n) from 0 to 1 -> the sides (n,) of the last squares in pixels, and their centres (2, n)."""
        (least, largest), (number, *centre) = self.cutout, drawn
        return (least + number * (largest - least)) * length, np.stack(centre)

    def draw(self, shape: tuple[int, ...], stream: torch.Generator) -> list["DrawnOperations"]:
        """The first operation of images (n, c, h, w), the second, and so on."""
        h, w = (1, 1) if self.pixels else shape[2:]
        table = _table(tuple(self.operations.items()), (("translate x", w), ("translate y", h), ("cutout", min(h, w))))
        which, share, side, luck, *centre = torch.rand(6, self.count, shape[0], generator=stream).numpy()
        kind, low, high, low_mirrored, high_mirrored = table[:, (which * len(self.operations)).astype(np.int64)]
        if self.levels:
            share = np.array(self.levels, np.float32)[(share * len(self.levels)).astype(np.int64)]
        straight, mirrored = low + share * (high - low), low_mirrored + share * (high_mirrored - low_mirrored)
        amount = np.where(side < 0.5, straight, mirrored)
        kind = np.where(luck < self.chance, kind, KINDS.index("identity")).astype(np.int64)
        return [DrawnOperations(*of) for of in zip(kind, amount, np.stack(centre, 1), strict=True)]


class DrawnOperations(NamedTuple):
    """One operation for each of n images."""

    kind: NDArray[np.int64]  # (n,) positions in KINDS
    amount: Floats  # (n,) in the operation's unit, lengths in pixels
    centre: Floats  # (2, n) from 0 to 1: row and column of a cut-out, or the seed of noise


class DrawnChanges(NamedTuple):
    """Everything that happens to n images."""

    operations: list[DrawnOperations]  # the first of each, the second, and so on
    cutout: Floats | None  # (3, n): size and centre from 0 to 1; None: no final cut-out

    @classmethod
    def joined(cls, parts: Sequence["DrawnChanges"]) -> "DrawnChanges":
        """What happens to several batches, one after the other."""
        operations = [
            DrawnOperations(
                np.concatenate([of.kind for of in turn]),
                np.concatenate([of.amount for of in turn]),
                np.concatenate([of.centre for of in turn], axis=1),
            )
            for turn in zip(*(part.operations for part in parts), strict=True)
        ]
        cutouts = [part.cutout for part in parts if part.cutout is not None]
        return cls(operations, np.concatenate(cutouts, axis=1) if cutouts else None)


@lru_cache
def _table(operations: tuple[tuple[str, Range], ...], units: tuple[tuple[str, int], ...]) -> Floats:
    """(5, operations): the kind of each, and its range in these units, as it is and mirrored."""
    unit, rows = dict(units), []
    for name, (low, high, mirror) in operations:
        ends = (low, high, *((low, high) if mirror is None else (2 * mirror - low, 2 * mirror - high)))
        rows.append([KINDS.index(name), *(end * unit.get(name, 1) for end in ends)])
    return np.array(rows, np.float32).reshape(-1, 5).T


def _apply(x: Pixels, drawn: DrawnOperations, fill: Pixels, cutout_fill: Pixels) -> Pixels:
    """Apply one operation to each image. Images are sorted by operation, so that each kind is a slice, not a copy."""
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
    start, end = end, ends[NOISE + 1]
    if start < end:
        x[start:end] = _noisy(x[start:end], amount[start:end], centre[:, start:end])
    if end < len(x):
        x[end:] = _affine(x[end:], amount[end:], many[NOISE + 1 :], fill)
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
    """Only the first `bits` bits of each value."""
    mask: Pixels = (256 - np.exp2(8 - np.floor(bits))).astype(np.uint8)
    return x & mask


def _solarize(x: Pixels, threshold: Floats) -> Pixels:
    """Values at or above the threshold inverted."""
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


def _noisy(x: Pixels, deviation: Floats, seed: Floats) -> Pixels:
    """Images with normal noise of this deviation (n,) in grey values; two numbers (2, n) in 0..1 seed each image's."""
    return _whole(x + noise_of(x.shape[1:], deviation, seed))


def noise_of(shape: tuple[int, ...], deviation: Floats, seed: Floats) -> Floats:
    """(n, …) whole numbers for images of this shape; see `_noisy`."""
    seeds = (seed.T * (1 << 24)).astype(np.int64)  # a number drawn by torch has 24 bits
    noise = np.stack([np.random.default_rng(each).standard_normal(shape, dtype=np.float32) for each in seeds])
    whole: Floats = np.rint(noise * deviation[:, None, None, None])
    return whole


def _grey(x: Pixels) -> Floats:
    """(n, c, h, w) -> (n, 1, h, w); numbers of channels other than three are averaged, so one stays as it is."""
    n, c, h, w = x.shape
    weight = np.array(LUMA if c == 3 else (1 / c,) * c, np.float32)
    grey: Floats = np.floor(weight @ x.reshape(n, c, h * w).astype(np.float32) + np.float32(0.5))
    return grey.reshape(n, 1, h, w)


def _whole(x: Floats) -> Pixels:
    """Floats cut to whole numbers; one just below a whole number becomes that number."""
    x += np.float32(1e-3)
    return np.clip(x, 0, 255, out=x).astype(np.uint8)


# --- positions --------------------------------------------------------------------------------------------------------


def _affine(x: Pixels, amount: Floats, sizes: list[int], fill: Pixels) -> Pixels:
    """Move images by MOVES, `sizes[i]` of them by the i-th; amounts (n,); `fill` (c, 1, 1) is the colour outside."""
    n, c, h, w = x.shape
    of_columns, of_rows = sources(amount, sizes, h, w)
    column, row = _sums(*of_columns, w), _sums(*of_rows, h)
    # A frame of one pixel around the image stands for everything outside.
    framed = np.empty((c, n, h + 2, w + 2), np.uint8)
    framed[:] = fill[:, None]
    framed[:, :, 1:-1, 1:-1] = x.swapaxes(0, 1)
    index = (row * (w + 2) + column).astype(np.intp)
    index += (np.arange(n) * ((h + 2) * (w + 2)))[:, None, None]
    moved = np.empty_like(x)
    for channel, pixels in enumerate(framed):
        moved[:, channel] = pixels.reshape(-1).take(index)
    return moved


def sources(amount: Floats, sizes: list[int], h: int, w: int) -> tuple[tuple[Floats, Floats], tuple[Floats, Floats]]:
    """The source of each pixel: what its column (n, w) and its row (n, h) add to its column, and to its row."""
    n = len(amount)
    each = np.zeros((len(sizes), n, 1), np.float32)
    each[np.arange(len(sizes)).repeat(sizes), np.arange(n), 0] = amount
    rotate, shear_x, shear_y, right, down = each
    cos, sin = np.cos(rotate * np.float32(pi / 180)), np.sin(rotate * np.float32(pi / 180))
    xs, ys = (np.arange(0.5, side, dtype=np.float32) for side in (w, h))
    column = cos * (xs - w / 2), shear_x * ys - sin * (ys - h / 2) + np.trunc(right) + w / 2
    return column, (shear_y * xs + sin * (xs - w / 2), cos * (ys - h / 2) + np.trunc(down) + h / 2)


def _sums(of_column: Floats, of_row: Floats, side: int) -> Floats:
    """(n, w) and (n, h) -> (n, h, w): their sums as positions in a framed image, from 0 to side + 1."""
    place = of_column[:, None, :] + of_row[:, :, None]
    place += 1
    return np.clip(np.floor(place, out=place), 0, side + 1, out=place)


def _cut_out(x: Pixels, side: Floats, centre: Floats, fill: Pixels) -> Pixels:
    """Images with `fill` (c, 1, 1) in a square of side (n,) around a centre (2, n) in 0..1, cropped at the border."""
    rows, columns = squares(x.shape[2:], side, centre)
    outside = (rows[:, None, :, None] & columns[:, None, None, :]).view(np.uint8) - np.uint8(1)  # 0 inside, else 255
    out = x ^ fill  # bit operations are several times faster than numpy.where
    out &= outside
    out ^= fill
    return out


def squares(lengths: tuple[int, ...], side: Floats, centre: Floats) -> list[NDArray[np.bool_]]:
    """Which rows (n, h) and which columns (n, w) of images are in a square of side (n,) around a centre (2, n)."""
    return [
        np.abs(np.arange(0.5, length, dtype=np.float32) - length * place[:, None]) <= side[:, None] / 2
        for length, place in zip(lengths, centre, strict=True)
    ]


SINGLE: dict[str, Callable[[Pixels, Floats], Pixels]] = {
    "identity": _identity,
    "autocontrast": _autocontrast,
    "brightness": _brightness,
    "color": _color,
    "contrast": _contrast,
    "equalize": _equalize,
    "invert": _invert,
    "posterize": _posterize,  # amount: bits that stay
    "sharpness": _sharpness,
    "solarize": _solarize,  # amount: the smallest value that is inverted
}
# Degrees counterclockwise; columns per row and rows per column from the upper left corner; whole pixels.
MOVES = ("rotate", "shear x", "shear y", "translate x", "translate y")
KINDS = (*SINGLE, "cutout", "noise", *MOVES)  # images are sorted in this order
CUTOUT, NOISE = KINDS.index("cutout"), KINDS.index("noise")  # they need more random numbers; of noise: its deviation
