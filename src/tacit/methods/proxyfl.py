"""ProxyFL: A Proxy-Guided Framework for Federated Semi-Supervised Learning (Chen and Wang, CVPR 2026).

The rows of the last layer are proxies of the classes. At a client, unsure samples learn through the set
of classes they may belong to (ICPL); at the server, the averaged rows are tuned to those of all clients (GPT).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from tacit import aggregation as agg
from tacit.aggregation import Weights, WeightsState
from tacit.aggregation.heads import head_of
from tacit.aggregation.server_step import HeadTuning, ServerOptimizer, TuneHead
from tacit.learn import Batch, BatchLoss, Forward, LocalLoss, LocalState, Looks, epoch_steps, fit
from tacit.losses import class_counts, confident, cross_entropy, masked_cross_entropy
from tacit.method import (
    ClientContext,
    Count,
    Holder,
    Needs,
    NonNegative,
    Positive,
    Probability,
    PseudoLabels,
    Reply,
    ServerContext,
)
from tacit.objectives.parts import LabeledView, accepted_share
from tacit.params import Params, channels_last
from tacit.updates import LabelCounts, SampleCount, Shaped, Update

FEATURE, BIAS, PROXY = "proxyfl.feature.weight", "proxyfl.feature.bias", "proxyfl.proxy.weight"
LEAST_COSINE = 1e-6  # of a negative


@dataclass(frozen=True)
class Maps:
    """The linear maps before similarities: of features (d, d) with a bias (d,), and of proxies (d, d)."""

    feature: Annotated[Tensor, Shaped(lambda facts: (head_of(facts).features,) * 2)]
    bias: Annotated[Tensor, Shaped(lambda facts: (head_of(facts).features,))]
    proxy: Annotated[Tensor, Shaped(lambda facts: (head_of(facts).features,) * 2)]

    smallest_group = None  # they are weights, not means of samples

    def beside(self, w: Params) -> Params:
        """A model and these maps as one set of tensors."""
        return w | {FEATURE: self.feature, BIAS: self.bias, PROXY: self.proxy}


def apart(joined: Params) -> tuple[Params, Maps]:
    """The model and the maps of a set of tensors that has both."""
    w = {name: value for name, value in joined.items() if name not in (FEATURE, BIAS, PROXY)}
    return w, Maps(joined[FEATURE], joined[BIAS], joined[PROXY])


@dataclass(frozen=True)
class ProxyFlState:
    """The common model, the common maps, and P: the share of each class among all samples, as far as it is known."""

    common: WeightsState
    maps: Maps
    prior: Tensor


@dataclass(frozen=True)
class ProxyFlDown:
    """The common model, its maps, and the prior P."""

    w: Params
    maps: Maps
    prior: Tensor


@dataclass(frozen=True)
class ProxyFlUp:
    """A local model and its maps, how many samples it was trained on, and the labels of its last epoch by class."""

    w: Update
    maps: Maps
    n: SampleCount
    counts: LabelCounts


@dataclass(frozen=True)
class ProxyFl:
    """FixMatch with labels of the received model; unsure samples learn from candidate classes; the head is tuned."""

    threshold: Probability = 0.95  # τ: least confidence of a label
    weight: NonNegative = 1.0  # α: weight of L_u, the loss of confident samples
    contrast: NonNegative = 1.0  # β: weight of L_c, the contrastive loss of all unlabeled samples
    confident: Literal["global", "either"] = "global"  # who must be confident: the received model, or it or the local
    positive: Literal["local", "global"] = "local"  # whose probabilities weight the proxies of candidate classes
    prior: Literal["clients", "samples"] = "clients"  # class shares as the mean over clients, or over all samples
    prior_decay: Annotated[float, Field(ge=0, lt=1)] = 0.0  # share of the last prior that stays
    tune_head: TuneHead = 100
    tune_lr: Positive = 0.005  # learning rate of this tuning
    tune_batch: Count = 4  # rows in a step of it
    tune_anchor: Literal["global", "uploaded"] = "global"  # it compares a global row with a client's rows, or reverse
    tune_margin: NonNegative = 0.0  # the largest margin that it adds to the distance of the true class
    view: LabeledView = "weak"
    weights: Weights = "samples"
    server_optimizer: ServerOptimizer = "none"

    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "as-written": {},
        "as-released": {
            "confident": "either",
            "positive": "global",
            "prior": "samples",
            "prior_decay": 0.99,
            "tune_anchor": "uploaded",
            "tune_margin": 100.0,
        },
    }

    PAPER_LR: ClassVar[float] = 0.1
    needs = Needs(client_labels=True, features=True, linear_head=True)
    logs = ("loss_contrast", "candidates")

    def start(self, server: ServerContext) -> ProxyFlState:
        """The initial model, maps as torch initialises linear layers, and a uniform prior."""
        head = head_of(server)
        d, stream, bound = head.features, server.streams.at("proxy maps"), head.features**-0.5
        drawn = [(2 * torch.rand(shape, generator=stream) - 1) * bound for shape in ((d, d), (d,), (d, d))]
        maps = Maps(*(each.to(server.device) for each in drawn))
        return ProxyFlState(agg.start_weights(server), maps, torch.full((head.classes,), 1 / head.classes))

    def send(self, server: ServerContext, state: ProxyFlState) -> tuple[ProxyFlState, Mapping[int, ProxyFlDown]]:
        """The same for everyone."""
        return state, dict.fromkeys(server.cohort, ProxyFlDown(state.common.w, state.maps, state.prior))

    def client_update(
        self, client: ClientContext, memory: LocalState | None, down: ProxyFlDown
    ) -> Reply[LocalState, ProxyFlUp]:
        """L_s + α·L_u + β·L_c on the model and its maps together."""
        trained = fit(client, down.maps.beside(down.w), _ProxyLoss(self, down.prior), carried=memory)
        if trained.carried is None or not trained.steps:
            return Reply(memory, None, {}, down.w)
        w, maps = apart(trained.params)
        counts = LabelCounts(at_most(trained.carried.objective["counts"], len(client.data)))
        kept = replace(trained.carried, objective={})
        memory = kept if kept.velocity is not None or kept.buffers is not None else None
        up = ProxyFlUp(w, maps, len(client.data), counts)
        return Reply(memory, up, trained.metrics, w, trained.pseudo_labels)

    def merge(self, server: ServerContext, state: ProxyFlState, ups: Mapping[int, ProxyFlUp]) -> ProxyFlState:
        """The mean, its rows tuned (GPT, Eq. 2), and the prior (Eq. 5)."""
        if not ups:
            return state
        n = [float(up.n) if self.weights == "samples" else 1.0 for up in ups.values()]
        models, held = (up.maps.beside(up.w) for up in ups.values()), state.maps.beside(state.common.w)
        tuning = HeadTuning(self.tune_head, self.tune_lr, self.tune_batch, self.tune_anchor, self.tune_margin)
        moments = state.common.moments
        joined, moments = agg.aggregate(server, held, models, n, self.server_optimizer, moments, tuning)
        w, maps = apart(joined)
        w = agg.apply_buffer_policy(server, state.common.w, w)
        counts = [up.counts.of.cpu() for up in ups.values()]
        return ProxyFlState(replace(state.common, w=w, moments=moments), maps, self.updated_prior(state.prior, counts))

    def model(self, state: ProxyFlState) -> Params:
        """The common model, without the maps, which serve training only."""
        return state.common.w

    def updated_prior(self, prior: Tensor, counts: Sequence[Tensor]) -> Tensor:
        """P (c,) and the counts (c,) of each client -> P of the next round (Eq. 5); as released, a running mean."""
        known = [each.clamp(min=0).float() for each in counts if (each > 0).any()]
        if not known:
            return prior
        shares = known if self.prior == "samples" else [each / each.sum() for each in known]
        total = torch.stack(shares).sum(dim=0)
        return torch.lerp(total / total.sum(), prior.to(total), self.prior_decay)


@dataclass(frozen=True)
class _ProxyLoss:
    """L_s + α·L_u + β·L_c of one visit; it carries how many labels of each class its last epoch had."""

    method: ProxyFl
    prior: Tensor

    labels_only = False
    needs = Needs()

    def local_loss(self, holder: Holder, received: Params, carried: Mapping[str, Tensor]) -> LocalLoss:
        """All views go through one pass that learns, since L_c needs the features of all of them."""
        method, net, head = self.method, holder.net, head_of(holder)
        teacher = channels_last({name: received[name].to(holder.device) for name in net.names})
        prior = self.prior.to(holder.device)
        labeled = Looks(holder.views, [method.view], "labeled", holder.stream("labeled views"))
        unlabeled = Looks(holder.views, ["weak", "strong"], "unlabeled", holder.stream("unlabeled views"))
        counts, steps, epoch = torch.zeros_like(prior, dtype=torch.int64), 0, epoch_steps(holder)
        last_epoch = (holder.train.steps or holder.train.epochs * epoch) - epoch  # the steps before it

        def cost(w: Params, batch: Batch, forward: Forward) -> BatchLoss:
            nonlocal counts, steps
            n, u = len(batch.x), len(batch.u)
            shown = [labeled(batch)] if n else []
            shown += [unlabeled(batch, 0), unlabeled(batch, 1)] if u else []
            x = torch.cat(shown)
            output = forward(x)
            logits, features = output.logits, output.features
            total, metrics, pseudo_labels = torch.zeros((), device=holder.device), {}, None
            seen = class_counts(batch.y, head.classes)
            if n:
                total = metrics["loss_supervised"] = cross_entropy(logits[:n], batch.y)
            if u:
                assert features is not None  # `Needs.features` promises it
                with torch.no_grad():
                    q = functional.softmax(net.apply(teacher, x[: n + u]), dim=1)  # of labeled samples and weak views
                local = functional.softmax(logits.detach()[: n + u], dim=1)
                labels, sure = confident(q, method.threshold)
                if method.confident == "either":
                    sure = torch.cat([sure[:n], sure[n:] | confident(local[n:], method.threshold)[1]])
                given, accepted = labels[n:], sure[n:]
                l_u = masked_cross_entropy(logits[n + u :], given, accepted, "batch")
                total = total + method.weight * l_u
                sets = candidate_sets(q, sure, prior)
                metrics |= {"loss_unlabeled": l_u, "candidates": sets[n:].sum(dim=1).float().mean()}
                metrics |= accepted_share(accepted)
                pseudo_labels = PseudoLabels(batch.index, given, accepted)
                seen = seen + class_counts(given, head.classes, accepted)
                if method.contrast:
                    f = functional.normalize(functional.linear(features.flatten(1), w[FEATURE], w[BIAS]), dim=1)
                    proxies = functional.normalize(functional.linear(w[head.weight], w[PROXY]), dim=1)
                    shares = q if method.positive == "global" else local
                    twice = torch.arange(n + 2 * u, device=x.device)
                    twice[n + u :] -= u  # the strong view as the weak one
                    l_c = contrastive_loss(f, proxies, shares[twice], sets[twice], sure[twice], labels[twice], skip=n)
                    total = total + method.contrast * l_c
                    metrics["loss_contrast"] = l_c
            steps += 1
            if steps > last_epoch:
                counts = counts + seen
            return BatchLoss(total, metrics, pseudo_labels)

        return LocalLoss(cost, carry=lambda: {"counts": counts.cpu()}, features=True)


def at_most(counts: Tensor, n: int) -> Tensor:
    """Counts (c,) with their shares, rounded down to a sum of n at most: an epoch may show a labeled sample again."""
    total = int(counts.sum())
    return counts * n // total if total > n else counts


def candidate_sets(q: Tensor, sure: Tensor, prior: Tensor) -> Tensor:
    """Probabilities (n, c), sure (n,), P (c,) -> (n, c) bool: ξ_i = {c : q_i(c) > P(c)}; of a sure sample its label."""
    top = functional.one_hot(q.argmax(dim=1), q.shape[1]).bool()
    return torch.where(sure[:, None], top, q > prior)


def positive_similarity(similar: Tensor, shares: Tensor, sets: Tensor, sure: Tensor, labels: Tensor) -> Tensor:
    """Similarities to proxies (n, c) -> (n,): that to the label's proxy if sure, else Σ_{c∈ξ} shares(c)·similar(c)."""
    own = similar.gather(1, labels[:, None])[:, 0]
    return torch.where(sure, own, (shares * sets * similar).sum(dim=1))


def contrastive_loss(
    f: Tensor, proxies: Tensor, shares: Tensor, sets: Tensor, sure: Tensor, labels: Tensor, skip: int
) -> Tensor:
    """Unit features (n, d) and proxies (c, d) -> scalar: mean of -log(e^{positive} / (e^{positive} + Σ e^{negatives})).

    Negatives are similarities to samples without a common candidate class, as far as they are positive. The first
    `skip` samples are negatives only.
    """
    positive = positive_similarity(f @ proxies.T, shares, sets, sure, labels)
    among = f @ f.T
    related = (sets.float() @ sets.float().T > 0) | torch.eye(len(f), dtype=torch.bool, device=f.device)
    negative = among.masked_fill(related | (among < LEAST_COSINE), -torch.inf)
    rows = torch.cat([positive[:, None], negative], dim=1)[skip:]
    return cross_entropy(rows, torch.zeros(len(rows), dtype=torch.int64, device=f.device))


METHODS = {"proxyfl": ProxyFl}
