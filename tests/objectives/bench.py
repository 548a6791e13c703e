"""One client on a test bench: distinguishable views, and nets whose logits are the view itself, or nearly."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tacit.federation import Samples
from tacit.learn import Batch
from tacit.method import ClientContext, Training
from tacit.methods.fedavg import FedAvg
from tacit.nets import Net
from tacit.params import Params
from tacit.random import Streams
from tests.toys import PLAIN_SGD, Noisy, alone, steps

NOISY = Noisy(0.3, 1.0)
ONE_STEP = steps(1, batch=8, lr=1.0)  # so a change is the negative gradient


@dataclass(frozen=True, eq=False)
class Scaled:
    """Three views that differ, and a record of every use."""

    looks: list[tuple[str, int]] = field(default_factory=list)

    def plain(self, x: Tensor) -> Tensor:
        self.looks.append(("plain", len(x)))
        return x * 1.0

    def weak(self, x: Tensor, stream: torch.Generator) -> Tensor:
        self.looks.append(("weak", len(x)))
        return x * 2.0

    def strong(self, x: Tensor, stream: torch.Generator) -> Tensor:
        self.looks.append(("strong", len(x)))
        return x * 0.5


def client(
    data: Samples, net: Net, train: Training = PLAIN_SGD, round: int = 0, views: Any = None, rounds: int = 3
) -> ClientContext:
    return alone(FedAvg(), data, net, views, train=train, rounds=rounds).client(round, 0)


def start(net: Net) -> Params:
    return net.init(Streams(0).at("init"))


def leaves(model: Params) -> Params:
    return {name: value.clone().requires_grad_() for name, value in model.items()}


def gradient(total: Tensor, w: Params) -> Params:
    return dict(zip(w, torch.autograd.grad(total, list(w.values()), allow_unused=True), strict=True))


def whole(holder: ClientContext) -> Batch:
    """Everything the client has in one batch."""
    data = holder.data
    row, row_u = data.labeled, data.unlabeled
    return Batch(data.x[row], data.y[row], data.x[row_u], row_u)


# Linear nets.


def eye(classes: int) -> Params:
    """Weight diag(1) and no bias: the logits are the view itself."""
    return {"fc.weight": torch.eye(classes), "fc.bias": torch.zeros(classes)}


EYE = eye(2)
FLIPPED: Params = {"fc.weight": -torch.eye(2), "fc.bias": torch.zeros(2)}  # answers the other class throughout
TILTED: Params = {"fc.weight": torch.tensor([[0.5, -1.0], [2.0, 0.25]]), "fc.bias": torch.tensor([0.125, -0.5])}
