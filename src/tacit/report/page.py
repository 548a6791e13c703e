"""One HTML file about some runs, for screen, phone, paper and screen reader, without external resources or scripts."""

import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import tomli_w

from tacit.errors import TacitError
from tacit.formatting import percent, printable, size_of
from tacit.report import charts, gains, html, plots, tables
from tacit.report.charts import Chart
from tacit.report.history import Run, by_group, by_label, evaluated
from tacit.report.html import Line
from tacit.report.tables import Summary
from tacit.runs.directory import RunDirectory, layout
from tacit.runs.directory.folders import write_command
from tacit.storage import replacing

if TYPE_CHECKING:
    from tacit.report.evaluation_page import Mistake

LARGE, SMALL = 4.4, 3.6  # widths of charts in inches; they decide the relative size of the text


Mistakes = Mapping[Path, Sequence["Mistake"]]  # the most confident mistakes of a run, by its folder


def write(runs: Sequence[Run], path: Path, command: str | None = None, mistakes: Mistakes | None = None) -> None:
    """Write the page; at every moment the file is the old page or the new one, complete."""
    save(page(runs, command, mistakes), path)


def place(folders: Sequence[Path]) -> Path:
    """Where a page goes by default: of a single run into its folder, where the live page links it; else here."""
    single = len(folders) == 1 and RunDirectory(folders[0]).exists()
    return folders[0] / layout.REPORT if single else Path(layout.REPORT)


def refuse_others(path: Path) -> None:
    """Refuse to overwrite a file that is not a report of Tacit's."""
    if path.is_file() and html.MARK not in path.read_text(encoding="utf-8", errors="replace"):
        raise TacitError(
            f"{path} exists and is not a report of Tacit",
            "give another name with --out, or remove it",
            code="report.not-a-report",
        )


def write_with_command(runs: Sequence[Run], folder: Path, command: str) -> None:
    """Write the page of a folder of runs, and the command that made them, for later pages about them."""
    write(runs, folder / layout.REPORT, command)
    write_command(folder, command)


def save(text: str, path: Path) -> None:
    """Write a text file, replacing an old one only once the new one is complete."""
    with replacing(path) as partial:
        partial.write_text(text, encoding="utf-8")


def page(runs: Sequence[Run], command: str | None = None, mistakes: Mistakes | None = None) -> str:
    """The page about at least one run, with the command that reproduces them.

    `mistakes` are shown only if they are given: they are pictures of samples, and a page is passed on easily.
    """
    given, runs = runs, [run for run in evaluated(runs) if not run.ended] or evaluated(runs)
    stopped = [run for run in given if run.ended and run not in runs]
    groups = by_group(runs)
    rows = {group: tables.summarise(members) for group, members in groups.items()}
    summaries = [html.paragraph(_of(group, _summary(those)), "summary") for group, those in rows.items()]
    summaries += [
        html.paragraph(_of(group, found), "summary")
        for group, members in groups.items()
        if (found := gains.sentence(members))
    ]
    opening = "\n".join(part for part in (*summaries, unfinished(runs), left_out(given)) if part)
    results = "\n".join(html.part(group, _table(those)) for group, those in rows.items())
    traffic = [_of(group, _traffic(row)) for group, those in rows.items() for row in those]
    accuracy, *others = about_runs(runs)
    marks = (f"e{number}-" for number in count(1))
    models = _each(runs, lambda some: _models(some, marks, mistakes or {}))
    saved = html.section("Saved models", html.bullets(_saved(runs)))
    sections = [
        accuracy,
        html.section("Results", results),
        saved,
        html.section("How good the models are", models),
        *others,
    ]
    sections += [html.section("Communication", html.bullets(traffic)), *ending([*runs, *stopped], command)]
    return html.document(_title(runs), opening, sections)


