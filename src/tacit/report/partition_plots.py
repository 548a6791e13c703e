"""The data of each client as pictures: a heat map of clients and classes, and samples with their views.

All input is numpy arrays; matplotlib is slow to import, so it is imported where it draws.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tacit.report.client_table import Holdings
from tacit.report.plots import INK, STYLE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import QuadMesh
    from matplotlib.figure import Figure

Counts = NDArray[np.int64]
Images = NDArray[np.float32]  # (n, h, w, channels) between 0 and 1

BLUES = ("Blues", 0.15)  # darkness grows steadily, also in grey print; the start keeps 1 distinct from 0
PALE = "#8a919b"  # of zeros
LINE = "#dfe3e8"  # between cells
MAP_STYLE: dict[Any, Any] = STYLE | {
    "font.size": 9,
    "axes.spines.right": True,
    "axes.spines.top": True,
    "axes.linewidth": 0.6,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
}

SMALLEST = 6.0  # smallest font in points; cells with less room have no number
NUMBERED = 50  # up to this many clients, cells show their numbers
FEW = 20  # up to this many classes, maps are stacked; of more, they are side by side
LONGEST = 18  # characters of a class name at the map
NOTHING = 1e-12  # cells below it have no samples and stay white
TALLEST = 4.0  # height over width of the place for an image; a taller one is drawn smaller in it
VECTORS = 5000  # above this many cells, an SVG or PDF contains the map as pixels


@dataclass(frozen=True)
class Cell:
    """The size of one cell of a heat map, in inches."""

    width: float
    height: float

    @classmethod
    def fitting(cls, clients: int, classes: int, room: float) -> "Cell":
        """The largest size with which this many clients and classes fit a page; `room` is the width in inches."""
        few = 0.28 if clients <= NUMBERED else 0.2
        return cls(min(0.6, room / clients), few if classes <= FEW else min(0.14, 7 / classes))

    def font(self, most: int) -> float:
        """The font size in points at which numbers up to this one fit."""
        digits = len(str(most))
        return min(8.0, 0.85 * self.width * 72 / (0.6 * digits), 0.7 * self.height * 72)


@dataclass(frozen=True, eq=False)
class Panel:
    """One heat map: (clients, rows) samples and, in an extra column, the (rows,) labels of the server."""

    counts: Counts
    server: Counts | None
    rows: Sequence[str]
    unknown: bool  # the last row counts samples of unknown class and does not affect the scale

    @classmethod
    def of(cls, counts: Counts, server: Counts | None, rows: Sequence[str], unknown: bool) -> "Panel":
        """The panel of a table, which may lack the row of unknown class."""
        high = counts.shape[1]
        column = None if server is None else server[:high]
        return cls(counts, column, rows[:high], unknown and high == len(rows))

    @property
    def parts(self) -> list[Counts]:
        """(rows, columns) of each map, from left to right."""
        return [self.counts.T] if self.server is None else [self.counts.T, self.server[:, None]]

    @property
    def most(self) -> int:
        """The upper end of the color scale."""
        return max(1, *(int(part[: len(part) - self.unknown].max()) for part in self.parts))


def heat_map(
    counts: Mapping[str, Counts],
    rows: Sequence[str],
    server: Counts | None = None,
    title: str = "",
    *,
    unknown: bool = False,
) -> "Figure":
    """Clients from left to right, classes from top to bottom, as in MOON's Figure 5; darker is more samples.

    Each (clients, rows) table has a separate map and scale. The labels of the server, (rows,), are an extra column.
    With `unknown`, the last row counts samples of unknown class; a table may lack that row.
    """
    import matplotlib
    from matplotlib.figure import Figure

    panels = [Panel.of(table, server, rows, unknown) for table in counts.values()]
    clients = len(panels[0].counts)
    down = 1 if len(rows) > FEW else len(panels)  # tall maps are placed side by side
    across = len(panels) // down
    cell = Cell.fitting(clients, len(rows), 4.8 if across == 1 else 4.4 / across)
    ratios = [clients * cell.width] + [max(cell.width, 0.35)] * (server is not None)
    heights = [len(panel.rows) for panel in panels[:: len(panels) // down]]
    high = 0.6 + 0.16 * title.count("\n") + cell.height * sum(heights) + 0.7 * down
    size = (max(4.2, across * (sum(ratios) + 0.7) + 1.3), high)
    with matplotlib.rc_context(MAP_STYLE):
        picture = Figure(figsize=size, layout="constrained", facecolor="white")
        picture.suptitle(title, fontsize=10).set_parse_math(False)
        shares = {"width_ratios": ratios * across, "height_ratios": heights}
        grid = picture.subplots(down, across * len(ratios), squeeze=False, gridspec_kw=shares)
        for place, (name, panel) in enumerate(zip(counts, panels, strict=True)):
            axes = grid.reshape(-1, len(ratios))[place].tolist()
            _panel(picture, axes, panel, cell)
            for each in axes:
                each.set_ylim(heights[place // across] - 0.5, -0.5)  # align the rows of maps that are side by side
            _ticks(axes, panel, cell, first=place % across == 0, last=place >= len(panels) - across)
            axes[0].set_title(name if len(panels) > 1 else "", loc="left", fontsize=9)
    return picture


def partition_map(held: Holdings, server: Counts, title: str) -> "Figure":
    """The samples of each client and class and, if only some are labeled, a second map of the labeled ones.

    If their number is the same everywhere, a line below the title replaces that map. `server`: its labels, (classes,).
    """
    width, labeled = len(held.names), held.labeled[:, :-1]
    panels, note = {"all samples": held.all[:, :width]}, ""
    if held.mixed and (labeled == labeled[0, 0]).all():
        number = int(labeled[0, 0])
        note = f"\n{number:,} labeled sample{'s' * (number != 1)} of every class at every client"
    elif held.mixed:
        panels["labeled samples"] = labeled
    column = np.pad(server, (0, width - len(server))) if server.any() else None
    return heat_map(panels, held.names, column, f"{title}{note}", unknown=held.unknown)


def sample_grid(rows: Sequence[tuple[str, Images]], names: Sequence[str], title: str = "") -> "Figure":
    """A row of images for each view, a column for each sample, with the name of its class below."""
    import matplotlib
    from matplotlib.figure import Figure

    _, high, wide, _ = rows[0][1].shape
    tall = min(high / wide, TALLEST)
    side = min(1.0, 6.2 / len(names))
    longest = max(len(word) for name in names for word in name.replace("_", " ").split() or [name])
    font, letters = (9, 14) if longest <= round(side * 14) else (7.5, 17)  # a smaller font rather than a broken word
    below = [_wrapped(name, round(side * letters)) for name in names]
    lines = 1 + max(name.count("\n") for name in below)
    size = (side * len(names) + 0.7, side * tall * len(rows) + 0.5 + 0.15 * lines)
    with matplotlib.rc_context(MAP_STYLE):
        picture = Figure(figsize=size, layout="constrained", facecolor="white")
        picture.get_layout_engine().set(w_pad=0.02, h_pad=0.02, wspace=0.02, hspace=0.02)  # type: ignore[union-attr,call-arg]
        picture.suptitle(title, fontsize=10).set_parse_math(False)
        grid = picture.subplots(len(rows), len(names), squeeze=False)
        for line, (view, images) in zip(grid, rows, strict=True):
            line[0].set_ylabel(view)
            for axes, image in zip(line, images, strict=True):
                _image(axes, image)
        for axes, name in zip(grid[-1], below, strict=True):
            axes.set_xlabel(name, fontsize=font)
            axes.xaxis.label.set_parse_math(False)
    return picture


def shortened(name: str, most: int) -> str:
    """A name cut to at most `most` characters."""
    return name if len(name) <= most else name[: most - 1] + "…"


def _panel(picture: "Figure", row: list["Axes"], panel: Panel, cell: Cell) -> None:
    """One map, the server's column next to it, and the scale of both."""
    from matplotlib.ticker import MaxNLocator

    font = cell.font(max(int(part.max()) for part in panel.parts))
    for axes, part in zip(row, panel.parts, strict=True):
        mesh = _map(axes, part, panel.most, lines=min(cell.width, cell.height) > 0.08)
        if len(panel.counts) <= NUMBERED and font >= SMALLEST:
            _numbers(axes, part, panel.most, font)
    ticks = MaxNLocator(6, integer=True, steps=[1, 2, 5, 10])
    aspect = cell.height * len(panel.rows) / 0.13
    more = "max" if panel.counts.max() > panel.most else "neither"
    picture.colorbar(mesh, ax=row, label="samples", pad=0.02, aspect=aspect, ticks=ticks, extend=more)


