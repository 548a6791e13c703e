"""What a run has spent: (ε, δ) of client-level differential privacy, by Google's `dp-accounting`.

Two federations are neighbours if one has one client more. Each round samples every client with probability q on its
own and adds Gaussian noise to a sum whose sensitivity is the clipping bound: the Poisson-subsampled Gaussian mechanism,
whose Rényi divergences add up over the rounds.
"""

import logging
import math
from dataclasses import dataclass
from functools import cache
from typing import Any

from tacit.errors import TacitError

HOSPITALS, ROUNDS, NOISE, DELTA = 3, 50, 1.0, 1e-5  # an example of a federation that is too small


@dataclass(frozen=True)
class Spent:
    """What a mechanism promises: for any client, e^ε bounds how much likelier an outcome is with it than without."""

    epsilon: float  # infinite without noise
    delta: float

    @property
    def text(self) -> str:
        """In words."""
        shown = f"{self.epsilon:.2f}" if math.isfinite(self.epsilon) else "∞"
        return f"ε = {shown} at δ = {self.delta:.1e}"


def spent(rate: float, noise: float, rounds: int, delta: float) -> Spent:
    """What rounds spend that sample each client with probability `rate` and add `noise` times the bound."""
    if not rounds:
        return Spent(0.0, delta)
    if not noise:
        return Spent(math.inf, delta)
    orders, divergences = _curve(rate, noise)
    return Spent(float(_package().rdp.compute_epsilon(orders, rounds * divergences, delta)[0]), delta)


def example() -> str:
    """What client-level privacy is worth for three hospitals, in a sentence."""
    found = spent(1.0, NOISE, ROUNDS, DELTA)
    return (
        f"{HOSPITALS} hospitals that all take part in {ROUNDS} rounds with noise {NOISE:g} spend {found.text}: that "
        "promises nothing"
    )


@cache
def _curve(rate: float, noise: float) -> tuple[Any, Any]:
    """Orders, and the Rényi divergence of one round at each."""
    package, absl = _package(), logging.getLogger("absl")
    level = absl.level
    absl.setLevel(logging.ERROR)  # it warns of orders that it leaves out; the bound by the others holds
    event = package.PoissonSampledDpEvent(rate, package.GaussianDpEvent(noise))
    accountant = package.rdp.RdpAccountant().compose(event)
    absl.setLevel(level)
    return accountant.orders, accountant.rdp


def _package() -> Any:
    """dp-accounting, if it is installed."""
    try:
        import dp_accounting
        import dp_accounting.rdp
    except ImportError:
        raise TacitError(
            "the privacy that a run spends is counted by dp-accounting, which is not installed",
            "install tacit[privacy]",
            code="protect.no-accounting",
        ) from None
    return dp_accounting
