"""Many image files as one array."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import IO, NamedTuple, TypeVar

import numpy as np
from PIL import Image, ImageOps
from PIL import __version__ as pillow_version

from tacit.data.sources import dicom, pixel_cache
from tacit.data.sources.arrays import Pixels
from tacit.errors import TacitError
from tacit.process import cores

LARGEST_UNSCALED = 128  # pixels: images of one size that are no larger are not scaled
SIDE = 64  # pixels, to which other images are scaled
DEPTHS = (8, 10, 12, 14, 16)  # bits per grey value that cameras and scanners use
FEW = 20  # one image in colour among at least this many grey ones is named
LISTED = 20  # files that a refusal names
THREADS = min(8, cores())  # Pillow releases the GIL while it decodes
_REMEDY = "save such images with 8-bit or 16-bit grey values"
_GREY = {"1", "L", "LA", "La", "I", "I;16", "I;16B", "I;16L", "I;16N"}
_TURNED = 5  # EXIF orientations from here on swap width and height
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
    """What images are scaled to; what is not given is chosen from the images."""

    size: int | None = None  # side in pixels
    bits: int | None = None  # that 16-bit grey images use
    pad: bool = False  # images that are not square get black borders instead of being cropped
    skip_broken: bool = False  # files that cannot be read are left out instead of refused


AS_FOUND = Scale()


@dataclass(frozen=True)
class _Seen:
    """What `_survey` finds about one image file."""

    size: Size
    grey: bool
    most: int  # the largest value of a 16-bit image, else 0


class Loaded(NamedTuple):
    """What `load` makes of image files."""

    x: Pixels  # (n, c, h, w)
    note: str  # on what was done to them
    bits: int | None  # that 16-bit grey values were scaled from
    sizes: tuple[int, ...]  # smallest width and height, largest width and height before scaling


def load(names: Sequence[str], opener: Opener, scale: Scale = AS_FOUND) -> Loaded:
    """Image files as one array.

    Images become grey if all are grey, else RGB without alpha, and upright as EXIF says. If all have one size of at
    most 128 pixels and no size is given, they are not scaled; otherwise they are cropped to the middle square and
    scaled to the given size or to 64 pixels. 16-bit grey values are scaled from the given bits, or from the fewest that
    hold the largest value of all images, so that equal values stay equal; the bits are None without such values.
    """
    size = scale.size
    found = _each(lambda row: _survey(names[row], opener), names)
    sizes = {image.size for image in found}
    alike = len(sizes) == 1 and max(next(iter(sizes))) <= LARGEST_UNSCALED
    target = next(iter(sizes)) if alike and size is None else (size or SIDE, size or SIDE)
    most = max(image.most for image in found)
    fewest = next((bits for bits in DEPTHS if most < 2**bits), DEPTHS[-1])
    bits = scale.bits or fewest
    if bits < fewest and most >= 2**bits:
        bright = names[[image.most for image in found].index(most)]
        problem = f"{bright} has the grey value {most}, which does not fit into {bits} bits"
        raise TacitError(problem, f"set data.bits = {fewest} in the config", code="data.too-few-bits")
    colour = [name for name, image in zip(names, found, strict=True) if not image.grey]
    x = stack(names, opener, target, grey=not colour, bits=bits, pad=scale.pad)
    used = bits if most else None
    wide, high = zip(*sizes, strict=True)
    note = " ".join(filter(None, (_note(sizes, target, used, pad=scale.pad), _few_in_colour(colour, len(names)))))
    return Loaded(x, note, used, (min(wide), min(high), max(wide), max(high)))


def unreadable(names: Sequence[str], opener: Opener) -> list[str]:
    """The files that cannot be decoded to their end."""

    def whole(row: int) -> bool:
        with opener(names[row]) as file, opened(file) as image:
            image.load()
        return True

    return [name for name, fine in zip(names, _attempts(whole, names), strict=True) if fine is None]


@contextmanager
def opened(file: IO[bytes]) -> Iterator[Image.Image]:
    """The image in a file: any format of Pillow, or DICOM."""
    head = file.read(dicom.LONGEST_HEAD)
    file.seek(0)
    if dicom.is_dicom(head):
        yield dicom.read(file)
        return
    with Image.open(file) as image:
        yield image


def stack(
    names: Sequence[str], opener: Opener, size: Size, *, grey: bool, bits: int = DEPTHS[-1], pad: bool = False
) -> Pixels:
    """(n, c, h, w): the images cropped or padded and scaled to (width, height), in the order of their names.

    `bits` is how many bits 16-bit grey images use. Files whose pixels take much memory are decoded to disk.
    """
    shape = (len(names), 1 if grey else 3, size[1], size[0])

    def fill(start: int, out: Pixels) -> None:
        def put(row: int) -> bool:
            name = names[start + row]
            with opener(name) as file, opened(file) as image:
                _refuse_fractions(image, name)
                out[row] = _pixels(image, size, grey=grey, bits=bits, pad=pad).transpose(2, 0, 1)
            return True

        _each(put, names[start : start + len(out)])

    if opener is open_file and prod(shape) >= pixel_cache.LARGE:
        settings = (pillow_version, shape, bits, pad)
        found: Pixels = pixel_cache.mapped(pixel_cache.key_of(names, settings), shape, fill)
        return found
    out = np.empty(shape, dtype=np.uint8)
    fill(0, out)
    return out


def read_file(name: str, size: Size, *, grey: bool, bits: int | None, pad: bool = False) -> tuple[Pixels, Size]:
    """(h, w, c) of one image file, as `load` makes it, and its size before; refuses a file that is no image."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about odd but readable metadata
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with open_file(name) as file, opened(file) as image:
                return convert(image, name, size, grey=grey, bits=bits, pad=pad), ImageOps.exif_transpose(image).size
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise _too_large(name) from None
    except TacitError:
        raise
    except FileNotFoundError:
        raise TacitError(f"there is no file {name}", "check the path", code="data.no-file") from None
    except Exception:  # a damaged file can make the decoder raise anything
        problem = f"{name} cannot be read as an image"
        raise TacitError(problem, "remove or replace it", code="data.unreadable-images") from None


