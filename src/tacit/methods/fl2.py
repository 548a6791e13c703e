"""(FL)²: Overcoming Few Labels in Federated Semi-Supervised Learning (Lee, Le, Shin, Lee, NeurIPS 2024).

Round t, with w the global model, which the server's labels have trained last:

1. Client k gets w, which gives p_i to a weak view of each sample. τ_k = mean max p_i and p̄ = mean p_i.
2. CAT: it trains on A = {i : max p_i ≥ τ_k·p̄(ŷ_i)/max p̄}, with the labels ŷ_i = argmax p_i for all epochs.
3. SACR: H = {i : max p_i ≥ 0.95} are the sure samples. ε is the ASAM step up the loss of the batch's sure samples, and
   L = CE(f_w(strong x), ŷ) + mean 1[i ∈ H]·KL(f_w(strong x) ‖ f_{w+ε}(strong x)).
4. LSAA: the server takes Σ β_k·w_k with β_k ∝ 1 - τ_k, makes a step there with momentum, and trains on its labels.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from tacit import aggregation as agg
from tacit.aggregation import WeightsDown
from tacit.learn import Batch, BatchLoss, Forward, LocalLoss, LocalState, Looks, View, fit
from tacit.losses import confident, cross_entropy, divergence, weighted_mean
from tacit.method import (
    ClientContext,
    Holder,
    Natural,
    Needs,
    NonNegative,
    Probability,
    PseudoLabels,
    Reply,
    ServerContext,
)
from tacit.nets import Net
from tacit.objectives import Supervised
from tacit.objectives.parts import predict_view
from tacit.params import Params
from tacit.updates import Update


@dataclass(frozen=True)
class Fl2State:
    """The global model, the server's momentum, and the state of its training on labels."""

    w: Params
    velocity: Params | None = None
    carried: LocalState | None = None


@dataclass(frozen=True)
class Fl2Up:
    """A local model w_k, and the client's threshold τ_k: how sure the received model was of its samples."""

    w: Update
    tau: Probability


@dataclass(frozen=True)
class Fl2:
    """SemiFL's rounds with thresholds of each client and class, and flatness around sure samples: CAT, SACR, LSAA."""

    rho: NonNegative = 0.1  # ρ: length of the perturbation; 0: no sharpness-aware term
    eta: NonNegative = 0.01  # η: added to |w| in the scale of the perturbation of a weight
    sure: Probability = 0.95  # least confidence of the samples that the sharpness-aware term looks at
    threshold: Probability | None = None  # τ of all clients and classes; of each its own when not given
    average: Literal["status", "uniform"] = "status"  # weights of the clients: 1 - τ_k, or all the same
    empty: Literal["left-out", "averaged"] = "left-out"  # a client without a sample above its thresholds
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.5  # of the server, on the way to the mean
    pretrain: Natural = 10  # visits of the server to its labels before round 0, each as long as [server] says
    view: View = "weak"  # how labeled images are augmented, and unlabeled ones for labeling

    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {"as-written": {}, "as-released": {"empty": "averaged"}}

    PAPER_LR: ClassVar[float] = 0.03
    needs = Needs(server_labels=True)
    logs = ("loss_sharpness", "sure_share", "threshold")

    def start(self, server: ServerContext) -> Fl2State:
        """The model that the server's labels give, since its first labels decide what the clients learn."""
        state, alone = Fl2State(server.initial()), agg.setup_context(server)
        for visit in range(self.pretrain):
            state = self._train_at_server(replace(alone, streams=alone.streams.within(f"visit {visit}")), state)
        return replace(state, w=agg.with_static_batchnorm(server, state.w))

    def send(self, server: ServerContext, state: Fl2State) -> tuple[Fl2State, Mapping[int, WeightsDown]]:
        """The global model with its static batch statistics."""
        return state, dict.fromkeys(server.cohort, WeightsDown(state.w))

    def client_update(
        self, client: ClientContext, memory: LocalState | None, down: WeightsDown
    ) -> Reply[LocalState, Fl2Up]:
        """Steps 1 to 3."""
        index = client.data.unlabeled
        if not len(index):
            return Reply(memory, None)
        mine = client.data.take(index)
        p = predict_view(client, down.w, mine.x, self.view, client.stream("labeling views"))
        tau = mean_confidence(p)
        labels, accepted = confident(p, class_thresholds(p) if self.threshold is None else self.threshold)
        pseudo_labels = PseudoLabels(index, labels.cpu(), accepted.cpu())
        rows, logged = accepted.nonzero().reshape(-1), {"threshold": float(tau)}
        if not len(rows):
            up = Fl2Up(down.w, float(tau)) if self.empty == "averaged" else None
            return Reply(memory, up, logged, down.w, pseudo_labels)
        sure = p.amax(dim=1) >= self.sure
        kept = replace(client, data=mine.take(rows.cpu()))
        trained = fit(kept, down.w, FlatAtSure(self.rho, self.eta, labels[rows], sure[rows]), carried=memory)
        up = Fl2Up(trained.params, float(tau))
        return Reply(trained.carried, up, trained.metrics | logged, trained.params, pseudo_labels)

    def merge(self, server: ServerContext, state: Fl2State, ups: Mapping[int, Fl2Up]) -> Fl2State:
        """Step 4; the server trains also in a round without uploads."""
        if ups:
            weights = status_weights([up.tau for up in ups.values()]) if self.average == "status" else None
            mean = server.combine((up.w for up in ups.values()), weights)
            w, velocity = agg.step_with_momentum(state.w, mean, state.velocity, self.momentum)
            state = replace(state, w=w, velocity=velocity)
        state = self._train_at_server(server, state)
        return replace(state, w=agg.with_static_batchnorm(server, state.w))

    def model(self, state: Fl2State) -> Params:
        """The global model."""
        return state.w

    def _train_at_server(self, server: ServerContext, state: Fl2State) -> Fl2State:
        trained = agg.fit_server(server, state.w, Supervised(self.view), state.carried)
        return replace(state, w=trained.params, carried=trained.carried)


