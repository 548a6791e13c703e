"""SSFL and FedRGD: the server is one more user, groups are averaged apart, and T counts steps."""

import tomllib
from collections.abc import Mapping
from dataclasses import replace
from math import cos, pi
from typing import Any

import pytest
import torch

from tacit.aggregation import WeightsDown, WeightsUp
from tacit.engines.faults import Faults
from tacit.engines.job import Job
from tacit.engines.wire import finite
from tacit.learn import fit, learning_rate
from tacit.method import Training
from tacit.methods.fedavg import FedAvg
from tacit.methods.ssfl import Ssfl, SsflState, diversity, draw
from tacit.objectives import FixMatch, PseudoLabel, Supervised
from tacit.params import Params, mean
from tacit.runs import registry
from tacit.runs.assignments import parse_assignment
from tacit.runs.config import dumps, from_options, make
from tests.methods import by_hand
from tests.refusals import refused
from tests.toys import (
    TWO_EPOCHS,
    Quadratic,
    apart,
    hide,
    images,
    job,
    p,
    play_all,
    point,
    points,
    quadratics,
    rounds,
    same,
    started,
    steps,
    unlabeled,
    visit,
    with_batchnorm,
)


def up(*value: float) -> WeightsUp:
    return WeightsUp(p(*value), 1)


def given(method: Any = None, **options: Any) -> Job:
    """Users who believe nearly everything."""
    return unlabeled(method or Ssfl(FixMatch(threshold=0.4), period=3), **{"clients": 4, "rounds": 4} | options)


def fedrgd(*args: Any, **settings: Any) -> Ssfl:
    """SSFL with two groups."""
    return Ssfl(*args, **{"groups": 2} | settings)


def merged(groups: int, ups: Mapping[int, WeightsUp], *own: float) -> Any:
    """What comes of these uploads and of the server's models."""
    data = quadratics(*[[[0.0, 1.0]]] * 8, server=[[0.0, 1.0]])
    server = job(Ssfl(Quadratic(), groups=groups), data, point(0.0)).server(0, {})
    return Ssfl(Quadratic(), groups=groups).merge(server, SsflState(p(0.0), own=tuple(p(w) for w in own)), ups)


# Eq. 4, 5 and 7.


def test_the_server_is_one_of_those_averaged_by_hand() -> None:
    state = merged(1, {0: up(1.0), 2: up(2.0), 5: up(6.0)}, 5.0)
    assert state.w["p"].item() == pytest.approx((5 + 1 + 2 + 6) / (3 + 1), abs=1e-12)  # C_k = 3
    assert state.own == ()


def test_two_groups_by_hand() -> None:
    ups = {k: up(float(2**k)) for k in range(5)}
    state = merged(2, ups, 100.0)
    groups = [[k for k, place in state.member.items() if place == group] for group in (0, 1)]
    assert sorted(len(group) for group in groups) == [2, 3]
    means = [(100 + sum(2**k for k in group)) / (len(group) + 1) for group in groups]
    assert [value["p"].item() for value in state.means] == pytest.approx(means, abs=1e-12)
    assert state.w["p"].item() == pytest.approx(sum(means) / 2, abs=1e-12)  # not weighted by size


def test_each_group_has_its_own_server_model_where_there_are_several() -> None:
    state = merged(2, {0: up(0.0), 1: up(0.0)}, 10.0, 20.0)
    assert [value["p"].item() for value in state.means] == pytest.approx([10 / 2, 20 / 2], abs=1e-12)


def test_groups_of_equal_size_average_to_the_mean_with_the_server_once_for_each_group() -> None:
    ups = {k: up(float(k * k)) for k in range(6)}
    for groups in (1, 2, 3, 6):
        together = (groups * 7.0 + sum(k * k for k in range(6))) / (groups + 6)
        assert merged(groups, ups, 7.0).w["p"].item() == pytest.approx(together, abs=1e-12)


