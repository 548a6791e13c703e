"""Residual networks for images of any size.

Images up to 128 pixels meet a 3×3 convolution of stride 1, larger ones ImageNet's stem: 7×7 of stride 2, then pooling.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d, adaptive_max_pool2d

from tacit.nets.layers import Classifier, Norm, is_large, keep_scale, normalise, refuse_too_small, scaled


class ResNet9(Classifier):
    """FedMatch's ResNet-9 without bias, 6,568,640 parameters; with normalisation and bias 6,575,370."""

    def __init__(self, shape: tuple[int, ...], classes: int, norm: Norm, width: float) -> None:
        """Eight 3×3 convolutions, four of them in two residual pairs, and one dense layer."""
        super().__init__()
        refuse_too_small(shape, halvings=3)
        a, b, c, d = scaled(width, 64, 128, 256, 512)
        pool = nn.MaxPool2d(2)
        first = _large_stem(shape[0], a, norm) if is_large(shape) else (_unit(shape[0], a, norm),)
        self.stem = nn.Sequential(*first, _unit(a, b, norm), pool)
        self.pair1 = nn.Sequential(_unit(b, b, norm), _unit(b, b, norm))
        self.middle = nn.Sequential(_unit(b, c, norm), pool, _unit(c, d, norm), pool)
        self.pair2 = nn.Sequential(_unit(d, d, norm), _unit(d, d, norm))
        self.fc = nn.Linear(d, classes, bias=norm != "none")
        if norm == "none":
            keep_scale(self)

    def features(self, x: Tensor) -> Tensor:
        """The maximum of each of the 512 last maps."""
        x = self.stem(x)
        x = self.middle(x + self.pair1(x))
        return adaptive_max_pool2d(x + self.pair2(x), 1).flatten(1)


class ResNet18(Classifier):
    """ResNet-18 with GroupNorm, as in the SSFL benchmark, 11,173,962 parameters on 3×32×32."""

    norms = ("group", "none", "batch")

    def __init__(self, shape: tuple[int, ...], classes: int, norm: Norm, width: float) -> None:
        """Four stages of two blocks."""
        super().__init__()
        first, *stages = scaled(width, 64, 64, 128, 256, 512)
        self.stem = _stem(shape, first, norm)
        blocks = [_Basic(i, o, stride, norm) for i, o, stride in _plan(first, stages, (2, 2, 2, 2))]
        self.blocks = nn.Sequential(*blocks)
        self.fc = nn.Linear(stages[-1], classes)
        if norm == "none":
            keep_scale(self)

    def features(self, x: Tensor) -> Tensor:
        """The means of the 512 last maps."""
        return adaptive_avg_pool2d(self.blocks(self.stem(x)), 1).flatten(1)


class MoonResNet50(Classifier):
    """MOON's ResNet-50 with a projection head to 256, 28,246,948 parameters on 3×32×32 with 100 classes."""

    norms = ("batch", "none", "group")

    def __init__(self, shape: tuple[int, ...], classes: int, norm: Norm, width: float) -> None:
        """Four stages of three-layer blocks, and the projection 2048 → 2048 → 256."""
        super().__init__()
        first, *stages = scaled(width, 64, 256, 512, 1024, 2048)
        out = scaled(width, 256)[0]
        self.stem = _stem(shape, first, norm)
        blocks = [_Bottleneck(i, o, stride, norm) for i, o, stride in _plan(first, stages, (3, 4, 6, 3))]
        self.blocks = nn.Sequential(*blocks)
        self.projection = nn.Sequential(nn.Linear(stages[-1], stages[-1]), nn.ReLU(), nn.Linear(stages[-1], out))
        self.fc = nn.Linear(out, classes)
        if norm == "none":
            keep_scale(self)
        else:
            _start_as_he(self)

    def features(self, x: Tensor) -> Tensor:
        """The projection, whose representations MOON compares."""
        means = adaptive_avg_pool2d(self.blocks(self.stem(x)), 1).flatten(1)
        return self.projection(means)  # type: ignore[no-any-return]


class WideResNet(Classifier):
    """WRN-28-2, as in FixMatch and SemiFL, 1,467,610 parameters on 3×32×32."""

    norms = ("batch", "none", "group")

    def __init__(self, shape: tuple[int, ...], classes: int, norm: Norm, width: float) -> None:
        """Three stages of four blocks that normalise before they convolve."""
        super().__init__()
        first, *stages = scaled(width, 16, 32, 64, 128)
        small = nn.Conv2d(shape[0], first, 3, padding=1, bias=False)
        self.stem = nn.Sequential(*_large_stem(shape[0], first, norm)) if is_large(shape) else small
        blocks = [_Preactivated(i, o, stride, norm) for i, o, stride in _plan(first, stages, (4, 4, 4))]
        self.blocks = nn.Sequential(*blocks)
        self.norm = normalise(norm, stages[-1])
        self.fc = nn.Linear(stages[-1], classes)
        if norm == "none":
            keep_scale(self)

    def features(self, x: Tensor) -> Tensor:
        """The means of the 128 last maps."""
        return adaptive_avg_pool2d(torch.relu(self.norm(self.blocks(self.stem(x)))), 1).flatten(1)


