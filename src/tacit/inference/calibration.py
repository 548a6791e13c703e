"""Temperature scaling (Guo et al. 2017): one number that makes probabilities match how often answers are right."""

import math

import torch
from scipy.optimize import minimize_scalar
from torch import Tensor
from torch.nn import functional

from tacit.errors import TacitError

BOUNDS = (math.log(0.05), math.log(20.0))  # of the logarithm of the temperature


def fit_temperature(logits: Tensor, y: Tensor) -> float:
    """The temperature with the smallest log loss on samples with logits (n, c) and classes (n,).

    If all answers are right, a lower temperature is always better, so that there is none.
    """
    if bool((logits.argmax(dim=1) == y).all()):
        problem = f"the model makes no errors on these {len(y):,} samples, so calibration is impossible"
        raise TacitError(problem, "calibrate on more samples, or harder ones", code="export.nothing-to-calibrate")

    def loss(log_temperature: float) -> float:
        return log_loss(logits, y, math.exp(log_temperature))

    found = minimize_scalar(loss, bounds=BOUNDS, method="bounded", options={"xatol": 1e-4})
    return round(math.exp(float(found.x)), 4)


@torch.no_grad()
def log_loss(logits: Tensor, y: Tensor, temperature: float) -> float:
    """Mean negative log likelihood at a temperature."""
    return float(functional.cross_entropy(logits.double() / temperature, y))
