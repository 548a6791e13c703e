"""What papers claim, judged by stored results only. The claims are in `claims.toml` next to the benchmarks.

A claim compares rows of one benchmark in some of its columns, on the seeds that both rows have, and seed by seed: the
same seed draws the same data. The verdict follows from the comparisons by the rules of `Comparison.checks` and
`verdict` and is never typed.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from tacit.bench import results, spec
from tacit.bench.plan import Cell
from tacit.bench.results import CellResult, Place, Seeds
from tacit.bench.spec import Benchmark
from tacit.errors import TacitError, unknown
from tacit.formatting import Stat
from tacit.runs import config as configs
from tacit.runs.settings import check

SEEDS = 3  # that both rows of a comparison need before it counts
LEVEL = 1.0  # points by which a row that matches another may be below it

Kind = Literal["beats", "matches", "sends", "lowers"]


class Verdict(StrEnum):
    """What the stored results say about a claim."""

    HOLDS = "holds"
    IN_PART = "holds in part"
    FAILS = "does not hold"
    OPEN = "not yet on three seeds"
    UNAFFORDABLE = "not affordable here"


@dataclass(frozen=True)
class Claim:
    """A sentence of a paper, and the rows of a benchmark that it is about."""

    paper: str
    claim: str  # in one sentence
    shown: str  # where the paper shows it
    benchmark: str  # where it is looked for here; `-quick` at the end selects the reduced scale
    columns: Annotated[list[str], Field(min_length=1)]
    row: str = ""  # the row that the claim is about
    beats: list[str] = field(default_factory=list)  # rows that it is better than
    margin: Annotated[float, Field(ge=0)] = 0.0  # points by which it is better, if the paper says so
    matches: list[str] = field(default_factory=list)  # rows that it is at most LEVEL points below
    falls: list[str] = field(default_factory=list)  # rows from the best to the worst, each better than the next
    sends: Annotated[float, Field(gt=0)] | None = None  # share of the bytes that the rows in `of` upload, at most
    of: list[str] = field(default_factory=list)
    lowers: Literal["", "weight_diversity"] = ""  # a logged number that is lower than that of the rows in `than`
    than: list[str] = field(default_factory=list)
    unaffordable: str = ""  # why three seeds cannot be had on a small machine

    @property
    def pairs(self) -> list[tuple[Kind, str, str]]:
        """The pairs of rows to compare, and how."""
        pairs: list[tuple[Kind, str, str]] = [("beats", self.row, other) for other in self.beats]
        pairs += [("beats", better, worse) for better, worse in zip(self.falls, self.falls[1:], strict=False)]
        pairs += [("matches", self.row, other) for other in self.matches]
        pairs += [("sends", self.row, other) for other in self.of]
        return pairs + [("lowers", self.row, other) for other in self.than]

    def value(self, kind: Kind, result: CellResult) -> float | None:
        """The number that a comparison of this kind is about; None where it was not stored."""
        if kind == "sends":
            return float(result.bytes_up)
        return result.logged.get(self.lowers) if kind == "lowers" else 100 * result.last5

    @property
    def rows(self) -> list[str]:
        """All rows it needs, in the order of its comparisons."""
        return list(dict.fromkeys(row for _, *both in self.pairs for row in both))


@dataclass(frozen=True)
class Comparison:
    """Two rows in a column, on the seeds that both have: accuracies in percent, bytes, or a logged number."""

    kind: Kind
    column: str  # titles
    first: str
    second: str
    seeds: int
    values: tuple[Stat, Stat] | None  # None without a common seed
    difference: Stat | None  # first minus second, seed by seed; None as well
    margin: float = 0.0
    most: float = 1.0  # share of the second's bytes

    def checks(self) -> list[bool] | None:
        """What has to be true for the claim to hold, and whether it is; None with fewer than SEEDS common seeds.

        A row beats another if the mean difference is above the standard deviation of the differences; a margin of the
        paper is a second check.
        """
        if self.seeds < SEEDS or self.values is None or self.difference is None:
            return None
        mean, std = self.difference.mean, self.difference.std or 0.0
        match self.kind:
            case "beats":
                return [mean > std] + ([mean >= self.margin] if self.margin else [])
            case "matches":
                return [mean >= -LEVEL]
            case "sends":
                return [self.values[0].mean <= self.most * self.values[1].mean]
            case "lowers":
                return [-mean > std]


@dataclass(frozen=True)
class Judged:
    """A claim with its comparisons."""

    claim: Claim
    benchmark: Benchmark
    quick: bool  # its reduced scale
    comparisons: list[Comparison]

    @property
    def verdict(self) -> Verdict:
        """The verdict on it."""
        return verdict(self.comparisons, bool(self.claim.unaffordable))

    @property
    def seeds(self) -> int:
        """The seeds that all its comparisons have at least."""
        return min(each.seeds for each in self.comparisons)

    @property
    def command(self) -> str:
        """The command that runs what it needs, on three seeds."""
        parts = [self.benchmark.name, *(["--quick"] if self.quick else [])]
        parts += [f"--column {column}" for column in self.claim.columns]
        parts += [f"--only {row}" for row in self.claim.rows]
        return f"tacit bench run {' '.join(parts)} --seeds {','.join(map(str, range(SEEDS)))}"


def verdict(comparisons: Sequence[Comparison], unaffordable: bool = False) -> Verdict:
    """Every check is true: it holds; none is: it does not; a comparison without enough seeds leaves it open."""
    checks = [each.checks() for each in comparisons]
    done = [check for those in checks if those is not None for check in those]
    if None in checks:
        return Verdict.UNAFFORDABLE if unaffordable else Verdict.OPEN
    if all(done):
        return Verdict.HOLDS
    return Verdict.IN_PART if any(done) else Verdict.FAILS


def path() -> Path:
    """The file of the claims."""
    return spec.folder() / spec.CLAIMS


def read(file: Path) -> list[Claim]:
    """The claims in a file; an error begins with the file's path and the claim."""
    tree = configs.read(file)
    found = []
    for number, value in enumerate(tree.get("claims", []), start=1):
        try:
            found.append(make(value))
        except TacitError as error:
            raise error.within(f"{file}, claim {number}") from error
    return found


