"""Tables on disk: real ones of scikit-learn, and small ones."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer, load_digits

Rows = Sequence[Sequence[Any]]


def cancer() -> tuple[NDArray[np.float64], list[str], list[str]]:
    """569 rows of 30 measurements of cells, benign or malignant: features, labels, names of features."""
    found: Any = load_breast_cancer()
    return found.data, [str(found.target_names[k]) for k in found.target], [str(name) for name in found.feature_names]


def digits() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """1,797 rows of 64 grey values, and the digits."""
    found: Any = load_digits()
    return found.data, found.target.astype(np.int64)


def write_csv(path: Path, names: Sequence[str], rows: Rows) -> Path:
    """A CSV file."""
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([names, *rows])
    return path


def cancer_csv(path: Path, part: slice = slice(None), **changes: Any) -> Path:
    """The cancer table, or some of its rows; `names` replaces the names of the features."""
    x, labels, names = cancer()
    rows = [[*row.tolist(), label] for row, label in zip(x, labels, strict=True)]
    return write_csv(path, [*changes.get("names", names), "label"], rows[part])


def cancer_npz(path: Path) -> Path:
    """The cancer table as arrays, its classes by name."""
    x, labels, names = cancer()
    np.savez(path, x=x, y=np.array(labels), features=np.array(names))
    return path
