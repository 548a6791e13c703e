"""CBAFed: Class Balanced Adaptive Pseudo Labeling for Federated Semi-Supervised Learning (Li, Li and Wang, CVPR 2023).

Some clients have labels, the others none. Clients with labels train first. Then, in every round, the others label their
samples once with the received model, by thresholds that follow how many samples each class has among all clients.
Weights of some epochs and of some rounds ago come back as residual connections.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from tacit import aggregation as agg
from tacit.aggregation import WeightsUp
from tacit.federation import UNLABELED, Samples
from tacit.learn import LocalLoss, LocalState, Trained, View, epoch_steps, fit
from tacit.method import (
    ClientContext,
    Count,
    Holder,
    Needs,
    Positive,
    Probability,
    PseudoLabels,
    Reply,
    ServerContext,
)
from tacit.objectives import Supervised
from tacit.objectives.parts import predict_view
from tacit.params import Params, clone, lerp
from tacit.updates import LabelCounts

FEW = 10  # classes for which shares and thresholds are on the paper's scale


@dataclass(frozen=True)
class CbaFedState:
    """The common model w, that of the last residual connection, and the labels and pseudo-labels of each client."""

    w: Params
    record: Params
    counts: dict[int, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class CbaFedDown:
    """The common model; the share of each class, or none while clients with labels train alone."""

    w: Params
    shares: Tensor | None


@dataclass(frozen=True)
class CbaFedUp:
    """A local model with the number of samples it learned from, none if there were none, and these by class."""

    trained: WeightsUp | None
    counts: LabelCounts


@dataclass(frozen=True)
class CbaFed:
    """Pseudo-labels once per round, by thresholds that are lower for classes with few samples among all clients."""

    warmup: Count = 1  # rounds at the start in which only clients with labels train
    warmup_epochs: Count = 10  # passes over their labels in each of these
    labeled_epochs: Count = 11  # passes over its samples of a client with labels; others make train.epochs
    unlabeled_lr: Positive | None = None  # learning rate of clients without labels; train.lr when not given
    base: Probability = 0.84  # threshold of a class without samples, if all classes were alike
    highest: Probability = 0.95  # no threshold is above this
    tail: Probability = 0.03  # a class with a smaller share may be the second guess of an unsure sample; 0: never
    local_residual: Probability = 0.8  # share of the weights five epochs ago, at clients with labels
    residual: Probability = 0.5  # share of the model five rounds ago, at the server
    every: Count = 5  # epochs, and rounds, between two residual connections
    view: View = "weak"  # how images are augmented, for labeling and for training

    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {"as-released": {"warmup_epochs": 501, "unlabeled_lr": 0.02}}

    PAPER_LR: ClassVar[float] = 0.03
    needs = Needs(client_labels=True)

    def start(self, server: ServerContext) -> CbaFedState:
        """The initial model."""
        w = server.initial()
        return CbaFedState(w, w)

    def send(self, server: ServerContext, state: CbaFedState) -> tuple[CbaFedState, Mapping[int, CbaFedDown]]:
        """In the warm-up the model to all clients, since it is unknown who has labels; then with the class shares."""
        if server.round < self.warmup or not state.counts:
            return state, dict.fromkeys(range(server.clients), CbaFedDown(state.w, None))
        return state, dict.fromkeys(server.cohort, CbaFedDown(state.w, class_shares(state.counts.values())))

    def client_update(
        self, client: ClientContext, memory: LocalState | None, down: CbaFedDown
    ) -> Reply[LocalState, CbaFedUp]:
        """Train on the labels and, after the warm-up, on the samples that the received model gave one."""
        labeled, y, given = len(client.data.labeled) > 0, client.data.y, None
        if not len(client.data) or (down.shares is None and not labeled):
            return Reply(memory, None)
        if down.shares is not None and len(client.data.unlabeled):
            y, given = self._labeled(client, down.w, down.shares)
        known = y != UNLABELED
        counts = LabelCounts(torch.bincount(y[known], minlength=_classes(client, down.w)))
        if not known.any():
            return Reply(memory, CbaFedUp(None, counts), {}, down.w, given)
        mine = replace(client, data=Samples(client.data.x, y).take(known.nonzero().reshape(-1)))
        trained = self._train(mine, down.w, memory, labeled, warmup=down.shares is None)
        up = CbaFedUp(WeightsUp(trained.params, int(known.sum())), counts)
        return Reply(trained.carried, up, trained.metrics, trained.params, given)

    def merge(self, server: ServerContext, state: CbaFedState, ups: Mapping[int, CbaFedUp]) -> CbaFedState:
        """The mean by samples learned from; every five rounds its mean with the model five rounds ago."""
        counts = state.counts | {k: up.counts.of.cpu() for k, up in ups.items()}
        n = [float(up.trained.n) for up in ups.values() if up.trained is not None]
        w = agg.average(server, state.w, (up.trained.w for up in ups.values() if up.trained is not None), n)
        played = server.round - self.warmup  # rounds since the warm-up, before this one
        if played < 0:
            return CbaFedState(w, w, counts)
        if played == 0 or played % self.every or not n:
            return CbaFedState(w, state.record, counts)
        w = lerp(w, state.record, self.residual)
        return CbaFedState(w, w, counts)

    def model(self, state: CbaFedState) -> Params:
        """The common model."""
        return state.w

    def _labeled(self, client: ClientContext, w: Params, shares: Tensor) -> tuple[Tensor, PseudoLabels]:
        """The labels (n,) of all samples, -1 for those without one, and those that the received model gave."""
        index, y = client.data.unlabeled, client.data.y.clone()
        q = predict_view(client, w, client.data.x[index], self.view, client.stream("labeling views")).cpu()
        given = fixed_labels(q, thresholds(shares, self.base, self.highest), scaled(shares) < self.tail)
        y[index] = given
        labels = torch.where(given == UNLABELED, q.argmax(dim=1), given)
        return y, PseudoLabels(index, labels, given != UNLABELED)

    def _train(
        self, client: ClientContext, w: Params, memory: LocalState | None, labeled: bool, warmup: bool
    ) -> Trained:
        """Local epochs; with residual connections at a client with labels."""
        if labeled:
            epochs = self.warmup_epochs if warmup else self.labeled_epochs
            train = replace(client.train, epochs=epochs, steps=None)
            objective = _WithResidual(self)
            return fit(replace(client, train=train), w, objective, carried=memory)
        train = replace(client.train, lr=self.unlabeled_lr or client.train.lr)
        return fit(replace(client, train=train), w, Supervised(self.view), carried=memory)


@dataclass(frozen=True)
class _WithResidual:
    """Cross-entropy; after epochs 6, 11, … the weights are mixed with those of five epochs before."""

    method: CbaFed

    labels_only = True
    needs = Needs()

    def local_loss(self, holder: Holder, received: Params, carried: Mapping[str, Tensor]) -> LocalLoss:
        """The weights after the first epoch are the first to come back."""
        loss = Supervised(self.method.view).local_loss(holder, received, carried)
        epoch, steps, record = epoch_steps(holder, labels_only=True), 0, dict[str, Tensor]()

        def connect(w: Params) -> None:
            nonlocal steps, record
            steps += 1
            if steps % epoch or (steps // epoch - 1) % self.method.every:
                return
            if record:
                torch._foreach_lerp_([w[name].detach() for name in record], [*record.values()], share)
            record = clone(w)

        share = self.method.local_residual
        return LocalLoss(loss.cost, loss.carry, connect)


def class_shares(counts: Iterable[Tensor]) -> Tensor:
    """The counts (c,) of several clients -> (c,): the share of each class among all; all the same if there are none."""
    total = torch.stack([each.clamp(min=0) for each in counts]).sum(dim=0).float()
    return total / total.sum() if total.sum() > 0 else torch.full_like(total, 1 / len(total))


def scaled(shares: Tensor) -> Tensor:
    """Shares (c,) on the scale of ten classes: times c/10."""
    return shares * (len(shares) / FEW)


def thresholds(shares: Tensor, base: float, highest: float) -> Tensor:
    """Shares (c,) -> thresholds (c,): s_c + base - std(s), at most `highest`, with s the scaled shares."""
    s = scaled(shares)
    return (s + base - s.std()).clamp(max=highest)


def fixed_labels(q: Tensor, tau: Tensor, tail: Tensor) -> Tensor:
    """Probabilities (n, c), thresholds (c,), tail classes (c,) bool -> labels (n,), -1 for none.

    The most probable class, if its probability is above its threshold; else the second, if it is a tail class.
    """
    confidence, first = q.max(dim=1)
    second = q.scatter(1, first[:, None], -1.0).argmax(dim=1)
    rescued = torch.where(tail[second], second, UNLABELED)
    return torch.where(confidence > tau[first], first, rescued)


def _classes(client: ClientContext, w: Params) -> int:
    """How many classes there are; only the network knows, since a client may lack some."""
    return client.net.apply(w, client.views.plain(client.data.x[:1].to(client.device))).shape[1]


METHODS = {"cbafed": CbaFed}
