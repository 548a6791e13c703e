"""ε of DP-SGD: known values, what makes it grow, and a hand-made bound."""

import math

import pytest

from tacit.protect.sample_budget import ORDERS, Spent, delta_of, epsilon, largest_epsilon


def test_one_full_step_is_the_gaussian_mechanism() -> None:
    # Rényi DP of the Gaussian mechanism is α/(2σ²); ε ≤ α/(2σ²) + log(1/δ)/(α - 1) for every α (Mironov 2017).
    sigma, delta = 4.0, 1e-5
    bound = min(a / (2 * sigma**2) + math.log(1 / delta) / (a - 1) for a in range(2, 65))
    found = epsilon([Spent(sigma, 1.0, 1)], delta)
    assert found <= bound
    assert found == pytest.approx(bound, rel=0.25)


def test_it_agrees_with_the_accountant_of_opacus() -> None:
    rdp = pytest.importorskip("opacus.accountants.analysis.rdp")
    for noise, rate, steps in [(1.3, 256 / 60_000, 3515), (1.0, 0.1, 100), (2.0, 0.5, 30)]:
        found = epsilon([Spent(noise, rate, steps)], 1e-5)
        known = rdp.compute_rdp(q=rate, noise_multiplier=noise, steps=steps, orders=ORDERS)
        assert found == pytest.approx(rdp.get_privacy_spent(orders=ORDERS, rdp=known, delta=1e-5)[0], rel=1e-3)


def test_more_steps_and_less_noise_reveal_more() -> None:
    def of(noise: float, rate: float, steps: int) -> float:
        return epsilon([Spent(noise, rate, steps)], 1e-5)

    assert of(1.0, 0.1, 10) < of(1.0, 0.1, 20) < of(0.8, 0.1, 20) < of(0.8, 0.2, 20)


def test_steps_of_the_same_kind_add_up() -> None:
    assert epsilon([Spent(1.0, 0.1, 10)] * 3, 1e-5) == epsilon([Spent(1.0, 0.1, 30)], 1e-5)


def test_nothing_sent_reveals_nothing_and_no_noise_everything() -> None:
    assert epsilon([], 1e-5) == 0
    assert epsilon([Spent(1.0, 0.1, 0), Spent(1.0, 0.0, 5)], 1e-5) == 0
    assert epsilon([Spent(0.0, 0.1, 1), Spent(1.0, 0.1, 1)], 1e-5) == math.inf


def test_the_client_with_the_most_steps_has_the_largest_epsilon() -> None:
    one, other = [Spent(1.0, 0.1, 5)], [Spent(1.0, 0.1, 50)]
    assert largest_epsilon([one, other, one], 1e-5) == epsilon(other, 1e-5)
    assert largest_epsilon([], 1e-5) == 0


def test_delta_is_far_below_one_in_the_samples() -> None:
    assert delta_of(500) == 1e-5
    assert delta_of(1_000_000) == 1e-7
