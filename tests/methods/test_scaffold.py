"""SCAFFOLD, Algorithm 1: control variates that start at zero, stay in step with the clients', and remove the drift."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tacit.engines.faults import Faults
from tacit.engines.in_process import InProcessTransport
from tacit.learn import Batch, BatchLoss, Forward, LocalLoss, fit
from tacit.method import Holder, Needs, Training
from tacit.methods.fedavg import FedAvg
from tacit.methods.scaffold import Scaffold, ScaffoldDown, ScaffoldMemory, ScaffoldState, ScaffoldUp
from tacit.objectives import Supervised
from tacit.params import Params, mean, zeros_like
from tests.methods import by_hand
from tests.toys import (
    SIX,
    TWO_EPOCHS,
    EagerTransport,
    Moment,
    Quadratic,
    alone,
    apart,
    federation,
    hide,
    images,
    job,
    linear,
    normed,
    p,
    play_all,
    point,
    points,
    quadratics,
    rounds,
    same,
    started,
    steps,
    visit,
)

# Line 1.


def test_control_variates_start_at_zero() -> None:
    given = alone(Scaffold(), points(0, 20))
    state = started(given)
    assert state.c.keys() == set(given.net.trainable)
    assert all(value.eq(0).all() for value in state.c.values())
    assert not all(value.eq(0).all() for value in state.x.values())


def test_a_client_on_its_first_visit_has_a_variate_of_zero() -> None:
    given = job(Scaffold(Quadratic()), quadratics([[0.0, 1.0]]), point(1.0), train=steps(2))
    down = ScaffoldDown(p(1.0), p(0.3))
    first = visit(given, 0, down)
    zero = visit(given, 0, down, ScaffoldMemory(p(0.0), None))
    assert same(first.up.dy, zero.up.dy)
    assert same(first.up.dc, zero.up.dc)


def test_the_first_round_is_uniform_fedavg_and_the_second_is_not() -> None:
    data = federation([points(0, 20), points(1, 10), points(2, 5)])
    moments = list(rounds(job(Scaffold(Supervised()), data, linear(), train=TWO_EPOCHS, rounds=2)))
    fedavg = list(rounds(job(FedAvg(Supervised(), "uniform"), data, linear(), train=TWO_EPOCHS, rounds=2)))
    assert apart(moments[0].state.x, fedavg[0].state.w) < 1e-6
    assert apart(moments[1].state.x, fedavg[1].state.w) > 1e-3


# Lines 7 to 13 by hand: x = 1, target 0 and a = 1, so the gradient is y; c = 0.3 and c_i = 0.1; two steps of 0.1.
# y: 1 - 0.1·(1 - 0.1 + 0.3) = 0.88; 0.88 - 0.1·(0.88 + 0.2) = 0.772.


def update(option: Any, train: Training, rows: list[list[float]] | None = None) -> tuple[Params, ScaffoldUp]:
    """c_i^+ and what goes up."""
    given = job(Scaffold(Quadratic(), option), quadratics(rows or [[0.0, 1.0]]), point(1.0), train=train)
    reply = visit(given, 0, ScaffoldDown(p(1.0), p(0.3)), ScaffoldMemory(p(0.1), None))
    return reply.memory.c, reply.up


def test_option_two_by_hand() -> None:
    c, up = update("II", steps(2))
    assert up.dy["p"].item() == pytest.approx(0.772 - 1, abs=1e-12)
    # c_i - c + (x - y)/(K·η) = 0.1 - 0.3 + 0.228/0.2, which is the mean of the gradients 1 and 0.88
    assert c["p"].item() == pytest.approx(0.1 - 0.3 + 0.228 / 0.2, abs=1e-12)
    assert c["p"].item() == pytest.approx((1 + 0.88) / 2, abs=1e-12)
    assert up.dc["p"].item() == pytest.approx(0.94 - 0.1, abs=1e-12)


def test_option_one_by_hand() -> None:
    c, up = update("I", steps(2))
    assert up.dy["p"].item() == pytest.approx(0.772 - 1, abs=1e-12)
    assert c["p"].item() == pytest.approx(1.0, abs=1e-12)  # the gradient at x
    assert up.dc["p"].item() == pytest.approx(1 - 0.1, abs=1e-12)


@pytest.mark.parametrize("batch", [1, 2, 3, 4])
def test_option_one_is_the_gradient_over_all_samples_whatever_the_batches(batch: int) -> None:
    c, _ = update("I", steps(1, batch=batch), [[0.0, 1.0], [0.0, 2.0], [0.0, 6.0]])
    assert c["p"].item() == pytest.approx((1 + 2 + 6) / 3, abs=1e-12)


@pytest.mark.parametrize("schedule, round", [("decay:0.5", 3), ("constant", 0)])
def test_option_two_divides_by_the_learning_rate_of_the_round(schedule: str, round: int) -> None:
    train = steps(1, schedule=schedule)
    given = job(Scaffold(Quadratic()), quadratics([[0.0, 1.0]]), point(1.0), train=train, rounds=5)
    reply = visit(given, 0, ScaffoldDown(p(1.0), p(0.0)), round=round)
    assert reply.memory.c["p"].item() == pytest.approx(1.0, abs=1e-12)  # one step: the gradient at x


# Lines 16 and 17.


def test_merge_by_hand() -> None:
    data = quadratics(*[[[0.0, 1.0]]] * 4)
    server = job(Scaffold(Quadratic()), data, point(1.0)).server(0, {})
    ups = {1: ScaffoldUp(p(0.2), p(1.0)), 3: ScaffoldUp(p(0.4), p(3.0))}
    for server_lr, x in ((1.0, 1 + 0.3), (0.5, 1 + 0.5 * 0.3), (2.0, 1 + 2 * 0.3)):
        merged = Scaffold(server_lr=server_lr).merge(server, ScaffoldState(p(1.0), p(0.5)), ups)
        assert merged.x["p"].item() == pytest.approx(x, abs=1e-12)  # x + η_g/|S|·ΣΔy_i
        assert merged.c["p"].item() == pytest.approx(0.5 + (1 + 3) / 4, abs=1e-12)  # c + 1/N·ΣΔc_i, N = 4


def test_an_empty_merge_keeps_everything() -> None:
    server = job(Scaffold(), quadratics([[0.0, 1.0]]), point(1.0)).server(0, {})
    state = ScaffoldState(p(1.0), p(0.5))
    merged = Scaffold().merge(server, state, {})
    assert same(merged.x, state.x)
    assert same(merged.c, state.c)


# The invariant: c is the mean of all c_i, those never seen included.

# Six quadratics [target, a]; the optimum of their sum is Σ a·target / Σ a.
OPTIMUM_OF_SIX = (0 * 1 + 1 * 3 + 2 * 2 - 1 * 1 + 4 * 0.5 - 3 * 2) / (1 + 3 + 2 + 1 + 0.5 + 2)


def out_of_step(moment: Moment, clients: int = 6) -> float:
    """How far c is from the mean of all c_i."""
    zero = zeros_like(moment.state.c)
    variates = [moment.memories[k].c if k in moment.memories else zero for k in range(clients)]
    return apart(moment.state.c, mean(variates))


def six(transport: type[InProcessTransport] = InProcessTransport, **options: Any) -> list[Moment]:
    data = quadratics(*[[row] for row in SIX])
    method = Scaffold(Quadratic(), options.pop("option", "II"))
    return list(rounds(job(method, data, point(5.0), train=steps(3), **options), transport=transport))


@pytest.mark.parametrize("option", ["I", "II"])
@pytest.mark.parametrize("cohort", [6, 2])
def test_c_is_the_mean_of_all_c_i_after_every_round(cohort: int, option: str) -> None:
    for moment in six(cohort=cohort, option=option, rounds=8):
        assert out_of_step(moment) < 1e-12
    assert abs(moment.state.c["p"].item()) > 1e-3


def test_c_is_the_mean_of_all_c_i_with_momentum_and_server_labels() -> None:
    data = federation([points(k, 10) for k in range(4)], server=points(9, 8))
    train = Training(batch=4, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01, clip=1.0)
    for moment in rounds(job(Scaffold(Supervised()), data, linear(), train=train, cohort=2, rounds=4)):
        assert out_of_step(moment, 4) < 1e-6


LOSSES: dict[str, Any] = {"cohort": 3, "faults": Faults(lost=0.4), "min_clients": 0, "rounds": 60}


def test_lost_uploads_leave_c_in_step_and_the_optimum_in_reach() -> None:
    moments = six(**LOSSES)
    lost = sum(len(moment.record.skipped) for moment in moments)
    assert 0.25 * 180 < lost < 0.55 * 180  # 60 rounds of 3 clients, lost with probability 0.4
    assert max(out_of_step(moment) for moment in moments) < 1e-12
    assert moments[-1].state.x["p"].item() == pytest.approx(OPTIMUM_OF_SIX, abs=1e-4)


def test_committing_the_memory_of_lost_uploads_would_break_both() -> None:
    moments = six(EagerTransport, **LOSSES)
    assert max(out_of_step(moment) for moment in moments) > 0.1
    assert abs(moments[-1].state.x["p"].item() - OPTIMUM_OF_SIX) > 0.1


# What control variates are for.


def test_scaffold_reaches_the_optimum_of_two_quadratics_and_fedavg_does_not() -> None:
    # ½·w² and ½·3·(w - 1)²: their sum is least at 3·1/(1 + 3).
    data = quadratics([[0.0, 1.0]], [[1.0, 3.0]])
    optimum = 3 / 4
    # K = 5 steps of 0.2 shrink the distance to the own target by 0.8⁵ and 0.4⁵. FedAvg stands still where the
    # mean of both ends is where it began: w = ½·(0.8⁵·w) + ½·(1 + 0.4⁵·(w - 1)).
    slow, fast = 0.8**5, 0.4**5
    standstill = (1 - fast) / (2 - slow - fast)
    assert standstill == pytest.approx(0.5955, abs=1e-4)
    train = steps(5, lr=0.2)
    w = play_all(job(FedAvg(Quadratic()), data, point(5.0), train=train, rounds=30)).state.w
    assert w["p"].item() == pytest.approx(standstill, abs=1e-9)
    for option in ("I", "II"):
        x = play_all(job(Scaffold(Quadratic(), option), data, point(5.0), train=train, rounds=30)).state.x
        assert x["p"].item() == pytest.approx(optimum, abs=1e-9)


@pytest.mark.parametrize("options", [{"momentum": 0.5}, {"momentum": 0.5, "nesterov": True}], ids=str)
def test_it_does_so_with_momentum(options: dict[str, Any]) -> None:
    data = quadratics([[0.0, 1.0]], [[1.0, 3.0]])
    train = steps(3, **options)
    x = play_all(job(Scaffold(Quadratic()), data, point(5.0), train=train, rounds=30)).state.x
    assert x["p"].item() == pytest.approx(0.75, abs=1e-9)
    w = play_all(job(FedAvg(Quadratic()), data, point(5.0), train=train, rounds=30)).state.w
    assert abs(w["p"].item() - 0.75) > 0.01


def test_at_the_optimum_nothing_moves() -> None:
    # x = 0.75 with c_i the gradients there, 0.75 and 3·(0.75 - 1), and c their mean 0: every step is zero.
    data = quadratics([[0.0, 1.0]], [[1.0, 3.0]])
    given = job(Scaffold(Quadratic()), data, point(0.75), train=steps(10))
    for k, gradient in ((0, 0.75), (1, -0.75)):
        memory = ScaffoldMemory(p(gradient), None)
        reply = visit(given, k, ScaffoldDown(p(0.75), p(0.0)), memory)
        assert reply.up.dy["p"].item() == 0.0
        assert reply.up.dc["p"].item() == pytest.approx(0.0, abs=1e-15)


# Momentum: c_i^+ must stay a mean of gradients.

MOMENTA = [{"momentum": 0.0}, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True}]


@dataclass(frozen=True)
class Slope:
    """A constant gradient g: the cost is the mean of g·p."""

    labels_only = True
    needs = Needs()

    def local_loss(self, holder: Holder, received: Params, carried: Mapping[str, Tensor]) -> LocalLoss:
        def cost(w: Params, batch: Batch, forward: Forward) -> BatchLoss:
            return BatchLoss((batch.x * w["p"]).sum(dim=1).mean())

        return LocalLoss(cost)


@pytest.mark.parametrize("count", [1, 2, 7])
@pytest.mark.parametrize("options", MOMENTA, ids=str)
def test_a_constant_gradient_is_its_own_mean(options: dict[str, Any], count: int) -> None:
    given = job(Scaffold(Slope()), quadratics([[2.5]]), point(1.0), train=steps(count, **options))
    memory, down = ScaffoldMemory(p(0.1), None), ScaffoldDown(p(1.0), p(0.3))
    reply = visit(given, 0, down, memory)
    assert reply.memory.c["p"].item() == pytest.approx(2.5, abs=1e-12)


@pytest.mark.parametrize(
    "options, expected",
    [
        # With ρ = ½ and directions d_1, d_2 the first step goes d_1, the second ½·d_1 + d_2: weights 1.5 and 1.
        ({"momentum": 0.5}, lambda first, second: (1.5 * first + 1 * second) / 2.5),
        # Nesterov: d_1 + ½·d_1, then d_2 + ½·(½·d_1 + d_2): weights 1.75 and 1.5.
        ({"momentum": 0.5, "nesterov": True}, lambda first, second: (1.75 * first + 1.5 * second) / 3.25),
    ],
    ids=["heavy ball", "nesterov"],
)
def test_with_momentum_it_is_a_weighted_mean_of_the_gradients(options: dict[str, Any], expected: Any) -> None:
    c, _ = update("II", steps(2, **options))
    ahead = 1.5 if "nesterov" in options else 1.0
    second = 1 - 0.1 * ahead * (1 - 0.1 + 0.3)  # the gradient at the second step is y itself
    assert c["p"].item() == pytest.approx(expected(1.0, second), abs=1e-12)


# Parameters only, and clients that only listen.


def test_batch_statistics_have_no_control_variate() -> None:
    net = normed()
    data = federation([images(0, 12), images(1, 12)])
    given = job(Scaffold(Supervised(), server_lr=0.5), data, net, rounds=1)
    first = by_hand.turn(given)
    trainable = set(net.trainable)
    assert trainable < set(net.names)
    for variate in (first.sent.c, first.state.c, first.replies[0].memory.c, first.replies[0].up.dc):
        assert variate.keys() == trainable
    x, one, two = first.sent.x, first.replies[0].model, first.replies[1].model
    both = {name: (one[name] + two[name]) / 2 for name in net.names}
    for name in net.buffers:  # averaged in full, whatever the server's step
        assert torch.allclose(first.state.x[name], both[name], atol=1e-6)
    for name in net.trainable:
        half_way = x[name] + 0.5 * (both[name] - x[name])
        assert torch.allclose(first.state.x[name], half_way, atol=1e-6)


def test_recomputed_statistics_are_those_of_the_model_after_the_servers_step() -> None:
    net = normed()
    data = federation([images(0, 12)], server=images(9, 20))
    settings = Training(lr=0.1, batch=4, buffers="recompute")
    given = job(Scaffold(Supervised(), server_lr=2.0), data, net, train=settings, rounds=1)
    x = play_all(given).state.x
    expected = net.recompute_batchnorm(x, [given.server(0, {}).views.plain(images(9, 20).x)])
    assert same(x, expected)


def test_where_nothing_moves_the_control_variate_stays() -> None:
    data, cosine = quadratics([[1.0, 1.0]], [[3.0, 2.0]]), steps(2, schedule="cosine:1")
    given = job(Scaffold(Quadratic()), data, point(0.0), train=cosine, rounds=4)
    moments = list(rounds(given))
    assert all(not moment.record.skipped for moment in moments)
    assert same(moments[1].state.c, moments[2].state.c)  # cos(π·2/4) is 0 but for rounding
    assert same(moments[2].state.c, moments[3].state.c)  # cos(π·3/4) is negative, so 0
    assert not same(moments[0].state.c, moments[1].state.c)


def test_steps_too_short_for_float32_leave_the_control_variate() -> None:
    data = quadratics([[1.0, 1.0]], [[3.0, 2.0]])
    short, long = (job(Scaffold(Quadratic()), data, point(1.0), train=steps(2, lr=lr), rounds=1) for lr in (1e-6, 1e-4))
    assert play_all(short).state.c["p"].item() == 0.0  # of 3e-6 on 1.0 float32 keeps two digits
    assert play_all(long).state.c["p"].item() != 0.0


def test_a_client_may_keep_its_batch_statistics() -> None:
    net = normed()
    given = alone(Scaffold(Supervised()), images(0, 12), net, train=Training(batch=4, buffers="keep"))
    state = started(given)
    first = visit(given, 0, ScaffoldDown(state.x, state.c))
    received = ScaffoldDown(net.init(given.streams.at("what others made of it")), state.c)
    own = ScaffoldDown(received.x | first.memory.carried.buffers, state.c)
    again, as_if = visit(given, 0, received, first.memory), visit(given, 0, own, ScaffoldMemory(first.memory.c, None))
    assert same(again.model, as_if.model)
    assert not same(again.model, visit(given, 0, received, ScaffoldMemory(first.memory.c, None)).model)


def test_a_client_with_nothing_to_train_on_uploads_nothing() -> None:
    data = federation([points(0, 20), hide(points(1, 20))])
    given = job(Scaffold(Supervised()), data, linear(), rounds=2)
    moments = list(rounds(given))
    assert moments[-1].record.clients == 2
    assert moments[-1].record.traffic[1][1] == 0
    assert all(out_of_step(moment, 2) < 1e-6 for moment in moments)
    assert all(value.eq(0).all() for value in moments[-1].memories[1].c.values())


def test_the_server_trains_first_where_it_has_labels() -> None:
    given = job(Scaffold(Supervised()), federation([points(0, 20)], server=points(9, 12)), linear())
    server = given.server(0, {})
    begin = given.method.start(server)
    state, downs = given.method.send(server, begin)
    assert same(downs[0].x, fit(server, begin.x, Supervised()).params)
    assert same(downs[0].x, state.x)
    assert same(downs[0].c, begin.c)
    assert apart(state.x, begin.x) > 1e-3


def test_the_server_carries_its_momentum_if_set() -> None:
    data, train = federation([points(0, 20)], server=points(9, 12)), Training(batch=6, lr=0.1, optimizer="keep")
    given = job(Scaffold(Supervised()), data, linear(), server_train=train)
    first, second = given.server(0, {}), given.server(1, {})
    state, _ = given.method.send(first, given.method.start(first))
    later, _ = given.method.send(second, state)
    assert same(later.x, fit(second, state.x, Supervised(), carried=state.carried).params)
    assert not same(later.x, fit(second, state.x, Supervised()).params)


def test_control_variates_live_on_the_device_of_the_run() -> None:
    server = replace(alone(Scaffold(), points(0, 4)).server(0, {}), device=torch.device("meta"))
    assert {value.device.type for value in Scaffold().start(server).c.values()} == {"meta"}
