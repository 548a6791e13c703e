"""The part of a page about how good the models are: scores, confusion, calibration, groups and mistakes."""

import base64
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from html import escape
from pathlib import Path
from statistics import median

from tacit.metrics.evaluation import Evaluation, evaluate
from tacit.metrics.local_heads import LocalHeads
from tacit.metrics.scores import ABOUT
from tacit.report import evaluation_plots, html, plots
from tacit.report.client_table import visible
from tacit.report.evaluation_table import (
    CONFUSIONS,
    UNDEFINED,
    headline,
    interval_text,
    intervals_note,
    score_text,
    score_title,
    spread_sentence,
)
from tacit.report.history import Run, by_label
from tacit.report.html import Line
from tacit.report.local_heads import accuracies

MOST = 12  # labels that are evaluated on a page
MOST_HEADS = 50  # clients whose local heads are listed
MATRIX = 20  # classes up to which a confusion matrix is shown


@dataclass(frozen=True)
class Mistake:
    """A test sample that a model was sure about and wrong: its picture as PNG, and what it is and was taken for."""

    png: bytes
    true: str
    predicted: str
    confidence: float


def section_body(runs: Sequence[Run], marks: Iterator[str], mistakes: Mapping[Path, Sequence[Mistake]]) -> str:
    """One part per label, the first one opened; empty if no run has saved its outputs.

    Of several seeds, the one whose accuracy is the median is shown.
    """
    chosen = [run for some in by_label(runs).values() if (run := _typical(some)) is not None]
    parts = []
    for place, run in enumerate(chosen[:MOST]):
        body = "\n".join(_run_parts(run, marks, mistakes.get(run.folder, ())))
        parts.append(html.details(f"{run.label}, seed {run.seed}", body, opened=place == 0))
    left = f"Only the first {MOST} of {len(chosen)} rows are shown." if len(chosen) > MOST else ""
    return "\n".join([*parts, html.paragraph(left, "note")]) if parts else ""


def _typical(runs: Sequence[Run]) -> Run | None:
    """The run with the median accuracy among those with saved outputs; the lower of two in the middle."""
    known = [run for run in runs if run.directory.predictions_file.exists()]
    if not known:
        return None
    middle = median(run.last5 for run in known)
    return min(known, key=lambda run: (abs(run.last5 - middle), run.last5))


def _run_parts(run: Run, marks: Iterator[str], mistakes: Sequence[Mistake]) -> Iterator[str]:
    if (saved := run.directory.predictions()) is not None:
        yield evaluation_html(evaluate(saved, "On the test samples"), marks)
    for text in run.directory.evaluations():
        try:
            found = Evaluation.from_json(text)
        except ValueError:
            continue  # written by another version
        yield html.part(found.about, evaluation_html(found, marks))
    if sites := run.directory.site_scores():
        yield html.part("At the sites", _sites(sites))
    with suppress(ValueError):  # nothing, or written by another version
        yield html.part("Local heads", _local_heads(LocalHeads.from_plain(run.directory.local_heads() or {})))
    if mistakes:
        yield html.part("Most confident mistakes", _pictures(mistakes))


def evaluation_html(found: Evaluation, marks: Iterator[str]) -> str:
    """Everything about one evaluation."""
    spread = found.spread()
    figures = [_classes_figure(found, marks), _reliability_figure(found, marks)]
    figures += [_groups_figure(found, marks)] if spread is not None else []
    parts = [
        html.paragraph(f"{headline(found)}.", "note"),
        _scores(found),
        "<div class='pair'>",
        *figures,
        "</div>",
        _matrix(found) if len(found.classes) <= MATRIX else _confusions(found),
        html.paragraph("" if spread is None else f"{spread_sentence(found, spread)}."),
    ]
    return "\n".join(part for part in parts if part)


def _sites(found: Mapping[str, Mapping[str, float]]) -> str:
    """The scores that sites sent, each on its own test samples."""
    names = [name for name in ABOUT if any(name in scores for scores in found.values())]
    lines = [
        Line(site, [score_text(name, scores[name]) if name in scores else UNDEFINED for name in names])
        for site, scores in found.items()
    ]
    caption = "The common model on each site's own test samples; only sites whose owners share scores"
    return html.table(caption, ["site", *(ABOUT[name].title for name in names)], lines)


