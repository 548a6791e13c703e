"""FedSiam: Eq. 2 to 12 by hand, Π, MT and D as they reduce to each other, what travels and what is borrowed."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from math import ceil, exp, inf, nan
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import tacit
from tacit import params
from tacit.cli import app
from tacit.engines.faults import Faults
from tacit.engines.job import Job
from tacit.engines.wire import finite
from tacit.federation import Samples
from tacit.learn import batches, forward_of
from tacit.method import Training
from tacit.methods.fedavg import FedAvg
from tacit.methods.fedsiam import (
    FedSiam,
    FedSiamDown,
    FedSiamMemory,
    FedSiamState,
    FedSiamUp,
    TwoNets,
    boundary,
    divergences,
    linear,
    rectangle,
    rising,
)
from tacit.nets import Net, build
from tacit.objectives import Pi
from tacit.objectives.parts import agreement
from tacit.params import Params
from tacit.runs import registry
from tests.data.real import folder_with
from tests.engines import farm
from tests.methods import by_hand
from tests.objectives.bench import EYE, FLIPPED, NOISY, ONE_STEP, TILTED, Scaled, client, gradient, leaves, whole
from tests.refusals import refused
from tests.toys import (
    Elsewhere,
    Moment,
    apart,
    federation,
    hide,
    images,
    job,
    play_all,
    points,
    rounds,
    same,
    samples,
    visit,
)
from tests.toys import linear as logistic


def pi(**settings: Any) -> FedSiam:
    """FedSiam-Π."""
    return FedSiam(alpha=0.0, tau=0.0, **settings)


def mt(**settings: Any) -> FedSiam:
    """FedSiam-MT."""
    return FedSiam(tau=1.0, **settings)


def dynamic(**settings: Any) -> FedSiam:
    """FedSiam-D."""
    return FedSiam(**settings)


LIVELY = Training(epochs=2, batch=5, lr=0.1)
NORMED = build("cnn", (1, 16, 16), 3, "batch", width=0.5)  # BatchNorm and dropout


def on_points(method: FedSiam | FedAvg, shown: int = 4, **options: Any) -> Job:
    """Three clients of different size with noisy views; the first `shown` samples of each are labeled."""
    data = federation([hide(points(k, 11 + 4 * k), shown) for k in range(3)], test=points(9, 9), views=NOISY)
    return job(method, data, logistic(), **(dict[str, Any](train=LIVELY, rounds=4) | options))


def on_images(method: FedSiam | FedAvg, at_server: bool = False, **options: Any) -> Job:
    """Three clients with images and a net that has statistics, and dropout to make two views."""
    clients = [hide(images(k, 9 + 3 * k), 0 if at_server else 3) for k in range(3)]
    data = federation(clients, images(50, 7) if at_server else None, images(60, 9))
    return job(method, data, NORMED, **(dict[str, Any](train=replace(LIVELY, lr=0.05), rounds=4) | options))


EVERYWHERE = pytest.mark.parametrize("crowd", [on_points, on_images, lambda m, **o: on_images(m, at_server=True, **o)])


# Eq. 10, and the boundary of Λ.

LAYERS = Net(lambda: nn.Sequential(nn.Linear(2, 1), nn.BatchNorm1d(1), nn.Linear(1, 2)))


def layered(*numbers: float) -> Params:
    """A model of LAYERS: 3 numbers of the first layer, 2 of the norm, 4 of the last layer, then mean and variance."""
    left = iter(numbers)
    shapes = LAYERS.init(torch.Generator())
    return {name: torch.tensor([next(left) for _ in value.flatten()]).view_as(value) for name, value in shapes.items()}


def test_fsm_by_hand() -> None:
    # ‖(1, -2, 2)‖ / ‖(3, 0, 4)‖ = 3/5; statistics do not count; ‖(0, 0, 0, 8)‖ / ‖(1, 1, 1, 1)‖ = 4.
    online = layered(3.0, 0.0, 4.0, 2.0, 1.0, 1.0, 1.0, 1.0, 1.0, 5.0, 5.0)
    target = layered(4.0, -2.0, 6.0, 2.0, 1.0, 1.0, 1.0, 1.0, 9.0, 9.0, 1.0)
    assert divergences(LAYERS, TwoNets(online, target)) == pytest.approx({"0": 0.6, "1": 0.0, "2": 4.0})
    assert divergences(LAYERS, TwoNets(target, online))["0"] == pytest.approx(3 / 56**0.5)  # over the online net's norm


def test_fsm_of_a_layer_of_zeros() -> None:
    zeros, one = layered(*[0.0] * 11), layered(*[0.0] * 3, 1.0, 1.0, *[0.0] * 6)
    assert divergences(LAYERS, TwoNets(zeros, zeros)) == {"0": 0, "1": 0, "2": 0}
    assert divergences(LAYERS, TwoNets(zeros, one)) == {"0": 0, "1": pytest.approx(2**0.5 * 1e30), "2": 0}
    assert divergences(LAYERS, TwoNets(one, zeros)) == {"0": 0, "1": 1, "2": 0}


def test_fsm_of_a_layer_that_is_not_trained_counts_all_it_has() -> None:
    fixed = Net(lambda: nn.Sequential(nn.BatchNorm1d(1, affine=False), nn.Linear(1, 2)))
    online = {name: torch.ones_like(value) for name, value in fixed.init(torch.Generator()).items()}
    moved = online | {"0.running_mean": torch.tensor([1 + 2**0.5])}
    assert divergences(fixed, TwoNets(online, moved)) == pytest.approx({"0": 1.0, "1": 0.0})


def test_the_boundary_by_hand() -> None:
    window = (torch.tensor([4.0, 0.0]), torch.tensor([3.0, 1.0, 2.0]))
    assert boundary(window, 0.25) == 3  # 3 and 4 reach it
    assert boundary(window, 0.5) == 2
    assert boundary(window, 0.3) == pytest.approx(2.8)
    assert (boundary(window, 0.0), boundary(window, 1.0)) == (inf, -inf)  # of no layer, of every layer
    assert (boundary((), 0.0), boundary((), 0.5)) == (inf, -inf)


def test_a_window_that_was_partly_read_from_a_checkpoint() -> None:
    """It is on the device that computes, and the divergences of new rounds are not."""
    window = (torch.tensor([4.0, 0.0]).as_subclass(Elsewhere), torch.tensor([3.0, 1.0, 2.0]))
    assert boundary(window, 0.25) == 3


def test_numbers_in_the_window_that_are_none() -> None:
    """NaN is as near as can be, infinity as far: neither spoils the boundary of the others."""
    window = (torch.tensor([nan, inf, 1.0, 2.0, 3.0]),)
    assert boundary(window, 0.5) == 2
    assert boundary(window, 0.75) == 1
    assert 3 < boundary(window, 0.01) < inf
    assert boundary((torch.tensor([nan, nan]),), 0.5) == 0


@settings(deadline=None, max_examples=80)
@given(
    st.lists(st.integers(0, 10**6), min_size=1, max_size=60, unique=True), st.floats(0.001, 0.999), st.integers(1, 7)
)
def test_a_share_tau_of_the_window_reaches_the_boundary(numbers: list[int], tau: float, size: int) -> None:
    window = torch.tensor(numbers, dtype=torch.float32).split(size)
    share = sum(number >= boundary(window, tau) for number in numbers) / len(numbers)
    assert abs(share - tau) <= 1 / len(numbers) + 1e-9


# Eq. 11 and 12.

PAPER: dict[str, Any] = {"rounds": 50, "mu": 0.5, "phi_end": 40}


def test_the_linear_curve_at_its_corners() -> None:
    tau = {r: linear(r, phi_g=3, **PAPER) for r in range(1, 51)}
    assert (tau[1], tau[3], tau[50]) == (0, 0, 0)
    assert tau[4] == pytest.approx(2 * 0.5 * 50 * 46 / 47**2)
    assert tau[40] == pytest.approx(2 * 0.5 * 50 * 10 / 47**2)
    assert all(tau[r] > tau[r + 1] for r in range(4, 50))


def test_the_rectangle_at_its_corners() -> None:
    tau = {r: rectangle(r, phi_g=10, **PAPER) for r in range(1, 51)}
    assert {tau[r] for r in range(11, 40)} == {0.5 * 50 / 30}
    assert {tau[r] for r in (1, 10, 40, 50)} == {0}


RATES = pytest.mark.parametrize("mu", [0.3, 0.5, 0.9, 1.0])
CORNERS = pytest.mark.parametrize("total, phi_g, phi_end", [(50, 3, 40), (50, 10, 40), (200, 10, 150), (20, 0, 20)])


def middle(curve: Callable[..., float], total: int, mu: float, phi_g: int, phi_end: int) -> float:
    """The mean of an uncut curve over the rounds R_g = 1 … R_G."""
    return sum(curve(r, total, mu, phi_g, phi_end) for r in range(1, total + 1)) / total


@RATES
@CORNERS
def test_curves_have_their_rate_as_integral_and_a_little_less_as_mean_over_rounds(
    mu: float, total: int, phi_g: int, phi_end: int
) -> None:
    n, width = total - phi_g, phi_end - phi_g
    triangle = 2 * (1 - mu) * total / n**2 * n * n / 2  # from φ_g, where the line would begin, to R_G
    assert triangle / total == pytest.approx(1 - mu)
    assert (1 - mu) * total / width * width / total == pytest.approx(1 - mu)
    assert middle(linear, total, mu, phi_g, phi_end) == pytest.approx((1 - mu) * (n - 1) / n)
    assert middle(rectangle, total, mu, phi_g, phi_end) == pytest.approx((1 - mu) * (width - 1) / width)


def test_a_curve_above_one_is_cut_and_its_mean_is_lower() -> None:
    assert linear(4, 50, 0.5, 3, 40) > 1
    assert linear(5, 50, 0.5, 3, 40) > 1
    assert linear(6, 50, 0.5, 3, 40) < 1
    method = dynamic(mu=0.5)
    cut = [method.tau_at(r, 50) for r in range(1, 51)]
    assert cut[3:5] == [1, 1]
    assert sum(cut) / 50 < middle(linear, 50, 0.5, 3, 40) < 0.5
    steep = dynamic(mu=0.1, curve="rectangle")
    assert {steep.tau_at(r, 50) for r in range(1, 51)} == {0.0, 1.0}


def test_a_rectangle_that_ends_after_the_run_has_a_lower_mean() -> None:
    assert middle(rectangle, 20, 0.5, 10, 40) == pytest.approx(10 * (0.5 * 20 / 30) / 20)


def test_the_releases_curve_grows() -> None:
    """Its turning point makes the mean right where φ_g is 3, which is in its constant."""
    tau = [rising(r, 50, 0.5, 3, 40) for r in range(1, 51)]
    assert tau[:3] == [0, 0, 0]
    assert tau[40:] == [0.9] * 10  # from round 41 on
    assert tau[3] == pytest.approx(0.9 / 38)
    assert all(a < b for a, b in pairwise(tau[2:41]))
    assert middle(rising, 50, 0.5, 3, 40) == pytest.approx(0.5, abs=0.02)
    assert rising(5, 4, 0.1, 3, 40) == 0.9  # a turning point before φ_g


@pytest.mark.parametrize("curve, phi_g", [("linear", 3), ("rectangle", 10), ("rising", 3)])
def test_phi_g_is_the_papers_for_the_curve(curve: Any, phi_g: int) -> None:
    tau = [dynamic(curve=curve, mu=0.5).tau_at(r, 50) for r in range(1, 51)]
    assert next(r for r in range(1, 51) if tau[r - 1]) == phi_g + 1
    assert dynamic(curve=curve, phi_g=7).tau_at(7, 50) == 0 < dynamic(curve=curve, phi_g=7).tau_at(8, 50)


def test_tau_of_the_other_two() -> None:
    assert {pi().tau_at(r, 50) for r in range(1, 51)} == {0}
    assert {mt().tau_at(r, 50) for r in range(1, 51)} == {1}


# How the three reduce to each other and to what is known already.

SIAM_PI = pi(ramp=0)


def models(task: Job) -> list[Params]:
    """The common model after every round."""
    return [shipped(task, moment.state) for moment in rounds(task)]


def shipped(task: Job, state: FedSiamState) -> Params:
    """The common model, which these methods have."""
    model = task.method.model(state)
    assert model is not None
    return model


def alike(one: Job, other: Job) -> list[bool]:
    """In which rounds both have the same bits."""
    return [same(a, b) for a, b in zip(models(one), models(other), strict=True)]


@pytest.mark.parametrize("train", [LIVELY, replace(LIVELY, optimizer="keep", weight_decay=0.01)])
@pytest.mark.parametrize("crowd", [on_points, on_images])
def test_pi_is_fedavg_with_the_pi_model_to_the_last_bit(crowd: Any, train: Training) -> None:
    usual = FedAvg(Pi(ramp=0, distance="squared"))
    assert alike(crowd(SIAM_PI, train=train), crowd(usual, train=train)) == [True] * 4
    assert not any(alike(crowd(SIAM_PI, train=train), crowd(FedAvg(Pi(ramp=0)), train=train)))  # over the classes


def test_pi_whose_server_asks_for_agreement_is_fedavg_with_the_pi_model_there_too() -> None:
    usual = on_images(FedAvg(Pi(ramp=0, distance="squared"), server="after"), at_server=True)
    assert alike(on_images(replace(SIAM_PI, server_consistency=True), at_server=True), usual) == [True] * 4
    assert not any(alike(on_images(SIAM_PI, at_server=True), usual))


@EVERYWHERE
def test_with_alpha_zero_mt_is_pi(crowd: Any) -> None:
    assert alike(crowd(mt(alpha=0.0)), crowd(pi())) == [True] * 4
    assert not any(alike(crowd(mt(alpha=0.9)), crowd(pi()))[1:])


@EVERYWHERE
def test_pis_target_is_the_online_net_and_one_net_travels(crowd: Any) -> None:
    task = crowd(pi())
    for moment in rounds(task):
        assert same(moment.state.nets.online, moment.state.nets.target)
        assert moment.record.server["online_sent"] == 0
        assert moment.record.server["online_saved"] == 1


@EVERYWHERE
def test_d_is_pi_until_phi_g(crowd: Any) -> None:
    assert alike(crowd(dynamic(phi_g=2)), crowd(pi())) == [True, True, False, False]
    assert alike(crowd(dynamic(phi_g=4)), crowd(pi())) == [True] * 4


@EVERYWHERE
def test_d_that_sends_everything_continues_as_mt(crowd: Any) -> None:
    """With μ = 0 and a rectangle from the second round to the end τ is 1: a round of Π, then MT."""
    everything = dynamic(curve="rectangle", mu=0.0, phi_g=1, phi_end=5)
    assert [everything.tau_at(r, 4) for r in (1, 2, 3, 4)] == [0, 1, 1, 1]
    task, plain = crowd(everything), crowd(mt())
    last = by_hand.turn(task)
    for round, moment in enumerate(rounds(task)):
        if round:
            last = by_hand.turn(plain, round, last.state, last.memories)
        assert same(last.state.nets.online, moment.state.nets.online)
        assert same(last.state.nets.target, moment.state.nets.target)


# What travels.


def apart_pair(net: Net, seed: int = 0) -> TwoNets:
    """Two different nets."""
    online, target = (net.init(torch.Generator().manual_seed(seed + k)) for k in (1, 2))
    return TwoNets(online, target)


def reply_to(task: Job, edge: float, pair: TwoNets | None = None, memory: Any = None, round: int = 3) -> Any:
    """The reply of client 0, well after φ_g, to this boundary."""
    pair = pair or apart_pair(task.net)
    return visit(task, 0, FedSiamDown(pair.target, pair.online, edge), memory, round)


def layers(sent: Params) -> set[str]:
    return {name.rpartition(".")[0] for name in sent}


def test_from_the_boundary_on_layers_travel() -> None:
    task = on_images(dynamic(phi_g=1))
    whole_up = reply_to(task, -inf).up
    far = divergences(task.net, TwoNets(whole_up.online, whole_up.target))
    assert far.keys() == {"conv1", "norm1", "conv2", "norm2", "fc1", "fc2"}
    assert len(set(far.values())) == 6
    assert whole_up.divergence.tolist() == pytest.approx([*far.values()])
    for edge in far.values():
        up = reply_to(task, edge).up
        assert layers(up.online) == {layer for layer, distance in far.items() if distance >= edge}
        assert same(up.target, whole_up.target)
        assert same(up.online, {name: whole_up.online[name] for name in up.online})
        assert torch.equal(up.divergence, whole_up.divergence)
    assert layers(reply_to(task, inf).up.online) == set()


def test_a_layer_travels_with_its_statistics() -> None:
    task = on_images(dynamic(phi_g=1))
    whole_up = reply_to(task, -inf).up
    far = divergences(task.net, TwoNets(whole_up.online, whole_up.target))
    sent = reply_to(task, far["norm1"]).up.online.keys()
    assert {f"norm1.{part}" for part in ("weight", "bias", "running_mean", "running_var")} <= sent


def test_fewer_layers_are_fewer_bytes() -> None:
    task = on_images(dynamic(phi_g=1))
    far = reply_to(task, -inf).up.divergence.sort().values.tolist()
    sizes = [len(task.codec.encode(reply_to(task, edge * 1.0001).up)) for edge in (-1.0, *far)]
    assert all(more > fewer for more, fewer in pairwise(sizes))


def test_methods_rank_by_traffic_as_in_the_paper() -> None:
    """Communication: Π < D < MT, up and down."""
    total = [
        [(record.bytes_up, record.bytes_down) for record in play_all(on_images(method, rounds=6)).records]
        for method in (pi(), dynamic(phi_g=1, mu=0.7), mt())
    ]
    up, down = ([sum(pair[way] for pair in run) for run in total] for way in (0, 1))
    assert up == sorted(set(up))
    assert down == sorted(set(down))
    assert total[0][0] == total[1][0]  # the first round is Π's


def test_layers_that_do_not_travel_are_taken_from_the_same_clients_target() -> None:
    task = on_images(dynamic(phi_g=1))
    up = reply_to(task, 0.2).up
    assert set() < layers(up.online) < {"conv1", "norm1", "conv2", "norm2", "fc1", "fc2"}
    server = task.server(3, {})
    merged = task.method.merge(server, task.method.start(server), {0: up}).nets
    assert same(merged.target, up.target)
    for name in task.net.names:
        assert torch.equal(merged.online[name], up.online.get(name, up.target[name]))


@pytest.mark.parametrize("weights, shares", [("samples", (0.25, 0.75)), ("uniform", (0.5, 0.5))])
def test_the_average_by_hand(weights: Any, shares: tuple[float, float]) -> None:
    """Eq. 2 for both nets; the first client keeps its online bias back."""
    task = job(dynamic(weights=weights), federation([points(0, 4)], views=NOISY), logistic(2, 2))
    first = FedSiamUp(TILTED, {}, torch.tensor([0.1]), 1)
    second = FedSiamUp(FLIPPED, EYE, torch.tensor([0.2]), 3)
    log: dict[str, float] = {}
    server = task.server(0, log)
    merged = task.method.merge(server, task.method.start(server), {0: first, 1: second})
    a, b = shares
    assert apart(merged.nets.online, params.add(params.scale(TILTED, a), params.scale(EYE, b))) < 1e-6
    assert apart(merged.nets.target, params.add(params.scale(TILTED, a), params.scale(FLIPPED, b))) < 1e-6
    assert log == {"online_sent": 0.5, "online_saved": 0.5}
    assert torch.cat(merged.window).tolist() == pytest.approx([0.1, 0.2])


def test_the_saved_share_is_that_of_all_rounds() -> None:
    task = job(dynamic(), federation([points(0, 4)]), logistic(2, 2))
    log: dict[str, float] = {}
    state = task.method.start(task.server(0, {}))
    for online in (EYE, EYE, {}, {"fc.bias": EYE["fc.bias"]}):
        state = task.method.merge(task.server(0, log), state, {0: FedSiamUp(EYE, online, torch.tensor([0.0]), 1)})
    assert log["online_sent"] == pytest.approx(2 / 6)
    assert log["online_saved"] == pytest.approx(1 - (1 + 1 + 0 + 2 / 6) / 4)
    assert task.method.merge(task.server(0, {}), state, {}) is state


def test_only_layers_that_differ_travel_down() -> None:
    task = on_images(mt())
    pair = apart_pair(task.net)
    online = pair.target | {"conv2.bias": pair.online["conv2.bias"], "norm1.running_var": torch.full((5,), 2.0)}
    _, downs = task.method.send(task.server(0, {}), FedSiamState(TwoNets(online, pair.target)))
    for down in downs.values():
        assert layers(down.online) == {"conv2", "norm1"}
        assert {"conv2.weight", "conv2.bias", "norm1.weight", "norm1.running_mean"} < down.online.keys()
        assert same(down.target | down.online, online)
    _, equal = task.method.send(task.server(0, {}), FedSiamState(TwoNets(online, online)))
    assert all(down.online == {} for down in equal.values())


# Λ.


def test_the_window_holds_phi_g_rounds() -> None:
    method = dynamic(phi_g=2, mu=0.3)
    task = on_points(method, rounds=5)
    state, memories, sent = task.method.start(task.server(0, {})), dict[int, Any](), list[Tensor]()
    for round in range(5):
        server = task.server(round, {})
        state, downs = task.method.send(server, state)
        assert {down.boundary for down in downs.values()} == {boundary(sent[-2:], method.tau_at(round + 1, 5))}
        replies = {k: visit(task, k, down, memories.get(k), round) for k, down in downs.items()}
        sent.append(torch.cat([reply.up.divergence for reply in replies.values()]))
        memories = {k: reply.memory for k, reply in replies.items()}
        state = task.method.merge(server, state, {k: reply.up for k, reply in replies.items()})
        assert len(state.window) == min(round + 1, 2)
        assert torch.equal(torch.cat(state.window), torch.cat(sent[-2:]))
    assert not sent[1].any()  # Π
    assert sent[2].all()


@pytest.mark.parametrize("method", [pi(), mt()])
def test_the_others_remember_no_divergences(method: FedSiam) -> None:
    assert play_all(on_points(method)).state.window == ()


def test_after_pi_everything_travels_while_zeros_fill_the_quantile() -> None:
    """Λ holds only zeros in the first dynamic round, so its boundary is 0 and every layer reaches it.

    τ is 0.47, 0.41, 0.36 in rounds 4, 5, 6; Π has left a share 1, 2/3, 1/3 of zeros, more than 1 - τ but in the last.
    """
    method = dynamic(phi_g=3, mu=0.8)
    task = on_images(method, rounds=12)
    assert [method.tau_at(r, 12) for r in (4, 5, 6)] == pytest.approx([0.474, 0.415, 0.356], abs=1e-3)
    moments = list(rounds(task))
    sent = [moment.record.server["online_sent"] for moment in moments]
    assert sent[:5] == [0, 0, 0, 1, 1]
    assert 0 < sent[5] < 1
    _, downs = task.method.send(task.server(5, {}), moments[4].state)
    assert all(down.boundary > 0 for down in downs.values())
    assert sent[11] == 0  # τ ends at 0


def test_a_divergence_without_bounds_does_not_cost_the_upload() -> None:
    """A layer of zeros whose target is not: very far, and yet the engine must let the upload through."""
    task = on_points(dynamic(phi_g=1), train=replace(LIVELY, lr=1e-30, momentum=0.0))
    zeros, other = params.zeros_like(logistic().init(torch.Generator())), logistic().init(torch.Generator())
    up = reply_to(task, -inf, TwoNets(zeros, other)).up
    assert up.divergence[0] > 1e20
    assert finite(up)


# Eq. 3 and 9. What a visit of k steps leaves is what a longer one has after its k-th step.

FLAT = samples([[2.0, 0.0], [0.0, 1.0], [-1.0, 3.0], [1.0, 1.0], [0.5, -1.0], [0.0, 2.0]], [0, 1, -1, -1, -1, -1])


def walk(method: FedSiam, steps: int, memory: FedSiamMemory | None = None, round: int = 3, **train: Any) -> list[Any]:
    """Replies to visits of 1, 2, … steps of two samples from the pair (EYE, TILTED)."""
    down = FedSiamDown(TILTED, EYE, -inf)
    tasks = [
        job(method, federation([FLAT], views=NOISY), logistic(2, 2), train=Training(steps=k, batch=2, lr=0.2, **train))
        for k in range(1, steps + 1)
    ]
    return [visit(task, 0, down, memory, round) for task in tasks]


def followed(replies: Sequence[Any], alphas: Sequence[float]) -> Params:
    """θ_t = α·θ_t + (1 - α)·θ_s, step by step from TILTED."""
    target = TILTED
    for reply, alpha in zip(replies, alphas, strict=True):
        target = params.add(params.scale(target, alpha), params.scale(reply.up.online, 1 - alpha))
    return target


@pytest.mark.parametrize(
    "method, memory, alphas",
    [
        (mt(), None, (1 / 2, 2 / 3, 3 / 4)),
        (mt(), FedSiamMemory(steps=7), (8 / 9, 9 / 10, 10 / 11)),  # t continues
        (mt(alpha=0.6), None, (1 / 2, 0.6, 0.6)),
        (mt(), FedSiamMemory(steps=10**6), (0.999,) * 3),
        (mt(alpha=0.0), FedSiamMemory(steps=7), (0.0,) * 3),
        (dynamic(phi_g=3), None, (1 / 2, 2 / 3, 3 / 4)),
        (dynamic(phi_g=4), FedSiamMemory(steps=7), (0.0,) * 3),  # round 4 is one of Π's
        (mt(clock="epochs"), None, (3 / 4, 4 / 5, 5 / 6)),  # E + epoch + 1, epochs from 0
        (mt(clock="epochs"), FedSiamMemory(steps=8), (11 / 12, 12 / 13, 13 / 14)),  # after eight
    ],
)
def test_the_target_follows_by_hand(method: FedSiam, memory: Any, alphas: tuple[float, ...]) -> None:
    epochs = {"epochs": 2, "unlabeled_batch": 4} if method.clock == "epochs" else {}  # one step is an epoch here
    replies = walk(method, 3, memory, **epochs)
    assert apart(replies[2].up.target, followed(replies, alphas)) < 1e-6
    assert apart(replies[0].up.target, followed(replies[:1], alphas[:1])) < 1e-6
    assert apart(replies[0].up.online, replies[2].up.online) > 0.01


def test_an_epoch_is_as_long_as_the_data() -> None:
    """Two samples a step: four unlabeled ones make epochs of two steps; α = 1 - 1/(t + 1), t = 3, 3, 4."""
    replies = walk(mt(clock="epochs"), 3, epochs=2)
    assert apart(replies[2].up.target, followed(replies, (3 / 4, 3 / 4, 4 / 5))) < 1e-6
    mixed = walk(mt(clock="epochs", mixed=1), 4, epochs=2)  # six samples in all: three steps
    assert apart(mixed[3].up.target, followed(mixed, (3 / 4, 3 / 4, 3 / 4, 4 / 5))) < 1e-6


def test_a_client_remembers_how_long_it_trained() -> None:
    task = on_points(mt(), cohort=2)
    seen = dict.fromkeys(range(3), 0)
    for moment in rounds(task):
        for k in moment.record.traffic:
            seen[k] += 1
        for k, memory in moment.memories.items():
            assert memory.steps == seen[k] * 2 * ceil((11 + 4 * k - 4) / 5)
    assert len(set(seen.values())) > 1


# β.


@pytest.mark.parametrize("round, beta", [(0, exp(-5 * 0.81)), (4, exp(-5 * 0.25)), (9, 1.0), (30, 1.0)])
def test_the_weight_grows_with_the_rounds(round: int, beta: float) -> None:
    for memory in (None, FedSiamMemory(steps=50)):
        reply = reply_to(on_points(pi(), rounds=40), -inf, memory=memory, round=round)
        assert reply.metrics["weight_unlabeled"] == pytest.approx(beta)


@pytest.mark.parametrize("visits, first", [(0, 3), (1, 5), (2, 7), (6, 15)])
def test_the_weight_grows_with_a_clients_epochs(visits: int, first: int) -> None:
    """Two epochs of two steps in each visit: t = 2·(visits + 1) + 1 and one more."""
    task = on_points(pi(ramp_by="epochs"), rounds=40)
    reply = reply_to(task, -inf, memory=FedSiamMemory(steps=4 * visits), round=0)
    assert reply.metrics["steps"] == 4
    both = [exp(-5 * (1 - min(t, 10) / 10) ** 2) for t in (first, first + 1)]
    assert reply.metrics["weight_unlabeled"] == pytest.approx(sum(both) / 2)


def test_without_a_ramp_the_weight_is_one() -> None:
    assert reply_to(on_points(SIAM_PI), -inf, round=0).metrics["weight_unlabeled"] == 1


# Eq. 4 to 8 on a linear net, whose weak views are twice the samples. At logits z = Wx + b and answers p, with q the
# target's: cross-entropy and KL(q ‖ p) have the gradient p - q, ‖p - q‖² has 2·p·(d - Σ p·d) with d = p - q.

MIXTURE = samples([[1.0, 0.0], [-0.5, 0.5], [0.0, 0.5], [-0.5, 1.5], [0.25, 1.0]], [1, 1, -1, -1, -1])


def pull(distance: str, p: Tensor, q: Tensor) -> Tensor:
    """The gradient of J at the logits, sample by sample."""
    if distance == "kl":
        return p - q
    d = p - q
    return 2 * p * (d - (p * d).sum(dim=1, keepdim=True)) / (2 if distance == "mse" else 1)


def measure(distance: str, p: Tensor, q: Tensor) -> float:
    if distance == "kl":
        return by_hand.kl(q, p)
    return float((p - q).square().sum(dim=1).mean()) / (2 if distance == "mse" else 1)


def expected_gradient(data: Samples, distance: str, beta: float, over: str) -> Params:
    """Of L + β·J at the online net EYE with the target TILTED."""
    x, shown = 2 * data.x, data.labeled
    p, q = by_hand.answers(EYE, x), by_hand.answers(TILTED, x)
    found = by_hand.down_to_weights(beta * pull(distance, p, q), x)
    if len(shown):
        share = 1.0 if over == "labeled" else len(shown) / len(data)
        own = by_hand.slope(EYE, x[shown], by_hand.one_hot(data.y[shown].tolist()))
        found = params.add(found, params.scale(own, share))
    return found


@pytest.mark.parametrize("data", [MIXTURE, hide(MIXTURE), MIXTURE.take(torch.tensor([0, 1]))], ids=["both", "u", "l"])
@pytest.mark.parametrize("over", ["labeled", "batch"])
@pytest.mark.parametrize("distance", ["squared", "mse", "kl"])
@pytest.mark.parametrize("mixed", [0, 1])
def test_a_step_by_hand(data: Samples, over: Any, distance: Any, mixed: int) -> None:
    """Labeled and unlabeled samples both count in J; without labels J alone is left."""
    method = mt(distance=distance, over=over, mixed=mixed)
    task = job(method, federation([data], views=Scaled()), logistic(2, 2), train=ONE_STEP)
    reply = visit(task, 0, FedSiamDown(TILTED, EYE, -inf), None, round=4)
    expected = expected_gradient(data, distance, exp(-5 * 0.25), over)
    assert apart(params.sub(EYE, reply.up.online), expected) < 1e-5
    far = measure(distance, by_hand.answers(EYE, 2 * data.x), by_hand.answers(TILTED, 2 * data.x))
    assert reply.metrics["loss_unlabeled"] == pytest.approx(far, rel=1e-4)
    assert ("loss_supervised" in reply.metrics) == bool(len(data.labeled))
    assert reply.up.n == len(data)


def test_no_gradient_reaches_the_target() -> None:
    holder = client(MIXTURE, logistic(2, 2), views=Scaled())
    online, target = leaves(EYE), leaves(TILTED)
    cost = agreement(holder, "weak", "squared", lambda: 1.0, lambda _: target)(
        online, whole(holder), forward_of(holder.net, online)
    )
    assert all(value is None for value in gradient(cost.total, target).values())
    cost = agreement(holder, "weak", "squared", lambda: 1.0, lambda _: target)(
        online, whole(holder), forward_of(holder.net, online)
    )
    assert all(bool(value.any()) for value in gradient(cost.total, online).values())


@pytest.mark.parametrize("view, factor", [("plain", "plain"), ("weak", "weak"), ("strong", "strong")])
def test_both_nets_see_the_view_that_is_set(view: Any, factor: str) -> None:
    views = Scaled()
    task = job(mt(view=view), federation([MIXTURE], views=views), logistic(2, 2), train=ONE_STEP)
    reply_to(task, -inf, TwoNets(EYE, TILTED))
    assert views.looks == [(factor, 5)] * 2


def test_mixed_batches_at_clients_only() -> None:
    """Three labeled samples three times and six others: five in a batch make an epoch of three steps."""
    data = federation([hide(points(0, 9), 3)], points(7, 9), points(9, 9), views=NOISY)
    for mixed, steps in ((0, 2), (3, 3)):
        task = job(mt(mixed=mixed), data, logistic(), train=replace(LIVELY, epochs=1), rounds=1)
        record = play_all(task).records[0]
        assert record.steps == steps
        assert record.server["steps"] == 2 + 2  # before round 0, and in it


# Eq. 8: labels at the server.


def at_server(method: FedSiam, **options: Any) -> Job:
    data = federation([hide(MIXTURE)], MIXTURE.take(torch.tensor([0, 1])), views=Scaled())
    return job(method, data, logistic(2, 2), train=ONE_STEP, **options)


@pytest.mark.parametrize("agrees", [False, True])
def test_the_server_learns_from_its_labels_and_its_target_follows(agrees: bool) -> None:
    task = at_server(mt(server_consistency=agrees))
    log: dict[str, float] = {}
    state = task.method.merge(task.server(4, log), FedSiamState(TwoNets(EYE, TILTED)), {})
    _, downs = task.method.send(task.server(5, {}), state)
    beta = exp(-5 * 0.25) if agrees else 0.0
    expected = expected_gradient(task.federation.server.labeled, "squared", beta, "labeled")
    assert apart(params.sub(EYE, state.nets.online), expected) < 1e-5
    half = params.scale(params.add(TILTED, state.nets.online), 0.5)  # α = 1 - 1/2 after the first step
    assert apart(state.nets.target, half) < 1e-6
    assert state.server.steps == 1
    assert log["loss_supervised"] > 0
    assert ("loss_unlabeled" in log) == agrees
    assert same(downs[0].target, state.nets.target)
    assert same(downs[0].target | downs[0].online, state.nets.online)


def test_the_servers_steps_add_up_over_rounds() -> None:
    moments = list(rounds(at_server(mt(), rounds=3)))
    assert [moment.state.server.steps for moment in moments] == [2, 3, 4]  # one before the first round
    assert [moment.memories[0].steps for moment in moments] == [1, 2, 3]


def test_without_server_labels_the_server_leaves_both_nets_alone() -> None:
    task = on_images(mt())
    begin = FedSiamState(apart_pair(task.net))
    assert task.method.send(task.server(0, {}), begin)[0] is begin


# Settings of MT and D only.


def test_twins_begin_alike_or_apart() -> None:
    task = on_images(mt())
    server = task.server(0, {})
    alike_pair, apart_start = (mt(twins=twins).start(server).nets for twins in ("same", "apart"))
    assert same(alike_pair.online, alike_pair.target)
    assert same(alike_pair.online, server.initial())  # as every method's
    assert same(apart_start.online, server.initial())
    assert not same(apart_start.online, apart_start.target)
    assert same(apart_start.target, mt(twins="apart").start(server).nets.target)
    assert apart_start.target.keys() == apart_start.online.keys()


@pytest.mark.parametrize("statistics", ["averaged", "own"])
def test_statistics_of_the_target(statistics: Any) -> None:
    """Those of its forward pass; or they follow the online net's like weights, half-way after one step."""
    task = on_images(mt(statistics=statistics), train=replace(ONE_STEP, batch=99, lr=0.1))
    pair, holder = apart_pair(task.net), task.client(0, 0)
    up = visit(task, 0, FedSiamDown(pair.target, pair.online, -inf)).up
    (batch,) = batches(holder)
    seen = params.clone(pair.target)
    task.net.apply(seen, holder.views.plain(torch.cat([batch.x, batch.u])), train=True)
    for name in task.net.buffers:
        expected = seen[name] if statistics == "own" else (pair.target[name] + up.online[name]) / 2
        assert not torch.allclose(seen[name], (pair.target[name] + up.online[name]) / 2, atol=1e-3)
        assert torch.allclose(up.target[name], expected, atol=1e-5)
    for name in task.net.trainable:
        assert torch.allclose(up.target[name], (pair.target[name] + up.online[name]) / 2, atol=1e-6)


