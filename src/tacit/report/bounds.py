"""Bounds in a table: the share of the pooled gain that a row recovers, and whether the bounds are sound."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, pstdev
from typing import Any

from tacit.formatting import Stat
from tacit.report.history import Run

LABELS_ONLY, POOLED, ALL_LABELS = "labels-only", "pooled", "all-labels"
UPPER = (POOLED, ALL_LABELS)
MEANING = "(row − labels-only) / (pooled − labels-only); – where the pooled gain is below two standard errors"
LAST = 10  # evaluations on validation whose spread tells whether a bound has settled


@dataclass(frozen=True)
class Compared:
    """What is known about the rows of a table by comparing them with the bounds among them."""

    shares: Mapping[str, float] = field(default_factory=dict)
    cautions: Mapping[str, str] = field(default_factory=dict)
    levels: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    def about(self, label: str) -> dict[str, Any]:
        """What a row shows of it."""
        return {
            "share": self.shares.get(label),
            "caution": self.cautions.get(label, ""),
            "levels": self.levels.get(label),
        }


def compared(rows: Mapping[str, Sequence[Run]]) -> Compared:
    """Compare the rows of a table, the runs of each with all its seeds, with the bounds among them."""
    accuracies = {label: [run.last5 for run in runs] for label, runs in rows.items()}
    accuracy = {label: fmean(values) for label, values in accuracies.items()}
    named = {label: runs for label, runs in rows.items() if label in (LABELS_ONLY, *UPPER) and _in_one_place(runs)}
    found = {label: [_fallen_back(label, runs), _cross_validated(label, runs)] for label, runs in rows.items()}
    cautions = {label: text for label, texts in found.items() if (text := "; ".join(filter(None, texts)))}
    cautions |= {label: text for label, runs in named.items() if (text := _caution(label, runs, accuracy))}
    levels = {label: _levels(runs[0]) for label, runs in named.items()}
    return Compared(
        shares(accuracies, _tested(rows.values())), cautions, {label: both for label, both in levels.items() if both}
    )


def share_text(share: Stat) -> str:
    """`0.93`, or – if there is none."""
    return "–" if math.isnan(share.mean) else f"{share.mean:.2f}"


def shares(accuracies: Mapping[str, Sequence[float]], tested: float) -> dict[str, float]:
    """The share of the pooled gain of each row, by its accuracies over seeds on this number of test samples."""
    if LABELS_ONLY not in accuracies or POOLED not in accuracies:
        return {}
    low, high = (accuracies[name] for name in (LABELS_ONLY, POOLED))
    gain = fmean(high) - fmean(low)
    if not gain > 2 * math.hypot(standard_error(low, tested), standard_error(high, tested)):
        return {}
    return {label: (fmean(values) - fmean(low)) / gain for label, values in accuracies.items()}


def standard_error(accuracies: Sequence[float], tested: float) -> float:
    """Of a mean over seeds: from the test samples and, with several seeds, at least from their spread."""
    of_test = math.sqrt(fmean(value * (1 - value) for value in accuracies) / tested / len(accuracies))
    of_seeds = (Stat.of(accuracies).std or 0.0) / math.sqrt(len(accuracies))
    return max(of_test, of_seeds)


def _tested(rows: Iterable[Sequence[Run]]) -> float:
    """The test samples behind an accuracy, as far as runs say it."""
    known = [(run.selected or {}).get("samples") for runs in rows for run in runs]
    return min((float(number) for number in known if number), default=math.inf)


def _in_one_place(runs: Sequence[Run]) -> bool:
    return all(run.selected is not None for run in runs)


def _levels(run: Run) -> tuple[float, float] | None:
    found = run.selected or {}
    chance, majority = found.get("chance"), found.get("majority")
    return None if chance is None or majority is None else (float(chance), float(majority))


def _caution(label: str, runs: Sequence[Run], accuracy: Mapping[str, float]) -> str:
    """One line if a bound is below another, is no better than naming one class, or has not settled."""
    error, value = standard_error([run.last5 for run in runs], _tested([runs])), accuracy[label]
    below = {POOLED: (LABELS_ONLY,), ALL_LABELS: (LABELS_ONLY, POOLED)}.get(label, ())
    above = [name for name in below if name in accuracy and value < accuracy[name]]
    if above:
        return f"{label} ({value:.1%}) is below {above[0]} ({accuracy[above[0]]:.1%}), so it is no upper bound here"
    levels = _levels(runs[0])
    if levels and value <= max(levels) + 2 * error:
        return f"{label} ({value:.1%}) is no better than naming the most frequent class: it has learnt nothing"
    if any(_oscillates(run) for run in runs):
        return (
            f"{label} still moves up and down on validation by more than its samples explain: its number is not settled"
        )
    return ""


def _fallen_back(label: str, runs: Sequence[Run]) -> str:
    """One line if the guard of some run saved the model of the labels alone, so that the row's number is that one's."""
    count = sum((run.selected or {}).get("what") == "labels only" for run in runs)
    if not count:
        return ""
    share = f" in {count} of {len(runs)} runs" if len(runs) > 1 else ""
    return f"{label}: the guard saved a model of the labels only{share}, so this is no gain of the method"


def _cross_validated(label: str, runs: Sequence[Run]) -> str:
    """One line if there were no test samples, so that the row's number is that of cross-validation."""
    found = [on for run in runs if (on := (run.selected or {}).get("cross_validated"))]
    if not found:
        return ""
    low, high = (100 * fmean(on[end] for on in found) for end in ("low", "high"))
    labels = f"{found[0]['samples']:.0f} labels"
    return f"{label}: cross-validated accuracy on {labels}, 95 % interval {low:.0f} to {high:.0f} %"


def _oscillates(run: Run) -> bool:
    seen = [float(value) for record in run.rounds if (value := record.server.get("validation_now")) is not None][-LAST:]
    samples = ((run.selected or {}).get("validation") or {}).get("samples")
    if len(seen) < LAST or not samples:
        return False
    mean = fmean(seen)
    return pstdev(seen) > 2 * math.sqrt(mean * (1 - mean) / samples)
