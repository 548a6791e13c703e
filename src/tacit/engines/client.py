"""A client's work as every engine does it: `client_update`, its checks and diagnosis, injected faults, evaluation."""

import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

from torch import Tensor

from tacit.engines import failures
from tacit.engines.counts import CountDown
from tacit.engines.job import ClientFailure, ClientResult, ClientTask, Job
from tacit.engines.judging import counted
from tacit.engines.secure_messages import DOWNS
from tacit.learn import EVALUATION_BATCH, Score, evaluate
from tacit.method import PseudoLabels, Reply
from tacit.params import Params
from tacit.protect import sample_dp

LOCAL_ACCURACY = "local_accuracy"  # among the metrics of a client: that of its own model, if it was evaluated


def run_client(job: Job, round: int, client: int, task: ClientTask) -> ClientResult:
    """A client's answer to a task: its work, what an exchange of secure aggregation asks for, or counts."""
    if isinstance(task.down, DOWNS):
        from tacit.engines import secure_client  # the package cryptography is optional

        return secure_client.answer(job, round, client, task, lambda given: _work(job, round, client, given))
    if isinstance(task.down, CountDown):
        return counted(job, client, task.down)
    return _work(job, round, client, task)


def _work(job: Job, round: int, client: int, task: ClientTask) -> ClientResult:
    """Run `client_update`, evaluate the client's own model if asked, and diagnose its pseudo-labels."""
    if job.sample_noise is not None:
        sample_dp.refuse_unfit(job.method, job.net)
    memory = None if task.memory is None else job.codec.decode(task.memory, job.device)
    reply: object = job.method.client_update(job.client(round, client), memory, task.down)
    if not isinstance(reply, Reply):
        raise TypeError(f"client_update must return a Reply, not {type(reply).__name__}")
    metrics = checked_metrics(reply.metrics)
    if reply.pseudo_labels is not None:
        classes = len(job.federation.classes) if job.federation.unknown else None
        metrics |= diagnose(reply.pseudo_labels, job.federation.true_labels(client, round), classes)
    if task.evaluate and reply.model is not None and len(job.federation.test):
        score = evaluate_all(job, reply.model)
        metrics[LOCAL_ACCURACY] = score.correct / score.count
    if job.protect.hides_clients:
        metrics = {}  # they would tell about this client what the noise hides
    up = reply.up
    if up is not None and job.faults.occurs("nonfinite", job.streams, round, client):
        up = poison(up)
    stateless = reply.memory is None and task.memory is None
    return ClientResult(up, None if stateless else job.codec.encode(reply.memory), metrics)


def checked_metrics(metrics: Mapping[str, Any]) -> dict[str, float]:
    """What a client logged, as numbers by name; a loss may be NaN, but the number of steps must be finite."""
    numbers = {name: float(value) for name, value in metrics.items()}
    if not math.isfinite(numbers.get("steps", 0.0)):
        raise ValueError(f"steps = {numbers['steps']} is not a number of steps")
    return numbers


def injected_failure(job: Job, round: int, client: int) -> ClientFailure | None:
    """The failure that an injected fault causes, for transports whose clients have no worker process to kill."""
    if all(job.faults.occurs("crash", job.streams, round, client, attempt) for attempt in (0, 1)):
        return failures.worker_died()
    if job.faults.occurs("slow", job.streams, round, client):
        return failures.too_slow(job.deadline)
    return None


def diagnose(pseudo_labels: PseudoLabels, truth: Tensor | None, classes: int | None = None) -> dict[str, float]:
    """The share of accepted pseudo-labels and, where a simulator knows the truth, the share of those that are right.

    With `classes`, the number of classes of the model, also the share of them that belong to other classes. Those count
    as wrong too.
    """
    if not len(pseudo_labels.index):
        return {}
    numbers = {"pseudo_kept": float(pseudo_labels.accepted.float().mean())}
    if truth is None:
        return numbers
    true = truth[pseudo_labels.index]
    known = pseudo_labels.accepted & (true >= 0)
    if known.any():
        numbers["pseudo_accuracy"] = float((pseudo_labels.label == true)[known].float().mean())
        numbers |= _most_frequent(pseudo_labels.label[known])
        if classes is not None:
            numbers["pseudo_unknown"] = float((true >= classes)[known].float().mean())
    if pseudo_labels.complementary is not None and (given := (pseudo_labels.complementary >= 0) & (true >= 0)).any():
        numbers["complementary_accuracy"] = float((pseudo_labels.complementary != true)[given].float().mean())
    return numbers


def _most_frequent(labels: Tensor) -> dict[str, float]:
    """The class that most pseudo-labels name, and its share. A simulator's only: sites do not send classes."""
    counts = labels.bincount()
    return {"pseudo_class": float(counts.argmax()), "pseudo_class_share": float(counts.max() / counts.sum())}


def part_count(job: Job) -> int:
    """The number of parts of the test set for evaluation; it does not depend on the number of workers."""
    return math.ceil(len(job.federation.test) / EVALUATION_BATCH)


def evaluate_all(job: Job, model: Params, *, outputs: bool = False) -> Score:
    """The model's score on the whole test set."""
    return sum((score_part(job, model, part, outputs=outputs) for part in range(part_count(job))), Score())


def score_part(job: Job, model: Params, part: int, *, outputs: bool = False) -> Score:
    """The model's score on one part of the test set."""
    test = job.federation.test
    rows = slice(part * EVALUATION_BATCH, (part + 1) * EVALUATION_BATCH)
    samples = replace(test, x=test.x[rows], y=test.y[rows])
    return evaluate(job.net, model, samples, job.federation.views, job.device, outputs=outputs)


def poison(message: Any) -> Any:
    """The message with a NaN in its first floating-point tensor, for the fault `nonfinite`."""
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
