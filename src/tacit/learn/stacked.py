"""Several clients as one batched model: each step of all of them is one pass, which a GPU is faster with.

Methods do not know of it. `client_update` is a function, so it is called twice: first to learn what it asks `fit` for,
then with what the stacked training gave. Sums within a batched kernel have another order than those of a single model,
so results agree with those of one client at a time up to rounding, and not bit by bit.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.func import grad_and_value, vmap
from torch.nn import functional

from tacit import params
from tacit.learn.ahead import Looks
from tacit.learn.batching import Batch, batches
from tacit.learn.training import STAND_IN, Descent, Trained, Visit
from tacit.params import Params


class _Recorded(Exception):  # noqa: N818  # no error: it ends a call whose question is known
    def __init__(self, visit: Visit) -> None:
        super().__init__()
        self.visit = visit


def asked(work: Callable[[], object]) -> Visit | None:
    """What some work asks `fit` for; None if it asks for nothing, or fails before."""

    def record(visit: Visit) -> Trained:
        raise _Recorded(visit)

    with _in_place_of_fit(record):
        try:
            work()
        except _Recorded as found:
            return found.visit
        except Exception:  # it will fail again where failures are reported
            return None
    return None


@contextmanager
def answered(trained: Trained | None) -> Iterator[None]:
    """Let `fit` give this within a block; None leaves it as it is."""
    if trained is None:
        yield
        return
    with _in_place_of_fit(lambda visit: trained):
        yield


@contextmanager
def _in_place_of_fit(stand_in: Callable[[Visit], Trained]) -> Iterator[None]:
    token = STAND_IN.set(stand_in)
    try:
        yield
    finally:
        STAND_IN.reset(token)


def fit_stacked(visits: Sequence[Visit]) -> list[Trained] | None:
    """What `fit` would give to each visit, trained at once; None if they cannot be stacked.

    They can if all start from the same model, with the same settings and number of steps, batches of the same sizes,
    plain SGD without clipping, the cross-entropy of labels, and a network without batch statistics or dropout.
    """
    looks = _looks(visits)
    if looks is None:
        return None
    first, count = visits[0], len(visits)
    turns = list(zip(*(batches(visit.holder, labels_only=True) for visit in visits), strict=True))
    if not turns or any(len({len(batch.x) for batch in turn}) > 1 for turn in turns):
        return None
    start = {name: value.expand(count, *value.shape) for name, value in first.start.items()}
    run, losses = Descent(first.holder, start, None, first.prox, None), torch.zeros(count, device=first.holder.device)
    net = first.holder.net

    def loss(w: Params, x: Tensor, y: Tensor) -> Tensor:
        return functional.cross_entropy(net.apply(w, x, train=True), y)

    for turn in turns:
        x, y = _inputs(looks, turn), torch.stack([batch.y for batch in turn])
        weights = {name: value.detach() for name, value in run.w.items()}
        slopes, values = vmap(grad_and_value(loss))(weights, x, y)
        run.descend([slopes[name] for name in net.trainable])
        losses += values
    return [_unstacked(run, place, float(losses[place]) / run.steps) for place in range(count)]


def _looks(visits: Sequence[Visit]) -> list[Looks] | None:
    """The views of each visit, if the visits can be stacked."""
    if len(visits) < 2 or not all(_fits(visit, visits[0]) for visit in visits):
        return None
    make: Any = getattr(visits[0].objective, "stacked_looks", lambda holder: None)
    found = [make(visit.holder) for visit in visits]
    return None if None in found else found


def _fits(visit: Visit, first: Visit) -> bool:
    holder, train = visit.holder, visit.holder.train
    return (
        visit.plain
        and all(visit.start[name] is value for name, value in first.start.items())
        and (visit.objective, visit.prox, train) == (first.objective, first.prox, first.holder.train)
        and train.steps is not None
        and (train.clip, train.precision, train.optimizer) == (None, None, "reset")
        and holder.sample_noise is None
        and not holder.net.buffers
        and not holder.net.random
        and visit.start.keys() == set(holder.net.names)
        and len(holder.samples.labeled) > 0
    )


def _inputs(looks: Sequence[Looks], turn: Sequence[Batch]) -> Tensor:
    return torch.stack([look(batch) for look, batch in zip(looks, turn, strict=True)])


def _unstacked(run: Descent, place: int, loss: float) -> Trained:
    w = params.clone({name: value[place] for name, value in run.w.items()})
    return Trained(w, None, run.steps, {"loss_supervised": loss, "steps": run.steps}, None)
