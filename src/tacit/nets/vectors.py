"""Networks for vectors, such as rows of a table."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from tacit.nets.layers import Classifier, Norm, group_norm, scaled


class Mlp(Classifier):
    """Two hidden layers of 128 units, 20,738 parameters for 30 features and 2 classes; reads images as rows too."""

    reads = ("vectors", "images")

    def __init__(self, shape: tuple[int, ...], classes: int, norm: Norm, width: float) -> None:
        """`width` scales the hidden layers; without `norm` they are not normalised."""
        super().__init__()
        (hidden,) = scaled(width, 128)
        self.fc1, self.norm1 = nn.Linear(torch.Size(shape).numel(), hidden), _normalise(norm, hidden)
        self.fc2, self.norm2 = nn.Linear(hidden, hidden), _normalise(norm, hidden)
        self.fc = nn.Linear(hidden, classes)

    def features(self, x: Tensor) -> Tensor:
        """The activations of the second hidden layer."""
        x = torch.relu(self.norm1(self.fc1(x.flatten(1))))
        return torch.relu(self.norm2(self.fc2(x)))


class _BatchNorm(nn.BatchNorm1d):
    """BatchNorm that takes a single row in training, which has no variance, by the running statistics."""

    def forward(self, x: Tensor) -> Tensor:
        """(n, units) -> (n, units)."""
        if self.training and len(x) == 1:
            return functional.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)
        return super().forward(x)


def _normalise(kind: Norm, units: int) -> nn.Module:
    """A layer of that kind for rows (n, units)."""
    if kind == "none":
        return nn.Identity()
    return _BatchNorm(units) if kind == "batch" else group_norm(units)


NETS = {"mlp": Mlp}
