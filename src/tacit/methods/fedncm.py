"""FedNCM: Guiding the Last Layer in Federated Learning with Pre-Trained Models (Legate et al., NeurIPS 2023)."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from tacit.aggregation import WeightsDown, heads
from tacit.aggregation.heads import ClassMeans, MeansState, SentMemory
from tacit.method import ClientContext, Needs, Reply, ServerContext
from tacit.params import Params


@dataclass(frozen=True)
class FedNcm:
    """The head is the mean feature of each class, from one message per client; nothing trains."""

    needs = Needs(features=True, linear_head=True, steady_data=True, true_mean=True)

    def start(self, server: ServerContext) -> MeansState:
        """The initial, usually pretrained, model."""
        return heads.start_means(server)

    def send(self, server: ServerContext, state: MeansState) -> tuple[MeansState, Mapping[int, WeightsDown]]:
        """The model to every client that has not answered yet; the server's own labels count as a client's."""
        return heads.ask_for_means(server, state)

    def client_update(
        self, client: ClientContext, memory: SentMemory | None, down: WeightsDown
    ) -> Reply[SentMemory, ClassMeans]:
        """m_c^k and n_c^k: mean feature and number of the samples of each class."""
        return heads.means_reply(client, memory, down)

    def merge(self, server: ServerContext, state: MeansState, ups: Mapping[int, ClassMeans]) -> MeansState:
        """Remember what arrived."""
        return replace(state, answers={**state.answers, **ups})

    def model(self, state: MeansState) -> Params:
        """Row c of the head is m_c / ‖m_c‖ with m_c = Σ_k n_c^k m_c^k / Σ_k n_c^k."""
        if not state.answers:
            return state.w
        parts = [state.answers[who] for who in sorted(state.answers)]
        sums = torch.stack([part.sums for part in parts]).sum(dim=0)
        counts = torch.stack([part.counts for part in parts]).sum(dim=0).clamp(min=1)
        return heads.with_head(state.w, state.head, heads.rows_of_length_one(sums / counts[:, None]))


METHODS = {"fedncm": FedNcm}
