"""The batches of one visit: which samples are in which step."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from math import ceil
from typing import Literal

import torch
from torch import Tensor

from tacit.method import Holder, SampleNoise
from tacit.protect import draws

BLOCK_BYTES = 4 << 20  # of one view of a block of batches, in float32: enough to spread the cost of a call
RESIDENT_BYTES = 1 << 30  # of a holder's inputs: more do not move to its device at once, but block by block

Part = Literal["labeled", "unlabeled", "both"]  # of a batch; both: the labeled samples first


@dataclass(frozen=True)
class Batch:
    """One step's data as stored: labeled inputs `x` with labels `y`, unlabeled inputs `u` at positions `index`.

    All are on the holder's device, where a holder's samples move once per visit.
    """

    x: Tensor
    y: Tensor
    u: Tensor
    index: Tensor
    block: "Block | None" = field(default=None, repr=False, compare=False)  # the batches it is one of
    number: int = 0  # its place among them

    def part(self, part: Part) -> Tensor:
        """The inputs of one part."""
        if part == "both":
            return torch.cat([self.x, self.u])
        return self.x if part == "labeled" else self.u


@dataclass(frozen=True, eq=False)
class Block:
    """Batches in succession, so that their views can be made at once."""

    x: tuple[Tensor, ...]
    u: tuple[Tensor, ...]

    def parts(self, part: Part) -> list[Tensor]:
        """One part of every batch."""
        if part == "both":
            return [torch.cat(pair) for pair in zip(self.x, self.u, strict=True)]
        return list(self.x if part == "labeled" else self.u)

    def start(self, part: Part, number: int) -> int:
        """How many samples of a part are in the batches before this one."""
        before = zip(self.x[:number], self.u[:number], strict=True)
        return sum(len(x) * (part != "unlabeled") + len(u) * (part != "labeled") for x, u in before)


def batches(holder: Holder, labels_only: bool = False, once: bool = False, mixed: int = 0) -> Iterator[Batch]:
    """The batches of one visit, or of one epoch if `once`; the longer of labeled and unlabeled data makes an epoch.

    The shorter one is repeated. Both have their own random streams, so unlabeled data does not change which labeled
    samples are together. With `mixed`, labeled and unlabeled samples share batches of `train.batch`, and each labeled
    sample occurs `mixed` times. With `holder.sample_noise`, every sample is in every batch with the probability that
    `Rates` says, independent of all others, so batches differ in size and may be empty.
    """
    samples = holder.samples
    total = epoch_steps(holder, labels_only, mixed) if once else visit_steps(holder, labels_only, mixed)
    if not total:
        return
    most = BLOCK_BYTES // (4 * max(1, samples.x[0].numel()))
    drawn = (
        _rows(holder, labels_only, mixed)
        if holder.sample_noise is None
        else _independent_rows(holder, labels_only, holder.sample_noise)
    )
    device = holder.device
    x = samples.x.to(device) if samples.x.nbytes <= RESIDENT_BYTES else samples.x
    y = samples.y.to(device)
    for rows in _blocks(islice(drawn, total), most):
        row, index = (torch.cat(each).to(device, non_blocking=True) for each in zip(*rows, strict=True))
        sizes, sizes_u = ([len(row) for row in each] for each in zip(*rows, strict=True))
        labels, positions = y.index_select(0, row).split(sizes), index.split(sizes_u)
        block = Block(_taken(x, row, device).split(sizes), _taken(x, index, device).split(sizes_u))
        for number in range(len(rows)):
            yield Batch(block.x[number], labels[number], block.u[number], positions[number], block, number)


def _taken(x: Tensor, rows: Tensor, device: torch.device) -> Tensor:
    """These rows on the device, wherever all of them are."""
    return x.index_select(0, rows.to(x.device)).to(device, non_blocking=True)


def visit_steps(holder: Holder, labels_only: bool = False, mixed: int = 0) -> int:
    """How many batches a visit has by the settings; 0 if there is nothing to train on."""
    epoch = epoch_steps(holder, labels_only, mixed)
    return (holder.train.steps or epoch * holder.train.epochs) if epoch else 0


def epoch_steps(holder: Holder, labels_only: bool = False, mixed: int = 0) -> int:
    """How many batches make an epoch; 0 if there is nothing to train on."""
    train, labeled, unlabeled = holder.train, *_positions(holder, labels_only)
    if mixed:
        return ceil((mixed * len(labeled) + len(unlabeled)) / train.batch)
    return max(ceil(len(labeled) / train.batch), ceil(len(unlabeled) / (train.unlabeled_batch or train.batch)))


@dataclass(frozen=True)
class Rates:
    """With which probability a sample is in a batch that is drawn sample by sample, and how many it holds on average.

    The probability is the batch size over the number of samples, so that an epoch has as many steps as without.
    """

    labeled: float
    unlabeled: float
    expected_labeled: int
    expected_unlabeled: int

    @classmethod
    def of(cls, holder: Holder, labels_only: bool) -> "Rates":
        """The rates at a holder."""
        train, (labeled, unlabeled) = holder.train, map(len, _positions(holder, labels_only))
        b, b_u = min(train.batch, labeled), min(train.unlabeled_batch or train.batch, unlabeled)
        return cls(b / max(1, labeled), b_u / max(1, unlabeled), b, b_u)

    @property
    def expected(self) -> int:
        """Samples in a batch on average."""
        return self.expected_labeled + self.expected_unlabeled

    @property
    def largest(self) -> float:
        """The probability of the samples that are drawn more often."""
        return max(self.labeled, self.unlabeled)


def _independent_rows(holder: Holder, labels_only: bool, given: SampleNoise) -> Iterator[tuple[Tensor, Tensor]]:
    """Positions of labeled and of unlabeled samples, batch by batch, without end: Poisson sampling."""
    labeled, unlabeled = _positions(holder, labels_only)
    rates = Rates.of(holder, labels_only)
    stream, stream_u = (given.stream(holder, f"{part} sampling") for part in ("labeled", "unlabeled"))
    while True:
        row = labeled[draws.uniform(len(labeled), stream) < rates.labeled]
        yield row, unlabeled[draws.uniform(len(unlabeled), stream_u) < rates.unlabeled]


def _positions(holder: Holder, labels_only: bool) -> tuple[Tensor, Tensor]:
    """Positions of the labeled samples, and of the unlabeled ones that count."""
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


def _blocks(rows: Iterable[tuple[Tensor, Tensor]], most: int) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """Batches in groups of at most `most` samples, at least one batch each."""
    block, held = list[tuple[Tensor, Tensor]](), 0
    for row, row_u in rows:
        size = len(row) + len(row_u)
        if block and held + size > most:
            yield block
            block, held = [], 0
        block.append((row, row_u))
        held += size
    if block:
        yield block


def _endless(index: Tensor, size: int, stream: torch.Generator) -> Iterator[Tensor]:
    """Batches of positions without end, a new permutation for each pass; empty ones if there are no positions."""
    while True:
        order = index[torch.randperm(len(index), generator=stream)]
        yield from order.split(size)
