"""The speed of strong views as a ratio to Pillow and, if installed, kornia, measured in the same run.

    python benchmarks/augment.py [--images 100] [--turns 15]

One thread, color images of 32×32 pixels: flip and shift, two operations of RandAugment, a cut-out, normalization.
Pillow does the same operations, drawn in the same way, image by image. The operations and the cut-out are also
measured alone. Times are CPU times of the thread. They still depend on the machine and its load, so all candidates
alternate in blocks and only the ratio of the medians counts; it is the last line.
"""

import argparse
import importlib
import importlib.util
import time
from collections.abc import Callable
from functools import partial
from statistics import median

import numpy as np
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

from tacit.data.sources import load
from tacit.data.views.augment import ImageViews
from tacit.data.views.randaugment import KINDS
from tacit.process import one_thread, tune_malloc

BLOCK = 5  # batches in a block
SIDE = 32
VIEWS = ImageViews(mean=(0.49, 0.48, 0.45), std=(0.25, 0.24, 0.26), flip=True)
FILL = tuple(round(255 * mean) for mean in VIEWS.mean)

Maker = Callable[[Tensor, torch.Generator], Tensor]


def make_images(count: int) -> Tensor:
    """(count, 3, 32, 32): framed clothes, each in one color; the histogram of noise would be unlike any image's."""
    grey = load("fashion-small").x[:count, 0].float()
    tint = torch.rand(count, 3, 1, 1, generator=torch.Generator().manual_seed(0))
    return torch.nn.functional.pad(grey[:, None] * tint + 50 * (1 - tint), (2, 2, 2, 2)).to(torch.uint8)


# --- the same with Pillow ---------------------------------------------------------------------------------------------


def _affine(image: Image.Image, *matrix: float) -> Image.Image:
    return image.transform(image.size, Image.Transform.AFFINE, matrix, fillcolor=FILL)


PILLOW: dict[str, Callable[[Image.Image, float], Image.Image]] = {
    "identity": lambda image, _: image,
    "autocontrast": lambda image, _: ImageOps.autocontrast(image),
    "equalize": lambda image, _: ImageOps.equalize(image),
    "posterize": lambda image, bits: ImageOps.posterize(image, int(bits)),
    "solarize": lambda image, threshold: ImageOps.solarize(image, int(threshold)),
    "brightness": lambda image, factor: ImageEnhance.Brightness(image).enhance(factor),
    "contrast": lambda image, factor: ImageEnhance.Contrast(image).enhance(factor),
    "color": lambda image, factor: ImageEnhance.Color(image).enhance(factor),
    "sharpness": lambda image, factor: ImageEnhance.Sharpness(image).enhance(factor),
    "rotate": lambda image, degrees: image.rotate(degrees, fillcolor=FILL),
    "shear x": lambda image, amount: _affine(image, 1, amount, 0, 0, 1, 0),
    "shear y": lambda image, amount: _affine(image, 1, 0, 0, amount, 1, 0),
    "translate x": lambda image, amount: _affine(image, 1, 0, int(amount), 0, 1, 0),
    "translate y": lambda image, amount: _affine(image, 1, 0, 0, 0, 1, int(amount)),
}


def with_pillow(x: Tensor, stream: torch.Generator, whole: bool = True) -> Tensor:
    """The strong view, or only its operations and cut-out, image by image."""
    drawn = [(kind.tolist(), amount.tolist()) for kind, amount, _ in VIEWS.variant.draw(x.shape, stream)]
    flip, *place = torch.rand(5, len(x), generator=stream).tolist()
    views = []
    for i, pixels in enumerate(x.permute(0, 2, 3, 1).numpy()):
        image = _shifted(pixels, flip[i], place[0][i], place[1][i]) if whole else Image.fromarray(pixels)
        for kinds, amounts in drawn:
            image = PILLOW[KINDS[kinds[i]]](image, amounts[i])
        row, column = (int(SIDE * place[k][i]) for k in (2, 3))
        image.paste(FILL, (max(0, column - 8), max(0, row - 8), min(SIDE, column + 8), min(SIDE, row + 8)))
        views.append(np.asarray(image))
    pixels = torch.from_numpy(np.stack(views)).permute(0, 3, 1, 2)
    return VIEWS.plain(pixels) if whole else pixels


