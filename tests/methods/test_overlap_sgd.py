"""Overlap Local-SGD: workers are pulled to an anchor one communication old, and the anchor has momentum."""

from itertools import pairwise
from typing import Any

import pytest
import torch

from tacit.aggregation import WeightsDown
from tacit.engines.faults import Faults
from tacit.engines.in_process import InProcessTransport
from tacit.engines.job import Job
from tacit.learn import fit
from tacit.method import Training
from tacit.methods.fedavg import FedAvg
from tacit.methods.local_only import LocalOnly
from tacit.methods.overlap_sgd import OverlapMemory, OverlapSgd, OverlapState, OverlapUp
from tacit.objectives import Supervised
from tacit.params import Params, lerp, mean, scale
from tests.methods import by_hand
from tests.toys import (
    EagerTransport,
    Moment,
    Quadratic,
    apart,
    federation,
    images,
    job,
    labeled,
    normed,
    number,
    p,
    play_all,
    point,
    quadratics,
    rounds,
    same,
    steps,
    visit,
)


def given(method: Any = None, **options: Any) -> Job:
    return labeled(method or OverlapSgd(), **options)


# Two workers with targets 0 and 3 and a = 1, all at 1; α = β = ½; one step of 0.1.


def test_two_rounds_by_hand() -> None:
    method = OverlapSgd(Quadratic(), alpha=0.5, beta=0.5)
    task = job(method, quadratics([[0.0, 1.0]], [[3.0, 1.0]]), point(1.0), train=steps(1), rounds=2)
    first, second = rounds(task)
    # steps to 0.9 and 1.2, half way back to z = 1; z: 1 + (1.025 - 1)
    assert [number(first.memories[k].x) for k in (0, 1)] == pytest.approx([0.95, 1.1], abs=1e-12)
    assert (number(first.state.z), number(first.state.v)) == pytest.approx((1.025, 0.025), abs=1e-12)
    # on from their own: 0.855 and 1.29, half way to z = 1.025; v = ½·0.025 + (1.04875 - 1.025)
    assert [number(second.memories[k].x) for k in (0, 1)] == pytest.approx([0.94, 1.1575], abs=1e-12)
    assert number(second.state.v) == pytest.approx(0.03625, abs=1e-12)
    assert number(second.state.z) == pytest.approx(1.025 + 0.03625, abs=1e-12)


def test_the_anchor_sent_is_the_average_of_one_communication_ago() -> None:
    task = given(OverlapSgd(beta=0.0))
    moments = list(rounds(task))
    for before, after in pairwise(moments):
        _, downs = task.method.send(task.server(after.record.round, {}), before.state)
        workers = mean([before.memories[k].x for k in range(3)])
        assert all(apart(down.w, workers) < 1e-6 for down in downs.values())


def test_a_round_of_a_linear_model() -> None:
    task = given(OverlapSgd(alpha=0.25))
    z = task.server(0, {}).initial()
    moment = next(iter(rounds(task)))
    trained = [fit(task.client(0, k), z, Supervised()).params for k in range(3)]
    for k in range(3):
        assert same(moment.memories[k].x, lerp(trained[k], z, 0.25))
    assert apart(moment.state.z, lerp(mean(trained), z, 0.25)) < 1e-6


# Reductions. The mean of x after the pull is (1 - α)·(mean of what was trained) + α·z.


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.6])
def test_the_first_round_goes_the_share_1_minus_alpha_of_uniform_fedavg(alpha: float) -> None:
    start = given().server(0, {}).initial()
    fedavg = next(iter(rounds(given(FedAvg(Supervised(), "uniform"))))).state.w
    for beta in (0.0, 0.7):  # there is no momentum yet
        z = next(iter(rounds(given(OverlapSgd(alpha=alpha, beta=beta))))).state.z
        assert apart(z, lerp(fedavg, start, alpha)) < 1e-6


def test_with_alpha_1_nothing_is_ever_learnt() -> None:
    """Every worker goes all the way back to the anchor before it is averaged: this is not FedAvg, it stands still."""
    start = given().server(0, {}).initial()
    for beta in (0.0, 0.7):
        result = play_all(given(OverlapSgd(alpha=1.0, beta=beta)))
        assert apart(result.state.z, start) < 1e-6
        assert all(apart(memory.x, start) < 1e-6 for memory in result.memories.values())


def test_without_pull_and_momentum_it_is_the_mean_of_workers_that_are_alone() -> None:
    result = play_all(given(OverlapSgd(alpha=0.0, beta=0.0)))
    alone = play_all(given(LocalOnly(Supervised())))
    assert all(same(result.memories[k].x, alone.memories[k].w) for k in range(3))
    assert apart(result.state.z, mean([alone.memories[k].w for k in range(3)])) < 1e-6


def test_the_second_round_is_not_fedavg() -> None:
    """FedAvg's workers restart from the mean, these continue from where they are."""
    fedavg = play_all(given(FedAvg(Supervised(), "uniform"), rounds=2)).state.w
    assert apart(play_all(given(OverlapSgd(alpha=0.0, beta=0.0), rounds=2)).state.z, fedavg) > 1e-3


