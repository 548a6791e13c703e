"""Rows of numbers for a model: arrays, data frames and tables, by the names of their columns."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tacit.data.inputs import VectorInputs
from tacit.data.sources.tables import as_features, to_number
from tacit.errors import TacitError


class VectorReader:
    """Turns rows of numbers into features (n, d) in the order the model was trained with."""

    def __init__(self, inputs: VectorInputs) -> None:
        """For a model with these inputs."""
        self._features = inputs.features

    def values(self, given: Any) -> Tensor:
        """A data frame, or a mapping of columns, by the names of its columns; or an array (n, d) or (d,)."""
        if isinstance(given, Mapping) or hasattr(given, "columns"):
            return self._frame(given)
        array = np.asarray(given)
        if array.ndim == 1:
            array = array[None]
        if array.ndim != 2 or array.shape[1] != len(self._features) or array.dtype.kind not in "biuf":
            problem = f"the rows are {array.dtype} of shape {array.shape}"
            remedy = f"give numbers of shape (n, {len(self._features)})"
            raise TacitError(problem, remedy, code="predict.wrong-shape")
        return torch.from_numpy(as_features(array, "the array"))

    def item(self, item: Any) -> tuple[Tensor, None]:
        """One row of a table, in the order of the features; or a sample."""
        if isinstance(item, np.ndarray):
            return torch.from_numpy(item[None]), None
        numbers = [to_number(value, "it", name) for value, name in zip(item, self._features, strict=True)]
        return torch.tensor([numbers]), None

    def in_order(self, x: Any, names: Sequence[str], where: str) -> Any:
        """The columns of an array, with these names, in the order of the features."""
        return x[:, self.columns(names, where)]

    def columns(self, names: Sequence[str], where: str) -> list[int]:
        """The position of each feature among these columns; other columns do not matter."""
        place = {name: index for index, name in enumerate(names)}
        if missing := [name for name in self._features if name not in place]:
            more = f" and {len(missing) - 1} more that the model needs" if len(missing) > 1 else ""
            problem = f"{where} has no column {missing[0]}{more}"
            raise TacitError(problem, "use the columns of the training table", code="predict.missing-column")
        return [place[name] for name in self._features]

    def levels(self, x: Tensor) -> Tensor:
        """(n, d): the features themselves."""
        return x

    def _frame(self, frame: Any) -> Tensor:
        names = [str(name) for name in (frame.keys() if isinstance(frame, Mapping) else frame.columns)]
        self.columns(names, "the data frame")
        try:
            rows = np.column_stack([np.asarray(frame[name], dtype=np.float64) for name in self._features])
        except (TypeError, ValueError) as error:
            problem = f"the data frame has a column that is not of numbers ({error})"
            raise TacitError(problem, "convert it to numbers", code="data.not-a-number") from error
        return torch.from_numpy(as_features(rows, "the data frame"))
