"""(FL)²: thresholds of each client and class, flatness around sure samples, weights by certainty, SemiFL's rounds."""

from collections.abc import Mapping
from dataclasses import replace
from math import sqrt
from typing import Any

import pytest
import torch
from hypothesis import given as over
from hypothesis import strategies as st
from torch.nn import functional

from tacit.aggregation import WeightsDown, setup_context
from tacit.engines.job import Job
from tacit.learn import Batch, BatchLoss, fit, loss_of_batch, predict
from tacit.losses import confident
from tacit.method import ServerContext, Training
from tacit.methods.anchor import OnKept
from tacit.methods.fl2 import (
    Fl2,
    Fl2State,
    Fl2Up,
    FlatAtSure,
    ascent,
    class_thresholds,
    mean_confidence,
    status_weights,
)
from tacit.methods.semifl import SemiFl, SemiFlState
from tacit.objectives import Supervised
from tacit.params import Params, clone
from tests.methods import by_hand
from tests.objectives.bench import EYE, gradient, leaves
from tests.toys import (
    TWO_EPOCHS,
    Identity,
    Noisy,
    apart,
    images,
    linear,
    p,
    point,
    points,
    rounds,
    same,
    started,
    unlabeled,
    visit,
    with_batchnorm,
)

EAGER = Fl2(sure=0.45, pretrain=1)  # some samples of an untrained linear model are sure


def given(method: Fl2 = EAGER, **options: Any) -> Job:
    return unlabeled(method, **options)


# CAT: thresholds.

P = torch.tensor([[0.8, 0.1, 0.1], [0.6, 0.4, 0.0], [0.3, 0.6, 0.1], [0.3, 0.3, 0.4]])


def test_thresholds_by_hand() -> None:
    # max: 0.8, 0.6, 0.6, 0.4, so τ = 2.4/4 = 0.6; p̄ = (2.0, 1.4, 0.6)/4, over its largest: (1, 0.7, 0.3)
    assert float(mean_confidence(P)) == pytest.approx(0.6)
    assert class_thresholds(P).tolist() == pytest.approx([0.6, 0.42, 0.18])
    labels, accepted = confident(P, class_thresholds(P) - 1e-6)
    assert labels.tolist() == [0, 0, 1, 2]
    assert accepted.tolist() == [True, True, True, True]  # with 0.6 for all, the last would not count
    assert confident(P, 0.6 - 1e-6)[1].tolist() == [True, True, True, False]


@over(st.lists(st.lists(st.floats(-30, 30, width=32), min_size=3, max_size=3), min_size=1, max_size=40))
def test_some_sample_reaches_its_threshold(logits: list[list[float]]) -> None:
    """The most certain sample is at least as certain as the mean, so the train set of CAT is never empty."""
    q = torch.tensor(logits).softmax(dim=1)
    assert confident(q, class_thresholds(q))[1].any()


def test_equal_samples_reach_the_threshold_in_spite_of_rounding() -> None:
    for value in torch.linspace(0.34, 0.99, 200):
        q = torch.stack([value, (1 - value) / 2, (1 - value) / 2]).repeat(7, 1)
        assert confident(q, class_thresholds(q))[1].all()


def test_a_client_labels_with_the_received_model_once() -> None:
    task = given()
    w = started(task).w
    q = predict(linear(), w, points(1, 20).x, Identity())
    labels, accepted = confident(q, class_thresholds(q))
    reply = visit(task, 1, WeightsDown(w))
    assert 0 < accepted.sum() < 20
    assert torch.equal(reply.pseudo_labels.label, labels)
    assert torch.equal(reply.pseudo_labels.accepted, accepted)
    assert reply.up.tau == pytest.approx(float(q.amax(dim=1).mean()), rel=1e-6)
    assert reply.metrics["threshold"] == reply.up.tau


