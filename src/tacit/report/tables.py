"""One row per label, over its seeds: what it reached and what it cost."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from tacit.report.read import ALL_LABELS, Run, by_label
from tacit.report.units import Stat, count, duration, percent, size

STAR = "\u00a0★"  # never alone at the start of a line


@dataclass(frozen=True)
class Row:
    """All runs of one label; accuracies between 0 and 1."""

    label: str
    seeds: int
    last5: Stat
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
    number: Callable[[Row], Stat]
    form: Callable[[Stat], str]

    def cell(self, row: Row) -> str:
        """The number as mean ± std."""
        return self.form(self.number(row))

    def narrow_cell(self, row: Row) -> str:
        """The mean alone."""
        return self.form(Stat(self.number(row).mean, None))


REACHED = (
    Column("last 5 (%)", lambda row: row.last5, percent),
    Column("best (%)", lambda row: row.best, percent),
)
COST = (
    Column("rounds", lambda row: row.rounds, count),
    Column("steps", lambda row: row.steps, count),
    Column("up", lambda row: row.bytes_up, size),
    Column("down", lambda row: row.bytes_down, size),
    Column("time", lambda row: row.seconds, duration),
)


def summarise(runs: Sequence[Run]) -> list[Row]:
    """A row per label, in the order of their first appearance."""
    return with_leader([_row(label, group) for label, group in by_label(runs).items()])


def with_leader(rows: Sequence[Row]) -> list[Row]:
    """The rows, the one that is ahead of the others by more than the spread marked; bounds do not compete."""
    rivals = [row for row in rows if not row.bound] or rows
    return [replace(row, leads=row in rivals and _leads(row, rivals)) for row in rows]


def to_rich(rows: Sequence[Row], title: str) -> Table:
    """A table for a terminal of 80 columns; only accuracies show their spread."""
    table = Table(title=title, caption=_caption(rows), box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=0)
    table.title_justify = table.caption_justify = "left"
    table.add_column("run", overflow="fold")
    for column in REACHED + COST:
        table.add_column(column.head, justify="right", no_wrap=True)
    for row in rows:
        cells = [column.cell(row) for column in REACHED] + [column.narrow_cell(row) for column in COST]
        table.add_row(Text(name(row)), *cells, style="bold" if row.leads else "")
    return table


def to_markdown(rows: Sequence[Row]) -> str:
    """The same as a table in Markdown, with every spread."""
    columns = REACHED + COST
    lines = [
        "| " + " | ".join(["run", "seeds", *(column.head for column in columns)]) + " |",
        "|---|" + "--:|" * (1 + len(columns)),
    ]
    for row in rows:
        cells = [name(row).replace("|", r"\|"), str(row.seeds), *(column.cell(row) for column in columns)]
        lines.append("| " + " | ".join(f"**{cell}**" if row.leads else cell for cell in cells) + " |")
    if note := star_note(rows):
        lines += ["", note]
    return "\n".join(lines) + "\n"


def name(row: Row) -> str:
    """The label, with its star where it has one."""
    return f"{row.label}{STAR}" if row.leads else row.label


def spread_note(rows: Sequence[Row]) -> str:
    """What the accuracies are."""
    seeds = sorted({row.seeds for row in rows})
    if seeds in ([], [1]):
        return "last 5: mean of the last 5 evaluations"
    over = f"{seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else f"{seeds[0]}"
    return f"last 5: mean of the last 5 evaluations; mean ± std over {over} seeds"


def star_note(rows: Sequence[Row]) -> str:
    """What the star means; empty where there is none."""
    if not any(row.leads for row in rows):
        return ""
    aside = any(row.bound for row in rows) and not all(row.bound for row in rows)
    return f"{STAR.strip()} leads by more than both spreads together" + (
        "; runs with all labels do not compete" if aside else ""
    )


def _row(label: str, runs: Sequence[Run]) -> Row:
    labels = {run.labels for run in runs}
    return Row(
        label=label,
        seeds=len(runs),
        last5=Stat.of([run.last5 for run in runs]),
        best=Stat.of([run.best for run in runs]),
        rounds=Stat.of([len(run.rounds) for run in runs]),
        steps=Stat.of([run.steps for run in runs]),
        bytes_up=Stat.of([run.bytes_up for run in runs]),
        bytes_down=Stat.of([run.bytes_down for run in runs]),
        seconds=Stat.of([run.seconds for run in runs]),
        labels=labels.pop() if len(labels) == 1 else "",
    )


def _leads(row: Row, rivals: Sequence[Row]) -> bool:
    """Whether mean - std of a row lies above mean + std of each other one; with one seed nobody can tell."""
    others = [other for other in rivals if other is not row]
    return bool(others) and all(_above(row.last5, other.last5) for other in others)


def _above(one: Stat, other: Stat) -> bool:
    return one.std is not None and other.std is not None and one.mean - other.mean > one.std + other.std


def _caption(rows: Sequence[Row]) -> str:
    return "\n".join(note for note in (spread_note(rows), star_note(rows)) if note)
