"""What FedAvgM promises, in numbers small enough to check by hand. Run it with `pytest examples`."""

from types import SimpleNamespace
from typing import Any

import torch

from examples.fedavgm import FedAvgM, FedAvgMState
from tacit.aggregation import WeightsUp
from tacit.method import Training
from tacit.params import Params, mean

SERVER: Any = SimpleNamespace(train=Training(), combine=mean)
STATE = FedAvgMState(w={"a": torch.tensor([4.0])}, v={"a": torch.tensor([2.0])})


def up(value: float, n: int) -> WeightsUp:
    """A client's model of one number, trained on n samples."""
    return WeightsUp({"a": torch.tensor([value])}, n)


def number(params: Params) -> float:
    """The only number in a model."""
    return params["a"].item()


def test_the_equation() -> None:
    new = FedAvgM(beta=0.5).merge(SERVER, STATE, {0: up(1.0, n=1), 1: up(3.0, n=3)})
    # the mean is (1·1 + 3·3)/4 = 2.5, so v = 0.5·2 + (4 - 2.5) = 2.5 and w = 4 - 2.5 = 1.5
    assert (number(new.v), number(new.w)) == (2.5, 1.5)


def test_without_momentum_it_is_fedavg() -> None:
    new = FedAvgM(beta=0.0).merge(SERVER, STATE, {0: up(1.0, n=1), 1: up(3.0, n=3)})
    assert number(new.w) == 2.5  # the mean


def test_a_round_without_uploads_continues_with_momentum() -> None:
    new = FedAvgM(beta=0.5).merge(SERVER, STATE, {})
    assert (number(new.v), number(new.w)) == (1.0, 3.0)  # the mean is w itself: v = 0.5·2, w = 4 - 1
