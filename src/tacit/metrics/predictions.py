"""True classes and a model's outputs for the same samples: what every score is computed from."""

import io
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

# Names of a class that stands for "nothing found"; of two classes, the other one is then the positive one.
NEGATIVE = ("normal", "negative", "healthy", "control", "benign", "none", "no", "absent", "false", "0")


@dataclass(frozen=True, eq=False)
class Predictions:
    """Labels (n,) and outputs (n, c) before the softmax. All labels are known."""

    y: Integers
    logits: NDArray[np.floating]
    classes: tuple[str, ...]

    def __len__(self) -> int:
        """Number of samples."""
        return len(self.y)

    @cached_property
    def predicted(self) -> Integers:
        """(n,) The class with the largest output; the first of equal ones, like torch."""
        return np.asarray(self.logits.argmax(axis=1), dtype=np.int64)

    @cached_property
    def probabilities(self) -> Floats:
        """(n, c) The softmax of the outputs, in double precision. Outputs that are not numbers count as equal."""
        z = np.nan_to_num(self.logits.astype(np.float64), nan=0.0, posinf=1e30, neginf=-1e30)
        e = np.exp(z - z.max(axis=1, keepdims=True))
        return np.asarray(e / e.sum(axis=1, keepdims=True))

    @cached_property
    def confidence(self) -> Floats:
        """(n,) The probability of the predicted class."""
        return np.asarray(self.probabilities[np.arange(len(self)), self.predicted])

    @cached_property
    def correct(self) -> NDArray[np.bool_]:
        """(n,) Whether the prediction is right."""
        return np.asarray(self.predicted == self.y)

    @cached_property
    def present(self) -> list[int]:
        """The classes that occur among the labels."""
        return [int(label) for label in np.unique(self.y)]

    def to_bytes(self) -> bytes:
        """The content of an .npz file."""
        data = io.BytesIO()
        np.savez_compressed(data, y=self.y, logits=self.logits, classes=np.array(self.classes))
        return data.getvalue()

    @classmethod
    def from_bytes(cls, data: bytes) -> "Predictions":
        """What `to_bytes` made; raises ValueError for anything else."""
        try:
            with np.load(io.BytesIO(data), allow_pickle=False) as file:
                found = cls(file["y"], file["logits"], tuple(map(str, file["classes"])))
        except (OSError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise ValueError(f"no predictions ({error})") from error
        if found.logits.shape != (len(found.y), len(found.classes)):
            raise ValueError(f"outputs of shape {found.logits.shape} for {len(found.y)} samples")
        return found

    def take(self, rows: NDArray[np.integer]) -> "Predictions":
        """The predictions for some of the samples."""
        return Predictions(self.y[rows], self.logits[rows], self.classes)


def positive_class(classes: Sequence[str]) -> int | None:
    """Which of two classes is the one to be found: the one whose partner has a name like "normal", else the second.

    None with more than two classes.
    """
    if len(classes) != 2:
        return None
    plain = [name.strip().lower() for name in classes]
    return 0 if plain[1] in NEGATIVE and plain[0] not in NEGATIVE else 1
