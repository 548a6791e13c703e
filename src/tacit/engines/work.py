"""The work at a client and its faults: what every engine does around `client_update`."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

from torch import Tensor

from tacit.engines.loop import Absent, Job
from tacit.learn import EVALUATION_BATCH, Score, evaluate
from tacit.method import Guesses, Reply
from tacit.params import Params


@dataclass(frozen=True)
class Done:
    """What comes out of a client's work; its memory is encoded, or None where there is nothing to remember."""

    up: object | None
    memory: bytes | None
    metrics: dict[str, float]


def visit(job: Job, round: int, client: int, memory: bytes | None, down: object, evaluate_model: bool) -> Done:
    """Run `client_update`, evaluate the client's own model where asked, and diagnose its pseudo-labels."""
    remembered = None if memory is None else job.codec.decode(memory, job.device)
    reply: object = job.method.client_update(job.client(round, client), remembered, down)
    if not isinstance(reply, Reply):
        raise TypeError(f"client_update must return a Reply, not {type(reply).__name__}")
    metrics = numbers(reply.metrics)
    if reply.guesses is not None:
        metrics |= diagnose(reply.guesses, job.federation.true_labels(client, round))
    if evaluate_model and reply.model is not None and len(job.federation.test):
        score = evaluate_all(job, reply.model)
        metrics["local_accuracy"] = score.correct / score.count
    up = reply.up
    if up is not None and job.faults.strikes("nonfinite", job.streams, round, client):
        up = poison(up)
    forgets = reply.memory is None and memory is None
    return Done(up, None if forgets else job.codec.encode(reply.memory), metrics)


def numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """What a client logged, as numbers by name; a loss may be NaN, but steps are counted."""
    found = {name: float(value) for name, value in metrics.items()}
    if not math.isfinite(found.get("steps", 0.0)):
        raise ValueError(f"steps = {found['steps']} is no number of steps")
    return found


def struck(job: Job, round: int, client: int, sent: int) -> Absent | None:
    """How a client is missing where a fault is injected that no process of ours can suffer."""
    if all(job.faults.strikes("crash", job.streams, round, client, attempt) for attempt in (0, 1)):
        return Absent("its worker died twice", bytes_down=sent)
    if job.faults.strikes("slow", job.streams, round, client):
        return Absent(f"took longer than {job.deadline} s", bytes_down=sent)
    return None


def diagnose(guesses: Guesses, truth: Tensor | None) -> dict[str, float]:
    """How many pseudo-labels were kept, and how many of those are right, where a simulator knows the truth."""
    if not len(guesses.index):
        return {}
    numbers = {"pseudo_kept": float(guesses.kept.float().mean())}
    if truth is None:
        return numbers
    true = truth[guesses.index]
    known = guesses.kept & (true >= 0)
    if known.any():
        numbers["pseudo_accuracy"] = float((guesses.label == true)[known].float().mean())
    if guesses.excluded is not None and (said := (guesses.excluded >= 0) & (true >= 0)).any():
        numbers["complementary_accuracy"] = float((guesses.excluded != true)[said].float().mean())
    return numbers


def part_count(job: Job) -> int:
    """Into how many parts the test set is cut for evaluation; never depends on the number of workers."""
    return math.ceil(len(job.federation.test) / EVALUATION_BATCH)


def evaluate_all(job: Job, model: Params) -> Score:
    """The model's score on the whole test set."""
    return sum((score_part(job, model, part) for part in range(part_count(job))), Score())


def score_part(job: Job, model: Params, part: int) -> Score:
    """The model's score on one part of the test set."""
    test = job.federation.test
    rows = slice(part * EVALUATION_BATCH, (part + 1) * EVALUATION_BATCH)
    samples = replace(test, x=test.x[rows], y=test.y[rows])
    return evaluate(job.net, model, samples, job.federation.views, job.device)


def poison(message: Any) -> Any:
    """The message with a NaN in its first floating-point tensor, for the fault of that name."""
    poisoned, done = _poison(message)
    return poisoned if done else message


def _poison(value: Any) -> tuple[Any, bool]:
    if isinstance(value, Tensor) and value.is_floating_point() and value.numel():
        bad = value.detach().clone()
        bad.view(-1)[0] = math.nan
        return bad, True
    if isinstance(value, Mapping):
        items: list[tuple[Any, Any]] = [(key, item) for key, item in value.items()]
    elif is_dataclass(value):
        items = [(field.name, getattr(value, field.name)) for field in fields(value)]
    else:
        return value, False
    for key, item in items:
        bad, done = _poison(item)
        if done:
            changed = {key: bad}
            return ({**value, **changed} if isinstance(value, Mapping) else replace(value, **changed)), True
    return value, False
