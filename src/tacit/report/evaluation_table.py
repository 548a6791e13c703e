"""An evaluation as tables for a terminal of 80 columns."""

import math
from collections.abc import Iterator

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tacit.metrics.evaluation import Estimate, Evaluation, Spread
from tacit.metrics.scores import ABOUT
from tacit.report.client_table import visible

MATRIX = 12  # classes up to which the confusion matrix fits
CONFUSIONS = 8  # of the most frequent mistakes, how many are listed if the matrix does not fit
UNDEFINED = "–"


def to_rich(found: Evaluation) -> RenderableType:
    """All tables of an evaluation, one below the other."""
    return Group(*_parts(found))


def _parts(found: Evaluation) -> Iterator[RenderableType]:
    yield Text(headline(found), "bold")
    yield Text("")
    yield _scores(found)
    yield Text(intervals_note(found), "dim")
    yield Text("")
    yield _classes(found)
    yield Text("")
    yield from _mistakes(found)
    if (spread := found.spread()) is not None:
        yield Text("")
        yield Text(spread_sentence(found, spread))


def headline(found: Evaluation) -> str:
    """Which samples, how many, and what guessing would give."""
    guess = f"always answering {_largest(found)} would give {100 * found.majority:.1f} %"
    return f"{found.about}: {found.count:,} samples, {len(found.classes):,} classes; {guess}"


def _largest(found: Evaluation) -> str:
    return visible(max(found.per_class, key=lambda each: each.count).name)


def score_title(name: str, found: Evaluation) -> str:
    """What a score is called; sensitivity names its class."""
    about = f" ({visible(found.positive)})" if name == "sensitivity" and found.positive else ""
    return ABOUT[name].title + about


def score_text(name: str, value: float) -> str:
    """`72.0 %`, in which no line breaks, or `0.512` for a score that is not a share."""
    if not math.isfinite(value):
        return UNDEFINED
    return f"{100 * value:.1f}\u00a0%" if ABOUT[name].share else f"{value:.3f}"


def interval_text(name: str, found: Estimate) -> str:
    """`67.5 – 76.3`; empty without an interval."""
    if not math.isfinite(found.low):
        return ""
    factor, form = (100, ".1f") if ABOUT[name].share else (1, ".3f")
    return f"{found.low * factor:{form}} – {found.high * factor:{form}}"


def intervals_note(found: Evaluation) -> str:
    """What the intervals are; empty if there are none."""
    known = any(math.isfinite(each.low) for each in found.scores.values())
    if found.resampled != "sample":
        how = f"from bootstrap draws of whole {found.resampled}s"
    else:
        how = "from bootstrap draws of samples; Wilson's for accuracy, recall and precision"
    return f"95 % intervals {how}" if known else ""


def spread_sentence(found: Evaluation, spread: Spread) -> str:
    """The accuracy over groups: mean, spread, worst, median and best."""
    worst = spread.worst
    return (
        f"accuracy over {len(found.groups):,} {found.group_word}s: mean {100 * spread.mean:.1f} ± "
        f"{100 * spread.deviation:.1f} %, worst {100 * worst.scores['accuracy']:.1f} % "
        f"({found.group_word} {visible(worst.name)}, {worst.count:,} samples), median {100 * spread.median:.1f} %, "
        f"best {100 * spread.best:.1f} %"
    )


def _table(*heads: str) -> Table:
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column(heads[0], overflow="fold")
    for head in heads[1:]:
        table.add_column(head, justify="right", no_wrap=True)
    return table


def _scores(found: Evaluation) -> Table:
    table = _table("score", "value", "95 %", "")
    table.columns[-1].justify, table.columns[-1].no_wrap, table.columns[-1].style = "left", False, "dim"
    for name, each in found.scores.items():
        title, about = score_title(name, found), "" if ABOUT[name].rises else "lower is better"
        table.add_row(Text(title), score_text(name, each.value), interval_text(name, each), about)
    return table


def _classes(found: Evaluation) -> Table:
    table = _table("class", "samples", "precision", "recall", "95 %", "F1", "AUROC")
    for each in found.per_class:
        numbers = (each.precision.value, each.recall.value, each.f1, each.auroc)
        precision, recall, f1, auroc = ("–" if math.isnan(n) else f"{100 * n:.1f}" for n in numbers)
        interval = interval_text("accuracy", each.recall)
        table.add_row(Text(visible(each.name)), f"{each.count:,}", precision, recall, interval, f1, auroc)
    return table


def _mistakes(found: Evaluation) -> Iterator[RenderableType]:
    """The confusion matrix, or the most frequent mistakes if there are too many classes for it."""
    if len(found.classes) <= MATRIX:
        table = _table("true class", *(f"→{number}" for number in range(len(found.classes))))
        for number, (name, row) in enumerate(zip(found.classes, found.confusion, strict=True)):
            cells = [Text(str(n), "bold" if place == number else "") for place, n in enumerate(row)]
            table.add_row(Text(f"{number} {visible(name)}"), *cells)
        yield table
        yield Text("rows are true classes, columns predicted ones", "dim")
        return
    for true, predicted, number in found.confusions()[:CONFUSIONS]:
        yield Text(f"{number:,} × {visible(true)} taken for {visible(predicted)}")