def test_one_group_is_uniform_fedavg_with_the_server_among_the_clients_to_the_last_bit() -> None:
    rows = [[[0.3, 1.0]], [[1.0, 3.0]], [[-2.0, 0.7]]]
    train = steps(5)
    alone = job(FedAvg(Quadratic(), "uniform"), quadratics(*rows), point(5.0), train=train)
    shared = quadratics(*rows[1:], server=rows[0])
    ours = job(Ssfl(Quadratic(), period=5), shared, point(5.0), train=train)
    assert same(play_all(ours).state.w, play_all(alone).state.w)
    two = job(fedrgd(Quadratic(), period=5), shared, point(5.0), train=train)
    assert apart(play_all(two).state.w, play_all(alone).state.w) > 1e-3


def test_one_group_of_some_users_is_their_mean_with_the_server_to_the_last_bit() -> None:
    """Eq. 5, over rounds with C_k = 2 of K = 5: every user continues from w_avg, also one that was away."""
    objective = FixMatch(threshold=0.4)
    task = given(Ssfl(objective, period=3), clients=5, cohort=2)
    w = started(task).w
    for r, moment in enumerate(rounds(task)):
        holders = [task.server(r, {}), *(task.client(r, k) for k in task.sample(r))]
        trained = [fit(replace(each, train=replace(each.train, steps=3)), w, objective).params for each in holders]
        w = mean(trained)
        assert same(moment.state.w, w)
    assert len({task.sample(r) for r in range(4)}) > 1


def test_fedrgd_is_ssfl_with_two_groups() -> None:
    built = registry.build_method("fedrgd", {"period": 3}, {"threshold": 0.4})
    assert built == Ssfl(FixMatch(threshold=0.4), period=3, groups=2)
    assert not same(play_all(given(built)).state.w, play_all(given()).state.w)


# Who is in which group.


@pytest.mark.parametrize("users, groups", [(10, 2), (7, 3), (47, 5), (5, 5), (1, 1)])
def test_every_user_is_in_one_group_and_sizes_differ_by_at_most_one(users: int, groups: int) -> None:
    server, some = given().server(0, {}), list(range(100, 100 + users))
    drawn = draw(server, some, groups)
    assert len(drawn) == groups
    assert sorted(k for group in drawn for k in group) == some
    assert max(map(len, drawn)) - min(map(len, drawn)) <= 1


def test_groups_are_new_in_every_round_and_depend_on_the_seed() -> None:
    task = given(clients=10, rounds=8)
    drawn = [str(draw(task.server(k, {}), range(10), 2)) for k in range(8)]
    assert len(set(drawn)) > 5
    assert drawn == [str(draw(task.server(k, {}), range(10), 2)) for k in range(8)]
    other = given(clients=10, rounds=8, seed=1)
    assert drawn != [str(draw(other.server(k, {}), range(10), 2)) for k in range(8)]


def test_any_two_users_meet_and_part() -> None:
    task = given(clients=4, rounds=200)
    together = 0
    for k in range(200):
        together += any({0, 3} <= set(group) for group in draw(task.server(k, {}), range(4), 2))
    assert 40 < together < 95  # a third of 200, ± 4 standard deviations


def test_fewer_users_than_groups_are_a_group_each() -> None:
    state = merged(5, {1: up(2.0), 4: up(6.0)}, 10.0)
    assert sorted(value["p"].item() for value in state.means) == pytest.approx([(10 + 2) / 2, (10 + 6) / 2], abs=1e-12)
    assert state.w["p"].item() == pytest.approx(7.0, abs=1e-12)


# What users start from.


def paced(holder: Any) -> Any:
    """With three steps to a period."""
    return replace(holder, train=replace(holder.train, steps=3))


