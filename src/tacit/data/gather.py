"""Bring samples of clients to one place, for the bounds that a simulation can compute."""

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from tacit.data.sources.arrays import groups_to_hold_out
from tacit.federation import UNLABELED, Federation, Samples
from tacit.random import Streams

FOLDS = 5  # one of these parts of the labels is held out, if there are no validation samples


def gathered(federation: Federation, what: Literal["labels", "unlabeled", "everything"]) -> Federation:
    """The federation whose server also holds the clients' samples.

    Those with a label, all of them, or all of them with their true labels; those of unknown classes then have none.
    """
    held, pool = federation.order.unique(), federation.pool
    y = pool.y if what != "everything" or federation.truth is None else federation.truth
    if what != "unlabeled":
        held = held[(y[held] != UNLABELED) & (y[held] < len(federation.classes))]
    own = federation.server.labeled
    x, labels = pool.x.index_select(0, held), y.index_select(0, held)
    group = (
        None if own.group is None or pool.group is None else torch.cat([own.group, pool.group.index_select(0, held)])
    )
    all_of_them = Samples(torch.cat([own.x, x]), torch.cat([own.y, labels]), group)
    return replace(federation, server=replace(federation.server, labeled=all_of_them))


def with_validation(federation: Federation, streams: Streams) -> Federation:
    """The federation, with a fifth of the server's labels held out for validation if it has no such samples.

    The fifth is drawn class by class, and is at least one sample of every class that has two. Of samples with groups,
    whole groups are held out, and their other samples are left out at the server and at clients.
    """
    labeled = federation.server.labeled
    if len(federation.server.validation) or not len(labeled.labeled):
        return federation
    if labeled.group is not None:
        return _with_groups_held_out(federation, labeled.group, streams)
    held_out = torch.zeros(len(labeled), dtype=torch.bool)
    for number in labeled.y[labeled.labeled].unique().tolist():
        rows = (labeled.y == number).nonzero().reshape(-1)
        count = max(len(rows) // FOLDS, int(len(rows) > 1))
        held_out[rows[torch.randperm(len(rows), generator=streams.at(f"held out {number}"))[:count]]] = True
    kept, out = (rows.nonzero().reshape(-1) for rows in (~held_out, held_out))
    return replace(
        federation, server=replace(federation.server, labeled=labeled.take(kept), validation=labeled.take(out))
    )


def _with_groups_held_out(federation: Federation, group: Tensor, streams: Streams) -> Federation:
    labeled, pool = federation.server.labeled, federation.pool
    held = torch.from_numpy(groups_to_hold_out(labeled.y.numpy(), group.numpy(), streams.numpy_at("held out groups")))
    chosen = held.nonzero().reshape(-1)
    outside = torch.isin(group, chosen)
    validation = labeled.take((outside & (labeled.y != UNLABELED)).nonzero().reshape(-1))
    server = replace(federation.server, labeled=labeled.take((~outside).nonzero().reshape(-1)), validation=validation)
    alone = replace(federation, server=server)
    return alone if pool.group is None else without(alone, torch.isin(pool.group, chosen))


def without(federation: Federation, gone: Tensor) -> Federation:
    """The federation whose clients do not have the samples of the pool that `gone` (n,) names."""
    stays = ~gone[federation.order]
    before = torch.cat([torch.zeros(1, dtype=torch.int64), stays.cumsum(0)])  # of each place, how many stay before it
    return replace(federation, order=federation.order[stays], starts=before[federation.starts])