def convert(image: Image.Image, name: str, size: Size, *, grey: bool, bits: int | None, pad: bool = False) -> Pixels:
    """(h, w, c) of one image, as `load` makes it; refuses 16-bit values if `bits` is None or cannot hold them."""
    most = _most(image, name)
    if most and (bits is None or most >= 2**bits):
        used = "8-bit images only" if bits is None else f"images that use {bits} bits"
        problem = f"{name} has the 16-bit grey value {most}, and the model was trained on {used}"
        raise TacitError(problem, "scale its values first", code="data.too-few-bits")
    return _pixels(image, size, grey=grey, bits=bits or DEPTHS[-1], pad=pad)


def _note(sizes: set[Size], target: Size, bits: int | None, *, pad: bool) -> str:
    """What was done to the images, in sentences."""
    depth = f"16-bit grey values were scaled from {bits} bits." if bits else ""
    if sizes == {target}:
        return depth
    ordered = sorted(sizes, key=lambda size: (size[0] * size[1], size))
    small, large = (f"{wide}×{high}" for wide, high in (ordered[0], ordered[-1]))
    cropped = ("padded and " if pad else "cropped and ") if any(wide != high for wide, high in sizes) else ""
    before = small if small == large else f"{small} … {large}"
    return f"Images were {cropped}resized from {before}; data.size changes that. {depth}".rstrip()


def _few_in_colour(colour: Sequence[str], total: int) -> str:
    """A sentence about a few images in colour, which make all others three times as large."""
    if not 0 < len(colour) * FEW <= total:
        return ""
    rest = f" and {len(colour) - 1} more" if len(colour) > 1 else ""
    verb = "are" if rest else "is"
    return f"{colour[0]}{rest} {verb} in colour among {total} images, so all are read in colour."