def test_users_get_the_mean_of_their_group_and_the_server_continues_from_w_avg() -> None:
    task: Any = given(fedrgd(FixMatch(threshold=0.4), period=3), clients=6, rounds=6)
    for moment in rounds(task):
        state, server = moment.state, task.server(moment.record.round + 1, {})
        after, downs = task.method.send(server, state)
        assert set(state.member.values()) == {0, 1}
        assert not same(*state.means)
        assert task.method.model(state) is state.w  # what is evaluated is no group's mean
        for k in range(6):
            assert same(downs[k].w, state.means[state.member[k]])
        assert same(after.own[0], fit(paced(server), state.w, task.method.objective).params)


@pytest.mark.parametrize("newcomers", ["global", "group"])
def test_newcomers_get_w_avg_or_some_groups_mean(newcomers: Any) -> None:
    method = fedrgd(FixMatch(threshold=0.4), period=3, newcomers=newcomers)
    task = given(method, clients=12, cohort=4)
    state = next(iter(rounds(task))).state
    everybody = replace(task.server(1, {}), cohort=tuple(range(12)))
    _, downs = method.send(everybody, state)
    new = [downs[k].w for k in range(12) if k not in state.member]
    assert len(new) == 8
    if newcomers == "global":
        assert all(same(w, state.w) for w in new)
    else:
        which = [[same(w, one) for one in state.means].index(True) for w in new]
        assert set(which) == {0, 1}


def test_newcomers_are_given_another_group_in_another_round() -> None:
    method = fedrgd(FixMatch(threshold=0.4), period=3, newcomers="group")
    task = given(method, clients=12, cohort=4)
    state = replace(next(iter(rounds(task))).state, member={})
    given_to = []
    for r in range(1, 4):
        _, downs = method.send(replace(task.server(r, {}), cohort=tuple(range(12))), state)
        given_to.append(tuple(same(downs[k].w, state.means[0]) for k in range(12)))
    assert len(set(given_to)) == 3


def test_in_the_first_round_all_start_alike() -> None:
    task = given(fedrgd(newcomers="group"))
    state = started(task)
    _, downs = task.method.send(task.server(0, {}), state)
    assert all(same(down.w, state.w) for down in downs.values())


# T: steps, not epochs.


def test_server_and_users_make_t_steps_whatever_train_steps_is() -> None:
    for t in (1, 5):
        record = play_all(given(Ssfl(FixMatch(threshold=0.4), period=t), rounds=1)).records[0]
        assert record.server["steps"] == t
        assert record.metrics["steps"] == {"mean": t, "min": t, "max": t}


def test_period_0_leaves_it_to_train_and_server() -> None:
    server = replace(TWO_EPOCHS, epochs=3, batch=4)
    record = play_all(given(Ssfl(period=0), rounds=1, server_train=server)).records[0]
    assert record.metrics["steps"]["mean"] == 2 * 4  # 2 epochs of ⌈20/6⌉ batches
    assert record.server["steps"] == 3 * 3  # 3 epochs of 12/4 batches


def test_a_period_of_all_batches_is_one_epoch_to_the_last_bit() -> None:
    objective, once = FixMatch(threshold=0.4), replace(TWO_EPOCHS, epochs=1)
    server = replace(once, batch=3)  # 12/3 = ⌈20/6⌉ = 4 batches
    steps = play_all(given(Ssfl(objective, period=4), train=once, server_train=server))
    epoch = play_all(given(Ssfl(objective, period=0), train=once, server_train=server))
    assert same(steps.state.w, epoch.state.w)
    assert not same(steps.state.w, play_all(given(Ssfl(objective, period=3), train=once, server_train=server)).state.w)


@pytest.mark.parametrize("period", [0, 7])
def test_a_period_outlives_the_command_line_and_a_saved_config(period: int) -> None:
    name, value = parse_assignment(f"method.period={period}")
    config = from_options({"method": "ssfl", "labels": "server", "per_class": 5, name: value})
    again = make(tomllib.loads(dumps(config)))
    assert again.build_method().period == period  # type: ignore[attr-defined]


# Losses.


def test_self_training_is_ssfl_with_pseudo_labels() -> None:
    built = registry.build_method("ssfl+pseudo-label", {"period": 3}, {"threshold": 0.4})
    assert built == Ssfl(PseudoLabel(threshold=0.4), period=3)
    w = play_all(given(built)).state.w
    assert not same(w, play_all(given(Ssfl(Supervised(), period=3))).state.w)