def about_runs(runs: Sequence[Run], labels: Sequence[str] = ()) -> list[str]:
    """The sections on accuracy, data per client, pseudo-labels and client models.

    A label has one color on the whole page, by its place among `labels` or by first appearance.
    """
    marks = (f"f{number}-" for number in count(1))
    order = list(dict.fromkeys([*labels, *by_label(runs)]))

    def drawn(show: Callable[[Sequence[Run]], list[Chart]]) -> str:
        return _each(runs, lambda some: _charts([chart.among(order) for chart in show(some)], marks))

    return [
        html.section("Accuracy", drawn(charts.accuracies)),
        html.section("Other scores", drawn(charts.scores)),
        html.section("Data per client", _each(runs, lambda some: _partitions(some, marks))),
        html.section("Pseudo-labels", drawn(charts.pseudo_labels)),
        html.section("Client models", drawn(charts.client_models)),
    ]


def ending(runs: Sequence[Run], command: str | None) -> list[str]:
    """The last sections: clients left out, configuration, and the command that reproduces the runs."""
    return [
        html.section("Protection", html.bullets(_protection(runs))),
        html.section("Notices", html.bullets(_notices(runs))),
        html.section("Clients left out", html.bullets(_skipped(runs))),
        html.section("Configuration", _each(runs, _settings)),
        html.section("Reproduce", html.code(command or "")),
    ]


def unfinished(runs: Sequence[Run]) -> str:
    """A note on runs that are not finished, if any."""
    running = [
        f"{_of(run.group, run.label)}, seed {run.seed} ({len(run.rounds)} of {run.config['rounds']} rounds)"
        for run in runs
        if not run.finished
    ]
    return html.paragraph(f"Not finished: {'; '.join(running)}." if running else "", "note")


def left_out(runs: Sequence[Run]) -> str:
    """A note on runs that are not on the page, if any."""
    waiting = [
        f"{_of(run.group, run.label)}, seed {run.seed}" for run in runs if not run.accuracy_curve and not run.ended
    ]
    return html.paragraph(f"Left out, no evaluated round yet: {'; '.join(waiting)}." if waiting else "", "note")


def commands(runs: Sequence[Run]) -> str:
    """A command for each run that repeats it in a new folder."""
    return "\n".join(shlex.join(["tacit", "run", str(run.directory.config_file)]) for run in runs)


def _each(runs: Sequence[Run], show: Callable[[Sequence[Run]], str]) -> str:
    """The same section part for every group of runs."""
    return "\n".join(shown for group, some in by_group(runs).items() if (shown := html.part(group, show(some))))


def _of(group: str, text: str) -> str:
    return f"{group}: {text}" if group else text


def _title(runs: Sequence[Run]) -> str:
    first, *others = by_label(runs)
    data = {str(run.data.get("name", "")) for run in runs}
    names = f"{first} and {len(others)} other{'s' if len(others) > 1 else ''}" if others else first
    return names + (f" on {Path(data.pop()).name}" if len(data) == 1 and data != {""} else "")


def _summary(rows: Sequence[Summary]) -> str:
    """The accuracy of each row; the number of labels for the first row, and for others where it differs.

    Of a single run, the accuracy of its model; rows are compared by their last evaluations, as in the table.
    """
    alone = len(rows) == rows[0].seeds == 1
    clauses = []
    for row in rows:
        reached = f"{percent((alone and row.saved) or row.last5)} %".replace(" ", "\u00a0")
        known = row.labels in row.label or (row is not rows[0] and row.labels == rows[0].labels)
        labels = "" if known else f" with {row.labels}"
        clauses.append(f"{row.label}{' reached' if row is rows[0] else ''} {reached}{labels}")
    return "; ".join(clauses) + "."


def _charts(found: Sequence[Chart], marks: Iterator[str]) -> str:
    """The first chart large and with the legend for all, the others small below it."""
    if not found:
        return ""
    first, *others = found
    shown = html.figure(plots.inline_svg(plots.draw(first, LARGE), next(marks)), first.alt_text, first.about)
    small = [
        html.figure(plots.inline_svg(plots.draw(chart, SMALL, legend=False), next(marks)), chart.alt_text, chart.title)
        for chart in others
    ]
    return "\n".join([shown, "<div class='charts'>", *small, "</div>"]) if small else shown


