"""SAGE: targets that mix local and global labels by the gap of their confidences, in FedAvg's rounds."""

from collections.abc import Mapping
from dataclasses import replace
from math import exp, inf, log
from typing import Any

import pytest
import torch

from tacit.aggregation import WeightsDown
from tacit.engines.job import Job
from tacit.learn import Batch, loss_of_batch
from tacit.methods.fedavg import FedAvg
from tacit.methods.sage import OfBoth, Sage, corrected
from tacit.objectives import FixMatch
from tests.objectives.bench import EYE, FLIPPED, Scaled, client, gradient, leaves, whole
from tests.toys import (
    TWO_EPOCHS,
    Identity,
    Noisy,
    apart,
    federation,
    hide,
    job,
    linear,
    play_all,
    points,
    same,
    samples,
    started,
    visit,
)

NEVER = 1e-12  # of `half`: any gap is so wide that the global label alone counts


def given(method: Any, views: Any = None, shown: int = 8, **options: Any) -> Job:
    """Three clients with twenty points each, of which eight have a label."""
    data = federation([hide(points(k, 20), shown) for k in range(3)], test=points(8, 9), views=views)
    return job(method, data, linear(), **{"train": TWO_EPOCHS} | options)


# The target.


def test_the_target_by_hand() -> None:
    local = torch.tensor([[0.99, 0.01], [0.96, 0.04], [0.70, 0.30], [0.60, 0.40]])
    common = torch.tensor([[0.01, 0.99], [0.09, 0.91], [0.03, 0.97], [0.80, 0.20]])
    found = corrected(local, common, 0.95, 0.05)
    assert found.local.tolist() == [0, 0, 0, 0]
    assert found.common.tolist() == [1, 1, 1, 0]
    # no gap: λ = 1; a gap of 0.05: λ = ½; the last two: the local model is unsure
    assert found.share.tolist() == pytest.approx([1.0, 0.5, 0.0, 0.0], abs=1e-4)
    assert found.accepted.tolist() == [True, True, True, False]  # either model is enough


@pytest.mark.parametrize("gap", [0.0, 0.01, 0.04])
def test_the_share_is_the_papers_exponential(gap: float) -> None:
    local, common = (torch.tensor([[c, 1 - c]], dtype=torch.float64) for c in (1 - gap, 1.0))
    kappa = log(2) / 0.05
    assert corrected(local, common, 0.95, 0.05).share.item() == pytest.approx(exp(-kappa * (gap + 1e-6)), rel=1e-6)


def test_the_gap_counts_in_both_directions() -> None:
    one, other = torch.tensor([[0.99, 0.01]]), torch.tensor([[0.96, 0.04]])
    both = [corrected(*pair, 0.95, 0.05).share.item() for pair in ((one, other), (other, one))]
    assert both[0] == both[1] == pytest.approx(2 ** (-0.03 / 0.05), rel=1e-3)


# The loss. Weak views double the logits, strong ones halve them.


def test_the_loss_by_hand() -> None:
    """The local model EYE and the global FLIPPED disagree with the same confidence, so λ = 1: the local label."""
    data = samples([[log(3), 0.0], [0.0, log(2)]], [-1, -1])
    holder = client(data, linear(2, 2), views=Scaled())
    # weak views: p = 0.9 and 0.8, so at τ = 0.85 only the first counts; its strong view has odds √3
    local = OfBoth(Sage(threshold=0.85), 2).local_loss(holder, FLIPPED, {})
    cost = loss_of_batch(local, holder.net, EYE, whole(holder))
    assert cost.total.item() == pytest.approx(-log(3**0.5 / (3**0.5 + 1)) / 2, rel=1e-4)
    assert cost.metrics["kept"].item() == 0.5
    assert cost.metrics["local_share"].item() == pytest.approx(0.5, abs=1e-4)
    assert cost.pseudo_labels is not None
    assert cost.pseudo_labels.label.tolist() == [0, 0]  # the second is the global model's


def test_a_mixed_target_has_a_mixed_loss() -> None:
    holder = client(samples([[log(3), 0.0]], [-1]), linear(2, 2), views=Scaled())
    tilted = {"fc.weight": torch.tensor([[-1.2, 0.0], [0.0, -1.2]]), "fc.bias": torch.zeros(2)}
    gap = 3**2.4 / (3**2.4 + 1) - 0.9  # of the confidences: the global model is surer, and of the other class
    share = 2 ** (-gap / 0.05)
    w = leaves(EYE)
    cost = loss_of_batch(OfBoth(Sage(threshold=0.85), 1).local_loss(holder, tilted, {}), holder.net, w, whole(holder))
    strong = 3**0.5 / (3**0.5 + 1)
    assert 0.3 < share < 0.9
    assert cost.total.item() == pytest.approx(-share * log(strong) - (1 - share) * log(1 - strong), rel=1e-4)
    # at the logits, p - target; no gradient reaches the labels
    at_logits = torch.tensor([strong - share, 1 - strong - (1 - share)])
    assert torch.allclose(gradient(cost.total, w)["fc.bias"], at_logits, atol=1e-4)