@pytest.mark.parametrize("ships", ["online", "target"])
def test_the_net_that_is_shipped(ships: Any) -> None:
    task = on_points(mt(ships=ships))
    pair = apart_pair(task.net)
    assert same(shipped(task, FedSiamState(pair)), getattr(pair, ships))
    reply = reply_to(task, -inf)
    assert same(reply.model, getattr(reply.up, ships))


def test_which_net_is_shipped_does_not_change_training() -> None:
    one, other = (play_all(on_points(mt(ships=ships))).state for ships in ("online", "target"))
    assert same(one.nets.online, other.nets.online)
    assert same(one.nets.target, other.nets.target)


# Clients that have nothing, and uploads that do not arrive.


def test_a_client_without_data_uploads_nothing() -> None:
    data = federation([hide(points(0, 6), 3), Samples(torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64))])
    played = play_all(job(dynamic(phi_g=1), data, logistic(), rounds=3))
    assert [record.traffic[1][1] for record in played.records] == [0, 0, 0]
    assert played.memories.get(1, FedSiamMemory()) == FedSiamMemory()
    assert played.state.rounds == 3


def test_a_lost_upload_leaves_the_client_and_the_server_as_they_were() -> None:
    everything = play_all(on_points(dynamic(phi_g=1), faults=Faults(lost=1.0), min_clients=0))
    start = on_points(dynamic()).method.start(on_points(dynamic()).server(0, {}))
    assert same(everything.state.nets.online, start.nets.online)
    assert (everything.state.window, everything.state.rounds, everything.memories) == ((), 0, {})
    arrived = dict.fromkeys(range(3), 0)
    moments: list[Moment] = list(rounds(on_points(dynamic(phi_g=1), faults=Faults(lost=0.5), min_clients=0, rounds=6)))
    for moment in moments:
        for k in moment.record.traffic.keys() - moment.record.skipped.keys():
            arrived[k] += 1
        steps = {k: n * 2 * ceil((11 + 4 * k - 4) / 5) for k, n in arrived.items() if n}
        assert {k: memory.steps for k, memory in moment.memories.items()} == steps
    assert any(moment.record.skipped for moment in moments)


