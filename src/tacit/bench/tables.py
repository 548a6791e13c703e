"""The table of a benchmark: our accuracy, the best one, the paper's, the difference, and the costs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, multimode

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tacit.bench import spec
from tacit.bench.plan import Cell
from tacit.bench.results import Place, Seeds
from tacit.bench.spec import Benchmark
from tacit.formatting import Stat, count, format_range, percent
from tacit.report import bounds, tables
from tacit.report.tables import COST, STAR, Summary

TESTED = 1000  # test samples at least, where a config leaves their number to the source
QUICK = "quick: not the paper's scale"
MISSING = "–"
BELOW = f"below: seeds that end below {bounds.LABELS_ONLY} with the same seed"
COSTS = ("labels", *(column.head for column in COST))


@dataclass(frozen=True)
class Line:
    """A row in one column; `ours` is None until it has been run."""

    title: str
    labels: str
    ours: Summary | None
    paper: float | None  # in percent
    caveats: tuple[int, ...]  # numbers of the footnotes about the paper's number
    rounds_to: str = MISSING  # rounds to the requested accuracy
    compared: tuple[int, int] | None = None  # seeds below labels-only with the same seed, and seeds that both have

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's, in points."""
        return None if self.ours is None or self.paper is None else 100 * self.ours.last5.mean - self.paper

    @property
    def name(self) -> str:
        """The title, with a star if it leads."""
        return f"{self.title}{STAR}" if self.leads else self.title

    @property
    def leads(self) -> bool:
        """Whether it is ahead of all other rows by more than the spread."""
        return self.ours is not None and self.ours.leads

    @property
    def share(self) -> str:
        """The share of the pooled gain."""
        return MISSING if self.ours is None or self.ours.share is None else f"{self.ours.share:.2f}"

    @property
    def below(self) -> str:
        """`1/3`: one of three seeds ended below labels-only."""
        return MISSING if self.compared is None else f"{self.compared[0]}/{self.compared[1]}"

    @property
    def seeds(self) -> str:
        """The number of its seeds."""
        return str(self.ours.seeds) if self.ours else "0"

    def accuracies(self, spread: bool = True) -> list[str]:
        """Ours, best, the paper's, the difference; without `spread`, the best has none, to save room."""
        if self.ours is None:
            return [MISSING, MISSING, self.published, MISSING]
        best = self.ours.best if spread else Stat(self.ours.best.mean)
        difference = MISSING if self.difference is None else points(self.difference)
        return [percent(self.ours.last5), percent(best), self.published, difference]

    @property
    def published(self) -> str:
        """The paper's number with its footnotes."""
        return MISSING if self.paper is None else f"{self.paper:.2f}{superscript(self.caveats)}"

    def costs(self, spread: bool = True) -> list[str]:
        """Labels, rounds, steps, bytes and time; without `spread`, means only."""
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
        """The rows that have been run."""
        return [line.ours for line in self.lines if line.ours]


