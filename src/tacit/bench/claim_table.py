"""The table of claims in Markdown: a part for each paper, with numbers and verdicts from the stored results."""

from collections import Counter
from collections.abc import Sequence

from tacit.bench.claims import Comparison, Judged, Verdict
from tacit.bench.export import plain
from tacit.bench.tables import QUICK
from tacit.formatting import Stat

HEADS = ("claim", "in the paper", "here", "result", "verdict")
NOTHING = "no result yet"


def to_markdown(judged: Sequence[Judged]) -> str:
    """How many claims have which verdict, then a table for each paper."""
    counts = Counter(each.verdict for each in judged)
    said = ", ".join(f"{counts[verdict]} {_plural(verdict, counts[verdict])}" for verdict in Verdict if counts[verdict])
    parts = [f"**{len(judged)} claim{'s' * (len(judged) != 1)}: {said}.**"]
    for paper in dict.fromkeys(each.claim.paper for each in judged):
        lines = ["| " + " | ".join(HEADS) + " |", "|" + "---|" * len(HEADS)]
        lines += [_line(each) for each in judged if each.claim.paper == paper]
        parts.append(f"## {paper}\n\n" + "\n".join(lines))
    return "\n\n".join(parts) + "\n"


def _plural(verdict: Verdict, number: int) -> str:
    words = {Verdict.HOLDS: "hold", Verdict.IN_PART: "hold in part", Verdict.FAILS: "do not hold"}
    return verdict if number == 1 else words.get(verdict, verdict)


def _line(judged: Judged) -> str:
    claim = judged.claim
    columns = list(dict.fromkeys(each.column for each in judged.comparisons))
    title = f"{judged.benchmark.title} ({QUICK})" if judged.quick else judged.benchmark.title
    here = f"{plain(title)}; {plain(', '.join(columns))}<br>`{judged.command}`"
    cells = (
        plain(claim.claim),
        plain(claim.shown),
        here,
        _results(judged, len(columns) > 1),
        f"**{_verdict(judged)}**",
    )
    return "| " + " | ".join(cells) + " |"


def _verdict(judged: Judged) -> str:
    if judged.verdict is Verdict.UNAFFORDABLE:
        return f"{judged.verdict}: {plain(judged.claim.unaffordable)}"
    return f"{judged.verdict} ({judged.seeds} so far)" if judged.verdict is Verdict.OPEN else judged.verdict


def _results(judged: Judged, several: bool) -> str:
    if not any(each.seeds for each in judged.comparisons):
        return NOTHING
    return "<br>".join((f"{plain(each.column)}: " if several else "") + _result(each) for each in judged.comparisons)


def _result(comparison: Comparison) -> str:
    first, second = plain(comparison.first), plain(comparison.second)
    if comparison.values is None or comparison.difference is None:
        return f"{first}, {second}: {NOTHING}"
    seeds = f"{comparison.seeds} seed{'s' * (comparison.seeds > 1)}"
    one, other = comparison.values
    if comparison.kind == "sends":
        return f"{first} uploads {one.mean / other.mean:.2f} of {second}, {seeds}"
    digits = 3 if comparison.kind == "lowers" else 1
    ahead = f"{round(comparison.difference.mean, digits) + 0.0:+.{digits}f}".replace("-", "−")
    numbers = f"{_number(one, digits)} ({first}) against {_number(other, digits)} ({second})"
    return f"{numbers}: {ahead}{_spread(comparison.difference, digits)}, {seeds}"


def _number(stat: Stat, digits: int) -> str:
    return f"{stat.mean:.{digits}f}{_spread(stat, digits)}"


def _spread(stat: Stat, digits: int) -> str:
    return "" if stat.std is None else f" ± {stat.std:.{digits}f}"
