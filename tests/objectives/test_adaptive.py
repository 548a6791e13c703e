"""Thresholds that adapt: what they learn of the data, that it is carried, and what they reduce to."""

from dataclasses import replace
from math import exp, log
from typing import Any

import pytest
import torch

from tacit.learn import LocalState, fit, loss_of_batch
from tacit.method import Training
from tacit.objectives import FixMatch, FlexMatch, FreeMatch, SoftMatch
from tests.objectives.bench import EYE, Scaled, client, start, whole
from tests.toys import hide, linear, points, same, samples

# Weak views have odds 9, 4 and 1.44: p = 0.9, 0.8 for class 1, and 0.59.
UNLABELED = samples([[log(3), 0.0], [0.0, log(2)], [log(1.2), 0.0]], [-1, -1, -1])
STRONG = [-log(3**0.5 / (3**0.5 + 1)), -log(2**0.5 / (2**0.5 + 1)), -log(1.2**0.5 / (1.2**0.5 + 1))]
P = [0.9, 0.8, 1.44 / 2.44]


NET = linear(2, 2)


def at_work(objective: Any, carried: Any = None) -> tuple[Any, Any]:
    holder = client(UNLABELED, NET, views=Scaled())
    return objective.local_loss(holder, EYE, carried or {}), whole(holder)


def cost_of(local: Any, batch: Any) -> Any:
    return loss_of_batch(local, NET, EYE, batch)


def test_flexmatch_by_hand() -> None:
    local, batch = at_work(FlexMatch(threshold=0.85))
    first = cost_of(local, batch)  # nobody was confident before: thresholds 0
    assert first.pseudo_labels.accepted.tolist() == [True, True, True]
    # Now one of three samples is class 0 for sure, two never were: β = ½ and 0, thresholds 0.85/3 and 0.
    assert local.carry()["selected"].tolist() == [0, -1, -1]
    second = cost_of(local, batch)
    assert second.total.item() == pytest.approx(sum(STRONG) / 3, rel=1e-5)


def test_flexmatch_with_all_classes_learnt_is_fixmatch() -> None:
    carried = {"selected": torch.tensor([0, 1, -1]), "samples": torch.tensor(UNLABELED.fingerprint())}
    local, batch = at_work(FlexMatch(threshold=0.85), carried)  # β = 1 and 1: the threshold is τ for both
    plain, _ = at_work(FixMatch(threshold=0.85))
    assert cost_of(local, batch).total.item() == cost_of(plain, batch).total.item()


def test_flexmatch_forgets_when_the_samples_are_others() -> None:
    """With data that streams in, other samples stand at the same positions."""
    others = replace(UNLABELED, x=UNLABELED.x + 1).fingerprint()
    carried = {"selected": torch.tensor([0, 1, -1]), "samples": torch.tensor(others)}
    local, batch = at_work(FlexMatch(threshold=0.85), carried)
    assert cost_of(local, batch).pseudo_labels.accepted.tolist() == [True, True, True]


def test_freematch_by_hand() -> None:
    local, batch = at_work(FreeMatch(momentum=0.5, fairness=0.0))
    cost = cost_of(local, batch)
    tau = 0.5 * 0.5 + 0.5 * sum(P) / 3
    p0 = 0.25 + 0.5 * (P[0] + 1 - P[1] + P[2]) / 3
    best = max(p0, 1 - p0)
    thresholds = [p0 / best * tau, (1 - p0) / best * tau]
    expected = [P[0] >= thresholds[0], P[1] >= thresholds[1], P[2] >= thresholds[0]]
    assert cost.pseudo_labels.accepted.tolist() == expected == [True, True, False]
    assert cost.metrics["threshold"].item() == pytest.approx(tau, rel=1e-5)
    assert cost.total.item() == pytest.approx((STRONG[0] + STRONG[1]) / 3, rel=1e-5)
    held = local.carry()
    assert held["probability"].tolist() == pytest.approx([p0, 1 - p0], rel=1e-5)
    assert held["histogram"].tolist() == pytest.approx([0.25 + 1 / 3, 0.25 + 1 / 6], rel=1e-5)


def test_freematch_adds_its_fairness_term() -> None:
    without, batch = at_work(FreeMatch(momentum=0.5, fairness=0.0))
    with_it, _ = at_work(FreeMatch(momentum=0.5, fairness=1.0))
    assert cost_of(with_it, batch).total.item() < cost_of(without, batch).total.item() - 0.1


def test_softmatch_by_hand() -> None:
    local, batch = at_work(SoftMatch(momentum=0.5, align=False))
    cost = cost_of(local, batch)
    mean = sum(P) / 3
    mu, variance = 0.25 + mean / 2, 0.5 + sum((p - mean) ** 2 for p in P) / 2 / 2
    weights = [1.0 if p >= mu else exp(-((p - mu) ** 2) / (2 * variance)) for p in P]
    assert weights[2] < 1
    assert cost.total.item() == pytest.approx(sum(w * s for w, s in zip(weights, STRONG, strict=True)) / 3, rel=1e-5)
    assert cost.metrics["kept"].item() == pytest.approx(sum(weights) / 3, rel=1e-5)


def test_softmatch_aligns_with_the_usual_prediction() -> None:
    usual = {"mean": torch.tensor(0.95), "variance": torch.tensor(0.02)}
    local, batch = at_work(SoftMatch(momentum=1.0), usual | {"probability": torch.tensor([0.8, 0.2])})
    plain, _ = at_work(SoftMatch(momentum=1.0, align=False), usual)
    assert cost_of(local, batch).total.item() != cost_of(plain, batch).total.item()
    assert cost_of(local, batch).pseudo_labels.label.tolist() == [0, 1, 0]  # labels stay as they are


SEEN = torch.tensor(hide(points(0, 20)).take(torch.arange(5, 20)).fingerprint())
SURE = {"selected": torch.zeros(15, dtype=torch.int64), "samples": SEEN}  # of class 0, throughout
HIGH = {"mean": torch.tensor(0.9), "variance": torch.tensor(0.01)}
LEARNT = [(FlexMatch(0.5), SURE), (FreeMatch(0.9), {"confidence": torch.tensor(0.9)}), (SoftMatch(0.9), HIGH)]


@pytest.mark.parametrize("objective, before", LEARNT)
def test_what_is_learnt_of_the_data_is_carried_and_used(objective: Any, before: Any) -> None:
    holder = client(hide(points(0, 20), shown=5), linear(), Training(batch=5, lr=0.1))
    both = (None, LocalState(objective=before))
    fresh, later = (fit(holder, start(linear()), objective, carried=carried) for carried in both)
    assert not same(fresh.params, later.params)
    assert later.carried is not None
    assert later.carried.objective.keys() >= before.keys()
    assert any(not torch.equal(later.carried.objective[name], value) for name, value in before.items())


@pytest.mark.parametrize("kind", [FreeMatch, SoftMatch])
@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_one_sample_again_and_again_stays_finite(kind: Any, momentum: float) -> None:
    holder = client(hide(points(0, 1)), linear(), Training(steps=300, batch=1, lr=1.0))
    trained = fit(holder, start(linear()), kind(momentum=momentum))
    assert all(bool(value.isfinite().all()) for value in trained.params.values())
    assert trained.carried is not None
    assert all(bool(value.isfinite().all()) for value in trained.carried.objective.values())
