"""Algebra on `Params`: a model's parameters and float buffers by name.

Models are values: every function returns new tensors and does not change its arguments. So θ = σ + ψ is
`add(sigma, psi)`, an average is `mean`, and a control variate is just another dict. Dicts that are combined must have
the same names and shapes; a mismatch raises instead of being cut short or broadcast.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt

import torch
from torch import Tensor

Params = dict[str, Tensor]

_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def add(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> Params:
    """a + b."""
    return {name: a[name] + b[name] for name in _names(a, b)}


def sub(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> Params:
    """a - b."""
    return {name: a[name] - b[name] for name in _names(a, b)}


def scale(a: Mapping[str, Tensor], factor: float) -> Params:
    """factor · a."""
    return {name: value * factor for name, value in a.items()}


def lerp(a: Mapping[str, Tensor], b: Mapping[str, Tensor], weight: float) -> Params:
    """(1 - weight) · a + weight · b."""
    return {name: torch.lerp(a[name], b[name], weight) for name in _names(a, b)}


def zeros_like(a: Mapping[str, Tensor]) -> Params:
    """Zeros in the shape of a."""
    return {name: torch.zeros_like(value) for name, value in a.items()}


def clone(a: Mapping[str, Tensor]) -> Params:
    """A copy that shares nothing with a, has no gradient, and has the usual order in memory."""
    return {name: value.detach().clone(memory_format=torch.contiguous_format) for name, value in a.items()}


def channels_last(a: Mapping[str, Tensor]) -> Params:
    """A copy whose convolution kernels have channels last in memory: oneDNN is up to twice as fast with these.

    oneDNN chooses algorithms by the order in memory, and the last bits depend on the algorithm. All code that computes
    with a network takes this copy first, so that results do not depend on where weights come from.
    """
    last, usual = torch.channels_last, torch.contiguous_format
    return {name: value.detach().clone(memory_format=last if value.dim() == 4 else usual) for name, value in a.items()}


def mean(models: Iterable[Mapping[str, Tensor]], weights: Sequence[float] | None = None) -> Params:
    """Weighted mean. Weights need not sum to one; without them all are equal.

    The sum runs in the given order, so the same order gives the same bits. Each model is needed only once, so an
    iterator that makes one after another keeps few of them in memory.
    """
    if weights is None:
        models = list(models)
        weights = [1.0] * len(models)
    total, left = float(sum(weights)), iter(models)
    first = next(left, None)
    if first is None or total <= 0:
        raise ValueError("a mean needs at least one model and a positive total weight")
    result = scale(first, weights[0] / total)
    del first  # which would stay in memory beside the next ones
    for model, weight in zip(left, weights[1:], strict=True):
        for name in _names(result, model):
            result[name].add_(model[name], alpha=weight / total)
    return result


def dot(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> float:
    """Inner product over all entries."""
    products = [(a[name] * b[name]).sum() for name in _names(a, b)]
    return float(torch.stack(products).sum()) if products else 0.0


def norm(a: Mapping[str, Tensor]) -> float:
    """Euclidean norm over all entries."""
    return sqrt(dot(a, a))


def equal(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> bool:
    """Whether both have the same names with the same shapes, types and bits."""
    return a.keys() == b.keys() and all(
        a[name].shape == b[name].shape and a[name].dtype == b[name].dtype and not _changed(a[name], b[name], 0.0).any()
        for name in a
    )


def size(a: Mapping[str, Tensor]) -> int:
    """Number of scalars."""
    return sum(value.numel() for value in a.values())


@dataclass(frozen=True)
class Sparse:
    """Some entries of a tensor of `shape`: `value[i]` is at flat position `index[i]` (ascending)."""

    shape: tuple[int, ...]
    index: Tensor
    value: Tensor


def sparsify(new: Mapping[str, Tensor], held: Mapping[str, Tensor], threshold: float = 0.0) -> dict[str, Sparse]:
    """The entries of `new` that differ from `held` by more than `threshold`.

    They hold the new values, not differences: held + (new - held) need not be new in floating point. With threshold 0
    every entry whose bits differ is there, so the patch gives exactly `new`.
    """
    patches = {}
    for name in _names(new, held):
        flat = new[name].reshape(-1)
        index = _changed(flat, held[name].reshape(-1), threshold).nonzero().reshape(-1)
        patches[name] = Sparse(tuple(new[name].shape), index, flat[index])
    return patches


def patch(held: Mapping[str, Tensor], changes: Mapping[str, Sparse]) -> Params:
    """`held` with the entries in `changes` replaced."""
    result = clone(held)
    if wrong := [name for name, change in changes.items() if change.shape != result[name].shape]:
        raise ValueError(f"these changes belong to tensors of other shapes: {wrong}")
    for name, change in changes.items():
        result[name].view(-1)[change.index] = change.value
    return result


def _names(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> list[str]:
    if a.keys() != b.keys():
        raise KeyError(f"these models have different names: {sorted(a.keys() ^ b.keys())}")
    if wrong := [name for name in a if a[name].shape != b[name].shape]:
        raise ValueError(f"these models have different shapes: {wrong}")
    return list(a)


def _changed(new: Tensor, old: Tensor, threshold: float) -> Tensor:
    if threshold > 0:
        return ~((new - old).abs() <= threshold)  # a NaN counts as a change
    bits = _BITS[new.element_size()]
    return new.contiguous().view(bits) != old.contiguous().view(bits)
