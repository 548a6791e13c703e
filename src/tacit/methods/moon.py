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
        net = _Overheard(client.net)
        previous = memory.w if memory else self._first(client)
        objective = self._with_second_term(client, net, down.w, previous)
        trained = fit(replace(client, net=net), down.w, objective, kept=memory.kept if memory else None)
        reply = answer(client, trained, self.objective)
        kept = MoonMemory(trained.params, trained.kept) if trained.steps else memory
        return Reply(kept, reply.up, reply.metrics, reply.model, reply.guesses)

    def merge(self, server: ServerContext, state: WeightsState, ups: Mapping[int, WeightsUp]) -> WeightsState:
        """Line 7: w^{t+1} = Σ |D^i|/|D| · w_i^t."""
        return merge_weights(server, state, ups, self.weights)

    def model(self, state: WeightsState) -> Params:
        """The average."""
        return state.w

    def _first(self, client: ClientContext) -> Params | None:
        """What stands for the last visit's model before there was one."""
        if self.first == "none":
            return None
        fresh = client.net.init(client.streams.at("init party", client=client.client))
        return {name: value.to(client.device) for name, value in fresh.items()}

    def _with_second_term(
        self, client: ClientContext, net: "_Overheard", received: Params, previous: Params | None
    ) -> Objective:
        """Lines 13-18: μ·ℓ_con, on the very inputs the objective learnt from; z_glob and z_prev carry no gradient."""
        if not self.mu or (previous is None and self.term == "contrast"):
            return self.objective
        whole = params.channels_last(received)
        before = params.channels_last(previous) if previous is not None else {}

        def term() -> Tensor:
            x, z = net.last
            with torch.no_grad():
                z_glob = client.net.features(whole, x)
                z_prev = client.net.features(before, x) if self.term == "contrast" else z_glob
            if self.term == "l2":
                apart: Tensor = torch.linalg.vector_norm((z - z_glob).flatten(1), dim=1)
                return apart.mean()
            return contrast(z, z_glob, z_prev, self.temperature)

        return _TwoTerms(self.objective, term, self.mu, f"loss_{self.term}")


@dataclass(frozen=True)
class _TwoTerms:
    """Line 18: ℓ = ℓ_sup + μ·ℓ_con, where ℓ_sup is an objective; ℓ_con is logged under its name."""

    objective: Objective
    term: Callable[[], Tensor]
    mu: float
    name: str

    @property
    def labels_only(self) -> bool:
        """As the objective."""
        return self.objective.labels_only

    def visit(self, holder: Holder, received: Params, kept: Mapping[str, Tensor]) -> Visit:
        """The objective's visit; the second term follows its pass over the batch."""
        first = self.objective.visit(holder, received, kept)

        def cost(w: Params, batch: Batch) -> Cost:
            own, second = first.cost(w, batch), self.term()
            return Cost(own.total + self.mu * second, {**own.metrics, self.name: second}, own.guesses)

        return replace(first, cost=cost)


class _Overheard(Net):
    """A network that remembers inputs and representations of its last pass in training, so that no second is needed."""

    last: tuple[Tensor, Tensor]

    def __init__(self, net: Net) -> None:
        self.__dict__.update(net.__dict__)

    def apply(self, params: Mapping[str, Tensor], x: Tensor, train: bool = False) -> Tensor:
        """Logits (n, classes) of inputs (n, …)."""
        if not (train and torch.is_grad_enabled()):
            return super().apply(params, x, train)
        z, logits = self.features_and_logits(params, x, train)
        self.last = x, z
        return logits


METHODS = {"moon": Moon}
