"""FedSEAL: Semi-Supervised Federated Learning with Self-Ensemble Learning and Negative Learning (Bian et al., 2021)."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from tacit.averaging import (
    Weights,
    WeightsState,
    WeightsUp,
    addressed,
    before_rounds,
    merge_weights,
    start_weights,
    train_on_server,
)
from tacit.errors import TacitError
from tacit.federation import UNLABELED
from tacit.learn import Batch, Cost, Kept, Trained, Visit, fit, predict
from tacit.losses import complementary, confident, masked_cross_entropy
from tacit.method import (
    ClientContext,
    Guesses,
    Holder,
    Natural,
    Needs,
    NonNegative,
    Positive,
    Probability,
    Reply,
    ServerContext,
)
from tacit.objectives import Supervised
from tacit.objectives.parts import View
from tacit.params import Params


@dataclass(frozen=True)
class FedSealDown:
    """The global model w^t, the thresholds τ^t, and whether to train or only to listen."""

    w: Params
    thresholds: Tensor  # one for every class, or a single one for all
    train: bool


@dataclass(frozen=True)
class FedSealMemory:
    """p̄: the mean confidence of each unlabeled sample over the models heard so far, and how many these were."""

    mean: Tensor
    heard: int
    kept: Kept | None = None


@dataclass(frozen=True)
class Filtered:
    """What a client learns from: pseudo-labels y⁺ of D⁺ and complementary labels y⁻ of D⁻; -1 for all other samples."""

    positive: Tensor
    negative: Tensor
    targets: Tensor  # p̄, for soft labels


@dataclass(frozen=True)
class FedSeal:
    """Clients learn from labels by the mean confidence of all models so far, and from classes that a sample is not."""

    bootstrap: Natural = 50  # epochs on the server's labels for w^0, before those of round 1; 0: w^0 is random
    theta: Probability = 0.05  # θ: a class with at most this mean confidence may be a complementary label
    lambda_start: NonNegative = 0.1  # λ of the first round: weight of the positive loss
    lambda_decay: Annotated[float, Field(gt=0, le=1)] = 0.95  # λ is divided by this each round
    lambda_until: Natural = 100  # up to this round
    lambda_cap: Positive = 1.0  # and up to this value; a large one, such as 1000, is none
    ensemble: bool = True  # confidence is the mean over all models heard, not that of the last one
    listen: Literal["all", "sampled"] = "all"  # who hears w^t: every client in every round, or those that train
    negative: bool = True  # learn from complementary labels too
    threshold: Probability | None = None  # one for all classes, instead of those of Eq. 5
    labels: Literal["hard", "soft"] = "hard"  # targets of the positive loss: y⁺, or the mean confidences
    weights: Weights = "uniform"  # of the clients in the average
    view: View = "weak"  # how the server augments its labeled images

    def __post_init__(self) -> None:
        """Refuse a λ that starts where it may not get to."""
        if self.lambda_start > self.lambda_cap:
            raise TacitError(
                f"method.lambda_start = {self.lambda_start:g} is above method.lambda_cap = {self.lambda_cap:g}: "
                "choose a smaller start or a larger cap"
            )

    @property
    def needs(self) -> Needs:
        """Labels at the server, and validation samples for the thresholds of Eq. 5."""
        return Needs(server_labels=True, validation=self.threshold is None, steady_data=True)

    def start(self, server: ServerContext) -> WeightsState:
        """The initial model w^0 based on the labeled data set, then step 1 of round 1."""
        state, server = start_weights(server), before_rounds(server)
        if self.bootstrap:
            longer = replace(server.train, epochs=self.bootstrap, steps=None)
            alone = replace(server, train=longer, streams=server.streams.within("bootstrap"))
            state = train_on_server(alone, state, Supervised(self.view))
        return train_on_server(server, state, Supervised(self.view))

    def send(self, server: ServerContext, state: WeightsState) -> tuple[WeightsState, Mapping[int, FedSealDown]]:
        """Step 2: all clients download w^t and τ^t; those of the cohort train."""
        tau = self._thresholds(server, state.w)
        hearers = range(server.clients) if self.listen == "all" and self.ensemble else server.cohort
        return state, addressed(partial(FedSealDown, state.w, tau), {k: k in server.cohort for k in hearers})

    def client_update(
        self, client: ClientContext, memory: FedSealMemory | None, down: FedSealDown
    ) -> Reply[FedSealMemory, WeightsUp]:
        """Step 3: filter the samples by p̄^t, then E_c epochs on D⁺ and D⁻."""
        memory = self._hear(client, memory, down.w)
        if not down.train or not len(client.data.unlabeled):
            return Reply(memory, None)
        tau = down.thresholds.to(memory.mean.device).expand(memory.mean.shape[1])
        filtered = self._filter(client, memory.mean, tau)
        trained = self._learn(client, down.w, filtered, memory.kept)
        memory = replace(memory, kept=trained.kept)
        used = int(((filtered.positive >= 0) | (filtered.negative >= 0)).sum())
        labels, sure = memory.mean.argmax(dim=1).cpu(), filtered.positive.cpu() >= 0
        guesses = Guesses(client.data.unlabeled, labels, sure, filtered.negative.cpu())
        up = WeightsUp(trained.params, used) if trained.steps else None
        numbers = trained.metrics | {
            "positive": float((filtered.positive >= 0).float().mean()),
            "negative": float((filtered.negative >= 0).float().mean()),
            "lambda": self.weight(client.round),
        }
        return Reply(memory, up, numbers, trained.params, guesses)

    def merge(self, server: ServerContext, state: WeightsState, ups: Mapping[int, WeightsUp]) -> WeightsState:
        """Step 1 of the next round: w̄ by Eq. 2, then E_s epochs on the server's labels, Eq. 3 and 4."""
        return train_on_server(server, merge_weights(server, state, ups, self.weights), Supervised(self.view))

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
        tau = thresholds(p.cpu(), validation.y)  # sums on a GPU depend on the order in which its threads add
        for place, value in enumerate(tau.tolist()):
            server.log(f"threshold_{place}", value)
        return tau

    def _hear(self, client: ClientContext, memory: FedSealMemory | None, w: Params) -> FedSealMemory:
        """Eq. 7 and 8: p̄^t = (t - 1)/t · p̄^{t-1} + 1/t · p(x; w^t)."""
        p = predict(client.net, w, client.data.take(client.data.unlabeled).x, client.views)
        if memory is None or not self.ensemble:
            return FedSealMemory(p, 1, memory.kept if memory else None)
        t = memory.heard + 1
        return FedSealMemory(memory.mean.to(p.device).lerp(p, 1 / t), t, memory.kept)

    def _filter(self, client: ClientContext, mean: Tensor, tau: Tensor) -> Filtered:
        """Eq. 9-12: pseudo-labels of the confident samples, complementary labels of the others."""
        labels, sure = confident(mean, tau)
        positive = labels.masked_fill(~sure, UNLABELED)
        unlikely = (mean <= self.theta) & ~sure[:, None] & self.negative
        drawn = torch.rand(mean.shape, generator=client.stream("complementary labels")).to(mean.device)
        negative = drawn.masked_fill(~unlikely, -1).argmax(dim=1).masked_fill(~unlikely.any(dim=1), UNLABELED)
        return Filtered(positive, negative, mean)

    def _learn(self, client: ClientContext, w: Params, filtered: Filtered, kept: Kept | None) -> Trained:
        """E_c epochs over the samples that are in D⁺ or D⁻."""
        rows = ((filtered.positive >= 0) | (filtered.negative >= 0)).nonzero().reshape(-1)
        chosen = client.data.take(client.data.unlabeled[rows.cpu()])
        mine = Filtered(filtered.positive[rows], filtered.negative[rows], filtered.targets[rows])
        return fit(replace(client, data=chosen), w, _Seal(mine, self.weight(client.round), self.labels), kept=kept)


