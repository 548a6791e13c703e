"""Who holds what in a run, from its split.json. Needs numpy, so it is imported where it is used."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tacit.report import federation
from tacit.report.federation import Counts
from tacit.report.holdings import Holdings
from tacit.report.read import Run
from tacit.report.units import span

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False)
class Dealt:
    """A way the data is dealt, and the runs that have it."""

    held: Holdings
    server: Counts  # (classes,) labels of the server
    heterogeneity: float  # R
    runs: list[Run]

    @property
    def title(self) -> str:
        """The data and how it is dealt."""
        data = self.runs[0].data
        name = federation.shortened(Path(str(data.get("name", "data"))).name, 30)
        how = f", {data['partition']}" if "partition" in data else ""
        return f"{name}{how}, {len(self.held.labeled):,} clients, R = {self.heterogeneity:.2f}"

    @property
    def spoken(self) -> str:
        """The heat map for who does not see it."""
        held = self.held
        labels, classes = held.labeled.sum(axis=1), (held.all[:, :-1] > 0).sum(axis=1)
        return (
            f"Heat map of {len(held.labeled):,} clients and {len(held.classes):,} classes. A client holds "
            f"{span(held.all.sum(axis=1))} samples of {span(classes)} classes, {span(labels)} of them labeled. "
            f"The server has {self.server.sum():,} labels."
        )

    def figure(self) -> "Figure":
        """The heat map."""
        return federation.dealt(self.held, self.server, self.title)


def distinct(runs: Iterable[Run]) -> list[Dealt]:
    """Each way the data of these runs is dealt, once; runs that did not write it down are left out."""
    found: dict[str, Dealt] = {}
    for run in runs:
        about = _about(run)
        if about is None:
            continue
        key, dealt = about
        if key in found:
            found[key].runs.append(run)
        else:
            found[key] = dealt
    return list(found.values())


def _about(run: Run) -> tuple[str, Dealt] | None:
    """The hash of the split and what is counted there; None where nothing is: by earlier versions, of others' sites."""
    try:
        about = json.loads((run.folder / "split.json").read_text(encoding="utf-8"))
        counts = about["counts"]
        tables = [np.array(counts[name], dtype=np.int64) for name in ("labeled", "unlabeled", "server")]
        labeled, unlabeled, server = tables
        classes = [str(name) for name in counts["classes"]]
        whole = labeled.shape == unlabeled.shape and labeled.shape[1:] == (len(classes) + 1,)
        if not whole or not (labeled.any() or unlabeled.any()):
            return None
        dealt = Dealt(Holdings(labeled, unlabeled, classes), server, float(counts["heterogeneity"]), [run])
        return str(about["hash"]), dealt
    except (OSError, ValueError, KeyError, TypeError):
        return None
