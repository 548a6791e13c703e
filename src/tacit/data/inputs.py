"""What a sample is: images, characters or vectors. No other code asks for the rank or the type of a tensor.

A new kind of data is a new class here, with its views in `data/views/`, a reader in `data/sources/` and an entry in
`KINDS`. `tacit.federation.Inputs` says what such a class must know.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from tacit.data.split.config import Bits, DataConfig
from tacit.data.views.augment import VARIANTS, ImageViews, TextViews
from tacit.data.views.vectors import VectorViews
from tacit.federation import Difference, Inputs, Views

Side = Annotated[int, Field(gt=0)]
Above = Annotated[float, Field(gt=0)]
Floats = tuple[float, ...]


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
    suggested_net: ClassVar[str] = "lenet"
    settings: ClassVar[tuple[str, ...]] = ("flip", "shift", "augment")
    marks: ClassVar[Mapping[str, Any]] = {"text": False}  # plain values that only tell the kind

    def __post_init__(self) -> None:
        """Refuse parts that do not belong together."""
        if len(self.shape) != 3:
            raise ValueError(f"{list(self.shape)} is not the shape of an image")
        _refuse_other_length(self.mean, self.std, self.shape[0], "channel")

    @property
    def export_note(self) -> str:
        """Pixels, and how to scale an image."""
        colours, shape = "grey" if self.shape[0] == 1 else "RGB", _times(self.shape)
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
        mean, std = _moments(self.mean, self.std, data)
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

    def difference(self, other: Inputs) -> Difference | None:
        """Another size or number of channels; grey images fit among colour images."""
        if other.kind != self.kind:
            return _other_kind(self, other)
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
        return _plain(self)


@dataclass(frozen=True)
class CharacterInputs:
    """Windows of text, stored as uint8 codes of characters; the label is the next character."""

    shape: tuple[Side, ...]  # the number of characters
    alphabet: tuple[str, ...] = field(default=(), repr=False)  # the classes

    kind: ClassVar[str] = "text"
    dtype: ClassVar[torch.dtype] = torch.uint8
    bits: ClassVar[int | None] = None
    mixable: ClassVar[bool] = False
    drawable: ClassVar[bool] = False
    from_files: ClassVar[bool] = False
    suggested_net: ClassVar[str] = "lstm"
    settings: ClassVar[tuple[str, ...]] = ()
    marks: ClassVar[Mapping[str, Any]] = {"text": True, "flip": False}

    def __post_init__(self) -> None:
        """Refuse what is no length."""
        if len(self.shape) != 1:
            raise ValueError(f"{list(self.shape)} is not the shape of a text")

    @property
    def export_note(self) -> str:
        """Positions of characters."""
        shape = _times(self.shape)
        return f"positions of characters in classes, uint8, of shape n×{shape}; a short text has spaces before it"

    def with_moments(self, mean: tuple[float, ...], std: tuple[float, ...]) -> "CharacterInputs":
        """Text is not normalised."""
        return self

    def configured(self, data: DataConfig) -> "CharacterInputs":
        """No setting changes text."""
        return self

    def views(self, data: DataConfig) -> Views:
        """Codes, some of them replaced in the strong view."""
        return TextViews(len(self.alphabet))

    def blank(self) -> Tensor:
        """Codes for an embedding."""
        return torch.zeros(1, *self.shape, dtype=torch.int64)

    def invent(self, count: int, stream: torch.Generator) -> Tensor:
        """Random characters."""
        return torch.randint(len(self.alphabet), (count, *self.shape), generator=stream).to(self.dtype)

    def noise(self, kind: str, views: Views, stream: torch.Generator) -> Tensor:
        """The strong view of an empty text: characters have no other noise."""
        return views.strong(torch.zeros(1, *self.shape, dtype=self.dtype), stream)

    def describe(self, count: int, parts: str, classes: int) -> str:
        """Their length, and what a class is."""
        return f"{count:,} windows of {self.shape[0]} characters ({parts}), {classes:,} classes (next character)"

    def pictures(self, seen: Tensor, views: Views) -> Tensor:
        """Text is written, not drawn."""
        raise NotImplementedError

    def written(self, seen: Tensor, width: int) -> str:
        """The last characters, line ends escaped."""
        text = "".join(self.alphabet[code] for code in seen.tolist()).replace("\n", "\\n")
        return text if len(text) <= width else "…" + text[1 - width :]

    def difference(self, other: Inputs) -> Difference | None:
        """Another kind or another length."""
        if other.kind != self.kind:
            return _other_kind(self, other)
        if other.shape == self.shape:
            return None
        problem = f"this site's texts have {other.shape[0]} characters and the federation's {self.shape[0]}"
        return Difference(problem, "cut them to the same length", "site.wrong-shape")

    def adopt(self, x: Tensor, other: Inputs) -> Tensor:
        """Unchanged."""
        return x

    def to_plain(self) -> dict[str, Any]:
        """The keys of federation.toml since 0.1; the alphabet is its list of classes."""
        return {name: value for name, value in _plain(self).items() if name != "alphabet"}


@dataclass(frozen=True)
class VectorInputs:
    """Rows of a table, stored as float32 features."""

    features: tuple[str, ...]  # their names, in order
    mean: tuple[float, ...] = field(default=(), repr=False)  # per feature, of the training rows
    std: tuple[Above, ...] = field(default=(), repr=False)

    kind: ClassVar[str] = "vectors"
    dtype: ClassVar[torch.dtype] = torch.float32
    bits: ClassVar[int | None] = None
    mixable: ClassVar[bool] = True
    drawable: ClassVar[bool] = False
    from_files: ClassVar[bool] = True
    suggested_net: ClassVar[str] = "mlp"
    settings: ClassVar[tuple[str, ...]] = ("noise", "strong_noise", "mask")
    marks: ClassVar[Mapping[str, Any]] = {"kind": "vectors"}

    def __post_init__(self) -> None:
        """Refuse parts that do not belong together."""
        if not self.features or len(set(self.features)) < len(self.features):
            raise ValueError("features are not one or more different names")
        _refuse_other_length(self.mean, self.std, len(self.features), "feature")

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of features."""
        return (len(self.features),)

    @property
    def export_note(self) -> str:
        """Features in their order."""
        shape = _times(self.shape)
        return f"features, float32, of shape n×{shape}, in the order of inputs.features; the graph standardises them"

    def with_moments(self, mean: tuple[float, ...], std: tuple[float, ...]) -> "VectorInputs":
        """Features keep their own mean and deviation: weights expect those of pictures."""
        return self

    def configured(self, data: DataConfig) -> "VectorInputs":
        """With the normalisation that a config asks for."""
        mean, std = _moments(self.mean, self.std, data)
        return replace(self, mean=mean, std=std)

    def views(self, data: DataConfig) -> Views:
        """Noise and masks of the config's amounts."""
        given = self.configured(data)
        return VectorViews(given.mean, given.std, data.noise, data.strong_noise, data.mask)

    def blank(self) -> Tensor:
        """Floats."""
        return torch.zeros(1, *self.shape)

    def invent(self, count: int, stream: torch.Generator) -> Tensor:
        """Normal numbers with the mean and deviation of each feature."""
        return torch.tensor(self.mean) + torch.tensor(self.std) * torch.randn(count, *self.shape, generator=stream)

    def noise(self, kind: str, views: Views, stream: torch.Generator) -> Tensor:
        """Standard normal features, as standardised ones are."""
        return torch.randn(1, *self.shape, generator=stream)

    def describe(self, count: int, parts: str, classes: int) -> str:
        """The number of features."""
        many = "s" if len(self.features) > 1 else ""
        return f"{count:,} rows of {len(self.features):,} feature{many} ({parts}), {classes:,} classes"

    def pictures(self, seen: Tensor, views: Views) -> Tensor:
        """Rows are written, not drawn."""
        raise NotImplementedError

    def written(self, seen: Tensor, width: int) -> str:
        """The first features."""
        pairs = zip(self.features, seen.tolist(), strict=True)
        text = ", ".join(f"{name} {value:.2f}" for name, value in pairs)
        return text if len(text) <= width else text[: width - 1] + "…"

    def difference(self, other: Inputs) -> Difference | None:
        """Other columns; their order does not matter. A site's own columns are not named: the hub reads this."""
        if not isinstance(other, VectorInputs):
            return _other_kind(self, other)
        missing = [name for name in self.features if name not in other.features]
        extra = len(set(other.features) - set(self.features))
        if not missing and not extra:
            return None
        lacks = f"lacks {len(missing)} columns of the federation, the first is {missing[0]}" if missing else ""
        brings = f"has {extra} columns that the federation does not know" if extra else ""
        problem = f"this site's table {' and '.join(filter(None, (lacks, brings)))}"
        return Difference(
            problem, "use exactly the columns that federation.toml lists under features", "site.other-columns"
        )

    def adopt(self, x: Tensor, other: Inputs) -> Tensor:
        """The columns in the order of the federation."""
        place = {name: index for index, name in enumerate(other.features)} if isinstance(other, VectorInputs) else {}
        return x[:, [place[name] for name in self.features]].contiguous()

    def to_plain(self) -> dict[str, Any]:
        """Names, mean and deviation of every feature."""
        return _plain(self)


