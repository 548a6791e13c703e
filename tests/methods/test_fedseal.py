"""FedSEAL: Eq. 2 to 15 by hand, who receives and who trains, the mean over models, and what it is without its ideas."""

from collections.abc import Sequence
from dataclasses import replace
from math import inf, log
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import tacit
from tacit import params
from tacit.aggregation import WeightsDown, WeightsUp
from tacit.engines.client import run_client
from tacit.engines.faults import Faults
from tacit.engines.job import ClientTask, Job
from tacit.engines.wire import finite
from tacit.federation import Samples
from tacit.learn import Batch, fit, learning_rate, loss_of_batch, predict
from tacit.method import Training
from tacit.methods.fedavg import FedAvg
from tacit.methods.fedseal import FedSeal, FedSealDown, FedSealMemory, Filtered, _Seal, thresholds
from tacit.nets import Net
from tacit.objectives import FixMatch, Supervised
from tacit.params import Params
from tests.engines import farm
from tests.methods import by_hand
from tests.objectives.bench import ONE_STEP, Scaled, eye
from tests.refusals import refused
from tests.toys import (
    TWO_EPOCHS,
    Identity,
    Moment,
    Noisy,
    alone,
    apart,
    federation,
    hide,
    images,
    job,
    linear,
    normed,
    play_all,
    points,
    rounds,
    same,
    samples,
    started,
    unlabeled,
    visit,
)

EYE = eye(3)
ALL = FedSeal(bootstrap=0, threshold=0.0)  # every sample has a pseudo-label
NONE = FedSeal(bootstrap=0, threshold=1.0, theta=0.0)  # every sample is in neither set

# p̄ of five samples; with τ = (0.8, 0.95, ∞) and θ = 0.05:
SEEN = torch.tensor(
    [
        [0.90, 0.06, 0.04],  # D⁺ as 0, and so not in D⁻ though class 2 is unlikely
        [0.70, 0.26, 0.04],  # D⁻, surely not 2
        [0.50, 0.30, 0.20],  # neither
        [0.02, 0.94, 0.04],  # D⁻, not 0 or not 2
        [0.04, 0.01, 0.95],  # D⁻, not 0 or not 1: no confidence reaches ∞
    ]
)
TAU = torch.tensor([0.8, 0.95, inf])
POSSIBLE = [set(), {2}, set(), {0, 2}, {0, 1}]


def crowd(method: FedSeal, clients: int = 4, **options: Any) -> Job:
    return unlabeled(method, clients, **{"rounds": 5} | options)


def seeing(p: Tensor, method: FedSeal, train: Training = ONE_STEP, **options: Any) -> Job:
    """One client that sees these probabilities with EYE, since its samples are their logarithms."""
    data = hide(Samples(p.log(), torch.zeros(len(p), dtype=torch.int64)))
    return job(method, federation([data], **options), linear(p.shape[1], p.shape[1]), train=train)


def down(tau: Tensor = TAU, w: Params = EYE, train: bool = True) -> FedSealDown:
    return FedSealDown(w, tau, train)


# Eq. 5.

NAMED = torch.tensor([[0.6, 0.3, 0.1, 0.0], [0.5, 0.25, 0.25, 0.0], [0.2, 0.7, 0.1, 0.0], [0.4, 0.3, 0.2, 0.1]])


@pytest.mark.parametrize(
    "labels, expected",
    [
        # Named 0, 0, 1, 0. A class nobody names has 0, one without samples ∞.
        ([0, 1, 1, 2], [(0.6 + 0.5 + 0.4) / 1, 0.7 / 2, 0.0, inf]),  # named more often than there are: above 1
        ([0, 0, 1, 0], [(0.6 + 0.5 + 0.4) / 3, 0.7, inf, inf]),
        ([1, 0, 2, 3], [(0.6 + 0.5 + 0.4) / 1, 0.7 / 1, 0.0, 0.0]),  # right or wrong does not matter
    ],
)
def test_thresholds_by_hand(labels: list[int], expected: list[float]) -> None:
    assert thresholds(NAMED, torch.tensor(labels)).tolist() == pytest.approx(expected)


def test_thresholds_of_a_model_that_is_always_right_are_its_mean_confidence() -> None:
    p = torch.rand(40, 3, generator=torch.Generator().manual_seed(1)).softmax(dim=1)
    y = p.argmax(dim=1)
    expected = [float(p[y == m, m].mean()) for m in range(3)]
    assert thresholds(p, y).tolist() == pytest.approx(expected)


def test_all_get_the_thresholds_of_the_very_model_they_get() -> None:
    task, log = crowd(FedSeal(bootstrap=2), cohort=2), dict[str, float]()
    server = task.server(0, log)
    state, downs = task.method.send(server, task.method.start(server))
    held = task.federation.server.validation
    expected = thresholds(predict(task.net, state.w, held.x, Identity()), held.y)
    assert set(downs) == {0, 1, 2, 3}
    for k, sent in downs.items():
        assert same(sent.w, state.w)
        assert torch.equal(sent.thresholds, expected)
        assert sent.train == (k in server.cohort)
    assert [log[f"threshold_{m}"] for m in range(3)] == expected.tolist()


def test_thresholds_are_taken_on_plain_views() -> None:
    task = crowd(FedSeal(bootstrap=0))
    views = Scaled()
    task.method.send(replace(task.server(0, {}), views=views), started(task))
    assert views.looks == [("plain", 15)]


