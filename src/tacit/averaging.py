"""What methods that exchange and average whole models share: their messages and the average itself."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

from tacit import params
from tacit.learn import EVALUATION_BATCH, Kept, Objective, Trained, fit
from tacit.method import ClientContext, Reply, ServerContext
from tacit.params import Params

MOST = 2**53  # samples: the largest whole number up to which floats know all
Weights = Literal["samples", "uniform"]
Turn = Literal["before", "after"]
Part = TypeVar("Part")
Down = TypeVar("Down")


@dataclass(frozen=True)
class WeightsState:
    """The common model w, and what the server's own training keeps between rounds."""

    w: Params
    kept: Kept | None = None


@dataclass(frozen=True)
class WeightsDown:
    """The common model w."""

    w: Params


@dataclass(frozen=True)
class WeightsUp:
    """A local model w_k and the number n_k of samples it was trained on."""

    w: Params
    n: int

    def __post_init__(self) -> None:
        """Refuse what is no number of samples where a message is decoded, so that it costs its sender alone."""
        n: object = self.n  # a stranger's message may hold anything
        if not (isinstance(n, int) and 0 <= n <= MOST):
            raise ValueError(f"n = {n} is no number of samples")


def addressed(make: Callable[[Part], Down], parts: Mapping[int, Part]) -> dict[int, Down]:
    """A message for every client; who gets the same part gets the same object, which couriers encode once."""
    made = {id(part): make(part) for part in parts.values()}
    return {client: made[id(part)] for client, part in parts.items()}


def start_weights(server: ServerContext) -> WeightsState:
    """A freshly initialised common model; every method starts from the same one."""
    return WeightsState(server.initial())


def fit_server(server: ServerContext, w: Params, objective: Objective, kept: Kept | None) -> Trained:
    """Train on the server's labels and log how that went; nothing happens where the server has none."""
    return logged(server, fit(server, w, objective, kept=kept))


def logged(server: ServerContext, trained: Trained) -> Trained:
    """The server's own training, its numbers put into this round's record."""
    for name, value in trained.metrics.items():
        server.log(name, value)
    return trained


def train_on_server(server: ServerContext, state: WeightsState, objective: Objective) -> WeightsState:
    """The common model after training on the server's labels; as it is where the server has none."""
    trained = fit_server(server, state.w, objective, state.kept)
    return WeightsState(trained.params, trained.kept)


def before_rounds(server: ServerContext) -> ServerContext:
    """The server before round 0, with random streams of its own: that round will draw from the same names."""
    return replace(server, streams=server.streams.within("start"))


def answer(client: ClientContext, trained: Trained, objective: Objective) -> Reply[Kept, WeightsUp]:
    """The trained model on its way up; a client that had nothing to train on only listened."""
    n = len(client.data.labeled if objective.labels_only else client.data)
    up = WeightsUp(trained.params, n) if trained.steps else None
    return Reply(trained.kept, up, trained.metrics, trained.params, trained.guesses)


def merge_weights(
    server: ServerContext, state: WeightsState, ups: Mapping[int, WeightsUp], weights: Weights
) -> WeightsState:
    """Σ n_k/n · w_k over the clients that arrived, or their plain mean; the old model where none did."""
    n = [float(up.n) if weights == "samples" else 1.0 for up in ups.values()]
    return WeightsState(average(server, state.w, [up.w for up in ups.values()], n), state.kept)


def average(
    server: ServerContext, held: Params, models: Sequence[Params], weights: Sequence[float] | None = None
) -> Params:
    """The weighted mean of the models that arrived; `held` where none did.

    BatchNorm statistics follow `server.buffers`: averaged like everything else, kept as the server holds them, or
    recomputed on the server's labeled samples.
    """
    return settle(server, held, params.mean(models, weights)) if models else held


def settle(server: ServerContext, held: Params, merged: Params) -> Params:
    """`merged` with BatchNorm statistics by `server.buffers`; they belong to its weights, so this comes last."""
    if server.train.buffers == "keep":
        return merged | {name: held[name] for name in server.net.buffers}
    if server.train.buffers == "recompute" and len(server.samples):
        return restated(server, merged)
    return merged


def restated(server: ServerContext, w: Params) -> Params:
    """The model with BatchNorm statistics taken over the server's samples, whatever training left there."""
    parts = server.samples.x.split(EVALUATION_BATCH)
    return server.net.restate(w, (server.views.plain(x.to(server.device)) for x in parts))