# Settings.

PLAIN = {
    "distance": "squared",
    "ramp": 10.0,
    "ramp_by": "rounds",
    "over": "labeled",
    "mixed": 0,
    "server_consistency": False,
    "weights": "samples",
    "view": "weak",
}
TWO_NETS = {"alpha": 0.999, "clock": "steps", "twins": "same", "statistics": "averaged", "ships": "online"}
DYNAMIC = {"curve": "linear", "mu": 0.5, "phi_g": None, "phi_end": 40, "window": None}
WRITTEN = {"fedsiam-pi": PLAIN, "fedsiam-mt": PLAIN | TWO_NETS, "fedsiam-d": PLAIN | TWO_NETS | DYNAMIC}
RELEASED_PLAIN = {
    "distance": "mse",  # over the classes too
    "ramp_by": "epochs",
    "over": "batch",
    "mixed": 3,
    "server_consistency": True,
    "weights": "uniform",
    "view": "plain",
}
RELEASED_TWO = {"clock": "epochs", "twins": "apart", "statistics": "own"}
RELEASED = {
    "fedsiam-pi": RELEASED_PLAIN,
    "fedsiam-mt": RELEASED_PLAIN | RELEASED_TWO,
    "fedsiam-d": RELEASED_PLAIN | RELEASED_TWO | {"curve": "rising", "window": 10},
}