def test_a_fixed_threshold_is_one_number_for_all_classes() -> None:
    task, views, log = crowd(FedSeal(bootstrap=0, threshold=0.7)), Scaled(), dict[str, float]()
    _, downs = task.method.send(replace(task.server(0, log), views=views), started(task))
    assert downs[0].thresholds.tolist() == pytest.approx(0.7)
    assert views.looks == []  # there is no pass over validation samples
    assert log == {}
    for tau in (0.7, 0.95):
        single, each = (visit(seeing(SEEN, FedSeal()), 0, down(torch.full(shape, tau))) for shape in ((), (3,)))
        assert torch.equal(single.pseudo_labels.accepted, SEEN.amax(dim=1) >= tau)
        assert same(single.up.w, each.up.w)


# Eq. 7 and 8.


def received_by(task: Job, moments: Sequence[Moment]) -> dict[int, list[Tensor]]:
    """What each client predicted with each model it received, when its reply counted."""
    sent = [started(task).w, *(moment.state.w for moment in moments)]
    found: dict[int, list[Tensor]] = {k: [] for k in range(task.federation.clients)}
    for moment, w in zip(moments, sent, strict=False):
        for k in moment.record.traffic.keys() - moment.record.skipped.keys():
            found[k].append(predict(task.net, w, task.federation.client(k, 0).x, Identity()))
    return found


@pytest.mark.parametrize("listen", ["all", "sampled"])
@pytest.mark.parametrize("lost", [0.0, 0.4])
def test_the_running_mean_is_the_mean_over_all_models_received(listen: Any, lost: float) -> None:
    method = FedSeal(bootstrap=0, listen=listen)
    task = crowd(method, cohort=2, rounds=8, faults=Faults(lost=lost), min_clients=0)
    moments = list(rounds(task))
    found = received_by(task, moments)
    for k, memory in moments[-1].memories.items():
        assert memory.models == len(found[k])
        assert torch.allclose(memory.mean, torch.stack(found[k]).double().mean(dim=0).float(), atol=3e-7)
    counts = [len(each) for each in found.values()]
    assert sum(counts) == (32 if listen == "all" else 16) - sum(len(moment.record.skipped) for moment in moments)
    assert all(moment.record.skipped == {} for moment in moments) == (lost == 0)
    assert any(bool((each[0] - each[-1]).abs().max() > 0.05) for each in found.values())  # the models differ


def test_the_mean_starts_at_the_first_model_a_client_receives() -> None:
    task = seeing(SEEN, FedSeal(bootstrap=0))
    first = visit(task, 0, down(train=False)).memory
    assert first.models == 1
    assert torch.allclose(first.mean, SEEN, atol=1e-6)
    flat = params.zeros_like(EYE)  # answers ⅓ throughout
    third = visit(task, 0, down(w=flat, train=False), replace(first, models=2)).memory
    assert third.models == 3
    assert torch.allclose(third.mean, SEEN * 2 / 3 + 1 / 9, atol=1e-6)  # (t - 1)/t·p̄ + 1/t·⅓


def test_the_mean_decides_not_the_last_model() -> None:
    task = seeing(SEEN, FedSeal(bootstrap=0))
    turned = SEEN.roll(1, dims=1)
    reply = visit(task, 0, down(torch.zeros(3)), FedSealMemory(turned, 9))
    assert reply.pseudo_labels.label.tolist() == turned.argmax(dim=1).tolist()
    learned = by_hand.slope(EYE, SEEN.log(), functional.one_hot(turned.argmax(dim=1), 3).float())
    assert apart(params.sub(EYE, reply.up.w), params.scale(learned, 0.1)) < 1e-6
    last = visit(seeing(SEEN, FedSeal(bootstrap=0, ensemble=False)), 0, down(torch.zeros(3)), FedSealMemory(turned, 9))
    assert last.pseudo_labels.label.tolist() == SEEN.argmax(dim=1).tolist()


def test_without_the_ensemble_only_the_cohort_receives_and_remembers_the_last_predictions() -> None:
    task = crowd(replace(ALL, ensemble=False), cohort=2)
    moments = list(rounds(task))
    sent = [started(task).w, *(moment.state.w for moment in moments)]
    for r, moment in enumerate(moments):
        assert tuple(moment.record.traffic) == task.sample(r)
        for k in task.sample(r):
            p = predict(task.net, sent[r], task.federation.client(k, 0).x, Identity())
            assert torch.equal(moment.memories[k].mean, p)
            assert moment.memories[k].models == 1


# Step 2 and 4.


@pytest.mark.parametrize("listen", ["all", "sampled"])
def test_all_clients_receive_the_model_and_only_the_cohort_uploads(listen: Any) -> None:
    task = crowd(replace(ALL, listen=listen), cohort=2)
    for moment in rounds(task):
        cohort = task.sample(moment.record.round)
        assert tuple(moment.record.traffic) == ((0, 1, 2, 3) if listen == "all" else cohort)
        assert all(sent > 0 for sent, _ in moment.record.traffic.values())
        assert tuple(k for k, (_, returned) in moment.record.traffic.items() if returned) == cohort
        assert moment.record.steps == 2 * 2 * 4  # two clients, two epochs of 20 samples in batches of 6


def test_a_client_outside_the_cohort_does_not_train() -> None:
    reply = visit(seeing(SEEN, FedSeal(bootstrap=0)), 0, down(train=False))
    assert reply.up is reply.model is reply.pseudo_labels is None
    assert reply.metrics == {}


# Eq. 9 to 12.


def test_positive_and_negative_sets_by_hand() -> None:
    reply = visit(seeing(SEEN, FedSeal()), 0, down())
    assert reply.pseudo_labels.index.tolist() == [0, 1, 2, 3, 4]
    assert reply.pseudo_labels.label.tolist() == [0, 0, 0, 1, 2]
    assert reply.pseudo_labels.accepted.tolist() == [True, False, False, False, False]
    for excluded, possible in zip(reply.pseudo_labels.complementary.tolist(), POSSIBLE, strict=True):
        assert excluded in (possible or {-1})
    assert reply.up.n == 4
    assert reply.metrics["positive"] == pytest.approx(1 / 5)
    assert reply.metrics["negative"] == pytest.approx(3 / 5)