def mean_confidence(p: Tensor) -> Tensor:
    """(n, c) -> scalar: τ_k = mean max p_i; no rounding puts it above the largest, so some sample always reaches it."""
    confidence = p.amax(dim=1)
    return torch.minimum(confidence.mean(), confidence.max())


def class_thresholds(p: Tensor) -> Tensor:
    """(n, c) -> (c,): τ_k(c) = τ_k·p̄(c)/max p̄."""
    mean = p.mean(dim=0)
    return mean_confidence(p) * (mean / mean.max())


def status_weights(taus: Sequence[float]) -> list[float]:
    """β_k ∝ 1 - τ_k: a client whose samples are less certain has more to teach; all the same if all are certain."""
    rest = [1 - tau for tau in taus]
    total = sum(rest)
    return [each / total for each in rest] if total > 0 else [1 / len(rest)] * len(rest)


@dataclass(frozen=True)
class FlatAtSure:
    """Step 3: cross-entropy with labels fixed for the visit, plus KL to a perturbed model on the sure samples."""

    rho: float
    eta: float
    labels: Tensor  # (n,) of the samples that the client trains on
    sure: Tensor  # (n,) bool: in H

    labels_only = False
    needs = Needs()

    def local_loss(self, holder: Holder, received: Params, carried: Mapping[str, Tensor]) -> LocalLoss:
        """Labels are fixed for the visit, views are not."""
        strong = Looks(holder.views, ["strong"], "unlabeled", holder.stream("unlabeled views"))

        def cost(w: Params, batch: Batch, forward: Forward) -> BatchLoss:
            y, sure, x = self.labels[batch.index], self.sure[batch.index], strong(batch)
            logits = forward(x).logits
            loss, apart = cross_entropy(logits, y), logits.new_zeros(())
            if self.rho and sure.any():
                moved = self._perturbed(holder.net, w, cross_entropy(logits[sure], y[sure]))
                clean = functional.softmax(logits.detach(), dim=1)
                apart = weighted_mean(divergence(holder.net.apply(moved, x, train=True), clean), sure)
            metrics = {"loss_unlabeled": loss + apart, "loss_sharpness": apart, "sure_share": sure.float().mean()}
            return BatchLoss(loss + apart, metrics)

        return LocalLoss(cost)

    def _perturbed(self, net: Net, w: Params, loss: Tensor) -> Params:
        """w + ε as another model; its gradient is that of w, since ε is a constant, and w itself does not change."""
        leaves = {name: w[name] for name in net.trainable}
        slopes = torch.autograd.grad(loss, [*leaves.values()], retain_graph=True, materialize_grads=True)
        step = ascent(leaves, dict(zip(leaves, slopes, strict=True)), self.rho, self.eta)
        statistics = {name: w[name].clone() for name in net.buffers}  # this pass must not move those of w
        return {name: value + step[name] for name, value in leaves.items()} | statistics


@torch.no_grad()
def ascent(w: Params, slope: Params, rho: float, eta: float) -> Params:
    """ε of ASAM: ρ·T²·∇L / ‖T·∇L‖ with T = |w| + η for tensors named weight, and 1 for all others."""
    scale = {name: value.abs() + eta for name, value in w.items() if "weight" in name}
    scaled = {name: value * scale[name] if name in scale else value for name, value in slope.items()}
    norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(value) for value in scaled.values()]))
    length = rho / (norm + 1e-16)
    return {name: length * (value * scale[name] if name in scale else value) for name, value in scaled.items()}


METHODS = {"fl2": Fl2}