def _survey(name: str, opener: Opener) -> _Seen:
    """Read the header of a file only, except for 16-bit images, whose values are read."""
    with opener(name) as file, opened(file) as image:
        turned = image.format in _WITH_EXIF and image.getexif().get(_ORIENTATION, 1) >= _TURNED
        return _Seen(image.size[::-1] if turned else image.size, image.mode in _GREY, _most(image, name))


def _most(image: Image.Image, name: str) -> int:
    """The largest value of a 16-bit grey image, else 0; refuses values that 16 bits would cut off."""
    _refuse_fractions(image, name)
    if not image.mode.startswith("I"):
        return 0
    values = np.asarray(image)
    for value in (int(values.min()), int(values.max())):
        if not 0 <= value < 2 ** DEPTHS[-1]:
            problem = f"{name} has the grey value {value}, which does not fit into 16 bits"
            raise TacitError(problem, _REMEDY, code="data.grey-out-of-range")
    return int(values.max())


def _refuse_fractions(image: Image.Image, name: str) -> None:
    if image.mode == "F":
        problem = f"{name} has fractional grey values, whose range is unknown"
        raise TacitError(problem, _REMEDY, code="data.fractional-grey")


def _pixels(image: Image.Image, size: Size, *, grey: bool, bits: int, pad: bool) -> Pixels:
    """(h, w, c) of one image."""
    upright = ImageOps.exif_transpose(image)
    plain = _eight_bits(upright, bits).convert("L" if grey else "RGB")
    fitted = plain if plain.size == size else ImageOps.pad(plain, size) if pad else ImageOps.fit(plain, size)
    return np.asarray(fitted).reshape(size[1], size[0], -1)


def _eight_bits(image: Image.Image, bits: int) -> Image.Image:
    """The image in a mode that Pillow converts to grey or RGB without losing range."""
    if image.mode in ("P", "PA"):
        return image.convert("RGBA")
    if not image.mode.startswith("I"):
        return image
    white = 2**bits - 1
    values = np.clip(np.asarray(image), 0, white)
    return Image.fromarray(np.rint(values * (255 / white)).astype(np.uint8))


def _too_large(name: str) -> TacitError:
    most = (Image.MAX_IMAGE_PIXELS or 0) // 10**6
    return TacitError(f"{name} has more than {most} million pixels", "shrink it first", code="data.image-too-large")


def _each(work: Callable[[int], T], names: Sequence[str]) -> list[T]:
    """Call `work` with the row of each file, in threads; refuse files that are not images, all in one sentence."""
    results = _attempts(work, names)
    wrong = [name for name, result in zip(names, results, strict=True) if result is None]
    if wrong:
        raise _broken(wrong, len(names))
    return [result for result in results if result is not None]


def _broken(wrong: Sequence[str], total: int) -> TacitError:
    """The refusal of files, up to LISTED of them by name."""
    more = f" and {len(wrong) - LISTED} more" if len(wrong) > LISTED else ""
    problem = f"{len(wrong)} of {total} files cannot be read as images: {', '.join(wrong[:LISTED])}{more}"
    remedy = "remove or replace them, or leave them out with --set data.skip_broken=true"
    return TacitError(problem, remedy, code="data.unreadable-images")


def _attempts(work: Callable[[int], T], names: Sequence[str]) -> list[T | None]:
    """What `work` makes of the row of each file, in threads; None for a file that cannot be read."""

    def attempt(row: int) -> T | None:
        try:
            return work(row)
        except (Image.DecompressionBombError, Image.DecompressionBombWarning):
            raise _too_large(names[row]) from None
        except TacitError:
            raise
        except Exception:  # a damaged file can make the decoder raise anything
            return None

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about odd but readable metadata
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        with ThreadPoolExecutor(THREADS) as pool:
            return list(pool.map(attempt, range(len(names))))