def test_reaching_a_threshold_is_enough() -> None:
    """Eq. 10 has ≥ and Eq. 11 ≤; two equal logits are exactly ½."""
    even, method = torch.tensor([[0.5, 0.5]]), FedSeal(theta=0.5)
    accepted = visit(seeing(even, method), 0, down(torch.full((2,), 0.5), eye(2))).pseudo_labels
    assert accepted.accepted.tolist() == [True]
    assert accepted.complementary.tolist() == [-1]
    missed = visit(seeing(even, method), 0, down(torch.full((2,), 0.5000001), eye(2))).pseudo_labels
    assert missed.accepted.tolist() == [False]
    assert missed.complementary.tolist() in ([0], [1])


@pytest.mark.parametrize("classes", [2, 5, 10])
def test_with_theta_1_over_m_every_sample_that_is_not_positive_is_negative(classes: int) -> None:
    """Of M probabilities the least is at most 1/M, so Fashion-MNIST's θ = 0.1 leaves nobody out."""
    stream = torch.Generator().manual_seed(4)
    p = (2 * torch.randn(300, classes, generator=stream)).softmax(dim=1)
    p[0] = 1 / classes  # the least that the largest can be
    task = seeing(p, FedSeal(theta=1 / classes))
    found = visit(task, 0, down(torch.full((classes,), 0.6), eye(classes))).pseudo_labels
    assert 0 < found.accepted.sum() < 300
    assert torch.equal(found.complementary >= 0, ~found.accepted)
    less = visit(
        seeing(p, FedSeal(theta=0.5 / classes)), 0, down(torch.full((classes,), 0.6), eye(classes))
    ).pseudo_labels
    assert ((less.complementary < 0) & ~less.accepted).any()


@pytest.mark.parametrize("theta", [0.0, 0.05, 0.2, 0.5])
def test_the_sets_are_disjoint_and_complete(theta: float) -> None:
    stream = torch.Generator().manual_seed(4)
    p, tau = (3 * torch.randn(300, 5, generator=stream)).softmax(dim=1), torch.rand(5, generator=stream)
    found = visit(seeing(p, FedSeal(theta=theta)), 0, down(tau, eye(5))).pseudo_labels
    seen = predict(linear(5, 5), eye(5), p.log(), Identity())
    sure = seen.amax(dim=1) >= tau[seen.argmax(dim=1)]
    negative = found.complementary >= 0
    assert torch.equal(found.accepted, sure)
    assert not (found.accepted & negative).any()
    assert torch.equal(negative, ~sure & (seen <= theta).any(dim=1))
    rows = negative.nonzero().reshape(-1)
    assert (seen[rows, found.complementary[rows]] <= theta).all()


def test_complementary_labels_are_uniform_over_the_unlikely_classes_and_new_in_each_round() -> None:
    p = torch.tensor([[0.55, 0.03, 0.38, 0.02, 0.02]]).expand(100, 5)
    task = seeing(p, FedSeal())
    drawn = [visit(task, 0, down(torch.ones(5), eye(5)), round=r).pseudo_labels.complementary for r in range(30)]
    assert torch.equal(visit(task, 0, down(torch.ones(5), eye(5)), round=3).pseudo_labels.complementary, drawn[3])
    assert len({tuple(each.tolist()) for each in drawn}) == 30
    counts = torch.bincount(torch.cat(drawn), minlength=5).tolist()
    assert counts[0] == counts[2] == 0
    for m in (1, 3, 4):
        assert abs(counts[m] - 1000) < 5 * (3000 * 1 / 3 * 2 / 3) ** 0.5  # five standard deviations
    assert all(0 < int((each == 3).sum()) < 100 for each in drawn)  # and within each stream


def test_with_a_theta_above_1_over_m_the_complementary_label_may_be_the_most_likely_class() -> None:
    p = torch.tensor([[0.36, 0.33, 0.31]]).expand(200, 3)
    found = visit(seeing(p, FedSeal(theta=0.4)), 0, down(torch.ones(3))).pseudo_labels
    assert set(found.label.tolist()) == {0}
    assert set(found.complementary.tolist()) == {0, 1, 2}


# Eq. 13 to 15. Gradients without autograd: of -log p(y) at logits z it is p - 1_y, of -log(1 - p(y)) it is
# p_y/(1 - p_y)·(1_y - p). D⁺ is seen in the strong view (half the plain one), D⁻ in the plain one.

PAIR = SEEN[[0, 1, 2, 4]]  # D⁺, D⁻ as "not 2", neither, and below D⁺ too
LOOSE = torch.tensor([0.8, 0.95, 0.9])


def negative_gradient(x: Tensor, y: Sequence[int]) -> Params:
    p, named = by_hand.answers(EYE, x), by_hand.one_hot(y, 3)
    own = (p * named).sum(dim=1, keepdim=True)
    return by_hand.down_to_weights(own / (1 - own) * (named - p), x)


