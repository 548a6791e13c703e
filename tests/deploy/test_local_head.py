"""`tacit site local-head`: a model with a head for this site, on its own machine only."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

import tacit
from tacit.cli.app import app
from tacit.deploy.local_head import FILE, fit_site_head
from tests.deploy import places
from tests.refusals import refused


@pytest.fixture
def model(tmp_path: Path) -> Path:
    x, y = places.arrays(42)
    np.savez(tmp_path / "hub.npz", x=x[:12], y=y[:12], x_test=x[12:], y_test=y[12:])
    given = {**places.SMALL, "rounds": 1, "clients": 2, "labels": "all", "lr": 1e-9, "workers": 0}
    tacit.run(out=tmp_path / "run", data=str(tmp_path / "hub.npz"), method="fedavg+supervised", **given)
    return tmp_path / "run" / "model.safetensors"


def site(folder: Path, **arrays: Any) -> Path:
    x, y = places.arrays(60)
    given: dict[str, Any] = {"x": x[:30], "y": y[:30], "x_test": x[30:], "y_test": y[30:]}
    return places.site_with_arrays(folder, "a", **given | arrays)


def test_the_file_is_a_model_for_its_owner_only(tmp_path: Path, model: Path) -> None:
    path = site(tmp_path)
    before = {place for place in tmp_path.rglob("*") if place.is_file()}
    said = CliRunner().invoke(app, ["site", "local-head", str(model), "--site", str(path)])
    assert said.exit_code == 0, said.output
    written = path.parent / FILE
    assert {place for place in tmp_path.rglob("*") if place.is_file()} - before == {written}, "no journal: nothing left"
    assert written.stat().st_mode & 0o777 == 0o600
    x, y = (part[30:] for part in places.arrays(60))
    common, local = (tacit.load(place).score(x, y) for place in (model, written))
    assert local > common + 0.3
    assert f"{100 * common:.1f} % with the common head" in said.output
    assert f"{100 * local:.1f} % with a head fitted to 30 labels" in said.output
    assert "## Local head" in tacit.load(written).card


def test_only_the_last_layer_changes(tmp_path: Path, model: Path) -> None:
    _, written = fit_site_head(site(tmp_path), model, tmp_path / "mine.safetensors")
    common, local = load_file(model), load_file(written)
    changed = {name for name in common if not torch.equal(common[name], local[name])}
    head = tacit.load(model).architecture.head
    assert head is not None
    assert changed == {head.weight, head.bias}


def test_a_site_without_labels_or_test_samples_is_refused(tmp_path: Path, model: Path) -> None:
    with refused("site.no-own-labels"):
        fit_site_head(places.site(tmp_path, "share"), model)
    x, y = places.arrays(30)
    with refused("evaluate.no-such-part"):
        fit_site_head(places.site_with_arrays(tmp_path, "untested", x=x, y=y), model)
    with refused("evaluate.no-labels"):
        fit_site_head(site(tmp_path, y=np.full(30, -1)), model)
