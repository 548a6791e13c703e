"""Folds for cross-validation: each part of the labels is the test set of a run that does not learn from it."""

from dataclasses import replace

import torch
from torch import Tensor

from tacit.data.gather import without
from tacit.data.sources.arrays import Source
from tacit.errors import TacitError
from tacit.federation import Federation, Samples
from tacit.random import Streams


def with_all_labels(source: Source) -> Source:
    """The source without a test set, if its reader had to make one from the labels: all of them are for training."""
    if not source.held_out:
        return source
    groups = source.groups
    if groups is not None and source.test_groups is not None:
        groups = torch.cat([groups, int(groups.max()) + 1 + source.test_groups])
    return replace(
        source,
        x=torch.cat([source.x, source.x_test]),
        y=torch.cat([source.y, source.y_test]),
        x_test=source.x_test[:0],
        y_test=source.y_test[:0],
        groups=groups,
        held_out=False,
        test_groups=None,
    )


def without_fold(federation: Federation, folds: int, fold: int, streams: Streams) -> Federation:
    """The federation that does not learn from one part of the labels, and has it as test set."""
    labeled = _labels(federation)
    held = labeled.take(rows := _rows_of(labeled, folds, fold, streams))
    gone = torch.zeros(len(federation.pool), dtype=torch.bool)
    if held.group is not None and federation.pool.group is not None:
        gone = torch.isin(federation.pool.group, held.group)
    if len(federation.server.labeled):
        kept = torch.ones(len(labeled), dtype=torch.bool)
        kept[rows] = False
        server = replace(federation.server, labeled=labeled.take(kept.nonzero().reshape(-1)))
        return replace(without(federation, gone), server=server, test=held)
    gone[federation.pool.labeled[rows]] = True
    return replace(without(federation, gone), test=held)


def _labels(federation: Federation) -> Samples:
    """The labels that a federation learns from: the server's or, if it has none, the clients'."""
    server = federation.server.labeled
    return server if len(server) else federation.pool.take(federation.pool.labeled)


def _rows_of(labeled: Samples, folds: int, fold: int, streams: Streams) -> Tensor:
    """The labels of a fold. Every class is dealt in turn; the samples of a group stay together."""
    order = torch.randperm(len(labeled), generator=streams.at("folds"))
    order = order[labeled.y[order].sort(stable=True).indices]
    rows = order[labeled.folds(order, folds) == fold].sort().values
    if not len(rows):
        raise TacitError(
            f"there are too few labels, or groups of them, for {folds} folds",
            "lower data.folds",
            code="data.too-many-folds",
        )
    return rows
