"""Curves as pictures: characters for a terminal, matplotlib figures for files and pages.

Both drawing packages are slow to import, so each is imported where it draws.
"""

import io
import math
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len, set_cell_size

from tacit.errors import TacitError
from tacit.report import curves
from tacit.report.charts import Chart, accuracy
from tacit.report.curves import ROUNDS, Curve
from tacit.report.history import Run
from tacit.storage import replacing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# The colors of Okabe and Ito, which are distinct for every kind of color vision, without yellow, invisible on white
# paper, and black, invisible on a dark screen; the nearest of a terminal's 256 colors; and marks and dashes.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
TERMINAL_COLORS = (32, 166, 36, 175, 214, 74)
MARKS = "ox+*#@%&=sv~"
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (6, 1, 1, 1)), (0, (9, 2)))

INK = "#1b1e23"  # of text and axes only, so that it can be replaced in an SVG
STYLE: dict[Any, Any] = {
    "font.size": 10,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}
# Text in an SVG stays text, and the same runs always give the same bytes.
SVG: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": "tacit"}
NAMES = re.compile(r"""( id="|url\(#|href="#)([^")]+)""")
UNDATED = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}


def terminal_curve(runs: Sequence[Run], width: int, height: int, *, color: bool) -> str:
    """Accuracy against rounds in `height` lines of `width` characters, legend included."""
    import plotext

    found = curves.accuracy(runs)
    legend = _legend(found, width, color)
    plotext.terminal.limit(False, False)  # otherwise plotext shrinks the plot to the terminal size it detects
    plot = plotext.figure.clear().theme("colorless").plot_size(width, height - len(legend))
    for index, curve in enumerate(found):
        ink = plotext.pixel(foreground=TERMINAL_COLORS[index % len(TERMINAL_COLORS)])
        marker = plotext.marker("hd" if color else MARKS[index % len(MARKS)], ink)
        plot.draw(plot.signal(curve.x, curve.mean, marker=marker).lines())
    rounds, means = [n for curve in found for n in curve.x], [value for curve in found for value in curve.mean]
    for axis, values, intervals in (("x", rounds, 8), ("y", means, 5)):
        low, high, ticks = _scale(values, intervals)
        plot.ruler(axis).lim(low, high).ticks(ticks, [str(tick) for tick in ticks])
    plot.axes(False, side=1).title("accuracy (%) after each round")
    lines = str(plot.build().string(colorless=not color)).rstrip("\n").split("\n")
    return "\n".join(lines + legend)


def _scale(values: Sequence[float], intervals: int) -> tuple[int, int, list[int]]:
    """Whole numbers below and above all values, and round numbers in between for the ticks."""
    high = math.ceil(max(values))
    low = min(math.floor(min(values)), high - 1)
    steps = (digit * 10**power for power in count() for digit in (1, 2, 5))
    step = next(step for step in steps if (high - low) / step <= intervals)
    return low, high, list(range(math.ceil(low / step) * step, high + 1, step))


def _legend(found: Sequence[Curve], width: int, color: bool) -> list[str]:
    """As many entries per line as fit; a label wider than a line is cut."""
    lines: list[str] = []
    room = 0
    for index, curve in enumerate(found):
        label = curve.label if cell_len(curve.label) <= width - 4 else set_cell_size(curve.label, width - 5) + "…"
        entry = f"{_sample(index, color)} {label}"
        if cell_len(label) + 6 <= room:
            lines[-1] += f"   {entry}"
            room -= cell_len(label) + 6
        else:
            lines.append(f" {entry}")
            room = width - cell_len(label) - 4
    return lines


def _sample(index: int, color: bool) -> str:
    if not color:
        return MARKS[index % len(MARKS)] * 2
    return f"\x1b[38;5;{TERMINAL_COLORS[index % len(TERMINAL_COLORS)]}m━━\x1b[0m"


def figure(runs: Sequence[Run]) -> "Figure":
    """Accuracy against rounds on white: the mean of each label's seeds, with a band from minimum to maximum."""
    return draw(accuracy(runs))


def draw(chart: Chart, width: float = 5, *, legend: bool = True) -> "Figure":
    """A chart on white: lines with their bands, and the legend above them, unless another chart has it."""
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    _, unit = chart.axis.unit(chart.curves)
    height = 2.7 + 0.21 * len(chart.curves) * legend
    with matplotlib.rc_context(STYLE):
        picture = Figure(figsize=(width, height), layout="constrained", facecolor="white")
        axes = picture.subplots()
        axes.set(xlabel=chart.x_label, ylabel=f"{chart.quantity} ({chart.unit})")
        axes.margins(x=0.02)
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=chart.axis is ROUNDS, steps=[1, 2, 5, 10]))
        axes.grid(axis="y", color=INK, alpha=0.15, linewidth=0.8)
        for curve in chart.curves:
            index = chart.labels.index(curve.label)
            ink, dash = COLORS[index % len(COLORS)], DASHES[index % len(DASHES)]
            x = [value / unit for value in curve.x]
            axes.fill_between(x, curve.low, curve.high, color=ink, alpha=0.2, linewidth=0)
            dot = "o" if len(x) == 1 else None  # a single point is not a line
            axes.plot(x, curve.mean, color=ink, linestyle=dash, linewidth=2, marker=dot)
        if legend:
            _draw_legend(picture, chart.curves)
    return picture


def _draw_legend(picture: "Figure", found: Sequence[Curve]) -> None:
    """Draw the legend above the axes, where it covers nothing; the curve that ends highest comes first."""
    order = sorted(range(len(found)), key=lambda index: -found[index].mean[-1])
    lines, labels = picture.axes[0].lines, [found[index].label for index in order]
    legend = picture.legend(
        [lines[index] for index in order], labels, loc="outside upper left", frameon=False, handlelength=2.6
    )
    for text in legend.get_texts():
        text.set_parse_math(False)  # a label may contain a dollar sign


def save(figure: "Figure", path: Path) -> None:
    """Write a figure as PNG, SVG or PDF, by the ending of its name."""
    import matplotlib

    form = path.suffix.lower().removeprefix(".")
    if form not in UNDATED:
        raise TacitError(
            f"cannot write {path.name} as a picture",
            "use a name that ends in .png, .svg or .pdf",
            code="report.picture-format",
        )
    with replacing(path) as partial, matplotlib.rc_context(SVG), _ignoring_missing_glyphs():
        figure.savefig(partial, format=form, dpi=200, metadata=UNDATED[form])


@contextmanager
def _ignoring_missing_glyphs() -> Iterator[None]:
    """Suppress the warnings for characters the font lacks, which are drawn as boxes."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph \d+ .*missing from", UserWarning)
        yield


def inline_svg(figure: "Figure", mark: str = "") -> str:
    """An `<svg>` element without background, with text and axes in the color of the surrounding text.

    All its ids begin with `mark`, which must be unique on a page.
    """
    import matplotlib

    buffer = io.StringIO()
    with matplotlib.rc_context(SVG), _ignoring_missing_glyphs():
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(buffer, format="svg", transparent=True, metadata=nothing)
    text = buffer.getvalue()
    named = NAMES.sub(lambda found: f"{found[1]}{mark}{found[2]}", text[text.index("<svg") :])
    return named.replace(INK, "currentColor")
