"""What methods share that compute the last layer from sums over features: one message per client, no training."""

from collections.abc import Container, Mapping
from dataclasses import dataclass, replace
from typing import Annotated

import torch
from torch import Tensor

from tacit import params
from tacit.aggregation import WeightsDown
from tacit.federation import Samples
from tacit.learn import EVALUATION_BATCH
from tacit.method import ClientContext, Holder, Reply, ServerContext
from tacit.nets.net import Head
from tacit.params import Params
from tacit.updates import ClassCounts, Facts, Shaped


def head_of(facts: Facts | Holder) -> Head:
    """The last layer of the network, which `Needs.linear_head` promises."""
    if facts.net.head is None:
        raise ValueError("this network has no linear head")
    return facts.net.head


@dataclass(frozen=True)
class ClassMeans:
    """The mean feature of each class, zero for a class without samples, and how many samples each has."""

    means: Annotated[Tensor, Shaped(lambda facts: (facts.classes, head_of(facts).features))]
    counts: ClassCounts

    @property
    def smallest_group(self) -> int | None:
        """How many samples the mean of the fewest has; None if there is no mean."""
        found = self.counts[self.counts > 0]
        return int(found.min()) if len(found) else None

    @property
    def sums(self) -> Tensor:
        """(classes, features), in float64."""
        return self.means.double() * self.counts[:, None]


@dataclass(frozen=True)
class SentMemory:
    """A client that has sent its sums sends nothing more."""

    sent: bool = True


@torch.no_grad()
def features_of(holder: Holder, w: Params, samples: Samples) -> Tensor:
    """(n, features) of samples, not augmented, in float64, on the CPU."""
    model = params.channels_last({name: value.to(holder.device) for name, value in w.items()})
    views = (holder.views.plain(x.to(holder.device)) for x in samples.x.split(EVALUATION_BATCH))
    parts = [holder.net.features(model, x).flatten(1).cpu().double() for x in views]
    return torch.cat(parts) if parts else torch.empty(0, head_of(holder).features, dtype=torch.float64)


def class_means(z: Tensor, y: Tensor, classes: int) -> ClassMeans:
    """Features (n, d) and labels (n,) -> the mean of each class."""
    counts = torch.bincount(y.cpu(), minlength=classes)
    sums = torch.zeros(classes, z.shape[1], dtype=torch.float64).index_add_(0, y.cpu(), z)
    return ClassMeans((sums / counts.clamp(min=1)[:, None]).float(), counts)


def labeled_of(samples: Samples) -> Samples:
    """The samples with a label."""
    return samples.take(samples.labeled)


def ask_once(server: ServerContext, w: Params, answered: Container[int]) -> dict[int, WeightsDown]:
    """The model, for every client of the cohort that has not answered yet."""
    return dict.fromkeys((k for k in server.cohort if k not in answered), WeightsDown(w))


def with_head(w: Params, head: tuple[str, str], weight: Tensor) -> Params:
    """The model with this last layer (classes, features), and no bias."""
    at, bias = head
    changed = {at: weight.to(w[at])} | ({bias: torch.zeros_like(w[bias])} if bias else {})
    return w | changed


def names_of(server: ServerContext) -> tuple[str, str]:
    """The names of the last layer's weight and bias, "" for none."""
    head = head_of(server)
    return head.weight, head.bias or ""


def rows_of_length_one(weight: Tensor) -> Tensor:
    """Each class's row divided by its length; a row of zeros stays."""
    lengths = torch.linalg.vector_norm(weight, dim=1, keepdim=True)
    return torch.div(weight, lengths.clamp(min=torch.finfo(weight.dtype).tiny))


def ridge(gram: Tensor, sums: Tensor, penalty: float) -> Tensor:
    """(gram + penalty·I)⁻¹ sumsᵀ, transposed: (d, d), (c, d) -> (c, d)."""
    shifted = gram + penalty * torch.eye(len(gram), dtype=gram.dtype)
    solution: Tensor = torch.linalg.solve(shifted, sums.T)
    return solution.T


@dataclass(frozen=True)
class MeansState:
    """The model, the names of its last layer, and the class means of everyone who answered; the server is -1."""

    w: Params
    head: tuple[str, str]
    answers: dict[int, ClassMeans]


SERVER = -1  # its key among those that answered


def start_means(server: ServerContext) -> MeansState:
    """The initial model, before anyone has answered."""
    return MeansState(server.initial(), names_of(server), {})


def ask_for_means(server: ServerContext, state: MeansState) -> tuple[MeansState, Mapping[int, WeightsDown]]:
    """The model to every client that has not answered yet; the server's own labels count as a client's."""
    labeled = server.data.labeled
    if len(labeled) and SERVER not in state.answers:
        means = class_means(features_of(server, state.w, labeled), labeled.y, head_of(server).classes)
        state = replace(state, answers=state.answers | {SERVER: means})
    return state, ask_once(server, state.w, state.answers)


def means_reply(client: ClientContext, memory: SentMemory | None, down: WeightsDown) -> Reply[SentMemory, ClassMeans]:
    """The class means of the client's labels, if it has any and has not sent them yet."""
    labeled = labeled_of(client.data)
    if memory is not None or not len(labeled):
        return Reply(memory, None)
    z = features_of(client, down.w, labeled)
    return Reply(SentMemory(), class_means(z, labeled.y, head_of(client).classes))
