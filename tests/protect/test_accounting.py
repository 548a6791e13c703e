"""What a run spends, against published values."""

import math
import sys
from pathlib import Path

import numpy as np
import pytest

from tacit.protect import accounting
from tacit.protect.accounting import Spent, _curve, example, spent
from tests.refusals import refused

PAGE = Path(__file__).parents[2] / "docs" / "privacy.md"
# Noise multiplier, epochs and ε at δ = 1e-5 of TensorFlow Privacy's tutorials/README.md (commit 047e1ee): MNIST, 60,000
# samples in batches of 256.
TUTORIAL = [(1.12, 60, 2.92), (0.6, 30, 9.74), (1.2, 10, 1.20)]


def classic(rate: float, noise: float, steps: float, delta: float) -> float:
    """ε by the conversion of that time, min over α of ρ(α) + log(1/δ) / (α - 1): Mironov 2017, proposition 3."""
    orders, divergences = _curve(rate, noise)
    return float(np.min(steps * divergences + math.log(1 / delta) / (np.asarray(orders) - 1)))


@pytest.mark.parametrize("noise, epochs, published", TUTORIAL)
def test_the_divergences_give_the_published_epsilons(noise: float, epochs: int, published: float) -> None:
    rate, steps = 256 / 60_000, epochs * 60_000 / 256
    assert classic(rate, noise, steps, 1e-5) == pytest.approx(published, rel=0.005)
    ours = spent(rate, noise, round(steps), 1e-5).epsilon
    assert 0.75 * published < ours < published, "today's conversion is tighter"


def test_the_example_of_the_moments_accountant() -> None:
    """Abadi et al. 2016: q = 0.01, σ = 4, 10,000 steps, δ = 1e-5 give ε = 1.26."""
    assert classic(0.01, 4.0, 10_000, 1e-5) == pytest.approx(1.26, abs=0.005)


def test_the_values_of_the_accountants_own_tests() -> None:
    """Its rdp_privacy_accountant_test.py: q = 0.01, σ = 2.5, 50 times; and (1, 1e-6) for σ = 4.530877117."""
    orders, divergences = _curve(0.01, 2.5)
    at = {float(order): 50 * float(value) for order, value in zip(orders, divergences, strict=True)}
    assert [at[order] for order in (2.5, 5.0, 50.0)] == pytest.approx([1.0854e-3, 2.1808e-3, 2.3846e-2], rel=1e-4)
    assert spent(1.0, 4.530877117, 1, 1e-6).epsilon == pytest.approx(1.0, abs=1e-3)


def test_more_rounds_and_less_noise_spend_more() -> None:
    assert spent(0.1, 1.0, 10, 1e-5).epsilon < spent(0.1, 1.0, 11, 1e-5).epsilon < spent(0.1, 0.9, 11, 1e-5).epsilon
    assert spent(0.1, 1.0, 10, 1e-5).epsilon < spent(1.0, 1.0, 10, 1e-5).epsilon


def test_no_round_spends_nothing_and_no_noise_everything() -> None:
    assert spent(0.1, 1.0, 0, 1e-5) == Spent(0.0, 1e-5)
    assert spent(0.1, 0.0, 1, 1e-5) == Spent(math.inf, 1e-5)
    assert spent(0.1, 0.0, 1, 1e-5).text == "ε = ∞ at δ = 1.0e-05"


def test_three_hospitals_are_promised_nothing() -> None:
    found = spent(1.0, 1.0, 50, 1e-5)
    assert found.epsilon > 50
    assert found.text in example()
    assert example() in " ".join(PAGE.read_text(encoding="utf-8").split())


def test_without_the_package_the_remedy_is_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    accounting._curve.cache_clear()
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with refused("protect.no-accounting"):
        spent(0.1, 1.0, 1, 1e-5)
