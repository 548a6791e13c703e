"""`tacit evaluate --membership`: an overfitted model is found out, a model of pure chance is not."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import tacit
from tacit.cli.app import app
from tacit.errors import TacitError
from tacit.runs.experiment import Experiment
from tacit.runs.result import membership, saved_model
from tests.refusals import refused

COMMON: dict[str, Any] = {"net": "mlp", "clients": 2, "workers": 0, "labels": "all", "method": "fedavg+supervised"}
LEARNT = {"rounds": 12, "epochs": 8, "lr": 0.1, "batch": 20}  # enough to know every sample by heart
UNTRAINED = {"rounds": 1, "epochs": 1, "lr": 1e-9}


def noise(path: Path) -> Path:
    """Vectors without structure and random labels: only what is memorised can be known."""
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(240, 20)).astype(np.float32), draw.integers(0, 2, 240)
    np.savez(path, x=x[:80], y=y[:80], x_test=x[80:], y_test=y[80:])
    return path


def run(folder: Path, **settings: Any) -> Path:
    tacit.run(out=folder / "run", data=str(noise(folder / "noise.npz")), **COMMON | settings)
    return folder / "run"


def test_an_overfitted_model_is_found_out(tmp_path: Path) -> None:
    folder = run(tmp_path, **LEARNT)
    found = membership.of_run(folder)
    assert (found.members, found.others) == ({"labeled": 80}, 160)
    for attack in found.attacks["labeled"].values():
        assert attack.auc.low > 0.6
    assert membership.of_run(folder).to_json() == found.to_json()


def test_an_untrained_model_reveals_nothing(tmp_path: Path) -> None:
    for attack in membership.of_run(run(tmp_path, **UNTRAINED)).attacks["labeled"].values():
        assert attack.auc.low < 0.5 < attack.auc.high


def test_the_command_prints_writes_and_adds_to_the_card_once(tmp_path: Path) -> None:
    folder, out = run(tmp_path, **UNTRAINED), tmp_path / "attacks.json"
    for _ in range(2):
        shown = CliRunner().invoke(app, ["evaluate", str(folder), "--membership", "-o", str(out)])
        assert shown.exit_code == 0, shown.output
    assert "80 labeled training samples" in " ".join(shown.output.split())
    assert json.loads(out.read_text()) == json.loads((folder / "membership.json").read_text())
    card = (folder / "card.md").read_text(encoding="utf-8")
    assert card.count("## What the model reveals") == 1
    assert CliRunner().invoke(app, ["evaluate", str(folder)]).exit_code == 0
    assert CliRunner().invoke(app, ["evaluate", str(folder), "--membership"]).exit_code == 0
    card = (folder / "card.md").read_text(encoding="utf-8")
    assert card.index("## What the model reveals") < card.index("## All scores")
    assert (card.count("## What the model reveals"), card.count("## All scores")) == (1, 1)


def test_a_site_attacks_a_model_with_its_own_samples(tmp_path: Path) -> None:
    folder = run(tmp_path, **LEARNT)
    found = membership.of_own_data(saved_model.load(folder), str(tmp_path / "noise.npz"))
    assert found.attacks["labeled"]["loss"].auc.low > 0.6
    assert (found.members, found.others) == ({"labeled": 80}, 160)


def test_changed_data_is_refused(tmp_path: Path) -> None:
    folder = run(tmp_path, **UNTRAINED)
    with np.load(tmp_path / "noise.npz") as file:
        arrays = dict(file)
    np.savez(tmp_path / "noise.npz", **arrays | {"x": arrays["x"] + 1})
    with refused("run.data-changed"):
        membership.of_run(folder)
    (tmp_path / "noise.npz").unlink()
    with pytest.raises(TacitError):
        membership.of_run(folder)


def test_own_data_without_held_out_samples_is_refused(tmp_path: Path) -> None:
    folder = run(tmp_path, **UNTRAINED)
    with np.load(tmp_path / "noise.npz") as arrays:
        np.savez(tmp_path / "own.npz", x=arrays["x"], y=arrays["y"])
    with refused("evaluate.no-such-part"):
        membership.of_own_data(saved_model.load(folder), str(tmp_path / "own.npz"))


def test_training_samples_are_those_that_were_trained_on(tmp_path: Path) -> None:
    some = {"labels": "client", "n_labels": 20}
    folder = run(tmp_path, **UNTRAINED | some)
    assert {kind: len(given) for kind, given in membership.training_samples(Experiment.reopen(folder)).items()} == {
        "labeled": 20
    }
    other = tmp_path / "other"
    other.mkdir()
    folder = run(other, **UNTRAINED | some | {"method": "fedavg+fixmatch"})
    assert {kind: len(given) for kind, given in membership.training_samples(Experiment.reopen(folder)).items()} == {
        "labeled": 20,
        "unlabeled": 60,
    }
    third = tmp_path / "third"
    third.mkdir()
    folder = run(third, **UNTRAINED | some | {"cohort": 1})  # one client was never asked
    assert len(membership.training_samples(Experiment.reopen(folder))["labeled"]) < 20
