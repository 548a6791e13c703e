"""The search for settings: what is tried, what is chosen, and that an interruption changes nothing."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tacit.errors import TacitError
from tacit.runs import config as configs
from tacit.runs import tune
from tacit.runs.experiment import Experiment
from tacit.runs.space import Choices, Range, as_space, parse
from tacit.runs.tune import Search, Trial, best_of, chance, validated_rounds
from tests.engines import farm
from tests.refusals import refused

pytest.importorskip("optuna", reason="the search needs the extra tune: pip install 'tacit[tune]'")


@pytest.mark.parametrize(
    "text, expected",
    [
        ("train.lr=0.003..0.3", Range(0.003, 0.3)),
        ("train.batch=8..64", Range(8, 64)),
        ("objective.threshold=0.8,0.95", Choices((0.8, 0.95))),
        ("net.norm=group,batch", Choices(("group", "batch"))),
        ("train.nesterov=true,false", Choices((True, False))),
    ],
)
def test_a_space_is_read_as_written(text: str, expected: Range | Choices) -> None:
    name = text.partition("=")[0]
    assert parse([text]) == {name: expected}
    assert as_space({name: text.partition("=")[2]}) == {name: expected}


def test_wide_ranges_are_searched_by_their_logarithm() -> None:
    assert Range(0.003, 0.3).log
    assert not Range(0.1, 0.3).log
    assert Range(8, 64).whole
    assert as_space({"train.lr": (0.1, 0.3), "train.batch": [8, 16]})["train.batch"] == Choices((8, 16))


@pytest.mark.parametrize(
    "texts, code",
    [
        ([], "tune.no-space"),
        (["train.lr"], "tune.not-a-space"),
        (["train.lr="], "tune.not-a-space"),
        (["train.lr=a..b"], "tune.not-a-space"),
        (["train.lr=0.3..0.1"], "tune.empty-range"),
        (["train.lr=0.1,0.2", "train.lr=0.3..0.5"], "tune.given-twice"),
    ],
)
def test_a_space_that_cannot_be_is_refused(texts: list[str], code: str) -> None:
    with refused(code):
        parse(texts)


@pytest.fixture
def base(tmp_path: Path) -> dict[str, Any]:
    images = farm.write_images(tmp_path / "images.npz")
    data = {"name": str(images), "clients": 4, "labels": "server", "n_labels": 12, "validation": 15}
    server = {"steps": 2, "batch": 6, "epochs": 1}
    common = {"rounds": 4, "data": data, "net": {"name": "linear"}, "train": {"steps": 1, "batch": 6}}
    return common | {"server": server, "method": {"name": "fedavg+fixmatch"}, "engine": {"workers": 0}}


SPACE = {"train.lr": "0.001..1.0", "objective.threshold": "0.3,0.95"}


def search(base: dict[str, Any], folder: Path, trials: int = 3, **changes: Any) -> Search:
    return Search(base, {}, as_space(changes.pop("space", SPACE)), trials, folder, **changes)


def test_trials_are_runs_and_the_best_config_is_a_file(base: dict[str, Any], tmp_path: Path) -> None:
    made = search(base, tmp_path / "tune")
    done = list(made.run())
    assert done == made.ledger()
    assert [trial.trial for trial in done] == [0, 1, 2]
    assert len({json.dumps(trial.values) for trial in done}) == 3
    best = best_of(done)
    assert best is not None
    assert best.validation == max(trial.validation or 0 for trial in done)
    chosen = configs.make(configs.read(made.best_file))
    assert chosen == Experiment.reopen(made.place(best.trial)).config
    assert chosen.train.lr == best.values["train.lr"]


def test_validation_accuracy_is_that_of_the_validation_samples(base: dict[str, Any], tmp_path: Path) -> None:
    experiment = Experiment.create(configs.make(base), tmp_path / "run")
    curve = dict(validated_rounds(experiment))
    assert list(curve) == [1, 2, 3, 4]
    result = experiment.result()
    validation = result.job.federation.server.validation
    answers = result.net()(result.job.federation.views.plain(validation.x)).argmax(1)
    assert curve[4] == float((answers == validation.y).float().mean())


def test_an_interrupted_search_continues_as_if_nothing_had_happened(base: dict[str, Any], tmp_path: Path) -> None:
    whole = list(search(base, tmp_path / "whole", trials=4).run())
    parts = search(base, tmp_path / "parts", trials=4)
    first: Iterator[Trial] = parts.run()
    next(first)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tune, "validated_rounds", stopped_after(2))
        with pytest.raises(KeyboardInterrupt):
            next(first)
    assert len(parts.ledger()) == 1
    assert Experiment.reopen(parts.place(1)).finished_rounds() == 2
    assert [whole[0], *parts.run()] == whole
    assert parts.ledger() == whole
    assert [trial.trial for trial in search(base, tmp_path / "parts", trials=5).run()] == [4], "more trials are added"


def stopped_after(rounds: int) -> Any:
    real = tune.validated_rounds

    def some(experiment: Experiment) -> Iterator[tuple[int, float]]:
        found = real(experiment)
        for number, value in found:
            yield number, value
            if number == rounds:
                found.close()  # type: ignore[attr-defined]
                raise KeyboardInterrupt

    return some


def test_a_weak_trial_is_stopped_on_its_checkpoint(base: dict[str, Any], tmp_path: Path) -> None:
    made = search(base, tmp_path / "tune", trials=6)
    strong = [
        Trial(n, {"train.lr": 0.1, "objective.threshold": 0.95}, 1.0, 4, "finished", dict.fromkeys(range(1, 5), 1.0))
        for n in range(5)
    ]
    made._begin()
    for trial in strong:
        made._append(trial)
    (weak,) = made.run()
    assert weak.validation is not None
    assert weak.validation < 1.0
    assert weak.end == "stopped"
    assert weak.rounds == Experiment.reopen(made.place(5)).finished_rounds() < 4
    best = best_of(made.ledger())
    assert best is not None
    assert best.trial == 0


def test_a_trial_that_diverges_fails_alone(
    base: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = search(base, tmp_path / "tune", trials=2)
    real = tune.validated_rounds

    def diverging(experiment: Experiment) -> Iterator[tuple[int, float]]:
        if experiment.folder == made.place(0):
            raise TacitError("all clients sent non-finite numbers", "", code="engine.too-few-clients", resumable=True)
        return real(experiment)

    monkeypatch.setattr(tune, "validated_rounds", diverging)
    first, second = made.run()
    assert (first.end, first.validation, first.reason) == ("failed", None, "all clients sent non-finite numbers")
    assert second.end == "finished"
    assert best_of([first, second]) == second


def test_mistakes_are_refused_before_anything_is_written(base: dict[str, Any], tmp_path: Path) -> None:
    with refused("names.unknown-setting"):
        list(search(base, tmp_path / "tune", space={"train.rate": "0.1,0.2"}).run())
    assert not (tmp_path / "tune").exists()
    base["data"]["validation"] = 0
    with refused("tune.no-validation"):
        list(search(base, tmp_path / "tune").run())


def test_another_search_in_the_same_folder_is_refused(base: dict[str, Any], tmp_path: Path) -> None:
    list(search(base, tmp_path / "tune", trials=1).run())
    with refused("tune.other-search"):
        list(search(base, tmp_path / "tune", trials=1, seed=1).run())


def test_the_range_of_chance_is_that_of_the_binomial() -> None:
    assert chance(0.8, 100) == pytest.approx(1.96 * 0.04)
    assert chance(1.0, 100) > 0
