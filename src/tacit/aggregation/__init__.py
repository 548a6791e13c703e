"""What methods that exchange and average whole models share: their messages and the average itself."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal, TypeVar

from pydantic import Field
from torch import Tensor

from tacit import params
from tacit.aggregation.server_step import HeadTuning, Moments, ServerOptimizer, parse, step, tuned_rows
from tacit.learn import EVALUATION_BATCH, LocalState, Objective, Trained, fit
from tacit.method import ClientContext, Reply, ServerContext
from tacit.params import Params
from tacit.updates import SampleCount, Update

Weights = Annotated[Literal["samples", "uniform"], Field(description="weights of the clients in the average")]
Turn = Literal["before", "after"]
Content = TypeVar("Content")
Down = TypeVar("Down")


@dataclass(frozen=True)
class WeightsState:
    """The common model w, the state of the server's own training, and that of its optimizer."""

    w: Params
    carried: LocalState | None = None
    moments: Moments | None = None


@dataclass(frozen=True)
class WeightsDown:
    """The common model w."""

    w: Params


@dataclass(frozen=True)
class WeightsUp:
    """A local model w_k and the number n_k of samples it was trained on."""

    w: Update
    n: SampleCount


def share_messages(make: Callable[[Content], Down], contents: Mapping[int, Content]) -> dict[int, Down]:
    """A message for every client; clients with the same content share one object, which is encoded once."""
    made = {id(content): make(content) for content in contents.values()}
    return {client: made[id(content)] for client, content in contents.items()}


def start_weights(server: ServerContext) -> WeightsState:
    """The initial common model, the same for every method."""
    return WeightsState(server.initial())


def fit_server(server: ServerContext, w: Params, objective: Objective, carried: LocalState | None) -> Trained:
    """Train on the server's labels and log its metrics; nothing happens if the server has none."""
    return logged(server, fit(server, w, objective, carried=carried))


def logged(server: ServerContext, trained: Trained) -> Trained:
    """The server's own training, after its metrics were added to this round's record."""
    for name, value in trained.metrics.items():
        server.log(name, value)
    return trained


def train_on_server(server: ServerContext, state: WeightsState, objective: Objective) -> WeightsState:
    """The common model after training on the server's labels; unchanged if the server has none."""
    trained = fit_server(server, state.w, objective, state.carried)
    return replace(state, w=trained.params, carried=trained.carried)


def setup_context(server: ServerContext) -> ServerContext:
    """The server before round 0, with separate random streams, since round 0 uses the same names."""
    return replace(server, streams=server.streams.within("start"))


def trained_reply(client: ClientContext, trained: Trained, objective: Objective) -> Reply[LocalState, WeightsUp]:
    """The reply with the trained model; without an upload if the client had nothing to train on."""
    n = len(client.data.labeled if objective.labels_only else client.data)
    up = WeightsUp(trained.params, n) if trained.steps else None
    return Reply(trained.carried, up, trained.metrics, trained.params, trained.pseudo_labels)


def merge_weights(
    server: ServerContext,
    state: WeightsState,
    ups: Mapping[int, WeightsUp],
    weights: Weights,
    optimizer: ServerOptimizer = "none",
    tune_head: int = 0,
) -> WeightsState:
    """Σ n_k/n · w_k over the clients that arrived, or their plain mean; the old state if none did.

    If asked, the server tunes the mean's last layer for some epochs, and steps towards the mean with an optimizer.
    """
    n = [float(up.n) if weights == "samples" else 1.0 for up in ups.values()]
    if not n:
        return state
    models, tuning = (up.w for up in ups.values()), HeadTuning(tune_head)
    w, moments = aggregate(server, state.w, models, n, optimizer, state.moments, tuning)
    return replace(state, w=apply_buffer_policy(server, state.w, w), moments=moments)


def aggregate(
    server: ServerContext,
    held: Params,
    models: Iterable[Params],
    weights: Sequence[float],
    optimizer: ServerOptimizer,
    moments: Moments | None,
    tuning: HeadTuning,
) -> tuple[Params, Moments | None]:
    """The mean of models, its last layer tuned, and the optimizer's step towards it; and the optimizer's new state.

    The tuned layer is a part of the mean, so the optimizer acts on it too. BatchNorm statistics are those of the mean:
    after a step beyond it, variances could be below 0.
    """
    heads: list[Tensor] = []
    mean = server.combine(_noting_heads(server, models, heads) if tuning.epochs else models, weights)
    if tuning.epochs:
        name = _head_weight(server)
        mean[name] = tuned_rows(mean[name], heads, tuning, server.stream("head tuning"))
    rule = parse(optimizer)
    if rule.kind == "none":
        return mean, None
    names = [name for name in mean if name not in server.net.buffers]
    origin, goal = ({name: model[name] for name in names} for model in (held, mean))
    moved, moments = step(rule, origin, goal, moments)
    return mean | moved, moments


def _noting_heads(server: ServerContext, models: Iterable[Params], heads: list[Tensor]) -> Iterator[Params]:
    """The models, one after the other; the weights of their last layers are added to `heads`."""
    name = _head_weight(server)
    for model in models:
        heads.append(model[name])
        yield model


def _head_weight(server: ServerContext) -> str:
    """The name of the last layer's weight, which `Needs.linear_head` promises."""
    if server.net.head is None:
        raise ValueError("this network has no linear head")
    return server.net.head.weight


def average(server: ServerContext, held: Params, models: Iterable[Params], weights: Sequence[float]) -> Params:
    """The models that arrived, combined with these weights; `held`, the server's model, if none did.

    BatchNorm statistics follow `server.buffers`: averaged like weights, left as in `held`, or recomputed on the
    server's labeled samples.
    """
    return apply_buffer_policy(server, held, server.combine(models, weights)) if weights else held


def step_with_momentum(w: Params, mean: Params, velocity: Params | None, beta: float) -> tuple[Params, Params]:
    """w + v and v = β·velocity + (mean - w): the way to the mean is the gradient of SGD with rate 1 and momentum β."""
    v = params.sub(mean, w)
    if velocity is not None:
        v = params.add(params.scale(velocity, beta), v)
    return params.add(w, v), v


def apply_buffer_policy(server: ServerContext, held: Params, merged: Params) -> Params:
    """`merged` with BatchNorm statistics by `server.buffers`; this comes last, since they depend on the weights."""
    if server.train.buffers == "keep":
        return merged | {name: held[name] for name in server.net.buffers}
    if server.train.buffers == "recompute" and len(server.samples):
        return recompute_batchnorm(server, merged)
    return merged


def recompute_batchnorm(server: ServerContext, w: Params) -> Params:
    """The model with BatchNorm statistics computed on the server's samples."""
    parts = server.samples.x.split(EVALUATION_BATCH)
    return server.net.recompute_batchnorm(w, (server.views.plain(x.to(server.device)) for x in parts))


def with_static_batchnorm(server: ServerContext, w: Params) -> Params:
    """The model with static batch statistics (HeteroFL, SemiFL), if it has any: those of the server's samples."""
    return recompute_batchnorm(server, w) if server.net.buffers else w