def test_an_epoch_is_one_of_the_train_set() -> None:
    task = given()
    reply = visit(task, 0, WeightsDown(started(task).w))
    size = int(reply.pseudo_labels.accepted.sum())
    assert reply.metrics["steps"] == 2 * -(-size // 6)


def test_labels_are_given_in_evaluation_mode() -> None:
    """By the statistics of the model, not by those of the batch: with others it answers otherwise."""
    task: Any = with_batchnorm(EAGER)
    w = started(task).w
    client = task.client(0, 0)
    q = predict(task.net, w, client.data.x, client.views)
    assert visit(task, 0, WeightsDown(w)).up.tau == pytest.approx(float(q.amax(dim=1).mean()), rel=1e-4)


@pytest.mark.parametrize("empty", ["left-out", "averaged"])
def test_a_client_without_a_train_set(empty: Any) -> None:
    task = given(Fl2(threshold=1.0, empty=empty, pretrain=1))
    w = started(task).w
    reply = visit(task, 0, WeightsDown(w))
    assert not reply.pseudo_labels.accepted.any()
    assert same(reply.model, w)
    if empty == "left-out":
        assert reply.up is None
    else:  # as released: the model it received counts with the weight 1 - τ
        assert same(reply.up.w, w)
        assert 1 / 3 < reply.up.tau < 1


def test_a_client_without_samples_uploads_nothing() -> None:
    task: Any = given()
    alone = replace(task.client(0, 0), data=points(0, 0))
    assert task.method.client_update(alone, None, WeightsDown(started(task).w)).up is None


# SACR: the perturbation.


def test_the_perturbation_by_hand() -> None:
    w = {"fc.weight": torch.tensor([2.0, -1.0]), "fc.bias": torch.tensor([5.0])}
    slope = {"fc.weight": torch.tensor([1.0, 3.0]), "fc.bias": torch.tensor([4.0])}
    # T = (2.5, 1.5) and 1; T·∇ = (2.5, 4.5) and 4; N = √(6.25 + 20.25 + 16) = √42.5; ε = ρ·T·(T·∇)/N
    step, n = ascent(w, slope, rho=0.1, eta=0.5), sqrt(42.5)
    assert step["fc.weight"].tolist() == pytest.approx([0.1 * 6.25 / n, 0.1 * 6.75 / n])
    assert step["fc.bias"].tolist() == pytest.approx([0.1 * 4 / n])


def test_without_a_slope_there_is_no_perturbation() -> None:
    w = {"fc.weight": torch.tensor([2.0, -1.0])}
    assert ascent(w, {"fc.weight": torch.zeros(2)}, 0.1, 0.01)["fc.weight"].tolist() == [0.0, 0.0]


X = torch.tensor([[2.0, 0.5], [0.25, 1.0], [1.0, -1.0]])
LABELS, SURE = torch.tensor([0, 1, 1]), torch.tensor([True, False, True])


def flat(rho: float, w: Params, net: Any = None) -> BatchLoss:
    """The cost of the three samples above in one batch."""
    holder = given(views=Identity()).client(0, 0)
    net = net or linear(2, 2)
    local = FlatAtSure(rho, 0.01, LABELS, SURE).local_loss(replace(holder, net=net), w, {})
    return loss_of_batch(local, net, w, Batch(X[:0], LABELS[:0], X, torch.arange(3)))


def test_the_loss_and_its_gradient_by_hand() -> None:
    """∇L = ∇CE at w over all samples + the gradient of the masked KL at w + ε, over the whole batch."""
    rho, w = 0.5, leaves(EYE)
    cost = flat(rho, w)
    one_hot = by_hand.one_hot([0, 1, 1])
    uphill = by_hand.slope(EYE, X[SURE], one_hot[SURE])  # of the mean over the sure samples
    moved = {name: EYE[name] + step for name, step in ascent(EYE, uphill, rho, 0.01).items()}
    clean, there = by_hand.answers(EYE, X), by_hand.answers(moved, X)
    apart_by_hand = by_hand.kl(clean[SURE], there[SURE]) * 2 / 3  # a mean over three of which two count
    plain = float(functional.cross_entropy(X, LABELS))
    assert apart_by_hand > 1e-3
    assert cost.metrics["loss_sharpness"].item() == pytest.approx(apart_by_hand, rel=1e-4)
    assert cost.total.item() == pytest.approx(plain + apart_by_hand, rel=1e-4)
    mask = SURE[:, None].float()
    expected = {
        name: by_hand.slope(EYE, X, one_hot)[name] + by_hand.down_to_weights((there - clean) * mask, X)[name]
        for name in EYE
    }
    assert apart(gradient(cost.total, w), expected) < 1e-6


def test_the_model_in_training_is_not_changed_by_the_perturbation() -> None:
    """Bit by bit, which adding and subtracting ε in place would not give."""
    w = leaves(EYE)
    flat(0.5, w)
    assert same({name: value.detach() for name, value in w.items()}, EYE)


def test_the_perturbed_pass_does_not_move_batch_statistics() -> None:
    task: Any = with_batchnorm(EAGER)
    net, x = task.net, images(0, 9).x
    labels, batch = torch.arange(9) % 3, Batch(x[:0], torch.zeros(0).long(), x, torch.arange(9))
    moved = []
    for rho in (0.0, 0.5):
        w = {name: value.requires_grad_(name in net.trainable) for name, value in clone(started(task).w).items()}
        sharp = FlatAtSure(rho, 0.01, labels, labels >= 0)
        cost = loss_of_batch(sharp.local_loss(task.client(0, 0), w, {}), net, w, batch)
        assert (cost.metrics["loss_sharpness"] > 0) == (rho > 0)
        moved.append({name: w[name] for name in net.buffers})
    assert net.buffers
    assert same(*moved)


def test_the_smaller_the_perturbation_the_nearer_the_plain_gradient() -> None:
    """KL and its gradient vanish at ε = 0."""
    w = leaves(EYE)
    plain = gradient(flat(0.0, w).total, w)
    distances = [apart(gradient(flat(rho, w).total, w), plain) for rho in (0.5, 0.05, 0.005)]
    assert distances[0] > 5 * distances[1] > 25 * distances[2] > 0


def test_without_sure_samples_there_is_no_sharpness_term() -> None:
    task = given(Fl2(rho=0.5, sure=1.0, pretrain=1))
    reply = visit(task, 0, WeightsDown(started(task).w))
    assert reply.metrics["loss_sharpness"] == reply.metrics["sure_share"] == 0
    plain = visit(given(Fl2(rho=0.0, pretrain=1)), 0, WeightsDown(started(task).w))
    assert same(reply.up.w, plain.up.w)


def test_without_a_perturbation_a_visit_has_the_bits_of_training_on_kept_labels() -> None:
    task = given(Fl2(rho=0.0, pretrain=1), views=Noisy(0.1, 1.0))
    w, client = started(task).w, task.client(0, 0)
    reply = visit(task, 0, WeightsDown(w))
    rows = reply.pseudo_labels.accepted.nonzero().reshape(-1)
    kept = replace(client, data=client.data.take(rows))
    assert same(reply.up.w, fit(kept, w, OnKept(reply.pseudo_labels.label[rows])).params)
    sharp = visit(given(replace(EAGER, rho=0.5), views=Noisy(0.1, 1.0)), 0, WeightsDown(w))
    assert apart(sharp.up.w, reply.up.w) > 1e-4


def test_clipping_acts_on_the_sum_of_both_gradients() -> None:
    """A step of length lr·clip, whatever the two terms ask for."""
    task = given(replace(EAGER, rho=2.0), train=Training(steps=1, batch=20, lr=1.0, momentum=0.0, clip=0.01))
    w = started(task).w
    moved = visit(task, 0, WeightsDown(w)).up.w
    assert sqrt(sum(float((moved[name] - w[name]).square().sum()) for name in w)) == pytest.approx(0.01, rel=1e-3)


# LSAA: weights.


def test_weights_by_hand() -> None:
    assert status_weights([0.9, 0.5, 0.6]) == pytest.approx([0.1, 0.5, 0.4])
    assert status_weights([1.0, 0.5]) == [0.0, 1.0]
    assert status_weights([1.0, 1.0]) == [0.5, 0.5]


def resting(task: Job) -> ServerContext:
    """A server of one number without labels, so that it does not train."""
    server = task.server(0, {})
    return replace(server, net=point(0.0), data=replace(server.data, labeled=points(0, 0)))


@pytest.mark.parametrize("average, expected", [("status", 0.1 * 1 + 0.9 * 3), ("uniform", 2.0)])
def test_the_average_by_hand(average: Any, expected: float) -> None:
    task: Any = given(Fl2(average=average, momentum=0.0))
    ups = {0: Fl2Up(p(1.0), 0.95), 1: Fl2Up(p(3.0), 0.55)}
    assert task.method.merge(resting(task), Fl2State(p(9.0)), ups).w["p"].item() == pytest.approx(expected, abs=1e-12)


def test_server_momentum_by_hand() -> None:
    task: Any = given()
    server = resting(task)
    state = task.method.merge(server, Fl2State(p(3.0), p(2.0)), {0: Fl2Up(p(0.5), 0.7)})
    # v = ½·2 + (0.5 - 3) = -1.5
    assert (state.velocity["p"].item(), state.w["p"].item()) == (-1.5, 1.5)
    assert task.method.merge(server, Fl2State(p(3.0), p(2.0)), {}) == Fl2State(p(3.0), p(2.0))


# The server, and the whole.


def test_the_server_trains_last_and_before_the_first_round() -> None:
    task = given(replace(EAGER, pretrain=3))
    server = task.server(0, {})
    alone, w = setup_context(server), server.initial()
    for number in range(3):
        w = fit(replace(alone, streams=alone.streams.within(f"visit {number}")), w, Supervised()).params
    state = started(task)
    assert same(state.w, w)
    turn = by_hand.turn(task, 0, state)
    assert all(same(down.w, state.w) for down in turn.downs.values())
    ups = {k: reply.up for k, reply in turn.replies.items()}
    mean = server.combine([up.w for up in ups.values()], status_weights([up.tau for up in ups.values()]))
    assert apart(turn.state.w, fit(server, mean, Supervised()).params) < 1e-5


def test_with_one_threshold_and_uniform_weights_it_is_semifl_without_mix() -> None:
    """Up to rounding: SemiFL's mixed samples share the pass of the strong views, also with weight 0."""
    plain = Fl2(rho=0.0, threshold=0.5, average="uniform")
    task = given(plain, views=Noisy(0.1, 1.0))
    semifl = replace(task, method=SemiFl(threshold=0.5, weight=0.0))
    w = started(semifl).w
    one: Any = Fl2State(w)
    other: Any = SemiFlState(w)
    for round in range(4):
        one, other = by_hand.turn(task, round, one).state, by_hand.turn(semifl, round, other).state
    assert apart(one.w, other.w) < 1e-5
    assert apart(one.velocity, other.velocity) < 1e-5
    for idea in ({"rho": 0.5, "sure": 0.45}, {"threshold": None}, {"average": "status"}, {"momentum": 0.0}):
        changed: Any = Fl2State(w)
        for round in range(4):
            changed = by_hand.turn(replace(task, method=replace(plain, **idea)), round, changed).state
        assert apart(changed.w, other.w) > 1e-4, idea


def test_static_statistics_are_those_of_the_servers_samples() -> None:
    task = with_batchnorm(EAGER)
    plain = task.server(0, {}).views.plain(images(50, 12).x)
    for moment in rounds(task):
        assert same(moment.state.w, task.net.recompute_batchnorm(moment.state.w, [plain]))


def test_clients_and_server_keep_their_momentum_if_set() -> None:
    task = given(train=replace(TWO_EPOCHS, optimizer="keep"))
    moment = list(rounds(task))[-1]
    assert moment.state.carried.velocity is not None
    down = WeightsDown(started(task).w)
    memory = visit(task, 0, down).memory
    with_it, without = (visit(task, 0, down, each, round=1).up.w for each in (memory, None))
    assert not same(with_it, without)


def test_the_message_holds_a_model_and_one_number() -> None:
    task = given()
    reply = visit(task, 0, WeightsDown(started(task).w))
    up, model = (len(task.codec.encode(message)) for message in (reply.up, WeightsDown(reply.up.w)))
    assert up - model < 64


def test_presets() -> None:
    presets: Mapping[str, Any] = Fl2.PRESETS
    assert Fl2(**presets["as-written"]) == Fl2()
    assert Fl2(**presets["as-released"]) == Fl2(empty="averaged")


def test_the_defaults_are_those_of_the_paper() -> None:
    assert (Fl2().rho, Fl2().eta, Fl2().sure, Fl2().threshold, Fl2().momentum) == (0.1, 0.01, 0.95, None, 0.5)
