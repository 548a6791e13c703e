"""Pure losses with the papers' symbols; docstrings state the shapes. Targets have no gradient."""

from math import cos, exp, pi
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

Denominator = Literal["batch", "kept"]
Distance = Literal["mse", "squared", "kl"]
Annealing = Literal["none", "linear", "log", "exp"]


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """(n, c), (n,) -> scalar: mean over the batch of -log p(y)."""
    return functional.cross_entropy(logits, y)


def confident(probabilities: Tensor, threshold: float | Tensor) -> tuple[Tensor, Tensor]:
    """(n, c) -> labels (n,), accepted (n,): the most probable class, and whether its probability reaches τ.

    τ is one number, or one for every class (c,).
    """
    confidence, labels = probabilities.max(dim=1)
    return labels, confidence >= (threshold[labels] if isinstance(threshold, Tensor) else threshold)


def class_counts(labels: Tensor, classes: int, among: Tensor | None = None) -> Tensor:
    """(n,) -> (c,): how often each class occurs, among all labels or those where `among` (n,) is true.

    Unlike `torch.bincount`, it does not make the CPU wait for a GPU to know the number of classes.
    """
    ones = torch.ones_like(labels) if among is None else among.to(labels.dtype)
    return labels.new_zeros(classes).scatter_add_(0, labels, ones)


def balanced_weights(labels: Tensor, classes: int) -> Tensor:
    """(n,) -> (c,): n / (k·n_y) for the k classes that occur, so that each counts the same and the mean weight is 1.

    A class without a sample has weight 1.
    """
    counts = torch.bincount(labels, minlength=classes)
    return torch.where(counts > 0, len(labels) / ((counts > 0).sum() * counts.clamp(min=1)), 1.0)


def weighted_cross_entropy(logits: Tensor, y: Tensor, weights: Tensor) -> Tensor:
    """(n, c), (n,), (c,) -> scalar: the sum of w(y)·loss, divided by n, so that small batches do not undo weights."""
    return functional.cross_entropy(logits, y, weights, reduction="sum") / max(1, len(y))


def masked_cross_entropy(logits: Tensor, labels: Tensor, accepted: Tensor, over: Denominator) -> Tensor:
    """(n, c), labels (n,) or (n, c), accepted (n,) bool -> scalar: the `weighted_mean` over the accepted samples."""
    return weighted_mean(functional.cross_entropy(logits, labels, reduction="none"), accepted, over)


def weighted_mean(losses: Tensor, weights: Tensor, over: Denominator = "batch") -> Tensor:
    """(n,), (n,) -> scalar: the weighted sum, divided by the batch or by the samples with a weight."""
    count = (weights > 0).sum().clamp(min=1) if over == "kept" else len(losses)
    return torch.where(weights > 0, losses * weights, 0.0).sum() / count  # an infinite loss that does not count is 0


def complementary(logits: Tensor, y: Tensor) -> Tensor:
    """(n, c), (n,) -> scalar: mean of -log(1 - p(y)), the cost of the class a sample is not (FedSEAL, Eq. 15)."""
    others = logits.masked_fill(functional.one_hot(y, logits.shape[1]).bool(), -torch.inf)
    return (logits.logsumexp(dim=1) - others.logsumexp(dim=1)).mean()


def sharpen(probabilities: Tensor, temperature: float) -> Tensor:
    """(n, c) -> (n, c): q^(1/T), normalised; T = 1 changes nothing, T → 0 leaves the most probable class (UDA)."""
    return functional.softmax(probabilities.clamp(min=1e-30).log() / temperature, dim=1)


def divergence(logits: Tensor, targets: Tensor) -> Tensor:
    """(n, c), (n, c) -> (n,): KL(q ‖ p) of targets q and the p of these logits."""
    entropy: Tensor = torch.special.entr(targets.detach()).sum(dim=1)
    return functional.cross_entropy(logits, targets.detach(), reduction="none") - entropy


def consistency(logits: Tensor, targets: Tensor, distance: Distance) -> Tensor:
    """(n, c), (n, c) -> (n,): how far predictions are from target probabilities.

    `squared` is ‖q - p‖² and `kl` is KL(q ‖ p) (FedSiam, Eq. 4 and 5); `mse` is averaged over classes (Mean Teacher).
    """
    if distance == "kl":
        return divergence(logits, targets)
    apart = (functional.softmax(logits, dim=1) - targets.detach()).square()
    return apart.mean(dim=1) if distance == "mse" else apart.sum(dim=1)


def contrast(z: Tensor, near: Tensor, far: Tensor, temperature: float) -> Tensor:
    """(n, …) each -> scalar: mean of -log(e^a / (e^a + e^b)) with a = cos(z, near)/τ and b = cos(z, far)/τ (MOON)."""
    z = z.flatten(1)
    similar = [functional.cosine_similarity(z, other.detach().flatten(1)) / temperature for other in (near, far)]
    return functional.softplus(similar[1] - similar[0]).mean()


def prior_adjusted(pairs: Tensor, omega: float) -> Tensor:
    """(n, 2, c) -> (n, 2, c): logits + ω·log π with π = ((c - 1)/c, 1/c), how often a class is a no and a yes."""
    classes = pairs.shape[2]
    prior = torch.tensor([[(classes - 1) / classes], [1 / classes]], dtype=pairs.dtype).log()
    return pairs + omega * prior.to(pairs.device, non_blocking=True)


def one_vs_all(pairs: Tensor, y: Tensor) -> Tensor:
    """(n, 2, c), (n,) -> (n,): -log p_y(yes) - min over j ≠ y of log p_j(no), the hard negative class (OpenMatch)."""
    no, yes = (-functional.log_softmax(pairs, dim=1)).unbind(dim=1)
    own = functional.one_hot(y, pairs.shape[2]).bool()
    return yes.gather(1, y[:, None])[:, 0] + no.masked_fill(own, -torch.inf).amax(dim=1)