@dataclass(frozen=True)
class ResultTable:
    """The whole table, ready to print."""

    name: str
    title: str
    paper: str  # the source of the published numbers
    about: str
    blocks: list[Block]
    rows: list[str]  # titles of all rows in the order of the file, the bounds last
    caveats: list[str]  # the footnotes, in the order of their numbers
    argument: str  # what `tacit bench run` takes: a name, or the path of a file
    target: float | None = None  # accuracy in percent; the table shows the rounds each row takes to it

    @property
    def done(self) -> list[Summary]:
        """The rows of all columns that have been run."""
        return [row for block in self.blocks for row in block.done]

    @property
    def started(self) -> list[Block]:
        """The columns with at least one result."""
        return [block for block in self.blocks if block.done]

    @property
    def not_started(self) -> list[str]:
        """The titles of the columns without results, which would show only the paper's numbers."""
        return [block.title for block in self.blocks if not block.done]

    @property
    def compares(self) -> bool:
        """Whether some row can be compared with labels-only seed by seed."""
        return any(line.compared is not None for block in self.blocks for line in block.lines)

    @property
    def heads(self) -> list[str]:
        """The headings of `Line.accuracies`."""
        return [f"{tables.last(self.done)} (%)", "best (%)", "paper", "difference"]

    @property
    def notes(self) -> list[str]:
        """How to read the numbers, and the footnotes."""
        rows = self.done
        notes = [tables.spread_note(rows, self._fewer()), tables.star_note(rows)] if rows else ["nothing has been run"]
        notes += [BELOW] if self.compares else []
        notes += [f"share: {bounds.MEANING}"] if any(row.share is not None for row in rows) else []
        notes += [f"paper: {self.paper}"] if self.paper else []
        shown = {number for block in self.started for line in block.lines for number in line.caveats}
        return [note for note in notes if note] + [
            f"{superscript([number])} {why}" for number, why in enumerate(self.caveats, start=1) if number in shown
        ]

    def _fewer(self) -> list[str]:
        """Columns, or rows in a column, whose accuracies are means of fewer evaluations than elsewhere."""
        most, named = tables.most(self.done), []
        for block in self.blocks:
            short = {
                line.title: line.ours.averaged for line in block.lines if line.ours and line.ours.averaged[0] < most
            }
            same = len(short) == len(block.done) and len(set(short.values())) == 1
            if len(self.blocks) > 1:
                short = {f"{title} in {block.title}": number for title, number in short.items()}
                short = {block.title: next(iter(short.values()))} if same else short
            named += [f"{name} ({format_range(number)})" for name, number in short.items()]
        return named


def points(difference: float) -> str:
    """`+1.3`, or `−0.7` with a real minus sign."""
    return f"{difference:+.1f}".replace("-", "−")


def superscript(numbers: Sequence[int]) -> str:
    """`¹`, or `¹,²` for two numbers."""
    digits = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
    return ",".join(str(number).translate(digits) for number in numbers)


def build(
    benchmark: Benchmark,
    cells: Sequence[Cell],
    measured: Mapping[Place, Seeds],
    quick: bool,
    target: float | None = None,
) -> ResultTable:
    """The table of these cells and their results; with `target`, also the rounds to that accuracy in percent."""
    blocks = []
    for column in benchmark.columns.values():
        here = [cell for cell in cells if cell.column.name == column.name]
        if here:
            blocks.append(Block(column.name, column.title, _lines(benchmark, here, measured, target)))
    title = f"{benchmark.title} ({QUICK})" if quick else benchmark.title
    caveats = [caveat.why for caveat in benchmark.caveats]
    argument = benchmark.name if benchmark.name in spec.names() else str(benchmark.path)
    rows = list(dict.fromkeys(row.title for row in [*benchmark.rows.values(), *(cell.row for cell in cells)]))
    return ResultTable(benchmark.name, title, benchmark.paper, benchmark.about, blocks, rows, caveats, argument, target)


def _lines(
    benchmark: Benchmark, here: Sequence[Cell], measured: Mapping[Place, Seeds], target: float | None
) -> list[Line]:
    known = {cell.row.name: cell for cell in here if cell.place in measured}
    accuracies = {name: [each.last5 for each in measured[cell.place].values()] for name, cell in known.items()}
    shares = bounds.shares(accuracies, here[0].config.data.test or TESTED)
    done = [replace(_row(cell, measured[cell.place]), share=shares.get(name)) for name, cell in known.items()]
    # No row leads until all have run, since a missing one might be ahead.
    rows = {row.label: row for row in (tables.with_leader(done) if len(done) == len(here) else done)}
    labels_only = next((measured[c.place] for c in known.values() if c.row.name == bounds.LABELS_ONLY), {})
    lines = []
    for cell in here:
        column, row = cell.place
        paper = benchmark.published.get(row, {}).get(column)
        about = [n for n, caveat in enumerate(benchmark.caveats, start=1) if caveat.concerns(row, column)]
        caveats = tuple(about) if paper is not None else ()
        seeds = measured.get(cell.place, {})
        compared = _below(seeds, labels_only) if row != bounds.LABELS_ONLY else None
        line = Line(cell.row.title, cell.labels, rows.get(row), paper, caveats, _rounds_to(target, seeds), compared)
        lines.append(line)
    return lines


