"""Which model is saved and which round counts: decided on validation, the same after a resume."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tacit
from tacit.engines import guard
from tacit.engines.in_process import InProcessTransport
from tacit.engines.job import Job, RunState
from tacit.engines.selection import Judged, Selection, SelectionRule, restore, store
from tacit.learn import Score
from tacit.learn.central import Pace, Recipe, begin, best_of, proceed
from tacit.method import ClientContext, Needs, Reply, ServerContext
from tacit.objectives import Supervised
from tacit.params import Params, equal, mean
from tacit.runs.config import from_options
from tacit.runs.experiment import Experiment
from tests import toys
from tests.engines import farm
from tests.refusals import refused

GOOD: Params = {"fc.weight": torch.eye(3, 4), "fc.bias": torch.zeros(3)}
RECIPES = (Recipe(Supervised("plain"), 0.1), Recipe(Supervised("plain"), 0.03, 1))
QUICK = Pace(every=5, patience=2, limit=20)


@dataclass(frozen=True)
class ScriptState:
    """Rounds merged, and the common model."""

    round: int
    w: Params


@dataclass(frozen=True)
class ScriptMemory:
    """How often a client was merged."""

    times: int


@dataclass(frozen=True)
class ScriptUp:
    """Nothing but that it arrived."""

    n: int


@dataclass(frozen=True)
class Script:
    """After round t the model is right for a share q_t of inputs if uploads arrive, and good if none does."""

    quality: tuple[float, ...] = (1.0,)

    needs = Needs()

    def start(self, server: ServerContext) -> ScriptState:
        return ScriptState(0, GOOD)

    def send(self, server: ServerContext, state: ScriptState) -> tuple[ScriptState, Mapping[int, ScriptUp]]:
        return state, dict.fromkeys(server.cohort, ScriptUp(0))

    def client_update(
        self, client: ClientContext, memory: ScriptMemory | None, down: ScriptUp
    ) -> Reply[ScriptMemory, ScriptUp]:
        return Reply(ScriptMemory(1 + (memory.times if memory else 0)), ScriptUp(1))

    def merge(self, server: ServerContext, state: ScriptState, ups: Mapping[int, ScriptUp]) -> ScriptState:
        server.log("steps", 1)
        quality = self.quality[state.round % len(self.quality)] if ups else 1.0
        return ScriptState(state.round + 1, of_quality(quality))

    def model(self, state: ScriptState) -> Params:
        return state.w


def of_quality(quality: float) -> Params:
    """The good model, or one that turns its back on the classes by degrees."""
    return {"fc.weight": GOOD["fc.weight"] * (2 * quality - 1), "fc.bias": GOOD["fc.bias"] + quality}


def scripted(*quality: float, rounds: int | None = None, **rule: Any) -> Job:
    data = toys.federation(
        [toys.points(k, 6) for k in range(3)], toys.points(9, 12), toys.points(8, 30), toys.points(7, 60)
    )
    return toys.job(
        Script(quality),
        data,
        toys.linear(),
        rounds=rounds or len(quality),
        selection=SelectionRule(**rule, recipes=RECIPES),
    )


@pytest.fixture(autouse=True)
def _short_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "PACE", QUICK)


# Validation


@given(st.integers(1, 300).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_the_interval_holds_the_accuracy_and_shrinks_with_samples(pair: tuple[int, int]) -> None:
    right, count = pair
    low, high = Score(right, 0.0, count).interval
    assert 0 <= low <= right / count <= high <= 1
    more = Score(100 * right, 0.0, 100 * count).interval
    assert more[1] - more[0] < high - low


def test_wilson_interval_by_hand() -> None:
    assert Score(83, 0.0, 100).interval == pytest.approx((0.7445, 0.8911), abs=1e-4)


def test_evaluated_rounds_log_validation_accuracy_with_its_interval() -> None:
    played = toys.play_all(replace(scripted(1.0, 1.0, 1.0), evaluate_every=2))
    assert [record.validation is not None for record in played.records] == [False, True, True]
    found = played.records[-1].validation
    assert found is not None
    assert found["samples"] == 60
    assert found["low"] < found["accuracy"] <= found["high"]
    assert type(played.records[-1]).from_json(played.records[-1].to_json()) == played.records[-1]


# Selection


def test_best_saves_the_round_that_is_best_on_validation() -> None:
    job = scripted(0.6, 0.0, 1.0, 0.0, 0.2, select="best")
    last = toys.play_all(job).records[-1]
    assert last.selected is not None
    assert last.selected["what"] == "round 3"
    assert last.selected["accuracy"] > (last.accuracy or 0)


def test_the_test_set_decides_nothing() -> None:
    job = scripted(0.0, 1.0, 0.3, select="best")
    wrong = replace(job.federation.test, y=(job.federation.test.y + 1) % 3)
    other = replace(job, federation=replace(job.federation, test=wrong))
    chosen = [toys.play_all(each).records[-1].selected for each in (job, other)]
    assert chosen[0] is not None
    assert chosen[1] is not None
    assert chosen[0]["what"] == chosen[1]["what"] == "round 2"
    assert chosen[0]["accuracy"] != chosen[1]["accuracy"]


def test_average_saves_the_mean_of_the_last_five_models() -> None:
    job = scripted(0.0, *[0.8, 1.0, 0.9, 0.7, 0.95], select="average")
    moments = list(toys.rounds(job))
    expected = mean([moment.state.w for moment in moments[1:]])
    assert equal(chosen(job, moments).model, expected)


def test_average_gives_way_to_a_better_last_round() -> None:
    job = scripted(0.0, 0.0, 0.0, 1.0, select="average")
    moments = list(toys.rounds(job))
    assert equal(chosen(job, moments).model, moments[-1].state.w)


def chosen(job: Job, moments: list[toys.Moment]) -> guard.Choice:
    """What is chosen after these rounds, computed again from their states."""
    selection = Selection()
    for moment in moments:
        selection, _ = guard.judge(job, selection, moment.record.round, moment.state.w, lambda: None)
    found = guard.choose(job, RunState(None, len(moments), moments[-1].state, selection=selection))  # type: ignore[arg-type]
    assert found is not None
    return found


def test_last_saves_the_last_round_and_says_nothing() -> None:
    last = toys.play_all(scripted(1.0, 0.0)).records[-1]
    assert last.selected is None
    assert last.stopped == ""


@pytest.mark.parametrize("select", ["last", "best", "average"])
def test_patience_stops_a_run(select: Any) -> None:
    records = toys.play_all(scripted(0.0, 1.0, 0.0, 0.0, 0.0, 0.0, select=select, patience=3)).records
    assert len(records) == 5
    assert "3 evaluations" in records[-1].stopped
    assert [record.stopped for record in records[:-1]] == [""] * 4


# The guard


def test_a_rejected_round_equals_one_in_which_no_upload_arrived() -> None:
    job = scripted(1.0, 0.0, 1.0, select="guard")
    moments = list(toys.rounds(job))
    assert [bool(moment.record.rejected) for moment in moments] == [False, True, False]
    assert equal(moments[1].state.w, GOOD | {"fc.bias": torch.ones(3)})
    assert moments[1].record.server == {"steps": 1}
    assert [memory.times for memory in moments[2].memories.values()] == [2, 2, 2]


def test_a_model_that_is_not_finite_is_rejected() -> None:
    moments = list(toys.rounds(scripted(1.0, float("nan"), select="guard")))
    assert moments[1].record.rejected == "its model is not finite"
    assert all(bool(value.isfinite().all()) for value in moments[1].state.w.values())


def test_the_guard_stops_asking_clients_after_five_losses() -> None:
    records = toys.play_all(scripted(*[0.0] * 12, select="guard")).records
    assert len(records) == guard.GIVE_UP
    assert "5 rounds in a row" in records[-1].stopped


def test_honest_rounds_are_never_compared_with_their_own_best() -> None:
    reference = Judged(GOOD, -1, 40, 0.5)
    job = scripted(1.0, select="guard")
    lucky = Selection(reference=reference, best=Judged(GOOD, 0, 60, 0.1), level=True)
    after, verdict = guard.judge(job, lucky, 1, of_quality(1.0), lambda: pytest.fail("not needed"))
    assert not verdict.rejected
    assert after.rejected == 0


def test_an_early_round_below_the_reference_counts_if_uploads_helped() -> None:
    job = scripted(1.0, select="guard")
    selection = Selection(reference=Judged(GOOD, -1, 60, 0.1))
    _, verdict = guard.judge(job, selection, 0, of_quality(0.0), lambda: of_quality(0.0))
    assert not verdict.rejected


def test_the_guard_saves_labels_only_if_the_last_round_is_clearly_below() -> None:
    job = scripted(1.0, select="guard")
    reference = Judged(of_quality(1.0), -1, 60, 0.1)
    for quality, saved in ((0.0, "labels only"), (1.0, "last round")):
        last = ScriptState(1, of_quality(quality))
        state = RunState(None, 1, last, selection=Selection(reference=reference))  # type: ignore[arg-type]
        choice = guard.choose(job, state)
        assert choice is not None
        assert choice.what == saved
        assert choice.model is (reference.model if saved == "labels only" else last.w)


@pytest.mark.parametrize(
    "right, of_reference, below",
    [
        ([1, 1, 1, 1], [1, 1, 1, 1], False),
        ([0, 0, 1], [1, 1, 1], False),  # two behind, and 1.645·√2 = 2.3 is chance
        ([0, 0, 0, 1], [1, 1, 1, 1], True),  # three behind, and 1.645·√3 = 2.8 is chance
        ([1, 0, 0, 0, 0, 1], [0, 1, 1, 1, 1, 1], False),  # three behind, and 1.645·√5 = 3.7 is chance
        ([1, 1, 1, 1], [0, 0, 0, 0], False),
    ],
)
def test_a_difference_within_its_standard_error_is_no_reason_to_save_labels_only(
    right: list[int], of_reference: list[int], below: bool
) -> None:
    assert guard._clearly_below(torch.tensor(right).bool(), torch.tensor(of_reference).bool()) is below


def test_without_labels_at_the_server_the_guard_is_off_and_says_so() -> None:
    job = scripted(0.0, 0.0, select="guard")
    nothing = replace(job.federation.server, labeled=toys.points(0, 0))
    records = toys.play_all(replace(job, federation=replace(job.federation, server=nothing))).records
    assert not any(record.rejected for record in records)
    assert records[-1].selected is not None
    assert "guard was off" in records[-1].selected["why"]


# Training in one place


def test_training_ends_when_validation_shows_no_gain() -> None:
    server = scripted(1.0).server(0, {})
    recipe, pace = Recipe(Supervised("plain"), 0.1), Pace(every=10, patience=3, limit=2000)
    attempt, seen = begin(server, recipe), list[int]()
    while not attempt.ended(pace):
        attempt = proceed(server, recipe, 0, attempt, server.data.validation, pace)
        seen.append(attempt.right)
    assert attempt.steps < 2000
    assert seen == sorted(seen)
    assert seen[-1] == seen[-4]
    assert attempt.right > 40


def test_the_best_recipe_is_chosen_and_a_diverging_one_is_not() -> None:
    server = scripted(1.0).server(0, {})
    recipes = [
        Recipe(Supervised("plain"), 1e38),
        Recipe(Supervised("plain"), 0.1),
        Recipe(Supervised("plain"), 1e-9, 1),
    ]
    found = best_of(server, recipes, server.data.validation, Pace(every=20, patience=3, limit=400))
    alone = best_of(server, recipes[1:2], server.data.validation, Pace(every=20, patience=3, limit=400))
    assert found.right == pytest.approx(alone.right, abs=3)  # its streams have another name
    assert all(bool(value.isfinite().all()) for value in found.best.values())


# In a run


def options(folder: Path, **changes: Any) -> dict[str, Any]:
    data = folder / "images.npz"
    if not data.exists():
        farm.write_images(data)
    common = {"data": str(data), "clients": 3, "labels": "server", "per_class": 3, "validation": 15, "net": "linear"}
    rounds = {"rounds": 6, "workers": 0, "method": "fedavg+fixmatch", "train.steps": 2, "lr": 0.05}
    return common | rounds | changes


@pytest.mark.parametrize("select", ["best", "average", "guard"])
def test_a_resumed_run_selects_the_same_model(tmp_path: Path, select: str) -> None:
    changes: dict[str, Any] = {"log.select": select, "train.patience": 20}
    whole = tacit.run(out=tmp_path / "whole", **options(tmp_path, **changes))
    experiment = Experiment.create(from_options(options(tmp_path, **changes)), tmp_path / "parts")
    for stop in (1, 2):
        rounds = Experiment.reopen(tmp_path / "parts").rounds() if stop > 1 else experiment.rounds()
        for _ in range(stop):
            next(rounds)
        rounds.close()
    parts = tacit.resume(tmp_path / "parts")
    assert whole.params is not None
    assert parts.params is not None
    assert equal(whole.params, parts.params)
    assert whole.history[-1]["selected"] == parts.history[-1]["selected"]
    assert whole.accuracy == whole.history[-1]["selected"]["accuracy"]
    assert len(list((tmp_path / "parts" / "checkpoint" / "selection").iterdir())) >= 1


def test_the_saved_model_has_the_accuracy_that_is_reported(tmp_path: Path) -> None:
    result = tacit.run(out=tmp_path / "run", **options(tmp_path, **{"log.select": "best"}))
    assert result.params is not None
    score = InProcessTransport(result.job).evaluate(result.params)
    assert score.correct / score.count == result.accuracy


def test_a_run_that_stopped_early_is_finished(tmp_path: Path) -> None:
    result = tacit.run(out=tmp_path / "run", **options(tmp_path, rounds=40, **{"train.patience": 2}))
    assert len(result.history) < 40
    again = Experiment.reopen(tmp_path / "run")
    assert again.directory.is_finished()
    assert list(again.rounds()) == []
    assert tacit.resume(tmp_path / "run").accuracy == result.accuracy
    note = json.loads((tmp_path / "run" / "end.json").read_text())
    assert note["rounds"] == len(result.history)


@pytest.mark.parametrize("setting", [{"log.select": "best"}, {"log.select": "average"}, {"train.patience": 3}])
def test_selection_needs_validation_samples(tmp_path: Path, setting: dict[str, Any]) -> None:
    with refused("config.needs-validation"):
        tacit.run(**options(tmp_path, validation=0, **setting))


def test_a_changed_selection_file_is_refused(tmp_path: Path) -> None:
    store(tmp_path, 3, Selection(waited=2))
    assert restore(tmp_path, 3, torch.device("cpu")) == Selection(waited=2)
    path = tmp_path / "selection" / "3"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with refused("run.broken-checkpoint"):
        restore(tmp_path, 3, torch.device("cpu"))
