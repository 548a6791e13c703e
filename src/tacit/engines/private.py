"""Client-level differential privacy: the method gets one upload, a noisy mean, in place of those of the clients.

Round t, with N clients, q = cohort / N, the bound C and the noise multiplier z:

1. Every client is asked with probability q, independently of the others (`Job.sample`).
2. Δ_k, all updates in the upload of client k together, is scaled to length C if it is longer.
3. S = Σ Δ_k + N(0, z²C²) on every entry; without any client, S is noise alone.
4. `merge` gets a single upload: what was sent plus S / (q·N). The denominator does not depend on who came.

Numbers of samples count as 1 and BatchNorm statistics stay as they were sent, so nothing else of a client reaches the
server's state. Whatever `merge` does with the upload spends nothing more.
"""

from collections.abc import Mapping
from dataclasses import fields, replace
from types import NoneType
from typing import Any, get_args, get_type_hints

import torch
from torch import Tensor

from tacit.engines.job import ClientResult, Job
from tacit.engines.upload_updates import DeclaredField, declared_fields, sent_for, updates_of
from tacit.engines.uploads import decoded
from tacit.params import Params
from tacit.protect import noise
from tacit.protect.accounting import spent
from tacit.updates import CountField, ModelField

SENDER = 0  # under which number `merge` gets the upload; it belongs to no client


def withheld(results: Mapping[int, ClientResult]) -> dict[int, ClientResult]:
    """The results without what clients logged and how many samples they stand for, for the record of the round."""
    return {client: replace(result, metrics={}, count=None) for client, result in results.items()}


def private_upload(job: Job, round: int, downs: Mapping[int, object], results: Mapping[int, ClientResult]) -> Any:
    """The one upload of a round. `downs` is never empty: without a cohort it holds what a client would have got."""
    form, protect = job.upload_form, job.protect
    models = [each for each in declared_fields(form.declared) if isinstance(each.note, ModelField)]
    origins = {each.path: _origin(job, each, next(iter(downs.values()))) for each in models}
    for down in downs.values():
        if any(not _same(origins[each.path], _origin(job, each, down)) for each in models):
            raise ValueError("clients got different models, so their updates have no common sum")
    trainable = set(job.net.trainable)
    learned = {
        path: {name: value for name, value in origin.items() if name in trainable} for path, origin in origins.items()
    }
    updates = (
        noise.clipped(_only(updates_of(form, decoded(result.up), downs[client]), learned), protect.client_clip)
        for client, result in sorted(results.items())
        if result.up is not None
    )
    total = noise.added(updates, learned)
    if protect.client_noise and protect.client_clip:
        draw = job.secret_streams.numpy_at("client noise", round=round)
        total = noise.noised(total, protect.client_noise * protect.client_clip, draw)
    moved = {path: origin | _moved(learned[path], total[path], job.cohort) for path, origin in origins.items()}
    return _built(form.declared, "", moved)


def privacy_of(job: Job, rounds: int) -> dict[str, Any]:
    """What this many rounds have spent, for their record."""
    clients, rate = job.federation.clients, job.cohort / job.federation.clients
    found = spent(rate, job.protect.client_noise or 0.0, rounds, job.protect.delta_for(clients))
    return {"client": {"epsilon": found.epsilon, "delta": found.delta}, "withheld": "what clients log"}


def _origin(job: Job, each: DeclaredField, down: object) -> Params:
    """What a field was before the client changed it: the model that was sent, or zero for a change."""
    assert isinstance(each.note, ModelField)
    names = job.net.trainable if each.note.names == "trainable" else job.net.names
    if each.note.change:
        return {name: torch.zeros_like(value) for name, value in job.upload_form.example.items() if name in set(names)}
    sent = sent_for(each.path, down)
    return {name: sent[name] for name in names}


def _moved(origin: Params, total: Mapping[str, Tensor], count: int) -> Params:
    """origin + total / count, computed in float64."""
    return {name: (value.double() + total[name].to(value.device) / count).to(value) for name, value in origin.items()}


def _same(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> bool:
    return all(a[name] is b[name] or torch.equal(a[name], b[name]) for name in a)


def _only(update: Mapping[str, Params], like: Mapping[str, Params]) -> dict[str, Params]:
    return {path: {name: update[path][name] for name in each} for path, each in like.items()}


def _built(hint: Any, at: str, models: Mapping[str, Params]) -> Any:
    """An upload of the declared type from its models; numbers of samples are 1."""
    kind = next(part for part in (get_args(hint) or (hint,)) if part is not NoneType)
    hints = get_type_hints(kind, include_extras=True)
    values = {}
    for item in fields(kind):
        path = f"{at}.{item.name}".lstrip(".")
        counts = any(isinstance(note, CountField) for note in get_args(hints[item.name])[1:])
        values[item.name] = models[path] if path in models else 1 if counts else _built(hints[item.name], path, models)
    return kind(**values)
