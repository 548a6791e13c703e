"""Merge the uploads of a round so that none of them can break the model: who would is left out, by name."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from typing import Any

from torch import Tensor

from tacit.engines import failures
from tacit.engines.job import ClientFailure, ClientResult, Job
from tacit.engines.limits import largest_count, lengths, too_long
from tacit.engines.upload_updates import updates_of, with_updates
from tacit.engines.uploads import Changed, Uploads, decoded
from tacit.errors import TacitError
from tacit.method import ServerContext
from tacit.per_client import PerClient
from tacit.protect.clipping import length, median_factors

LARGEST = 1e18  # beyond it the square of a 32-bit float overflows: no training survives such a number
RETRIES = 20  # merges without one of the clients, after one that raised an error

Results = Mapping[int, ClientResult]


@dataclass(frozen=True)
class Merged:
    """The state after a round, and the clients that were left out to get it."""

    state: Any
    failures: Mapping[int, ClientFailure]


def within_limits(job: Job, state: Any, results: Results) -> tuple[dict[int, ClientResult], dict[int, ClientFailure]]:
    """The results whose updates are no longer than `[limits]` allows, their counts capped, and the other clients."""
    kept, outside = dict(results), {}
    if job.limits.measures:
        sent = job.method.model(state) or {}
        measured = {k: lengths(job.upload_form, decoded(result.up), sent) for k, result in results.items()}
        beyond = too_long(measured, {k: result.held for k, result in results.items()}, job.limits)
        for client, how in beyond.items():
            result = kept.pop(client)
            outside[client] = failures.too_far(how).with_bytes(result.bytes_down, result.bytes_up)
    if job.limits.max_share is not None:
        counts = [result.count for result in kept.values() if result.count is not None]
        most = largest_count(counts, job.limits.max_share)
        kept = {k: r if r.count is None else replace(r, count=min(r.count, most)) for k, r in kept.items()}
    return kept, outside


def clipped(job: Job, downs: Mapping[int, object], results: Results) -> dict[int, ClientResult]:
    """The results with no update longer than the median of the round, for `protect.combine = "clipped"`.

    One factor scales all weights of an upload, which keeps their direction, and another one all BatchNorm statistics,
    which have other units. An update that is not too long keeps its bits.
    """
    form, trainable = job.upload_form, set(job.net.trainable)

    def lengths_of(up: object, down: object) -> dict[str, float]:
        parts: dict[str, list[Tensor]] = {}
        for update in updates_of(form, up, down).values():
            for name, value in update.items():
                parts.setdefault("weights" if name in trainable else "statistics", []).append(value)
        return {part: length(values) for part, values in parts.items()}

    senders = {client: result for client, result in results.items() if result.up is not None}
    lengths = {client: lengths_of(decoded(result.up), downs[client]) for client, result in senders.items()}
    changed = {}
    for client, factors in median_factors(lengths).items():
        if any(factor < 1 for factor in factors.values()):
            change = partial(_scaled, job, downs[client], factors)
            changed[client] = replace(senders[client], up=Changed(senders[client].up, change))
    return {**results, **changed}


def _scaled(job: Job, down: object, factors: Mapping[str, float], up: object) -> Any:
    """The upload with its updates scaled; tensors with the factor 1 stay as they are."""
    by_name = {name: factors.get("weights", 1.0) for name in job.net.trainable}
    other = factors.get("statistics", 1.0)
    shorter = {
        path: {name: value * by_name.get(name, other) for name, value in each.items() if by_name.get(name, other) < 1}
        for path, each in updates_of(job.upload_form, up, down).items()
    }
    return with_updates(job.upload_form, up, down, shorter)


def merge_soundly(job: Job, server: ServerContext, state: Any, results: Results, log: dict[str, float]) -> Merged:
    """Merge the uploads. If the outcome is not finite, or merging fails, leave out the clients that caused it.

    A client is blamed only if the outcome is sound without its upload, and never more than half of the senders:
    what most of them cause together is the training that diverges.
    """
    ups = {client: result.up for client, result in results.items() if result.up is not None}
    counts = {client: result.count for client, result in results.items()}
    before = dict(log)

    def merge(clients: Sequence[int]) -> Any:
        log.clear()
        log.update(before)
        some = {client: ups[client] for client in clients}
        return job.method.merge(server, state, Uploads(some, job.upload_form, counts))

    try:
        merged = merge(list(ups))
    except TacitError:
        raise
    except Exception as error:
        return _without_one(merge, list(ups), error)
    if not (broken := _broken(job, merged)) or broken <= _broken(job, state):
        return Merged(merged, {})
    return _without_largest(job, merge, ups, state) or Merged(merge(list(ups)), {})


def _without_one(merge: Callable[[Sequence[int]], Any], clients: list[int], error: Exception) -> Merged:
    """The outcome without the one client whose upload makes merging fail; the error itself if there is none."""
    for client in clients[:RETRIES]:
        try:
            merged = merge([other for other in clients if other != client])
        except Exception:
            continue
        return Merged(merged, {client: failures.cannot_be_merged(error)})
    raise error


def _without_largest(
    job: Job, merge: Callable[[Sequence[int]], Any], ups: Mapping[int, object], state: Any
) -> Merged | None:
    """The first sound outcome as the largest uploads are left out one after the other; None: no client is to blame."""
    known = _broken(job, state)
    if not ups or not _broken(job, merge([])) <= known:
        return None  # the server's own training diverged
    order = sorted(ups, key=lambda client: -_largest(decoded(ups[client])))
    for count in range(1, max(1, len(ups) // 2) + 1):
        merged = merge(sorted(order[count:]))
        if _broken(job, merged) <= known:
            return Merged(merged, {client: failures.breaks_the_model() for client in sorted(order[:count])})
    return None


def _broken(job: Job, state: Any) -> set[str]:
    """Where a state, or the model it gives, has a tensor that is not finite, or as good as infinite."""
    model = job.method.model(state)
    return {at for at, value in (*_named(state, "state"), *_named(model, "model")) if not _sound(value)}


def _sound(value: Tensor) -> bool:
    return not value.is_floating_point() or bool((value.abs() <= LARGEST).all())  # False for NaN too


def _largest(message: Any) -> float:
    numbers = (value for _, value in _named(message, "") if value.is_floating_point() and value.numel())
    return max((float(value.abs().max()) for value in numbers), default=0.0)


def _named(value: Any, at: str) -> Iterator[tuple[str, Tensor]]:
    """All tensors in a state or message, by their path."""
    if isinstance(value, Tensor):
        yield at, value
    elif isinstance(value, PerClient):
        yield from _named(value.unstored(), at)  # the others were sound when they were stored
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _named(item, f"{at}/{key}")
    elif isinstance(value, (tuple, list)):
        for index, item in enumerate(value):
            yield from _named(item, f"{at}/{index}")
    elif is_dataclass(value):
        for field in fields(value):
            yield from _named(getattr(value, field.name), f"{at}/{field.name}")
