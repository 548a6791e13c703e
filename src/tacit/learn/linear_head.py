"""A last layer fitted to features: from zero, which is logistic regression, or near the head that a model has."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

STEPS = 200  # of L-BFGS at most; the loss is convex
FOLDS = 5  # of the labels, to choose a strength
STRENGTHS = (1e-3, 1e-2, 1e-1, 1.0)  # weights of the labels against the penalty that are tried
_SMALL = 1e-9  # a deviation below which a feature is constant


class LinearHead(NamedTuple):
    """weight (c, d) and bias (c,) in float64: logits of features (n, d) are z·weightᵀ + bias."""

    weight: Tensor
    bias: Tensor

    def logits(self, z: Tensor) -> Tensor:
        """Features (n, d) -> (n, c)."""
        return functional.linear(z, self.weight, self.bias)


def no_head(classes: int, features: int) -> LinearHead:
    """A head of zeros."""
    return LinearHead(torch.zeros(classes, features, dtype=torch.float64), torch.zeros(classes, dtype=torch.float64))


def fit_near(z: Tensor, y: Tensor, start: LinearHead, strength: float, *, free_bias: bool = False) -> LinearHead:
    """Features (n, d), labels (n,) -> the head that minimises C·Σ cross-entropy + ½‖W − W₀‖² + ½‖b − b₀‖².

    W and b act on features with mean 0 and deviation 1, and so do W₀ and b₀, the head to start from; what is returned
    acts on the features themselves. The bias can be free of its penalty.
    """
    mean, spread = z.mean(dim=0), z.std(dim=0, correction=0)
    spread = torch.where(spread > _SMALL, spread, torch.ones_like(spread))
    x = (z - mean) / spread
    near = LinearHead(start.weight * spread, start.bias + start.weight @ mean)
    weight, bias = (part.clone().requires_grad_() for part in near)
    search = torch.optim.LBFGS(
        [weight, bias], max_iter=STEPS, tolerance_grad=1e-8, tolerance_change=1e-12, line_search_fn="strong_wolfe"
    )

    def loss() -> Tensor:
        search.zero_grad()
        fit = functional.cross_entropy(functional.linear(x, weight, bias), y, reduction="sum")
        penalty = (weight - near.weight).square().sum() / 2
        if not free_bias:
            penalty = penalty + (bias - near.bias).square().sum() / 2
        total = (strength * fit + penalty) / len(y)
        total.backward()
        return total

    search.step(loss)
    found = weight.detach() / spread
    return LinearHead(found, bias.detach() - found @ mean)


def fit_chosen(z: Tensor, y: Tensor, start: LinearHead, fold: Tensor) -> tuple[LinearHead, float]:
    """The head near `start` with the strength that predicts held-out labels best, and that strength.

    Features (n, d), labels (n,) and the fold (n,) that each sample is held out in. Strengths are compared by the
    cross-entropy of each fold under the head that is fitted to the others. If the best one is not lower than that of
    `start` by more than a standard error, the head is `start` itself and the strength 0.
    """
    before = functional.cross_entropy(start.logits(z), y, reduction="none")
    losses = {strength: _held_out_losses(z, y, start, fold, strength) for strength in STRENGTHS}
    best = min(losses, key=lambda strength: float(losses[strength].mean()))
    gain = before - losses[best]
    if len(y) < 2 or gain.mean() <= gain.std() / len(y) ** 0.5:
        return start, 0.0
    return fit_near(z, y, start, best), best


def _held_out_losses(z: Tensor, y: Tensor, start: LinearHead, fold: Tensor, strength: float) -> Tensor:
    """(n,) The cross-entropy of each sample under the head that is fitted to the other folds."""
    found = torch.empty(len(y), dtype=z.dtype)
    for place in fold.unique().tolist():
        out = fold == place
        head = start if out.all() else fit_near(z[~out], y[~out], start, strength)
        found[out] = functional.cross_entropy(head.logits(z[out]), y[out], reduction="none")
    return found
