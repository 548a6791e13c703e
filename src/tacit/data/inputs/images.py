"""Images, what they are and how they are handled."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from tacit.data.inputs.shared import Above, Side, moments, other_kind, plain, refuse_other_length, times
from tacit.data.split.config import Bits, DataConfig
from tacit.data.views.augment import VARIANTS, ImageViews
from tacit.federation import Difference, Inputs, Views


@dataclass(frozen=True)
class ImageInputs:
    """Pictures, stored as uint8 pixels (channels, height, width)."""

    shape: tuple[Side, ...]  # channels, height, width
    mean: tuple[float, ...] = ()  # per channel, subtracted from pixels scaled to 0..1
    std: tuple[Above, ...] = ()  # per channel, divides the difference
    flip: bool = False  # a flipped image still looks like its class, so the weak view may flip it
    shift: Annotated[int, Field(ge=0)] | None = None  # most pixels the weak view shifts by; default: an eighth
    bits: Bits | None = None  # used by all 16-bit grey images; omitted if unknown
    sizes: tuple[Side, ...] = ()  # smallest width and height, largest width and height of the files before scaling
    pad: bool | None = None  # files that are not square got black borders instead of being cropped

    kind: ClassVar[str] = "images"
    dtype: ClassVar[torch.dtype] = torch.uint8
    mixable: ClassVar[bool] = True
    drawable: ClassVar[bool] = True
    from_files: ClassVar[bool] = True
    reads_classes: ClassVar[bool] = False
    suggested_net: ClassVar[str] = "lenet"
    settings: ClassVar[tuple[str, ...]] = ("flip", "shift", "augment")
    marks: ClassVar[Mapping[str, Any]] = {"text": False}  # plain values that only tell the kind

    def __post_init__(self) -> None:
        """Refuse parts that do not belong together."""
        if len(self.shape) != 3:
            raise ValueError(f"{list(self.shape)} is not the shape of an image")
        refuse_other_length(self.mean, self.std, self.shape[0], "channel")

    @property
    def export_note(self) -> str:
        """Pixels, and how to scale an image."""
        colours, shape = "grey" if self.shape[0] == 1 else "RGB", times(self.shape)
        return (
            f"{colours} pixels from 0 to 255, uint8, of shape n×{shape} (samples, channels, height, width). Turn an "
            "image upright by its EXIF data, crop it in the middle to these proportions, resize it (bicubic, as "
            "Pillow's ImageOps.fit); the graph normalises it"
        )

    def with_moments(self, mean: tuple[float, ...], std: tuple[float, ...]) -> "ImageInputs":
        """With these values, or one for all channels."""
        mean, std = (values * self.shape[0] if len(values) == 1 else values for values in (mean, std))
        return replace(self, mean=mean, std=std)

    def configured(self, data: DataConfig) -> "ImageInputs":
        """With the normalisation, flips, shifts and bits that a config asks for."""
        mean, std = moments(self.mean, self.std, data)
        return replace(
            self,
            mean=mean,
            std=std,
            flip=self.flip if data.flip is None else data.flip,
            shift=self.shift if data.shift is None else data.shift,
            bits=self.bits if data.bits is None else data.bits,
        )

    def views(self, data: DataConfig) -> Views:
        """Flips and shifts, and RandAugment as a paper has it."""
        given = self.configured(data)
        return ImageViews(given.mean, given.std, given.flip, given.shift, VARIANTS[data.augment])

    def blank(self) -> Tensor:
        """Floats."""
        return torch.zeros(1, *self.shape)

    def invent(self, count: int, stream: torch.Generator) -> Tensor:
        """Random pixels."""
        return torch.randint(256, (count, *self.shape), generator=stream).to(self.dtype)

    def noise(self, kind: str, views: Views, stream: torch.Generator) -> Tensor:
        """Standard normal values, or random pixels around a middle grey."""
        if kind == "gaussian":
            return torch.randn(1, *self.shape, generator=stream)
        pixels = torch.nn.init.trunc_normal_(torch.empty(1, *self.shape), 125, 125, 0, 255, generator=stream)
        return views.plain(pixels.to(self.dtype))

    def describe(self, count: int, parts: str, classes: int) -> str:
        """Their size and colours."""
        channels, high, wide = self.shape
        color = {1: "grey", 3: "colour"}.get(channels, f"{channels} channels")
        return f"{count:,} images ({parts}), {wide}×{high} {color}, {classes:,} classes"

    def pictures(self, seen: Tensor, views: Views) -> Tensor:
        """Pixels from black to white."""
        black, white = (views.plain(torch.full_like(seen, value, dtype=self.dtype)) for value in (0, 255))
        return ((seen - black) / (white - black)).clamp(0, 1).permute(0, 2, 3, 1)

    def written(self, seen: Tensor, width: int) -> str:
        """Nothing: pictures are drawn."""
        return ""

    def level_name(self, place: int) -> str:
        """The brightness, of each channel."""
        return "the brightness" if self.shape[0] == 1 else f"the brightness of channel {place}"

    def difference(self, other: Inputs) -> Difference | None:
        """Another size or number of channels; grey images fit among colour images."""
        if other.kind != self.kind:
            return other_kind(self, other)
        if other.bits is not None and self.bits is None:
            return Difference(
                "this site's images are grey with 16 bits and the hub does not say how many of these are used",
                f"set data.bits in the config at the hub; here {other.bits} bits hold the largest value",
                "site.unknown-bits",
            )
        here, there = other.shape[0], self.shape[0]
        if other.shape == self.shape or ((here, there) == (1, 3) and other.shape[1:] == self.shape[1:]):
            return None
        remedy = "scale them, or set data.size at the hub if they are image files"
        if (here, there) == (3, 1):
            remedy = "convert them to grey, or use colour images at the hub"
        elif here != there and (here, there) != (1, 3):
            remedy = "convert them to the same shape"
        problem = f"this site's images are {_form(other.shape)} and the federation's {_form(self.shape)}"
        return Difference(problem, remedy, "site.wrong-shape")

    def adopt(self, x: Tensor, other: Inputs) -> Tensor:
        """Grey images repeated over three channels."""
        return x if other.shape == self.shape else x.repeat(1, self.shape[0], 1, 1)

    def to_plain(self) -> dict[str, Any]:
        """The keys of federation.toml since 0.1."""
        return plain(asdict(self), self.marks)


def _form(shape: tuple[int, ...]) -> str:
    channels, height, width = shape
    colours = {1: "grey", 3: "in colour"}.get(channels, f"with {channels} channels")
    return f"{width}×{height} {colours}"
