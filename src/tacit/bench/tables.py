"""The table of a benchmark: ours, the best beside it, the paper's, the difference, and what it cost."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, multimode

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tacit.bench import files
from tacit.bench.cells import Spot
from tacit.bench.files import Benchmark
from tacit.bench.keep import Place, Seeds
from tacit.report import tables
from tacit.report.tables import COST, STAR, Summary
from tacit.report.units import Stat, count, percent, span

QUICK = "quick: not the paper's scale"
MISSING = "–"
COSTS = ("labels", *(column.head for column in COST))


@dataclass(frozen=True)
class Line:
    """A row in one column; `ours` is None where it is not done."""

    title: str
    labels: str
    ours: Summary | None
    paper: float | None  # in percent
    doubts: tuple[int, ...]  # numbers of the footnotes about the paper's number
    reach: str = MISSING  # rounds to the accuracy that was asked for

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's, in points."""
        return None if self.ours is None or self.paper is None else 100 * self.ours.last5.mean - self.paper

    @property
    def name(self) -> str:
        """The title, with a star where it leads."""
        return f"{self.title}{STAR}" if self.leads else self.title

    @property
    def leads(self) -> bool:
        """Whether it is ahead of all others by more than the spread."""
        return self.ours is not None and self.ours.leads

    @property
    def seeds(self) -> str:
        """How many there are of it."""
        return str(self.ours.seeds) if self.ours else "0"

    def reached(self, spread: bool = True) -> list[str]:
        """Ours, best, the paper's, the difference; the best without its spread where there is no room."""
        if self.ours is None:
            return [MISSING, MISSING, self.published, MISSING]
        best = self.ours.best if spread else Stat(self.ours.best.mean)
        apart = MISSING if self.difference is None else points(self.difference)
        return [percent(self.ours.last5), percent(best), self.published, apart]

    @property
    def published(self) -> str:
        """The paper's number with its footnotes."""
        return MISSING if self.paper is None else f"{self.paper:.2f}{superscript(self.doubts)}"

    def costs(self, spread: bool = True) -> list[str]:
        """Labels, rounds, steps, bytes and time, likewise."""
        if self.ours is None:
            return [self.labels or MISSING, *[MISSING] * len(COST)]
        costs = [column.cell(self.ours) if spread else column.narrow_cell(self.ours) for column in COST]
        return [self.labels or MISSING, *costs]


@dataclass(frozen=True)
class Block:
    """A column of the paper's table."""

    name: str
    title: str
    lines: list[Line]

    @property
    def done(self) -> list[Summary]:
        """What is there of it."""
        return [line.ours for line in self.lines if line.ours]


@dataclass(frozen=True)
class Sheet:
    """The whole table."""

    name: str
    title: str
    paper: str  # who printed the numbers
    about: str
    blocks: list[Block]
    rows: list[str]  # titles of all rows in the order of the file, the bounds last
    doubts: list[str]  # the footnotes, in the order of their numbers
    call: str  # what to run it by: a name, or the path of one's own file
    reach: float | None = None  # an accuracy in percent, of which to tell in how many rounds rows get there

    @property
    def done(self) -> list[Summary]:
        """What is there of all columns."""
        return [row for block in self.blocks for row in block.done]

    @property
    def begun(self) -> list[Block]:
        """The columns of which something is done."""
        return [block for block in self.blocks if block.done]

    @property
    def waiting(self) -> list[str]:
        """The titles of the others, whose tables would be empty but for the paper's numbers."""
        return [block.title for block in self.blocks if not block.done]

    @property
    def heads(self) -> list[str]:
        """Of what `Line.reached` gives."""
        return [f"{tables.last(self.done)} (%)", "best (%)", "paper", "difference"]

    @property
    def notes(self) -> list[str]:
        """What one has to know to read it."""
        rows = self.done
        notes = [tables.spread_note(rows, self._fewer()), tables.star_note(rows)] if rows else ["nothing is done yet"]
        notes += [f"paper: {self.paper}"] if self.paper else []
        asked = {number for block in self.begun for line in block.lines for number in line.doubts}
        return [note for note in notes if note] + [
            f"{superscript([number])} {why}" for number, why in enumerate(self.doubts, start=1) if number in asked
        ]

    def _fewer(self) -> list[str]:
        """Where accuracies are means of fewer evaluations than elsewhere: whole columns, or single rows of them."""
        most, named = tables.most(self.done), []
        for block in self.blocks:
            short = {
                line.title: line.ours.averaged for line in block.lines if line.ours and line.ours.averaged[0] < most
            }
            alike = len(short) == len(block.done) and len(set(short.values())) == 1
            if len(self.blocks) > 1:
                short = {f"{title} in {block.title}": number for title, number in short.items()}
                short = {block.title: next(iter(short.values()))} if alike else short
            named += [f"{name} ({span(number)})" for name, number in short.items()]
        return named


def points(difference: float) -> str:
    """`+1.3`, or `−0.7` with a minus as long as the plus."""
    return f"{difference:+.1f}".replace("-", "−")


