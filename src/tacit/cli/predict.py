"""`tacit predict`: a table of predictions, what is in it, and which samples to label next."""

import csv
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from tacit.errors import TacitError
from tacit.formatting import printable
from tacit.inference import to_label
from tacit.inference.model import Model
from tacit.inference.output import refuse_others, rows_of
from tacit.inference.predict_paths import Summary, predict_paths
from tacit.inference.prediction import Columns
from tacit.inference.samples import blocks
from tacit.runs.followers.progress import say
from tacit.runs.result import saved_model
from tacit.storage import replacing

FEW = 10  # samples whose answers are printed one by one


def predict(
    run: Path,
    paths: list[str],
    out: Path,
    console: Console,
    *,
    proba: bool,
    top: int,
    threshold: float | None,
    label: int,
    workers: int | None,
    import_net: bool,
) -> None:
    """Write the table, and print what is in it."""
    open_model = partial(saved_model.load, run, import_net=import_net)
    model = open_model()
    columns = _columns(model, proba, top, threshold, label)
    listed = out.with_name(f"{out.stem}-to-label{out.suffix}")
    if label:
        refuse_others(listed)
    with _progress(console) as progress:
        task = progress.add_task("predicting", total=None)
        summary = predict_paths(
            paths, out, model, open_model, columns, workers, lambda done: progress.update(task, completed=done)
        )
    _print(summary, out, console, threshold)
    if label:
        rows = to_label.choose(out, blocks(paths, model.reader), model, label)
        _write(listed, rows)
        say(f"{len(rows)} samples worth labeling next: {listed}", console)


def _columns(model: Model, proba: bool, top: int, threshold: float | None, label: int) -> Columns:
    classes = len(model.classes)
    if threshold is not None and not 0 < threshold <= 1:
        raise TacitError(f"--threshold is {threshold:g}", "choose a number from 0 to 1", code="predict.bad-threshold")
    if not 0 <= top <= classes:
        problem = f"--top is {top} and the model has {classes} classes"
        raise TacitError(problem, f"choose 1 to {classes}", code="predict.bad-top")
    if label < 0:
        raise TacitError(f"--to-label is {label}", "choose 1 or more", code="predict.bad-number")
    return Columns(model.classes, proba, top, threshold, margin=label > 0)


def _progress(console: Console) -> Progress:
    parts = SpinnerColumn(), TextColumn("{task.description} {task.completed:,.0f} samples"), TimeElapsedColumn()
    return Progress(*parts, console=console, transient=True, disable=not console.is_terminal)


def _print(summary: Summary, out: Path, console: Console, threshold: float | None) -> None:
    if summary.samples <= FEW:
        _print_answers(out, console)
    else:
        _print_counts(summary, console)
    if threshold is not None and summary.unsure:
        say(f"{summary.unsure:,} of {summary.samples:,} answers are unsure (confidence below {threshold:g})", console)
    for sentence in summary.drift:
        say(f"warning: {printable(sentence)}; the model may do worse here", console)
    if summary.unreadable:
        say(f"{summary.unreadable:,} of {summary.samples:,} samples could not be read:", console)
        for problem in summary.problems.values():
            say(f"  {printable(problem)}", console)
        if summary.unreadable > len(summary.problems):
            say(f"  and {summary.unreadable - len(summary.problems):,} more, see the column problem", console)
    say(f"predictions: {out}", console)


def _print_answers(out: Path, console: Console) -> None:
    table = Table("sample", "prediction", "confidence", box=None, pad_edge=False)
    for row in rows_of(out):
        if not row["problem"]:
            name, answer = (escape(printable(row[column])) for column in ("path", "prediction"))
            table.add_row(name, answer, f"{float(row['confidence']):.1%}")
    if table.row_count:
        console.print(table, highlight=False)


def _print_counts(summary: Summary, console: Console) -> None:
    table = Table("prediction", "samples", "share", box=None, pad_edge=False)
    answered = summary.samples - summary.unreadable
    for name, count in summary.answers.most_common():
        table.add_row(escape(printable(name)), f"{count:,}", f"{count / answered:.1%}")
    if table.row_count:
        console.print(table, highlight=False)


def _write(path: Path, rows: list[dict[str, str]]) -> None:
    names = ["path", "prediction", "confidence", "margin"]
    with replacing(path) as new, new.open("w", newline="", encoding="utf-8", errors="surrogateescape") as file:
        writer = csv.DictWriter(file, names, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
