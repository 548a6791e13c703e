"""Python: what `tacit.run`, `tacit.compare` and `tacit.report` give to scripts and notebooks."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tacit
from tacit.metrics.scores import NAMES
from tacit.runs.directory import RunDirectory
from tests.engines import farm
from tests.refusals import refused


@pytest.fixture
def options(tmp_path: Path) -> dict[str, Any]:
    """Two rounds over four clients, in this process."""
    images = farm.write_images(tmp_path / "images.npz")
    values = {"data": str(images), "clients": 4, "labels": "client", "per_class": 2, "rounds": 2, "workers": 0}
    return values | {"train.steps": 2, "train.batch": 6, "net": "linear"}


def test_the_package_is_light_and_shows_what_users_need() -> None:
    code = "import sys, tacit; print(dir(tacit), {'torch', 'numpy', 'rich', 'pandas', 'sklearn'} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"{sorted(tacit.__all__)} set()"
    assert {"compare", "load", "report", "resume", "run"} <= set(tacit.__all__)
    assert all(hasattr(tacit, name) for name in tacit.__all__)


def test_a_result_is_short_in_a_console_and_a_picture_in_a_notebook(options: dict[str, Any]) -> None:
    result = tacit.run(method="fedavg+fixmatch", **options)
    assert repr(result) == f"<Result fedavg+fixmatch on images.npz: accuracy {result.accuracy:.1%} after 2 rounds>"
    html = result._repr_html_()
    assert "<svg" in html
    assert "balanced_accuracy" in html


def test_a_result_has_every_score(options: dict[str, Any]) -> None:
    result = tacit.run(**options)
    assert result.metrics.keys() == set(NAMES)
    assert result.metrics["accuracy"] == result.accuracy
    assert result.classes == ("0", "1", "2")


def test_a_frame_has_a_row_per_round(options: dict[str, Any]) -> None:
    frame = tacit.run(method="fedavg+fixmatch", **(options | {"log.metrics": "auroc"})).frame()
    assert list(frame.index) == [0, 1]
    assert {"accuracy", "loss", "auroc", "bytes_up", "clients/loss_supervised"} <= set(frame.columns)


def test_a_result_predicts_and_evaluates(options: dict[str, Any], tmp_path: Path) -> None:
    result = tacit.run(**options)
    x, y = (part.numpy() for part in farm.images(150))
    answers = result.predict(x[120:])
    assert (answers == y[120:].astype(str)).mean() == pytest.approx(result.accuracy)
    assert result.predict_proba(x[120:]).shape == (30, 3)
    np.savez(tmp_path / "new.npz", x=x[120:], y=y[120:])
    assert result.evaluate().accuracy == result.evaluate(tmp_path / "new.npz").accuracy == result.accuracy
    assert repr(result.evaluate()).startswith("<Evaluation of 30 samples: accuracy ")


def test_a_saved_result_can_be_loaded(options: dict[str, Any], tmp_path: Path) -> None:
    result = tacit.run(**options)
    assert result.save(tmp_path / "saved") == tmp_path / "saved"
    x, _ = farm.images(20)
    assert (tacit.load(tmp_path / "saved").predict(x) == result.predict(x)).all()
    with refused("storage.exists"):
        result.save(tmp_path / "saved")
    page = result.report(tmp_path / "page.html")
    assert "How good the models are" in page.read_text(encoding="utf-8")


def test_a_result_is_exported_by_the_ending_of_the_name(options: dict[str, Any], tmp_path: Path) -> None:
    result = tacit.run(**options)
    place = result.export(tmp_path / "model.safetensors")
    x, _ = farm.images(20)
    assert (tacit.load(place).predict(x) == result.predict(x)).all()
    with refused("names.unknown-format"):
        result.export(tmp_path / "model.pkl")


def test_without_a_common_model_there_is_only_an_accuracy(options: dict[str, Any]) -> None:
    result = tacit.run(method="local-only+supervised", **options)
    assert result.metrics == {"accuracy": result.accuracy}
    with refused("run.no-common-model"):
        result.predict(farm.images(3)[0])
    with refused("evaluate.no-predictions"):
        result.evaluate()


def test_progress_goes_to_stderr_if_asked_for(options: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    tacit.run(**options)
    assert capsys.readouterr() == ("", "")
    tacit.run(**options, progress=True)
    out, err = capsys.readouterr()
    assert out == ""
    assert "round 2/2" in err


def test_a_comparison_has_a_table_a_frame_and_a_page(options: dict[str, Any], tmp_path: Path) -> None:
    options.pop("per_class")
    chosen = options | {"labels": "server", "n_labels": 12}
    found = tacit.compare(methods=["labels-only", "semifl"], seeds=[0, 1], out=tmp_path / "runs", **chosen)
    assert "labels-only" in repr(found)
    assert "points over labels-only" in found.gain
    frame = found.frame()
    assert list(zip(frame["method"], frame["seed"], strict=True)) == [
        (method, seed) for method in ("labels-only", "semifl") for seed in (0, 1)
    ]
    html = found._repr_html_()
    assert html.count("<tr>") == 3
    assert "<svg" in html
    assert found.report(tmp_path / "page.html").is_file()
    again = tacit.compare(methods=["labels-only", "semifl"], seeds=[0, 1], out=tmp_path / "runs", **chosen)
    assert [run.seconds for run in again.runs] == [run.seconds for run in found.runs], "nothing was run again"


def test_more_rounds_give_other_outputs(options: dict[str, Any], tmp_path: Path) -> None:
    tacit.run(out=tmp_path / "run", **options)
    before = RunDirectory(tmp_path / "run").predictions()
    result = tacit.resume(tmp_path / "run", rounds=3)
    after = RunDirectory(tmp_path / "run").predictions()
    assert before is not None
    assert after is not None
    assert not np.array_equal(before.logits, after.logits)
    assert result.metrics["accuracy"] == result.accuracy
