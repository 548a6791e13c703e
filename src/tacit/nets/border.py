"""A network cut where training begins: what is below never changes, so its output can be computed once.

A module with `enter`, a sequence `trunk` and `leave` can be cut between any two blocks of the trunk; any other only
between its features and its last layer.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from tacit.nets.net import Net
from tacit.nets.one_vs_all import BIAS, WEIGHT


def border_of(net: Net) -> int | None:
    """How many blocks of the trunk are below what trains; -1: everything but the last layer; None: no border."""
    module = net._evaluating
    heads = {WEIGHT, BIAS, *(() if net.head is None else (net.head.weight, net.head.bias))}
    inside = [name for name in net.names if name not in heads]
    if not net.has_features or not net.frozen:
        return None
    if not inside:
        return -1
    trunk = getattr(module, "trunk", None)
    if not isinstance(trunk, nn.Sequential) or any(not name.startswith("trunk.") for name in inside):
        return None
    return min(int(name.split(".")[1]) for name in inside) or None


class UpperNet(Net):
    """The part of a network above its border, with the names of the whole; it sees what `below` makes of inputs."""

    def __init__(self, net: Net, border: int) -> None:
        """Shares everything with the whole network."""
        self.__dict__.update(vars(net))
        self.whole, self.border = net, border
        self._above = {True: _Above(net._training, border), False: _Above(net._evaluating, border)}

    @torch.no_grad()
    def below(self, x: Tensor) -> Tensor:
        """Inputs (n, …) as the network sees them -> activations (n, …) at the border."""
        module = self._skeleton(False, x.device)
        if self.border < 0:
            found: Tensor = module.features(x)  # type: ignore[operator]
            return found
        x = module.enter(x)  # type: ignore[operator]
        for block in list(module.trunk)[: self.border]:  # type: ignore[arg-type]
            x = block(x)
        return x

    def apply(self, params: Mapping[str, Tensor], x: Tensor, train: bool = False) -> Tensor:
        """Logits (n, classes) of activations at the border."""
        return self.features_and_logits(params, x, train)[1]

    def features_and_logits(
        self, params: Mapping[str, Tensor], x: Tensor, train: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Features and logits of activations at the border."""
        self._skeleton(train, x.device)
        named = {f"net.{name}": value for name, value in params.items()}
        pair: tuple[Tensor, Tensor] = self._called(self._above[train], named, x)
        return pair


class _Above(nn.Module):
    """From the border to features and logits."""

    def __init__(self, net: nn.Module, border: int) -> None:
        super().__init__()
        self.net, self.border = net, border

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Features and logits."""
        if self.border >= 0:
            for block in list(self.net.trunk)[self.border :]:  # type: ignore[arg-type]
                x = block(x)
            x = self.net.leave(x)  # type: ignore[operator]
        return x, self.net.classify(x)  # type: ignore[operator]
