"""FedAvg, Algorithm 1: ClientUpdate is plain SGD, and the server takes the mean weighted by samples."""

from typing import Any

import pytest
import torch
from torch.nn import functional as F

from tacit.aggregation import Turn, WeightsDown, WeightsState, WeightsUp, setup_context
from tacit.learn import batches, fit
from tacit.method import Training
from tacit.methods.fedavg import FedAvg
from tacit.objectives import FixMatch, Supervised
from tacit.params import Params, mean
from tests.toys import (
    Quadratic,
    alone,
    apart,
    federation,
    hide,
    job,
    linear,
    play_all,
    point,
    points,
    quadratics,
    same,
    started,
    visit,
)

SUPERVISED = Supervised(view="plain")
TURNS: tuple[Turn, ...] = ("before", "after")


def up(value: float, n: int) -> WeightsUp:
    return WeightsUp({"p": torch.tensor([value], dtype=torch.float64)}, n)


@pytest.mark.parametrize(
    "weights, expected",
    [
        ("samples", (1 * 2.0 + 3 * 6.0) / 4),  # Σ n_k/n · w_k
        ("uniform", (2.0 + 6.0) / 2),
    ],
)
def test_the_mean_by_hand(weights: Any, expected: float) -> None:
    given = job(FedAvg(weights=weights), quadratics([[0.0, 1.0]], [[0.0, 1.0]]), point(5.0))
    server = given.server(0, {})
    state = given.method.start(server)
    merged = given.method.merge(server, state, {0: up(2.0, 1), 1: up(6.0, 3)})
    assert merged.w["p"].item() == expected


def test_weights_are_the_samples_trained_on() -> None:
    data = federation([hide(points(0, 10), shown=4), points(1, 7)])
    for objective, counts in ((SUPERVISED, [4, 7]), (FixMatch(), [10, 7])):
        given = job(FedAvg(objective), data, linear())
        down = WeightsDown(started(given).w)
        assert [visit(given, k, down).up.n for k in (0, 1)] == counts


def test_a_round_by_hand() -> None:
    # From w = 1, one step of lr 0.1: client 0 (a = 1, target 0) to 0.9; client 1 (a = 2, target 3, two samples) to 1.4
    data = quadratics([[0.0, 1.0]], [[3.0, 2.0], [3.0, 2.0]])
    train = Training(steps=1, lr=0.1, momentum=0.0)
    for method, expected in (
        (FedAvg(Quadratic()), (0.9 + 2 * 1.4) / 3),
        (FedAvg(Quadratic(), "uniform"), (0.9 + 1.4) / 2),
    ):
        played = play_all(job(method, data, point(1.0), rounds=1, train=train))
        assert played.state.w["p"].item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("keep", ["reset", "keep"])
def test_one_client_is_plain_sgd_on_its_data(keep: Any) -> None:
    net = linear()
    train = Training(epochs=2, batch=6, lr=0.1, momentum=0.9, optimizer=keep)
    given = alone(FedAvg(SUPERVISED), points(0, 20), net, train=train, rounds=3)
    played = play_all(given)
    module = net.module(started(given).w).train()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    for round in range(3):
        if keep == "reset":
            optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
        for batch in batches(given.client(round, 0)):
            optimizer.zero_grad()
            F.cross_entropy(module(batch.x), batch.y).backward()
            optimizer.step()
    assert same(played.state.w, dict(module.state_dict()))


def test_merging_is_the_mean_of_what_the_clients_trained() -> None:
    net = linear()
    given = job(FedAvg(SUPERVISED), federation([points(0, 20), points(1, 10), points(2, 5)]), net, rounds=1)
    server = given.server(0, {})
    begin = given.method.start(server).w
    local = [fit(given.client(0, k), begin, SUPERVISED).params for k in range(3)]
    assert same(play_all(given).state.w, mean(local, [20, 10, 5]))


def test_clients_without_labels_upload_nothing() -> None:
    net = linear()
    single = alone(FedAvg(SUPERVISED), points(0, 20), net, rounds=2)
    with_unlabeled = job(FedAvg(SUPERVISED), federation([points(0, 20), hide(points(1, 500))]), net, rounds=2)
    played = play_all(with_unlabeled)
    assert same(played.state.w, play_all(single).state.w)
    record = played.records[0]
    assert record.clients == 2  # it was there, and its bytes count
    assert record.traffic[1][0] > 0
    assert record.traffic[1][1] == 0
    assert visit(with_unlabeled, 1, WeightsDown(played.state.w)).up is None


