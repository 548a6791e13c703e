"""What several kinds of inputs need: plain values, normalisation, and refusals."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from tacit.data.split.config import DataConfig
from tacit.federation import Difference, Inputs

Side = Annotated[int, Field(gt=0)]
Above = Annotated[float, Field(gt=0)]
Floats = tuple[float, ...]


def plain(fields: Mapping[str, Any], marks: Mapping[str, Any]) -> dict[str, Any]:
    """Lists and values, without those that are None or empty: TOML has no null. `marks` only tell the kind."""
    given = {name: value for name, value in fields.items() if value not in (None, ())}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in given.items()} | dict(marks)


def moments(mean: Floats, std: Floats, data: DataConfig) -> tuple[Floats, Floats]:
    """What a config subtracts and divides by."""
    if data.normalise == "data":
        return mean, std
    middle, spread = {"unit": (0.0, 1.0), "half": (0.5, 0.5)}[data.normalise]
    return (middle,) * len(mean), (spread,) * len(std)


def refuse_other_length(mean: Floats, std: Floats, count: int, what: str) -> None:
    """Refuse a mean or deviation that does not have one number for each channel or feature."""
    if (len(mean), len(std)) != (count, count):
        raise ValueError(f"mean and std do not have {count} numbers each, one per {what}")


def other_kind(hub: Inputs, site: Inputs) -> Difference:
    """Say that a site's samples are of another kind than the hub's."""
    problem = f"this site's samples are {site.kind} and the federation's are {hub.kind}"
    return Difference(problem, f"use {hub.kind.removesuffix('s')} data at this site", "site.other-kind")


def times(shape: tuple[int, ...]) -> str:
    """3×32×32."""
    return "×".join(map(str, shape))
