"""Which uploads secure aggregation can add, and how they become whole numbers and back."""

from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property
from typing import Any, get_args, get_type_hints

import numpy as np
import torch
from torch import Tensor

from tacit.engines.upload_form import UploadForm
from tacit.errors import TacitError
from tacit.params import Sparse
from tacit.protect import fixed_point
from tacit.protect.fixed_point import Words
from tacit.updates import CountField, ModelField


@dataclass(frozen=True)
class SumForm:
    """Uploads that hold whole models and a number of samples, of a method that takes their weighted mean.

    A method declares with `summable = True` that `merge` needs nothing but that mean, weighted by its setting
    `weights`; without that setting all clients count alike.
    """

    form: UploadForm

    def __post_init__(self) -> None:
        """Refuse a method whose uploads cannot be added, or whose merge needs more than a mean."""
        method, kind = self.form.facts.method, self.form.declared
        plain = isinstance(kind, type) and is_dataclass(kind) and all(self._notes(kind).values())
        if not getattr(method, "summable", False) or self._weights not in ("samples", "uniform") or not plain:
            raise TacitError(
                f"protect.secure shows the server the mean of the uploads only, and {type(method).__name__} needs more",
                "use fedavg, fedprox, moon, semifl, fedseal or overlap-sgd, or leave out protect.secure",
                code="protect.not-a-sum",
            )

    def encode(self, up: Any, clients: int) -> Words:
        """An upload as whole numbers; without one, numbers that add nothing to the sum."""
        values = [torch.zeros(self._count())] if up is None else self._tensors(up)
        samples = 0 if up is None else self.form.count(up) or 0
        weight = 0.0 if up is None else float(samples) if self._by_samples else 1.0
        tail = fixed_point.encode([torch.tensor([weight, samples], dtype=torch.float64)], 1.0, clients)
        return np.concatenate([fixed_point.encode(values, weight, clients), tail])

    def decode(self, words: Words) -> Any:
        """The mean of the uploads in the form of one upload; None if there was none."""
        *_, weight, samples = numbers = fixed_point.decode(words)
        if weight <= 0:
            return None
        mean, at = numbers[:-2] / weight, 0
        values: dict[str, Any] = {}
        for name, note in self._notes(self.form.declared).items():
            if isinstance(note, CountField):
                values[name] = round(float(samples))
                continue
            values[name] = {}
            for tensor, like in self._like(note).items():
                values[name][tensor] = mean[at : at + like.numel()].reshape(like.shape).to(like)
                at += like.numel()
        return self.form.declared(**values)

    @property
    def length(self) -> int:
        """How many whole numbers an upload has."""
        return self._count() + 2

    @property
    def _weights(self) -> Any:
        return getattr(self.form.facts.method, "weights", "uniform")

    @property
    def _by_samples(self) -> bool:
        return bool(self._weights == "samples")

    def _count(self) -> int:
        notes = self._notes(self.form.declared).values()
        models = [self._like(note) for note in notes if isinstance(note, ModelField)]
        return sum(value.numel() for model in models for value in model.values())

    def _tensors(self, up: Any) -> list[Tensor]:
        notes = self._notes(self.form.declared).items()
        models = [(getattr(up, name), self._like(note)) for name, note in notes if isinstance(note, ModelField)]
        return [model[tensor] for model, like in models for tensor in like]

    @cached_property
    def _model(self) -> dict[str, Tensor]:
        return self.form.facts.net.init(torch.Generator().manual_seed(0))

    def _like(self, note: Any) -> dict[str, Tensor]:
        """Tensors in the shape and type of those that a field holds, in their order."""
        net = self.form.facts.net
        return {name: self._model[name] for name in (net.trainable if note.names == "trainable" else net.names)}

    @staticmethod
    def _notes(kind: type) -> dict[str, ModelField | CountField | None]:
        """What each field of an upload holds; None for one that cannot be added."""
        hints, found = get_type_hints(kind, include_extras=True), {}
        for item in fields(kind):
            base, *notes = get_args(hints[item.name]) or (None,)
            dense = Sparse not in get_args(base)
            known = [note for note in notes if isinstance(note, ModelField | CountField)]
            usable = [note for note in known if isinstance(note, CountField) or (dense and note.names != "some")]
            found[item.name] = usable[0] if usable else None
        return found
