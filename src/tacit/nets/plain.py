"""Networks for images that are a plain chain of layers."""

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import max_pool2d

from tacit.nets.layers import LARGE, Classifier, Norm, Reads, area, keep_scale, normalise, scaled


class Cnn(Classifier):
    """The small CNN of FedSiam's MNIST experiments, 21,840 parameters on 1×28×28."""

    def __init__(self, shape: tuple[int, ...], classes: int, norm: Norm, width: float) -> None:
        """Two 5×5 convolutions, each pooled, and two dense layers, with dropout."""
        super().__init__()
        a, b, hidden = scaled(width, 10, 20, 50)
        self.conv1, self.norm1 = nn.Conv2d(shape[0], a, 5), normalise(norm, a)
        self.conv2, self.norm2 = nn.Conv2d(a, b, 5), normalise(norm, b)
        self.drop2 = nn.Dropout2d()
        self.fc1 = nn.Linear(b * area(shape, 4, 4), hidden)
        self.drop1 = nn.Dropout()
        self.fc2 = nn.Linear(hidden, classes)

    def features(self, x: Tensor) -> Tensor:
        """The 50 activations below the classifier."""
        x = torch.relu(max_pool2d(self.norm1(self.conv1(x)), 2))
        x = torch.relu(max_pool2d(self.drop2(self.norm2(self.conv2(x))), 2))
        return self.drop1(torch.relu(self.fc1(x.flatten(1))))  # type: ignore[no-any-return]

    def classify(self, z: Tensor) -> Tensor:
        """The last dense layer."""
        return self.fc2(z)  # type: ignore[no-any-return]


class LeNet(Classifier):
    """LeNet-5 with ReLU and max pooling: 6 and 16 maps, 120, 84; 62,006 parameters on 3×32×32."""

    def __init__(self, shape: tuple[int, ...], classes: int, norm: Norm, width: float) -> None:
        """Two 5×5 convolutions, each pooled, and three dense layers."""
        super().__init__()
        a, b, c, d = scaled(width, 6, 16, 120, 84)
        self.conv1, self.norm1 = nn.Conv2d(shape[0], a, 5), normalise(norm, a)
        self.conv2, self.norm2 = nn.Conv2d(a, b, 5), normalise(norm, b)
        self.fc1 = nn.Linear(b * area(shape, 4, 4), c)
        self.fc2 = nn.Linear(c, d)
        self.fc3 = nn.Linear(d, classes)

    def features(self, x: Tensor) -> Tensor:
        """The 84 activations below the classifier."""
        x = max_pool2d(torch.relu(self.norm1(self.conv1(x))), 2)
        x = max_pool2d(torch.relu(self.norm2(self.conv2(x))), 2)
        return torch.relu(self.fc2(torch.relu(self.fc1(x.flatten(1)))))

    def classify(self, z: Tensor) -> Tensor:
        """The last dense layer."""
        return self.fc3(z)  # type: ignore[no-any-return]


class MoonCnn(Classifier):
    """MOON's CNN: LeNet with a projection head to 256 below the classifier, 92,626 parameters on 3×32×32."""

    def __init__(self, shape: tuple[int, ...], classes: int, norm: Norm, width: float) -> None:
        """LeNet, whose last layer is the first of the projection, 84 → 84 → 256."""
        super().__init__()
        hidden, out = scaled(width, 84, 256)
        self.lenet = LeNet(shape, hidden, norm, width)
        self.projection = nn.Linear(hidden, out)
        self.fc = nn.Linear(out, classes)

    def features(self, x: Tensor) -> Tensor:
        """The projection, whose representations MOON compares."""
        return self.projection(torch.relu(self.lenet(x)))  # type: ignore[no-any-return]


class FedSiamCnn(Classifier):
    """FedSiam's CNN for CIFAR-10 and SVHN, 5,852,170 parameters on 3×32×32."""

    largest = LARGE

    norms = ("batch", "none", "group")

    def __init__(self, shape: tuple[int, ...], classes: int, norm: Norm, width: float) -> None:
        """Three pairs of 3×3 convolutions, normalised after each pair's first, and three dense layers.

        Dropout is where the authors' code has it, before the first and the last dense layer; the paper's table has it
        after the first and the second.
        """
        super().__init__()
        a, b, c, d, e, f, g, h = scaled(width, 32, 64, 128, 128, 256, 256, 1024, 512)
        self.pair1 = _pair(shape[0], a, b, norm)
        self.pair2 = _pair(b, c, d, norm)
        self.drop = nn.Dropout2d(0.05)
        self.pair3 = _pair(d, e, f, norm)
        self.fc1 = nn.Linear(f * area(shape, 0, 0, 0), g)
        self.fc2 = nn.Linear(g, h)
        self.fc = nn.Linear(h, classes)
        self.drop1 = nn.Dropout(0.1)
        if norm == "none":
            keep_scale(self)

    def features(self, x: Tensor) -> Tensor:
        """The 512 activations below the classifier."""
        x = self.pair3(self.drop(self.pair2(self.pair1(x)))).flatten(1)
        return self.drop1(torch.relu(self.fc2(torch.relu(self.fc1(self.drop1(x))))))  # type: ignore[no-any-return]


