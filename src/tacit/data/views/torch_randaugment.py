"""RandAugment in torch, for images on a GPU: the pixels of `randaugment`, bit by bit, without a way to the CPU.

Which image gets which operation is drawn on the CPU, so the CPU knows the shape of every step and never waits. Numbers
per image, row or column are computed there too, in NumPy, and follow the pixels; what is done per pixel is exact or
rounded as in NumPy. On a CPU, NumPy is several times faster.
"""

from collections.abc import Callable
from itertools import accumulate

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.data.views.randaugment import (
    CUTOUT,
    KINDS,
    LUMA,
    NOISE,
    SINGLE,
    DrawnChanges,
    DrawnOperations,
    Floats,
    Pixels,
    RandAugment,
    noise_of,
    sources,
    squares,
)

EXACT_CHANNELS = (1, 2, 3, 4)  # their grey values have no rounding that could depend on the order of a sum


def can_apply(shape: tuple[int, ...]) -> bool:
    """Whether images (n, c, h, w) get the pixels of the NumPy version; sums over larger ones are rounded."""
    return shape[1] in EXACT_CHANNELS and shape[2] * shape[3] * 255 < 1 << 24


def apply(recipe: RandAugment, x: Tensor, mean: Pixels, drawn: DrawnChanges) -> Tensor:
    """As `RandAugment.apply`: changed copies of images uint8 (n, c, h, w), on their device."""
    fill, cutout_fill = (
        _moved(mean if f is None else np.full_like(mean, f), x.device) for f in (recipe.fill, recipe.cutout_fill)
    )
    for operations in drawn.operations:
        x = _apply(x, operations, fill, cutout_fill)
    if drawn.cutout is None:
        return x
    side, centre = recipe.final_cutout(drawn.cutout, min(x.shape[2:]))
    return _cut_out(x, side, centre, cutout_fill)


def _apply(x: Tensor, drawn: DrawnOperations, fill: Tensor, cutout_fill: Tensor) -> Tensor:
    """Apply one operation to each image, all images of a kind together."""
    order = drawn.kind.argsort(kind="stable")
    amount, centre = drawn.amount[order], drawn.centre[:, order]
    many = np.bincount(drawn.kind, minlength=len(KINDS)).tolist()
    ends = [0, *accumulate(many)]
    row = _moved(order, x.device)
    sorted_x, amounts = x.index_select(0, row), _moved(amount[:, None, None, None], x.device)
    parts = []
    for kind, name in enumerate(SINGLE):
        start, end = ends[kind : kind + 2]
        if start < end:
            parts.append(_SINGLE[name](sorted_x[start:end], amounts[start:end]))
    start, end = ends[CUTOUT : CUTOUT + 2]
    if start < end:
        parts.append(_cut_out(sorted_x[start:end], amount[start:end], centre[:, start:end], cutout_fill))
    start, end = end, ends[NOISE + 1]
    if start < end:
        noise = noise_of(tuple(x.shape[1:]), amount[start:end], centre[:, start:end])
        parts.append(_whole(sorted_x[start:end] + _moved(noise, x.device)))
    if end < len(x):
        parts.append(_affine(sorted_x[end:], amount[end:], many[NOISE + 1 :], fill))
    return torch.empty_like(x).index_copy_(0, row, torch.cat(parts))


def _moved(array: NDArray[np.generic], device: torch.device) -> Tensor:
    """On the device, without waiting for it."""
    return torch.from_numpy(np.ascontiguousarray(array)).to(device, non_blocking=True)


def _identity(x: Tensor, amount: Tensor) -> Tensor:
    return x


def _autocontrast(x: Tensor, amount: Tensor) -> Tensor:
    low, high = x.amin((2, 3), keepdim=True), x.amax((2, 3), keepdim=True)
    flat = low == high
    low, high = low.masked_fill(flat, 0), high.masked_fill(flat, 255)
    return _whole((x - low).float() * (255 / (high - low).float()))


