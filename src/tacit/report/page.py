"""One HTML file about some runs: nothing to load, no script, for screen, phone, paper and screen reader."""

import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path

import tomli_w

from tacit.errors import TacitError
from tacit.report import charts, html, plots, tables
from tacit.report.charts import Chart
from tacit.report.files import replacing
from tacit.report.html import Line
from tacit.report.read import COMMAND, Run, by_group, by_label, evaluated
from tacit.report.tables import Summary
from tacit.report.units import percent, size_of

LARGE, SMALL = 4.4, 3.6  # inches of a chart, which decide how large its words are beside it


def write(runs: Sequence[Run], path: Path, command: str | None = None) -> None:
    """Write the page; a reader sees the old one or the new one, never half of it."""
    save(page(runs, command), path)


def refuse_others(path: Path) -> None:
    """Refuse to take the place of a file that is no page of ours."""
    if path.is_file() and html.MARK not in path.read_text(encoding="utf-8", errors="replace"):
        raise TacitError(f"{path} is there and is no report of Tacit's: give another name with --out, or remove it")


def write_with_command(runs: Sequence[Run], folder: Path, command: str) -> None:
    """Write the page of a folder of runs, and the command that made them, for who makes another page of them later."""
    write(runs, folder / "report.html", command)
    save(f"{command}\n", folder / COMMAND)


def save(text: str, path: Path) -> None:
    """Put a text in its place."""
    with replacing(path) as partial:
        partial.write_text(text, encoding="utf-8")


def page(runs: Sequence[Run], command: str | None = None) -> str:
    """The page about at least one run, and the command that makes them again."""
    everyone, runs = runs, evaluated(runs)
    rows = {group: tables.summarise(members) for group, members in by_group(runs).items()}
    told = [html.paragraph(_of(group, _summary(those)), "summary") for group, those in rows.items()]
    opening = "\n".join(part for part in (*told, unfinished(runs), left_out(everyone)) if part)
    results = "\n".join(html.part(group, _table(those)) for group, those in rows.items())
    traffic = [_of(group, _traffic(row)) for group, those in rows.items() for row in those]
    accuracy, *others = about_runs(runs)
    sections = [accuracy, html.section("Results", results), *others]
    sections += [html.section("Communication", html.bullets(traffic)), *ending(runs, command)]
    return html.document(_title(runs), opening, sections)


def about_runs(runs: Sequence[Run], labels: Sequence[str] = ()) -> list[str]:
    """The sections that show how the runs went: accuracy, who holds what, pseudo-labels, own models.

    A label has one colour on the whole page, by its place among `labels`, or by its first appearance.
    """
    marks = (f"f{number}-" for number in count(1))
    order = list(dict.fromkeys([*labels, *by_label(runs)]))

    def drawn(show: Callable[[Sequence[Run]], list[Chart]]) -> str:
        return _each(runs, lambda some: _charts([chart.among(order) for chart in show(some)], marks))

    return [
        html.section("Accuracy", drawn(charts.accuracies)),
        html.section("Who holds what", _each(runs, lambda some: _dealt(some, marks))),
        html.section("Pseudo-labels", drawn(charts.pseudo_labels)),
        html.section("Clients' own models", drawn(charts.own_models)),
    ]


def ending(runs: Sequence[Run], command: str | None) -> list[str]:
    """The last sections: clients left out, configuration, and the command that makes it again."""
    return [
        html.section("Clients left out", html.bullets(_skipped(runs))),
        html.section("Configuration", _each(runs, _settings)),
        html.section("Run it again", html.code(command or "")),
    ]


def unfinished(runs: Sequence[Run]) -> str:
    """Which runs are not done yet, if any."""
    running = [
        f"{_of(run.group, run.label)}, seed {run.seed} ({len(run.rounds)} of {run.config['rounds']} rounds)"
        for run in runs
        if not run.finished
    ]
    return html.paragraph(f"Not finished: {'; '.join(running)}." if running else "", "note")


def left_out(runs: Sequence[Run]) -> str:
    """Which runs are not on the page, if any."""
    waiting = [f"{_of(run.group, run.label)}, seed {run.seed}" for run in runs if not run.accuracy_curve]
    return html.paragraph(f"Left out, without an evaluated round yet: {'; '.join(waiting)}." if waiting else "", "note")


def commands(runs: Sequence[Run]) -> str:
    """A command for each run that makes it again in a new folder."""
    return "\n".join(shlex.join(["tacit", "run", str(run.folder / "config.toml")]) for run in runs)


