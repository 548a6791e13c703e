"""One row per label, over its seeds: accuracies and costs."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from tacit.formatting import Stat, count, duration, format_range, percent, size
from tacit.report import bounds
from tacit.report.history import ALL_LABELS, Run, by_label

ACCURACIES = 2  # columns at the beginning
STAR = "\u00a0★"  # with a space at which no line breaks


@dataclass(frozen=True)
class Summary:
    """All runs of one label; accuracies between 0 and 1."""

    label: str
    seeds: int
    last5: Stat
    averaged: tuple[int, int]  # how many evaluations `last5` is the mean of: fewest and most over the seeds
    best: Stat
    rounds: Stat
    steps: Stat
    bytes_up: Stat
    bytes_down: Stat
    seconds: Stat
    labels: str  # their number in words; empty if it is unknown or differs between runs
    saved: Stat | None = None  # of the models that are saved
    scores: dict[str, Stat] = field(default_factory=dict)  # of the last evaluation, those all seeds have
    share: float | None = None  # of the pooled gain; None if it is unknown, or too small to divide
    caution: str = ""  # why this bound may be none
    levels: tuple[float, float] | None = None  # accuracy by chance, and of always naming the most frequent class
    leads: bool = False  # ahead of the other rows by more than the spread between seeds

    @property
    def bound(self) -> bool:
        """Whether it is an upper bound, which does not compete with rows of fewer labels, or with a federation."""
        return self.labels == ALL_LABELS or self.label in bounds.UPPER


@dataclass(frozen=True)
class Column:
    """A column of the table: a heading, and how to get and format the number of a row."""

    head: str
    number: Callable[[Summary], Stat]
    form: Callable[[Stat], str]

    def cell(self, row: Summary) -> str:
        """The number as mean ± std."""
        return self.form(self.number(row))

    def narrow_cell(self, row: Summary) -> str:
        """The mean alone."""
        return self.form(Stat(self.number(row).mean))


COST = (
    Column("rounds", lambda row: row.rounds, count),
    Column("steps", lambda row: row.steps, count),
    Column("up", lambda row: row.bytes_up, size),
    Column("down", lambda row: row.bytes_down, size),
    Column("time", lambda row: row.seconds, duration),
)


def columns(rows: Sequence[Summary]) -> tuple[Column, ...]:
    """The columns with accuracies, the share of the pooled gain if there is one, scores that every row has, costs."""
    share = Column("share", lambda row: Stat(math.nan if row.share is None else row.share), bounds.share_text)
    return (
        Column(f"{last(rows)} (%)", lambda row: row.last5, percent),
        Column("best (%)", lambda row: row.best, percent),
        *((share,) if any(row.label == bounds.POOLED for row in rows) else ()),
        *map(_score_column, common_scores(rows)),
        *COST,
    )


def common_scores(rows: Sequence[Summary]) -> list[str]:
    """The scores that every row has, apart from the accuracy."""
    shared = set.intersection(*(set(row.scores) for row in rows)) if rows else set()
    return [name for name in rows[0].scores if name in shared and name != "accuracy"] if rows else []


def _score_column(name: str) -> Column:
    from tacit.metrics.scores import ABOUT  # needs numpy, which most tables do not

    about = ABOUT[name]
    return Column(
        f"{about.title} (%)" if about.share else about.title,
        lambda row: row.scores[name],
        percent if about.share else _plain_number,
    )


def _plain_number(stat: Stat) -> str:
    return f"{stat.mean:.3f}" if stat.std is None else f"{stat.mean:.3f} ± {stat.std:.3f}"


def summarise(runs: Sequence[Run]) -> list[Summary]:
    """A row per label, in order of first appearance."""
    groups = by_label(runs)
    found = bounds.compared(groups)
    rows = [replace(_row(label, group), **found.about(label)) for label, group in groups.items()]
    return with_leader(rows)


def with_leader(rows: Sequence[Summary]) -> list[Summary]:
    """The rows, with the one marked that leads the others by more than the spread; bounds do not compete."""
    rivals = [row for row in rows if not row.bound] or rows
    return [replace(row, leads=row in rivals and _leads(row, rivals)) for row in rows]


def to_rich(rows: Sequence[Summary], title: str, ended: Mapping[str, str] | None = None) -> Table:
    """A table for a terminal of 80 columns; only the two accuracies have their spread.

    `ended` says, by label, why runs ended early: they have no numbers.
    """
    ended = ended or {}
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=0)
    # As Text, since rich would read brackets in names and labels as markup.
    caption = "\n".join([*notes(rows), *(f"{label} {reason}" for label, reason in ended.items())])
    table.title, table.caption = Text(title, "table.title"), Text(caption, "table.caption")
    table.title_justify = table.caption_justify = "left"
    table.add_column("run", overflow="fold")
    shown = columns(rows)
    scored = bool(common_scores(rows))
    if scored:  # there is no room for both; the page has all of them
        shown = tuple(column for column in shown if column not in COST)
    for column in shown:
        table.add_column(column.head, justify="right", no_wrap=not scored)
    for row in rows:
        cells = [
            column.cell(row) if place < ACCURACIES else column.narrow_cell(row) for place, column in enumerate(shown)
        ]
        table.add_row(Text(name(row)), *cells, style="bold" if row.leads else "")
    for label in ended.keys() - {row.label for row in rows}:
        table.add_row(Text(label), "–")
    return table


def name(row: Summary) -> str:
    """The label, with a star if the row leads."""
    return f"{row.label}{STAR}" if row.leads else row.label


def most(rows: Sequence[Summary]) -> int:
    """The largest number of evaluations that `last5` is the mean of in any row."""
    return max((row.averaged[1] for row in rows), default=5)


def last(rows: Sequence[Summary]) -> str:
    """The heading of the first accuracy: `last 5`, or a smaller number if no row has five evaluations."""
    number = most(rows)
    return "last" if number == 1 else f"last {number}"


def notes(rows: Sequence[Summary]) -> list[str]:
    """What the accuracies mean, and the star if there is one."""
    fewer = [f"{row.label} ({format_range(row.averaged)})" for row in rows if row.averaged[0] < most(rows)]
    return [note for note in (spread_note(rows, fewer), star_note(rows), *bound_notes(rows)) if note]


def bound_notes(rows: Sequence[Summary]) -> list[str]:
    """What bounds and shares mean, the levels that need no learning, and what is odd about a bound."""
    found = [f"share: {bounds.MEANING}"] if any(row.label == bounds.POOLED for row in rows) else []
    levels = next((row.levels for row in rows if row.levels), None)
    found += [f"chance {levels[0]:.1%}, most frequent class {levels[1]:.1%}"] if levels else []
    return found + [row.caution for row in rows if row.caution]


def spread_note(rows: Sequence[Summary], fewer: Sequence[str] = ()) -> str:
    """What the accuracies mean; `fewer` lists rows with fewer evaluations, and how many."""
    number = most(rows)
    what = "the last evaluation" if number == 1 else f"mean of the last {number} evaluations"
    what += f", or of fewer: {', '.join(fewer)}" if fewer else ""
    seeds = [row.seeds for row in rows]
    over = f"; mean ± std over {format_range(seeds)} seeds" if any(n > 1 for n in seeds) else ""
    return f"{last(rows)}: {what}{over}"


def star_note(rows: Sequence[Summary]) -> str:
    """What the star means; empty if there is none."""
    if not any(row.leads for row in rows):
        return ""
    excluded = any(row.bound for row in rows) and not all(row.bound for row in rows)
    return f"{STAR.strip()} leads every other row by more than the sum of their standard deviations" + (
        "; runs with all labels do not compete" if excluded else ""
    )


def _row(label: str, runs: Sequence[Run]) -> Summary:
    labels = {run.labels for run in runs}
    return Summary(
        label=label,
        seeds=len(runs),
        last5=Stat.of([run.last5 for run in runs]),
        averaged=(min(run.averaged for run in runs), max(run.averaged for run in runs)),
        best=Stat.of([run.best for run in runs]),
        rounds=Stat.of([len(run.rounds) for run in runs]),
        steps=Stat.of([run.steps for run in runs]),
        bytes_up=Stat.of([run.bytes_up for run in runs]),
        bytes_down=Stat.of([run.bytes_down for run in runs]),
        seconds=Stat.of([run.seconds for run in runs]),
        labels=labels.pop() if len(labels) == 1 else "",
        saved=Stat.of([run.saved for run in runs]),
        scores=_scores(runs),
    )


def _scores(runs: Sequence[Run]) -> dict[str, Stat]:
    """The scores of the last evaluation that every run has."""
    names = {name: None for run in runs for record in run.rounds for name in record.scores}
    last_of = {name: [list(run.score_curve(name).values())[-1:] for run in runs] for name in names}
    return {name: Stat.of([each[0] for each in found]) for name, found in last_of.items() if all(found)}


def _leads(row: Summary, rivals: Sequence[Summary]) -> bool:
    """Whether mean - std of a row is above mean + std of every other one; with one seed there is no std."""
    others = [other for other in rivals if other is not row]
    return bool(others) and all(_above(row.last5, other.last5) for other in others)


def _above(one: Stat, other: Stat) -> bool:
    return one.std is not None and other.std is not None and one.mean - other.mean > one.std + other.std