@dataclass(frozen=True)
class _Seal:
    """Eq. 13: λ·L⁺ + L⁻ on the samples of one visit."""

    filtered: Filtered
    weight: float
    labels: Literal["hard", "soft"]

    labels_only = False

    def visit(self, holder: Holder, received: Params, kept: Mapping[str, Tensor]) -> Visit:
        """Views of D⁺ are strong, D⁻ is seen as it is; both learn from one pass."""
        stream, of = holder.stream("unlabeled views"), self.filtered

        def cost(w: Params, batch: Batch) -> Cost:
            at = batch.index.to(holder.device)
            plus, minus = (of.positive[at] >= 0), (of.negative[at] >= 0)
            rows, rows_n = plus.nonzero().reshape(-1), minus.nonzero().reshape(-1)
            seen = [holder.views.strong(batch.u[rows], stream)] if len(rows) else []
            seen += [holder.views.plain(batch.u[rows_n])] if len(rows_n) else []
            logits = holder.net.apply(w, torch.cat(seen) if len(seen) > 1 else seen[0], train=True)
            total, metrics = torch.zeros((), device=holder.device), {}
            if len(rows):
                targets = of.positive[at][rows] if self.labels == "hard" else of.targets[at][rows]
                metrics["loss_positive"] = masked_cross_entropy(logits[: len(rows)], targets, plus[rows], "kept")
                total = total + self.weight * metrics["loss_positive"]
            if len(rows_n):
                metrics["loss_negative"] = complementary(logits[len(rows) :], of.negative[at][rows_n])
                total = total + metrics["loss_negative"]
            return Cost(total, {**metrics, "loss_unlabeled": total})

        return Visit(cost)


def thresholds(p: Tensor, y: Tensor) -> Tensor:
    """Probabilities (n, c), labels (n,) -> (c,), Eq. 5: Σ p_m over samples named m, over the number that are m.

    A class that nothing is named has 0; one without samples says nothing, so that no sample can reach its threshold.
    """
    confidence, named = p.max(dim=1)
    total = p.new_zeros(p.shape[1]).index_add_(0, named, confidence)
    count = torch.bincount(y, minlength=p.shape[1])
    return torch.where(count > 0, total / count.clamp(min=1), torch.inf)


METHODS = {"fedseal": FedSeal}
