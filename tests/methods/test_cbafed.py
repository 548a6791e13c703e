"""CBAFed: thresholds, fixed labels and residual connections by hand, who trains when, and what is left without them."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from tacit.aggregation import WeightsUp
from tacit.engines.job import Job
from tacit.federation import Federation
from tacit.learn import fit
from tacit.method import Training
from tacit.methods.cbafed import CbaFed, CbaFedState, CbaFedUp, class_shares, fixed_labels, thresholds
from tacit.methods.fedavg import FedAvg
from tacit.objectives import Supervised
from tacit.params import Params, lerp
from tacit.updates import LabelCounts
from tests.toys import federation, hide, job, linear, play_all, points, rounds, same, started, visit

TRAIN = Training(batch=6, lr=0.1)


def data() -> Federation:
    """One client with twelve labels, two without any."""
    return federation([points(0, 12), hide(points(1, 12)), hide(points(2, 12))])


def build(**options: Any) -> Job:
    return job(CbaFed(**options), data(), linear(), train=TRAIN)


# The equations.


def test_shares_are_those_of_all_clients_together() -> None:
    assert class_shares([torch.tensor([1, 2]), torch.tensor([5, 0])]).tolist() == pytest.approx([0.75, 0.25])
    assert class_shares([torch.tensor([0, 0])]).tolist() == [0.5, 0.5]


def test_the_thresholds_by_hand() -> None:
    shares = torch.zeros(10)
    shares[0], shares[1:] = 0.28, 0.08
    # The mean is 0.1; the squared deviations are 0.18² + 9·0.02² = 0.036, over n - 1 = 9: std = √0.004
    std = 0.004**0.5
    found = thresholds(shares, 0.84, 0.95)
    assert found[0].item() == pytest.approx(0.95)  # 0.28 + 0.84 - 0.063 is beyond the highest
    assert found[1].item() == pytest.approx(0.08 + 0.84 - std)
    # With twenty classes the same relative shares give the same thresholds, but for the n - 1 of the deviation.
    twice = shares.repeat(2) / 2
    assert thresholds(twice, 0.84, 0.95)[1].item() == pytest.approx(0.08 + 0.84 - (0.072 / 19) ** 0.5)


def test_equal_shares_give_base_plus_share() -> None:
    assert thresholds(torch.full((10,), 0.1), 0.84, 0.95).tolist() == pytest.approx([0.94] * 10)


def test_a_confident_sample_has_its_label_and_an_unsure_one_a_second_guess_in_the_tail() -> None:
    q = torch.tensor([[0.9, 0.05, 0.05], [0.6, 0.3, 0.1], [0.6, 0.1, 0.3], [0.1, 0.2, 0.7], [0.8, 0.15, 0.05]])
    tau = torch.tensor([0.8, 0.9, 0.65])
    # Above 0.8; below it with second guess 1, in the tail; below it with second guess 2, not in the tail; class 2 above
    # its own 0.65; not above 0.8, but equal to it.
    assert fixed_labels(q, tau, torch.tensor([False, True, False])).tolist() == [0, 1, -1, 2, 1]
    assert fixed_labels(q, tau, torch.zeros(3).bool()).tolist() == [0, -1, -1, 2, -1]


# The course of a run.


def test_clients_with_labels_train_first_and_everyone_is_asked() -> None:
    given = job(CbaFed(warmup_epochs=3), data(), linear(), train=TRAIN, cohort=1)
    server, state = given.server(0, {}), started(given)
    _, downs = given.method.send(server, state)
    assert set(downs) == {0, 1, 2}
    assert visit(given, 1, downs[1]).up is None
    up = visit(given, 0, downs[0]).up
    assert up.trained.n == 12
    assert up.counts.of.tolist() == torch.bincount(points(0, 12).y, minlength=3).tolist()
    after = given.method.merge(server, state, {0: up})
    _, later = given.method.send(given.server(1, {}), after)
    assert set(later) == set(given.server(1, {}).cohort)
    assert later[min(later)].shares.tolist() == pytest.approx((up.counts.of / 12).tolist())


def test_while_nobody_with_labels_was_heard_the_warm_up_goes_on() -> None:
    given = build()
    _, downs = given.method.send(given.server(3, {}), started(given))
    assert downs[0].shares is None


def down(given: Job, w: Params | None = None) -> Any:
    """What clients get after the warm-up."""
    state = started(given)
    counts = {0: torch.tensor([4, 4, 4])}
    return given.method.send(given.server(1, {}), CbaFedState(w or state.w, state.w, counts))[1][0]


def test_a_client_without_labels_learns_from_confident_ones_and_says_how_many() -> None:
    everything = build(base=0.0, highest=0.0)  # every threshold is 0
    reply = visit(everything, 1, down(everything), round=1)
    assert reply.up.trained.n == 12
    assert reply.up.counts.of.sum() == 12
    nothing = build(base=1.0, highest=1.0, tail=0.0)
    reply = visit(nothing, 1, down(nothing), round=1)
    assert reply.up.trained is None
    assert reply.up.counts.of.tolist() == [0, 0, 0]
    assert not reply.pseudo_labels.accepted.any()


def test_counts_of_absent_clients_stay() -> None:
    given = build()
    state = started(given)
    before = CbaFedState(state.w, state.w, {0: torch.tensor([1, 2, 3]), 1: torch.tensor([9, 9, 9])})
    up = CbaFedUp(None, LabelCounts(torch.tensor([0, 0, 5])))
    after = given.method.merge(given.server(1, {}), before, {1: up})
    assert {k: count.tolist() for k, count in after.counts.items()} == {0: [1, 2, 3], 1: [0, 0, 5]}
    assert same(after.w, before.w)  # nobody trained


def test_the_model_of_five_rounds_ago_comes_back() -> None:
    given = build(warmup=2, every=5)
    w = started(given).w
    up = {0: CbaFedUp(WeightsUp({name: value + 1 for name, value in w.items()}, 1), LabelCounts(torch.ones(3).long()))}
    state = CbaFedState(w, w)
    for round in range(8):
        state = given.method.merge(given.server(round, {}), state, up)
        if round < 2:
            assert same(state.record, state.w)  # the last model of the warm-up is the first to come back
            state = CbaFedState(w, w, state.counts)
        elif round < 7:
            assert same(state.record, w)
    # Round 7 is the fifth after the first of its phase: half of w + 1 and half of w.
    assert same(state.w, lerp(up[0].trained.w, w, 0.5))  # type: ignore[union-attr]
    assert same(state.record, state.w)


def test_weights_of_five_epochs_ago_come_back_at_a_client_with_labels() -> None:
    given = build(labeled_epochs=6, local_residual=0.8)
    reply = visit(given, 0, down(given), round=1)
    client = given.client(1, 0)

    def after(epochs: int) -> Params:
        train = Training(batch=6, lr=0.1, epochs=epochs)
        return fit(replace(client, train=train), down(given).w, Supervised()).params

    expected = lerp(after(6), after(1), 0.8)
    for name, value in reply.up.trained.w.items():
        assert torch.allclose(value, expected[name], atol=1e-6)


def test_without_unlabeled_samples_and_residuals_it_is_fedavg_on_labels() -> None:
    everyone = federation([points(k, 12) for k in range(3)])
    train = Training(batch=6, lr=0.1, epochs=2)
    method = CbaFed(warmup=1, warmup_epochs=2, labeled_epochs=2, local_residual=0.0, residual=0.0)
    mine, plain = (play_all(job(each, everyone, linear(), train=train)) for each in (method, FedAvg(Supervised())))
    assert same(mine.state.w, plain.state.w)


def test_clients_without_labels_have_their_own_learning_rate() -> None:
    slow, usual = build(base=0.0, highest=0.0, unlabeled_lr=1e-6), build(base=0.0, highest=0.0)
    w = started(usual).w
    moved = [
        max(float((visit(each, 1, down(each), round=1).up.trained.w[n] - w[n]).abs().max()) for n in w)
        for each in (slow, usual)
    ]
    assert moved[0] < 1e-4 < moved[1]


def test_a_run_learns_from_all_clients() -> None:
    last = list(rounds(build(warmup_epochs=5, base=0.3)))[-1]
    assert set(last.state.counts) == {0, 1, 2}