def superscript(numbers: Sequence[int]) -> str:
    """¹, or ¹,² for two."""
    digits = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
    return ",".join(str(number).translate(digits) for number in numbers)


def build(
    benchmark: Benchmark,
    found: Sequence[Spot],
    measured: Mapping[Place, Seeds],
    quick: bool,
    reach: float | None = None,
) -> Sheet:
    """The table of these places and of what came out there, if need be with the rounds to an accuracy in percent."""
    blocks = []
    for column in benchmark.columns.values():
        here = [spot for spot in found if spot.column.name == column.name]
        if here:
            blocks.append(Block(column.name, column.title, _lines(benchmark, here, measured, reach)))
    title = f"{benchmark.title} ({QUICK})" if quick else benchmark.title
    doubts = [doubt.why for doubt in benchmark.doubts]
    call = benchmark.name if benchmark.name in files.names() else str(benchmark.path)
    rows = list(dict.fromkeys(row.title for row in [*benchmark.rows.values(), *(spot.row for spot in found)]))
    return Sheet(benchmark.name, title, benchmark.paper, benchmark.about, blocks, rows, doubts, call, reach)


def _lines(
    benchmark: Benchmark, here: Sequence[Spot], measured: Mapping[Place, Seeds], reach: float | None
) -> list[Line]:
    done = [_row(spot, measured[spot.place]) for spot in here if spot.place in measured]
    # Nobody leads while others may still come in ahead.
    rows = {row.label: row for row in (tables.with_leader(done) if len(done) == len(here) else done)}
    lines = []
    for spot in here:
        column, row = spot.place
        paper = benchmark.published.get(row, {}).get(column)
        about = [n for n, doubt in enumerate(benchmark.doubts, start=1) if doubt.concerns(row, column)]
        doubts = tuple(about) if paper is not None else ()
        taken = _rounds_to(measured.get(spot.place, {}), reach)
        lines.append(Line(spot.row.title, spot.labels, rows.get(row), paper, doubts, taken))
    return lines


def _rounds_to(seeds: Seeds, reach: float | None) -> str:
    """The mean over seeds; – unless all of them get there."""
    taken = [] if reach is None else [values.rounds_to(reach) for values in seeds.values()]
    known = [number for number in taken if number is not None]
    return count(Stat(fmean(known))) if known and known == taken else MISSING


def _row(spot: Spot, seeds: Seeds) -> Summary:
    def stat(name: str) -> Stat:
        return Stat.of([float(getattr(values, name)) for values in seeds.values()])

    return Summary(
        label=spot.row.name,
        seeds=len(seeds),
        last5=stat("last5"),
        averaged=(min(values.averaged for values in seeds.values()), max(v.averaged for v in seeds.values())),
        best=stat("best"),
        rounds=stat("rounds"),
        steps=stat("steps"),
        bytes_up=stat("bytes_up"),
        bytes_down=stat("bytes_down"),
        seconds=stat("seconds"),
        labels=spot.labels,
    )


def show(sheet: Sheet, console: Console) -> None:
    """Print it for a terminal of 80 columns: a block per column, what all rows of it share in its heading."""
    console.print(Text(sheet.title, style="bold"), soft_wrap=True)
    for block in sheet.begun:
        console.print()
        console.print(_block(block, sheet.heads[0], sheet.reach))
    console.print()
    rest = [f"not run yet: {'; '.join(sheet.waiting)}"] if sheet.waiting else []
    for note in [*rest, *(sheet.notes if sheet.begun else [])]:
        console.print(note, highlight=False, markup=False)


def _block(block: Block, last: str, reach: float | None) -> Table:
    shared = [_usual([line.costs()[i] for line in block.lines]) for i in (0, 1)]
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=0)
    labels, rounds = shared[0], "" if shared[1] == MISSING else f"{shared[1]} round{'s' * (shared[1] != '1')}"
    table.title = Text(", ".join(part for part in (block.title, labels, rounds) if part != MISSING and part), "bold")
    table.title_justify = "left"
    table.add_column("row", overflow="fold")
    # There is no room for more columns, so the rounds to an accuracy take the place of the bytes.
    between = ("steps", "up", "down") if reach is None else (f"rounds to\n{reach:g} %", "steps")
    for head in (last, "best", "paper", "diff.", *between, "time"):
        table.add_column(head, justify="right", no_wrap=True)
    for line in block.lines:
        costs = line.costs()
        odd = [value for value, usual in zip(costs[:2], shared, strict=True) if value not in (usual, MISSING)]
        name = f"{line.name} ({', '.join(odd)})" if odd and odd != [line.title.lower()] else line.name
        alone = line.costs(spread=False)
        costs = alone[2:] if reach is None else [line.reach, alone[2], alone[5]]
        table.add_row(Text(name), *line.reached(spread=False), *costs, style="bold" if line.leads else "")
    return table


def _usual(values: Sequence[str]) -> str:
    """What most rows say."""
    known = [value for value in values if value != MISSING]
    return multimode(known)[0] if known else MISSING
