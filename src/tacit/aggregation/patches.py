"""Sparse messages between two sides that know what the other holds, for methods that send changes instead of models.

The sender compares a model with what its peer holds and sends the entries that changed by more than a threshold
(`changes`). Both sides then apply the same patch (`updated`), so they agree on what the peer holds, bit for bit, and
the next message starts from there. A lost message leaves both sides where they were. A peer that holds nothing yet is
None; it counts as zeros.

    patch = changes(model, held.get(client), threshold)      at the sender
    model = updated(held, patch)                             at the peer, and at the sender to know what it holds now
"""

from collections.abc import Iterable

import torch

from tacit.params import Params, Sparse, patch, sparsify, zeros_like

Patch = dict[str, Sparse]


def changes(model: Params, held: Params | None, threshold: float) -> Patch:
    """The entries of a model that differ from what the peer holds by more than `threshold`.

    A peer that holds nothing gets every entry but zeros, whatever the threshold.
    """
    return sparsify(model, zeros_like(model)) if held is None else sparsify(model, held, threshold)


def updated(held: Params | None, patches: Patch) -> Params:
    """What the peer holds once the patch is applied."""
    return patch(_zeros(patches) if held is None else held, patches)


def without_small(model: Params, largest: float) -> Params:
    """The model with 0 for entries up to this size, which then need not travel; a NaN stays, so that it is noticed."""
    if not largest:
        return model
    return {name: value.masked_fill(value.abs() <= largest, 0.0) for name, value in model.items()}


def scalars(patches: Iterable[Patch]) -> int:
    """How many entries travel in these patches."""
    return sum(len(change.index) for each in patches for change in each.values())


def _zeros(patches: Patch) -> Params:
    return {
        name: torch.zeros(change.shape, dtype=change.value.dtype, device=change.value.device)
        for name, change in patches.items()
    }
