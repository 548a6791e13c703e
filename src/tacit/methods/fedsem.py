"""FedSem: Exploiting Unlabeled Data in Smart Cities using Federated Edge Learning (Albaseer et al., IWCMC 2020)."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from tacit.averaging import (
    Weights,
    WeightsState,
    WeightsUp,
    addressed,
    answer,
    merge_weights,
    start_weights,
    train_on_server,
)
from tacit.federation import Samples
from tacit.learn import Kept, fit, predict
from tacit.method import ClientContext, Guesses, Needs, Probability, Reply, ServerContext
from tacit.objectives import Supervised
from tacit.objectives.parts import View
from tacit.params import Params


@dataclass(frozen=True)
class FedSemState:
    """The common model, the model of the end of phase 1, and which clients have labeled their samples with that."""

    common: WeightsState
    teacher: Params | None = None
    told: tuple[int, ...] = ()


@dataclass(frozen=True)
class FedSemDown:
    """The common model w; in phase 2, for a client that has not labeled its samples yet, the model to do it with."""

    w: Params
    teacher: Params | None


@dataclass(frozen=True)
class FedSemMemory:
    """The labels a client trains on, its own and pseudo-labels, and what its training keeps."""

    y: Tensor | None
    kept: Kept | None


@dataclass(frozen=True)
class FedSem:
    """Phase 1: FedAvg on labels. Then every unlabeled sample gets a hard label, once. Phase 2: FedAvg on everything."""

    first: Probability = 0.6  # share of the rounds that phase 1 takes; FedSiam's tables use 30 of 50
    view: View = "weak"  # how images are augmented
    weights: Weights = "samples"  # of the clients in the average

    needs = Needs(steady_data=True)

    def start(self, server: ServerContext) -> FedSemState:
        """A fresh model."""
        return FedSemState(start_weights(server))

    def send(self, server: ServerContext, state: FedSemState) -> tuple[FedSemState, Mapping[int, FedSemDown]]:
        """The common model; from phase 2 on the last model of phase 1 too, to those that do not have their labels."""
        second = server.round >= round(self.first * server.rounds)
        common = train_on_server(server, state.common, Supervised(self.view))
        state = FedSemState(common, state.teacher or (state.common.w if second else None), state.told)
        teachers = {k: None if k in state.told else state.teacher for k in server.cohort}
        return state, addressed(partial(FedSemDown, common.w), teachers)

    def client_update(
        self, client: ClientContext, memory: FedSemMemory | None, down: FedSemDown
    ) -> Reply[FedSemMemory, WeightsUp]:
        """SGD on the labels there are; in phase 2 these are labels of all samples."""
        memory = memory or FedSemMemory(None, None)
        y = memory.y if down.teacher is None else _labels_of_all(client, down.teacher)
        y = None if y is None else y.to(client.data.y.device)  # memories wake up on the device that computes
        known = client if y is None else replace(client, data=Samples(client.data.x, y))
        objective = Supervised(self.view)
        reply = answer(known, fit(known, down.w, objective, kept=memory.kept), objective)
        given = None if y is None or not len(client.data.unlabeled) else _guesses(client, y)
        return Reply(FedSemMemory(y, reply.memory), reply.up, reply.metrics, reply.model, given)

    def merge(self, server: ServerContext, state: FedSemState, ups: Mapping[int, WeightsUp]) -> FedSemState:
        """Σ n_k/n · w_k; who arrived in phase 2 has labeled its samples and remembers them."""
        told = tuple(sorted({*state.told, *ups})) if state.teacher is not None else state.told
        return FedSemState(merge_weights(server, state.common, ups, self.weights), state.teacher, told)

    def model(self, state: FedSemState) -> Params:
        """The average."""
        return state.common.w


def _labels_of_all(client: ClientContext, teacher: Params) -> Tensor:
    """The client's own labels, and the teacher's answers where there are none."""
    y, unlabeled = client.data.y.clone(), client.data.unlabeled
    if len(unlabeled):
        y[unlabeled] = predict(client.net, teacher, client.data.x[unlabeled], client.views).argmax(dim=1).to(y.device)
    return y


def _guesses(client: ClientContext, y: Tensor) -> Guesses:
    index = client.data.unlabeled
    return Guesses(index, y[index], torch.ones(len(index), dtype=torch.bool))


METHODS = {"fedsem": FedSem}
