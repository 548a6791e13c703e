"""FedOpenMatch (ICLR 2026): FixMatch with labels of the received model, for samples of which some are of no class.

A second head tells inliers from outliers; only inliers teach the classifier, and all samples are asked for the same
logits on two views. Without that head (net.one_vs_all = false) the rest of it still works.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from tacit.learn import EVALUATION_BATCH, Batch, BatchLoss, Forward, LocalLoss, Looks, View
from tacit.losses import confident, masked_cross_entropy, no_class, one_vs_all, prior_adjusted
from tacit.losses import weighted_mean as mean_of
from tacit.method import Holder, Needs, NonNegative, Probability, PseudoLabels
from tacit.nets.one_vs_all import WEIGHT, pairs
from tacit.objectives.parts import ClassWeights, LabeledView, Over, accepted_share, labeled_loss
from tacit.params import Params, channels_last


@dataclass(frozen=True)
class OpenMatch:
    """FedOpenMatch (2026): FixMatch for unlabeled samples of unknown classes, which a one-vs-all head keeps out."""

    threshold: Probability = 0.95  # τ_in: least confidence of a pseudo-label
    inlier: Probability = 0.5  # least yes of the one-vs-all head to the label for which it counts; 0: no filter
    ova_threshold: Probability = 0.95  # τ_ova: certainty from which the one-vs-all head learns from its own answer
    omega: NonNegative = 1.0  # ω: logit adjustment of the one-vs-all pairs by log π
    consistency: NonNegative = 0.1  # λ: weight of the squared distance between the logits of two views
    stop_gradient: bool = True  # the one-vs-all head does not change the features
    weight: NonNegative = 1.0  # weight of the pseudo-labels
    over: Over = "batch"
    view: LabeledView = "weak"
    class_weights: ClassWeights = "none"

    labels_only = False
    logs = ("loss_ova", "loss_consistency", "inliers")
    needs = Needs(one_vs_all=True)

    def local_loss(self, holder: Holder, received: Params, carried: Mapping[str, Tensor]) -> LocalLoss:
        """The received model labels all unlabeled samples here, once, and its head tells which are inliers."""
        head, labeled = WEIGHT in holder.net.names, labeled_loss(holder, self.class_weights)
        q, inliers = _answers(holder, received, head)
        looks = Looks(holder.views, [self.view], "labeled", holder.stream("labeled views"))
        kinds: list[View] = ["weak", "strong"] if self.consistency else ["strong"]
        looks_u = Looks(holder.views, kinds, "unlabeled", holder.stream("unlabeled views"))

        def cost(w: Params, batch: Batch, forward: Forward) -> BatchLoss:
            n, m = len(batch.x), len(batch.u)
            seen = [looks(batch)] if n else []
            views = [looks_u(batch, place) for place in range(len(kinds))] if m else []
            output = forward(torch.cat([*seen, *views[::-1]]))  # labeled, strong, weak
            logits = output.logits.split([n] + [m] * len(views))
            ova: tuple[Tensor, ...] = ()
            if head and output.features is not None:
                z = output.features.detach() if self.stop_gradient else output.features
                ova = pairs(w, z).split([n] + [m] * len(views))
            total, metrics = torch.zeros((), device=holder.device), dict[str, Tensor]()
            pseudo_labels, loss_ova = None, torch.zeros((), device=holder.device)
            if n:
                total = metrics["loss_supervised"] = labeled(logits[0], batch.y)
                if ova:
                    loss_ova = one_vs_all(prior_adjusted(ova[0], self.omega), batch.y).mean()
            if m:
                labels, sure = confident(q[batch.index], self.threshold)
                yes = inliers[batch.index].gather(1, labels[:, None])[:, 0]
                accepted = sure & (yes >= self.inlier)
                loss = masked_cross_entropy(logits[1], labels, accepted, self.over)
                total = total + self.weight * loss
                metrics |= {"loss_unlabeled": loss, "weight_unlabeled": torch.tensor(self.weight)}
                metrics |= accepted_share(accepted)
                pseudo_labels = PseudoLabels(batch.index, labels, accepted)
                if ova:
                    metrics["inliers"] = (yes >= self.inlier).float().mean()
                    loss_ova = loss_ova + self._own_answers(ova[1], labels, sure, yes)
                if self.consistency:
                    metrics["loss_consistency"] = _distance(logits[1:]) + (_distance(ova[1:]) if ova else 0)
                    total = total + self.consistency * metrics["loss_consistency"]
            if ova:
                metrics["loss_ova"], total = loss_ova, total + loss_ova
            return BatchLoss(total, metrics, pseudo_labels)

        return LocalLoss(cost, features=head)

    def _own_answers(self, strong: Tensor, labels: Tensor, sure: Tensor, yes: Tensor) -> Tensor:
        """(n, 2, c) of the strong view, (n,) each -> scalar: certain inliers have their class, outliers have none."""
        adjusted = prior_adjusted(strong, self.omega)
        inside = sure & (yes >= self.ova_threshold)
        outside = yes <= 1 - self.ova_threshold
        return mean_of(one_vs_all(adjusted, labels), inside.float()) + mean_of(no_class(adjusted), outside.float())


@torch.no_grad()
def _answers(holder: Holder, received: Params, head: bool) -> tuple[Tensor, Tensor]:
    """(n, c) each, for all samples of the holder: probabilities of the classes, and of being an inlier of each.

    Rows of labeled samples are zero. Without a head, every sample is an inlier.
    """
    unlabeled, net = holder.samples.unlabeled, holder.net
    model = channels_last({name: value.to(holder.device) for name, value in received.items()})
    found = []
    for part in holder.samples.x[unlabeled].split(EVALUATION_BATCH) if len(unlabeled) else ():
        seen = holder.views.plain(part.to(holder.device))
        if head:
            z, logits = net.features_and_logits(model, seen)
            found.append((functional.softmax(logits, dim=1), functional.softmax(pairs(model, z), dim=1)[:, 1]))
        else:
            q = functional.softmax(net.apply(model, seen), dim=1)
            found.append((q, torch.ones_like(q)))
    if not found:
        nothing = torch.zeros(0, 0, device=holder.device)
        return nothing, nothing
    whole = []
    for parts in zip(*found, strict=True):
        answers = torch.cat(parts)
        every = answers.new_zeros(len(holder.samples), answers.shape[1])
        every[unlabeled.to(holder.device)] = answers
        whole.append(every)
    return whole[0], whole[1]


def _distance(views: tuple[Tensor, ...]) -> Tensor:
    """Logits (n, …) of the strong and of the weak view -> scalar: their mean squared distance. Both views learn."""
    strong, weak = views
    return functional.mse_loss(strong, weak)


OBJECTIVES = {"openmatch": OpenMatch}
