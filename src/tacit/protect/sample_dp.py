"""DP-SGD (Abadi et al., CCS 2016): the gradient of every sample is clipped, and their sum gets noise.

Protected is each sample of a client, labeled or not, against everybody who sees what the client uploads. Two sets of
samples are neighbours if one has one sample more. Their sizes are not protected: uploads say them.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.func import grad, vmap

from tacit.errors import TacitError
from tacit.method import SampleNoise
from tacit.nets import Net
from tacit.params import Params
from tacit.protect import draws
from tacit.protect.sample_budget import Spent

PIECE = 1 << 26  # numbers in the gradients that are held at once, at least one sample's


def refuse_unfit(method: Any, net: Net) -> None:
    """Refuse a method, an objective or a network with which the noise would not protect every sample.

    A method declares with `per_sample = True` that its uploads depend on the client's samples through `fit` alone, an
    objective that its loss is the mean over the labeled samples of a batch plus the weighted mean over the unlabeled
    ones, where the term of a sample depends on no other sample. What declares nothing is refused.
    """
    name, objective = type(method).__name__, getattr(method, "objective", None)
    if not getattr(method, "per_sample", False):
        raise TacitError(
            f"protect.sample_noise cannot protect what clients of {name} send, which is more than the result of SGD",
            "use fedavg, fedprox or scaffold, or leave out protect.sample_noise",
            code="protect.method-sees-samples",
        )
    if objective is None or not getattr(objective, "per_sample", False):
        raise TacitError(
            f"protect.sample_noise needs the loss of each sample, and that of {type(objective).__name__} with these "
            "settings depends on other samples too",
            "use +supervised or +fixmatch with objective.class_weights = 'none' and objective.over = 'batch'",
            code="protect.loss-mixes-samples",
        )
    if net.buffers:
        raise TacitError(
            "protect.sample_noise needs the gradient of each sample, and BatchNorm mixes the samples of a batch",
            "use net.norm = 'group'",
            code="protect.batchnorm",
        )


def spent(given: SampleNoise | None, metrics: Mapping[str, float]) -> Spent:
    """The steps behind a client's upload, from what it logged; without noise if its samples are not protected."""
    rate, steps = metrics.get("sampling_rate", 0.0), metrics.get("steps", 0.0)
    if given is None:
        return Spent(0.0, 1.0, max(1, _count(steps)))
    return Spent(given.noise, min(max(rate, 0.0), 1.0), _count(steps))


def _count(steps: float) -> int:
    return int(min(max(steps, 0.0), 1e12))  # what a client logs need not be possible


def refuse_unvectorised(net: Net, x: Tensor) -> None:
    """Refuse a network whose gradients torch cannot compute for several samples at once; `x` (1, …) is any input."""
    w = net.init(torch.Generator().manual_seed(0))
    try:
        clipped_sum(net, w, x, torch.zeros_like(logits_by_sample(net, w, x)), 1.0)
    except RuntimeError as error:
        raise TacitError(
            f"protect.sample_noise needs the gradient of each sample, and torch does not give it for this network "
            f"({str(error).partition('. ')[0][:100]})",
            "use another network, without recurrent layers",
            code="protect.network",
        ) from error


def logits_by_sample(net: Net, w: Params, x: Tensor) -> Tensor:
    """Logits (n, c) of inputs (n, …) in training mode, without gradient; the random numbers it uses stay unused.

    `clipped_sum` makes the same pass, so layers such as dropout draw the same numbers there.
    """
    with torch.no_grad(), torch.random.fork_rng(devices=[x.device] if x.device.type == "cuda" else []):
        found: Tensor = vmap(lambda one: net.apply(w, one[None], train=True)[0], randomness="different")(x)
    return found


def clipped_sum(net: Net, w: Params, x: Tensor, pulls: Tensor, clip: float) -> list[Tensor]:
    """Σ min(1, C/‖v_i‖)·v_i by trainable tensor, where v_i is the gradient of ⟨pull_i, logits of x_i⟩.

    If `pulls` (n, c) is the gradient of a loss by the logits (n, c), v_i is that of the sample's own share of the loss.
    """
    fixed = {name: value.detach() for name, value in w.items()}
    trained = {name: fixed[name] for name in net.trainable}

    def share(trained: Params, one: Tensor, pull: Tensor) -> Tensor:
        return (net.apply(fixed | trained, one[None], train=True)[0] * pull).sum()

    gradients = vmap(grad(share), in_dims=(None, 0, 0), randomness="different")
    total = [torch.zeros_like(value) for value in trained.values()]
    size = max(1, PIECE // max(1, sum(value.numel() for value in total)))
    for part, pull in zip(x.split(size), pulls.split(size), strict=True):
        found: Params = gradients(trained, part, pull)
        rows = [found[name].flatten(1) for name in net.trainable]
        norms = torch.stack([row.norm(dim=1) for row in rows]).norm(dim=0)
        factor = (clip / norms.clamp(min=torch.finfo(norms.dtype).tiny)).clamp(max=1.0)
        torch._foreach_add_(total, [(factor @ row).view_as(at) for at, row in zip(total, rows, strict=True)])
    return total


def add_noise(total: list[Tensor], given: SampleNoise, stream: torch.Generator | None) -> None:
    """Add N(0, (σ·C)²) to every number of a sum, in place."""
    if given.noise:
        torch._foreach_add_(total, [draws.normal(at, stream) for at in total], alpha=given.noise * given.clip)
