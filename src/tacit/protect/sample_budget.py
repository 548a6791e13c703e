"""How much DP-SGD has revealed: ε by Rényi differential privacy of the Poisson-sampled Gaussian mechanism.

ε holds for everything that a client has uploaded, together with δ: the probability that it does not hold. Which clients
take part in a round is known to the server, so it makes nothing more private.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from tacit.errors import TacitError

DELTA = 1e-5  # δ; smaller for clients with many samples, since it must be far below one in their number
# Rényi orders α. Whole numbers have an exact formula; larger ones matter for small ε.
ORDERS = (*range(2, 65), 80, 96, 128, 192, 256, 512)
SPARE = 10  # δ is at most 1 in this many times the samples


@dataclass(frozen=True)
class Spent:
    """Steps of DP-SGD: their noise σ in multiples of the clip, and the probability of a sample to be in a batch."""

    noise: float
    rate: float
    steps: int


def delta_of(samples: int) -> float:
    """The δ of a client with this many samples."""
    return min(DELTA, 1 / (SPARE * max(1, samples)))


def epsilon(spent: Iterable[Spent], delta: float) -> float:
    """The ε of all these steps together; infinite if one of them has no noise."""
    steps: dict[tuple[float, float], int] = {}
    for each in spent:
        steps[each.noise, each.rate] = steps.get((each.noise, each.rate), 0) + each.steps
    used = {how: count for how, count in steps.items() if count and how[1]}
    if not used:
        return 0.0
    if any(not noise for noise, _ in used):
        return math.inf
    try:
        import dp_accounting
        from dp_accounting import rdp
    except ImportError:
        raise TacitError(
            "an account of privacy needs the package dp-accounting",
            "run `pip install 'tacit[privacy]'`",
            code="protect.no-accounting",
        ) from None
    accountant = rdp.RdpAccountant(ORDERS)
    for (noise, rate), count in used.items():
        accountant.compose(dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(noise)), count)
    return float(accountant.get_epsilon(delta))


def largest_epsilon(clients: Iterable[Iterable[Spent]], delta: float) -> float:
    """The largest ε over several clients; those that spent the same are counted once."""
    different = {tuple(sorted((each.noise, each.rate, each.steps) for each in spent)) for spent in clients}
    return max((epsilon((Spent(*each) for each in spent), delta) for spent in different), default=0.0)
