"""Hostile clients of a simulation: what they send in place of their update, so that rules against them can be studied.

With Δ = a client's update, the difference from what it was sent, and s = `faults.strength`:

    sign     -s·Δ
    scale    s·Δ
    random   a random direction, s times as long as Δ
    little   mean + s·std of the round's honest updates, in each coordinate (Baruch et al., "A little is enough", 2019)
    labels   the update of training on wrong labels: class c counts as the last class but c (`Job.client`)

An attacker knows the honest updates of its round, which is more than it would know outside of a simulation. Its memory
is that of an honest client.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from tacit.engines.job import ClientOutcome, ClientResult, Job
from tacit.engines.upload_updates import Updates, updates_of, with_updates
from tacit.engines.uploads import decoded
from tacit.protect.clipping import length

STRENGTH = {"sign": 1.0, "scale": 10.0, "random": 1.0, "little": 1.5}  # where the config gives none


def attacked(
    job: Job, round: int, downs: Mapping[int, object], outcomes: Mapping[int, ClientOutcome]
) -> dict[int, ClientOutcome]:
    """The outcomes of a round, with what the hostile clients send instead.

    One that would send nothing, since it learned from no sample, attacks with a copy of the first honest upload.
    """
    found = dict(outcomes)
    if not job.faults.hostile or job.faults.attack == "labels":
        return found
    form = job.upload_form
    arrived = {k: outcome for k, outcome in sorted(outcomes.items()) if isinstance(outcome, ClientResult)}
    ups = {k: decoded(result.up) for k, result in arrived.items() if result.up is not None}
    honest = [k for k in ups if k not in job.hostile]
    others = [updates_of(form, ups[k], downs[k]) for k in honest] if job.faults.attack == "little" else []
    for client in sorted(job.hostile & arrived.keys()):
        up = ups.get(client)
        if up is None and honest:
            up = form.capped(ups[honest[0]], job.held(client))
        if up is not None:
            update = updates_of(form, up, downs[client])
            stream = job.streams.at("hostile update", round=round, client=client)
            worse = hostile_update(job.faults.attack, job.faults.strength, update, others, stream)
            found[client] = replace(arrived[client], up=with_updates(form, up, downs[client], worse))
    return found


def hostile_update(
    attack: str, strength: float | None, update: Updates, honest: Sequence[Updates], stream: torch.Generator
) -> Updates:
    """What a hostile client sends in place of its update."""
    s = STRENGTH[attack] if strength is None else strength
    if attack == "little":
        return {
            path: {name: _shifted(path, name, honest, s, value) for name, value in each.items()}
            for path, each in update.items()
        }
    if attack == "random":
        noise = _each(update, lambda value: torch.randn(value.shape, generator=stream, dtype=value.dtype).to(value))
        factor = s * _length(update) / max(_length(noise), torch.finfo(torch.float64).tiny)
        return _each(noise, lambda value: value * factor)
    return _each(update, lambda value: value * (-s if attack == "sign" else s))


def _shifted(path: str, name: str, honest: Sequence[Updates], s: float, own: Tensor) -> Tensor:
    """mean + s·std over the honest clients that sent this tensor; its own value if there is none."""
    values = [each[path][name] for each in honest if name in each.get(path, {})]
    if not values:
        return own
    stacked = torch.stack(values)
    return stacked.mean(dim=0) + s * stacked.std(dim=0, correction=0)


def _each(update: Updates, change: Any) -> Updates:
    return {path: {name: change(value) for name, value in each.items()} for path, each in update.items()}


def _length(update: Updates) -> float:
    return length(value for each in update.values() for value in each.values())