@pytest.mark.parametrize("round, weight", [(0, 0.1), (3, 0.1 / 0.95**3), (200, 1.0)])
@pytest.mark.parametrize("labels", ["hard", "soft"])
@pytest.mark.parametrize("ensemble", [True, False])
def test_the_loss_and_its_gradient_by_hand(round: int, weight: float, labels: Any, ensemble: bool) -> None:
    """Without the ensemble both sets and the targets are the last model's, whatever the client remembers."""
    task = seeing(PAIR, FedSeal(labels=labels, ensemble=ensemble), views=Scaled())
    memory = None if ensemble else FedSealMemory(PAIR.roll(1, dims=1), 9)
    reply = visit(task, 0, down(LOOSE), memory, round=round)
    strong = PAIR[[0, 3]].log() * 0.5
    targets = PAIR[[0, 3]] if labels == "soft" else by_hand.one_hot([0, 2], 3)
    pull = params.scale(by_hand.slope(EYE, strong, targets), weight)
    push = negative_gradient(PAIR[[1]].log(), [2])
    assert apart(params.sub(EYE, reply.up.w), params.add(pull, push)) < 1e-6
    plus = float(-(targets * strong.log_softmax(dim=1)).sum(dim=1).mean())
    minus = -log(1 - 0.04)
    assert reply.metrics["loss_positive"] == pytest.approx(plus, rel=1e-5)
    assert reply.metrics["loss_negative"] == pytest.approx(minus, rel=1e-5)
    assert reply.metrics["loss_unlabeled"] == pytest.approx(weight * plus + minus, rel=1e-5)
    assert reply.metrics["lambda"] == pytest.approx(weight)
    assert reply.up.n == 3


def test_without_negative_learning_only_pseudo_labels_teach() -> None:
    reply = visit(seeing(PAIR, FedSeal(negative=False), views=Scaled()), 0, down(LOOSE), round=200)
    targets = by_hand.one_hot([0, 2], 3)
    assert apart(params.sub(EYE, reply.up.w), by_hand.slope(EYE, PAIR[[0, 3]].log() * 0.5, targets)) < 1e-6
    assert reply.pseudo_labels.complementary.tolist() == [-1] * 4
    assert reply.metrics["negative"] == 0
    assert "loss_negative" not in reply.metrics
    assert reply.up.n == 2


def test_with_complementary_labels_alone() -> None:
    reply = visit(seeing(PAIR, FedSeal(), views=Scaled()), 0, down(torch.full((3,), inf)))
    excluded = reply.pseudo_labels.complementary.tolist()
    assert excluded[2] == -1
    expected = negative_gradient(PAIR[[0, 1, 3]].log(), [excluded[k] for k in (0, 1, 3)])
    assert apart(params.sub(EYE, reply.up.w), expected) < 1e-6
    assert "loss_positive" not in reply.metrics


def test_batches_run_over_both_sets_and_nothing_else() -> None:
    views = Scaled()
    task = seeing(SEEN.repeat(4, 1), FedSeal(), Training(epochs=3, batch=5, lr=0.01), views=views)
    reply = visit(task, 0, down())
    assert reply.metrics["steps"] == 3 * 4  # 16 of 20 samples, in batches of 5
    looked = {name: sum(n for view, n in views.looks if view == name) for name in ("plain", "weak", "strong")}
    assert looked == {"plain": 20 + 3 * 12, "weak": 0, "strong": 3 * 4}  # all once for p̄, then D⁻; D⁺


def test_both_losses_are_means_within_a_batch() -> None:
    """Batches of one: a step per sample, with the whole weight of its set."""
    train = Training(epochs=1, batch=1, lr=1e-4, momentum=0.0)
    reply = visit(seeing(PAIR, FedSeal(), train, views=Scaled()), 0, down(LOOSE), round=200)
    targets = by_hand.one_hot([0, 2], 3)
    pull = params.scale(by_hand.slope(EYE, PAIR[[0, 3]].log() * 0.5, targets), 2.0)
    expected = params.scale(params.add(pull, negative_gradient(PAIR[[1]].log(), [2])), 1e-4)
    assert apart(params.sub(EYE, reply.up.w), expected) < 1e-6
    # What is logged is a mean over all three steps: one without samples of a set counts as 0.
    plus = -float((targets * (PAIR[[0, 3]].log() * 0.5).log_softmax(dim=1)).sum())
    assert reply.metrics["loss_positive"] == pytest.approx(plus / 3, rel=1e-3)
    assert reply.metrics["loss_negative"] == pytest.approx(-log(1 - 0.04) / 3, rel=1e-3)


# λ.


def test_lambda_grows_to_one_in_round_45() -> None:
    method = FedSeal()
    assert [method.weight(r) for r in (0, 1, 10)] == pytest.approx([0.1, 0.1 / 0.95, 0.1 / 0.95**10])
    assert method.weight(44) < 1
    assert method.weight(45) == method.weight(99) == method.weight(1000) == 1


def test_without_a_cap_lambda_grows_until_round_100() -> None:
    method = FedSeal(lambda_cap=1000.0)
    assert method.weight(45) == pytest.approx(1.0, abs=0.01)
    assert method.weight(100) == pytest.approx(16.9, abs=0.05)
    assert method.weight(150) == method.weight(100) > method.weight(99)
    assert FedSeal(lambda_cap=1000.0, lambda_until=10).weight(50) == pytest.approx(0.1 / 0.95**10)
    assert FedSeal(lambda_until=0).weight(50) == 0.1


def test_a_lambda_that_starts_above_the_cap_is_refused() -> None:
    with refused("method.lambda-start-above-cap") as caught:
        FedSeal(lambda_start=2.0)
    assert caught.error.problem == "method.lambda_start = 2 is above method.lambda_cap = 1"
    assert FedSeal(lambda_start=2.0, lambda_cap=2.0).weight(7) == 2
    assert FedSeal(lambda_start=1.0).weight(0) == FedSeal(lambda_start=1.0).weight(7) == 1


def test_a_tiny_decay_takes_lambda_to_its_cap_at_once() -> None:
    assert FedSeal(lambda_decay=1e-200).weight(2) == 1
    assert FedSeal(lambda_decay=1e-200, lambda_start=0.0).weight(2) == 0


