"""FedProx, Algorithm 2: FedAvg with a pull towards the received model."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from tacit.aggregation import WeightsDown, WeightsUp
from tacit.learn import fit
from tacit.method import Training
from tacit.methods.fedavg import FedAvg
from tacit.methods.fedprox import FedProx
from tacit.objectives import FixMatch, Supervised
from tests.toys import Quadratic, apart, federation, hide, job, linear, play_all, point, points, quadratics, same, visit


@pytest.mark.parametrize("weights", ["samples", "uniform"])
def test_without_pull_it_is_fedavg_to_the_last_bit(weights: Any) -> None:
    data = federation([hide(points(0, 20), shown=6), points(1, 10)], server=points(9, 8))
    train = Training(epochs=2, batch=6, lr=0.1, optimizer="keep")
    prox, avg = (
        play_all(job(method, data, linear(), train=train))
        for method in (FedProx(FixMatch(threshold=0.4), mu=0.0, weights=weights), FedAvg(FixMatch(0.4), weights))
    )
    assert same(prox.state.w, avg.state.w)
    some = play_all(job(FedProx(FixMatch(0.4), mu=0.1, weights=weights), data, linear(), train=train))
    assert not same(some.state.w, avg.state.w)


def local(mu: float, steps: int, lr: float = 0.1) -> float:
    """Where a client with F(w) = ½·2·(w - 3)² gets from w^t = 1."""
    train = Training(steps=steps, lr=lr, momentum=0.0)
    given = job(FedProx(Quadratic(), mu=mu), quadratics([[3.0, 2.0]]), point(1.0), train=train)
    down = WeightsDown(given.method.start(given.server(0, {})).w)
    return float(visit(given, 0, down).up.w["p"])


def test_the_pull_by_hand() -> None:
    # Step 1: ∇F = 2·(1 - 3) = -4, no pull at w^t: w = 1.4. Step 2: 2·(1.4 - 3) + 5·(1.4 - 1) = -1.2: w = 1.52
    assert local(mu=5.0, steps=1) == pytest.approx(1.4, abs=1e-12)
    assert local(mu=5.0, steps=2) == pytest.approx(1.52, abs=1e-12)


@pytest.mark.parametrize("mu", [0.0, 0.5, 2.0, 8.0])
def test_many_steps_end_at_the_minimum_of_h(mu: float) -> None:
    # 2·(w - 3) + μ·(w - 1) = 0
    assert local(mu=mu, steps=400) == pytest.approx((2 * 3 + mu * 1) / (2 + mu), abs=1e-9)


def test_a_strong_pull_stays_at_the_received_model() -> None:
    # μ = 1000 with steps short enough to be stable (lr·μ < 2): (6 + 1000)/(2 + 1000) = 1.004
    assert local(mu=1000.0, steps=200, lr=0.001) == pytest.approx(1006 / 1002, abs=1e-9)
    net = linear()
    train = Training(epochs=20, batch=6, lr=0.01, momentum=0.0)
    data = federation([points(0, 20)])
    moved = []
    for mu in (0.0, 1.0, 10.0, 100.0):
        given = job(FedProx(Supervised(), mu=mu), data, net, train=train, rounds=1)
        moved.append(apart(play_all(given).state.w, given.method.start(given.server(0, {})).w))
    assert moved == sorted(moved, reverse=True)
    assert moved[-1] < 0.05 * moved[0]


def test_the_server_trains_without_pull() -> None:
    given = job(FedProx(Supervised(), mu=10.0), federation([points(0, 20)], server=points(9, 12)), linear())
    server = given.server(0, {})
    begin = given.method.start(server)
    _, downs = given.method.send(server, begin)
    assert same(downs[0].w, fit(server, begin.w, Supervised()).params)


def test_the_mean_is_uniform_by_default() -> None:
    given = job(FedProx(), quadratics([[0.0, 1.0]], [[0.0, 1.0]]), point(5.0))
    server = given.server(0, {})
    state = given.method.start(server)
    ups = {k: WeightsUp({"p": torch.tensor([w], dtype=torch.float64)}, n) for k, w, n in ((0, 2.0, 1), (1, 6.0, 3))}
    assert given.method.merge(server, state, ups).w["p"].item() == (2 + 6) / 2
    weighted = replace(FedProx(), weights="samples")
    assert weighted.merge(server, state, ups).w["p"].item() == (1 * 2 + 3 * 6) / 4
    assert same(given.method.merge(server, state, {}).w, state.w)
