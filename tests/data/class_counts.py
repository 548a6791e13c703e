"""The class counts of real data sets, for splits without their files."""

import numpy as np

from tacit.data.split.apportion import Indices
from tacit.data.split.config import DataConfig

# Training and test samples per class.
SVHN = [4948, 13861, 10585, 8497, 7458, 6882, 5727, 5595, 5045, 4659]
CLASS_COUNTS: dict[str, tuple[list[int], list[int]]] = {
    "mnist": (
        [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949],
        [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009],
    ),
    "fashion-mnist": ([6000] * 10, [1000] * 10),
    "cifar10": ([5000] * 10, [1000] * 10),
    "cifar100": ([500] * 100, [100] * 100),
    "svhn": (SVHN, [1744, 5099, 4149, 2882, 2523, 2384, 1977, 2019, 1660, 1595]),
    "emnist-balanced": ([2400] * 47, [400] * 47),
    "tiny-imagenet": ([500] * 200, [50] * 200),
}


def labels_of(data: DataConfig) -> tuple[Indices, int]:
    """Labels in random order, with the class counts of a data set, and the number of classes."""
    train, test = CLASS_COUNTS[data.name]
    sizes = train if data.test is None else [a + b for a, b in zip(train, test, strict=True)]
    return np.random.default_rng(0).permutation(np.repeat(np.arange(len(sizes)), sizes)), len(sizes)
