"""Images for a model: files, arrays and Pillow images as the pixels it was trained on."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from tacit.data.inputs import ImageInputs
from tacit.data.sources import npz
from tacit.data.sources.image_folder import is_system_file
from tacit.data.sources.images import Size, convert, read_file
from tacit.errors import TacitError

Pixels = NDArray[np.uint8]
_COLOURS = (1, 3, 4)  # lengths of an axis that holds colours


class ImageReader:
    """Turns images of any size into pixels (n, c, h, w), by the rule that made the training images."""

    def __init__(self, inputs: ImageInputs) -> None:
        """For a model with these inputs."""
        self._shape, self._bits = inputs.shape, inputs.bits
        self._pad = bool(inputs.pad)
        self._size: Size = (inputs.shape[2], inputs.shape[1])

    def item(self, item: Any) -> tuple[Tensor, Size | None]:
        """One image file, and its size in pixels before; or a sample."""
        if isinstance(item, np.ndarray):
            return torch.from_numpy(item[None]), None
        pixels, size = read_file(item, self._size, grey=self._grey, bits=self._bits, pad=self._pad)
        return torch.from_numpy(self._channels(pixels[None])), size

    def values(self, given: Any) -> Tensor:
        """An array of one or several images, or a Pillow image."""
        if isinstance(given, Image.Image):
            return torch.from_numpy(self._channels(self._converted(given, "the image")[None]))
        array = np.asarray(given)
        if array.ndim == 2 or array.shape == self._shape or self._is_one(array):
            array = array[None]
        if array.dtype == np.uint16 and self._bits is None:
            problem = "the array has 16-bit values, and the model was trained on 8-bit images only"
            raise TacitError(problem, "scale its values to 0..255, as uint8", code="data.too-few-bits")
        pixels = npz.as_pixels(array, "the array of images", self._bits)
        if pixels.shape[2:] != self._shape[1:] or pixels.shape[1] not in (1, self._shape[0]):
            pixels = np.stack([self._resized(image) for image in pixels])
        return torch.from_numpy(self._channels(pixels.transpose(0, 2, 3, 1)))

    def levels(self, x: Tensor) -> Tensor:
        """(n, c): the brightness of each channel, from 0 to 1."""
        return x.float().mean(dim=(2, 3)) / 255

    @property
    def _grey(self) -> bool:
        return self._shape[0] == 1

    def _is_one(self, array: NDArray[Any]) -> bool:
        """Whether an array with three axes is (h, w, colours) and not (n, h, w)."""
        return array.ndim == 3 and array.shape[1:] != self._shape[1:] and array.shape[2] in _COLOURS

    def _converted(self, image: Image.Image, name: str) -> Pixels:
        return convert(image, name, self._size, grey=self._grey, bits=self._bits, pad=self._pad)

    def _resized(self, image: Pixels) -> Pixels:
        """(c, h, w) of any size -> (c, h, w) of the model's."""
        if image.shape[0] not in _COLOURS:
            problem = f"the array has images with {image.shape[0]} channels"
            raise TacitError(problem, "give grey or RGB images", code="predict.wrong-shape")
        picture = Image.fromarray(image[0] if len(image) == 1 else image.transpose(1, 2, 0))
        return self._converted(picture, "the array").transpose(2, 0, 1)

    def _channels(self, pixels: Pixels) -> Pixels:
        """(n, h, w, c) -> (n, c, h, w); a grey image is repeated where the model sees colours."""
        ordered = pixels.transpose(0, 3, 1, 2)
        if ordered.shape[1] == self._shape[0]:
            return np.require(ordered, requirements=["C", "W"])  # torch takes no read-only arrays
        if ordered.shape[1] == 1:
            return np.ascontiguousarray(ordered.repeat(self._shape[0], axis=1))
        problem = f"the images have {ordered.shape[1]} channels and the model sees {self._shape[0]}"
        raise TacitError(problem, "give grey or RGB images", code="predict.wrong-shape")


def image_files(folder: Path) -> Iterable[str]:
    """All files below a folder, in order, one folder in memory at a time; hidden and system files are left out."""
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if is_system_file(entry.name):
            continue
        if entry.is_dir():
            yield from image_files(entry)
        else:
            yield str(entry)