def _shifted(pixels: np.ndarray, flip: float, down: float, right: float) -> Image.Image:
    """Flip half of the images, and shift by up to four pixels with mirrored borders."""
    image = Image.fromarray(np.pad(pixels, ((4, 4), (4, 4), (0, 0)), mode="reflect"))
    left, top = int(9 * right), int(9 * down)
    image = image.crop((left, top, left + SIDE, top + SIDE))
    return ImageOps.mirror(image) if flip < 0.5 else image


# --- about the same with kornia ---------------------------------------------------------------------------------------


def with_kornia() -> Maker:
    """Kornia's RandAugment, which draws operations per batch, not per image, and ignores the stream."""
    k, auto = (importlib.import_module(f"kornia.augmentation{part}") for part in ("", ".auto"))
    steps = torch.nn.Sequential(
        k.RandomHorizontalFlip(),
        k.RandomCrop((SIDE, SIDE), padding=4, padding_mode="reflect"),
        auto.RandAugment(n=2, m=10),
        k.RandomErasing(p=1.0, scale=(0.25, 0.25), ratio=(1.0, 1.0)),
        k.Normalize(torch.tensor(VIEWS.mean), torch.tensor(VIEWS.std)),
    )

    def make(x: Tensor, stream: torch.Generator) -> Tensor:
        out: Tensor = steps(x.float() / 255)
        return out

    return make


def operations_alone(x: Tensor, stream: torch.Generator) -> Tensor:
    """Two operations and the cut-out, pixels in and pixels out."""
    return torch.from_numpy(VIEWS.variant(x.numpy(), np.array(FILL, np.uint8)[:, None, None], stream))


# --- timing -----------------------------------------------------------------------------------------------------------


def measure(makers: dict[str, Maker], x: Tensor, turns: int) -> dict[str, float]:
    """Microseconds per image of each maker, medians over alternating blocks; the first turn is a warm-up."""
    times: dict[str, list[float]] = {name: [] for name in makers}
    for turn in range(turns + 1):
        for name, make in makers.items():
            stream = torch.Generator().manual_seed(turn)
            began = time.thread_time()
            for _ in range(BLOCK):
                make(x, stream)
            times[name].append((time.thread_time() - began) / (BLOCK * len(x)) * 1e6)
    return {name: median(found[1:]) for name, found in times.items()}


def main() -> None:
    """Print microseconds per image of each maker, then the ratio."""
    parser = argparse.ArgumentParser(description="Speed of strong views as a ratio to Pillow, on the last line.")
    parser.add_argument("--images", type=int, default=100, help="images in a batch (default: 100)")
    parser.add_argument("--turns", type=int, default=15, help="blocks to measure (default: 15)")
    options = parser.parse_args()
    tune_malloc()  # as every worker does
    makers: dict[str, Maker] = {
        "ours": VIEWS.strong,
        "pillow": with_pillow,
        "ours, RandAugment(2) + cutout alone": operations_alone,
        "pillow, RandAugment(2) + cutout alone": partial(with_pillow, whole=False),
    }
    if importlib.util.find_spec("kornia"):
        makers["kornia"] = with_kornia()
    else:
        print("kornia is not installed")
    with one_thread():
        times = measure(makers, make_images(options.images), options.turns)
    for name, found in times.items():
        print(f"{name:38} {found:7.1f} µs per image")
    alone = [times[f"{name}, RandAugment(2) + cutout alone"] for name in ("pillow", "ours")]
    print(f"augment, RandAugment(2) + cutout alone ratio={alone[0] / alone[1]:.2f}")
    print(f"augment ratio={times['pillow'] / times['ours']:.2f}")


if __name__ == "__main__":
    main()