def test_the_default_is_the_papers() -> None:
    for name, groups in (("ssfl", 1), ("fedrgd", 2)):
        built: Any = registry.build_method(name, {}, {})
        assert built.objective == FixMatch(threshold=0.95, weight=1.0, over="batch", labeler="local")
        assert (built.period, built.groups, built.servers, built.newcomers) == (16, groups, "one", "global")
        assert built == registry.build_method(name, {"preset": "as-written"}, {})


def test_labels_that_users_hold_are_used_as_usual() -> None:
    """What a user with both makes of them is what the objective alone makes of them."""
    objective = FixMatch(threshold=0.4)
    task = given(Ssfl(objective, period=3))
    shown, w = replace(task.client(0, 0), data=hide(points(0, 20), shown=8)), started(task).w
    reply: Any = task.method.client_update(shown, None, WeightsDown(w))
    paced = replace(shown, train=replace(shown.train, steps=3))
    assert same(reply.up.w, fit(paced, w, objective).params)
    assert reply.metrics["loss_supervised"] > 0
    assert not same(reply.up.w, visit(task, 0, WeightsDown(w)).up.w)


# Eq. 8.


def test_weight_diversity_by_hand() -> None:
    alike = [p(1.0, 2.0)] * 5
    assert diversity(alike) == pytest.approx(1 / 5, abs=1e-12)
    assert diversity([p(2.0, 0.0, 0.0), p(0.0, 3.0, 0.0), p(0.0, 0.0, 1.0)]) == pytest.approx(1.0, abs=1e-12)
    # (1, 1) and (1, -2): squares 2 + 5, sum (2, -1) with square 5
    assert diversity([p(1.0, 1.0), p(1.0, -2.0)]) == pytest.approx(7 / 5, abs=1e-12)
    assert diversity([p(0.0), p(0.0)]) == 0.0  # nobody moved
    assert diversity([p(1e-9), p(1e-9)]) == pytest.approx(1 / 2)  # moves are small where rates are


@pytest.mark.parametrize("newcomers", ["global", "group"])
def test_the_diversity_logged_is_that_of_the_moves_from_what_each_user_got(newcomers: Any) -> None:
    method = fedrgd(FixMatch(threshold=0.4), period=3, newcomers=newcomers)
    task = given(method, clients=8, cohort=4)
    state = list(rounds(task))[1].state
    third = by_hand.turn(task, 2, state, cohort=range(8))
    moves = [
        torch.cat([(third.replies[k].up.w[n] - third.downs[k].w[n]).reshape(-1) for n in task.net.trainable])
        for k in range(8)
    ]
    expected = sum(float(move @ move) for move in moves) / float(sum(moves) @ sum(moves))  # type: ignore[operator]
    assert third.log["weight_diversity"] == pytest.approx(expected, rel=1e-5)
    assert third.log["weight_diversity_last_layer"] == pytest.approx(expected, rel=1e-5)  # a linear model has no other


def test_the_last_layer_is_that_of_the_classifier() -> None:
    task = with_batchnorm(Ssfl(FixMatch(threshold=0.0), period=2))
    first = by_hand.turn(task)
    last_layer = ("fc3.weight", "fc3.bias")
    moves = [{n: first.replies[k].up.w[n] - first.downs[k].w[n] for n in last_layer} for k in range(2)]
    assert first.log["weight_diversity_last_layer"] == pytest.approx(diversity(moves), rel=1e-6)
    assert first.log["weight_diversity"] != pytest.approx(diversity(moves), rel=1e-3)


def test_a_network_whose_parameters_have_no_layer_has_a_diversity_too() -> None:
    data = quadratics([[1.0, 1.0]], [[1.0, 1.0]], server=[[0.0, 1.0]])
    record = play_all(job(Ssfl(Quadratic()), data, point(5.0), rounds=1)).records[0]
    assert record.server["weight_diversity_last_layer"] == pytest.approx(1 / 2, abs=1e-12)


