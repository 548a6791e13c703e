"""RSCFed: the reweighted consensus by hand, who is in a subset, the teacher a client keeps, and what is left of it."""

from math import exp
from typing import Any

import pytest
import torch
from torch.nn import functional

from tacit.engines.job import Job
from tacit.federation import Federation
from tacit.method import Training
from tacit.methods.fedavg import FedAvg
from tacit.methods.rscfed import STEPS, RscFed, RscFedState, RscFedUp, draw_subsets, model_distance, reweighted
from tacit.objectives import Supervised
from tacit.params import Params, clone
from tests.toys import apart, federation, hide, job, linear, play_all, points, rounds, same, samples, started, visit

TRAIN = Training(batch=6, lr=0.1)


def data(clients: int = 4) -> Federation:
    """The first client has twelve labels, the others none."""
    return federation([points(0, 12), *(hide(points(k, 12)) for k in range(1, clients))])


def build(**options: Any) -> Job:
    return job(RscFed(**{"warmup": 0} | options), data(), linear(), train=TRAIN)


def number(value: float) -> Params:
    """A model of one number."""
    return {"p": torch.tensor([value], dtype=torch.float64)}


def up(value: float, n: int, full: bool = False) -> RscFedUp:
    return RscFedUp(number(value), n, full)


def merged(method: RscFed, ups: dict[int, RscFedUp], *subsets: tuple[int, ...]) -> float:
    """The number after a round with these subsets."""
    server = build().server(3, {})
    return method.merge(server, RscFedState(number(7.0), subsets), ups).w["p"].item()


# The consensus.


def test_a_subset_weights_its_models_by_size_and_distance_to_their_mean() -> None:
    # Models 1 of two samples and 4 of one: their mean is (2·1 + 4)/3 = 2, at distances 1 and 2.
    first, second = 2 * exp(-0.5 * 1 / 2), 1 * exp(-0.5 * 2 / 1)
    expected = (first * 1 + second * 4) / (first + second)
    assert merged(RscFed(beta=0.5), {0: up(1, 2), 1: up(4, 1)}, (0, 1)) == pytest.approx(expected, abs=1e-12)


def test_a_fully_labeled_client_counts_more_and_brings_its_own_beta() -> None:
    ups = {0: up(1, 2), 1: up(4, 1, full=True)}
    method = RscFed(beta=9.0, beta_labeled=0.5, labeled_factor=3.0)
    first, second = 2 * exp(-0.5 * 1 / 2), 3 * exp(-0.5 * 2 / 1)
    assert merged(method, ups, (0, 1)) == pytest.approx((first + second * 4) / (first + second), abs=1e-12)
    # Where sizes are multiplied too, the mean is (2·1 + 3·4)/5 = 2.8 and the factor counts twice.
    twice = RscFed(beta_labeled=0.5, labeled_factor=3.0, boost_sizes=True)
    first, second = 2 * exp(-0.5 * 1.8 / 2), 9 * exp(-0.5 * 1.2 / 1)
    assert merged(twice, ups, (0, 1)) == pytest.approx((first + second * 4) / (first + second), abs=1e-12)


def test_the_new_model_is_the_plain_mean_of_the_subsets() -> None:
    ups = {0: up(1, 2), 1: up(4, 1), 2: up(10, 5)}
    one, two = (merged(RscFed(beta=0.5), ups, subset) for subset in ((0, 1), (1, 2)))
    assert merged(RscFed(beta=0.5), ups, (0, 1), (1, 2)) == pytest.approx((one + two) / 2, abs=1e-12)


def test_clients_that_did_not_arrive_are_missing_in_their_subsets() -> None:
    ups = {0: up(1, 2), 3: up(4, 1)}
    assert merged(RscFed(), ups, (0, 1), (1, 2)) == 1.0  # the second subset has nobody
    assert merged(RscFed(), {}, (0, 1)) == 7.0
    assert merged(RscFed(), {0: up(1, 2), 1: up(9, 0)}, (0, 1)) == 1.0  # of no samples


def test_weights_do_not_vanish_all_at_once() -> None:
    assert reweighted([1.0, 1.0], [5.0, 6.0], [1, 1], beta=1e4) == [1.0, 0.0]
    assert reweighted([1.0, 3.0], [5.0, 5.0], [1, 1], beta=1e4) == pytest.approx([0.25, 0.75])


def test_the_distance_of_all_weights_or_of_each_tensor() -> None:
    a, b = {"p": torch.tensor([3.0, 0.0]), "q": torch.tensor([1.0])}, {"p": torch.zeros(2), "q": torch.tensor([5.0])}
    assert model_distance(a, b, "l2") == pytest.approx(5.0)  # √(3² + 4²)
    assert model_distance(a, b, "layers") == pytest.approx(7.0)  # 3 + 4


# Who takes part.