# Step 1: the server.


def test_the_server_trains_before_the_first_round_with_separate_streams() -> None:
    task = crowd(FedSeal(bootstrap=0))
    server = task.server(0, {})
    begin = FedAvg().start(server).w  # the weights every method starts from
    before = replace(server, streams=server.streams.within("start"))
    expected = fit(before, begin, Supervised()).params
    state = task.method.start(server)
    assert same(state.w, expected)
    again = task.method.merge(server, replace(state, w=begin), {})  # the same work in round 0
    assert same(again.w, fit(server, begin, Supervised()).params)
    assert not same(again.w, expected)


@pytest.mark.parametrize("steps", [None, 1])
def test_bootstrapping_trains_longer_first(steps: int | None) -> None:
    """In epochs, whatever the server does in a round, and with other random numbers than the round that follows."""
    task = crowd(FedSeal(bootstrap=7), server_train=replace(TWO_EPOCHS, steps=steps))
    server = task.server(0, {})
    streams = server.streams.within("start")
    longer = replace(server, train=replace(TWO_EPOCHS, epochs=7), streams=streams.within("bootstrap"))
    w0 = fit(longer, server.initial(), Supervised())
    assert w0.steps == 14
    assert same(task.method.start(server).w, fit(replace(server, streams=streams), w0.params, Supervised()).params)


@pytest.mark.parametrize("view", ["plain", "weak", "strong"])
def test_the_server_uses_the_view_setting_before_the_first_round_too(view: Any) -> None:
    """In both trainings: w^0, and step 1 of round 1."""
    task = crowd(FedSeal(bootstrap=2, view=view), views=Scaled())
    server = task.server(0, {})
    begin, streams = server.initial(), server.streams.within("start")
    first = replace(server, train=replace(TWO_EPOCHS, epochs=2), streams=streams.within("bootstrap"))
    second = replace(server, streams=streams)
    looks: tuple[Any, ...] = ("plain", "weak", "strong")
    ways = {(a, b): fit(second, fit(first, begin, Supervised(a)).params, Supervised(b)) for a in looks for b in looks}
    assert [way for way, trained in ways.items() if same(task.method.start(server).w, trained.params)] == [(view, view)]


@pytest.mark.parametrize("optimizer", ["keep", "reset"])
def test_momentum_of_bootstrapping_continues_in_round_1_if_it_is_carried(optimizer: Any) -> None:
    task = crowd(FedSeal(bootstrap=3), server_train=replace(TWO_EPOCHS, optimizer=optimizer))
    server = task.server(0, {})
    streams = server.streams.within("start")
    longer = replace(server.train, epochs=3)
    w0 = fit(replace(server, train=longer, streams=streams.within("bootstrap")), server.initial(), Supervised())
    later = replace(server, streams=streams)
    with_it, without = (fit(later, w0.params, Supervised(), carried=carried) for carried in (w0.carried, None))
    assert same(task.method.start(server).w, with_it.params)
    assert same(with_it.params, without.params) == (optimizer == "reset")


@pytest.mark.parametrize("bootstrap, before", [(0, 0), (7, 14)])
def test_steps_of_the_first_round_count_those_before_it(bootstrap: int, before: int) -> None:
    """An epoch of twelve samples is two batches of six; w^0, step 1 of round 1, and step 1 of round 2."""
    records = play_all(crowd(replace(NONE, bootstrap=bootstrap), rounds=3)).records
    assert [record.server["steps"] for record in records] == [before + 4 + 4, 4, 4]


def test_the_servers_rate_is_one_decay_behind_that_of_its_clients() -> None:
    """The training that opens a round has the rate of the round it closes; the first two have that of the first."""
    task = crowd(NONE, rounds=4, train=replace(TWO_EPOCHS, schedule="decay:0.5"))
    w = started(task).w
    for r, moment in enumerate(rounds(task)):
        constant = replace(TWO_EPOCHS, lr=0.1 * 0.5**r)  # what clients have in this round, and not in the next
        w = fit(replace(task.server(r, {}), train=constant), w, Supervised()).params
        assert same(moment.state.w, w)
        assert learning_rate(task.client(r, 0).train, r, 4) == constant.lr


@pytest.mark.parametrize("view, factor", [("plain", 1), ("weak", 2), ("strong", 0.5)])
def test_the_view_setting_is_that_of_the_servers_images(view: Any, factor: float) -> None:
    x = torch.tensor([[1.0, -2.0, 0.5], [0.0, 1.0, 3.0]])
    data = federation([hide(points(0, 4, features=3))], samples(x.tolist(), [0, 2]), views=Scaled())
    task = job(FedSeal(view=view), data, linear(3, 3), train=ONE_STEP)
    state = replace(started(task), w=EYE)
    merged = task.method.merge(task.server(0, {}), state, {}).w
    expected = by_hand.slope(EYE, x * factor, by_hand.one_hot([0, 2], 3))
    assert apart(params.sub(EYE, merged), expected) < 1e-6


@pytest.mark.parametrize("weights, share", [("uniform", 1 / 2), ("samples", 1 / 4)])
def test_the_server_trains_on_the_average(weights: Any, share: float) -> None:
    task = crowd(replace(ALL, weights=weights))
    server = task.server(0, {})
    state = task.method.start(server)
    ups = {0: WeightsUp(state.w, 10), 2: WeightsUp({k: v + 1 for k, v in state.w.items()}, 30)}
    mean = {k: v + (1 - share) for k, v in state.w.items()}
    assert apart(task.method.merge(server, state, ups).w, fit(server, mean, Supervised()).params) < 1e-6


