"""Losses against arithmetic that can be done on paper."""

from math import exp, log
from typing import Any

import pytest
import torch

from tacit.losses import (
    agreement_labels,
    aligned,
    annealed_cross_entropy,
    annealing_threshold,
    complementary,
    confident,
    consistency,
    contrast,
    cross_entropy,
    divergence,
    fairness,
    flexible_thresholds,
    masked_cross_entropy,
    mix,
    ramp_up,
    rising_threshold,
    sharpen,
    truncated_gaussian,
    weighted_mean,
)

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
    labels, accepted = confident(probabilities, threshold)
    assert labels[:2].tolist() == [1, 0]
    assert accepted.tolist() == expected


def test_certainty_reaches_a_threshold_of_one() -> None:
    assert confident(torch.tensor([[0.0, 1.0]]), 1.0)[1].tolist() == [True]


def test_pseudo_labels_carry_no_gradient() -> None:
    logits = ODDS.clone().requires_grad_()
    labels, accepted = confident(logits.softmax(1), 0.7)
    assert not labels.requires_grad
    assert not accepted.requires_grad


KEPT = torch.tensor([True, False, True])
LABELS = torch.tensor([1, 1, 0])


@pytest.mark.parametrize("over, count", [("batch", 3), ("kept", 2)])
def test_masked_cross_entropy_by_hand(over: Any, count: int) -> None:
    loss = masked_cross_entropy(ODDS, LABELS, KEPT, over)
    assert loss.item() == pytest.approx(-(log(3 / 4) + log(1 / 2)) / count, rel=1e-6)


@pytest.mark.parametrize("over", ["batch", "kept"])
def test_only_the_strong_view_of_accepted_samples_learns(over: Any) -> None:
    logits = ODDS.clone().requires_grad_()
    masked_cross_entropy(logits, LABELS, KEPT, over).backward()
    grad = logits.grad
    assert grad is not None
    assert grad[1].tolist() == [0.0, 0.0]
    count = 3 if over == "batch" else 2
    # p - target of the accepted rows: (¼, ¾) - (0, 1) and (½, ½) - (1, 0)
    assert torch.allclose(grad[[0, 2]], torch.tensor([[0.25, -0.25], [-0.5, 0.5]]) / count, atol=1e-7)


@pytest.mark.parametrize("over", ["batch", "kept"])
def test_with_nothing_accepted_the_loss_is_zero(over: Any) -> None:
    logits = ODDS.clone().requires_grad_()
    loss = masked_cross_entropy(logits, LABELS, torch.zeros(3, dtype=torch.bool), over)
    loss.backward()
    assert loss.item() == 0.0
    assert logits.grad is not None
    assert logits.grad.eq(0).all()


def test_with_everything_accepted_it_is_plain_cross_entropy() -> None:
    everything = torch.ones(3, dtype=torch.bool)
    losses = [masked_cross_entropy(ODDS, LABELS, everything, over) for over in ("batch", "kept")]
    assert losses[0].item() == losses[1].item() == pytest.approx(cross_entropy(ODDS, LABELS).item(), rel=1e-6)


def test_the_complementary_loss_by_hand() -> None:
    loss = complementary(ODDS, torch.tensor([0, 1, 0]))
    assert loss.item() == pytest.approx(-(log(3 / 4) + log(0.9) + log(1 / 2)) / 3, rel=1e-6)  # -log(1 - p(y))


def test_the_complementary_loss_lowers_the_class_and_lifts_the_others_by_their_share() -> None:
    logits = torch.tensor([[2.0, 1.0, 1.0]]).log().requires_grad_()  # p = (½, ¼, ¼)
    complementary(logits, torch.tensor([1])).backward()
    # p_y/(1 - p_y)·(1{j = y} - p_j) = ⅓·(-½, ¾, -¼)
    assert logits.grad is not None
    assert torch.allclose(logits.grad, torch.tensor([[-1 / 6, 1 / 4, -1 / 12]]), atol=1e-7)