def make(value: Mapping[str, Any]) -> Claim:
    """The claim with these fields; refuses one that compares nothing."""
    needed = [item.name for item in fields(Claim) if item.default is MISSING and item.default_factory is MISSING]
    missing = [name for name in needed if name not in value]
    if missing:
        raise TacitError(f"{missing[0]} is missing", f"give {', '.join(needed)}", code="bench.missing-section")
    claim = Claim(**check(Claim, value, "claims"))
    others = [*claim.beats, *claim.matches, *claim.of, *claim.than]
    halves = (claim.sends is None) != (not claim.of) or (not claim.lowers) != (not claim.than)
    if not claim.pairs or bool(claim.row) != bool(others) or halves:
        raise TacitError(
            "its rows are not compared",
            "give row with beats, matches, sends and of, or lowers and than; or falls with two rows or more",
            code="bench.no-comparison",
        )
    return claim


def judge(claims: Sequence[Claim]) -> list[Judged]:
    """The claims with the comparisons that the stored results allow."""
    known = {name: results.by_name(name) for name in dict.fromkeys(claim.benchmark for claim in claims)}
    judged = []
    for claim in claims:
        benchmark, quick, cells, stored = known[claim.benchmark]
        judged.append(Judged(claim, benchmark, quick, list(_compare(claim, cells, stored.measured))))
    return judged


def _compare(claim: Claim, cells: Sequence[Cell], measured: Mapping[Place, Seeds]) -> Iterator[Comparison]:
    known = {cell.place: cell for cell in cells}
    for column in claim.columns:
        if column not in {place[0] for place in known}:
            raise unknown("column", column, {place[0] for place in known})
        for kind, *rows in claim.pairs:
            for row in rows:
                if (column, row) not in known:
                    raise unknown("row", row, {place[1] for place in known if place[0] == column})
            first, second = (known[column, row] for row in rows)
            yield comparison(claim, kind, first, second, measured)


def comparison(claim: Claim, kind: Kind, first: Cell, second: Cell, measured: Mapping[Place, Seeds]) -> Comparison:
    """The comparison of two cells on the seeds for which both have the number in question."""
    one, other = (
        {
            seed: value
            for seed, result in measured.get(cell.place, {}).items()
            if (value := claim.value(kind, result)) is not None
        }
        for cell in (first, second)
    )
    common = sorted(one.keys() & other.keys())
    titles = (first.column.title, first.row.title, second.row.title)
    if not common:
        return Comparison(kind, *titles, 0, None, None)
    values = (Stat.of([one[seed] for seed in common]), Stat.of([other[seed] for seed in common]))
    difference = Stat.of([one[seed] - other[seed] for seed in common])
    return Comparison(kind, *titles, len(common), values, difference, claim.margin, claim.sends or 1.0)
