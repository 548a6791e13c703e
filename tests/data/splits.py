"""Small splits and sources for tests."""

from typing import Any

import numpy as np
import torch

from tacit.data.inputs import ImageInputs
from tacit.data.sources import Source
from tacit.data.split.apportion import Indices
from tacit.data.split.config import DataConfig
from tacit.data.split.split import Split, draw_split
from tacit.random import Streams

CLASSES = 5
EVEN = np.arange(500) % CLASSES
SKEWED = np.repeat(np.arange(CLASSES), [200, 100, 50, 20, 3])
HALF_KNOWN = np.where(np.arange(500) % 2, EVEN, -1)

PLACES: list[dict[str, Any]] = [
    {"labels": "server", "per_class": 3},
    {"labels": "server", "n_labels": 17},
    {"labels": "server", "label_fraction": 0.1},
    {"labels": "client", "per_class": 2},
    {"labels": "client", "n_labels": 37},
    {"labels": "client", "label_fraction": 0.2},
    {"labels": "some", "labeled_clients": 0.3},
    {"labels": "some", "labeled_clients": 0.01, "per_class": 1},
    {"labels": "some", "labeled_clients": 0.5, "n_labels": 12},
    {"labels": "some", "labeled_clients": 0.5, "label_fraction": 0.5},
    {"labels": "all"},
]


def make(y: Indices = EVEN, seed: int = 0, **settings: Any) -> Split:
    return draw_split(y, CLASSES, DataConfig(**settings), Streams(seed))


def per_class(y: Indices, samples: Indices) -> list[int]:
    counts: list[int] = np.bincount(y[samples], minlength=CLASSES).tolist()
    return counts


def shown(result: Split) -> list[Indices]:
    """The samples that show their label, client by client."""
    return [part[result.labeled[part]] for part in result.clients]


def source(y: Indices) -> Source:
    """A data set whose sample i is an image of the number i."""
    x = torch.arange(len(y))[:, None, None, None] % 251 * torch.ones(1, 1, 4, 4)
    test = torch.zeros(3, 1, 4, 4, dtype=torch.uint8), torch.tensor([0, 1, 2])
    inputs = ImageInputs((1, 4, 4), (0.5,), (0.5,))
    return Source("toy", x.to(torch.uint8), torch.from_numpy(y), *test, tuple("abcde"), inputs)
