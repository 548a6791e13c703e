"""`tacit evaluate --local-heads`: a last layer for each client, for every method, measured on samples it holds out."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import tacit
from tacit.cli.app import app
from tacit.metrics.local_heads import LocalHead, LocalHeads
from tacit.report.history import load
from tacit.report.page import page
from tacit.runs.experiment import Experiment
from tacit.runs.result import client_evaluation, local_heads
from tests.engines import farm
from tests.refusals import refused

SMALL: dict[str, Any] = {
    "net": "lenet",
    "net.width": 0.5,
    "clients": 3,
    "workers": 0,
    "labels": "client",
    "per_class": 4,
    "rounds": 1,
    "batch": 10,
}


def run(folder: Path, **changes: Any) -> Path:
    farm.write_images(folder / "images.npz", 90, 30)
    tacit.run(out=folder / "run", data=str(folder / "images.npz"), **SMALL | changes)
    return folder / "run"


@pytest.mark.parametrize("method", ["fedavg+fixmatch", "scaffold", "moon", "fedmatch", "fed3r"])
def test_it_starts_from_the_final_model_of_any_method(tmp_path: Path, method: str) -> None:
    folder = run(tmp_path, method=method)
    found = local_heads.of_run(folder)
    assert [(each.name, each.labels) for each in found.heads] == [("0", 12), ("1", 12), ("2", 12)]
    own = client_evaluation.evaluate_clients(Experiment.reopen(folder))
    assert [each.held_out for each in found.heads] == [group.count for group in own.groups]
    assert [each.common for each in found.heads] == pytest.approx([group.scores["accuracy"] for group in own.groups])
    assert local_heads.of_run(folder) == found


def test_labels_of_a_client_improve_a_model_that_has_not_learnt(tmp_path: Path) -> None:
    found = local_heads.of_run(run(tmp_path, method="fedavg+supervised", lr=1e-9))
    assert found.local > found.common + 0.3
    assert found.lower == 0


def test_stored_activations_give_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TACIT_CACHE", str(tmp_path / "cache"))
    frozen = {"net": "efficientnet-lite0", "net.weights": "none", "net.width": 0.25, "net.options.side": 16}
    given = SMALL | frozen | {"net.train": "head", "method": "fedavg+supervised", "net.norm": "group"}
    found = []
    for name, views in (("plain", None), ("stored", 1)):
        (tmp_path / name).mkdir()
        found.append(local_heads.of_run(run(tmp_path / name, **given | {"net.views": views, "lr": 1e-9})))
    for one, other in zip(*(each.heads for each in found), strict=True):
        assert one.common == pytest.approx(other.common, abs=0.06)
        assert one.local == pytest.approx(other.local, abs=0.06)
    assert found[1].kept < 3


def test_with_all_labels_test_samples_count_by_the_clients_classes(tmp_path: Path) -> None:
    folder = run(tmp_path, labels="all", per_class=None, partition="dirichlet:0.5", method="fedavg+supervised")
    experiment = Experiment.reopen(folder)
    test, net = experiment.job.federation.test, experiment.result().net()
    answers = net(experiment.job.federation.views.plain(test.x)).argmax(dim=1)
    for client, each in enumerate(local_heads.of_run(folder).heads):
        y = experiment.job.federation.client(client, 0).y
        classes = y.unique().tolist()
        shares = [float((y == c).double().mean()) for c in classes]
        right = [float((answers[test.y == c] == c).double().mean()) for c in classes]
        assert each.common == pytest.approx(sum(p * a for p, a in zip(shares, right, strict=True)))


def test_samples_without_any_known_class_are_not_held_out(tmp_path: Path) -> None:
    """As in a user's own data: test samples take their place."""
    x, y = (part.numpy() for part in farm.images(120))
    np.savez(tmp_path / "own.npz", x=x[:90], y=np.where(np.arange(90) < 45, y[:90], -1), x_test=x[90:], y_test=y[90:])
    given = SMALL | {"per_class": None, "label_fraction": 1.0, "data": str(tmp_path / "own.npz")}
    tacit.run(out=tmp_path / "run", method="fedavg+fixmatch", **given)
    found = local_heads.of_run(tmp_path / "run")
    assert sum(each.labels for each in found.heads) == 45
    assert {each.held_out for each in found.heads} == {30}


def test_it_stores_accuracies_and_nothing_else(tmp_path: Path) -> None:
    folder = run(tmp_path, method="fedavg+supervised")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    said = CliRunner().invoke(app, ["evaluate", str(folder), "--local-heads", "-o", str(tmp_path / "found.json")])
    assert said.exit_code == 0, said.output
    after = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    note = folder / "local_heads.json"
    assert after.keys() - before.keys() == {note}
    assert {path: content for path, content in after.items() if path != note} == before
    assert json.loads(note.read_text()) == json.loads((tmp_path / "found.json").read_text())
    found = LocalHeads.from_plain(json.loads(note.read_text()))
    assert " ".join(found.sentence().split()) in " ".join(said.output.split())
    assert "Local heads" in page([load(folder)])
    note.write_text('{"heads": []}')
    assert "Local heads" not in page([load(folder)])


def test_what_has_no_local_heads_is_refused(tmp_path: Path) -> None:
    server = run(tmp_path, labels="server", method="fedavg+fixmatch")
    with refused("local-heads.no-labels"):
        local_heads.of_run(server)
    (tmp_path / "own").mkdir()
    with refused("local-heads.no-common-model"):
        local_heads.of_run(run(tmp_path / "own", method="local-only+supervised"))
    said = CliRunner().invoke(app, ["evaluate", str(server), "--local-heads", "--clients"])
    assert said.exit_code != 0


def test_samples_of_a_group_are_held_out_together(monkeypatch: pytest.MonkeyPatch) -> None:
    folds: list[torch.Tensor] = []

    def note(z: torch.Tensor, y: torch.Tensor, start: Any, fold: torch.Tensor) -> tuple[Any, float]:
        folds.append(fold)
        return start, 0.0

    monkeypatch.setattr(local_heads, "fit_chosen", note)
    group = torch.arange(20) // 4
    samples = tacit.federation.Samples(torch.zeros(20, 1), torch.zeros(20, dtype=torch.int64), group)
    local_heads._fit(samples, torch.zeros(20, 1), None)  # type: ignore[arg-type]
    (fold,) = folds
    assert all(len(fold[group == each].unique()) == 1 for each in range(5))
    assert len(fold.unique()) == 5


def test_the_sentence_counts_who_keeps_the_head_and_who_loses() -> None:
    heads = (LocalHead("0", 5, 10, 0.0, 0.5, 0.5), LocalHead("1", 5, 10, 0.1, 0.7, 0.6))
    assert LocalHeads("a run", heads).sentence() == (
        "Mean over 2 clients: 60.0 % with the common head, 55.0 % with local heads. 1 keeps the common head. "
        "1 ends lower."
    )
