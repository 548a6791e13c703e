"""Which samples to label next: those the model is least sure of, and among these some that differ from each other."""

import heapq
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

from tacit.errors import TacitError
from tacit.inference.model import Model
from tacit.inference.output import rows_of
from tacit.inference.samples import BLOCK, Block

CANDIDATES = 10  # uncertain samples that are considered for each one to choose, at most
UNCERTAIN = 0.5  # largest margin of a sample that variety may prefer to a more uncertain one


def choose(table: Path, blocks: Iterable[Block], model: Model, count: int) -> list[dict[str, str]]:
    """The rows of a table of these samples that are worth labeling, the most uncertain first."""
    rows = ((float(row["margin"]), place, row) for place, row in enumerate(rows_of(table)) if row["margin"])
    found = candidates(heapq.nsmallest(count * CANDIDATES, rows, key=lambda item: item[:2]), count)
    order = {place: rank for rank, (_, place, _) in enumerate(found)}
    features = _features(blocks, model, order)
    chosen = spread([features[rank] for rank in range(len(found))], count) if found else []
    return [found[rank][2] for rank in chosen]


def candidates(ranked: list[tuple[float, int, dict[str, str]]], count: int) -> list[tuple[float, int, dict[str, str]]]:
    """The uncertain ones of these, the most uncertain first; more certain ones only as far as there are too few."""
    return [item for rank, item in enumerate(ranked) if rank < count or item[0] <= UNCERTAIN]


def spread(features: list[Tensor], count: int) -> list[int]:
    """k-center by farthest-first traversal: the first, then always the one farthest from all chosen; ascending."""
    points = torch.stack(features).double()
    distance = torch.full((len(points),), torch.inf, dtype=torch.float64)
    chosen = [0]
    while len(chosen) < min(count, len(points)):
        distance = distance.minimum((points - points[chosen[-1]]).square().sum(dim=1))
        distance[chosen] = -1.0  # so that equal samples are not chosen twice
        chosen.append(int(distance.argmax()))
    return sorted(chosen)


def _features(blocks: Iterable[Block], model: Model, order: dict[int, int]) -> dict[int, Tensor]:
    """The features of the samples at the positions in `order`, by their ranks there."""
    found: dict[int, Tensor] = {}
    ranks: list[int] = []
    samples: list[Tensor] = []

    def flush() -> None:
        if samples:
            found.update(zip(ranks, model.features(torch.cat(samples)), strict=True))
        ranks.clear()
        samples.clear()

    place = 0
    for block in blocks:
        for item in block.items:
            if place in order:
                ranks.append(order[place])
                samples.append(_read(model, item))
            place += 1
        if len(samples) >= BLOCK:
            flush()
    flush()
    return found


def _read(model: Model, item: object) -> Tensor:
    try:
        return model.reader.item(item)[0]
    except TacitError as error:
        problem = f"a sample changed while it was predicted: {error.problem}"
        raise TacitError(problem, "run the command again", code="predict.sample-changed") from error