def test_one_upload_has_no_diversity() -> None:
    record = play_all(given(rounds=1, cohort=1)).records[0]
    assert "weight_diversity" not in record.server


# As released.


def released(**options: Any) -> Any:
    return registry.build_method("fedrgd", {"preset": "as-released", "period": 3, **options}, {"threshold": 0.4})


def test_as_released_every_group_has_a_server_model_with_separate_streams() -> None:
    method = released()
    assert (method.servers, method.newcomers, method.groups) == ("each", "group", 2)
    task = given(method)
    state, _ = method.send(task.server(0, {}), method.start(task.server(0, {})))
    assert len(state.own) == 2
    assert not same(*state.own)
    one = fedrgd(FixMatch(threshold=0.4), period=3)
    alone, _ = one.send(task.server(0, {}), one.start(task.server(0, {})))
    assert len(alone.own) == 1


def test_each_server_model_keeps_its_own_momentum() -> None:
    method, carried = released(), replace(TWO_EPOCHS, optimizer="keep")
    state = list(rounds(given(method, train=carried)))[-1].state
    assert [memory.velocity is not None for memory in state.carried] == [True, True]
    assert not same(state.carried[0].velocity, state.carried[1].velocity)
    server = given(method, train=carried).server(3, {})
    first, second = state.carried
    states = (replace(state, carried=(first, each)) for each in (second, None))
    sent, without = (method.send(server, each)[0] for each in states)
    assert same(sent.own[0], without.own[0])
    assert not same(sent.own[1], without.own[1])
    forgets = list(rounds(given(method)))[-1].state
    assert forgets.carried == (None, None)
    assert not same(forgets.w, state.w)


def test_each_server_model_continues_from_w_avg() -> None:
    method = released()
    task = given(method)
    state = list(rounds(task))[1].state
    server = task.server(2, {})
    sent, _ = method.send(server, state)
    for group in (0, 1):
        own = replace(paced(server), streams=server.streams.within(f"group {group}"))
        assert same(sent.own[group], fit(own, state.w, method.objective).params)
        assert not same(state.w, state.means[group])


def test_surplus_server_models_of_a_round_are_not_averaged() -> None:
    """One user, two groups: its group has the first model, the second waits for the next round."""
    state = merged(2, {3: up(4.0)}, 10.0, 200.0)
    assert [value["p"].item() for value in state.means] == [(10 + 4) / 2]
    assert state.w["p"].item() == 7.0


def test_server_models_that_were_not_averaged_keep_their_momentum() -> None:
    method = released()
    task = given(method, train=replace(TWO_EPOCHS, optimizer="keep"))
    server = task.server(0, {})
    state, downs = method.send(server, method.start(server))
    after = method.merge(server, state, {0: visit(task, 0, downs[0]).up})
    assert len(after.means) == 1
    assert after.carried == state.carried
    assert len(after.carried) == 2


def test_each_server_models_steps_count_and_the_last_ones_losses_are_logged() -> None:
    method, log = released(), dict[str, float]()
    server = given(method).server(0, log)
    state = method.start(server)
    method.send(server, state)
    assert log["steps"] == 2 * 3
    streams = server.streams.within("group 1")
    last = fit(replace(server, train=replace(server.train, steps=3), streams=streams), state.w, method.objective)
    assert log["loss_supervised"] == last.metrics["loss_supervised"]


def test_as_released_with_buffers_keep_w_avg_has_the_mean_of_the_server_models() -> None:
    keep = Training(batch=4, lr=0.05, buffers="keep", optimizer="keep")
    method = registry.build_method("fedrgd", {"preset": "as-released", "period": 2, "groups": 2}, {"threshold": 0.0})
    task = with_batchnorm(method, train=keep)
    first = by_hand.turn(task)
    own = mean(first.sent.own)
    for name in task.net.buffers:
        assert not torch.equal(first.sent.own[0][name], first.sent.own[1][name])
        assert torch.equal(first.state.w[name], own[name])
    played = play_all(replace(task, rounds=3))
    assert all(0 <= record.accuracy <= 1 for record in played.records if record.accuracy is not None)
    assert finite(played.state.w)


