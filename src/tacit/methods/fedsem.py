"""FedSem: Exploiting Unlabeled Data in Smart Cities using Federated Edge Learning (Albaseer et al., IWCMC 2020)."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from tacit import aggregation as agg
from tacit.aggregation import Weights, WeightsState, WeightsUp
from tacit.aggregation.server_step import ServerOptimizer, TuneHead
from tacit.federation import Samples
from tacit.learn import LocalState, View, fit, predict
from tacit.method import ClientContext, Needs, Probability, PseudoLabels, Reply, ServerContext
from tacit.objectives import Supervised
from tacit.params import Params


@dataclass(frozen=True)
class FedSemState:
    """The common model, the model at the end of phase 1, and the clients that labeled their samples with the latter."""

    common: WeightsState
    teacher: Params | None = None
    labeled: tuple[int, ...] = ()


@dataclass(frozen=True)
class FedSemDown:
    """The common model w; in phase 2, for a client that has not labeled its samples yet, the model that labels them."""

    w: Params
    teacher: Params | None


@dataclass(frozen=True)
class FedSemMemory:
    """The labels a client trains on, true and pseudo-labels, and the state of its training."""

    y: Tensor | None
    carried: LocalState | None


@dataclass(frozen=True)
class FedSem:
    """Phase 1: FedAvg on labels. Then every unlabeled sample gets a hard label, once. Phase 2: FedAvg on everything."""

    phase1_share: Probability = 0.6  # share of the rounds that phase 1 takes; FedSiam's tables use 30 of 50
    view: View = "weak"  # how images are augmented
    weights: Weights = "samples"
    server_optimizer: ServerOptimizer = "none"
    tune_head: TuneHead = 0

    RENAMED: ClassVar[Mapping[str, str]] = {"first": "phase1_share"}

    @property
    def needs(self) -> Needs:
        """The same samples in all rounds, and a known end; a linear last layer, if it is tuned."""
        linear = self.tune_head > 0
        return Needs(steady_data=True, planned_rounds=True, separate_uploads=True, linear_head=linear)

    def start(self, server: ServerContext) -> FedSemState:
        """The initial model."""
        return FedSemState(agg.start_weights(server))

    def send(self, server: ServerContext, state: FedSemState) -> tuple[FedSemState, Mapping[int, FedSemDown]]:
        """The common model; in phase 2 also the last model of phase 1, to clients without labels of all samples."""
        second = server.round >= round(self.phase1_share * server.rounds)
        common = agg.train_on_server(server, state.common, Supervised(self.view))
        state = FedSemState(common, state.teacher or (state.common.w if second else None), state.labeled)
        teachers = {k: None if k in state.labeled else state.teacher for k in server.cohort}
        return state, agg.share_messages(partial(FedSemDown, common.w), teachers)

    def client_update(
        self, client: ClientContext, memory: FedSemMemory | None, down: FedSemDown
    ) -> Reply[FedSemMemory, WeightsUp]:
        """SGD on the labeled samples; in phase 2 all samples are labeled."""
        memory = memory or FedSemMemory(None, None)
        y = memory.y if down.teacher is None else _labels_of_all(client, down.teacher)
        y = None if y is None else y.to(client.data.y.device)  # after a resume it is on the device of the model
        known = client if y is None else replace(client, data=Samples(client.data.x, y))
        objective = Supervised(self.view)
        reply = agg.trained_reply(known, fit(known, down.w, objective, carried=memory.carried), objective)
        given = None if y is None or not len(client.data.unlabeled) else _pseudo_labels(client, y)
        return Reply(FedSemMemory(y, reply.memory), reply.up, reply.metrics, reply.model, given)

    def merge(self, server: ServerContext, state: FedSemState, ups: Mapping[int, WeightsUp]) -> FedSemState:
        """Σ n_k/n · w_k; a client that arrived in phase 2 has labeled its samples and remembers the labels."""
        labeled = tuple(sorted({*state.labeled, *ups})) if state.teacher is not None else state.labeled
        optimizer, epochs = self.server_optimizer, self.tune_head
        common = agg.merge_weights(server, state.common, ups, self.weights, optimizer, epochs)
        return FedSemState(common, state.teacher, labeled)

    def model(self, state: FedSemState) -> Params:
        """The average."""
        return state.common.w


def _labels_of_all(client: ClientContext, teacher: Params) -> Tensor:
    """The client's labels, and the teacher's predictions for samples without one."""
    y, unlabeled = client.data.y.clone(), client.data.unlabeled
    if len(unlabeled):
        y[unlabeled] = predict(client.net, teacher, client.data.x[unlabeled], client.views).argmax(dim=1).to(y.device)
    return y


def _pseudo_labels(client: ClientContext, y: Tensor) -> PseudoLabels:
    index = client.data.unlabeled
    return PseudoLabels(index, y[index], torch.ones(len(index), dtype=torch.bool))


METHODS = {"fedsem": FedSem}
