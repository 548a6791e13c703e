"""Bounds in a table: the share of the pooled gain, and cautions where a bound is none."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tacit.engines.record import RoundRecord
from tacit.report import bounds, tables
from tacit.report.history import Run
from tacit.runs.directory import RunDirectory
from tests.report.runs import record


def run(label: str, accuracy: float, now: list[float] | None = None, seed: int = 0, **more: Any) -> Run:
    """A run that ended with this accuracy on 1,000 test samples; `now`: what it had on validation before."""
    selected = {"what": "x", "why": "y", "accuracy": accuracy, "loss": 1.0, "samples": 1000, "chance": 0.1}
    selected |= {"majority": 0.2, "validation": {"accuracy": 0.8, "low": 0.7, "high": 0.9, "samples": 200}} | more
    rounds = [line(number, accuracy, server={"validation_now": value}) for number, value in enumerate(now or [0.8])]
    rounds[-1] = replace(rounds[-1], selected=selected)
    return Run(RunDirectory(Path("x")), {"seed": seed, "rounds": 9, "method": {"name": label}}, rounds, label)


def line(*values: Any, **changes: Any) -> RoundRecord:
    return RoundRecord.from_json(json.dumps(record(*values, **changes)))


def rows(**accuracy: float) -> list[Run]:
    return [run(label.replace("_", "-"), value) for label, value in accuracy.items()]


def test_the_share_of_the_pooled_gain() -> None:
    found = {row.label: row.share for row in tables.summarise(rows(labels_only=0.7, pooled=0.8, semifl=0.77, bad=0.6))}
    assert found["semifl"] == pytest.approx(0.7)
    assert found["bad"] == pytest.approx(-1.0)
    assert found["labels-only"] == pytest.approx(0.0)
    assert found["pooled"] == pytest.approx(1.0)


def test_no_share_where_the_pooled_gain_is_below_two_standard_errors() -> None:
    summaries = tables.summarise(rows(labels_only=0.70, pooled=0.72, semifl=0.71))  # an error of 1.4 points each
    assert all(row.share is None for row in summaries)
    share = next(column for column in tables.columns(summaries) if column.head == "share")
    assert [share.cell(row) for row in summaries] == ["–"] * 3


def test_a_spread_over_seeds_counts_too() -> None:
    apart = [run("labels-only", 0.6), run("labels-only", 0.8, seed=1), run("pooled", 0.78), run("pooled", 0.78, seed=1)]
    assert tables.summarise(apart)[1].share is None


def test_without_pooled_there_is_no_such_column() -> None:
    assert "share" not in [column.head for column in tables.columns(tables.summarise(rows(labels_only=0.7, a=0.8)))]


@pytest.mark.parametrize(
    "accuracy, who, words",
    [
        ({"labels_only": 0.7, "pooled": 0.65}, "pooled", "below labels-only"),
        ({"labels_only": 0.7, "pooled": 0.8, "all_labels": 0.75}, "all-labels", "below pooled"),
        ({"labels_only": 0.21}, "labels-only", "most frequent class"),
    ],
)
def test_a_bound_that_is_none_says_so(accuracy: dict[str, float], who: str, words: str) -> None:
    summaries = tables.summarise(rows(**accuracy))
    (caution,) = [row.caution for row in summaries if row.caution]
    assert caution.startswith(who)
    assert words in caution
    assert caution in tables.notes(summaries)


def test_a_bound_that_oscillates_says_so() -> None:
    steady, wild = [0.8, 0.81] * 5, [0.5, 0.9] * 5
    assert not tables.summarise([run("labels-only", 0.8, steady)])[0].caution
    assert "up and down" in tables.summarise([run("labels-only", 0.8, wild)])[0].caution


def test_sound_bounds_have_no_caution_and_show_chance_and_majority() -> None:
    summaries = tables.summarise(rows(labels_only=0.7, pooled=0.8, all_labels=0.9, semifl=0.77))
    assert not any(row.caution for row in summaries)
    assert "chance 10.0%, most frequent class 20.0%" in tables.notes(summaries)
    assert [row.bound for row in summaries] == [False, True, True, False]


def test_a_row_in_rounds_is_not_judged_as_a_bound() -> None:
    plain = Run(
        RunDirectory(Path("x")), {"seed": 0, "rounds": 1, "method": {"name": "m"}}, [line(0, 0.1)], "labels-only"
    )
    assert bounds.compared({"labels-only": [plain]}) == bounds.Compared()


def test_a_row_whose_guard_saved_labels_only_says_so() -> None:
    rows = tables.summarise([run("semifl", 0.7, what="labels only"), run("semifl", 0.7, seed=1)])
    assert "1 of 2 runs" in rows[0].caution
    assert rows[0].caution in tables.notes(rows)
