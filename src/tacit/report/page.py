"""One HTML file about some runs: nothing to load, no script, for screen, phone, paper and screen reader."""

from collections import Counter
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path

import tomli_w

from tacit.report import plots, tables
from tacit.report.curves import Curve, curves
from tacit.report.files import replacing
from tacit.report.read import Run, by_label
from tacit.report.tables import Row
from tacit.report.units import Stat, percent, size


def write(runs: Sequence[Run], path: Path, command: str | None = None) -> None:
    """Write the page; a reader sees the old one or the new one, never half of it."""
    text = page(runs, command)
    with replacing(path) as partial:
        partial.write_text(text, encoding="utf-8")


def page(runs: Sequence[Run], command: str | None = None) -> str:
    """The page about at least one run, and the command that makes them again."""
    rows = tables.summarise(runs)
    sections = [
        f"<h1>{escape(_title(runs))}</h1>\n<p class='summary'>{escape(_summary(rows))}</p>",
        _unfinished(runs),
        _section("Accuracy", _chart(runs)),
        _section("Results", _table(rows)),
        _section("Communication", _bullets(_traffic(row) for row in rows)),
        _section("Clients left out", _bullets(_skipped(runs))),
        _section("Configuration", _settings(runs)),
        _section("Run it again", f"<pre><code>{escape(command)}</code></pre>" if command else ""),
    ]
    style = files("tacit.report").joinpath("page.css").read_text(encoding="utf-8")
    return (
        "<!doctype html>\n<html lang='en'>\n<head>\n<meta charset='utf-8'>\n"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>\n"
        f"<title>{escape(_title(runs))}</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(section for section in sections if section)
        + "\n</main>\n</body>\n</html>\n"
    )


def _section(title: str, body: str) -> str:
    """A heading and what is below it; nothing where there is nothing to say."""
    return f"<h2>{title}</h2>\n{body}" if body else ""


def _bullets(lines: Iterable[str]) -> str:
    items = "".join(f"<li>{escape(line)}</li>\n" for line in lines)
    return f"<ul>\n{items}</ul>" if items else ""


def _title(runs: Sequence[Run]) -> str:
    first, *others = by_label(runs)
    more = {0: "", 1: " and 1 other"}.get(len(others), f" and {len(others)} others")
    data = {str(run.data.get("name", "")) for run in runs} - {""}
    return f"{first}{more}" + (f" on {data.pop()}" if len(data) == 1 else "")


def _summary(rows: Sequence[Row]) -> str:
    """What each row reached; how many labels it had is said for the first row, and where that differs."""
    clauses = []
    for row in rows:
        reached = f"{percent(row.last5)} %".replace(" ", "\u00a0")
        known = row.labels in row.label or (row is not rows[0] and row.labels == rows[0].labels)
        labels = "" if known else f" with {row.labels}"
        clauses.append(f"{row.label}{' reached' if row is rows[0] else ''} {reached}{labels}")
    return "; ".join(clauses) + "."


def _unfinished(runs: Sequence[Run]) -> str:
    running = [
        f"{run.label}, seed {run.seed} ({len(run.rounds)} of {run.config['rounds']} rounds)"
        for run in runs
        if not run.finished
    ]
    return f"<p class='note'>Not finished: {escape('; '.join(running))}.</p>" if running else ""


def _chart(runs: Sequence[Run]) -> str:
    spoken = "Line chart of accuracy against rounds. " + " ".join(map(_spoken, curves(runs)))
    several = any(len(group) > 1 for group in by_label(runs).values())
    band = " Lines are means over seeds, bands reach from the lowest to the highest seed." if several else ""
    own = ", ".join(by_label(run for run in runs if run.local))
    local = f" There is no common model in {own}: the average over the clients' own models is shown." if own else ""
    return (
        f"<figure>\n<div role='img' aria-label='{escape(spoken)}'>\n{plots.inline_svg(plots.figure(runs))}</div>\n"
        f"<figcaption>Accuracy on the test set.{band}{escape(local)}</figcaption>\n</figure>"
    )


def _spoken(curve: Curve) -> str:
    first, last = f"{curve.mean[0]:.1f} %", f"{curve.mean[-1]:.1f} %"
    return f"{curve.label}: {first} after round {curve.rounds[0]}, {last} after round {curve.rounds[-1]}."


def _table(rows: Sequence[Row]) -> str:
    columns = tables.REACHED + tables.COST
    heads = "".join(f"<th scope='col'>{head}</th>" for head in ["run", "seeds", *(c.head for c in columns)])
    body = ""
    for row in rows:
        cells = "".join(f"<td>{cell}</td>" for cell in [str(row.seeds), *(column.cell(row) for column in columns)])
        kind = " class='leads'" if row.leads else ""
        body += f"<tr{kind}><th scope='row'>{escape(tables.name(row))}</th>{cells}</tr>\n"
    notes = ". ".join(note for note in (tables.spread_note(rows), tables.star_note(rows)) if note)
    return (
        "<div class='scroll' role='region' aria-label='Table of results' tabindex='0'>\n"
        "<table>\n<caption>What each run reached and what it cost</caption>\n"
        f"<thead><tr>{heads}</tr></thead>\n<tbody>\n{body}</tbody>\n</table>\n</div>\n"
        f"<p class='note'>{escape(notes)}.</p>"
    )


def _traffic(row: Row) -> str:
    up, down = row.bytes_up.mean, row.bytes_down.mean
    total, each = _bytes(up + down), _bytes((up + down) / row.rounds.mean)
    return f"{row.label}: {total} per run ({_bytes(up)} up, {_bytes(down)} down), {each} per round"


def _bytes(value: float) -> str:
    return size(Stat(value, None))


def _skipped(runs: Sequence[Run]) -> list[str]:
    """How often and why, for each label that lost anyone."""
    lines = []
    for label, group in by_label(runs).items():
        reasons = sum((run.skipped for run in group), Counter[str]())
        if reasons:
            lines.append(f"{label}: " + ", ".join(f"{reason} {times}×" for reason, times in sorted(reasons.items())))
    return lines


def _settings(runs: Sequence[Run]) -> str:
    """Each config once, with the seeds it was run with."""
    seeds: dict[tuple[str, str], list[int]] = {}
    for run in runs:
        config = tomli_w.dumps({name: value for name, value in run.config.items() if name != "seed"})
        seeds.setdefault((run.label, config), []).append(run.seed)
    return "\n".join(_details(label, config, numbers) for (label, config), numbers in seeds.items())


def _details(label: str, config: str, seeds: Sequence[int]) -> str:
    numbers = f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"
    return (
        f"<details>\n<summary>{escape(label)}, {numbers}</summary>\n"
        f"<pre tabindex='0'><code>{escape(config)}</code></pre>\n</details>"
    )
