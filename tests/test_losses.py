"""Losses against arithmetic that can be done on paper."""

from math import log
from typing import Any

import pytest
import torch

from tacit.losses import confident, cross_entropy, masked_cross_entropy

# Logits of probabilities that are easy to take logarithms of.
ODDS = torch.tensor([[1.0, 3.0], [9.0, 1.0], [1.0, 1.0]]).log()  # p = (¼, ¾), (0.9, 0.1), (½, ½)


def test_cross_entropy_by_hand() -> None:
    loss = cross_entropy(ODDS, torch.tensor([1, 0, 0]))
    assert loss.item() == pytest.approx(-(log(3 / 4) + log(0.9) + log(1 / 2)) / 3, rel=1e-6)


def test_the_gradient_of_cross_entropy_is_probability_minus_target() -> None:
    logits = ODDS.clone().requires_grad_()
    cross_entropy(logits, torch.tensor([1, 0, 0])).backward()
    expected = (ODDS.softmax(1) - torch.tensor([[0.0, 1.0], [1.0, 0.0], [1.0, 0.0]])) / 3
    assert logits.grad is not None
    assert torch.allclose(logits.grad, expected, atol=1e-7)


@pytest.mark.parametrize(
    "threshold, expected",
    [
        (0.0, [True, True, True]),
        (0.5, [True, True, True]),  # reaching τ is enough
        (0.75, [True, True, False]),
        (0.7500001, [False, True, False]),
        (1.0, [False, False, False]),
    ],
)
def test_confident_keeps_what_reaches_the_threshold(threshold: float, expected: list[bool]) -> None:
    probabilities = torch.tensor([[0.25, 0.75], [0.9, 0.1], [0.5, 0.5]])
    labels, kept = confident(probabilities, threshold)
    assert labels[:2].tolist() == [1, 0]
    assert kept.tolist() == expected


def test_certainty_reaches_a_threshold_of_one() -> None:
    assert confident(torch.tensor([[0.0, 1.0]]), 1.0)[1].tolist() == [True]


def test_pseudo_labels_carry_no_gradient() -> None:
    logits = ODDS.clone().requires_grad_()
    labels, kept = confident(logits.softmax(1), 0.7)
    assert not labels.requires_grad
    assert not kept.requires_grad


KEPT = torch.tensor([True, False, True])
LABELS = torch.tensor([1, 1, 0])


@pytest.mark.parametrize("over, count", [("batch", 3), ("kept", 2)])
def test_masked_cross_entropy_by_hand(over: Any, count: int) -> None:
    loss = masked_cross_entropy(ODDS, LABELS, KEPT, over)
    assert loss.item() == pytest.approx(-(log(3 / 4) + log(1 / 2)) / count, rel=1e-6)


@pytest.mark.parametrize("over", ["batch", "kept"])
def test_the_strong_view_learns_and_what_was_not_kept_does_not(over: Any) -> None:
    logits = ODDS.clone().requires_grad_()
    masked_cross_entropy(logits, LABELS, KEPT, over).backward()
    grad = logits.grad
    assert grad is not None
    assert grad[1].tolist() == [0.0, 0.0]
    count = 3 if over == "batch" else 2
    # p - target of the kept rows: (¼, ¾) - (0, 1) and (½, ½) - (1, 0)
    assert torch.allclose(grad[[0, 2]], torch.tensor([[0.25, -0.25], [-0.5, 0.5]]) / count, atol=1e-7)


@pytest.mark.parametrize("over", ["batch", "kept"])
def test_nothing_kept_costs_nothing(over: Any) -> None:
    logits = ODDS.clone().requires_grad_()
    loss = masked_cross_entropy(logits, LABELS, torch.zeros(3, dtype=torch.bool), over)
    loss.backward()
    assert loss.item() == 0.0
    assert logits.grad is not None
    assert logits.grad.eq(0).all()


def test_everything_kept_is_plain_cross_entropy() -> None:
    everything = torch.ones(3, dtype=torch.bool)
    losses = [masked_cross_entropy(ODDS, LABELS, everything, over) for over in ("batch", "kept")]
    assert losses[0].item() == losses[1].item() == pytest.approx(cross_entropy(ODDS, LABELS).item(), rel=1e-6)