class FedMixVgg(Classifier):
    """FedMix's VGG-like CNN, 3,491,530 parameters on 3×32×32."""

    largest = LARGE

    def __init__(self, shape: tuple[int, ...], classes: int, norm: Norm, width: float) -> None:
        """Three pairs of 3×3 convolutions, each pooled, and three dense layers, with dropout."""
        super().__init__()
        a, b, c, d, e, f, g, h = scaled(width, 32, 64, 128, 128, 256, 256, 512, 512)
        self.pair1 = _pair(shape[0], a, b, norm, norm)
        self.pair2 = _pair(b, c, d, norm, norm)
        self.pair3 = _pair(d, e, f, norm, norm)
        self.fc1 = nn.Linear(f * area(shape, 0, 0, 0), g)
        self.fc2 = nn.Linear(g, h)
        self.fc = nn.Linear(h, classes)
        self.drop = nn.Dropout(0.1)
        if norm == "none":
            keep_scale(self)

    def features(self, x: Tensor) -> Tensor:
        """The 512 activations below the classifier."""
        x = self.drop(self.pair3(self.drop(self.pair2(self.pair1(x))))).flatten(1)
        return self.drop(torch.relu(self.fc2(torch.relu(self.fc1(x)))))  # type: ignore[no-any-return]


class EmnistCnn(Classifier):
    """The CNN of the SSFL benchmark's EMNIST experiments, 1,204,655 parameters on 1×28×28 with 47 classes."""

    largest = LARGE

    def __init__(self, shape: tuple[int, ...], classes: int, norm: Norm, width: float) -> None:
        """Two 3×3 convolutions, one pooling, two dense layers; the authors declare GroupNorm and do not use it."""
        super().__init__()
        a, b, hidden = scaled(width, 32, 64, 128)
        self.conv1, self.norm1 = nn.Conv2d(shape[0], a, 3), normalise(norm, a)
        self.conv2, self.norm2 = nn.Conv2d(a, b, 3), normalise(norm, b)
        self.drop = nn.Dropout2d(0.25)
        self.fc1 = nn.Linear(b * area(shape, 4), hidden)
        self.fc = nn.Linear(hidden, classes)

    def features(self, x: Tensor) -> Tensor:
        """The 128 activations below the classifier."""
        x = torch.relu(self.norm1(self.conv1(x)))
        x = max_pool2d(torch.relu(self.norm2(self.conv2(x))), 2)
        return torch.relu(self.fc1(self.drop(x).flatten(1)))


class AlexNet(Classifier):
    """The AlexNet-like CNN of FedMatch's appendix, 6,524,362 parameters on 3×32×32."""

    largest = LARGE

    def __init__(self, shape: tuple[int, ...], classes: int, norm: Norm, width: float) -> None:
        """Convolutions of 4×4, 3×3 and 2×2, each pooled, and three dense layers; the paper names no dropout."""
        super().__init__()
        a, b, c, hidden = scaled(width, 64, 128, 256, 2048)
        self.conv1, self.norm1 = nn.Conv2d(shape[0], a, 4), normalise(norm, a)
        self.conv2, self.norm2 = nn.Conv2d(a, b, 3), normalise(norm, b)
        self.conv3, self.norm3 = nn.Conv2d(b, c, 2), normalise(norm, c)
        self.fc1 = nn.Linear(c * area(shape, 3, 2, 1), hidden)
        self.fc2 = nn.Linear(hidden, hidden)
        self.fc = nn.Linear(hidden, classes)

    def features(self, x: Tensor) -> Tensor:
        """The 2048 activations below the classifier."""
        x = max_pool2d(torch.relu(self.norm1(self.conv1(x))), 2)
        x = max_pool2d(torch.relu(self.norm2(self.conv2(x))), 2)
        x = max_pool2d(torch.relu(self.norm3(self.conv3(x))), 2)
        return torch.relu(self.fc2(torch.relu(self.fc1(x.flatten(1)))))


class Linear(nn.Module):
    """Multinomial logistic regression: convex, so its optimum is known."""

    norms: ClassVar[tuple[Norm, ...]] = ("none",)
    reads: ClassVar[Reads] = ("images", "vectors")

    def __init__(self, shape: tuple[int, ...], classes: int, norm: Norm, width: float) -> None:
        """One dense layer. It has no features: it sees the inputs themselves."""
        super().__init__()
        self.fc = nn.Linear(torch.Size(shape).numel(), classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        return self.fc(x.flatten(1))  # type: ignore[no-any-return]


def _pair(ins: int, middle: int, outs: int, first: Norm, second: Norm = "none") -> nn.Sequential:
    """Two 3×3 convolutions that keep the size of the maps, then 2×2 pooling."""
    return nn.Sequential(
        nn.Conv2d(ins, middle, 3, padding=1),
        normalise(first, middle),
        nn.ReLU(),
        nn.Conv2d(middle, outs, 3, padding=1),
        normalise(second, outs),
        nn.ReLU(),
        nn.MaxPool2d(2),
    )


NETS = {
    "alexnet": AlexNet,
    "cnn": Cnn,
    "emnist-cnn": EmnistCnn,
    "fedmix-vgg": FedMixVgg,
    "fedsiam-cnn": FedSiamCnn,
    "lenet": LeNet,
    "linear": Linear,
    "moon-cnn": MoonCnn,
}
