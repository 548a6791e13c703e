"""FedSEAL: Semi-Supervised Federated Learning with Self-Ensemble Learning and Negative Learning (Bian et al., 2021)."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from tacit import aggregation as agg
from tacit.aggregation import Weights, WeightsState, WeightsUp
from tacit.aggregation.server_step import ServerOptimizer, TuneHead
from tacit.errors import TacitError
from tacit.federation import UNLABELED
from tacit.learn import Batch, BatchLoss, Forward, LocalLoss, LocalState, Trained, View, fit, predict
from tacit.losses import complementary, confident, masked_cross_entropy
from tacit.method import (
    ClientContext,
    Holder,
    Natural,
    Needs,
    NonNegative,
    Positive,
    Probability,
    PseudoLabels,
    Reply,
    ServerContext,
)
from tacit.objectives import Supervised
from tacit.params import Params


@dataclass(frozen=True)
class FedSealDown:
    """The global model w^t, the thresholds τ^t, and whether to train or only to update p̄."""

    w: Params
    thresholds: Tensor  # one for every class, or a single one for all
    train: bool


@dataclass(frozen=True)
class FedSealMemory:
    """p̄: the mean confidence of each unlabeled sample over the models received so far, and how many these were."""

    mean: Tensor
    models: int
    carried: LocalState | None = None


@dataclass(frozen=True)
class Filtered:
    """What a client learns from: pseudo-labels y⁺ of D⁺ and complementary labels y⁻ of D⁻; -1 for all other samples."""

    positive: Tensor
    negative: Tensor
    targets: Tensor  # p̄, for soft labels


@dataclass(frozen=True)
class FedSeal:
    """Clients learn from labels by the mean confidence of all models so far, and from classes that a sample is not."""

    bootstrap: Natural = 50  # epochs on the server's labels for w^0, before round 1; 0: w^0 is random
    theta: Probability = 0.05  # θ: a class with at most this mean confidence may be a complementary label
    lambda_start: NonNegative = 0.1  # λ in the first round: weight of the positive loss
    lambda_decay: Annotated[float, Field(gt=0, le=1)] = 0.95  # λ is divided by this in every round
    lambda_until: Natural = 100  # λ grows up to this round
    lambda_cap: Positive = 1.0  # and up to this value; choose a large one, such as 1000, for no limit
    ensemble: bool = True  # use the mean confidence over all models received, not that of the last one
    listen: Literal["all", "sampled"] = "all"  # who receives w^t: every client in every round, or those that train
    negative: bool = True  # also learn from complementary labels
    threshold: Probability | None = None  # one for all classes, instead of Eq. 5
    labels: Literal["hard", "soft"] = "hard"  # targets of the positive loss: y⁺, or the mean confidences
    weights: Weights = "uniform"
    view: View = "weak"  # how the server augments its labeled images
    server_optimizer: ServerOptimizer = "none"
    tune_head: TuneHead = 0

    def __post_init__(self) -> None:
        """Refuse a λ that starts above its limit."""
        if self.lambda_start > self.lambda_cap:
            problem = f"method.lambda_start = {self.lambda_start:g} is above method.lambda_cap = {self.lambda_cap:g}"
            raise TacitError(problem, "choose a smaller start or a larger cap", code="method.lambda-start-above-cap")

    PAPER_LR: ClassVar[float] = 0.001

    logs = ("loss_positive", "loss_negative", "positive", "negative", "lambda")
    summable = True

    @property
    def needs(self) -> Needs:
        """Labels at the server, and validation samples for the thresholds of Eq. 5; a linear last layer to tune."""
        validation, linear = self.threshold is None, self.tune_head > 0
        return Needs(server_labels=True, validation=validation, steady_data=True, linear_head=linear)

    def start(self, server: ServerContext) -> WeightsState:
        """The initial model w^0 from the labeled data set, then step 1 of round 1."""
        state, server = agg.start_weights(server), agg.setup_context(server)
        if self.bootstrap:
            longer = replace(server.train, epochs=self.bootstrap, steps=None)
            alone = replace(server, train=longer, streams=server.streams.within("bootstrap"))
            state = agg.train_on_server(alone, state, Supervised(self.view))
        return agg.train_on_server(server, state, Supervised(self.view))

    def send(self, server: ServerContext, state: WeightsState) -> tuple[WeightsState, Mapping[int, FedSealDown]]:
        """Step 2: all clients download w^t and τ^t; those of the cohort train."""
        tau = self._thresholds(server, state.w)
        receivers = range(server.clients) if self.listen == "all" and self.ensemble else server.cohort
        return state, agg.share_messages(partial(FedSealDown, state.w, tau), {k: k in server.cohort for k in receivers})

    def client_update(
        self, client: ClientContext, memory: FedSealMemory | None, down: FedSealDown
    ) -> Reply[FedSealMemory, WeightsUp]:
        """Step 3: filter the samples by p̄^t, then E_c epochs on D⁺ and D⁻."""
        memory = self._updated(client, memory, down.w)
        if not down.train or not len(client.data.unlabeled):
            return Reply(memory, None)
        tau = down.thresholds.to(memory.mean.device).expand(memory.mean.shape[1])
        filtered = self._filter(client, memory.mean, tau)
        trained = self._train(client, down.w, filtered, memory.carried)
        memory = replace(memory, carried=trained.carried)
        used = int(((filtered.positive >= 0) | (filtered.negative >= 0)).sum())
        labels, accepted = memory.mean.argmax(dim=1).cpu(), filtered.positive.cpu() >= 0
        pseudo_labels = PseudoLabels(client.data.unlabeled, labels, accepted, filtered.negative.cpu())
        up = WeightsUp(trained.params, used) if trained.steps else None
        metrics = trained.metrics | {
            "positive": float((filtered.positive >= 0).float().mean()),
            "negative": float((filtered.negative >= 0).float().mean()),
            "lambda": self.weight(client.round),
        }
        return Reply(memory, up, metrics, trained.params, pseudo_labels)

    def merge(self, server: ServerContext, state: WeightsState, ups: Mapping[int, WeightsUp]) -> WeightsState:
        """Step 1 of the next round: w̄ by Eq. 2, then E_s epochs on the server's labels, Eq. 3 and 4."""
        state = agg.merge_weights(server, state, ups, self.weights, self.server_optimizer, self.tune_head)
        return agg.train_on_server(server, state, Supervised(self.view))

    def model(self, state: WeightsState) -> Params:
        """The global model w^t."""
        return state.w

    def weight(self, round: int) -> float:
        """λ in round 0, 1, …: it grows by 1/decay up to round `lambda_until` and `lambda_cap`."""
        shrunk = self.lambda_decay ** min(round, self.lambda_until)
        return min(self.lambda_start / max(shrunk, torch.finfo(torch.double).tiny), self.lambda_cap)

    def _thresholds(self, server: ServerContext, w: Params) -> Tensor:
        """τ^t: (c,) by Eq. 5, or the fixed one, a single number for all classes."""
        if self.threshold is not None:
            return torch.tensor(self.threshold)
        validation = server.data.validation
        p = predict(server.net, w, validation.x, server.views)
        tau = thresholds(p.cpu(), validation.y)  # sums on a GPU depend on the order of its threads
        for place, value in enumerate(tau.tolist()):
            server.log(f"threshold_{place}", value)
        return tau

    def _updated(self, client: ClientContext, memory: FedSealMemory | None, w: Params) -> FedSealMemory:
        """Eq. 7 and 8: p̄^t = (t - 1)/t · p̄^{t-1} + 1/t · p(x; w^t)."""
        p = predict(client.net, w, client.data.take(client.data.unlabeled).x, client.views)
        if memory is None or not self.ensemble:
            return FedSealMemory(p, 1, memory.carried if memory else None)
        t = memory.models + 1
        return FedSealMemory(memory.mean.to(p.device).lerp(p, 1 / t), t, memory.carried)

    def _filter(self, client: ClientContext, mean: Tensor, tau: Tensor) -> Filtered:
        """Eq. 9-12: pseudo-labels of the confident samples, complementary labels of the others."""
        labels, accepted = confident(mean, tau)
        positive = labels.masked_fill(~accepted, UNLABELED)
        unlikely = (mean <= self.theta) & ~accepted[:, None] & self.negative
        drawn = torch.rand(mean.shape, generator=client.stream("complementary labels")).to(mean.device)
        negative = drawn.masked_fill(~unlikely, -1).argmax(dim=1).masked_fill(~unlikely.any(dim=1), UNLABELED)
        return Filtered(positive, negative, mean)

    def _train(self, client: ClientContext, w: Params, filtered: Filtered, carried: LocalState | None) -> Trained:
        """E_c epochs over the samples that are in D⁺ or D⁻."""
        rows = ((filtered.positive >= 0) | (filtered.negative >= 0)).nonzero().reshape(-1)
        chosen = client.data.take(client.data.unlabeled[rows.cpu()])
        mine = Filtered(filtered.positive[rows], filtered.negative[rows], filtered.targets[rows])
        objective = _Seal(mine, self.weight(client.round), self.labels)
        return fit(replace(client, data=chosen), w, objective, carried=carried)


