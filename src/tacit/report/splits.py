"""The data of each client in a run, from its split.json. Needs numpy, so it is imported where it is used."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tacit.errors import TacitError
from tacit.formatting import format_range
from tacit.report import partition_plots
from tacit.report.client_table import Holdings, headings
from tacit.report.history import Run
from tacit.report.partition_plots import Counts

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST = 10**12  # samples of a class at a client


@dataclass(frozen=True, eq=False)
class Partition:
    """A partition of the data over the clients, and the runs that use it."""

    holdings: Holdings
    server: Counts  # (classes,) labels of the server
    heterogeneity: float  # R
    runs: list[Run]

    @property
    def title(self) -> str:
        """The data set and the partition scheme."""
        data = self.runs[0].data
        name = partition_plots.shortened(Path(str(data.get("name", "data"))).name, 30)
        scheme = f", {data['partition']}" if "partition" in data else ""
        return f"{name}{scheme}, {len(self.holdings.labeled):,} clients, R = {self.heterogeneity:.2f}"

    @property
    def alt_text(self) -> str:
        """The heat map in words, for screen readers."""
        held = self.holdings
        labels, classes = held.labeled.sum(axis=1), (held.all[:, :-1] > 0).sum(axis=1)
        return (
            f"Heat map of {len(held.labeled):,} clients and {len(held.classes):,} classes. A client holds "
            f"{format_range(held.all.sum(axis=1))} samples of {format_range(classes)} classes, "
            f"{format_range(labels)} of them labeled. The server has {self.server.sum():,} labels."
        )

    def figure(self) -> "Figure":
        """The heat map."""
        return partition_plots.partition_map(self.holdings, self.server, self.title)


def distinct(runs: Iterable[Run]) -> list[Partition]:
    """Each distinct partition of these runs; runs without a recorded one are left out."""
    found: dict[str, Partition] = {}
    for run in runs:
        recorded = _recorded(run)
        if recorded is None:
            continue
        key, partition = recorded
        if key in found:
            found[key].runs.append(run)
        else:
            found[key] = partition
    return list(found.values())


def _recorded(run: Run) -> tuple[str, Partition] | None:
    """The hash and counts of a run's split; None if there are no counts, as with real sites and early versions."""
    try:
        split = run.directory.split()
        counts = split["counts"]
        tables = [np.array(counts[name], dtype=np.int64) for name in ("labeled", "unlabeled", "server")]
        labeled, unlabeled, server = tables
        classes = [str(name) for name in counts["classes"]]
        whole = labeled.shape == unlabeled.shape and labeled.shape[1:] == (len(classes) + 1,) and len(classes) > 0
        counted = all(((table >= 0) & (table <= MOST)).all() for table in tables) and server.shape == (len(classes),)
        heterogeneity = float(counts["heterogeneity"])
        if not (whole and counted and isfinite(heterogeneity)) or not (labeled.any() or unlabeled.any()):
            return None
        holdings = Holdings(labeled, unlabeled, headings(classes, [*map(str, counts.get("unknown", ()))]))
        return str(split["hash"]), Partition(holdings, server, heterogeneity, [run])
    except (TacitError, ValueError, KeyError, TypeError, OverflowError):
        return None
