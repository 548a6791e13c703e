"""Many image files as one array."""

import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TypeVar

import numpy as np
from PIL import Image, ImageOps

from tacit.data.arrays import Pixels
from tacit.errors import TacitError
from tacit.machine import cores

KEPT = 128  # pixels: images that are all alike and no larger keep their size
SIDE = 64  # pixels, otherwise
DEPTHS = (8, 10, 12, 14, 16)  # bits of a grey value that cameras and scanners use
THREADS = min(8, cores())  # Pillow lets others run while it decodes
_REMEDY = "save such images as grey of 8 or 16 bits"
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


@dataclass(frozen=True)
class Scale:
    """What images are scaled to; what is not given goes by the images themselves."""

    size: int | None = None  # side in pixels
    bits: int | None = None  # how many of their 16 bits deep grey images use


AS_FOUND = Scale()


@dataclass(frozen=True)
class _Seen:
    """What one image file is like."""

    size: Size
    grey: bool
    most: int  # the largest value of an image of 16 bits, else 0


def load(names: Sequence[str], opener: Opener, scale: Scale = AS_FOUND) -> tuple[Pixels, str, int | None]:
    """(n, c, h, w): grey if every image is, else RGB without alpha; upright as EXIF says; and what was done to them.

    Images that are all alike and at most 128 pixels wide and high keep their size unless one is given; others are
    cut to the middle square and scaled to it, or to 64 pixels. Grey values of 16 bits are scaled by the bits that are
    given, or the fewest that hold the largest of all images, so that what was alike stays alike; these bits come last,
    None where no image has any such value.
    """
    size = scale.size
    found = _each(lambda row: _survey(names[row], opener), names)
    sizes = {image.size for image in found}
    alike = len(sizes) == 1 and max(next(iter(sizes))) <= KEPT
    target = next(iter(sizes)) if alike and size is None else (size or SIDE, size or SIDE)
    most = max(image.most for image in found)
    fewest = next((bits for bits in DEPTHS if most < 2**bits), DEPTHS[-1])
    bits = scale.bits or fewest
    if bits < fewest and most >= 2**bits:
        bright = names[[image.most for image in found].index(most)]
        raise TacitError(
            f"{bright} has the grey value {most}, more than {bits} bits hold: set data.bits = {fewest} in the config"
        )
    x = stack(names, opener, target, grey=all(image.grey for image in found), bits=bits)
    used = bits if most else None
    return x, _note(sizes, target, used), used


def stack(names: Sequence[str], opener: Opener, size: Size, *, grey: bool, bits: int = DEPTHS[-1]) -> Pixels:
    """(n, c, h, w): the images cut and scaled to (width, height), in the order of their names.

    `bits` is how many of their 16 bits deep grey images use.
    """
    out = np.empty((len(names), size[1], size[0], 1 if grey else 3), dtype=np.uint8)

    def put(row: int) -> bool:
        with opener(names[row]) as file, Image.open(file) as image:
            _refuse_fractions(image, names[row])
            out[row] = _pixels(image, size, grey=grey, bits=bits)
        return True

    _each(put, names)
    return np.ascontiguousarray(out.transpose(0, 3, 1, 2))


def _note(sizes: set[Size], target: Size, bits: int | None) -> str:
    """What was done to the images, in sentences."""
    depth = f"Grey values of 16 bits were scaled from {bits} bits." if bits else ""
    if sizes == {target}:
        return depth
    ordered = sorted(sizes, key=lambda size: (size[0] * size[1], size))
    small, large = (f"{wide}×{high}" for wide, high in (ordered[0], ordered[-1]))
    cut = "cut and " if any(wide != high for wide, high in sizes) else ""
    before = small if small == large else f"{small} … {large}"
    return f"Images were {cut}resized from {before}; data.size changes that. {depth}".rstrip()


def _survey(name: str, opener: Opener) -> _Seen:
    """From the head of a file alone, but for images of 16 bits, whose values are read."""
    with opener(name) as file, Image.open(file) as image:
        turned = image.format in _WITH_EXIF and image.getexif().get(_ORIENTATION, 1) >= _TURNED
        return _Seen(image.size[::-1] if turned else image.size, image.mode in _GREY, _most(image, name))


def _most(image: Image.Image, name: str) -> int:
    """The largest value of a deep grey image, else 0; values that would be cut off in silence are refused."""
    _refuse_fractions(image, name)
    if not image.mode.startswith("I"):
        return 0
    values = np.asarray(image)
    for value in (int(values.min()), int(values.max())):
        if not 0 <= value < 2 ** DEPTHS[-1]:
            raise TacitError(f"{name} has the grey value {value}, which 16 bits do not hold: {_REMEDY}")
    return int(values.max())


def _refuse_fractions(image: Image.Image, name: str) -> None:
    if image.mode == "F":
        raise TacitError(
            f"{name} has grey values that are no whole numbers, of which nobody knows the range: {_REMEDY}"
        )


def _pixels(image: Image.Image, size: Size, *, grey: bool, bits: int) -> Pixels:
    """(h, w, c) of one image."""
    upright = ImageOps.exif_transpose(image)
    plain = _eight_bits(upright, bits).convert("L" if grey else "RGB")
    fitted = plain if plain.size == size else ImageOps.fit(plain, size)
    return np.asarray(fitted).reshape(size[1], size[0], -1)


def _eight_bits(image: Image.Image, bits: int) -> Image.Image:
    """The image in a mode that Pillow turns into grey or RGB without loss of range."""
    if image.mode in ("P", "PA"):
        return image.convert("RGBA")
    if not image.mode.startswith("I"):
        return image
    white = 2**bits - 1
    values = np.clip(np.asarray(image), 0, white)
    return Image.fromarray(np.rint(values * (255 / white)).astype(np.uint8))


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