# The anchor.


def test_momentum_is_torchs_with_a_learning_rate_of_1() -> None:
    task = job(OverlapSgd(Quadratic(), beta=0.7), quadratics([[0.0, 1.0]]), point(1.0))
    z = torch.tensor([1.0], dtype=torch.float64, requires_grad=True)
    torchs = torch.optim.SGD([z], lr=1.0, momentum=0.7)
    state = OverlapState(p(1.0))
    for first, second in ((2.0, 4.0), (0.0, 1.0), (7.0, -2.0)):
        z.grad = z.detach() - (first + second) / 2
        torchs.step()
        ups = {0: OverlapUp(p(first)), 4: OverlapUp(p(second))}
        state = task.method.merge(task.server(0, {}), state, ups)
        assert number(state.z) == pytest.approx(z.item(), abs=1e-12)


def test_an_empty_merge_keeps_everything() -> None:
    task = given()
    state = OverlapState(task.server(0, {}).initial(), task.server(0, {}).initial())
    assert task.method.merge(task.server(0, {}), state, {}) is state


def with_batchnorm(train: Training, **options: Any) -> Job:
    net = normed()
    data = federation([images(0, 12), images(1, 12)], server=options.pop("server", None))
    return job(OverlapSgd(alpha=0.2), data, net, train=train, rounds=3, **options)


def test_batch_statistics_have_no_momentum() -> None:
    """Falling variances would overshoot, to below 0."""
    task = with_batchnorm(Training(steps=1, batch=4))
    server = task.server(0, {})
    state = task.method.start(server)
    low = state.z | {name: torch.full_like(state.z[name], 0.1) for name in task.net.buffers}
    for _ in range(3):
        state = task.method.merge(server, state, dict.fromkeys((0, 1), OverlapUp(low)))
        for name in task.net.buffers:
            assert torch.allclose(state.z[name], torch.tensor(0.1))
    assert state.v.keys() == set(task.net.trainable)


def test_recomputed_statistics_are_those_of_the_anchor_after_its_momentum() -> None:
    task = with_batchnorm(Training(steps=2, batch=4, lr=0.1, buffers="recompute"), server=images(9, 12))
    z = play_all(task).state.z
    assert same(z, task.net.recompute_batchnorm(z, [task.server(0, {}).views.plain(images(9, 12).x)]))


def test_with_buffers_keep_statistics_are_the_servers() -> None:
    task = with_batchnorm(Training(steps=2, batch=4, lr=0.1, buffers="keep"), server=images(9, 12))
    first = by_hand.turn(task)
    assert all(torch.equal(first.state.z[name], first.sent.z[name]) for name in task.net.buffers)
    assert apart(first.state.z, first.sent.z) > 1e-3


# Workers.


@pytest.mark.parametrize("buffers", ["average", "keep", "recompute"])
def test_a_workers_statistics_continue_from_where_the_pull_left_them(buffers: Any) -> None:
    task = with_batchnorm(Training(steps=2, batch=4, lr=0.05, buffers=buffers), server=images(9, 12))
    first = by_hand.turn(task)
    second = by_hand.turn(task, 1, first.state, first.memories)
    for k in (0, 1):
        trained = fit(task.client(1, k), first.memories[k].x, Supervised()).params
        assert same(second.memories[k].x, lerp(trained, second.sent.z, 0.2))


def test_a_worker_continues_from_its_own_model() -> None:
    task = given(OverlapSgd(alpha=0.25))
    z = task.server(0, {}).initial()
    memory = OverlapMemory(scale(z, 1.5), None)
    reply = visit(task, 0, WeightsDown(z), memory)
    trained = fit(task.client(0, 0), memory.x, Supervised()).params
    assert same(reply.up.x, lerp(trained, z, 0.25))
    assert same(reply.memory.x, reply.up.x)
    assert same(reply.model, reply.up.x)


LOSSES: dict[str, Any] = {"faults": Faults(lost=0.4), "min_clients": 0, "rounds": 8}


def disagreement(transport: type[InProcessTransport]) -> float:
    """How far workers are from what they last uploaded to the anchor, after any round."""
    moments: list[Moment] = list(rounds(given(OverlapSgd(alpha=0.3, beta=0.0), **LOSSES), transport=transport))
    assert any(moment.record.skipped for moment in moments)
    worst, uploaded = 0.0, dict[int, Params]()
    for moment in moments:
        arrived = moment.record.traffic.keys() - moment.record.skipped.keys()
        uploaded |= {k: moment.memories[k].x for k in arrived}
        worst = max([worst, *(apart(moment.memories[k].x, uploaded[k]) for k in uploaded)])
        if arrived:
            worst = max(worst, apart(moment.state.z, mean([uploaded[k] for k in sorted(arrived)])))
    return worst


def test_lost_uploads_leave_workers_and_anchor_in_agreement() -> None:
    assert disagreement(InProcessTransport) < 1e-6
    assert disagreement(EagerTransport) > 1e-3  # remembering what was lost would break it


def test_the_defaults() -> None:
    assert OverlapSgd() == OverlapSgd(Supervised(), alpha=0.6, beta=0.7)
