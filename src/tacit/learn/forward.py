"""The forward pass that learns, and a term that a method adds on its features."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tacit.errors import TacitError
from tacit.learn.batching import Batch
from tacit.method import PseudoLabels
from tacit.nets import Net
from tacit.params import Params


@dataclass(frozen=True)
class Output:
    """What a network makes of inputs (n, …)."""

    logits: Tensor  # (n, classes)
    features: Tensor | None  # (n, …): what the last layer sees; None if nothing reads them, or the network has none


# Inputs (n, …) as the network sees them -> the output of the model in training, in training mode and with gradient.
Forward = Callable[[Tensor], Output]


@dataclass(frozen=True)
class BatchLoss:
    """The loss of a batch: the scalar to minimise, numbers to log, pseudo-labels to diagnose."""

    total: Tensor
    metrics: Mapping[str, Tensor] = field(default_factory=dict)
    pseudo_labels: PseudoLabels | None = None


@dataclass(frozen=True)
class LocalLoss:
    """An objective at one holder: the loss of a batch, what to carry to the next visit, and what follows a step.

    Passes that learn call the `forward` they are given, so that methods can add a term on their features. Passes that
    only label or teach call `net.apply`.
    """

    cost: Callable[[Params, Batch, Forward], BatchLoss]
    carry: Callable[[], dict[str, Tensor]] = dict
    after_step: Callable[[Params], None] = lambda w: None
    features: bool = False  # whether `cost` reads the features of its forward passes


@dataclass(frozen=True)
class FeatureTerm:
    """A term that a method adds to any objective; the network must have features."""

    name: str  # under which it is logged, without its weight
    weight: float
    loss: Callable[[Tensor, Tensor], Tensor]  # inputs (n, …), features (n, …) -> scalar, a mean over the samples


def forward_of(net: Net, w: Params, features: bool = True) -> Forward:
    """The forward pass of a model in training, with its features unless they are not asked for, which is faster."""

    def forward(x: Tensor) -> Output:
        if not features or not net.has_features:
            return Output(net.apply(w, x, train=True), None)
        seen, logits = net.features_and_logits(w, x, train=True)
        return Output(logits, seen)

    return forward


def loss_of_batch(local: LocalLoss, net: Net, w: Params, batch: Batch, term: FeatureTerm | None = None) -> BatchLoss:
    """The objective's loss of a batch, plus the term: its mean over the samples of all passes that learn."""
    model = w if len(w) == len(net.names) else {name: w[name] for name in net.names}
    forward, passes = forward_of(net, model, term is not None or local.features), list[tuple[Tensor, Tensor]]()

    def observed(x: Tensor) -> Output:
        output = forward(x)
        if output.features is not None and torch.is_grad_enabled():
            passes.append((x, output.features))
        return output

    if term is None:
        return local.cost(w, batch, forward)
    cost = local.cost(w, batch, observed)
    if not passes:
        problem = f"the objective makes no forward pass that {term.name} could be computed on"
        raise TacitError(problem, "let it call the `forward` that it is given", code="learn.no-forward-pass")
    count = sum(len(x) for x, _ in passes)
    added = torch.stack([len(x) / count * term.loss(x, z) for x, z in passes]).sum()
    return BatchLoss(cost.total + term.weight * added, {**cost.metrics, term.name: added}, cost.pseudo_labels)