def no_class(pairs: Tensor) -> Tensor:
    """(n, 2, c) -> (n,): -min over j of log p_j(no), the cost of a sample that is of no class."""
    return -functional.log_softmax(pairs, dim=1)[:, 0].amin(dim=1)


def ramp_up(elapsed: float, length: float) -> float:
    """exp(-5·(1 - t/T)²) up to T, then 1; it starts at exp(-5)."""
    return exp(-5 * (1 - min(elapsed / length, 1)) ** 2) if length else 1.0


def annealing_threshold(progress: float, classes: int, schedule: Annealing) -> float:
    """η_t = α_t·(1 - 1/K) + 1/K of training-signal annealing, α_t grows from 0 to 1 with progress (UDA, Eq. 3).

    α_t is t/T, 1 - exp(-5·t/T) or exp(5·(t/T - 1)); without a schedule it is 1: every labeled sample is used.
    """
    alpha = {
        "none": 1.0,
        "linear": progress,
        "log": 1 - exp(-5 * progress),
        "exp": exp(5 * (progress - 1)),
    }[schedule]
    return alpha * (1 - 1 / classes) + 1 / classes


def annealed_cross_entropy(logits: Tensor, y: Tensor, threshold: float) -> Tensor:
    """(n, c), (n,) -> scalar: mean over the samples whose true class has a probability of at most η_t."""
    losses = functional.cross_entropy(logits, y, reduction="none")
    return weighted_mean(losses, (-losses.detach()).exp() <= threshold, "kept")


def mix(a: Tensor, b: Tensor, share: Tensor) -> Tensor:
    """(n, …), (n, …), (n,) -> (n, …): λ·a + (1 - λ)·b."""
    share = share.reshape(-1, *[1] * (a.ndim - 1))
    return share * a + (1 - share) * b


def agreement_labels(own: Tensor, helpers: Tensor, ties: Literal["local", "lowest"]) -> Tensor:
    """Probabilities (n, c), (h, n, c) -> labels (n,): the class that most models predict (FedMatch, Eq. 3).

    A tie goes to the client's own class if it is among the winners and `ties` is "local", else to the lowest class.
    """
    mine = own.argmax(dim=1)
    if not len(helpers):
        return mine
    votes = functional.one_hot(mine, own.shape[1]) + functional.one_hot(helpers.argmax(dim=2), own.shape[1]).sum(dim=0)
    most = votes.amax(dim=1)
    lowest = (votes == most[:, None]).to(torch.int8).argmax(dim=1)
    if ties == "lowest":
        return lowest
    return torch.where(votes.gather(1, mine[:, None])[:, 0] == most, mine, lowest)


def rising_threshold(progress: float, first: float, last: float) -> float:
    """τ_r = τ - (τ - τ_0)/2·(1 + cos(π·r/R)): half a cosine from τ_0 to τ (FedStar, with 0.5 and 0.9)."""
    return last - (last - first) / 2 * (1 + cos(pi * progress))


def flexible_thresholds(selected: Tensor, classes: int, threshold: float) -> Tensor:
    """(n,) last confident label of every sample, -1 for none -> (c,) thresholds (FlexMatch, Eq. 5, 7, 11 and 12).

    β(c) = σ(c) / max(max σ, samples never confident), τ(c) = β(c)/(2 - β(c))·τ.
    """
    counts = class_counts(selected + 1, classes + 1)
    beta = counts[1:] / counts.max().clamp(min=1)  # the first counts samples that were never confident
    return beta / (2 - beta) * threshold


def fairness(p_model: Tensor, h_model: Tensor, strong: Tensor, accepted: Tensor) -> Tensor:
    """(c,), (c,), strong-view probabilities (n, c), accepted (n,) -> scalar: the fairness loss L_f of FreeMatch.

    -H[SumNorm(p̃/h̃), SumNorm(p̄/h̄)] with p̄ and h̄ the mean probability and the histogram of the accepted samples.
    """
    if not accepted.any():
        return strong.sum() * 0
    sure = strong[accepted]
    h_batch = class_counts(sure.argmax(dim=1), len(p_model)) / len(sure)
    expected = _share(_ratio(p_model, h_model)).detach()
    found = _share(_ratio(sure.mean(dim=0), h_batch))
    return (expected * (found + 1e-12).log()).sum()


def truncated_gaussian(confidence: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    """(n,) -> (n,): 1 from μ on, exp(-(p - μ)²/2σ²) below it (SoftMatch, Eq. 5)."""
    below = (confidence - mean).clamp(max=0)
    return (-below.square() / (2 * variance.clamp(min=1e-12))).exp()


def aligned(probabilities: Tensor, mean: Tensor, prior: Tensor | None = None) -> Tensor:
    """(n, c), (c,), (c,) -> (n, c): predictions over their mean, times the prior, normalised.

    Without a prior all classes are equally frequent (SoftMatch, Eq. 9; FedDB).
    """
    scaled = probabilities / mean.clamp(min=1e-6)
    if prior is not None:
        scaled = scaled * prior.clamp(min=1e-6)
    return scaled / scaled.sum(dim=1, keepdim=True)


def _ratio(p: Tensor, histogram: Tensor) -> Tensor:
    """p/h, and 0 for a class that no sample has, which then neither gains nor loses."""
    return torch.where(histogram > 0, p / histogram.clamp(min=1e-12), 0.0)


def _share(values: Tensor) -> Tensor:
    """SumNorm: divided by their sum."""
    return values / values.sum()