class _Basic(nn.Module):
    """Two 3×3 convolutions and a shortcut."""

    def __init__(self, ins: int, outs: int, stride: int, norm: Norm) -> None:
        super().__init__()
        first, second = _convolve(ins, outs, 3, norm, stride), _convolve(outs, outs, 3, norm)
        self.layers = nn.Sequential(*first, nn.ReLU(), *second)
        self.shortcut = _shortcut(ins, outs, stride, norm)

    def forward(self, x: Tensor) -> Tensor:
        """The next maps."""
        return torch.relu(self.layers(x) + self.shortcut(x))


class _Bottleneck(nn.Module):
    """A 3×3 convolution on a quarter of the channels, between two of 1×1, and a shortcut."""

    def __init__(self, ins: int, outs: int, stride: int, norm: Norm) -> None:
        super().__init__()
        few = max(1, outs // 4)
        first, second = _convolve(ins, few, 1, norm), _convolve(few, few, 3, norm, stride)
        self.layers = nn.Sequential(*first, nn.ReLU(), *second, nn.ReLU(), *_convolve(few, outs, 1, norm))
        self.shortcut = _shortcut(ins, outs, stride, norm)

    def forward(self, x: Tensor) -> Tensor:
        """The next maps."""
        return torch.relu(self.layers(x) + self.shortcut(x))


class _Preactivated(nn.Module):
    """Normalisation and ReLU before each of two 3×3 convolutions; a shortcut with weights starts after the first."""

    def __init__(self, ins: int, outs: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.norm1 = normalise(norm, ins)
        self.conv1 = nn.Conv2d(ins, outs, 3, stride, padding=1, bias=False)
        self.norm2 = normalise(norm, outs)
        self.conv2 = nn.Conv2d(outs, outs, 3, padding=1, bias=False)
        self.shortcut = _shortcut(ins, outs, stride, "none")

    def forward(self, x: Tensor) -> Tensor:
        """The next maps."""
        active = torch.relu(self.norm1(x))
        skipped = x if isinstance(self.shortcut, nn.Identity) else self.shortcut(active)
        return skipped + self.conv2(torch.relu(self.norm2(self.conv1(active))))  # type: ignore[no-any-return]


def _stem(shape: tuple[int, ...], outs: int, norm: Norm) -> nn.Sequential:
    """The first layer for images of this size."""
    if is_large(shape):
        return nn.Sequential(*_large_stem(shape[0], outs, norm))
    return nn.Sequential(*_convolve(shape[0], outs, 3, norm), nn.ReLU())


def _large_stem(ins: int, outs: int, norm: Norm) -> tuple[nn.Module, ...]:
    """ImageNet's: a quarter of the side is left."""
    return (*_convolve(ins, outs, 7, norm, 2), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1))


def _plan(first: int, stages: list[int], blocks: tuple[int, ...]) -> list[tuple[int, int, int]]:
    """Channels in, channels out and stride of every block; each stage but the first begins with stride 2."""
    plan = []
    for stage, (outs, count) in enumerate(zip(stages, blocks, strict=True)):
        for block in range(count):
            plan.append((first, outs, 2 if stage and not block else 1))
            first = outs
    return plan


def _unit(ins: int, outs: int, norm: Norm) -> nn.Sequential:
    """Convolution, with a bias if there is normalisation, and ReLU."""
    return nn.Sequential(nn.Conv2d(ins, outs, 3, padding=1, bias=norm != "none"), normalise(norm, outs), nn.ReLU())


def _convolve(ins: int, outs: int, kernel: int, norm: Norm, stride: int = 1) -> tuple[nn.Module, nn.Module]:
    """Convolution without bias, and its normalisation."""
    return nn.Conv2d(ins, outs, kernel, stride, padding=kernel // 2, bias=False), normalise(norm, outs)


def _start_as_he(module: nn.Module) -> None:
    """Initialise convolutions as MOON's release does: normal weights of variance 2 / fan-out."""
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")


def _shortcut(ins: int, outs: int, stride: int, norm: Norm) -> nn.Module:
    """The input itself if it has the shape of the output, otherwise a 1×1 convolution of it.

    Pooling of 1×1 takes the stride out of the convolution, since in PyTorch 2.13 the backward pass of a 1×1 convolution
    of stride 2 writes past its memory when 2 to 7 channels come in channels-last order.
    """
    if ins == outs and stride == 1:
        return nn.Identity()
    return nn.Sequential(nn.AvgPool2d(1, stride), *_convolve(ins, outs, 1, norm))


NETS = {"moon-resnet50": MoonResNet50, "resnet9": ResNet9, "resnet18": ResNet18, "wrn28-2": WideResNet}
