"""A second head on the features of a network: for every class a pair of outputs, "not this class" and "this class".

It is no part of the forward pass: the network classifies as without it, and an objective computes the pairs from the
features with `pairs`. So a model with this head is evaluated, saved and exported like any other.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import sqrt

import torch
from torch import Tensor, nn
from torch.nn import functional

from tacit.errors import TacitError
from tacit.nets.start import SECOND_HEAD, head_of

WEIGHT, BIAS = f"{SECOND_HEAD}.weight", f"{SECOND_HEAD}.bias"


class OneVsAll(nn.Module):
    """Weights (2·classes, features). Not an `nn.Linear`, so that the last linear layer is still the classifier."""

    def __init__(self, features: int, classes: int) -> None:
        """Starts like a linear layer of torch."""
        super().__init__()
        self.weight = nn.Parameter(torch.empty(2 * classes, features))
        self.bias = nn.Parameter(torch.empty(2 * classes))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Uniform within 1/√features."""
        bound = 1 / sqrt(self.weight.shape[1])
        nn.init.uniform_(self.weight, -bound, bound)
        nn.init.uniform_(self.bias, -bound, bound)


@dataclass(frozen=True)
class WithOneVsAll:
    """A factory of the same network with this head, drawn after all other weights, so that those stay the same.

    An object and not a closure, since networks are pickled for worker processes.
    """

    factory: Callable[[], nn.Module]
    classes: int

    def __call__(self) -> nn.Module:
        """Build the network."""
        module = self.factory()
        head = head_of(module)
        layer = None if head is None else module.get_submodule(head)
        steps = all(callable(getattr(module, step, None)) for step in ("features", "classify"))
        if not isinstance(layer, nn.Linear) or not steps:
            problem = "net.one_vs_all needs a network with features and a linear last layer, and this one has none"
            raise TacitError(problem, "use --net lenet, or net.one_vs_all = false", code="nets.no-features")
        module.add_module(SECOND_HEAD, OneVsAll(layer.in_features, self.classes))
        return module


def pairs(w: Mapping[str, Tensor], z: Tensor) -> Tensor:
    """Features (n, …) -> logits (n, 2, classes): first "not this class", then "this class"."""
    logits = functional.linear(z.flatten(1), w[WEIGHT], w[BIAS])
    return logits.reshape(len(logits), 2, -1)
