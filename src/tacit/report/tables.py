"""One row per label, over its seeds: what it reached and what it cost."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from tacit.report.read import ALL_LABELS, Run, by_label
from tacit.report.units import Stat, count, duration, percent, size, span

STAR = "\u00a0★"  # never alone at the start of a line


@dataclass(frozen=True)
class Summary:
    """All runs of one label; accuracies between 0 and 1."""

    label: str
    seeds: int
    last5: Stat
    averaged: tuple[int, int]  # how many evaluations `last5` is the mean of: the least and the most of any seed
    best: Stat
    rounds: Stat
    steps: Stat
    bytes_up: Stat
    bytes_down: Stat
    seconds: Stat
    labels: str  # how many there were, in words; empty where that is unknown or not the same
    leads: bool = False  # ahead of the other rows by more than the spread between seeds

    @property
    def bound(self) -> bool:
        """An upper bound, which does not compete with rows that had fewer labels."""
        return self.labels == ALL_LABELS


@dataclass(frozen=True)
class Column:
    """A number of a row, under its heading."""

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
    """What each row reached and what it cost."""
    return (
        Column(f"{last(rows)} (%)", lambda row: row.last5, percent),
        Column("best (%)", lambda row: row.best, percent),
        *COST,
    )


def summarise(runs: Sequence[Run]) -> list[Summary]:
    """A row per label, in the order of their first appearance."""
    return with_leader([_row(label, group) for label, group in by_label(runs).items()])


def with_leader(rows: Sequence[Summary]) -> list[Summary]:
    """The rows, the one that is ahead of the others by more than the spread marked; bounds do not compete."""
    rivals = [row for row in rows if not row.bound] or rows
    return [replace(row, leads=row in rivals and _leads(row, rivals)) for row in rows]


def to_rich(rows: Sequence[Summary], title: str) -> Table:
    """A table for a terminal of 80 columns; only accuracies show their spread."""
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=0)
    # As text, since names and labels may hold what rich takes for markup.
    table.title, table.caption = Text(title, "table.title"), Text("\n".join(notes(rows)), "table.caption")
    table.title_justify = table.caption_justify = "left"
    table.add_column("run", overflow="fold")
    shown = columns(rows)
    for column in shown:
        table.add_column(column.head, justify="right", no_wrap=True)
    for row in rows:
        cells = [column.narrow_cell(row) if column in COST else column.cell(row) for column in shown]
        table.add_row(Text(name(row)), *cells, style="bold" if row.leads else "")
    return table


def to_markdown(rows: Sequence[Summary]) -> str:
    """The same as a table in Markdown, with every spread."""
    shown = columns(rows)
    lines = [
        "| " + " | ".join(["run", "seeds", *(column.head for column in shown)]) + " |",
        "|---|" + "--:|" * (1 + len(shown)),
    ]
    for row in rows:
        cells = [name(row).replace("|", r"\|"), str(row.seeds), *(column.cell(row) for column in shown)]
        lines.append("| " + " | ".join(f"**{cell}**" if row.leads else cell for cell in cells) + " |")
    return "\n".join([*lines, "", "  \n".join(notes(rows))]) + "\n"


def name(row: Summary) -> str:
    """The label, with its star where it has one."""
    return f"{row.label}{STAR}" if row.leads else row.label


def most(rows: Sequence[Summary]) -> int:
    """How many evaluations the first accuracy is the mean of, in the rows that have most of them."""
    return max((row.averaged[1] for row in rows), default=5)


def last(rows: Sequence[Summary]) -> str:
    """What the first accuracy is called: `last 5`, or what there is where no row has as many evaluations."""
    number = most(rows)
    return "last" if number == 1 else f"last {number}"


def notes(rows: Sequence[Summary]) -> list[str]:
    """What the accuracies are, and the star if there is one."""
    fewer = [f"{row.label} ({span(row.averaged)})" for row in rows if row.averaged[0] < most(rows)]
    return [note for note in (spread_note(rows, fewer), star_note(rows)) if note]


def spread_note(rows: Sequence[Summary], fewer: Sequence[str] = ()) -> str:
    """What the accuracies are; `fewer` names those that are means of fewer evaluations, and of how many."""
    number = most(rows)
    what = "the last evaluation" if number == 1 else f"mean of the last {number} evaluations"
    what += f", or of fewer: {', '.join(fewer)}" if fewer else ""
    seeds = [row.seeds for row in rows]
    over = f"; mean ± std over {span(seeds)} seeds" if any(n > 1 for n in seeds) else ""
    return f"{last(rows)}: {what}{over}"


def star_note(rows: Sequence[Summary]) -> str:
    """What the star means; empty where there is none."""
    if not any(row.leads for row in rows):
        return ""
    aside = any(row.bound for row in rows) and not all(row.bound for row in rows)
    return f"{STAR.strip()} leads by more than both spreads together" + (
        "; runs with all labels do not compete" if aside else ""
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
    )


def _leads(row: Summary, rivals: Sequence[Summary]) -> bool:
    """Whether mean - std of a row lies above mean + std of each other one; with one seed nobody can tell."""
    others = [other for other in rivals if other is not row]
    return bool(others) and all(_above(row.last5, other.last5) for other in others)


def _above(one: Stat, other: Stat) -> bool:
    return one.std is not None and other.std is not None and one.mean - other.mean > one.std + other.std