def _models(runs: Sequence[Run], marks: Iterator[str], mistakes: Mistakes) -> str:
    """How good the models are, if a run has saved its outputs."""
    if not any(run.directory.predictions_file.exists() for run in runs):
        return ""
    from tacit.report import evaluation_page  # numpy and scikit-learn are slow to import

    return evaluation_page.section_body(runs, marks, mistakes)


def _partitions(runs: Sequence[Run], marks: Iterator[str]) -> str:
    """A heat map of every distinct partition, the first one opened."""
    from tacit.report import splits

    found = splits.distinct(runs)
    shown = []
    for place, partition in enumerate(found):
        svg = plots.inline_svg(partition.figure(), next(marks))
        picture = html.figure(svg, partition.alt_text, "Darker means more samples.", "paper")
        users = [_named(label, [run.seed for run in some]) for label, some in by_label(partition.runs).items()]
        shown.append(html.details("; ".join(users), picture, opened=place == 0))
    command = shlex.join(["tacit", "data", str(runs[0].directory.config_file)])
    missing = "" if found else f"Not recorded; {command} shows it where the data is available."
    return "\n".join(shown) or html.paragraph(missing, "note")


def _table(rows: Sequence[Summary]) -> str:
    columns = tables.columns(rows)
    heads = ["run", "seeds", *(column.head for column in columns)]
    lines = [
        Line(tables.name(row), [str(row.seeds), *(column.cell(row) for column in columns)], row.leads) for row in rows
    ]
    notes = ". ".join(tables.notes(rows))
    shown = html.table("Accuracy and costs", heads, lines)
    return f"{shown}\n{html.paragraph(f'{notes}.', 'note')}"


def _traffic(row: Summary) -> str:
    up, down = row.bytes_up.mean, row.bytes_down.mean
    total, each = size_of(up + down), size_of((up + down) / row.rounds.mean)
    return f"{row.label}: {total} per run ({size_of(up)} up, {size_of(down)} down), {each} per round"


def _saved(runs: Sequence[Run]) -> list[str]:
    """Which model each run saved and why, if it was chosen on validation samples."""
    lines = []
    for run in runs:
        if (found := run.selected) is None:
            continue
        on = found.get("validation") or {}
        around = f" (95 % interval {100 * on['low']:.1f} to {100 * on['high']:.1f} %)" if on else ""
        score = f"; {100 * on['accuracy']:.1f} % of {on['samples']:,.0f} validation samples{around}" if on else ""
        what = printable(f"{found['what']}, since {found['why']}")
        lines.append(_of(run.group, f"{run.label}, seed {run.seed}: {what}{score}"))
    return lines


def _skipped(runs: Sequence[Run]) -> list[str]:
    """How often and why clients were left out, for each label where any were."""
    lines = []
    for group, some in by_group(runs).items():
        for label, those in by_label(some).items():
            reasons = sum((run.skipped for run in those), Counter[str]())
            counted = ", ".join(f"{reason} {times}×" for reason, times in sorted(reasons.items()))
            lines += [_of(group, f"{label}: {counted}")] if counted else []
    return lines


def _protection(runs: Sequence[Run]) -> list[str]:
    """What the rounds so far have spent, and what `[protect]` promises and what it does not."""
    lines = []
    for run in runs:
        who = f"{run.label}, seed {run.seed}"
        lines += [_of(run.group, f"{who}: {text}") for text in (*run.privacy, *run.directory.protection())]
    return lines


def _notices(runs: Sequence[Run]) -> list[str]:
    """Signs of collapse that were noticed, and runs that ended early."""
    return [_of(run.group, f"{run.label}, seed {run.seed}, {text}") for run in runs for text in run.notices]


def _settings(runs: Sequence[Run]) -> str:
    """Each distinct config, with the seeds it was run with."""
    seeds: dict[tuple[str, str], list[int]] = {}
    for run in runs:
        config = tomli_w.dumps({name: value for name, value in run.config.items() if name != "seed"})
        seeds.setdefault((run.label, config), []).append(run.seed)
    return "\n".join(
        html.details(_named(label, numbers), html.code(config)) for (label, config), numbers in seeds.items()
    )


def _named(label: str, seeds: Sequence[int]) -> str:
    return f"{label}, seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"
