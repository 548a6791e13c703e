"""What the networks are made of: normalisation, widths, sizes of maps, starting weights."""

from math import sqrt
from typing import ClassVar, Literal

from torch import Tensor, nn

Norm = Literal["none", "batch", "group"]

# A standard normal that is cut off at ±2 and drawn again has this standard deviation.
_CUT_NORMAL = 0.87962566


class Classifier(nn.Module):
    """A network in two steps, so that methods can have the representation between them.

    `features` gives what the last layer sees, `classify` is the last layer.
    """

    norms: ClassVar[tuple[Norm, ...]] = ("none", "batch", "group")  # what it can have; the first is the paper's
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
    """A layer of that kind; groups hold two channels or more, and there are 32 at most."""
    if kind == "none":
        return nn.Identity()
    if kind == "batch":
        return nn.BatchNorm2d(channels)
    return nn.GroupNorm(next((g for g in (32, 16, 8, 4, 2) if channels % g == 0 and channels > g), 1), channels)


def scaled(width: float, *channels: int) -> tuple[int, ...]:
    """Numbers of channels times the width factor."""
    return tuple(max(1, round(n * width)) for n in channels)


def area(shape: tuple[int, ...], *lost: int) -> int:
    """Area of the maps after convolutions that lose so many pixels of a side, each halved by pooling."""
    height, width = shape[1:]
    for pixels in lost:
        height, width = (height - pixels) // 2, (width - pixels) // 2
    if min(height, width) < 1:
        raise ValueError("the images are too small for it; use larger ones or another network")
    return height * width


def refuse_too_small(shape: tuple[int, ...], halvings: int) -> None:
    """For networks that take images of any size, as long as something is left after so many poolings."""
    area(shape, *[0] * halvings)


def keep_scale(module: nn.Module) -> None:
    """Start as FedMatch's release does: truncated normal weights of variance 1 / fan-in.

    Without normalisation the signal vanishes on its way through a deep network that starts as PyTorch would have it,
    with a third of this variance.
    """
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            fan_in = layer.weight[0].numel()
            spread = 1 / (sqrt(fan_in) * _CUT_NORMAL)
            nn.init.trunc_normal_(layer.weight, 0.0, spread, -2 * spread, 2 * spread)
