"""Exports agree with the model, say what they are, and are refused where they do not."""

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

import tacit
from tacit.inference import export as exports
from tacit.inference.calibration import fit_temperature, log_loss
from tacit.inference.export import Exported, export
from tacit.inference.model import Model
from tests.cli.shell import Shell, code_of
from tests.data.tables import cancer, cancer_csv
from tests.inference import trained
from tests.refusals import refused


@pytest.fixture(scope="module")
def scans(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scans")
    trained.image_folder(folder)
    (folder / "scans").rename(folder / "moved")
    return folder


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cells")
    trained.table(folder)
    return folder


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Shell:
    return Shell(monkeypatch, capsys, tmp_path)


def session(path: Path) -> Any:
    runtime = pytest.importorskip("onnxruntime")
    return runtime.InferenceSession(path, providers=["CPUExecutionProvider"])


def test_a_folder_of_images_becomes_predictions_and_an_onnx_file_that_agree(shell: Shell, scans: Path) -> None:
    """All that a newcomer does after `tacit run`, with the training folder moved and no Python."""
    pytest.importorskip("onnxscript")
    test = scans / "moved" / "test"
    assert shell("predict", scans / "run", test, "--proba", "--workers", 0).code == 0
    said = shell("export", scans / "run", "--check", test)
    assert (said.code, said.err) == (0, "")
    assert "largest difference of a probability on 24 given samples" in said.out
    assert "ImageOps.fit" in " ".join(said.out.split())
    graph = session(shell.folder / "model.onnx")
    (given,), (made,) = graph.get_inputs(), graph.get_outputs()
    assert (given.name, given.type, given.shape) == ("input", "tensor(uint8)", ["batch", 1, 16, 16])
    assert (made.name, made.shape) == ("probabilities", ["batch", 2])
    files = sorted(test.rglob("*.png"))
    pixels = np.stack([np.asarray(_fitted(path))[None] for path in files])
    model = tacit.load(scans / "run")
    for count in (1, 5, 24):
        found = graph.run(None, {"input": pixels[:count]})[0]
        assert np.abs(found - model.predict_proba(files[:count])).max() < 1e-5
    about = graph.get_modelmeta().custom_metadata_map
    assert json.loads(about["classes"]) == ["left", "right"]
    assert json.loads(about["tacit"])["fit"] == "crop"
    assert "0 to 255" in about["input"]


def _fitted(path: Path) -> Image.Image:
    """What the metadata says, by hand."""
    return ImageOps.fit(Image.open(path).convert("L"), (16, 16))


@pytest.mark.slow
def test_tables_and_texts_export_too(cells: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxscript")
    x = torch.tensor(cancer()[0][:9], dtype=torch.float32)
    for run, samples in (
        (cells / "run", x),
        (tmp_path / "run", trained.text(tmp_path, monkeypatch).job.federation.test.x[:9]),
    ):
        model = tacit.load(run)
        assert _small(export(model, tmp_path / "model.onnx", "onnx", samples))
        found = session(tmp_path / "model.onnx").run(None, {"input": samples[:4].numpy()})[0]
        assert np.abs(found - model.probabilities(samples[:4]).numpy()).max() < 1e-5


def _small(done: Exported) -> bool:
    return done.difference is not None and done.difference < 1e-5


def test_a_pt2_file_runs_without_tacit(scans: Path, tmp_path: Path) -> None:
    model = tacit.load(scans / "run")
    x = model.stored(scans / "moved" / "test")
    assert _small(export(model, tmp_path / "model.pt2", "pt2", x))
    extra = {"tacit.json": ""}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.load(tmp_path / "model.pt2", extra_files=extra)
    assert json.loads(json.loads(extra["tacit.json"])["classes"]) == ["left", "right"]
    with torch.no_grad():
        for count in (1, 7):
            assert torch.allclose(program.module()(x[:count]), model.probabilities(x[:count]), atol=1e-5)


def test_a_calibrated_safetensors_file_is_loaded_with_its_temperature(shell: Shell, cells: Path) -> None:
    cancer_csv(Path("held-out.csv"), slice(0, 200))
    options = ["--format", "safetensors", "--calibrate", "held-out.csv", "-o", "my.safetensors"]
    said = shell("export", cells / "run", *options)
    assert (said.code, said.err) == (0, "")
    assert "temperature" in said.out
    before, after = tacit.load(cells / "run"), tacit.load("my.safetensors")
    x, labels, _ = cancer()
    y, logits = before.numbers(labels), before.logits(before.stored(x))
    temperature = after.description.temperature
    assert temperature == fit_temperature(logits[:200], y[:200])
    assert log_loss(logits[:200], y[:200], temperature) <= log_loss(logits[:200], y[:200], 1.0)
    assert np.allclose(after.predict_proba(x), torch.softmax(logits / temperature, dim=1), atol=1e-6)
    assert list(after.predict(x)) == list(before.predict(x))
    assert after.card == before.card
    assert after.description.reference != before.description.reference


def test_the_temperature_of_overconfident_logits_is_found() -> None:
    draw = torch.Generator().manual_seed(0)
    logits = torch.randn(20_000, 4, generator=draw) * 2
    y = _sampled(logits, draw)
    assert fit_temperature(3 * logits, y) == pytest.approx(3, rel=0.05)
    assert fit_temperature(logits, y) == pytest.approx(1, rel=0.05)
    with refused("export.nothing-to-calibrate"):
        fit_temperature(logits, logits.argmax(dim=1))


def _sampled(logits: torch.Tensor, draw: torch.Generator) -> torch.Tensor:
    """A class of each row, drawn with the probabilities that the logits state."""
    return torch.multinomial(torch.softmax(logits, dim=1), 1, generator=draw).reshape(-1)


def test_a_file_that_differs_from_the_model_is_not_written(
    scans: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tacit.load(scans / "run")
    x = model.stored(scans / "moved" / "test")
    right = exports._FORMS["safetensors"]

    def wrong(model: Model, path: Path) -> exports.Run:
        return lambda x: model.probabilities(x) + 2e-4

    monkeypatch.setitem(exports._FORMS, "safetensors", (right[0], wrong))
    with refused("export.differs"):
        export(model, tmp_path / "model.safetensors", "safetensors", x)
    assert list(tmp_path.iterdir()) == []


def test_wrong_formats_and_missing_packages_are_refused(
    shell: Shell, scans: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert code_of("export", scans / "run", "--format", "onx") == "names.unknown-format"
    monkeypatch.setattr(exports, "find_spec", lambda name: None)
    assert code_of("export", scans / "run") == "export.needs-onnx"
    assert list(shell.folder.iterdir()) == []