@pytest.mark.parametrize("certain, cost", [(-200.0, 0.0), (20.0, 20.0), (200.0, 200.0), (1e5, 1e5)])
def test_the_complementary_loss_is_finite_however_sure_a_model_is(certain: float, cost: float) -> None:
    """At p → 1, 1 - p is 0 in floating point and its logarithm is lost; the margin of the logits is not."""
    logits = torch.tensor([[certain, 0.0, -1e6]]).requires_grad_()
    loss = complementary(logits, torch.tensor([0]))
    loss.backward()
    assert loss.item() == pytest.approx(cost, abs=1e-6)
    assert logits.grad is not None
    expected = [1.0, -1.0, 0.0] if certain > 0 else [0.0, 0.0, 0.0]
    assert logits.grad[0].tolist() == pytest.approx(expected, abs=1e-6)


# p = (¼, ¾) and (0.9, 0.1) as probabilities.
SURE = torch.tensor([[0.25, 0.75], [0.9, 0.1]])


def test_a_threshold_for_every_class() -> None:
    labels, accepted = confident(SURE, torch.tensor([0.95, 0.7]))
    assert labels.tolist() == [1, 0]
    assert accepted.tolist() == [True, False]


def test_soft_labels_by_hand() -> None:
    target = torch.tensor([[0.5, 0.5], [1.0, 0.0], [0.0, 1.0]])
    loss = masked_cross_entropy(ODDS, target, KEPT, "batch")
    assert loss.item() == pytest.approx(-(0.5 * log(1 / 4) + 0.5 * log(3 / 4) + log(1 / 2)) / 3, rel=1e-6)


def test_a_weighted_mean_by_hand() -> None:
    losses, weights = torch.tensor([1.0, 2.0, 4.0]), torch.tensor([0.5, 0.0, 1.0])
    assert weighted_mean(losses, weights).item() == pytest.approx(4.5 / 3)
    assert weighted_mean(losses, weights, "kept").item() == pytest.approx(4.5 / 2)


def test_sharpening_by_hand() -> None:
    # T = ½ squares: (1/16, 9/16) and (0.81, 0.01), normalised.
    assert torch.allclose(sharpen(SURE, 0.5), torch.tensor([[0.1, 0.9], [81 / 82, 1 / 82]]))
    assert torch.allclose(sharpen(SURE, 1.0), SURE)
    assert sharpen(SURE, 1e-3).tolist() == [[0.0, 1.0], [1.0, 0.0]]
    assert sharpen(torch.tensor([[0.0, 1.0]]), 0.4).tolist() == [[0.0, 1.0]]


def test_divergence_by_hand() -> None:
    p, q = SURE, torch.tensor([[0.5, 0.5], [1.0, 0.0]])
    expected = [0.5 * log(0.5 / 0.25) + 0.5 * log(0.5 / 0.75), log(1 / 0.9)]
    assert divergence(p.log(), q).tolist() == pytest.approx(expected, rel=1e-5)
    assert divergence(p.log(), p).tolist() == pytest.approx([0, 0], abs=1e-6)


@pytest.mark.parametrize("distance", ["mse", "squared", "kl"])
def test_no_gradient_reaches_a_target(distance: Any) -> None:
    logits, target = SURE.log().requires_grad_(), torch.tensor([[0.5, 0.5], [0.5, 0.5]], requires_grad=True)
    consistency(logits, target, distance).sum().backward()
    assert target.grad is None
    assert logits.grad is not None
    assert logits.grad.abs().min() > 0


def test_the_mean_squared_difference_by_hand() -> None:
    found = consistency(SURE.log(), torch.tensor([[0.5, 0.5], [1.0, 0.0]]), "mse")
    assert found.tolist() == pytest.approx([0.25**2, 0.1**2], rel=1e-5)  # both classes differ alike


def test_the_squared_difference_is_summed_over_classes() -> None:
    target = torch.tensor([[0.5, 0.5], [1.0, 0.0]])
    found = consistency(SURE.log(), target, "squared")
    assert found.tolist() == pytest.approx([2 * 0.25**2, 2 * 0.1**2], rel=1e-5)
    three = torch.tensor([[0.5, 0.25, 0.25]])
    targets = torch.tensor([[0.0, 0.0, 1.0]])
    assert consistency(three.log(), targets, "squared").item() == pytest.approx(0.25 + 0.0625 + 0.5625, rel=1e-5)
    assert consistency(three.log(), targets, "mse").item() == pytest.approx(0.875 / 3, rel=1e-5)


# MOON. Unit vectors at right angles, and one half way: cosines 1, 0 and √½.