def test_users_keep_their_momentum_too() -> None:
    moments = list(rounds(given(released(), train=replace(TWO_EPOCHS, optimizer="keep"))))
    assert all(moments[-1].memories[k].velocity is not None for k in range(4))
    task = given(train=replace(TWO_EPOCHS, optimizer="keep"))
    down = WeightsDown(started(task).w)
    memory = visit(task, 0, down).memory
    again: Any = visit(task, 0, down, memory, round=1)
    assert same(again.up.w, fit(paced(task.client(1, 0)), down.w, FixMatch(threshold=0.4), carried=memory).params)
    assert not same(again.up.w, visit(task, 0, down, None, round=1).up.w)


def average_of(turn: by_hand.Turn) -> Params:
    """Of the server's model and those of two users."""
    return mean([turn.sent.own[0], *(turn.replies[k].up.w for k in range(2))])


def test_batch_statistics_stay_with_server_and_users() -> None:
    keep = Training(batch=4, lr=0.05, buffers="keep")
    task = with_batchnorm(Ssfl(FixMatch(threshold=0.0), period=2), train=keep)
    first = by_hand.turn(task)
    own, averaged = first.sent.own[0], average_of(first)
    for name in task.net.buffers:
        assert torch.equal(first.state.w[name], own[name])
    for name in task.net.trainable:
        assert torch.equal(first.state.w[name], averaged[name])
    last = list(rounds(task))[-1]
    for name in task.net.buffers:
        assert not torch.equal(last.memories[0].buffers[name], last.state.w[name])


def test_averaged_statistics_are_averaged() -> None:
    task = with_batchnorm(Ssfl(FixMatch(threshold=0.0), period=2))
    first = by_hand.turn(task)
    assert same(first.state.w, average_of(first))


def test_recomputed_statistics_are_those_of_w_avg_and_of_each_groups_mean() -> None:
    recompute = Training(batch=4, lr=0.2, buffers="recompute")
    task = with_batchnorm(fedrgd(FixMatch(threshold=0.0), period=2), train=recompute)
    state, plain = play_all(task).state, task.server(0, {}).views.plain(images(50, 12).x)
    for w in (state.w, *state.means):
        assert same(w, task.net.recompute_batchnorm(w, [plain]))


# What may go wrong on the way.


@pytest.mark.parametrize("method", [Ssfl(period=3), fedrgd(period=3), released()], ids=["ssfl", "fedrgd", "released"])
def test_in_a_round_without_uploads_w_avg_is_the_servers_model(method: Any) -> None:
    task = given(method)
    server = task.server(0, {})
    state, _ = method.send(server, method.start(server))
    after = method.merge(server, state, {})
    assert same(after.w, state.own[0])
    assert not same(after.w, state.w)
    _, downs = method.send(task.server(1, {}), after)
    assert all(same(down.w, after.w) for down in downs.values())


def test_lost_uploads_are_left_out_of_groups_and_mean() -> None:
    task = given(fedrgd(FixMatch(threshold=0.4), period=3), rounds=6, faults=Faults(lost=0.4), min_clients=0)
    moments = list(rounds(task))
    assert any(moment.record.skipped for moment in moments)
    for moment in moments:
        assert set(moment.state.member) == set(range(4)) - set(moment.record.skipped)
        assert len(moment.state.means) == max(1, min(2, len(moment.state.member)))


def test_a_user_without_samples_uploads_nothing() -> None:
    task = given()
    empty = replace(task.client(0, 0), data=points(0, 0))
    w = started(task).w
    assert task.method.client_update(empty, None, WeightsDown(w)).up is None


