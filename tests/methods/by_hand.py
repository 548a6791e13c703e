"""Methods by hand: predictions and gradients of a linear net, and a round with all its messages."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from tacit.engines.job import Job
from tacit.params import Params
from tests.toys import started, visit


def answers(model: Params, x: Tensor) -> Tensor:
    return (x @ model["fc.weight"].T + model["fc.bias"]).softmax(dim=1)


def kl(q: Tensor, p: Tensor) -> float:
    """KL(q ‖ p), the mean over samples."""
    return float((q * (q / p).log()).sum(dim=1).mean())


def one_hot(labels: Sequence[int], classes: int = 2) -> Tensor:
    return functional.one_hot(torch.tensor(labels), classes).float()


# Gradients without autograd: at logits z = Wx + b, those of cross-entropy and of KL(q ‖ p) are p - q.


def down_to_weights(at_logits: Tensor, x: Tensor) -> Params:
    """The gradient of a mean over samples, from each one's gradient at its logits."""
    return {"fc.weight": at_logits.T @ x / len(x), "fc.bias": at_logits.mean(dim=0)}


def slope(model: Params, x: Tensor, targets: Tensor) -> Params:
    """The gradient of the mean over x of the cross-entropy to these targets."""
    return down_to_weights(answers(model, x) - targets, x)


@dataclass(frozen=True)
class Turn:
    """A round played by hand; `memories` are the committed ones."""

    sent: Any  # the state after `send`
    log: Mapping[str, float]
    downs: Mapping[int, Any]
    replies: Mapping[int, Any]
    state: Any
    memories: Mapping[int, Any]


def turn(
    task: Job,
    round: int = 0,
    state: Any = None,
    memories: Mapping[int, Any] | None = None,
    cohort: Collection[int] | None = None,
    lost: Collection[int] = (),
) -> Turn:
    """A round that continues from a state, or from the start; uploads of the `lost` do not arrive."""
    log: dict[str, float] = {}
    server, held = task.server(round, log), memories or {}
    server = server if cohort is None else replace(server, cohort=tuple(cohort))
    sent, downs = task.method.send(server, started(task) if state is None else state)
    replies = {k: visit(task, k, down, held.get(k), round) for k, down in downs.items()}
    counted = {k: reply for k, reply in replies.items() if k not in lost}
    merged = task.method.merge(server, sent, {k: reply.up for k, reply in counted.items() if reply.up is not None})
    return Turn(sent, log, downs, replies, merged, {**held, **{k: reply.memory for k, reply in counted.items()}})
