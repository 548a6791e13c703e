"""Every plot of some runs as a separate file."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tacit.errors import unknown
from tacit.report import charts, plots
from tacit.report.history import Run, by_group, by_label, evaluated

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = tuple(plots.UNDATED)


def check(form: str) -> None:
    """Refuse an unknown file format before anything is drawn."""
    if form not in FORMATS:
        raise unknown("format", form, FORMATS)


def write(runs: Sequence[Run], folder: Path, form: str) -> list[Path]:
    """Write every plot to a folder, as PNG, SVG or PDF; the paths written."""
    check(form)
    runs = evaluated(runs)
    written, labels = [], list(by_label(runs))
    for group, some in by_group(runs).items():
        for name, figure in _figures(some, labels):
            path = folder / f"{_plain(f'{group}-{name}' if group else name)}.{form}"
            plots.save(figure, path)
            written.append(path)
    return written


def _figures(runs: Sequence[Run], labels: Sequence[str]) -> "Iterator[tuple[str, Figure]]":
    from tacit.report import splits

    yield from ((chart.name, plots.draw(chart.among(labels))) for chart in charts.every(runs))
    for number, partition in enumerate(splits.distinct(runs), start=1):
        yield ("partition" if number == 1 else f"partition-{number}"), partition.figure()


def _plain(name: str) -> str:
    return re.sub(r"[^\w.+-]+", "-", name)