FIXED: dict[str, dict[str, Any]] = {
    "fedsiam-pi": {"alpha": 0.0, "tau": 0.0},
    "fedsiam-mt": {"tau": 1.0},
    "fedsiam-d": {"tau": None},
}


@pytest.mark.parametrize("name", WRITTEN)
def test_presets_set_every_field_as_the_paper_or_the_release(name: str) -> None:
    written = WRITTEN["fedsiam-d"] | FIXED[name]
    assert vars(registry.build_method(name, {}, {})) == written
    assert vars(registry.build_method(name, {"preset": "as-written"}, {})) == written
    assert vars(registry.build_method(name, {"preset": "as-released"}, {})) == written | RELEASED[name]
    chosen = registry.build_method(name, {"preset": "as-released", "mixed": 2, "view": "weak"}, {})
    assert vars(chosen) == written | RELEASED[name] | {"mixed": 2, "view": "weak"}


@pytest.mark.parametrize("name", WRITTEN)
def test_a_variant_has_its_own_settings_and_refuses_those_of_the_others(name: str) -> None:
    shown = registry.settings_of(registry.methods()[name])
    assert {item.name: item.default for item in shown} == WRITTEN[name]
    assert registry.own_settings(name) == {f"method.{item}" for item in ("name", "preset", *WRITTEN[name])}
    for item in {*WRITTEN["fedsiam-d"], "tau"} - WRITTEN[name].keys():
        with refused("names.unknown-setting"):
            registry.build_method(name, {item: 1}, {})


