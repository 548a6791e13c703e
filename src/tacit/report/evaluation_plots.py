"""Pictures of an evaluation: recall and precision per class, reliability, and accuracy over groups."""

from typing import TYPE_CHECKING

from tacit.metrics.evaluation import ClassScores, Evaluation
from tacit.report.client_table import visible
from tacit.report.partition_plots import shortened
from tacit.report.plots import COLORS, INK, STYLE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST = 25  # bars in a picture; of more, the worst are shown
NAME = 18  # characters of a name


def classes(found: Evaluation) -> "Figure":
    """Recall of each class as a bar with its interval, and precision as a point."""
    shown = worst_classes(found)
    figure, axes = _picture(3.8, 0.9 + 0.24 * len(shown))
    places = range(len(shown))
    recall = [100 * each.recall.value for each in shown]
    axes.barh(places, recall, color=COLORS[0], alpha=0.75, height=0.62, label="recall, 95 %")
    low = [100 * max(0.0, each.recall.value - each.recall.low) for each in shown]
    high = [100 * max(0.0, each.recall.high - each.recall.value) for each in shown]
    axes.errorbar(recall, places, xerr=[low, high], fmt="none", ecolor=INK, elinewidth=1, capsize=2)
    axes.plot([100 * each.precision.value for each in shown], places, "D", color=COLORS[1], ms=5, label="precision")
    _names(axes, [each.name for each in shown])
    _percent(axes)
    figure.legend(loc="outside upper left", ncols=2, frameon=False, fontsize=9, labelcolor=INK)
    return figure


def worst_classes(found: Evaluation) -> list[ClassScores]:
    """The classes with samples, in their order; of many, those with the lowest recall."""
    known = [each for each in found.per_class if each.count]
    if len(known) <= MOST:
        return known
    return sorted(known, key=lambda each: each.recall.value)[:MOST]


def reliability(found: Evaluation) -> "Figure":
    """Accuracy against confidence: on the diagonal, 80 % sure means right in 80 % of the cases."""
    figure, axes = _picture(3.8, 3.4)
    axes.plot([0, 100], [0, 100], color=INK, alpha=0.4, linewidth=1, linestyle=(0, (4, 3)))
    x = [100 * bin.confidence for bin in found.reliability]
    y = [100 * bin.accuracy for bin in found.reliability]
    sizes = [12 + 260 * bin.count / found.count for bin in found.reliability]
    axes.plot(x, y, color=COLORS[0], linewidth=1.6)
    axes.scatter(x, y, s=sizes, color=COLORS[0], alpha=0.75, linewidths=0)
    axes.set(xlabel="confidence (%)", ylabel="accuracy (%)", xlim=(0, 103), ylim=(0, 103))
    axes.grid(color=INK, alpha=0.12, linewidth=0.8)
    return figure


def groups(found: Evaluation) -> "Figure":
    """The accuracy of each group, the worst at the top; of many, the worst ones."""
    ordered = sorted(found.groups, key=lambda group: group.scores["accuracy"])[:MOST]
    figure, axes = _picture(3.8, 0.7 + 0.24 * len(ordered))
    axes.barh(range(len(ordered)), [100 * group.scores["accuracy"] for group in ordered], color=COLORS[2], alpha=0.75)
    axes.axvline(100 * found.accuracy, color=INK, linewidth=1, linestyle=(0, (4, 3)))
    _names(axes, [f"{found.group_word} {group.name} ({group.count:,})" for group in ordered])
    _percent(axes)
    return figure


def _picture(width: float, height: float) -> "tuple[Figure, Axes]":
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained", facecolor="white")
        return figure, figure.subplots()


def _names(axes: "Axes", names: list[str]) -> None:
    """Names down the left side, the first at the top."""
    axes.set_yticks(range(len(names)), [shortened(visible(name), NAME) for name in names])
    for text in axes.get_yticklabels():
        text.set_parse_math(False)  # a name may contain a dollar sign
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0)


def _percent(axes: "Axes") -> None:
    axes.set(xlim=(0, 100), xlabel="%")
    axes.grid(axis="x", color=INK, alpha=0.15, linewidth=0.8)
