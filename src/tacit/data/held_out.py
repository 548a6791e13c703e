"""Labels that clients hold out: they do not train on them, and count which of them a model gets right."""

from dataclasses import replace

import torch
from torch import Tensor

from tacit.data.gather import without
from tacit.federation import UNLABELED, Federation, Parts
from tacit.random import Streams


def with_hold_out(federation: Federation, share: float, streams: Streams) -> Federation:
    """The federation whose clients hold out this share of their labels, drawn class by class, the same every time.

    Of samples with groups, whole groups are held out, and their other samples are left out.
    """
    parts = Parts(federation.order, federation.starts)
    held, gone = list[Tensor](), torch.zeros(len(federation.pool), dtype=torch.bool)
    for client in range(federation.clients):
        rows = _drawn(federation, parts.of(client), share, streams, client)
        held.append(rows)
        gone[rows] = True
        if federation.pool.group is not None:
            gone |= torch.isin(federation.pool.group, federation.pool.group[rows])
    starts = torch.tensor([0, *(len(rows) for rows in held)]).cumsum(0)
    return replace(without(federation, gone), held_out=Parts(torch.cat([federation.order[:0], *held]), starts))


def _drawn(federation: Federation, owned: Tensor, share: float, streams: Streams, client: int) -> Tensor:
    """The positions of the labels that a client holds out; none if it would have no other label."""
    pool = federation.pool
    labeled = owned[pool.y[owned] != UNLABELED]
    if not len(labeled):
        return labeled
    order = labeled[torch.randperm(len(labeled), generator=streams.at("held out", client=client))]
    order = order[pool.y[order].sort(stable=True).indices]
    place = torch.arange(len(order) + 1)
    rows = order[(place * share + 1e-9).floor().diff() > 0]  # spread over the classes, a share of them in all
    if pool.group is not None:
        rows = labeled[torch.isin(pool.group[labeled], pool.group[rows])]
    return rows.sort().values if len(rows) < len(labeled) else labeled[:0]
