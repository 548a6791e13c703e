"""FedDB: Estimating before Debiasing: A Bayesian Approach to Detaching Prior Bias (Zhu et al., IJCAI 2024).

Round t:

1. Client k gets w, which gives p_i to a weak view of each sample. APP-U: p̄_k = mean p_i, an estimate of w's prior.
2. Debiased labels: q_i = (p_i/p̄_k) / Σ_c(p_i/p̄_k). Samples with max q_i ≥ τ are kept, with their label, for all epochs.
3. Local steps on CE(labels) + CE(strong views of kept samples). p̄_k ← ½·p̄_k + ½·mean prediction on each batch.
4. The server looks for weights β_k with which Σ β_k·p̄_k is uniform, and makes a step with momentum to Σ β_k·w_k.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from tacit import aggregation as agg
from tacit.federation import UNLABELED, Samples
from tacit.learn import Batch, LocalLoss, LocalState, Looks, View, fit, predict
from tacit.losses import aligned, confident, cross_entropy
from tacit.method import ClientContext, Holder, Needs, NonNegative, Probability, PseudoLabels, Reply, ServerContext
from tacit.objectives import Supervised
from tacit.objectives.parts import UnlabeledLoss, accepted_share, costs, on_labels, predict_view
from tacit.params import Params
from tacit.updates import Shaped, Update

STEPS, RATE, DECAY = 100, 1.9, 0.9  # of the solver; the rate is SGD's 1 with the first Nesterov step of momentum 0.9


@dataclass(frozen=True)
class FedDbState:
    """The common model, the server's momentum, the mean of all p̄_k of the last round, the server's own training."""

    w: Params
    velocity: Params | None = None
    mean: Tensor | None = None
    carried: LocalState | None = None


@dataclass(frozen=True)
class FedDbDown:
    """The common model; what to divide predictions by, if not by the client's own mean; and the prior, if not even."""

    w: Params
    mean: Tensor | None = None
    prior: Tensor | None = None


@dataclass(frozen=True)
class FedDbUp:
    """A local model w_k and the mean prediction p̄_k."""

    w: Update
    mean: Annotated[Tensor, Shaped(lambda facts: (facts.classes,))]


@dataclass(frozen=True)
class FedDb:
    """Predictions are divided by their mean before they become labels; the server evens out what is left."""

    threshold: Probability = 0.95  # τ: least debiased confidence of a label
    weight: NonNegative = 1.0  # of the unlabeled term
    over: Literal["client", "global"] = "client"  # the mean to divide by: the client's own, or that of the last round's
    prior: Literal["uniform", "server"] = "uniform"  # what predictions should look like: even, or the server's labels
    follow: Probability = 0.5  # share of the mean prediction that stays after each batch
    average: Literal["debiased", "uniform"] = "debiased"  # weights of the clients: the solver's, or all the same
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.5  # of the server, on the way to the mean
    view: View = "weak"  # how labeled images are augmented, and unlabeled ones for labeling

    PAPER_LR: ClassVar[float] = 0.03

    @property
    def needs(self) -> Needs:
        """Labels at the server if their prior is asked for."""
        return Needs(server_labels=self.prior == "server")

    def start(self, server: ServerContext) -> FedDbState:
        """Initialize w."""
        return FedDbState(server.initial())

    def send(self, server: ServerContext, state: FedDbState) -> tuple[FedDbState, Mapping[int, FedDbDown]]:
        """w, after training on the server's labels if there are any, and what the settings ask for beside it."""
        trained = agg.fit_server(server, state.w, Supervised(self.view), state.carried)
        state = replace(state, w=trained.params, carried=trained.carried)
        mean = state.mean if self.over == "global" else None
        prior = label_prior(server, state.w) if self.prior == "server" else None
        return state, dict.fromkeys(server.cohort, FedDbDown(state.w, mean, prior))

    def client_update(
        self, client: ClientContext, memory: LocalState | None, down: FedDbDown
    ) -> Reply[LocalState, FedDbUp]:
        """Steps 1 to 3."""
        data = client.data
        if not len(data):
            return Reply(memory, None)
        p = predict_view(client, down.w, data.x, self.view, client.stream("labeling views"))
        own = p.mean(dim=0)
        prior = None if down.prior is None else down.prior.to(p)
        q = aligned(p, own if down.mean is None else down.mean.to(p), prior)
        labels, accepted = (found.cpu() for found in confident(q, self.threshold))
        hidden, rows = data.unlabeled, accepted.nonzero().reshape(-1)
        pseudo_labels = PseudoLabels(hidden, labels[hidden], accepted[hidden])
        known = data.take(data.labeled)
        if not len(known) and not len(rows):
            return Reply(memory, None, {}, down.w, pseudo_labels)
        kept = Samples(data.take(rows).x, torch.full((len(rows),), UNLABELED))
        both = Samples(torch.cat([known.x, kept.x]), torch.cat([known.y, kept.y]))
        objective = Debiased(self, labels[rows].to(client.device), len(known), own)
        trained = fit(replace(client, data=both), down.w, objective, carried=memory)
        metrics = trained.metrics | {name: float(value) for name, value in accepted_share(accepted).items()}
        return Reply(trained.carried, FedDbUp(trained.params, objective.mean), metrics, trained.params, pseudo_labels)

    def merge(self, server: ServerContext, state: FedDbState, ups: Mapping[int, FedDbUp]) -> FedDbState:
        """Step 4; momentum is on the parameters only, since variances may not be overshot."""
        if not ups:
            return state
        means = torch.stack([up.mean for up in ups.values()]).clamp(0, 1)  # whatever a client sends
        weights = debiased_weights(means) if self.average == "debiased" else [1 / len(ups)] * len(ups)
        server.log("largest_weight", max(weights))
        server.log("prior_bias", mixed_bias(means, weights))
        merged = server.combine((up.w for up in ups.values()), weights)
        held, new = ({name: w[name] for name in server.net.trainable} for w in (state.w, merged))
        w, velocity = agg.step_with_momentum(held, new, state.velocity, self.momentum)
        w = agg.apply_buffer_policy(server, state.w, merged | w)
        return replace(state, w=w, velocity=velocity, mean=means.mean(dim=0))

    def model(self, state: FedDbState) -> Params:
        """The common model."""
        return state.w