EAST, NORTH, BETWEEN = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]]), torch.tensor([[1.0, 1.0]])


@pytest.mark.parametrize("tau", [0.5, 1.0, 2.0])
def test_contrast_by_hand(tau: float) -> None:
    a, b = 1 / tau, 0.0
    assert contrast(EAST, EAST, NORTH, tau).item() == pytest.approx(-log(exp(a) / (exp(a) + exp(b))), rel=1e-6)
    assert contrast(EAST, NORTH, EAST, tau).item() == pytest.approx(-log(exp(b) / (exp(a) + exp(b))), rel=1e-6)
    c = 0.5**0.5 / tau
    assert contrast(EAST, BETWEEN, NORTH, tau).item() == pytest.approx(-log(exp(c) / (exp(c) + 1)), rel=1e-6)


def test_contrast_is_a_mean_over_the_batch_and_blind_to_length() -> None:
    z, near, far = torch.cat([EAST, EAST]), torch.cat([EAST, NORTH]), torch.cat([NORTH, EAST])
    both = [contrast(EAST, one, two, 0.5).item() for one, two in ((EAST, NORTH), (NORTH, EAST))]
    assert contrast(z, near, far, 0.5).item() == pytest.approx(sum(both) / 2, rel=1e-6)
    assert contrast(3 * z, 0.1 * near, 7 * far, 0.5).item() == pytest.approx(sum(both) / 2, rel=1e-6)


def test_contrast_with_the_same_model_twice_is_log_two() -> None:
    assert contrast(EAST, BETWEEN, BETWEEN, 0.5).item() == pytest.approx(log(2), rel=1e-6)


def test_contrast_compares_feature_maps_as_one_vector() -> None:
    z, near, far = torch.randn(3, 4, 2, 2, 2, generator=torch.Generator().manual_seed(0)).unbind()
    flat = contrast(z.flatten(1), near.flatten(1), far.flatten(1), 0.5)
    assert contrast(z, near, far, 0.5).item() == flat.item()


def test_only_z_has_a_gradient_in_contrast() -> None:
    z, near, far = (v.clone().requires_grad_() for v in (BETWEEN, EAST, NORTH))
    contrast(z, near, far, 0.5).backward()
    assert near.grad is far.grad is None
    # Both cosines are √½, so the slope is ½/τ·(∇cos(z, far) - ∇cos(z, near)), and ∇cos at (1, 1) is ±(1, -1)/√8.
    assert z.grad is not None
    assert torch.allclose(z.grad, torch.tensor([[-2.0, 2.0]]) / 8**0.5, atol=1e-6)


@pytest.mark.parametrize("tau", [1e-3, 1e-6])
def test_contrast_is_finite_at_any_temperature(tau: float) -> None:
    z = EAST.clone().requires_grad_()
    loss = contrast(z, NORTH, EAST, tau)
    loss.backward()
    assert loss.item() == pytest.approx(1 / tau, rel=1e-5)
    assert z.grad is not None
    assert z.grad.isfinite().all()


def test_contrast_of_nothing_but_zeros_is_finite() -> None:
    z = torch.zeros(1, 2, requires_grad=True)
    contrast(z, EAST, NORTH, 0.5).backward()
    assert z.grad is not None
    assert z.grad.isfinite().all()


def test_ramps_at_their_ends() -> None:
    assert ramp_up(0, 10) == pytest.approx(exp(-5))
    assert ramp_up(5, 10) == pytest.approx(exp(-1.25))
    assert ramp_up(10, 10) == ramp_up(99, 10) == ramp_up(0, 0) == 1


@pytest.mark.parametrize(
    "schedule, first, last",
    [("none", 1.0, 1.0), ("linear", 0.0, 1.0), ("log", 0.0, 1 - exp(-5)), ("exp", exp(-5), 1.0)],
)
def test_annealing_at_its_ends(schedule: Any, first: float, last: float) -> None:
    assert annealing_threshold(0, 10, schedule) == pytest.approx(0.1 + 0.9 * first)
    assert annealing_threshold(1, 10, schedule) == pytest.approx(0.1 + 0.9 * last)


def test_annealing_half_way() -> None:
    assert annealing_threshold(0.5, 2, "linear") == pytest.approx(0.75)
    assert annealing_threshold(0.5, 2, "log") == pytest.approx(0.5 + 0.5 * (1 - exp(-2.5)))
    assert annealing_threshold(0.5, 2, "exp") == pytest.approx(0.5 + 0.5 * exp(-2.5))


