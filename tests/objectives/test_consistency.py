"""Π-model, Mean Teacher and mixup: by hand, and how they reduce to each other."""

from math import exp, log
from typing import Any

import pytest
import torch

from tacit.learn import fit, loss_of_batch
from tacit.method import Training
from tacit.nets import build
from tacit.objectives import MeanTeacher, Mixup, Pi, Supervised
from tacit.objectives.consistency import _partners
from tests.objectives.bench import EYE, FLIPPED, NOISY, Scaled, client, start, whole
from tests.toys import apart, hide, images, linear, points, same, samples


def test_two_equal_views_agree() -> None:
    holder = client(samples([[1.0, 0.0]], [-1]), linear(2, 2), views=Scaled())
    cost = loss_of_batch(Pi(ramp=0).local_loss(holder, EYE, {}), holder.net, EYE, whole(holder))
    assert cost.total.item() == 0


@pytest.mark.parametrize("distance", ["mse", "kl"])
def test_a_teacher_that_differs_by_hand(distance: Any) -> None:
    # Weak views have odds 9: p = (0.9, 0.1); the teacher, the received model, says (0.1, 0.9). One sample is labeled.
    data = samples([[log(3), 0.0], [log(3), 0.0]], [0, -1])
    holder = client(data, linear(2, 2), views=Scaled())
    local = MeanTeacher(ramp=0, distance=distance).local_loss(holder, FLIPPED, {})
    local.after_step(EYE)  # after the first step α is 1/2: the mean of the two models answers (½, ½)
    cost = loss_of_batch(local, holder.net, EYE, whole(holder))
    apart_by = {"mse": 0.4**2, "kl": 0.5 * log(0.5 / 0.9) + 0.5 * log(0.5 / 0.1)}[distance]
    assert cost.metrics["loss_unlabeled"].item() == pytest.approx(apart_by, rel=1e-5)
    assert cost.total.item() == pytest.approx(-log(0.9) + apart_by, rel=1e-5)


def test_the_teacher_follows_by_alpha() -> None:
    holder = client(samples([[log(3), 0.0]], [-1]), linear(2, 2), views=Scaled())
    local = MeanTeacher(alpha=0.25, ramp=0).local_loss(holder, EYE, {})
    for _ in range(3):
        local.after_step(EYE)
    local.after_step(FLIPPED)
    # α = min(4/5, ¼): the teacher is ¼·I + ¾·(-I) = -½·I, so its odds for the other class are 3.
    cost = loss_of_batch(local, holder.net, FLIPPED, whole(holder))
    assert cost.total.item() == pytest.approx((0.9 - 0.75) ** 2, rel=1e-5)


@pytest.mark.parametrize("net", [linear(), build("cnn", (1, 16, 16), 3, "batch")], ids=["points", "images"])
def test_a_teacher_without_memory_is_the_pi_model(net: Any) -> None:
    data, views = (points(0, 20), NOISY) if len(net.trainable) == 2 else (images(0, 20), None)
    holder = client(hide(data, shown=6), net, Training(batch=5, lr=0.1), views=views)
    one, other = fit(holder, start(net), Pi(ramp=0)), fit(holder, start(net), MeanTeacher(alpha=0.0, ramp=0))
    assert same(one.params, other.params)
    assert not same(one.params, fit(holder, start(net), MeanTeacher(alpha=0.9, ramp=0)).params)


@pytest.mark.parametrize("objective", [Pi, MeanTeacher, Mixup])
def test_the_weight_grows_over_rounds(objective: Any) -> None:
    for round, factor in ((0, exp(-5)), (5, exp(-1.25)), (10, 1.0), (20, 1.0)):
        holder = client(hide(points(0, 6)), linear(), round=round, rounds=30)
        local = objective(weight=2.0, ramp=10).local_loss(holder, start(linear()), {})
        cost = loss_of_batch(local, holder.net, start(linear()), whole(holder))
        assert cost.metrics["weight_unlabeled"].item() == pytest.approx(2 * factor)


def test_without_weight_they_learn_from_labels_alone() -> None:
    holder = client(hide(points(0, 20), shown=20), linear(), Training(batch=5, lr=0.1))
    alone = fit(holder, start(linear()), Supervised()).params
    assert apart(fit(holder, start(linear()), Pi(weight=0)).params, alone) < 1e-6


def test_mixup_by_hand() -> None:
    data = samples([[log(3), 0.0], [0.0, log(9)]], [0, 1])
    holder = client(data, linear(2, 2))
    batch = whole(holder)
    partner, share = _partners(2, 1.0, holder.stream("mixup"), batch.x)
    expected = 0.0
    for i in range(2):
        j, lam = int(partner[i]), float(share[i])
        z = lam * batch.x[i] + (1 - lam) * batch.x[j]
        p = z.softmax(0)
        expected -= (lam * p[batch.y[i]].log() + (1 - lam) * p[batch.y[j]].log()).item() / 2
    cost = loss_of_batch(Mixup().local_loss(holder, EYE, {}), holder.net, EYE, batch)
    assert cost.total.item() == pytest.approx(expected, rel=1e-5)


def test_mixup_of_unlabeled_samples_by_hand() -> None:
    """Answers and mixture are of the same view of an image, as in interpolation consistency training."""
    holder = client(samples([[1.0, 0.0], [0.2, 0.9], [0.4, 0.1]], [-1, -1, -1]), linear(2, 2), views=NOISY)
    batch = whole(holder)
    u = NOISY.weak(batch.u, holder.stream("unlabeled views"))
    partner, share = _partners(3, 1.0, holder.stream("mixup unlabeled"), u)
    q, lam = u.softmax(dim=1), share[:, None]
    mixed = lam * u + (1 - lam) * u[partner]
    expected = (mixed.softmax(dim=1) - (lam * q + (1 - lam) * q[partner])).square().mean().item()
    cost = loss_of_batch(Mixup(ramp=0).local_loss(holder, EYE, {}), holder.net, EYE, batch)
    assert cost.total.item() == pytest.approx(expected, rel=1e-5)


def test_shares_are_beta_distributed() -> None:
    stream = torch.Generator().manual_seed(0)
    for alpha, variance in ((1.0, 1 / 12), (0.2, 0.25 / 1.4), (5.0, 0.25 / 11)):
        partner, share = _partners(20_000, alpha, stream, torch.zeros(1))
        assert sorted(partner.tolist()) == list(range(20_000))
        assert float(share.mean()) == pytest.approx(0.5, abs=0.01)
        assert float(share.var()) == pytest.approx(variance, rel=0.03)  # of Beta(α, α): 1/4 / (2α + 1)


def test_a_constant_model_is_consistent_under_mixing() -> None:
    constant = {"fc.weight": torch.zeros(2, 2), "fc.bias": torch.tensor([0.3, 0.0])}
    holder = client(hide(points(0, 8, classes=2, features=2)), linear(2, 2))
    assert loss_of_batch(
        Mixup(ramp=0).local_loss(holder, constant, {}), holder.net, constant, whole(holder)
    ).total.item() == pytest.approx(0)