class Debiased:
    """Step 3: the loss of a batch, and p̄_k, which follows what the model in training says of kept samples."""

    labels_only = False
    needs = Needs()

    def __init__(self, method: FedDb, labels: Tensor, known: int, mean: Tensor) -> None:
        """`labels` are those of the kept samples, which stand behind `known` labeled ones."""
        self.mean = mean
        self._method, self._labels, self._known = method, labels, known

    def local_loss(self, holder: Holder, received: Params, carried: Mapping[str, Tensor]) -> LocalLoss:
        """Labels are fixed for the visit, views are not."""
        method = self._method
        looks = Looks(holder.views, [method.view, "strong"], "unlabeled", holder.stream("unlabeled views"))

        def unlabeled(w: Params, batch: Batch) -> tuple[Tensor, Callable[[Tensor], UnlabeledLoss]]:
            with torch.no_grad():
                said = functional.softmax(holder.net.apply(w, looks(batch), train=True), dim=1).mean(dim=0)
            self.mean = method.follow * self.mean + (1 - method.follow) * said
            y = self._labels[batch.index - self._known]
            return looks(batch, 1), lambda logits: UnlabeledLoss(cross_entropy(logits, y))

        return LocalLoss(costs(holder, on_labels(holder, method.view), method.weight, unlabeled))


def debiased_weights(means: Tensor) -> list[float]:
    """(k, c) -> k weights β, as released: steps on ‖Σ β_k·p̄_k - u‖²/c with decay, each followed by a softmax.

    They hardly leave 1/k: the softmax of numbers near 1/k is near 1/k, and it is taken after every single step.
    """
    p = means.double()
    count, classes = p.shape
    beta = torch.full((count,), 1 / count, dtype=p.dtype, device=p.device)
    for _ in range(STEPS):
        slope = 2 / classes * p @ (beta @ p - 1 / classes) + DECAY * beta
        beta = functional.softmax(beta - RATE * slope, dim=0)
    return [float(each) for each in beta]


def label_prior(server: ServerContext, w: Params) -> Tensor:
    """(c,): the share of each class among the server's labels."""
    classes = predict(server.net, w, server.samples.x[:1], server.views).shape[1]
    counts = torch.bincount(server.samples.y, minlength=classes)
    return counts / counts.sum()


def mixed_bias(means: Tensor, weights: Sequence[float]) -> float:
    """‖Σ β_k·p̄_k - u‖: how far the mixture of mean predictions is from uniform."""
    mixture = torch.tensor(weights, dtype=torch.float64, device=means.device) @ means.double()
    return float(torch.linalg.vector_norm(mixture - 1 / means.shape[1]))


METHODS = {"feddb": FedDb}
