"""Clients that judge the common model on labels they hold out: only counts leave them, and the guard works."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tacit
from tacit.data.held_out import with_hold_out
from tacit.engines import guard
from tacit.engines.counts import CountDown, CountUp
from tacit.engines.in_process import InProcessTransport
from tacit.engines.job import ClientResult, ClientTask, Job
from tacit.engines.judging import Judge
from tacit.engines.selection import Judged, Selection
from tacit.engines.workers import WorkerTransport
from tacit.learn import Score
from tacit.params import equal
from tacit.protect.config import Protection
from tacit.random import Streams
from tests import toys
from tests.engines.test_guard import GOOD, Script, of_quality, options
from tests.refusals import refused


def judged(*quality: float, **rule: Any) -> Job:
    """A run whose model is right for a share of inputs, judged by three clients that hold out labels."""
    data = toys.federation([toys.points(k, 50) for k in range(3)], None, toys.points(8, 30))
    job = toys.job(Script(quality), data, toys.linear(), rounds=len(quality))
    federation = with_hold_out(data, 0.2, Streams(0))
    return replace(job, federation=federation, hold_out=True, selection=replace(job.selection, **rule))


def test_the_engine_adds_up_what_clients_count() -> None:
    job = judged(1.0)
    score = Judge(job, InProcessTransport(job, strict=True), 0)(GOOD)
    assert score.count == 30
    by_hand = 0
    for client in range(3):
        own = job.federation.held_out_by(client)
        by_hand += int(((own.x @ GOOD["fc.weight"].T).argmax(1) == own.y).sum())
    assert score == Score(by_hand, 0.0, 30)


def test_only_two_counts_leave_a_client() -> None:
    job = judged(1.0)
    outcomes = list(InProcessTransport(job).run(0, {1: ClientTask(CountDown(GOOD), None)}))
    found = next(item[1] for item in outcomes if isinstance(item, tuple))
    assert isinstance(found, ClientResult)
    assert isinstance(found.up, CountUp)
    assert (found.memory, found.metrics, found.up.count) == (None, {}, 10)


def test_workers_count_the_same() -> None:
    job = judged(0.3)
    transport = WorkerTransport(job, 2)
    try:
        assert Judge(job, transport, 0)(of_quality(0.3)) == Judge(job, InProcessTransport(job), 0)(of_quality(0.3))
    finally:
        transport.close()


@pytest.mark.parametrize("up", [None, CountUp(11, 11), CountUp(5, 3), CountUp(-1, 3), CountUp(True, 3), "text"])
def test_counts_that_cannot_be_do_not_count(up: Any) -> None:
    job = judged(1.0)
    judge = Judge(job, None, 0)
    assert judge._read(0, ClientResult(up, None, {})) == Score()
    assert judge._read(0, ClientResult(CountUp(3, 10), None, {})) == Score(3, 0.0, 10)


def test_best_saves_the_round_that_most_held_out_labels_agree_with() -> None:
    last = toys.play_all(judged(0.0, 1.0, 0.2, select="best")).records[-1]
    assert last.selected is not None
    assert last.selected["what"] == "round 2"
    assert last.selected["validation"]["samples"] == 30


def test_the_bytes_of_judging_are_counted() -> None:
    job = judged(1.0)
    with_counts, without = (toys.play_all(each).records[0] for each in (job, replace(job, hold_out=False)))
    assert with_counts.bytes_down > without.bytes_down
    assert with_counts.bytes_up > without.bytes_up
    assert with_counts.bytes_down == sum(down for down, _ in with_counts.traffic.values())


def test_the_guard_rejects_rounds_below_what_the_clients_labels_give() -> None:
    job = judged(0.0, 0.0, select="guard")
    job = replace(job, reference=Judged(GOOD, -1, 29, 0.0, 30))
    records = toys.play_all(job).records
    assert all(record.rejected for record in records)
    assert records[-1].selected is not None
    assert records[-1].selected["what"] == "last round"  # as if no upload had arrived, and then it is good


def test_the_guard_saves_labels_only_if_the_last_round_is_below() -> None:
    alone = Judged(GOOD, -1, 30, 0.0, 30)
    poor = guard._by_counts(Selection(), alone, of_quality(0.0), Score(3, 0.0, 30))
    assert poor.what == "labels only"
    assert equal(poor.model, GOOD)
    assert guard._by_counts(Selection(), alone, GOOD, Score(29, 0.0, 30)).what == "last round"
    assert "guard was off" in guard._by_counts(Selection(), alone, GOOD, Score()).why


def test_the_guard_says_why_it_is_off() -> None:
    job = replace(judged(1.0, select="guard"), hold_out=False)
    assert "data.hold_out" in guard.guard_problem(job)
    private = replace(job, protect=Protection(sample_noise=1.0))
    assert "differential privacy" in guard.guard_problem(private)
    at_sites = judged(1.0, select="guard")
    assert "sites" in guard.guard_problem(at_sites)


# In a run


def at_clients(folder: Path, **changes: Any) -> dict[str, Any]:
    common = {"labels": "client", "per_class": 8, "validation": 0, "data.hold_out": 0.25}
    return options(folder, rounds=3) | common | changes


def test_a_guarded_run_trains_on_labels_alone_first(tmp_path: Path) -> None:
    asked = at_clients(tmp_path, **{"log.select": "guard"})
    result = tacit.run(out=tmp_path / "run", **asked)
    selected = result.history[-1]["selected"]
    assert "on labels that clients held out" in selected["why"]
    within = tmp_path / "run" / "checkpoint" / "within" / "labels-only"
    assert (within / "model.safetensors").exists()
    resumed = tacit.resume(tmp_path / "run")
    assert resumed.history == result.history
    assert resumed.params is not None
    assert result.params is not None
    assert equal(resumed.params, result.params)


def test_a_run_without_held_out_labels_is_as_before(tmp_path: Path) -> None:
    plain = tacit.run(**at_clients(tmp_path, **{"data.hold_out": None}))
    counted = tacit.run(**at_clients(tmp_path))
    assert plain.history[-1]["validation"] is None
    assert counted.history[-1]["validation"]["samples"] > 0


@pytest.mark.parametrize(
    "changes, code",
    [
        ({"labels": "server"}, "data.hold-out-at-server"),
        ({"protect.sample_noise": 1.0}, "protect.hold-out"),
        ({"data.shared": 3}, "data.hold-out-shared"),
        ({"data.fold": 1}, "data.no-such-fold"),
        ({"data.folds": 2, "data.shared": 3, "data.hold_out": None}, "data.folds-elsewhere"),
    ],
)
def test_labels_are_not_held_out_where_that_means_nothing(tmp_path: Path, changes: dict[str, Any], code: str) -> None:
    with refused(code):
        tacit.run(**at_clients(tmp_path, **changes))