Kind = type[ImageInputs] | type[CharacterInputs] | type[VectorInputs]
KINDS: dict[str, Kind] = {kind.kind: kind for kind in (ImageInputs, CharacterInputs, VectorInputs)}


def kind_of(plain: Mapping[str, Any]) -> Kind:
    """The kind of inputs in plain values; a ValueError for a kind that does not exist."""
    name = plain.get("kind", "text" if plain.get("text") else "images")
    if name not in KINDS:
        raise ValueError(f"it has samples of an unknown kind, {name}")
    return KINDS[name]


def from_plain(plain: Mapping[str, Any], classes: tuple[str, ...]) -> Inputs:
    """What `Inputs.to_plain` made, in a federation with these classes; a ValueError if the values do not fit."""
    kind = kind_of(plain)
    values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in plain.items()}
    values = {name: value for name, value in values.items() if name not in kind.marks}
    return CharacterInputs(**values, alphabet=classes) if kind is CharacterInputs else kind(**values)


def _plain(inputs: ImageInputs | CharacterInputs | VectorInputs) -> dict[str, Any]:
    """Lists and values, without those that are None or empty: TOML has no null."""
    tree = {name: value for name, value in asdict(inputs).items() if value not in (None, ())}
    lists = {name: list(value) if isinstance(value, tuple) else value for name, value in tree.items()}
    return lists | dict(inputs.marks)


def _moments(mean: Floats, std: Floats, data: DataConfig) -> tuple[Floats, Floats]:
    """What a config subtracts and divides by."""
    if data.normalise == "data":
        return mean, std
    middle, spread = {"unit": (0.0, 1.0), "half": (0.5, 0.5)}[data.normalise]
    return (middle,) * len(mean), (spread,) * len(std)


def _refuse_other_length(mean: Floats, std: Floats, count: int, what: str) -> None:
    if (len(mean), len(std)) != (count, count):
        raise ValueError(f"mean and std do not have {count} numbers each, one per {what}")


def _other_kind(hub: Inputs, site: Inputs) -> Difference:
    problem = f"this site's samples are {site.kind} and the federation's are {hub.kind}"
    return Difference(problem, f"use {hub.kind.removesuffix('s')} data at this site", "site.other-kind")


def _times(shape: tuple[int, ...]) -> str:
    return "×".join(map(str, shape))


def _form(shape: tuple[int, ...]) -> str:
    channels, height, width = shape
    colours = {1: "grey", 3: "in colour"}.get(channels, f"with {channels} channels")
    return f"{width}×{height} {colours}"
