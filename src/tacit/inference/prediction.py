"""Predictions for a block of samples as rows of a table; samples that cannot be read become rows that say why."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from tacit.data.sources.images import Size
from tacit.errors import TacitError
from tacit.inference.drift import Seen, see
from tacit.inference.model import Model
from tacit.inference.samples import Block

UNSURE = "unsure"  # the answer where the confidence is below the threshold
Row = list[str]


@dataclass(frozen=True)
class Columns:
    """Which columns a table of predictions has."""

    classes: tuple[str, ...]
    proba: bool = False  # the probability of every class
    top: int = 0  # how many of the most likely classes, with their probabilities
    threshold: float | None = None  # below this confidence the answer is "unsure"
    margin: bool = False  # the difference between the two most likely classes

    @property
    def names(self) -> Row:
        """The first row of the table."""
        top = [name for place in range(1, self.top + 1) for name in (f"top_{place}", f"p_{place}")]
        margin = ["margin"] if self.margin else []
        return ["path", "prediction", "confidence", *top, *margin, *self._every_class(), "problem"]

    def row(self, name: str, probabilities: Tensor) -> Row:
        """The row of a sample, from its probabilities (classes,)."""
        p, order = (part.tolist() for part in probabilities.sort(descending=True, stable=True))
        sure = self.threshold is None or p[0] >= self.threshold
        top = [cell for place in range(self.top) for cell in (self.classes[order[place]], f"{p[place]:.6f}")]
        margin = [f"{p[0] - p[1]:.6f}"] if self.margin else []
        every = [f"{value:.6f}" for value in probabilities.tolist()] if self.proba else []
        return [name, self.classes[order[0]] if sure else UNSURE, f"{p[0]:.6f}", *top, *margin, *every, ""]

    def problem(self, name: str, problem: str) -> Row:
        """The row of a sample that cannot be read."""
        return [name, *[""] * (len(self.names) - 2), problem]

    def _every_class(self) -> Row:
        return [f"p({name})" for name in self.classes] if self.proba else []


class Predicted(NamedTuple):
    """What became of a block."""

    rows: list[Row]
    seen: Seen


def predict_block(model: Model, block: Block, columns: Columns) -> Predicted:
    """Read and predict a block of samples."""
    samples: list[Tensor] = []
    sizes: list[Size] = []
    problems: dict[int, str] = {}
    for place, item in enumerate(block.items):
        try:
            sample, size = model.reader.item(item)
        except TacitError as error:
            problems[place] = error.problem
        else:
            samples.append(sample)
            sizes += [] if size is None else [size]
    if not samples:
        return Predicted([columns.problem(block.names[place], why) for place, why in problems.items()], Seen())
    x = torch.cat(samples)
    probabilities = model.probabilities(x)
    answers = iter(probabilities)
    rows = [
        columns.problem(name, problems[place]) if place in problems else columns.row(name, next(answers))
        for place, name in enumerate(block.names)
    ]
    confidence = probabilities.amax(dim=1)
    return Predicted(rows, see(model.description, model.reader.levels(x), confidence, sizes, columns.threshold))