def _local_heads(found: LocalHeads) -> str:
    """The common model against the same model with a head for each client, on what the client holds out."""
    heads = ["client", "labels", "held out", "common", "local"]
    lines = [
        Line(each.name, [f"{each.labels:,}", f"{each.held_out:,}", *accuracies(each)])
        for each in found.heads[:MOST_HEADS]
    ]
    left = f" The first {MOST_HEADS} are listed." if len(found.heads) > MOST_HEADS else ""
    return html.paragraph(found.sentence() + left) + html.table("Accuracy on the client's own samples", heads, lines)


def _scores(found: Evaluation) -> str:
    lines = [
        Line(score_title(name, found), [score_text(name, each.value), interval_text(name, each)])
        for name, each in found.scores.items()
    ]
    note = intervals_note(found)
    return html.table(f"Scores; {note}" if note else "Scores", ["score", "value", "95 % interval"], lines)


def _matrix(found: Evaluation) -> str:
    """The confusion matrix; a cell is darker the larger its share of its row is."""
    heads = "".join(f"<th scope='col'>{number}</th>" for number in range(len(found.classes)))
    rows = ""
    for number, (name, row) in enumerate(zip(found.classes, found.confusion, strict=True)):
        total = max(1, sum(row))
        cells = "".join(_cell(count / total, count, place == number) for place, count in enumerate(row))
        rows += f"<tr><th scope='row'>{number} {escape(visible(name))}</th>{cells}</tr>\n"
    note = html.paragraph("Rows are true classes, columns predicted ones.", "note")
    return (
        "<table class='matrix'>\n<caption>Confusion matrix</caption>\n"
        f"<thead><tr><th scope='col'>true class</th>{heads}</tr></thead>\n<tbody>\n{rows}</tbody>\n</table>\n{note}"
    )


def _cell(share: float, count: int, right: bool) -> str:
    kind = "right" if right else "wrong"
    return f"<td class='{kind}' style='--share:{share:.2f}'>{count or ''}</td>"


def _confusions(found: Evaluation) -> str:
    """The most frequent mistakes, where there are too many classes for a matrix."""
    lines = [
        f"{number:,} × {visible(true)} taken for {visible(predicted)}"
        for true, predicted, number in found.confusions()[:CONFUSIONS]
    ]
    return html.bullets(lines)


def _classes_figure(found: Evaluation, marks: Iterator[str]) -> str:
    shown = evaluation_plots.worst_classes(found)
    words = " ".join(
        f"{visible(each.name)}: recall {100 * each.recall.value:.1f} %, precision {_number(each.precision.value)}."
        for each in shown
    )
    fewer = f" The {len(shown)} classes with the lowest recall." if len(shown) < len(found.per_class) else ""
    svg = plots.inline_svg(evaluation_plots.classes(found), next(marks))
    return html.figure(svg, f"Bar chart of recall and precision. {words}", f"Recall and precision per class.{fewer}")


def _number(share: float) -> str:
    return "undefined" if share != share else f"{100 * share:.1f} %"  # noqa: PLR0124 - NaN is the number that differs


def _reliability_figure(found: Evaluation, marks: Iterator[str]) -> str:
    words = " ".join(
        f"{100 * bin.confidence:.0f} % sure, {100 * bin.accuracy:.0f} % right, {bin.count:,} samples."
        for bin in found.reliability
    )
    svg = plots.inline_svg(evaluation_plots.reliability(found), next(marks))
    about = "Reliability: below the dashed line the model is more confident than it is right."
    return html.figure(svg, f"Accuracy against confidence. {words}", about)


def _groups_figure(found: Evaluation, marks: Iterator[str]) -> str:
    ordered = sorted(found.groups, key=lambda group: group.scores["accuracy"])[: evaluation_plots.MOST]
    words = " ".join(f"{group.name}: {100 * group.scores['accuracy']:.1f} %." for group in ordered)
    svg = plots.inline_svg(evaluation_plots.groups(found), next(marks))
    fewer = f", the {len(ordered)} worst" if len(ordered) < len(found.groups) else ""
    return html.figure(svg, f"Accuracy of each {found.group_word}. {words}", f"Accuracy per {found.group_word}{fewer}.")


def _pictures(mistakes: Sequence[Mistake]) -> str:
    items = ""
    for each in mistakes:
        data = base64.b64encode(each.png).decode()
        words = f"{visible(each.true)}, taken for {visible(each.predicted)} with {100 * each.confidence:.0f} %"
        items += (
            f"<figure><img src='data:image/png;base64,{data}' alt='{escape(words)}'>"
            f"<figcaption>{escape(words)}</figcaption></figure>\n"
        )
    return f"<div class='mistakes'>\n{items}</div>"
