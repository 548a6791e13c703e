"""Anchor: labels of the received model, kept samples only, the server last, and the average over rounds."""

from dataclasses import replace
from itertools import pairwise
from math import inf
from typing import Any

import pytest
import torch
from torch.nn import functional

from tacit.aggregation import WeightsDown
from tacit.engines.job import Job
from tacit.federation import Samples
from tacit.learn import Batch, fit, loss_of_batch, predict
from tacit.learn.audit import audited_thresholds
from tacit.losses import confident
from tacit.method import Training
from tacit.methods.anchor import Anchor, AnchorDown, AnchorState, AnchorUp, OnKept, OnLabels
from tacit.methods.fedavg import FedAvg
from tacit.methods.semifl import SemiFl
from tacit.methods.server_only import ServerOnly
from tacit.objectives import FixMatch, Supervised
from tacit.params import lerp, mean
from tests.methods import by_hand
from tests.objectives.bench import Scaled
from tests.toys import (
    TWO_EPOCHS,
    Identity,
    Noisy,
    apart,
    federation,
    hide,
    job,
    labeled,
    linear,
    number,
    p,
    play_all,
    point,
    points,
    quadratics,
    same,
    started,
    unlabeled,
    visit,
)

SURE = 0.5  # a threshold that a briefly trained linear model reaches for some samples and not for all
SHORT = Anchor(threshold=SURE, bootstrap=3)


def given(method: Anchor = SHORT, **options: Any) -> Job:
    return unlabeled(method, **options)


def sent(task: Job, tau: float = SURE) -> AnchorDown:
    return AnchorDown(started(task).w, torch.tensor(tau))


# Step 2, a client without labels.


def test_labels_are_those_of_the_received_model_on_weak_views() -> None:
    task = given(views=Scaled())  # the weak view is twice the sample
    down = sent(task)
    labels, sure = confident(functional.softmax(linear().apply(down.w, 2 * points(1, 20).x), dim=1), SURE)
    assert 0 < sure.sum() < 20
    reply = visit(task, 1, down)
    assert torch.equal(reply.pseudo_labels.label, labels)
    assert torch.equal(reply.pseudo_labels.accepted, sure)
    assert reply.up.n == int(sure.sum())
    assert reply.up.labeled == 0
    assert same(reply.model, reply.up.w)


def test_a_threshold_for_every_class_counts_for_its_class_alone() -> None:
    task = given()
    w = started(task).w
    labels = predict(linear(), w, points(0, 20).x, Identity()).argmax(dim=1)
    reply = visit(task, 0, AnchorDown(w, torch.tensor([inf, 0.0, inf])))
    assert torch.equal(reply.pseudo_labels.accepted, labels == 1)


def test_the_loss_of_kept_samples_by_hand() -> None:
    task = given(views=Scaled())  # the strong view is half the sample
    client, w, x = task.client(0, 0), started(task).w, points(0, 4).x
    batch = Batch(x[:0], torch.zeros(0), x[[3, 1]], torch.tensor([3, 1]))
    labels = torch.tensor([0, 1, 2, 2])
    cost = loss_of_batch(OnKept(labels).local_loss(client, w, {}), client.net, w, batch)
    q = by_hand.answers(w, 0.5 * x)
    assert float(cost.total) == pytest.approx(-float(q[3, 2].log() + q[1, 1].log()) / 2, abs=1e-6)


