"""What networks are made of: normalisation, widths, sizes of maps, initial weights."""

from math import sqrt
from typing import ClassVar, Literal

from torch import Tensor, nn

from tacit.nets.weights import Published

Norm = Literal["none", "batch", "group"]
Reads = tuple[Literal["images", "text", "vectors"], ...]

# The standard deviation of a standard normal that is truncated at ±2.
_CUT_NORMAL = 0.87962566


class Classifier(nn.Module):
    """A network in two steps, so that methods can use the representation between them.

    `features` gives what the last layer sees, `classify` is the last layer.
    """

    norms: ClassVar[tuple[Norm, ...]] = ("none", "batch", "group")  # what it can have; the first is the paper's
    reads: ClassVar[Reads] = ("images",)  # kinds of inputs
    largest: ClassVar[int | None] = None  # side in pixels beyond which it has far too many parameters
    published: ClassVar[Published | None] = None  # weights to start from, unless net.weights says otherwise
    moments: tuple[tuple[float, ...], tuple[float, ...]] | None = None  # mean and deviation that weights expect
    fc: nn.Linear

    def features(self, x: Tensor) -> Tensor:
        """(n, …) -> (n, features)."""
        raise NotImplementedError

    def classify(self, z: Tensor) -> Tensor:
        """(n, features) -> logits (n, classes)."""
        return self.fc(z)  # type: ignore[no-any-return]

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        return self.classify(self.features(x))


def normalise(kind: Norm, channels: int) -> nn.Module:
    """A layer of that kind for maps (n, channels, h, w)."""
    if kind == "none":
        return nn.Identity()
    if kind == "batch":
        return nn.BatchNorm2d(channels)
    return group_norm(channels)


def group_norm(channels: int) -> nn.GroupNorm:
    """Groups hold two channels or more, and there are 32 at most."""
    return nn.GroupNorm(next((g for g in (32, 16, 8, 4, 2) if channels % g == 0 and channels > g), 1), channels)


def scaled(width: float, *channels: int) -> tuple[int, ...]:
    """Numbers of channels times the width factor."""
    return tuple(max(1, round(n * width)) for n in channels)


def area(shape: tuple[int, ...], *lost: int) -> int:
    """Area of the maps after convolutions that lose this many pixels per side, each halved by pooling."""
    height, width = shape[1:]
    for pixels in lost:
        height, width = (height - pixels) // 2, (width - pixels) // 2
    if min(height, width) < 1:
        raise ValueError("the images are too small")
    return height * width


def refuse_too_small(shape: tuple[int, ...], halvings: int) -> None:
    """Refuse images of which nothing is left after this many poolings, for networks that take any other size."""
    area(shape, *[0] * halvings)


LARGE = 128  # pixels: networks for small images get another first layer beyond this side


def is_large(shape: tuple[int, ...]) -> bool:
    """Whether images are too large for a first layer of stride 1."""
    return min(shape[1:]) > LARGE


def keep_scale(module: nn.Module) -> None:
    """Initialise as FedMatch's release does: truncated normal weights of variance 1 / fan-in.

    PyTorch's default has a third of this variance, with which the signal vanishes in a deep network without
    normalisation.
    """
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            fan_in = layer.weight[0].numel()
            spread = 1 / (sqrt(fan_in) * _CUT_NORMAL)
            nn.init.trunc_normal_(layer.weight, 0.0, spread, -2 * spread, 2 * spread)
