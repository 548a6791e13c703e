"""What a client may do to the average at most: how long its update is, and how many samples it stands for."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from tacit.engines.upload_form import UploadForm
from tacit.method import Positive
from tacit.params import Sparse
from tacit.protect.clipping import lower_median
from tacit.updates import ModelField

FEWEST = 3  # senders from which on the median is not one sender's choice
FACTOR = 10.0  # `norm_factor` of runs over sites, if their config has none


@dataclass(frozen=True)
class Limits:
    """The section `[limits]` of a config: how far one client can move the model. A client beyond a limit is left out.

    Numbers of honest simulations do not change: nothing is limited unless it is set. `tacit hub run` sets norm_factor.
    """

    norm_factor: Positive | None = None  # an update may be this many times as long as the median of its round
    max_norm: Positive | None = None  # an update may be this long, whatever the others send
    max_share: Annotated[float, Field(gt=0, le=1)] | None = None  # of a round's samples that one client may stand for

    @property
    def measures(self) -> bool:
        """Whether the length of an update matters."""
        return self.norm_factor is not None or self.max_norm is not None


Lengths = dict[str, float]  # of each field of an upload


def lengths(form: UploadForm, up: object, sent: Mapping[str, Tensor]) -> Lengths:
    """How long each part of an upload is.

    Models: their distance from the one that was sent, weights and BatchNorm statistics apart. Sparse changes and other
    tensors: the root mean square of their values.
    """
    found: Lengths = {}
    for at, value, note in form.tensor_fields(up):
        if isinstance(value, dict) and not any(isinstance(each, Sparse) for each in value.values()):
            origin = {} if isinstance(note, ModelField) and note.change else sent
            for name, squares in _distances(form, value, origin):
                key = at if name in form.facts.net.trainable else f"{at} (statistics)"
                found[key] = found.get(key, 0.0) + squares
        else:
            values = [each.value for each in value.values()] if isinstance(value, dict) else [value]
            count = sum(each.numel() for each in values)
            found[at] = sum(_squares(each) for each in values) / max(1, count)
    return {at: math.sqrt(squares) for at, squares in found.items()}


def _distances(
    form: UploadForm, model: Mapping[str, Tensor], origin: Mapping[str, Tensor]
) -> Iterator[tuple[str, float]]:
    for name, value in model.items():
        known = origin.get(name)
        yield name, _squares(value if known is None else value.double() - known.double())


def _squares(value: Tensor) -> float:
    return float(torch.linalg.vector_norm(value.double())) ** 2


def too_long(measured: Mapping[int, Lengths], held: Mapping[int, int | None], limits: Limits) -> dict[int, str]:
    """The clients whose update is beyond a limit, and how far, in words that follow the client's name.

    A client with more samples than the median of the round makes more steps, so it may go further by that factor.
    """
    beyond: dict[int, str] = {}
    if limits.max_norm is not None:
        for client, parts in measured.items():
            if any(length > limits.max_norm for length in parts.values()):
                beyond[client] = f"is {max(parts.values()):.3g} long, more than limits.max_norm = {limits.max_norm:g}"
    senders = {client: parts for client, parts in measured.items() if parts}
    if limits.norm_factor is None or len(senders) < FEWEST:
        return beyond
    typical_held = lower_median([held.get(client) or 0 for client in senders])
    for at in sorted({at for parts in senders.values() for at in parts}):
        having = {client: parts[at] for client, parts in senders.items() if at in parts}
        median = lower_median(list(having.values()))
        if len(having) < FEWEST or not median:
            continue
        for client, length in having.items():
            more = max(1.0, (held.get(client) or 0) / typical_held) if typical_held else 1.0
            if not length <= limits.norm_factor * median * more:
                beyond.setdefault(client, f"has {at} {length / median:.3g} times as long as the median of the round")
    return beyond


def largest_count(counts: list[int], share: float) -> int:
    """The count that each client stands for at most, so that no one has more than this share of the sum.

    With fewer clients than 1 / share that is impossible; then all stand for as much as the smallest.
    """
    ordered = sorted(count for count in counts if count)
    if not ordered or len(ordered) * share <= 1:
        return ordered[0] if ordered else 0
    for place, count in enumerate(ordered):
        others = sum(ordered[:place])
        larger = len(ordered) - place
        if larger * share >= 1:
            continue
        most = share * others / (1 - larger * share)  # solves most = share · (others + larger · most)
        if most < count:
            return max(1, math.floor(most))
    return ordered[-1]