def test_the_server_trains_first_where_it_has_labels() -> None:
    net = linear()
    given = job(FedAvg(SUPERVISED), federation([points(0, 20)], server=points(9, 12)), net)
    server = given.server(0, {})
    begin = given.method.start(server)
    state, downs = given.method.send(server, begin)
    expected = fit(server, begin.w, SUPERVISED).params
    assert same(downs[0].w, expected)
    assert same(state.w, expected)
    assert apart(expected, begin.w) > 1e-3


@pytest.mark.parametrize(
    "server, sent, evaluated",
    [
        ("before", 4.5, 4.35),  # 5 → 4.5 at the server, → 4.35 at the client
        ("after", 4.5, 3.915),  # the same, then once more at the server: 4.35 - 0.1·4.35
    ],
)
def test_when_the_server_trains_by_hand(server: Any, sent: float, evaluated: float) -> None:
    data = quadratics([[3.0, 1.0]], server=[[0.0, 1.0]])  # from w = 5, lr 0.1: server to 0, client to 3
    given = job(FedAvg(Quadratic(), server=server), data, point(5.0), rounds=1)
    context = given.server(0, {})
    begin = given.method.start(context)
    state, downs = given.method.send(context, begin)
    assert begin.w["p"].item() == (5.0 if server == "before" else 4.5)
    assert downs[0].w["p"].item() == state.w["p"].item() == sent
    assert play_all(given).state.w["p"].item() == pytest.approx(evaluated, abs=1e-12)


def test_a_server_that_trains_after_ends_with_what_it_would_send_next() -> None:
    """The same work in the same order, cut into rounds at another place."""
    train = Training(batch=12, lr=0.1)  # all of its samples in one batch, so that shuffling them does not matter
    data = federation([points(0, 20), points(1, 20)], server=points(9, 12))
    given = job(FedAvg(SUPERVISED), data, linear(), train=train)
    before, after = (play_all(job(FedAvg(SUPERVISED, server=turn), data, linear(), train=train)) for turn in TURNS)
    following = given.method.send(given.server(3, {}), before.state)[0]
    assert apart(after.state.w, following.w) < 1e-6
    assert apart(after.state.w, before.state.w) > 1e-3
    assert [record.server["steps"] for record in after.records] == [2, 1, 1]  # the first also before round 0


def test_a_server_that_trains_after_has_another_order_in_the_first_round() -> None:
    given = job(FedAvg(SUPERVISED, server="after"), federation([points(0, 20)], server=points(9, 12)), linear())
    server = given.server(0, {})
    drawn = [torch.cat([batch.y for batch in batches(place)]) for place in (setup_context(server), server)]
    assert not torch.equal(*drawn)
    plain = fit(server, server.initial(), SUPERVISED).params
    assert not same(given.method.start(server).w, plain)


def test_without_labels_at_the_server_its_turn_does_not_matter() -> None:
    data = federation([points(0, 20), points(1, 10)])
    before, after = (play_all(job(FedAvg(SUPERVISED, server=turn), data, linear())) for turn in TURNS)
    assert same(before.state.w, after.state.w)


def test_without_labels_the_server_sends_what_it_has() -> None:
    given = job(FedAvg(), federation([points(0, 20), points(1, 20)]), linear(), cohort=1)
    server = given.server(0, {})
    begin = given.method.start(server)
    state, downs = given.method.send(server, begin)
    assert tuple(downs) == server.cohort
    assert all(same(down.w, begin.w) for down in downs.values())
    assert same(state.w, begin.w)


def test_the_server_carries_its_momentum_if_set() -> None:
    net = linear()
    data = federation([hide(points(0, 20))], server=points(9, 12))
    method = FedAvg(FixMatch(threshold=1.0))  # clients change nothing, so the server's training is all there is
    train = Training(batch=12, lr=0.1, optimizer="keep")
    given = job(method, data, net, server_train=train, rounds=3)
    module = net.module(method.start(given.server(0, {})).w).train()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    for round in range(3):
        for batch in batches(given.server(round, {})):
            optimizer.zero_grad()
            F.cross_entropy(module(batch.x), batch.y).backward()
            optimizer.step()
    assert same(play_all(given).state.w, dict(module.state_dict()))
    reset = play_all(job(method, data, net, server_train=Training(batch=12, lr=0.1), rounds=3))
    assert not same(reset.state.w, dict(module.state_dict()))


def test_an_empty_merge_keeps_the_model() -> None:
    given = alone(FedAvg(), points(0, 20))
    server = given.server(0, {})
    state = given.method.start(server)
    assert same(given.method.merge(server, state, {}).w, state.w)


def test_the_model_is_the_average() -> None:
    w: Params = {"p": torch.ones(1)}
    assert FedAvg().model(WeightsState(w)) is w
