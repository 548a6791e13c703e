"""A network whose features are its inputs, and jobs of methods that compute a head from features."""

from typing import Any

import torch
from torch import Tensor, nn

from tacit.engines.job import Job
from tacit.federation import Samples
from tacit.nets import Net
from tests.toys import federation, job

D, CLASSES = 5, 3


class Identity(nn.Module):
    """Features are the inputs."""

    def __init__(self) -> None:
        """A linear head."""
        super().__init__()
        self.fc = nn.Linear(D, CLASSES)

    def features(self, x: Tensor) -> Tensor:
        """The inputs."""
        return x

    def classify(self, z: Tensor) -> Tensor:
        """Logits."""
        return self.fc(z)  # type: ignore[no-any-return]

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        return self.classify(self.features(x))


def cloud(seed: int, count: int, classes: int = CLASSES) -> Samples:
    """Points around a centre for each class."""
    draw = torch.Generator().manual_seed(seed)
    y = torch.randint(classes, (count,), generator=draw)
    centres = torch.randn(CLASSES, D, generator=torch.Generator().manual_seed(99)) * 2
    return Samples(centres[y] + torch.randn(count, D, generator=draw), y)


def crowd(method: Any, clients: list[Samples], server: Samples | None = None, **options: Any) -> Job:
    """A job of these clients with the network above; all of them are asked in the one round."""
    return job(method, federation(clients, server, cloud(7, 30)), Net(Identity), **{"rounds": 1} | options)


def pooled(parts: list[Samples]) -> Samples:
    """All samples in one place."""
    return Samples(torch.cat([part.x for part in parts]), torch.cat([part.y for part in parts]))
