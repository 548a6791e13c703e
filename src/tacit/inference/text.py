"""Text for a model: the last characters of each string, as the codes it was trained on."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.data.inputs import CharacterInputs
from tacit.errors import TacitError


class TextReader:
    """Turns strings into windows of character codes (n, length)."""

    def __init__(self, inputs: CharacterInputs) -> None:
        """For a model with these inputs."""
        self._length = inputs.shape[0]
        self._code = {character: code for code, character in enumerate(inputs.alphabet)}

    def values(self, given: Any) -> Tensor:
        """A string or several: the characters before the one to predict; or an array (n, length) of codes."""
        if isinstance(given, str):
            return torch.from_numpy(self._window(given)[None])
        array = np.asarray(given)
        if array.dtype.kind in "UO" and array.ndim == 1:
            return torch.from_numpy(np.stack([self._window(str(text)) for text in array.tolist()]))
        if array.ndim != 2 or array.shape[1] != self._length or array.dtype.kind not in "iu":
            problem = f"the texts are {array.dtype} of shape {array.shape}"
            remedy = f"give strings, or codes of shape (n, {self._length})"
            raise TacitError(problem, remedy, code="predict.wrong-shape")
        if array.size and not 0 <= array.min() <= array.max() < len(self._code):
            problem = f"the codes of the texts are not all from 0 to {len(self._code) - 1}"
            raise TacitError(problem, "give strings instead", code="predict.unknown-codes")
        return torch.from_numpy(np.require(array, np.uint8, ["C", "W"]))

    def item(self, item: Any) -> tuple[Tensor, None]:
        """One text, or a sample."""
        return self.values(item[None] if isinstance(item, np.ndarray) else item), None

    def levels(self, x: Tensor) -> Tensor:
        """(n, 0): characters have no level."""
        return torch.empty(len(x), 0)

    def _window(self, text: str) -> NDArray[np.uint8]:
        """The last characters, with spaces before a short text; an unknown character counts as a space."""
        space = self._code.get(" ", 0)
        codes = [self._code.get(character, space) for character in text[-self._length :]]
        return np.array([space] * (self._length - len(codes)) + codes, dtype=np.uint8)