def _each(runs: Sequence[Run], show: Callable[[Sequence[Run]], str]) -> str:
    """The same about every group of runs."""
    return "\n".join(shown for group, some in by_group(runs).items() if (shown := html.part(group, show(some))))


def _of(group: str, text: str) -> str:
    return f"{group}: {text}" if group else text


def _title(runs: Sequence[Run]) -> str:
    first, *others = by_label(runs)
    data = {str(run.data.get("name", "")) for run in runs}
    names = f"{first} and {len(others)} other{'s' if len(others) > 1 else ''}" if others else first
    return names + (f" on {Path(data.pop()).name}" if len(data) == 1 and data != {""} else "")


def _summary(rows: Sequence[Summary]) -> str:
    """What each row reached; how many labels it had is said for the first row, and where that differs."""
    clauses = []
    for row in rows:
        reached = f"{percent(row.last5)} %".replace(" ", "\u00a0")
        known = row.labels in row.label or (row is not rows[0] and row.labels == rows[0].labels)
        labels = "" if known else f" with {row.labels}"
        clauses.append(f"{row.label}{' reached' if row is rows[0] else ''} {reached}{labels}")
    return "; ".join(clauses) + "."


def _charts(found: Sequence[Chart], marks: Iterator[str]) -> str:
    """The first chart large and with the key to all, the others small below it."""
    if not found:
        return ""
    first, *others = found
    shown = html.figure(plots.inline_svg(plots.draw(first, LARGE), next(marks)), first.spoken, first.about)
    small = [
        html.figure(plots.inline_svg(plots.draw(chart, SMALL, key=False), next(marks)), chart.spoken, chart.title)
        for chart in others
    ]
    return "\n".join([shown, "<div class='charts'>", *small, "</div>"]) if small else shown


def _dealt(runs: Sequence[Run], marks: Iterator[str]) -> str:
    """A heat map of every way the data is dealt, the first one unfolded."""
    from tacit.report import splits

    found = splits.distinct(runs)
    shown = []
    for place, dealt in enumerate(found):
        svg = plots.inline_svg(dealt.figure(), next(marks))
        picture = html.figure(svg, dealt.spoken, "Darker is more samples.", "paper")
        whose = [_named(label, [run.seed for run in some]) for label, some in by_label(dealt.runs).items()]
        shown.append(html.details("; ".join(whose), picture, opened=place == 0))
    look = shlex.join(["tacit", "data", str(runs[0].folder / "config.toml")])
    missing = "" if found else f"The runs do not say; {look} shows it where the data is at hand."
    return "\n".join(shown) or html.paragraph(missing, "note")


def _table(rows: Sequence[Summary]) -> str:
    columns = tables.columns(rows)
    heads = ["run", "seeds", *(column.head for column in columns)]
    lines = [
        Line(tables.name(row), [str(row.seeds), *(column.cell(row) for column in columns)], row.leads) for row in rows
    ]
    notes = ". ".join(tables.notes(rows))
    shown = html.table("What each run reached and what it cost", heads, lines)
    return f"{shown}\n{html.paragraph(f'{notes}.', 'note')}"


def _traffic(row: Summary) -> str:
    up, down = row.bytes_up.mean, row.bytes_down.mean
    total, each = size_of(up + down), size_of((up + down) / row.rounds.mean)
    return f"{row.label}: {total} per run ({size_of(up)} up, {size_of(down)} down), {each} per round"


def _skipped(runs: Sequence[Run]) -> list[str]:
    """How often and why, for each label that lost anyone."""
    lines = []
    for group, some in by_group(runs).items():
        for label, those in by_label(some).items():
            reasons = sum((run.skipped for run in those), Counter[str]())
            told = ", ".join(f"{reason} {times}×" for reason, times in sorted(reasons.items()))
            lines += [_of(group, f"{label}: {told}")] if told else []
    return lines


def _settings(runs: Sequence[Run]) -> str:
    """Each config once, with the seeds it was run with."""
    seeds: dict[tuple[str, str], list[int]] = {}
    for run in runs:
        config = tomli_w.dumps({name: value for name, value in run.config.items() if name != "seed"})
        seeds.setdefault((run.label, config), []).append(run.seed)
    return "\n".join(
        html.details(_named(label, numbers), html.code(config)) for (label, config), numbers in seeds.items()
    )


def _named(label: str, seeds: Sequence[int]) -> str:
    return f"{label}, seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"