def test_the_model_evaluated_is_the_one_the_server_trained_last() -> None:
    task = crowd(ALL, rounds=1)
    server = task.server(0, {})
    begin = task.method.start(server).w
    local = [visit(task, k, down(torch.zeros(3), begin)).up.w for k in range(4)]
    w = fit(server, params.mean(local), Supervised()).params
    last = next(rounds(task))
    assert same(last.state.w, w)
    assert task.method.model(last.state) is last.state.w
    test = task.federation.test
    right = predict(task.net, w, test.x, Identity()).argmax(dim=1) == test.y
    assert last.record.accuracy == float(right.double().mean())


def test_without_uploads_the_server_trains_all_the_same() -> None:
    task = crowd(NONE, cohort=2)
    played = play_all(task)
    w = started(task).w
    for r in range(5):
        w = fit(task.server(r, {}), w, Supervised()).params
    assert same(played.state.w, w)
    assert all(record.bytes_up == record.steps == 0 for record in played.records)


def test_the_server_carries_its_momentum_if_set() -> None:
    settings = (replace(TWO_EPOCHS, optimizer=way) for way in ("keep", "reset"))
    carried, reset = (play_all(crowd(NONE, server_train=train)) for train in settings)
    assert carried.state.carried is not None
    assert not same(carried.state.w, reset.state.w)


@pytest.mark.parametrize("ensemble", [True, False])
def test_a_client_continues_with_its_momentum(ensemble: bool) -> None:
    """By hand: one step of rate 1 with momentum ½ goes half the carried velocity further."""
    train = replace(ONE_STEP, momentum=0.5, optimizer="keep")
    task = seeing(SEEN, FedSeal(ensemble=ensemble), train)
    memory = visit(task, 0, down()).memory
    with_it, without = (visit(task, 0, down(), each, round=1) for each in (memory, replace(memory, carried=None)))
    further = params.scale(memory.carried.velocity, 0.5)
    assert max(float(value.abs().max()) for value in further.values()) > 1e-3
    assert apart(params.sub(without.up.w, with_it.up.w), further) < 1e-6


def test_a_client_that_does_not_train_carries_its_momentum() -> None:
    task = seeing(SEEN, FedSeal(), replace(ONE_STEP, momentum=0.5, optimizer="keep"))
    memory = visit(task, 0, down()).memory
    assert memory.carried is not None
    listened = visit(task, 0, down(train=False), memory, round=1).memory
    assert listened.carried is memory.carried
    assert listened.models == 2


# Reductions.


BARE = FedSeal(bootstrap=0, ensemble=False, negative=False, threshold=0.0, lambda_start=1.0)
GLOBAL = FixMatch(labeler="global", threshold=0.0, over="kept")


@pytest.mark.parametrize("optimizer", ["reset", "keep"])
def test_without_both_ideas_it_is_fedavg_with_fixmatch_to_the_last_bit(optimizer: Any) -> None:
    task = crowd(BARE, cohort=2, train=replace(TWO_EPOCHS, optimizer=optimizer))
    task = replace(task, federation=replace(task.federation, views=Noisy()))
    plain = replace(task, method=FedAvg(GLOBAL, weights="uniform", server="after"))
    one, two = play_all(task), play_all(plain)
    assert same(one.state.w, two.state.w)
    assert [record.accuracy for record in one.records] == [record.accuracy for record in two.records]
    for idea in ({"ensemble": True}, {"threshold": 0.6, "negative": True, "theta": 0.2}, {"lambda_start": 0.5}):
        assert not same(play_all(replace(task, method=replace(BARE, **idea))).state.w, two.state.w)


def test_with_class_thresholds_it_is_fixmatch_on_the_samples_above_them() -> None:
    data, tau = hide(points(0, 40)), torch.tensor([0.7, 0.6, 0.75])
    w = FedSeal(bootstrap=20).start(crowd(BARE).server(0, {})).w
    p = predict(linear(), w, data.x, Identity())
    above = (p.amax(dim=1) >= tau[p.argmax(dim=1)]).nonzero().reshape(-1)
    assert 6 < len(above) < 40
    assert len(set(p.argmax(dim=1)[above].tolist())) == 3
    mine = visit(alone(BARE, data, views=Noisy(), train=TWO_EPOCHS), 0, down(tau, w))
    theirs = visit(alone(FedAvg(GLOBAL), data.take(above), views=Noisy(), train=TWO_EPOCHS), 0, WeightsDown(w))
    assert same(mine.up.w, theirs.up.w)
    assert mine.up.n == theirs.up.n == len(above)
    assert mine.metrics["loss_positive"] == theirs.metrics["loss_unlabeled"]


def test_a_run_with_class_thresholds_is_fedavg_on_the_samples_above_them_to_the_last_bit() -> None:
    """Four rounds with τ of Eq. 5, computed in each, by FedAvg's means alone."""
    task = crowd(replace(BARE, threshold=None), cohort=3, rounds=4, views=Noisy())
    moments, w, shares = list(rounds(task)), started(task).w, set[float]()
    held = task.federation.server.validation
    for r, moment in enumerate(moments):
        tau, local = thresholds(predict(task.net, w, held.x, Identity()), held.y), []
        for k in task.sample(r):
            client = task.client(r, k)
            p = predict(task.net, w, client.data.x, Identity())
            above = (p.amax(dim=1) >= tau[p.argmax(dim=1)]).nonzero().reshape(-1)
            shares.add(len(above) / len(p))
            if len(above):
                local.append(fit(replace(client, data=client.data.take(above)), w, GLOBAL).params)
        w = fit(task.server(r, {}), params.mean(local), Supervised()).params
        assert same(moment.state.w, w)
    assert any(0 < share < 1 for share in shares)
    assert len(shares) > 2


# Clients with little.