@dataclass(frozen=True)
class _Seal:
    """Eq. 13: λ·L⁺ + L⁻ on the samples of one visit."""

    filtered: Filtered
    weight: float
    labels: Literal["hard", "soft"]

    labels_only = False
    needs = Needs()

    def local_loss(self, holder: Holder, received: Params, carried: Mapping[str, Tensor]) -> LocalLoss:
        """Views of D⁺ are strong, those of D⁻ plain; both learn from one forward pass."""
        stream, of = holder.stream("unlabeled views"), self.filtered

        def cost(w: Params, batch: Batch, forward: Forward) -> BatchLoss:
            at = batch.index
            plus, minus = (of.positive[at] >= 0), (of.negative[at] >= 0)
            rows, rows_n = plus.nonzero().reshape(-1), minus.nonzero().reshape(-1)
            seen = [holder.views.strong(batch.u[rows], stream)] if len(rows) else []
            seen += [holder.views.plain(batch.u[rows_n])] if len(rows_n) else []
            logits = forward(torch.cat(seen) if len(seen) > 1 else seen[0]).logits
            total, metrics = torch.zeros((), device=holder.device), {}
            if len(rows):
                targets = of.positive[at][rows] if self.labels == "hard" else of.targets[at][rows]
                metrics["loss_positive"] = masked_cross_entropy(logits[: len(rows)], targets, plus[rows], "kept")
                total = total + self.weight * metrics["loss_positive"]
            if len(rows_n):
                metrics["loss_negative"] = complementary(logits[len(rows) :], of.negative[at][rows_n])
                total = total + metrics["loss_negative"]
            return BatchLoss(total, {**metrics, "loss_unlabeled": total})

        return LocalLoss(cost)


def thresholds(p: Tensor, y: Tensor) -> Tensor:
    """Probabilities (n, c), labels (n,) -> (c,), Eq. 5: Σ p_m over samples predicted m, over the number that are m.

    A class that is never predicted has 0. A class without samples has infinity: no sample can reach its threshold.
    """
    confidence, predicted = p.max(dim=1)
    total = p.new_zeros(p.shape[1]).index_add_(0, predicted, confidence)
    count = torch.bincount(y, minlength=p.shape[1])
    return torch.where(count > 0, total / count.clamp(min=1), torch.inf)


METHODS = {"fedseal": FedSeal}