def _map(axes: "Axes", values: Counts, most: int, *, lines: bool) -> "QuadMesh":
    """(classes, clients) as colored cells."""
    from matplotlib import colormaps
    from matplotlib.colors import ListedColormap

    high, wide = values.shape
    name, start = BLUES
    colors = ListedColormap(colormaps[name](np.linspace(start, 1, 256))).with_extremes(under="white")
    return axes.pcolormesh(
        np.arange(wide + 1) - 0.5,
        np.arange(high + 1) - 0.5,
        values,
        cmap=colors,
        vmin=NOTHING,
        vmax=most,
        rasterized=values.size > VECTORS,
        edgecolors=LINE if lines else "none",
        linewidth=0.5,
    )


def _numbers(axes: "Axes", values: Counts, most: int, font: float) -> None:
    for (row, column), value in np.ndenumerate(values):
        color = PALE if value == 0 else "white" if value > 0.6 * most else INK
        axes.text(column, row, str(value), ha="center", va="center", fontsize=font, color=color)


def _ticks(row: list["Axes"], panel: Panel, cell: Cell, *, first: bool, last: bool) -> None:
    """The names of clients and classes, or of some of them if not all fit."""
    from matplotlib.ticker import MaxNLocator

    clients, classes = len(panel.counts), len(panel.rows)
    if cell.width >= 0.18:
        row[0].set_xticks(range(clients))
    else:
        some = max(4, round(2.2 * clients * cell.width))
        row[0].xaxis.set_major_locator(MaxNLocator(some, integer=True, steps=[1, 2, 5, 10]))
    row[0].set_xlabel("client" if last else "")
    high = cell.height * 72  # points
    places = range(0, classes, ceil(7.5 / high)) if first else range(0)
    row[0].set_yticks(places, [shortened(panel.rows[place], LONGEST) for place in places])
    for text in row[0].get_yticklabels():
        text.set_parse_math(False)  # a name may contain a dollar sign
        text.set_fontsize(min(9, max(6.5, 0.75 * high)))
    for axes in row[1:]:
        axes.set(xticks=[0], xticklabels=["server"], yticks=[])


def _image(axes: "Axes", image: Images) -> None:
    """Show three or more channels as colors, otherwise the first one in grey."""
    shown = image[..., :3] if image.shape[-1] >= 3 else image[..., 0]
    axes.imshow(shown, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    axes.set(xticks=[], yticks=[])


def _wrapped(name: str, width: int) -> str:
    """A name on at most two lines."""
    lines = wrap(name.replace("_", " "), width) or [name]
    return "\n".join(shortened(line, width) for line in lines[:2])