def test_labels_at_a_client_are_not_used() -> None:
    known, unknown = points(0, 5), hide(points(1, 20))
    both = Samples(torch.cat([known.x, unknown.x]), torch.cat([known.y, unknown.y]))
    w, tau = started(crowd(ALL)).w, torch.tensor([0.3, 0.4, 0.5])
    one, two = (visit(alone(FedSeal(theta=0.2), data, train=TWO_EPOCHS), 0, down(tau, w)) for data in (both, unknown))
    assert same(one.up.w, two.up.w)
    assert torch.equal(one.memory.mean, two.memory.mean)
    assert one.pseudo_labels.index.tolist() == list(range(5, 25))


@pytest.mark.parametrize("empty", [points(5, 0), points(5, 6)], ids=["nothing", "labels only"])
def test_a_client_without_unlabeled_data_uploads_nothing(empty: Samples) -> None:
    full = [hide(points(k, 20)) for k in range(2)]
    given = (points(9, 12), points(8, 30), points(7, 15))
    with_it = play_all(job(FedSeal(bootstrap=0), federation([*full, empty], *given), linear(), train=TWO_EPOCHS))
    without = play_all(job(FedSeal(bootstrap=0), federation(full, *given), linear(), train=TWO_EPOCHS))
    assert same(with_it.state.w, without.state.w)
    assert all(record.traffic[2][1] == 0 for record in with_it.records)
    assert with_it.memories[2].mean.shape == (0, 3)


def test_a_client_whose_samples_are_in_neither_set_uploads_nothing() -> None:
    reply = visit(seeing(SEEN, NONE), 0, down(torch.ones(3)))
    assert reply.up is None
    assert same(reply.model, EYE)
    assert reply.metrics == {"steps": 0, "positive": 0, "negative": 0, "lambda": 0.1}
    assert reply.memory.models == 1


# What is logged, and what is refused.


@pytest.mark.parametrize(
    "truth, pseudo, complementary",
    [
        ([0, 1, 2, 1, 2], 1.0, 1.0),
        ([1, 2, 0, 1, 2], 0.0, 2 / 3),  # sample 1 is the very class of its complementary label
    ],
)
def test_correct_rates_of_both_kinds_of_labels(truth: list[int], pseudo: float, complementary: float) -> None:
    task = seeing(SEEN, FedSeal(), truth=torch.tensor(truth))
    metrics = run_client(task, 0, 0, ClientTask(down(), None)).metrics
    assert metrics["pseudo_accuracy"] == pseudo
    assert metrics["complementary_accuracy"] == pytest.approx(complementary)
    assert metrics["pseudo_kept"] == pytest.approx(1 / 5)


def test_a_round_records_correct_rates_thresholds_and_losses() -> None:
    data = [points(k, 20) for k in range(3)]
    truth = torch.cat([each.y for each in data])
    given = federation([hide(each) for each in data], points(9, 12), points(8, 30), points(7, 15), truth=truth)
    task = job(FedSeal(bootstrap=3, theta=0.2), given, linear(), train=TWO_EPOCHS, cohort=2)
    record = next(rounds(task)).record
    _, downs = task.method.send(task.server(0, {}), started(task))
    found = {k: visit(task, k, downs[k]).pseudo_labels for k in task.sample(0)}
    rates = [float((each.label == data[k].y)[each.accepted].double().mean()) for k, each in found.items()]
    negative = {k: each.complementary for k, each in found.items()}
    others = [float((each != data[k].y)[each >= 0].double().mean()) for k, each in negative.items()]
    assert record.metrics["pseudo_accuracy"]["mean"] == pytest.approx(sum(rates) / 2)
    assert record.metrics["complementary_accuracy"]["mean"] == pytest.approx(sum(others) / 2)
    assert record.metrics.keys() >= {"positive", "negative", "lambda", "loss_positive", "loss_negative"}
    assert record.server.keys() == {"threshold_0", "threshold_1", "threshold_2", "steps", "loss_supervised"}
    assert record.clients == 3


def test_clients_that_do_not_train_count_for_min_clients() -> None:
    """Rounds in which the only client that trains is lost continue with those that only receive."""
    task = crowd(ALL, cohort=1, rounds=12, faults=Faults(lost=0.3), min_clients=1)
    alone = [record for record in play_all(task).records if set(task.sample(record.round)) <= record.skipped.keys()]
    assert alone
    assert all(record.clients == 4 - len(record.skipped) >= 1 for record in alone)


def test_the_log_has_null_for_a_class_without_validation_samples(tmp_path: Path) -> None:
    data = str(farm.write_images(tmp_path / "images.npz"))
    settings: dict[str, Any] = {
        "method": "fedseal",
        "labels": "server",
        "per_class": 2,
        "clients": 3,
        "rounds": 1,
        "net": "linear",
        "workers": 0,
        "data.validation": 1,
        "method.bootstrap": 0,
    }
    tacit.run(out=tmp_path / "run", data=data, **settings)
    server = farm.remains(tmp_path / "run")[0][0]["server"]
    found = [value for name, value in server.items() if name.startswith("threshold_")]
    assert len(found) > 2
    assert sum(value is None for value in found) == len(found) - 1


# BatchNorm.


def normalised(method: FedSeal, **options: Any) -> Job:
    """Three clients with images, a server with labels and validation images, and a network with BatchNorm."""
    data = federation([hide(images(k, 9)) for k in range(3)], images(50, 6), images(60, 12), images(70, 6))
    settings: dict[str, Any] = {"train": Training(batch=4, lr=0.05), "cohort": 2} | options
    return job(method, data, normed(), **settings)