def test_annealed_cross_entropy_leaves_out_what_is_known() -> None:
    logits, y = SURE.log().requires_grad_(), torch.tensor([0, 0])  # the own class has p = ¼ and 0.9
    loss = annealed_cross_entropy(logits, y, 0.8)
    assert loss.item() == pytest.approx(-log(0.25), rel=1e-5)
    loss.backward()
    assert logits.grad is not None
    assert logits.grad[1].tolist() == [0.0, 0.0]
    assert annealed_cross_entropy(SURE.log(), y, 1.0).item() == pytest.approx(cross_entropy(SURE.log(), y).item())
    assert annealed_cross_entropy(SURE.log(), y, 0.1).item() == 0


def test_mixing_by_hand() -> None:
    a, b = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[5.0, 6.0], [7.0, 8.0]])
    assert mix(a, b, torch.tensor([0.25, 1.0])).tolist() == [[4.0, 5.0], [3.0, 4.0]]


def test_flexible_thresholds_by_hand() -> None:
    # Four samples never confident, two of class 0, one of class 1: β = 2/4, 1/4, 0; β/(2 - β) = 1/3, 1/7, 0.
    selected = torch.tensor([-1, 0, -1, 1, -1, 0, -1])
    assert flexible_thresholds(selected, 3, 0.9).tolist() == pytest.approx([0.3, 0.9 / 7, 0.0])
    # Once most are confident, the best class sets the scale: β = 3/3, 1/3.
    assert flexible_thresholds(torch.tensor([0, 0, 0, 1, -1]), 2, 0.9).tolist() == pytest.approx([0.9, 0.9 / 5])
    assert flexible_thresholds(torch.tensor([], dtype=torch.int64), 2, 0.9).tolist() == [0, 0]


def test_fairness_by_hand() -> None:
    # p̃/h̃ = (0.5/0.25, 0.5/0.75) -> shares (3/4, 1/4). Of two accepted samples with mean (0.6, 0.4), one has each class,
    # so p̄/h̄ = (1.2, 0.8) -> (0.6, 0.4).
    strong = torch.tensor([[0.9, 0.1], [0.3, 0.7], [0.0, 1.0]], requires_grad=True)
    accepted = torch.tensor([True, True, False])
    loss = fairness(torch.tensor([0.5, 0.5]), torch.tensor([0.25, 0.75]), strong, accepted)
    assert loss.item() == pytest.approx(0.75 * log(0.6) + 0.25 * log(0.4), rel=1e-5)
    loss.backward()
    assert strong.grad is not None
    assert strong.grad[:2].abs().min() > 0
    assert strong.grad[2].tolist() == [0.0, 0.0]
    assert fairness(torch.tensor([0.5, 0.5]), torch.tensor([0.5, 0.5]), strong, torch.zeros(3, dtype=torch.bool)) == 0


def test_the_truncated_gaussian_by_hand() -> None:
    found = truncated_gaussian(torch.tensor([0.9, 0.7, 0.5]), torch.tensor(0.7), torch.tensor(0.02))
    assert found.tolist() == pytest.approx([1.0, 1.0, exp(-0.04 / 0.04)], rel=1e-5)


def test_alignment_by_hand() -> None:
    # (0.5/0.8, 0.5/0.2) = (0.625, 2.5), normalised.
    found = aligned(torch.tensor([[0.5, 0.5]]), torch.tensor([0.8, 0.2]))
    assert found.tolist()[0] == pytest.approx([0.2, 0.8])


def test_alignment_to_a_prior_by_hand() -> None:
    # (0.625·0.9, 2.5·0.1) = (0.5625, 0.25), normalised.
    found = aligned(torch.tensor([[0.5, 0.5]]), torch.tensor([0.8, 0.2]), torch.tensor([0.9, 0.1]))
    assert found.tolist()[0] == pytest.approx([0.5625 / 0.8125, 0.25 / 0.8125])
    even = aligned(torch.tensor([[0.5, 0.5]]), torch.tensor([0.8, 0.2]), torch.tensor([0.5, 0.5]))
    assert even.tolist()[0] == pytest.approx([0.2, 0.8])  # a uniform prior changes nothing


