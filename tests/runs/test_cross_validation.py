"""Cross-validation of a run: every label judged by a run that did not see it, and what is saved and said then."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import tacit
from tacit.cli import app
from tacit.engines.crossed import CrossValidated
from tacit.learn import Score, central
from tacit.learn.central import Pace
from tacit.params import equal
from tacit.runs import auto
from tacit.runs.config import from_options
from tacit.runs.cross_validation import unfinished
from tacit.runs.experiment import Experiment
from tacit.runs.followers.progress import accuracy_text, choice_line
from tacit.runs.resolve import resolve
from tests.cli.shell import fits
from tests.engines import farm
from tests.refusals import refused


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(central, "ALONE", Pace(every=5, patience=10**6, limit=10))
    monkeypatch.setattr(auto, "choose_views", lambda *_: None)


def untested(folder: Path, labels: int = 30, groups: int = 0) -> str:
    """120 images, of which the first have a label, and no test set."""
    farm.write_images(folder / "images.npz")
    with np.load(folder / "images.npz") as file:
        x, y = file["x"], file["y"]
    y[labels:] = -1
    extra = {"group": np.arange(len(y)) % groups} if groups else {}
    np.savez(folder / "alone.npz", x=x, y=y, **extra)  # type: ignore[arg-type]  # as in tests/data
    return str(folder / "alone.npz")


def asked(data: str, **changes: Any) -> dict[str, Any]:
    common = {"data": data, "clients": 3, "labels": "server", "label_fraction": 1.0, "net": "linear", "workers": 0}
    rest = {"rounds": 2, "method": "fedavg+fixmatch", "train.steps": 2, "lr": 0.05, "data.folds": 3}
    return common | rest | {"log.select": "guard"} | changes


def test_a_run_without_test_samples_learns_from_all_labels_and_is_cross_validated(tmp_path: Path) -> None:
    result = tacit.run(out=tmp_path / "run", **asked(untested(tmp_path)))
    assert len(result.job.federation.server.labeled) == 30
    assert len(result.job.federation.test) == 0
    selected = result.history[-1]["selected"]
    assert selected["cross_validated"]["samples"] == 30
    assert selected["cross_validated"]["low"] <= result.accuracy <= selected["cross_validated"]["high"]
    assert "cross-validated" in selected["why"]
    assert len(np.load(tmp_path / "run" / "predictions.npz")["y"]) == 30
    assert "Cross-validated accuracy" in (tmp_path / "run" / "card.md").read_text()
    right = np.load(tmp_path / "run" / "predictions.npz")
    assert float((right["logits"].argmax(1) == right["y"]).mean()) == pytest.approx(result.accuracy)


def test_a_round_has_the_accuracy_of_the_folds(tmp_path: Path) -> None:
    result = tacit.run(out=tmp_path / "run", **asked(untested(tmp_path)))
    folds = sorted((tmp_path / "run" / "checkpoint" / "within").glob("fold-*"))
    assert len(folds) == 3
    for number, record in enumerate(result.history):
        lines = [json.loads((fold / "rounds.jsonl").read_text().splitlines()[number]) for fold in folds]
        assert record["accuracy"] == pytest.approx(sum(10 * line["accuracy"] for line in lines) / 30)


def test_a_fold_is_a_run_that_can_be_repeated(tmp_path: Path) -> None:
    tacit.run(out=tmp_path / "run", **asked(untested(tmp_path)))
    fold = tmp_path / "run" / "checkpoint" / "within" / "fold-2"
    again = tacit.run(fold / "config.toml")
    assert again.accuracy == tacit.resume(fold).accuracy


def test_a_resumed_run_gives_the_same_bits(tmp_path: Path) -> None:
    options = asked(untested(tmp_path))
    whole = tacit.run(out=tmp_path / "whole", **options)
    begun = Experiment.create(from_options(options), tmp_path / "parts")
    first = next(unfinished(begun)).experiment.rounds()
    next(first)
    first.close()
    assert [part.name for part in unfinished(begun)] == ["fold 1 of 3", "fold 2 of 3", "fold 3 of 3"]
    rounds = Experiment.reopen(tmp_path / "parts").rounds()
    next(rounds)
    rounds.close()
    parts = tacit.resume(tmp_path / "parts")
    assert whole.params is not None
    assert parts.params is not None
    assert equal(whole.params, parts.params)
    assert [record["accuracy"] for record in parts.history] == [record["accuracy"] for record in whole.history]
    assert whole.history[-1]["selected"] == parts.history[-1]["selected"]


def test_more_rounds_are_cross_validated_too(tmp_path: Path) -> None:
    tacit.run(out=tmp_path / "run", **asked(untested(tmp_path)))
    more = tacit.resume(tmp_path / "run", rounds=3)
    assert len(more.history) == 3
    assert more.history[-1]["accuracy"] is not None
    assert (tmp_path / "run" / "predictions.npz").exists()


@pytest.mark.parametrize("right, what", [(40, "last round"), (20, "labels only")])
def test_what_is_not_shown_to_gain_is_not_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, right: int, what: str
) -> None:
    def invented(*_: Any) -> CrossValidated:
        return CrossValidated(
            (Score(right, 9.0, 60),) * 2, Score(30, 9.0, 60), 1, max(0, right - 30), max(0, 30 - right)
        )

    monkeypatch.setattr("tacit.runs.cross_validation._crossed", invented)
    experiment = Experiment.create(from_options(asked(untested(tmp_path))), tmp_path / "run")
    experiment.directory.write_note("cross_validation.json", invented().to_json())
    last = list(experiment.rounds())[-1]
    assert last.selected is not None
    assert last.selected["what"] == what
    assert last.selected["accuracy"] == max(right, 30) / 60
    assert "95 % interval of the gain" in choice_line(last)
    assert accuracy_text(last, 0.5).startswith("cross-validated accuracy")


def test_the_interval_of_the_gain_by_hand() -> None:
    """12 labels gained and 4 lost of 40: 20 points, with a standard error of sqrt(16 - 64 / 40) / 40 = 9.49 points."""
    found = CrossValidated((Score(30, 0.0, 40),), Score(22, 0.0, 40), 0, 12, 4)
    assert found.gain == pytest.approx((0.2 - 1.96 * 0.09487, 0.2 + 1.96 * 0.09487), abs=1e-4)
    assert CrossValidated.from_json(json.loads(json.dumps(found.to_json()))) == found


def test_as_many_right_labels_are_no_gain_unless_the_loss_is_lower() -> None:
    alone = Score(30, 20.0, 40)
    assert not CrossValidated((Score(30, 20.0, 40),), alone).helps
    assert CrossValidated((None, Score(30, 19.0, 40)), alone).helps
    assert not CrossValidated((Score(29, 1.0, 40),), alone).helps


def test_labels_at_clients_are_cross_validated(tmp_path: Path) -> None:
    options = asked(untested(tmp_path), labels="client", **{"log.select": "last"})
    result = tacit.run(**options)
    assert result.history[-1]["selected"]["cross_validated"]["accuracy"] == result.history[-1]["accuracy"]
    assert int((result.job.federation.pool.y >= 0).sum()) == 30


def test_folds_divide_no_group(tmp_path: Path) -> None:
    result = tacit.run(out=tmp_path / "run", **asked(untested(tmp_path, groups=12)))
    parts = [part.experiment.job.federation for part in unfinished(replanned(tmp_path / "run"))]
    assert len(parts) == 3
    for part in parts:
        assert part.test.group is not None
        assert part.server.labeled.group is not None
        assert not set(part.test.group.tolist()) & set(part.server.labeled.group.tolist())
    assert result.history[-1]["selected"]["cross_validated"]["samples"] == 30


def replanned(folder: Path) -> Experiment:
    from tacit.runs.extension import extend

    return extend(folder, 5)[0]


def test_auto_cross_validates_own_data_with_few_labels(tmp_path: Path) -> None:
    found = resolve({"data": untested(tmp_path), "clients": 3})
    assert (found.config.data.folds, found.config.log.select, found.config.data.validation) == (5, "guard", 0)
    assert "30 labels at the server" in found.lines[0]
    assert [line.split()[0] for line in found.lines[-2:]] == ["guard", "test"]
    assert "on: 5 runs" in found.lines[-2]


def test_auto_lets_clients_judge_where_they_have_the_labels(tmp_path: Path) -> None:
    many = {"data": untested(tmp_path, labels=110), "clients": 3, "labels": "client"}
    found = resolve(many)
    assert (found.config.data.hold_out, found.config.log.select) == (0.2, "guard")
    assert "clients hold out 20% of their labels" in next(line for line in found.lines if line.startswith("guard"))
    private = resolve(many | {"protect.sample_noise": 1.0})
    assert private.config.data.hold_out is None
    assert resolve(many | {"data": untested(tmp_path)}).config.data.hold_out is None


def test_folds_are_no_setting_of_a_federation_of_sites(tmp_path: Path) -> None:
    with refused("data.folds-elsewhere"):
        Experiment.create(from_options(asked(untested(tmp_path), partition="sites")), tmp_path / "run")


def test_the_command_line_names_the_folds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["run", "--data", untested(tmp_path), "--clients", "3", "--label-fraction", "1", "--net", "linear"]
    more = ["--method", "fedavg+fixmatch", "--rounds", "1", "--epochs", "1", "--workers", "0", "--set", "data.folds=2"]
    output = CliRunner().invoke(app.app, [*words, *more, "--set", "log.select=guard", "--out", "run"]).output
    assert "fold 2 of 2  round 1/1" in output
    assert "cross-validated accuracy" in output
    assert fits(output)
    page = CliRunner().invoke(app.app, ["report", "run", "--out", "page.html"])
    assert page.exit_code == 0, page.output
    assert "cross-validated accuracy on 30 labels" in (tmp_path / "page.html").read_text()
    shown = CliRunner().invoke(app.app, ["evaluate", "run"])
    assert shown.exit_code == 0, shown.output
