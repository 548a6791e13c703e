"""Many image files as one array."""

import os
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, TypeVar

import numpy as np
from PIL import Image, ImageOps

from tacit.data.arrays import Pixels
from tacit.errors import TacitError

KEPT = 128  # pixels: images that are all alike and no larger keep their size
SIDE = 64  # pixels, otherwise
THREADS = min(8, os.cpu_count() or 1)  # Pillow lets others run while it decodes
_GREY = {"1", "L", "LA", "La", "I", "I;16", "I;16B", "I;16L", "I;16N"}
_TURNED = 5  # the EXIF orientations from here on swap width and height
_ORIENTATION = 0x0112
_WITH_EXIF = {"JPEG", "MPO", "TIFF", "WEBP"}

Opener = Callable[[str], IO[bytes]]
Size = tuple[int, int]  # width, height
T = TypeVar("T")


def open_file(name: str) -> IO[bytes]:
    """The opener for names that are paths."""
    return Path(name).open("rb")


def load(names: Sequence[str], opener: Opener, size: int | None = None) -> Pixels:
    """(n, c, h, w): grey if every image is, else RGB without alpha; upright as EXIF says.

    Images that are all alike and at most 128 pixels wide and high keep their size unless one is given; others are
    cut to the middle square and scaled to `size`, or 64, pixels.
    """
    found = _each(lambda row: _survey(names[row], opener), names)
    shapes = {shape for shape, _ in found}
    alike = len(shapes) == 1 and max(next(iter(shapes))) <= KEPT
    target = next(iter(shapes)) if alike and size is None else (size or SIDE, size or SIDE)
    return stack(names, opener, target, grey=all(grey for _, grey in found))


def stack(names: Sequence[str], opener: Opener, size: Size, *, grey: bool) -> Pixels:
    """(n, c, h, w): the images cut and scaled to (width, height), in the order of their names."""
    out = np.empty((len(names), size[1], size[0], 1 if grey else 3), dtype=np.uint8)

    def put(row: int) -> bool:
        with opener(names[row]) as file, Image.open(file) as image:
            out[row] = _pixels(image, size, grey=grey)
        return True

    _each(put, names)
    return np.ascontiguousarray(out.transpose(0, 3, 1, 2))


def _survey(name: str, opener: Opener) -> tuple[Size, bool]:
    """Width and height, and whether it is grey, from the head of a file alone."""
    with opener(name) as file, Image.open(file) as image:
        turned = image.format in _WITH_EXIF and image.getexif().get(_ORIENTATION, 1) >= _TURNED
        return (image.size[::-1] if turned else image.size), image.mode in _GREY


def _pixels(image: Image.Image, size: Size, *, grey: bool) -> Pixels:
    """(h, w, c) of one image."""
    upright = ImageOps.exif_transpose(image)
    plain = _eight_bits(upright).convert("L" if grey else "RGB")
    fitted = plain if plain.size == size else ImageOps.fit(plain, size)
    return np.asarray(fitted).reshape(size[1], size[0], -1)


def _eight_bits(image: Image.Image) -> Image.Image:
    """The image in a mode that Pillow turns into grey or RGB without loss of range."""
    if image.mode in ("P", "PA"):
        return image.convert("RGBA")
    if image.mode == "F":
        raise ValueError("pixels that are no whole numbers have no known range")
    if not image.mode.startswith("I"):
        return image
    values = np.clip(np.asarray(image), 0, 65535)
    return Image.fromarray(np.rint(values / 257).astype(np.uint8))


def _each(work: Callable[[int], T], names: Sequence[str]) -> list[T]:
    """`work` for the place of each file, in threads; those that are no images are counted in one sentence."""

    def attempt(row: int) -> T | None:
        try:
            return work(row)
        except (Image.DecompressionBombError, Image.DecompressionBombWarning):
            most = (Image.MAX_IMAGE_PIXELS or 0) // 10**6
            raise TacitError(f"{names[row]} is an image of more than {most} million pixels: shrink it first") from None
        except TacitError:
            raise
        except Exception:  # a damaged file can make a decoder raise anything
            return None

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about odd but readable metadata
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        with ThreadPoolExecutor(THREADS) as pool:
            results = list(pool.map(attempt, range(len(names))))
    wrong = [name for name, result in zip(names, results, strict=True) if result is None]
    if wrong:
        count = f"{len(wrong)} of {len(names)} files can not be read as images, the first is {wrong[0]}"
        raise TacitError(f"{count}: remove or replace them")
    return [result for result in results if result is not None]
