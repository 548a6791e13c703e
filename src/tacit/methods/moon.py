"""MOON: Model-Contrastive Federated Learning (Li, He and Song, CVPR 2021), Algorithm 1."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from tacit import params
from tacit.averaging import (
    Weights,
    WeightsDown,
    WeightsState,
    WeightsUp,
    answer,
    merge_weights,
    start_weights,
    train_on_server,
)
from tacit.errors import TacitError
from tacit.learn import Batch, Cost, Kept, Objective, Visit, fit
from tacit.losses import contrast
from tacit.method import ClientContext, Holder, Needs, NonNegative, Positive, Reply, ServerContext
from tacit.nets import Net
from tacit.objectives import Supervised
from tacit.params import Params


@dataclass(frozen=True)
class MoonMemory:
    """The party's model of its last visit w_i^{t-1}, and what its training keeps."""

    w: Params
    kept: Kept | None


@dataclass(frozen=True)
class Moon:
    """FedAvg whose parties keep representations close to the global model's and away from their own of last time."""

    objective: Objective = Supervised()  # what a batch costs, at clients and server
    mu: NonNegative = 1.0  # μ: weight of the second term; 5 on CIFAR-10, 1 on CIFAR-100 and Tiny-ImageNet
    temperature: Positive = 0.5  # τ of the similarities
    term: Literal["contrast", "l2"] = "contrast"  # the second term: ℓ_con, or ‖z - z_glob‖ of Table 5
    first: Literal["none", "random"] = "none"  # a party's first visit: without second term, or against random weights
    weights: Weights = "samples"  # of the clients in the average

    @property
    def needs(self) -> Needs:
        """Representations, and labels at clients if the objective learns from labels only."""
        return Needs(client_labels=self.objective.labels_only, features=True)

    def start(self, server: ServerContext) -> WeightsState:
        """Line 2: initialize w^0."""
        return start_weights(server)

    def send(self, server: ServerContext, state: WeightsState) -> tuple[WeightsState, Mapping[int, WeightsDown]]:
        """Line 5: the global model w^t to every party."""
        state = train_on_server(server, state, self.objective)
        return state, dict.fromkeys(server.cohort, WeightsDown(state.w))

    def client_update(
        self, client: ClientContext, memory: MoonMemory | None, down: WeightsDown
    ) -> Reply[MoonMemory, WeightsUp]:
        """PartyLocalTraining, lines 10-20."""
        second = self._second(client, down.w, memory.w if memory else None)
        objective = _TwoTerms(self.objective, second, self.mu, f"loss_{self.term}") if second else self.objective
        trained = fit(client, down.w, objective, kept=memory.kept if memory else None)
        reply = answer(client, trained, self.objective)
        kept = MoonMemory(trained.params, trained.kept) if trained.steps else memory
        return Reply(kept, reply.up, reply.metrics, reply.model, reply.guesses)

    def merge(self, server: ServerContext, state: WeightsState, ups: Mapping[int, WeightsUp]) -> WeightsState:
        """Line 7: w^{t+1} = Σ |D^i|/|D| · w_i^t."""
        return merge_weights(server, state, ups, self.weights)

    def model(self, state: WeightsState) -> Params:
        """The average."""
        return state.w

    def _second(self, client: ClientContext, w: Params, previous: Params | None) -> "Second | None":
        """Lines 15-17: ℓ_con of a batch, or the ℓ2 norm; None where there is neither."""
        if not self.mu:
            return None
        r_glob = _representing(client.net, w)
        if self.term == "l2":
            return lambda x, z: _distance(z, r_glob(x))
        if previous is None and self.first == "none":
            return None
        r_prev = _representing(client.net, previous or _random(client))
        return lambda x, z: contrast(z, r_glob(x), r_prev(x), self.temperature)


Second = Callable[[Tensor, Tensor], Tensor]  # inputs (n, …) and their representations z (n, …) -> scalar


def _representing(net: Net, w: Params) -> Callable[[Tensor], Tensor]:
    """x -> R_w(x), in evaluation mode and without gradient."""
    fixed = params.channels_last(w)

    def represent(x: Tensor) -> Tensor:
        with torch.no_grad():
            return net.features(fixed, x)

    return represent


def _distance(z: Tensor, z_glob: Tensor) -> Tensor:
    """(n, …), (n, …) -> scalar: mean over the batch of ‖z - z_glob‖ (Table 5)."""
    apart: Tensor = torch.linalg.vector_norm((z - z_glob).flatten(1), dim=1)
    return apart.mean()


def _random(client: ClientContext) -> Params:
    """Random weights of the party's own, the same whenever it first comes."""
    fresh = client.net.init(client.streams.at("init party", client=client.client))
    return {name: value.to(client.device) for name, value in fresh.items()}


@dataclass(frozen=True)
class _TwoTerms:
    """Line 18: ℓ = ℓ_sup + μ·ℓ_con, where ℓ_sup is an objective; ℓ_con is logged under its name."""

    objective: Objective
    second: Second
    mu: float
    name: str

    @property
    def labels_only(self) -> bool:
        """As the objective."""
        return self.objective.labels_only

    def visit(self, holder: Holder, received: Params, kept: Mapping[str, Tensor]) -> Visit:
        """The objective's visit; the second term is about the very inputs it learnt from (line 14)."""
        net = _Overheard(holder.net)
        visit = self.objective.visit(replace(holder, net=net), received, kept)

        def cost(w: Params, batch: Batch) -> Cost:
            net.heard.clear()
            l_sup = visit.cost(w, batch)
            l_con = self.second(*net.only())
            return Cost(l_sup.total + self.mu * l_con, {**l_sup.metrics, self.name: l_con}, l_sup.guesses)

        return replace(visit, cost=cost)


class _Overheard(Net):
    """A network that notes inputs and representations of passes that learn, so that MOON needs none of its own.

    The contract: for every batch an objective calls `apply(…, train=True)` with gradient exactly once.
    """

    def __init__(self, net: Net) -> None:
        self.__dict__.update(net.__dict__)  # the same skeletons: nothing is built anew
        self.heard: list[tuple[Tensor, Tensor]] = []

    def apply(self, params: Mapping[str, Tensor], x: Tensor, train: bool = False) -> Tensor:
        """Logits (n, classes) of inputs (n, …)."""
        if not (train and torch.is_grad_enabled()):
            return super().apply(params, x, train)
        z, logits = self.features_and_logits(params, x, train)
        self.heard.append((x, z))
        return logits

    def only(self) -> tuple[Tensor, Tensor]:
        """Inputs and representations of the one pass over this batch."""
        if len(self.heard) != 1:
            raise TacitError(
                f"moon needs an objective with one pass per batch that learns, and this one has {len(self.heard)}: "
                "use another of `tacit ls objectives`"
            )
        return self.heard[0]


METHODS = {"moon": Moon}
