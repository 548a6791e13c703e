"""Fed3R: Accelerating Heterogeneous FL with Closed-form Classifiers (Fanì et al., ICML 2024), by ridge regression."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated

import torch
from torch import Tensor

from tacit.aggregation import WeightsDown, heads
from tacit.aggregation.heads import SentMemory
from tacit.method import ClientContext, Needs, Positive, Reply, ServerContext
from tacit.params import Params
from tacit.updates import ClassCounts, Facts, Shaped


def _packed(facts: Facts) -> tuple[int]:
    d = heads.head_of(facts).features
    return (d * (d + 1) // 2,)


@dataclass(frozen=True)
class Fed3rUp:
    """A_k = Σ z zᵀ, its upper triangle row by row; b_k, the sum of each class; and how many samples each has."""

    a: Annotated[Tensor, Shaped(_packed, torch.float64)]
    b: Annotated[Tensor, Shaped(lambda facts: (facts.classes, heads.head_of(facts).features), torch.float64)]
    counts: ClassCounts

    @property
    def smallest_group(self) -> int | None:
        """How many samples the sum of the fewest has; None if there is none."""
        found = self.counts[self.counts > 0]
        return int(found.min()) if len(found) else None


@dataclass(frozen=True)
class Fed3rState:
    """The model, the names of its last layer, the sums over everyone who answered, and who did."""

    w: Params
    head: tuple[str, str]
    total: Fed3rUp | None = None
    answered: tuple[int, ...] = ()


@dataclass(frozen=True)
class Fed3r:
    """Ridge regression on the features of all clients, exact, from one message per client; nothing trains."""

    penalty: Positive = 0.01  # λ of the ridge regression: how small the weights stay
    normalise: bool = True  # rows of the head have length one

    needs = Needs(features=True, linear_head=True, steady_data=True, true_mean=True)

    def start(self, server: ServerContext) -> Fed3rState:
        """The initial, usually pretrained, model."""
        return Fed3rState(server.initial(), heads.names_of(server))

    def send(self, server: ServerContext, state: Fed3rState) -> tuple[Fed3rState, Mapping[int, WeightsDown]]:
        """The model to every client that has not answered yet; the server's own labels count as a client's."""
        labeled = server.data.labeled
        if len(labeled) and heads.SERVER not in state.answered:
            z = heads.features_of(server, state.w, labeled)
            state = _added(state, heads.SERVER, sums_of(z, labeled.y, heads.head_of(server).classes))
        return state, heads.ask_once(server, state.w, state.answered)

    def client_update(
        self, client: ClientContext, memory: SentMemory | None, down: WeightsDown
    ) -> Reply[SentMemory, Fed3rUp]:
        """A_k and b_k of the labeled samples."""
        labeled = heads.labeled_of(client.data)
        if memory is not None or not len(labeled):
            return Reply(memory, None)
        z = heads.features_of(client, down.w, labeled)
        return Reply(SentMemory(), sums_of(z, labeled.y, heads.head_of(client).classes))

    def merge(self, server: ServerContext, state: Fed3rState, ups: Mapping[int, Fed3rUp]) -> Fed3rState:
        """A = Σ_k A_k, b = Σ_k b_k."""
        for client, up in ups.items():
            state = _added(state, client, up)
        return state

    def model(self, state: Fed3rState) -> Params:
        """W = (A + λI)⁻¹ b."""
        if state.total is None:
            return state.w
        weight = heads.ridge(_square(state.total.a, state.total.b.shape[1]), state.total.b, self.penalty)
        return heads.with_head(state.w, state.head, heads.rows_of_length_one(weight) if self.normalise else weight)


def sums_of(z: Tensor, y: Tensor, classes: int) -> Fed3rUp:
    """Features (n, d) and labels (n,) -> their sums."""
    d, y = z.shape[1], y.cpu()
    rows, columns = torch.triu_indices(d, d)
    b = torch.zeros(classes, d, dtype=torch.float64).index_add_(0, y, z)
    return Fed3rUp((z.T @ z)[rows, columns], b, torch.bincount(y, minlength=classes))


def _added(state: Fed3rState, who: int, up: Fed3rUp) -> Fed3rState:
    old = state.total
    total = up if old is None else Fed3rUp(old.a + up.a, old.b + up.b, old.counts + up.counts)
    return replace(state, total=total, answered=(*state.answered, who))


def _square(packed: Tensor, d: int) -> Tensor:
    """The symmetric matrix with this upper triangle."""
    upper = torch.zeros(d, d, dtype=packed.dtype)
    rows, columns = torch.triu_indices(d, d)
    upper[rows, columns] = packed
    return upper + upper.triu(1).T


METHODS = {"fed3r": Fed3r}
