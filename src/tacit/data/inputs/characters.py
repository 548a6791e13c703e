"""Text, character by character."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from tacit.data.inputs.shared import Side, other_kind, plain, times
from tacit.data.split.config import DataConfig
from tacit.data.views.augment import TextViews
from tacit.federation import Difference, Inputs, Views


@dataclass(frozen=True)
class CharacterInputs:
    """Windows of text, stored as uint8 codes of characters; the label is the next character."""

    shape: tuple[Side, ...]  # the number of characters
    alphabet: tuple[str, ...] = field(default=(), repr=False)  # the classes

    kind: ClassVar[str] = "text"
    dtype: ClassVar[torch.dtype] = torch.uint8
    bits: ClassVar[int | None] = None
    sizes: ClassVar[tuple[int, ...]] = ()
    mixable: ClassVar[bool] = False
    drawable: ClassVar[bool] = False
    from_files: ClassVar[bool] = False
    reads_classes: ClassVar[bool] = True
    suggested_net: ClassVar[str] = "lstm"
    settings: ClassVar[tuple[str, ...]] = ()
    marks: ClassVar[Mapping[str, Any]] = {"text": True, "flip": False}

    def __post_init__(self) -> None:
        """Refuse what is no length."""
        if len(self.shape) != 1:
            raise ValueError(f"{list(self.shape)} is not the shape of a text")

    @property
    def export_note(self) -> str:
        """Positions of characters."""
        shape = times(self.shape)
        return f"positions of characters in classes, uint8, of shape n×{shape}; a short text has spaces before it"

    def with_moments(self, mean: tuple[float, ...], std: tuple[float, ...]) -> "CharacterInputs":
        """Text is not normalised."""
        return self

    def configured(self, data: DataConfig) -> "CharacterInputs":
        """No setting changes text."""
        return self

    def views(self, data: DataConfig) -> Views:
        """Codes, some of them replaced in the strong view."""
        return TextViews(len(self.alphabet))

    def blank(self) -> Tensor:
        """Codes for an embedding."""
        return torch.zeros(1, *self.shape, dtype=torch.int64)

    def invent(self, count: int, stream: torch.Generator) -> Tensor:
        """Random characters."""
        return torch.randint(len(self.alphabet), (count, *self.shape), generator=stream).to(self.dtype)

    def noise(self, kind: str, views: Views, stream: torch.Generator) -> Tensor:
        """The strong view of an empty text: characters have no other noise."""
        return views.strong(torch.zeros(1, *self.shape, dtype=self.dtype), stream)

    def describe(self, count: int, parts: str, classes: int) -> str:
        """Their length, and what a class is."""
        return f"{count:,} windows of {self.shape[0]} characters ({parts}), {classes:,} classes (next character)"

    def pictures(self, seen: Tensor, views: Views) -> Tensor:
        """Text is written, not drawn."""
        raise NotImplementedError

    def written(self, seen: Tensor, width: int) -> str:
        """The last characters, line ends escaped."""
        text = "".join(self.alphabet[code] for code in seen.tolist()).replace("\n", "\\n")
        return text if len(text) <= width else "…" + text[1 - width :]

    def level_name(self, place: int) -> str:
        """Characters have no level."""
        raise NotImplementedError

    def difference(self, other: Inputs) -> Difference | None:
        """Another kind or another length."""
        if other.kind != self.kind:
            return other_kind(self, other)
        if other.shape == self.shape:
            return None
        problem = f"this site's texts have {other.shape[0]} characters and the federation's {self.shape[0]}"
        return Difference(problem, "cut them to the same length", "site.wrong-shape")

    def adopt(self, x: Tensor, other: Inputs) -> Tensor:
        """Unchanged."""
        return x

    def to_plain(self) -> dict[str, Any]:
        """The keys of federation.toml since 0.1; the alphabet is its list of classes."""
        return {name: value for name, value in plain(asdict(self), self.marks).items() if name != "alphabet"}
