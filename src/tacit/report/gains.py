"""How much each method gains over training on the labels alone, in one sentence."""

from collections.abc import Sequence

from tacit.formatting import Stat
from tacit.report.history import ALL_LABELS, Run, by_label

BASELINE = "labels only"  # how the row is called, with or without a hyphen


def sentence(runs: Sequence[Run]) -> str:
    """`semifl gains 2.0 ± 0.8 points over labels-only; …`; empty unless there are runs on the labels only.

    A gain is the mean over the seeds that both have, of the difference of the accuracies of their last evaluations.
    Runs with all labels are no rivals and left out.
    """
    rows = by_label(runs)
    baseline = next((label for label in rows if _plain(label) == BASELINE), None)
    if baseline is None:
        return ""
    rivals = {label: some for label, some in rows.items() if label != baseline and not _knows_all(some)}
    found = {label: gain(some, rows[baseline]) for label, some in rivals.items()}
    known = [(label, each) for label, each in found.items() if each is not None]
    clauses = [_clause(label, each, "" if n else f" over {baseline}") for n, (label, each) in enumerate(known)]
    return "; ".join(clauses) + "." if clauses else ""


def gain(runs: Sequence[Run], baseline: Sequence[Run]) -> Stat | None:
    """The difference to the baseline over the seeds that both have; None if there is no such seed."""
    before = {run.seed: run.last5 for run in baseline}
    differences = [run.last5 - before[run.seed] for run in runs if run.seed in before]
    return Stat.of(differences) if differences else None


def _clause(label: str, found: Stat, over: str) -> str:
    word = "gains" if found.mean >= 0 else "loses"
    points = f"{100 * abs(found.mean):.1f}"
    if found.std is None:
        return f"{label} {word} {points} points{over} (one seed)"
    unclear = ", within the spread of the seeds" if abs(found.mean) <= found.std else ""
    return f"{label} {word} {points} ± {100 * found.std:.1f} points{over}{unclear}"


def _plain(label: str) -> str:
    return label.lower().replace("-", " ")


def _knows_all(runs: Sequence[Run]) -> bool:
    return all(run.labels == ALL_LABELS for run in runs)
