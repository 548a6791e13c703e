"""MOON: Model-Contrastive Federated Learning (Li, He and Song, CVPR 2021), Algorithm 1."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from tacit import aggregation as agg
from tacit import params
from tacit.aggregation import Weights, WeightsDown, WeightsState, WeightsUp
from tacit.aggregation.server_step import ServerOptimizer, TuneHead
from tacit.learn import FeatureTerm, LocalState, Objective, fit
from tacit.losses import contrast
from tacit.method import ClientContext, Needs, NonNegative, Positive, Reply, ServerContext
from tacit.nets import Net
from tacit.objectives import Supervised
from tacit.params import Params


@dataclass(frozen=True)
class MoonMemory:
    """The party's model of its last visit w_i^{t-1}, and the state of its training."""

    w: Params
    carried: LocalState | None


@dataclass(frozen=True)
class Moon:
    """FedAvg with representations close to the global model's and far from those of the party's previous model."""

    objective: Objective = Supervised()  # the loss of a batch, at clients and server
    mu: NonNegative = 1.0  # μ: weight of the second term; 5 on CIFAR-10, 1 on CIFAR-100 and Tiny-ImageNet
    temperature: Positive = 0.5  # τ of the similarities
    term: Literal["contrast", "l2"] = "contrast"  # the second term: ℓ_con, or ‖z - z_glob‖ of Table 5
    first_visit: Literal["none", "random"] = "none"  # second term at a first visit: none, or against random weights
    weights: Weights = "samples"
    server_optimizer: ServerOptimizer = "none"
    tune_head: TuneHead = 0

    RENAMED: ClassVar[Mapping[str, str]] = {"first": "first_visit"}

    PAPER_LR: ClassVar[float] = 0.01

    logs = ("loss_contrast", "loss_l2")
    summable = True

    @property
    def needs(self) -> Needs:
        """Representations; labels at clients, if the objective learns from labels only; a linear last layer to tune."""
        labels = self.objective.labels_only
        return Needs(client_labels=labels, features=True, linear_head=self.tune_head > 0)

    def start(self, server: ServerContext) -> WeightsState:
        """Line 2: initialize w^0."""
        return agg.start_weights(server)

    def send(self, server: ServerContext, state: WeightsState) -> tuple[WeightsState, Mapping[int, WeightsDown]]:
        """Line 5: the global model w^t to every party."""
        state = agg.train_on_server(server, state, self.objective)
        return state, dict.fromkeys(server.cohort, WeightsDown(state.w))

    def client_update(
        self, client: ClientContext, memory: MoonMemory | None, down: WeightsDown
    ) -> Reply[MoonMemory, WeightsUp]:
        """PartyLocalTraining, lines 10-20."""
        l_con = self._second_term(client, down.w, memory.w if memory else None)
        trained = fit(client, down.w, self.objective, carried=memory.carried if memory else None, term=l_con)
        reply = agg.trained_reply(client, trained, self.objective)
        memory = MoonMemory(trained.params, trained.carried) if trained.steps else memory
        return Reply(memory, reply.up, reply.metrics, reply.model, reply.pseudo_labels)

    def merge(self, server: ServerContext, state: WeightsState, ups: Mapping[int, WeightsUp]) -> WeightsState:
        """Line 7: w^{t+1} = Σ |D^i|/|D| · w_i^t."""
        return agg.merge_weights(server, state, ups, self.weights, self.server_optimizer, self.tune_head)

    def model(self, state: WeightsState) -> Params:
        """The average."""
        return state.w

    def _second_term(self, client: ClientContext, w: Params, previous: Params | None) -> FeatureTerm | None:
        """Lines 14-18: μ·ℓ_con on the features z of the pass that learns, or μ·‖z - z_glob‖; None for neither."""
        if not self.mu:
            return None
        r_glob, name = _representing(client.net, w), f"loss_{self.term}"
        if self.term == "l2":
            return FeatureTerm(name, self.mu, lambda x, z: _distance(z, r_glob(x)))
        if previous is None and self.first_visit == "none":
            return None
        r_prev = _representing(client.net, previous or _random(client))
        return FeatureTerm(name, self.mu, lambda x, z: contrast(z, r_glob(x), r_prev(x), self.temperature))


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
    """Random weights for this party, the same in whichever round its first visit is."""
    fresh = client.net.init(client.streams.at("init party", client=client.client))
    return {name: value.to(client.device) for name, value in fresh.items()}


METHODS = {"moon": Moon}