def _equalize(x: Tensor, amount: Tensor) -> Tensor:
    n, c, h, w = x.shape
    value = x.reshape(n * c, h * w).long()
    many = value.new_zeros(n * c, 256).scatter_add_(1, value, torch.ones_like(value))
    step = (h * w - many.gather(1, value.amax(1, keepdim=True))) // 255
    table = ((many.cumsum(1) - many + step // 2) // step.clamp(min=1)).clamp(max=255)
    table = torch.where(step > 0, table, torch.arange(256, device=x.device)).to(torch.uint8)
    return table.gather(1, value).reshape(x.shape)


def _invert(x: Tensor, amount: Tensor) -> Tensor:
    return ~x


def _posterize(x: Tensor, bits: Tensor) -> Tensor:
    gone = 8 - bits.floor().to(torch.int16)
    return x & (256 - torch.ones_like(gone).bitwise_left_shift(gone)).to(torch.uint8)


def _solarize(x: Tensor, threshold: Tensor) -> Tensor:
    return torch.where(x > threshold.ceil().to(torch.int16) - 1, ~x, x)


def _brightness(x: Tensor, factor: Tensor) -> Tensor:
    return _whole(x * factor)


def _contrast(x: Tensor, factor: Tensor) -> Tensor:
    # Divided by a tensor: by a number, a GPU would multiply with its rounded reciprocal.
    count = torch.full((), float(x.shape[2] * x.shape[3]), device=x.device)
    level = (_grey(x).sum((1, 2, 3), keepdim=True) / count + 0.5).floor()
    return _whole(x * factor + level * (1 - factor))


def _color(x: Tensor, factor: Tensor) -> Tensor:
    return _whole(x * factor + _grey(x) * (1 - factor))


def _sharpness(x: Tensor, factor: Tensor) -> Tensor:
    smooth, thirteen = x.float(), torch.full((), 13.0, device=x.device)
    rows = smooth[:, :, :-2] + smooth[:, :, 1:-1] + smooth[:, :, 2:]
    inner = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:] + 4 * smooth[:, :, 1:-1, 1:-1]
    smooth[:, :, 1:-1, 1:-1] = (inner / thirteen + 0.5).floor()
    return _whole(x * factor + smooth * (1 - factor))


def _grey(x: Tensor) -> Tensor:
    """(n, c, h, w) -> (n, 1, h, w); every product and sum is a multiple of 2⁻¹⁶ below 2⁸, hence exact."""
    c = x.shape[1]
    shares = LUMA if c == 3 else (1 / c,) * c
    grey = sum((x[:, k : k + 1].float() * share for k, share in enumerate(shares)), torch.zeros((), device=x.device))
    return (grey + 0.5).floor()


def _whole(x: Tensor) -> Tensor:
    return (x + float(np.float32(1e-3))).clamp(0, 255).to(torch.uint8)


def _affine(x: Tensor, amount: Floats, sizes: list[int], fill: Tensor) -> Tensor:
    n, c, h, w = x.shape
    column, row = (
        (of_column[:, None, :] + of_row[:, :, None] + 1).floor().clamp(0, side + 1)
        for side, (of_column, of_row) in zip(
            (w, h),
            (tuple(_moved(part, x.device) for part in pair) for pair in sources(amount, sizes, h, w)),
            strict=True,
        )
    )
    framed = fill.expand(n, c, h + 2, w + 2).contiguous()
    framed[:, :, 1:-1, 1:-1] = x
    index = (row * (w + 2) + column).long().reshape(n, 1, h * w).expand(n, c, h * w)
    return framed.reshape(n, c, -1).gather(2, index).reshape(x.shape)


def _cut_out(x: Tensor, side: Floats, centre: Floats, fill: Tensor) -> Tensor:
    rows, columns = (_moved(inside, x.device) for inside in squares(x.shape[2:], side, centre))
    return torch.where(rows[:, None, :, None] & columns[:, None, None, :], fill, x)


_SINGLE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "identity": _identity,
    "autocontrast": _autocontrast,
    "brightness": _brightness,
    "color": _color,
    "contrast": _contrast,
    "equalize": _equalize,
    "invert": _invert,
    "posterize": _posterize,
    "sharpness": _sharpness,
    "solarize": _solarize,
}