def test_both_models_label_the_same_weak_view() -> None:
    seen: list[tuple[bool, torch.Tensor]] = []
    holder = client(hide(points(0, 6)), linear(), views=Noisy(1.0, 1.0))
    real = holder.net.apply

    def watched(params: Mapping[str, torch.Tensor], x: torch.Tensor, train: bool = False) -> torch.Tensor:
        seen.append((train, x))
        return real(params, x, train)

    holder.net.apply = watched  # type: ignore[method-assign]
    w = started(given(Sage())).w
    loss_of_batch(OfBoth(Sage(), 6).local_loss(holder, w, {}), holder.net, leaves(w), whole(holder))
    assert [train for train, _ in seen] == [True, False, True]  # local, global in evaluation mode, and what learns
    assert torch.equal(seen[0][1], seen[1][1])
    assert not torch.equal(seen[0][1], seen[2][1])


# Reductions.


@pytest.mark.parametrize("place", ["client", "server"])
def test_with_the_local_label_alone_it_has_the_bits_of_fixmatch(place: str) -> None:
    """λ = 1 and no threshold. With a threshold SAGE also takes samples of which only the global model is sure."""
    clients = [hide(points(k, 20), 8 if place == "client" else 0) for k in range(3)]
    data = federation(clients, points(9, 12) if place == "server" else None, points(8, 9), views=Noisy())
    task = job(Sage(threshold=0.0, half=inf), data, linear(), train=TWO_EPOCHS, cohort=2)
    fixmatch = replace(task, method=FedAvg(FixMatch(threshold=0.0, labeler="local")))
    assert same(play_all(task).state.w, play_all(fixmatch).state.w)
    assert not same(play_all(replace(task, method=Sage(threshold=0.0))).state.w, play_all(task).state.w)


def test_with_the_global_label_alone_it_has_the_bits_of_fixmatch_by_the_received_model() -> None:
    """λ = 0 and no threshold, with views that change nothing: FixMatch's global labeler sees plain views."""
    task = given(Sage(threshold=0.0, half=NEVER), Identity())
    fixmatch = replace(task, method=FedAvg(FixMatch(threshold=0.0, labeler="global")))
    assert same(play_all(task).state.w, play_all(fixmatch).state.w)
    assert not same(play_all(replace(task, method=Sage(threshold=0.0, half=inf))).state.w, play_all(task).state.w)


def test_without_unlabeled_samples_it_is_supervised() -> None:
    task = given(Sage(), Noisy(), shown=20)
    supervised = replace(task, method=FedAvg(FixMatch()))
    assert same(play_all(task).state.w, play_all(supervised).state.w)


def test_the_first_step_of_a_visit_has_no_gap() -> None:
    """Both models are the received one, so every confident label is the local one; later they part."""
    task = given(Sage(threshold=0.0), train=replace(TWO_EPOCHS, steps=1))
    reply = visit(task, 0, WeightsDown(started(task).w))
    assert reply.metrics["local_share"] == pytest.approx(1.0, abs=1e-4)
    longer = visit(given(Sage(threshold=0.0)), 0, WeightsDown(started(task).w))
    assert longer.metrics["local_share"] < 0.999


# Labeled samples as unlabeled ones.


def test_labeled_samples_are_taught_too_as_released() -> None:
    task = given(Sage(threshold=0.0, labeled_too=True), Noisy())
    w = started(task).w
    reply, without = visit(task, 0, WeightsDown(w)), visit(given(Sage(threshold=0.0), Noisy()), 0, WeightsDown(w))
    assert reply.metrics["steps"] == 2 * -(-20 // 6)  # an epoch is one of all twenty
    assert without.metrics["steps"] == 2 * -(-12 // 6)
    assert set(reply.pseudo_labels.index.tolist()) == set(range(8, 20))  # reported are those without a label
    assert reply.up.n == without.up.n == 20
    assert apart(reply.up.w, without.up.w) > 1e-3


def test_the_copies_of_labeled_samples_have_no_label() -> None:
    holder = client(hide(points(0, 4), shown=3), linear(), views=Identity())
    objective = OfBoth(Sage(threshold=0.0), 4)
    w, data = started(given(Sage())).w, holder.data
    copies = Batch(data.x[:0], data.y[:0], data.x[:3], torch.tensor([4, 5, 6]))
    cost = loss_of_batch(objective.local_loss(holder, w, {}), holder.net, w, copies)
    assert cost.pseudo_labels is not None
    assert (cost.pseudo_labels.index == -1).all()  # at no position: `fit` leaves them out
    assert "loss_supervised" not in cost.metrics


def test_presets_and_defaults() -> None:
    assert Sage() == Sage(threshold=0.95, weight=1.0, half=0.05, labeled_too=False, weights="samples", view="weak")
    assert Sage(**Sage.PRESETS["as-released"]) == Sage(labeled_too=True)
    assert Sage(**Sage.PRESETS["as-written"]) == Sage()