def _below(seeds: Seeds, reference: Seeds) -> tuple[int, int] | None:
    """How many seeds end below the reference with the same seed, and how many both have; None if that is none."""
    both = seeds.keys() & reference.keys()
    return (sum(seeds[seed].last5 < reference[seed].last5 for seed in both), len(both)) if both else None


def _rounds_to(target: float | None, seeds: Seeds) -> str:
    """The mean over seeds; – unless all of them get there."""
    rounds = [] if target is None else [values.rounds_to(target) for values in seeds.values()]
    known = [number for number in rounds if number is not None]
    return count(Stat(fmean(known))) if known and known == rounds else MISSING


def _row(cell: Cell, seeds: Seeds) -> Summary:
    def stat(name: str) -> Stat:
        return Stat.of([float(getattr(values, name)) for values in seeds.values()])

    return Summary(
        label=cell.row.name,
        seeds=len(seeds),
        last5=stat("last5"),
        averaged=(min(values.averaged for values in seeds.values()), max(v.averaged for v in seeds.values())),
        best=stat("best"),
        rounds=stat("rounds"),
        steps=stat("steps"),
        bytes_up=stat("bytes_up"),
        bytes_down=stat("bytes_down"),
        seconds=stat("seconds"),
        labels=cell.labels,
    )


def show(table: ResultTable, console: Console) -> None:
    """Print it for a terminal of 80 columns: a block per column, with what its rows share in the heading."""
    console.print(Text(table.title, style="bold"), soft_wrap=True)
    for block in table.started:
        console.print()
        console.print(_block(block, table.heads[0], table.target, table.compares))
    console.print()
    rest = [f"not run yet: {'; '.join(table.not_started)}"] if table.not_started else []
    for note in [*rest, *(table.notes if table.started else [])]:
        console.print(note, highlight=False, markup=False)


def _block(block: Block, last: str, target: float | None, compares: bool) -> Table:
    shared = [_most_common([line.costs()[i] for line in block.lines]) for i in (0, 1)]
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=0)
    labels, rounds = shared[0], "" if shared[1] == MISSING else f"{shared[1]} round{'s' * (shared[1] != '1')}"
    table.title = Text(", ".join(part for part in (block.title, labels, rounds) if part != MISSING and part), "bold")
    table.title_justify = "left"
    table.add_column("row", overflow="fold")
    # 80 columns have no room for both, so the rounds to an accuracy replace the bytes.
    between = ("steps", "up", "down") if target is None else (f"rounds to\n{target:g} %", "steps")
    sharing = target is None and any(row.share is not None for row in block.done)
    between = ("share", "steps") if sharing else between
    compared = ("below",) if compares else ()
    for head in (last, "best", "paper", "diff.", *compared, *between, "time"):
        table.add_column(head, justify="right", no_wrap=True)
    for line in block.lines:
        costs = line.costs()
        odd = [value for value, common in zip(costs[:2], shared, strict=True) if value not in (common, MISSING)]
        name = f"{line.name} ({', '.join(odd)})" if odd and odd != [line.title.lower()] else line.name
        means = line.costs(spread=False)
        costs = means[2:] if target is None else [line.rounds_to, means[2], means[5]]
        costs = [line.share, means[2], means[5]] if sharing else costs
        cells = [*line.accuracies(spread=False), *([line.below] if compares else []), *costs]
        table.add_row(Text(name), *cells, style="bold" if line.leads else "")
    return table


def _most_common(values: Sequence[str]) -> str:
    """The value of most rows."""
    known = [value for value in values if value != MISSING]
    return multimode(known)[0] if known else MISSING