def test_an_epoch_is_one_over_the_kept_samples() -> None:
    reply = visit(task := given(), 0, sent(task))
    assert reply.metrics["steps"] == 2 * -(-reply.up.n // 6)


def test_labels_stay_for_all_epochs_of_a_visit() -> None:
    task = given(train=replace(TWO_EPOCHS, epochs=6))
    down, data = sent(task), points(0, 20)
    _, sure = confident(predict(linear(), down.w, data.x, Identity()), SURE)
    kept = replace(task.client(0, 0), data=hide(data.take(sure.nonzero().reshape(-1))))
    expected = fit(kept, down.w, FixMatch(threshold=0.0, labeler="global")).params
    assert apart(visit(task, 0, down).up.w, expected) < 1e-6


def test_a_client_that_keeps_nothing_only_listens() -> None:
    task = given(replace(SHORT, threshold=1.0))
    reply = visit(task, 0, sent(task, 1.0))
    assert reply.up is None
    assert not reply.pseudo_labels.accepted.any()
    record = play_all(task).records[0]
    assert record.bytes_up == 0
    assert record.metrics["pseudo_kept"]["max"] == 0


def test_a_client_without_samples_only_listens() -> None:
    task = given()
    empty = replace(task.client(0, 0), data=points(0, 0))
    assert task.method.client_update(empty, None, sent(task)).up is None


@pytest.mark.parametrize("least, steps", [(1, 8), (8, 8), (30, 30)])
def test_a_client_with_few_samples_repeats_them(least: int, steps: int) -> None:
    task = given(replace(SHORT, least_steps=least))
    assert visit(task, 0, sent(task, 0.0)).metrics["steps"] == steps  # 20 samples, batches of 6, two epochs


def test_the_pull_is_that_of_fedprox() -> None:
    task = given(replace(SHORT, mu=0.7))
    down = sent(task, 0.0)
    labels = predict(linear(), down.w, points(0, 20).x, Identity()).argmax(dim=1)
    expected = fit(task.client(0, 0), down.w, OnKept(labels), prox=0.7).params
    assert same(visit(task, 0, down).up.w, expected)
    assert not same(visit(given(), 0, down).up.w, expected)


# Steps 3 to 5.


def test_mean_and_average_by_hand() -> None:
    task = job(Anchor(), quadratics([[0.0, 1.0]]), point(4.0))
    server, old = task.server(0, {}), AnchorState(p(4.0), p(5.0))
    ups = {0: AnchorUp(p(1.0), 30), 1: AnchorUp(p(3.0), 10)}
    new = task.method.merge(server, old, ups)
    # w = (30·1 + 10·3)/40 = 1.5; β_0 = min(0.8, 1/10), so w̄ = 0.1·5 + 0.9·1.5 = 1.85
    assert number(new.w) == 1.5
    assert number(task.method.model(new) or {}) == pytest.approx(1.85)
    later = task.method.merge(replace(server, round=89), old, ups)
    # β_89 = min(0.8, 90/99) = 0.8: w̄ = 0.8·5 + 0.2·1.5 = 4.3
    assert number(later.average) == pytest.approx(4.3)


def test_the_server_trains_last_on_the_mean() -> None:
    task = given()
    state = started(task)
    turn = by_hand.turn(task, 0, state)
    assert all(same(down.w, state.w) for down in turn.downs.values())
    ups = [reply.up for reply in turn.replies.values()]
    average = mean([up.w for up in ups], [up.n for up in ups])
    expected = fit(task.server(0, {}), average, OnLabels("both")).params
    assert same(turn.state.w, expected)
    assert apart(turn.state.average, lerp(expected, state.average, 0.1)) < 1e-6


def test_without_an_average_w_is_shipped() -> None:
    task = given(replace(SHORT, beta=0.0))
    played = play_all(task)
    assert same(task.method.model(played.state) or {}, played.state.w)


def test_a_round_in_which_no_client_learned_changes_nothing() -> None:
    task = labeled(Anchor())
    state = AnchorState(started(task).w, lerp(started(task).w, started(task).w, 0.5))
    assert task.method.merge(task.server(2, {}), state, {}) is state


def test_the_views_of_the_servers_labels_by_hand() -> None:
    task = given(views=Scaled())
    server, w, data = task.server(0, {}), started(task).w, points(9, 12)
    batch = Batch(data.x, data.y, data.x[:0], torch.zeros(0, dtype=torch.int64))
    local = {views: OnLabels(views).local_loss(server, w, {}) for views in ("weak", "strong", "both")}
    loss = {views: float(loss_of_batch(each, task.net, w, batch).total) for views, each in local.items()}
    for views, factor in (("weak", 2.0), ("strong", 0.5)):
        p_true = by_hand.answers(w, factor * data.x)[torch.arange(12), data.y]
        assert loss[views] == pytest.approx(-float(p_true.log().mean()), abs=1e-6)
    assert loss["both"] == pytest.approx(loss["weak"] + loss["strong"], abs=1e-5)


# Before round 0.


@pytest.mark.parametrize("steps", [0, 1, 7, 20, 33])
def test_the_bootstrap_has_as_many_steps_as_asked_for(steps: int) -> None:
    task, log = given(replace(SHORT, bootstrap=steps)), dict[str, float]()
    server = task.server(0, log)
    state = task.method.start(server)
    assert log.get("steps", 0) == steps
    assert same(state.w, server.initial()) == (steps == 0)
    assert same(state.average, state.w)


def test_the_bootstrap_is_a_run_of_the_server_alone_with_a_cosine() -> None:
    task = given(replace(SHORT, bootstrap=40, views="weak"), views=Noisy())
    alone = Training(epochs=1, steps=2, batch=6, lr=0.1, schedule="cosine", optimizer="keep")
    other = unlabeled(ServerOnly(Supervised()), views=Noisy(), rounds=20, server_train=alone)
    other = replace(other, streams=other.streams.within("bootstrap"))
    start = replace(other.server(0, {}), streams=task.streams).initial()
    state: Any = replace(started(other), w=start)
    for round in range(20):
        state, _ = other.method.send(other.server(round, {}), state)
    assert same(started(task).w, state.w)


# The committee and the memory.


def test_the_first_labels_are_the_mean_of_the_committee() -> None:
    task = given(replace(SHORT, committee=3))
    _, downs = task.method.send(task.server(0, {}), started(task))
    members = [downs[1].w, *downs[1].committee]
    assert len(members) == 3
    assert not any(same(one, two) for one, two in pairwise(members))
    q = sum(predict(linear(), w, points(1, 20).x, Identity()) for w in members)
    assert isinstance(q, torch.Tensor)
    labels, sure = confident(q / 3, SURE)
    reply = visit(task, 1, downs[1])
    assert torch.equal(reply.pseudo_labels.label, labels)
    assert torch.equal(reply.pseudo_labels.accepted, sure)


def test_a_client_meets_the_committee_until_it_has_answered() -> None:
    task = given(replace(SHORT, committee=3, threshold=0.0))
    state = started(task)
    sizes = []
    for round, answers in enumerate([(0, 2), (1,), ()]):
        state, downs = task.method.send(task.server(round, {}), state)
        sizes.append([len(downs[k].committee) for k in range(3)])
        ups = {k: visit(task, k, downs[k]).up for k in answers}
        state = task.method.merge(task.server(round, {}), state, ups)
    assert sizes == [[2, 2, 2], [0, 2, 0], [0, 0, 0]]
    assert (state.committee, state.met) == ([], [])


def test_the_committee_is_counted_in_bytes() -> None:
    bytes_down = [record.bytes_down for record in play_all(given(replace(SHORT, committee=3, threshold=0.0))).records]
    assert bytes_down[0] > 2 * bytes_down[1]


def test_the_first_member_is_the_model_without_a_committee() -> None:
    assert same(started(given()).w, started(given(replace(SHORT, committee=2))).w)


def test_labels_join_what_earlier_models_said() -> None:
    task = given(replace(SHORT, memory=0.75))
    first = sent(task)
    second = replace(first, w={name: -value for name, value in first.w.items()})
    once = visit(task, 0, first)
    twice = visit(task, 0, second, once.memory, round=1)
    q = [predict(linear(), down.w, points(0, 20).x, Identity()) for down in (first, second)]
    labels, sure = confident(0.75 * q[0] + 0.25 * q[1], SURE)
    assert torch.equal(twice.pseudo_labels.label, labels)
    assert torch.equal(twice.pseudo_labels.accepted, sure)
    assert not torch.equal(labels, q[1].argmax(dim=1))  # of the received model alone


def test_without_memory_nothing_is_remembered() -> None:
    task = given()
    assert visit(task, 0, sent(task)).memory is None


def test_memory_needs_the_same_samples_in_every_round() -> None:
    assert Anchor(memory=0.5).needs.steady_data
    assert not Anchor().needs.steady_data


def test_the_bootstrap_has_a_rate_of_its_own() -> None:
    one, two = (started(given(replace(SHORT, bootstrap_lr=lr))).w for lr in (None, TWO_EPOCHS.lr))
    assert same(one, two)
    assert not same(one, started(given(replace(SHORT, bootstrap_lr=0.5))).w)


# Reductions.


def test_without_kept_samples_it_is_the_server_alone() -> None:
    method = Anchor(threshold=1.0, bootstrap=0, views="weak", beta=0.0)
    assert same(play_all(given(method)).state.w, play_all(unlabeled(ServerOnly(Supervised()))).state.w)


def test_with_labels_at_the_clients_and_no_average_it_is_fedavg_with_fixmatch() -> None:
    everyone = [hide(points(k, 20), shown=5) for k in range(3)]
    one, two = (
        play_all(job(method, federation(everyone), linear(), train=TWO_EPOCHS)).state.w
        for method in (Anchor(beta=0.0, own_threshold=0.6), FedAvg(FixMatch(0.6)))
    )
    assert same(one, two)


def test_with_all_samples_kept_it_is_fedavg_with_the_global_labeler() -> None:
    train: dict[str, Any] = {"server_train": replace(TWO_EPOCHS, steps=4)}
    method = Anchor(threshold=0.0, bootstrap=0, views="weak", beta=0.0)
    other = FedAvg(FixMatch(threshold=0.0, labeler="global"), server="after")
    one, two = given(method, **train), unlabeled(other, **train)
    state = AnchorState(started(two).w, started(two).w)  # FedAvg's server trains once before round 0
    one_turn, two_turn = by_hand.turn(one, 0, state), by_hand.turn(two, 0)
    assert apart(one_turn.state.w, two_turn.state.w) < 1e-6


def test_a_visit_is_that_of_semifl_without_its_mix() -> None:
    one, two = given(), unlabeled(SemiFl(threshold=SURE, weight=0.0))
    down = sent(one)
    assert apart(visit(one, 0, down).up.w, visit(two, 0, WeightsDown(down.w)).up.w) < 1e-6


# Labels at some clients.


def some(method: Anchor) -> Job:
    return job(method, federation([points(0, 20), *(hide(points(k, 20)) for k in (1, 2))]), linear(), train=TWO_EPOCHS)


def test_clients_with_and_without_labels_learn_side_by_side() -> None:
    task = some(replace(SHORT, threshold=0.0))
    replies = by_hand.turn(task).replies
    assert [(reply.up.n, reply.up.labeled) for reply in replies.values()] == [(20, 20), (20, 0), (20, 0)]


def test_the_share_of_clients_with_labels_by_hand() -> None:
    counts = [(20, 20), (30, 0), (50, 0), (60, 5)]
    assert Anchor(share="samples").weights(counts) == [20, 30, 50, 60]
    # half for the 80 samples of the first and the last, half for the other 80
    assert Anchor(share=0.5).weights(counts) == pytest.approx([0.125, 0.1875, 0.3125, 0.375])
    assert Anchor(share=0.5).weights(counts[1:3]) == [30, 50]  # nobody to share with
    assert Anchor(share=0.5).weights([counts[0], counts[3]]) == [20, 60]


# The audit.

AUDITED = replace(SHORT, precision=0.4, bootstrap=60)


def test_held_out_labels_set_the_thresholds() -> None:
    task, log = given(AUDITED, views=Scaled()), dict[str, float]()
    state = started(task)
    downs = task.method.send(task.server(0, log), state)[1]
    held_out = points(7, 15)
    q = functional.softmax(linear().apply(state.w, 2 * held_out.x), dim=1)
    expected = audited_thresholds(q, held_out.y, 0.4, 0.9)
    assert torch.equal(downs[0].thresholds, expected)
    assert log["threshold"] == float(expected.mean())
    assert expected.isfinite().any()


def test_without_evidence_of_the_precision_no_client_trains() -> None:
    record = play_all(given(replace(AUDITED, precision=0.99))).records[-1]  # fifteen labels cannot show that
    assert record.metrics["pseudo_kept"]["max"] == 0


def without_validation(server: Samples, features: int = 4) -> Job:
    data = federation([hide(points(k, 20, features=features)) for k in range(3)], server, points(8, 30))
    return job(replace(AUDITED, bootstrap=200, precision=0.7), data, linear(features), train=TWO_EPOCHS)


def test_without_a_validation_set_folds_of_the_labels_set_the_thresholds_once() -> None:
    task = without_validation(points(9, 40))
    state = started(task)
    assert state.thresholds.isfinite().any()
    for round in (0, 1):
        assert task.method.send(task.server(round, {}), state)[1][0].thresholds is state.thresholds


def test_a_fold_is_judged_by_a_model_that_has_not_seen_it() -> None:
    """Random labels of points in many dimensions: a model can learn them by heart, and predicts none of the others."""
    stream = torch.Generator().manual_seed(0)
    random = Samples(torch.randn(40, 80, generator=stream), torch.randint(3, (40,), generator=stream))
    task = without_validation(random, features=80)
    state = started(task)
    assert (predict(task.net, state.w, random.x, Identity()).argmax(dim=1) == random.y).all()
    assert state.thresholds.isinf().all()


def test_a_group_of_samples_is_in_one_fold() -> None:
    """Every point of random labels is there twice: a model knows the label of the one if it has seen the other."""
    stream = torch.Generator().manual_seed(0)
    x, y = torch.randn(30, 80, generator=stream).repeat(2, 1), torch.randint(3, (30,), generator=stream).repeat(2)
    pairs = torch.arange(30).repeat(2)
    apart, together = (started(without_validation(Samples(x, y, group), features=80)) for group in (None, pairs))
    assert apart.thresholds.isfinite().any()
    assert together.thresholds.isinf().all()


def test_without_labels_at_the_server_the_setting_holds() -> None:
    task = some(AUDITED)
    assert float(task.method.send(task.server(0, {}), started(task))[1][0].thresholds) == SURE


# What leaves the server.


def test_only_the_model_and_the_thresholds_are_sent() -> None:
    task = given(AUDITED)
    down = task.method.send(task.server(0, {}), started(task))[1][0]
    assert vars(down).keys() == {"w", "thresholds", "committee"}
    assert down.committee == []
    assert down.w.keys() == set(task.net.names)
    assert down.thresholds.shape == (3,)