# Eq. 9, by hand: γ·max(cos(π·c·(t - eM/B)/(EM/B - eM/B)), ε). With T iterations to a round, t = round·T.

M, B, T, EPSILON = 65_536, 64, 16, 1e-4


def eq9(c: float, t: int, epochs: int, warm: int) -> float:
    return max(cos(pi * c * (t - warm * M / B) / (epochs * M / B - warm * M / B)), EPSILON)


@pytest.mark.parametrize(
    "schedule, c, epochs, warm, gamma",
    [
        ("cosine:2.3:1e-4", 2.3, 300, 5, 0.146),
        ("cosine:2.3:1e-4", 2.3, 40, 5, 0.146),
        ("cosine:7/16:1e-4", 7 / 16, 100, 0, 0.03),
    ],
    ids=["cifar10", "svhn", "emnist"],
)
def test_the_schedule_of_the_paper(schedule: str, c: float, epochs: int, warm: int, gamma: float) -> None:
    per_epoch = M // B // T  # rounds
    train = Training(lr=gamma, schedule=schedule, warmup=warm * per_epoch)
    total = epochs * per_epoch
    for round in range(train.warmup, total, total // 37):
        assert learning_rate(train, round, total) == pytest.approx(gamma * eq9(c, round * T, epochs, warm), rel=1e-9)
    warming = [learning_rate(train, round, total) for round in range(train.warmup)]
    assert warming == pytest.approx([gamma * (round + 1) / train.warmup for round in range(train.warmup)])


def test_beyond_half_a_wave_it_rests_at_its_least_and_rises_again() -> None:
    train = Training(lr=1.0, schedule="cosine:2.3:1e-4")
    rates = [learning_rate(train, round, 230) for round in range(230)]  # c·p grows by 0.01 a round
    assert rates[50:150] == [EPSILON] * 100  # ½ < c·p < 1½
    assert all(rate > EPSILON for rate in (*rates[:50], *rates[151:]))
    assert rates[200] == pytest.approx(1.0)
    assert rates[229] == pytest.approx(cos(2.29 * pi))


@pytest.mark.parametrize(
    "schedule", ["cosine:2.3:x", "cosine:2.3:-1", "cosine:2.3:2", "cosine:2.3:nan", "cosine:1:0:0"]
)
def test_a_cosine_schedule_refuses_a_minimum_outside_0_to_1(schedule: str) -> None:
    with refused("learn.unknown-schedule"):
        learning_rate(Training(schedule=schedule), 1, 10)


def test_the_release_is_another_schedule_than_its_paper() -> None:
    """Its c is 7/16·(1024² - 5120)/(204,800 - 5120), over 1,024 epochs for CIFAR-10 and over 40 for SVHN."""
    c = 7 / 16 * (1024**2 - 5120) / (204_800 - 5120)
    assert c == pytest.approx(7133 / 3120)
    per_epoch = M // B // T
    cifar = Training(schedule="cosine:413/624:1e-5", warmup=5 * per_epoch, lr=0.165)
    for epoch in (5, 50, 200, 227):
        expected = 0.165 * cos(pi * c * (epoch - 5) / (1024 - 5))
        assert learning_rate(cifar, epoch * per_epoch, 300 * per_epoch) == pytest.approx(expected, rel=1e-6)
    assert learning_rate(cifar, 229 * per_epoch, 300 * per_epoch) == pytest.approx(0.165e-5)
    svhn = Training(schedule="cosine:7133/3120:1e-5", warmup=5 * per_epoch, lr=0.165)
    rates = [learning_rate(svhn, round, 40 * per_epoch) / 0.165 for round in range(40 * per_epoch)]
    resting = [round / per_epoch for round, rate in enumerate(rates) if rate == pytest.approx(1e-5)]
    assert (min(resting), max(resting)) == pytest.approx((12.7, 28.0), abs=0.1)  # it restarts at epoch 28 …
    assert rates[-1] == pytest.approx(0.62, abs=0.01)  # … and ends at 62 % of its base
