"""Vectors of numbers, such as the rows of a table."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from tacit.data.inputs.shared import Above, moments, other_kind, plain, refuse_other_length, times
from tacit.data.split.config import DataConfig
from tacit.data.views.vectors import VectorViews
from tacit.federation import Difference, Inputs, Views


@dataclass(frozen=True)
class VectorInputs:
    """Rows of a table, stored as float32 features."""

    features: tuple[str, ...]  # their names, in order
    mean: tuple[float, ...] = field(default=(), repr=False)  # per feature, of the training rows
    std: tuple[Above, ...] = field(default=(), repr=False)

    kind: ClassVar[str] = "vectors"
    dtype: ClassVar[torch.dtype] = torch.float32
    bits: ClassVar[int | None] = None
    sizes: ClassVar[tuple[int, ...]] = ()
    mixable: ClassVar[bool] = True
    drawable: ClassVar[bool] = False
    from_files: ClassVar[bool] = True
    reads_classes: ClassVar[bool] = False
    suggested_net: ClassVar[str] = "mlp"
    settings: ClassVar[tuple[str, ...]] = ("noise", "strong_noise", "mask")
    marks: ClassVar[Mapping[str, Any]] = {"kind": "vectors"}

    def __post_init__(self) -> None:
        """Refuse parts that do not belong together."""
        if not self.features or len(set(self.features)) < len(self.features):
            raise ValueError("features are not one or more different names")
        refuse_other_length(self.mean, self.std, len(self.features), "feature")

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of features."""
        return (len(self.features),)

    @property
    def export_note(self) -> str:
        """Features in their order."""
        shape = times(self.shape)
        return f"features, float32, of shape n×{shape}, in the order of inputs.features; the graph standardises them"

    def with_moments(self, mean: tuple[float, ...], std: tuple[float, ...]) -> "VectorInputs":
        """Features keep their own mean and deviation: weights expect those of pictures."""
        return self

    def configured(self, data: DataConfig) -> "VectorInputs":
        """With the normalisation that a config asks for."""
        mean, std = moments(self.mean, self.std, data)
        return replace(self, mean=mean, std=std)

    def views(self, data: DataConfig) -> Views:
        """Noise and masks of the config's amounts."""
        given = self.configured(data)
        return VectorViews(given.mean, given.std, data.noise, data.strong_noise, data.mask)

    def blank(self) -> Tensor:
        """Floats."""
        return torch.zeros(1, *self.shape)

    def invent(self, count: int, stream: torch.Generator) -> Tensor:
        """Normal numbers with the mean and deviation of each feature."""
        return torch.tensor(self.mean) + torch.tensor(self.std) * torch.randn(count, *self.shape, generator=stream)

    def noise(self, kind: str, views: Views, stream: torch.Generator) -> Tensor:
        """Standard normal features, as standardised ones are."""
        return torch.randn(1, *self.shape, generator=stream)

    def describe(self, count: int, parts: str, classes: int) -> str:
        """The number of features."""
        many = "s" if len(self.features) > 1 else ""
        return f"{count:,} rows of {len(self.features):,} feature{many} ({parts}), {classes:,} classes"

    def pictures(self, seen: Tensor, views: Views) -> Tensor:
        """Rows are written, not drawn."""
        raise NotImplementedError

    def written(self, seen: Tensor, width: int) -> str:
        """The first features."""
        pairs = zip(self.features, seen.tolist(), strict=True)
        text = ", ".join(f"{name} {value:.2f}" for name, value in pairs)
        return text if len(text) <= width else text[: width - 1] + "…"

    def level_name(self, place: int) -> str:
        """The feature."""
        return self.features[place]

    def difference(self, other: Inputs) -> Difference | None:
        """Other columns; their order does not matter. A site's own columns are not named: the hub reads this."""
        if not isinstance(other, VectorInputs):
            return other_kind(self, other)
        missing = [name for name in self.features if name not in other.features]
        extra = len(set(other.features) - set(self.features))
        if not missing and not extra:
            return None
        lacks = f"lacks {len(missing)} columns of the federation, the first is {missing[0]}" if missing else ""
        brings = f"has {extra} columns that the federation does not know" if extra else ""
        problem = f"this site's table {' and '.join(filter(None, (lacks, brings)))}"
        return Difference(
            problem, "use exactly the columns that federation.toml lists under features", "site.other-columns"
        )

    def adopt(self, x: Tensor, other: Inputs) -> Tensor:
        """The columns in the order of the federation."""
        place = {name: index for index, name in enumerate(other.features)} if isinstance(other, VectorInputs) else {}
        return x[:, [place[name] for name in self.features]].contiguous()

    def to_plain(self) -> dict[str, Any]:
        """Names, mean and deviation of every feature."""
        return plain(asdict(self), self.marks)
