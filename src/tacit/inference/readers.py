"""Which reader turns what a user has into the samples of a model, by the kind of its inputs."""

from collections.abc import Callable
from typing import Any, Protocol

from torch import Tensor

from tacit.data.inputs import CharacterInputs, ImageInputs, VectorInputs
from tacit.data.sources.images import Size
from tacit.federation import Inputs
from tacit.inference.images import ImageReader
from tacit.inference.text import TextReader
from tacit.inference.vectors import VectorReader


class Reader(Protocol):
    """Turns what a user has into samples as a model stores them."""

    def values(self, given: Any) -> Tensor:
        """Arrays, or what else holds the values themselves, as samples (n, …)."""
        ...

    def item(self, item: Any) -> tuple[Tensor, Size | None]:
        """One item of a block as a sample (1, …), and the size of its image file, if it is one."""
        ...

    def levels(self, x: Tensor) -> Tensor:
        """(n, k): numbers that say coarsely what samples are like, such as their brightness."""
        ...


READERS: dict[str, Callable[[Any], Reader]] = {
    ImageInputs.kind: ImageReader,
    CharacterInputs.kind: TextReader,
    VectorInputs.kind: VectorReader,
}


def reader_for(inputs: Inputs) -> Reader:
    """The reader of a model with these inputs."""
    return READERS[inputs.kind](inputs)
