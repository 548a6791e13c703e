"""FedCOF: Covariances for Free, Exploiting Mean Distributions for Training-free FL (Goswami et al., NeurIPS 2025)."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tacit.aggregation import WeightsDown, heads
from tacit.aggregation.heads import ClassMeans, MeansState, SentMemory
from tacit.method import ClientContext, Needs, NonNegative, Reply, ServerContext
from tacit.params import Params


@dataclass(frozen=True)
class FedCof:
    """A ridge head from class means alone: how they differ between clients tells the covariance of each class."""

    gamma: NonNegative = 1.0  # γ: added to the diagonal of each class's covariance
    normalise: bool = True  # rows of the head have length one

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
        """Class means and counts, as in FedNCM."""
        return heads.means_reply(client, memory, down)

    def merge(self, server: ServerContext, state: MeansState, ups: Mapping[int, ClassMeans]) -> MeansState:
        """Remember what arrived."""
        return replace(state, answers={**state.answers, **ups})

    def model(self, state: MeansState) -> Params:
        """The ridge head of the estimated second moments: Ĝ⁻¹ Σ_i z_i e_iᵀ."""
        if not state.answers:
            return state.w
        parts = [state.answers[who] for who in sorted(state.answers)]
        means, counts = (torch.stack([getattr(part, name).double() for part in parts]) for name in ("means", "counts"))
        sums = (counts[:, :, None] * means).sum(dim=0)
        weight = heads.ridge(second_moments(means, counts, self.gamma), sums, 1e-6)
        return heads.with_head(state.w, state.head, heads.rows_of_length_one(weight) if self.normalise else weight)


def second_moments(means: Tensor, counts: Tensor, gamma: float) -> Tensor:
    """(clients, classes, d), (clients, classes) -> (d, d): Ĝ = Σ_c (N_c - 1) Σ̂_c + N μ μᵀ.

    Σ̂_c = 1/(K_c - 1) Σ_k n_kc (μ_kc - μ_c)(μ_kc - μ_c)ᵀ + γI over the K_c clients with class c; μ is the mean of all.
    """
    of_class = counts.sum(dim=0)
    total, (_, classes, d) = counts.sum(), means.shape
    centre = (counts[:, :, None] * means).sum(dim=(0, 1)) / total
    gram = total * torch.outer(centre, centre)
    for c in range(classes):
        n, held = of_class[c], counts[:, c] > 0
        if n == 0:
            continue
        mu = (counts[held, c, None] * means[held, c]).sum(dim=0) / n
        apart = (means[held, c] - mu) * counts[held, c, None].sqrt()
        spread = apart.T @ apart / max(int(held.sum()) - 1, 1)
        gram += (n - 1) * (spread + gamma * torch.eye(d, dtype=gram.dtype))
    return gram


METHODS = {"fedcof": FedCof}