@pytest.mark.parametrize("name", WRITTEN)
@pytest.mark.parametrize("at_server", [False, True])
def test_the_released_preset_runs(name: str, at_server: bool) -> None:
    method: Any = registry.build_method(name, {"preset": "as-released"}, {})
    for record in play_all(on_images(method, at_server=at_server, rounds=5)).records:
        assert record.skipped == {}
        assert ("loss_unlabeled" in record.server) == at_server


SETTINGS = [
    *(("client", partition, gamma) for partition in ("iid", "fedsiam-1", "fedsiam-2") for gamma in (0.1, 0.15, 0.2)),
    ("client", "fedsiam-3", 0.1),
    *(("server", partition, gamma) for partition in ("iid", "fedsiam-1") for gamma in (0.01, 0.1)),
]
TINY = ("--rounds", 3, "--cohort", 2, "--workers", 0, "--seed", 0, "-q")


def run_in(folder: Path, monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    """The exit code of `tacit run` with these words."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr("sys.argv", ["tacit", "run", *map(str, words), *map(str, TINY), "--out", "run"])
    with pytest.raises(SystemExit) as ended:
        app.main()
    assert isinstance(ended.value.code, int)
    return ended.value.code


@pytest.mark.parametrize("labels, partition, gamma", SETTINGS)
def test_every_setting_runs_from_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, labels: str, partition: str, gamma: float
) -> None:
    farm.write_images(tmp_path / "images.npz", train=1200)
    scene = ("--data", "images.npz", "--labels", labels, "--partition", partition, "--label-fraction", gamma)
    method = ("--method", "fedsiam-d", "--set", "method.phi_g=1", "--net", "linear", "--clients", 10)
    assert run_in(tmp_path, monkeypatch, *scene, *method) == 0
    history = tacit.resume(tmp_path / "run").history
    assert [record["server"]["online_sent"] for record in history] == [0, 1, 0]  # Π, all, the end


@pytest.mark.data
@pytest.mark.parametrize(
    "split, name",
    [
        ("iid", "fedsiam-pi"),
        ("1", "fedsiam-mt"),
        ("2", "fedsiam-d"),
        ("3", "fedsiam-d"),
        ("server-iid", "fedsiam-mt"),
        ("server-noniid", "fedsiam-d"),
    ],
)
def test_the_papers_splits_run_on_mnist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, split: str, name: str) -> None:
    folder_with("MNIST", monkeypatch)
    few = ("--net", "cnn", "--set", "train.steps=1", "--set", "log.evaluate_every=3")
    assert run_in(tmp_path, monkeypatch, "--split", f"fedsiam-mnist-{split}", "--method", name, *few) == 0
    assert len(tacit.resume(tmp_path / "run").history) == 3
