"""SAGE: Mind the Gap: Confidence Discrepancy Can Guide Federated Semi-Supervised Learning (Liu et al., CVPR 2025).

FedAvg, in which the model in training (local) and the received one (global) label the weak view together. With
their confidences c_l and c_g on a sample:

    δ = |c_l - c_g| + 10⁻⁶,  λ = exp(-κ·δ) with κ = ln 2 / 0.05
    target = λ·onehot(ŷ_l) + (1 - λ)·onehot(ŷ_g) if c_l ≥ τ, else onehot(ŷ_g)

The sample counts if either model reaches τ; the strong view learns the target.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from tacit import aggregation as agg
from tacit.aggregation import Weights, WeightsDown, WeightsState, WeightsUp
from tacit.federation import UNLABELED, Samples
from tacit.learn import Batch, LocalLoss, LocalState, Looks, fit
from tacit.losses import mix, weighted_mean
from tacit.method import (
    ClientContext,
    Holder,
    Needs,
    NonNegative,
    Positive,
    Probability,
    PseudoLabels,
    Reply,
    ServerContext,
)
from tacit.objectives import Supervised
from tacit.objectives.parts import LabeledView, UnlabeledLoss, accepted_share, costs, on_labels
from tacit.params import Params, channels_last


@dataclass(frozen=True)
class Sage:
    """FedAvg with FixMatch whose targets mix local and global labels by the gap between both confidences."""

    threshold: Probability = 0.95  # τ: least confidence of either model in a sample that counts
    weight: NonNegative = 1.0  # λ_u: weight of the unlabeled term
    half: Positive = 0.05  # gap δ between both confidences at which local and global label count the same
    labeled_too: bool = False  # labeled samples are also taught as unlabeled ones
    weights: Weights = "samples"
    view: LabeledView = "weak"

    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {"as-written": {}, "as-released": {"labeled_too": True}}

    PAPER_LR: ClassVar[float] = 0.1
    needs = Needs()
    logs = ("local_share",)

    def start(self, server: ServerContext) -> WeightsState:
        """Initialize w."""
        return agg.start_weights(server)

    def send(self, server: ServerContext, state: WeightsState) -> tuple[WeightsState, Mapping[int, WeightsDown]]:
        """w to every client of the round; a server with labels trains on them first."""
        state = agg.train_on_server(server, state, Supervised(self.view))
        return state, dict.fromkeys(server.cohort, WeightsDown(state.w))

    def client_update(
        self, client: ClientContext, memory: LocalState | None, down: WeightsDown
    ) -> Reply[LocalState, WeightsUp]:
        """Local epochs; w stays as the global labeler."""
        objective = OfBoth(self, len(client.data))
        holder = replace(client, data=_with_copies(client.data)) if self.labeled_too else client
        return agg.trained_reply(client, fit(holder, down.w, objective, carried=memory), objective)

    def merge(self, server: ServerContext, state: WeightsState, ups: Mapping[int, WeightsUp]) -> WeightsState:
        """FedAvg."""
        return agg.merge_weights(server, state, ups, self.weights)

    def model(self, state: WeightsState) -> Params:
        """The average."""
        return state.w


@dataclass(frozen=True)
class Corrected:
    """Labels of both models, the share λ of the local one in the target, and whether a sample counts; (n,) each."""

    local: Tensor
    common: Tensor
    share: Tensor
    accepted: Tensor


def corrected(local: Tensor, common: Tensor, threshold: float, half: float) -> Corrected:
    """Probabilities (n, c) of the local and of the global model -> the target; λ is 0 if the local one is unsure."""
    (c_l, y_l), (c_g, y_g) = local.max(dim=1), common.max(dim=1)
    gap = (c_l - c_g).abs() + 1e-6
    share = torch.where(c_l >= threshold, torch.exp2(-gap / half), 0.0)
    return Corrected(y_l, y_g, share, (c_l >= threshold) | (c_g >= threshold))


@dataclass(frozen=True)
class OfBoth:
    """The loss of a batch: labels on one view, and the mixed target on the strong view."""

    method: Sage
    own: int  # samples of the client; those behind them are copies of labeled ones

    labels_only = False
    needs = Needs()

    def local_loss(self, holder: Holder, received: Params, carried: Mapping[str, Tensor]) -> LocalLoss:
        """The received model labels the same weak view as the one in training, in evaluation mode."""
        method, net = self.method, holder.net
        looks = Looks(holder.views, ["weak", "strong"], "unlabeled", holder.stream("unlabeled views"))
        before = channels_last({name: value.to(holder.device) for name, value in received.items()})

        def unlabeled(w: Params, batch: Batch) -> tuple[Tensor, Callable[[Tensor], UnlabeledLoss]]:
            weak = looks(batch)
            with torch.no_grad():
                local = functional.softmax(net.apply(w, weak, train=True), dim=1)
                common = functional.softmax(net.apply(before, weak), dim=1)
            found = corrected(local, common, method.threshold, method.half)

            def term(logits: Tensor) -> UnlabeledLoss:
                metrics = accepted_share(found.accepted) | {"local_share": found.share.mean()}
                return UnlabeledLoss(_loss(logits, found), metrics, self._reported(batch, found))

            return looks(batch, 1), term

        return LocalLoss(costs(holder, on_labels(holder, method.view), method.weight, unlabeled))

    def _reported(self, batch: Batch, found: Corrected) -> PseudoLabels:
        """The label with the larger part in each target; copies of labeled samples are at no position."""
        label = torch.where(found.share >= 0.5, found.local, found.common)
        return PseudoLabels(torch.where(batch.index < self.own, batch.index, -1), label, found.accepted)


def _loss(logits: Tensor, found: Corrected) -> Tensor:
    """Cross-entropy with the targets, a mean over the batch: KL plus their entropy, which has no gradient."""
    losses = [functional.cross_entropy(logits, y, reduction="none") for y in (found.local, found.common)]
    return weighted_mean(mix(losses[0], losses[1], found.share), found.accepted)


def _with_copies(data: Samples) -> Samples:
    """The samples, and behind them those with a label once more, without it."""
    x = data.take(data.labeled).x
    return Samples(torch.cat([data.x, x]), torch.cat([data.y, data.y.new_full((len(x),), UNLABELED)]))


METHODS = {"sage": Sage}