def test_the_rising_threshold_by_hand() -> None:
    # FedStar: τ_r = 0.9 - 0.2·(1 + cos(π·r/R))
    found = [rising_threshold(share, 0.5, 0.9) for share in (0.0, 1 / 3, 0.5, 1.0)]
    assert found == pytest.approx([0.5, 0.9 - 0.2 * 1.5, 0.7, 0.9])


def test_a_class_that_is_never_predicted_gets_no_gradient_from_fairness() -> None:
    logits = torch.tensor([[2.0, 0.5, 0.0], [0.4, 1.5, 0.0]], requires_grad=True)  # nobody names the third class
    even = torch.full((3,), 1 / 3)
    loss = fairness(even, even, logits.softmax(dim=1), torch.tensor([True, True]))
    mean = logits.detach().softmax(dim=1).mean(dim=0)
    share = mean[:2] / mean[:2].sum()  # p̄/h̄ with h̄ = ½ for both, and 0 for the third
    assert loss.item() == pytest.approx(float(share.log().sum() / 3 + log(1e-12) / 3), rel=1e-4)
    loss.backward()
    assert logits.grad is not None
    assert logits.grad[:, 2].abs().max() < 0.01


def test_the_truncated_gaussian_without_variance() -> None:
    found = truncated_gaussian(torch.tensor([0.9, 0.5]), torch.tensor(0.9), torch.tensor(0.0))
    assert found.tolist() == [1.0, 0.0]


def test_alignment_with_a_class_never_predicted() -> None:
    assert aligned(torch.tensor([[1.0, 0.0]]), torch.tensor([1.0, 0.0])).tolist() == [[1.0, 0.0]]


def test_an_infinite_loss_that_does_not_count() -> None:
    assert weighted_mean(torch.tensor([1.0, float("inf")]), torch.tensor([1.0, 0.0])).item() == 0.5


# FedMatch, Eq. 3: votes of the client and of its helpers, one class each.


def votes(own: list[int], *helpers: list[int], classes: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    """Probabilities (n, c) and (h, n, c) whose largest entries are these classes."""
    sure = torch.eye(classes) * 0.5 + 0.5 / classes
    return sure[own], sure[torch.tensor(helpers, dtype=torch.int64)].reshape(len(helpers), len(own), classes)


@pytest.mark.parametrize(
    "own, helpers, local, lowest",
    [
        ([2, 0], [], [2, 0], [2, 0]),  # no helpers: its own
        ([2], [[2]], [2], [2]),
        ([2], [[1]], [2], [1]),  # one against one
        ([1], [[2]], [1], [1]),
        ([3], [[1], [1]], [1], [1]),  # outvoted
        ([3], [[2], [1]], [3], [1]),  # three of one mind each
        ([0], [[3], [2]], [0], [0]),
        ([3], [[2], [2], [1], [1]], [1], [1]),  # a tie it is no part of
        ([2], [[2], [1], [1], [0]], [2], [1]),  # a tie it is part of
        ([3, 0, 2], [[1, 1, 2], [1, 2, 0]], [1, 0, 2], [1, 0, 2]),  # every sample has its own votes
    ],
)
def test_agreement_labels_by_hand(own: list[int], helpers: list[list[int]], local: Any, lowest: Any) -> None:
    mine, theirs = votes(own, *helpers)
    assert agreement_labels(mine, theirs, "local").tolist() == local
    assert agreement_labels(mine, theirs, "lowest").tolist() == lowest


def test_agreement_counts_votes_not_probabilities() -> None:
    own, theirs = votes([0], [1], [1])
    own = own * 0 + torch.tensor([0.97, 0.01, 0.01, 0.01])
    theirs = theirs * 0 + torch.tensor([0.24, 0.26, 0.25, 0.25])
    assert agreement_labels(own, theirs, "local").tolist() == [1]


@pytest.mark.parametrize("h", [0, 2])
def test_agreement_on_nothing_is_nothing(h: int) -> None:
    assert agreement_labels(torch.zeros(0, 3), torch.zeros(h, 0, 3), "local").shape == (0,)


def test_agreement_with_no_helpers_does_not_ask_for_classes() -> None:
    own, _ = votes([1, 3])
    assert agreement_labels(own, torch.zeros(0, 2, 1), "lowest").tolist() == [1, 3]
