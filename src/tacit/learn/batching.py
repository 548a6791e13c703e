"""The batches of one visit: which samples meet, step by step."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from math import ceil

import torch
from torch import Tensor

from tacit.method import Holder


@dataclass(frozen=True)
class Batch:
    """One step's data as stored: labeled inputs `x` with labels `y`, unlabeled inputs `u` at positions `index`."""

    x: Tensor
    y: Tensor
    u: Tensor
    index: Tensor


def batches(holder: Holder, labels_only: bool = False, once: bool = False, mixed: int = 0) -> Iterator[Batch]:
    """The batches of one visit, or of one epoch; the longer of labeled and unlabeled data makes an epoch.

    The shorter is repeated. The two draw from streams of their own, so unlabeled data does not change which labeled
    samples meet. Or they are `mixed`: batches of `train.batch` samples of all, the labeled ones so many times each.
    """
    samples, train = holder.samples, holder.train
    epoch = epoch_steps(holder, labels_only, mixed)
    if not epoch:
        return
    total = epoch if once else train.steps or epoch * train.epochs
    for row, row_u in islice(_rows(holder, labels_only, mixed), total):
        shown, u = samples.take(row), samples.x.index_select(0, row_u)
        x, y = shown.x.to(holder.device), shown.y.to(holder.device)
        yield Batch(x, y, u.to(holder.device), row_u)


def epoch_steps(holder: Holder, labels_only: bool = False, mixed: int = 0) -> int:
    """How many batches make an epoch; 0 where there is nothing to train on."""
    train, labeled, unlabeled = holder.train, *_positions(holder, labels_only)
    if mixed:
        return ceil((mixed * len(labeled) + len(unlabeled)) / train.batch)
    return max(ceil(len(labeled) / train.batch), ceil(len(unlabeled) / (train.unlabeled_batch or train.batch)))


def _positions(holder: Holder, labels_only: bool) -> tuple[Tensor, Tensor]:
    """Where the labeled samples stand, and the unlabeled ones that count."""
    labeled = holder.samples.labeled
    return labeled, labeled[:0] if labels_only else holder.samples.unlabeled


def _rows(holder: Holder, labels_only: bool, mixed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Positions of labeled and of unlabeled samples, batch by batch, without end."""
    train, labeled, unlabeled = holder.train, *_positions(holder, labels_only)
    if mixed:
        known = torch.zeros(len(holder.samples), dtype=torch.bool).index_fill_(0, labeled, True)
        pool = torch.cat([labeled.repeat(mixed), unlabeled])
        for row in _endless(pool, train.batch, holder.stream("mixed batches")):
            yield row[known[row]], row[~known[row]]
    else:
        rows = _endless(labeled, train.batch, holder.stream("labeled batches"))
        rows_u = _endless(unlabeled, train.unlabeled_batch or train.batch, holder.stream("unlabeled batches"))
        yield from zip(rows, rows_u, strict=False)


def _endless(index: Tensor, size: int, stream: torch.Generator) -> Iterator[Tensor]:
    """Batches of positions, a new permutation for each pass; empty ones where there is nothing."""
    while True:
        order = index[torch.randperm(len(index), generator=stream)]
        yield from order.split(size)