def elsewhere(net: Net, w: Params) -> Params:
    """The model with other statistics: what it answers in training mode is the same, in evaluation mode it is not."""
    return w | {name: w[name] + 1.0 for name in net.buffers if name.endswith("running_mean")}


def evaluated(net: Net, w: Params, x: Tensor) -> Tensor:
    return net.apply(w, x.float()).softmax(dim=1)


def test_mean_confidences_are_those_of_evaluation_mode() -> None:
    task = normalised(ALL)
    w, x = started(task).w, task.federation.client(0, 0).x
    first, second = w, elsewhere(task.net, w)
    memory = visit(task, 0, down(torch.zeros(3), first)).memory
    assert torch.allclose(memory.mean, evaluated(task.net, first, x), atol=1e-6)
    mean = visit(task, 0, down(torch.zeros(3), second), memory, round=1).memory.mean
    both = [evaluated(task.net, each, x) for each in (first, second)]
    assert torch.allclose(mean, (both[0] + both[1]) / 2, atol=1e-6)
    assert not torch.allclose(both[0], both[1], atol=1e-2)


def test_thresholds_are_those_of_evaluation_mode() -> None:
    task = normalised(FedSeal(bootstrap=2))
    state, held, found = started(task), task.federation.server.validation, []
    for w in (state.w, elsewhere(task.net, state.w)):
        _, downs = task.method.send(task.server(0, {}), replace(state, w=w))
        found.append(downs[0].thresholds)
        assert torch.allclose(found[-1], thresholds(evaluated(task.net, w, held.x), held.y), atol=1e-6)
    assert not torch.allclose(found[0], found[1], atol=1e-2)


@pytest.mark.parametrize("ensemble", [True, False])
def test_a_client_trains_but_does_not_label_with_its_own_statistics(ensemble: bool) -> None:
    """A step takes over a tenth of its batch's mean, so that of a difference of 1 it leaves 0.9."""
    method = replace(ALL, ensemble=ensemble, negative=False)
    task = normalised(method, train=Training(batch=4, lr=0.0, buffers="keep"))
    sent = down(torch.zeros(3), started(task).w)
    memory = visit(task, 0, sent).memory
    assert memory.carried.buffers is not None
    moved = replace(memory, carried=replace(memory.carried, buffers=elsewhere(task.net, memory.carried.buffers)))
    one, two = (visit(task, 0, sent, each, round=1) for each in (memory, moved))
    assert torch.equal(one.memory.mean, two.memory.mean)
    assert torch.allclose(one.memory.mean, evaluated(task.net, sent.w, task.federation.client(0, 0).x), atol=1e-6)
    left = 0.9 ** one.metrics["steps"]
    for name in task.net.buffers:
        gone = two.memory.carried.buffers[name] - one.memory.carried.buffers[name]
        expected = torch.full_like(gone, left if name.endswith("running_mean") else 0.0)
        assert torch.allclose(gone, expected, atol=1e-4)


def test_both_views_are_one_pass_to_batchnorm() -> None:
    task = normalised(FedSeal())
    client, net, w = task.client(0, 0), task.net, started(task).w
    x, y = client.data.x.float(), torch.tensor([0, 1, 2, 0, -1, -1, -1, -1, -1])
    other = torch.tensor([-1, -1, -1, -1, 1, 2, 0, 1, 2])
    objective = _Seal(Filtered(y, other, torch.zeros(9, 3)), 1.0, "hard")
    batch = Batch(client.data.x[:0], y[:0], client.data.x, torch.arange(9))
    cost = loss_of_batch(objective.local_loss(client, w, {}), client.net, params.clone(w), batch)
    together = net.apply(params.clone(w), x, train=True)[:4]
    apart_from_it = net.apply(params.clone(w), x[:4], train=True)
    one, two = (float(functional.cross_entropy(logits, y[:4])) for logits in (together, apart_from_it))
    assert float(cost.metrics["loss_positive"]) == pytest.approx(one, rel=1e-4)
    assert float(cost.metrics["loss_positive"]) != pytest.approx(two, rel=1e-3)


@pytest.mark.parametrize("buffers", ["average", "keep", "recompute"])
def test_the_average_the_server_trains_on_has_statistics_by_its_setting(buffers: Any) -> None:
    train = Training(batch=4, lr=0.05)
    task = normalised(ALL, train=train, server_train=replace(train, buffers=buffers))
    server, state = task.server(0, {}), replace(started(task), carried=None)
    ups = {k: visit(task, k, down(torch.zeros(3), state.w)).up for k in range(2)}
    mean = params.mean([up.w for up in ups.values()])
    plain = server.views.plain(images(50, 6).x)
    ways = {
        "average": mean,
        "keep": mean | {name: state.w[name] for name in task.net.buffers},
        "recompute": task.net.recompute_batchnorm(mean, [plain]),
    }
    after = {name: fit(server, w, Supervised()).params for name, w in ways.items()}
    merged = task.method.merge(server, state, ups).w
    assert [name for name, w in after.items() if same(merged, w)] == [buffers]


@pytest.mark.parametrize("buffers", ["average", "keep", "recompute"])
def test_batchnorm_statistics_change_and_clients_carry_theirs_if_set(buffers: Any) -> None:
    task = normalised(FedSeal(bootstrap=2, theta=0.3), train=Training(batch=4, lr=0.05, buffers=buffers))
    net = task.net
    last = list(rounds(task))[-1]
    assert net.buffers
    assert finite(last.state.w)
    assert last.state.w.keys() == set(net.names)
    begin = started(task).w
    assert any(not torch.equal(last.state.w[name], begin[name]) for name in net.buffers)
    trained = [memory.carried for k, memory in last.memories.items() if k in task.sample(2)]
    assert [carried is not None for carried in trained] == [buffers == "keep"] * 2
