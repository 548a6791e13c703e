"""Pure losses with the papers' symbols; shapes stand in the docstrings. Targets never carry gradient."""

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

Denominator = Literal["batch", "kept"]


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """(n, c), (n,) -> scalar: mean over the batch of -log p(y)."""
    return functional.cross_entropy(logits, y)


def confident(probabilities: Tensor, threshold: float) -> tuple[Tensor, Tensor]:
    """(n, c) -> labels (n,), kept (n,): the most probable class, and whether its probability reaches τ."""
    confidence, labels = probabilities.max(dim=1)
    return labels, confidence >= threshold


def masked_cross_entropy(logits: Tensor, labels: Tensor, kept: Tensor, over: Denominator) -> Tensor:
    """(n, c), (n,), (n,) bool -> scalar: cross-entropy summed over the kept samples, divided by all or by them."""
    losses = functional.cross_entropy(logits, labels, reduction="none") * kept
    count = kept.sum().clamp(min=1) if over == "kept" else torch.tensor(len(labels))
    return losses.sum() / count.to(losses.device)