def test_subsets_are_drawn_without_repetition() -> None:
    subsets = draw_subsets((2, 3, 5, 7, 11), 4, 3, torch.Generator().manual_seed(0))
    assert len(subsets) == 4
    assert all(len(set(subset)) == 3 and set(subset) <= {2, 3, 5, 7, 11} for subset in subsets)
    assert len(set(subsets)) > 1
    assert draw_subsets((4, 6), 2, 5, torch.Generator()) == ((4, 6), (4, 6))


def test_only_members_of_a_subset_are_asked() -> None:
    given = build(subsets=1, members=2)
    state, downs = given.method.send(given.server(0, {}), started(given))
    assert len(downs) == 2
    assert state.subsets == (tuple(sorted(downs)),)
    other, _ = given.method.send(given.server(1, {}), started(given))
    assert {state.subsets, given.method.send(given.server(2, {}), started(given))[0].subsets} != {other.subsets}


def test_in_the_warm_up_clients_with_labels_train_alone() -> None:
    given = build(warmup=2)
    state, downs = given.method.send(given.server(1, {}), started(given))
    assert set(downs) == {0, 1, 2, 3}
    assert visit(given, 1, downs[1]).up is None
    reply = visit(given, 0, downs[0])
    assert same(given.method.merge(given.server(1, {}), state, {0: reply.up}).w, reply.up.w)


# The teacher.


def sent(given: Job) -> Any:
    return given.method.send(given.server(0, {}), started(given))[1]


def test_the_teacher_is_the_student_after_the_first_step_and_then_follows_slowly() -> None:
    given = job(RscFed(warmup=0, members=9), data(2), linear(), train=Training(batch=12, lr=0.1, epochs=1))
    first = visit(given, 1, sent(given)[1])
    carried = first.memory.objective
    assert int(carried[STEPS]) == 1
    assert all(torch.equal(carried[name], first.up.w[name]) for name in first.up.w)  # α = 1 - 1/1 = 0
    second = visit(given, 1, sent(given)[1], memory=first.memory, round=1)
    now = second.memory.objective
    assert int(now[STEPS]) == 2
    for name, value in second.up.w.items():  # α = 1 - 1/2; the student began at the common model again
        assert torch.allclose(now[name], (carried[name] + value) / 2)


def test_the_loss_by_hand() -> None:
    given = job(
        RscFed(warmup=0, weight=2.0, temperature=0.5),
        federation([hide(samples([[1.0, 0.0, 0.0, 0.0]], [0]))]),
        linear(),
        train=Training(batch=4, lr=0.5, momentum=0.0),
    )
    w = clone(started(given).w)
    x = torch.tensor([[1.0, 0.0, 0.0, 0.0]])
    leaves = {name: value.requires_grad_() for name, value in w.items()}
    p = functional.softmax(given.net.apply(leaves, x), dim=1)
    q = p.detach()
    target = q**2 / (q**2).sum()  # T = ½
    grads = torch.autograd.grad(2.0 * ((p - target) ** 2).sum(), list(leaves.values()))
    expected = {name: w[name] - 0.5 * grad for name, grad in zip(leaves, grads, strict=True)}
    found = visit(given, 0, sent(given)[0]).up.w
    assert all(torch.allclose(found[name], expected[name].detach(), atol=1e-6) for name in found)


def test_a_client_with_some_labels_uses_both_losses_and_is_not_preferred() -> None:
    given = job(RscFed(warmup=0), federation([hide(points(0, 12), 4)]), linear(), train=TRAIN)
    reply = visit(given, 0, sent(given)[0])
    assert {"loss_supervised", "loss_unlabeled"} <= reply.metrics.keys()
    assert reply.up.n == 12
    assert not reply.up.full


def test_clients_without_labels_have_their_own_learning_rate() -> None:
    moved = []
    for lr in (1e-6, 1.0):
        given = build(unlabeled_lr=lr, weight=1.0, members=9)
        moved.append(apart(visit(given, 1, sent(given)[1]).up.w, started(given).w))
    assert moved[0] < 1e-5 < moved[1]


# What is left.


def test_one_subset_of_all_clients_without_distances_is_fedavg() -> None:
    everyone = federation([points(k, 8 + k) for k in range(3)])
    method = RscFed(subsets=1, members=3, beta=0.0, beta_labeled=0.0, warmup=0)
    mine, plain = (play_all(job(each, everyone, linear(), train=TRAIN)) for each in (method, FedAvg(Supervised())))
    assert apart(mine.state.w, plain.state.w) < 1e-5


def test_a_run_keeps_a_teacher_at_clients_without_labels_only() -> None:
    last = list(rounds(build(members=4, weight=1.0)))[-1]
    assert {k for k, memory in last.memories.items() if STEPS in memory.objective} == {1, 2, 3}
    assert last.state.subsets == ()
