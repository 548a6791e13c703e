"""A model is opened from its file alone and predicts what the run reported, to the bit."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import tacit
from tacit.data.sources.arrays import hold_out
from tacit.errors import TacitError
from tacit.inference.description import Description
from tacit.inference.model import Model
from tacit.runs.experiment import Experiment
from tests.data.tables import cancer
from tests.engines import farm
from tests.inference import trained
from tests.refusals import refused


@pytest.fixture(scope="module")
def scans(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on a folder of images, which was moved since."""
    folder = tmp_path_factory.mktemp("scans")
    trained.image_folder(folder)
    (folder / "scans").rename(folder / "moved")
    return folder


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on a table, which was deleted since."""
    folder = tmp_path_factory.mktemp("cells")
    trained.table(folder)
    (folder / "cells.csv").unlink()
    return folder


def arrays_in(path: Path) -> dict[str, Any]:
    with np.load(path) as file:
        return dict(file)


def test_predictions_for_arrays_have_the_accuracy_of_the_run(tmp_path: Path) -> None:
    result = trained.images_npz(tmp_path)
    arrays = arrays_in(tmp_path / "images.npz")
    (tmp_path / "images.npz").unlink()
    shutil.rmtree(tmp_path / "run" / "checkpoint")
    model = tacit.load(tmp_path / "run")
    x, y = arrays["x_test"], arrays["y_test"]
    assert model.score(x, y) == result.accuracy
    assert model.score(x, y.astype(str)) == result.accuracy
    assert list(model.predict(x)) == [model.classes[k] for k in model.predict_proba(x).argmax(axis=1)]
    assert np.allclose(model.predict_proba(x).sum(axis=1), 1)


def test_predictions_for_files_have_the_accuracy_of_the_run_after_the_folder_was_moved(scans: Path) -> None:
    model, moved = tacit.load(scans / "run"), scans / "moved" / "test"
    with refused("data.no-folder"):
        Experiment.reopen(scans / "run")
    last = json.loads((scans / "run" / "rounds.jsonl").read_text().splitlines()[-1])
    labels = ["left"] * 12 + ["right"] * 12
    assert model.score(moved, labels) == last["accuracy"]
    assert model.score([moved / "left", str(moved / "right" / "*.png")], labels) == last["accuracy"]


def test_predictions_for_rows_have_the_accuracy_of_the_run_whatever_the_order_of_columns(cells: Path) -> None:
    model = tacit.load(cells / "run")
    last = json.loads((cells / "run" / "rounds.jsonl").read_text().splitlines()[-1])
    x, labels, names = cancer()
    rows = _held_out(labels)
    frame = {name: x[rows, place] for place, name in reversed(list(enumerate(names)))}
    truth = [labels[row] for row in rows]
    assert model.score(x[rows], truth) == last["accuracy"]
    assert model.score(frame, truth) == last["accuracy"]


def _held_out(labels: list[str]) -> NDArray[np.int64]:
    y = np.unique(labels, return_inverse=True)[1].astype(np.int64)
    return hold_out(Path("cells.csv"), y, "")[1]


def test_predictions_for_text_have_the_accuracy_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = trained.text(tmp_path, monkeypatch)
    monkeypatch.undo()
    model, test = tacit.load(tmp_path / "run"), result.job.federation.test
    assert model.score(test.x.numpy(), test.y.numpy()) == result.accuracy
    texts = ["".join(trained.ALPHABET[code] for code in row) for row in test.x.tolist()]
    assert np.array_equal(model.predict_proba(texts), model.predict_proba(test.x.numpy()))
    assert np.array_equal(model.predict_proba("ab"), model.predict_proba(" " * 8 + "ab"))
    assert np.array_equal(model.predict_proba("say: " + texts[0]), model.predict_proba(texts[:1]))


def test_the_net_on_preprocessed_samples_gives_the_probabilities(scans: Path) -> None:
    model = tacit.load(scans / "run")
    files = sorted((scans / "moved" / "test").rglob("*.png"))
    with torch.no_grad():
        by_hand = torch.softmax(model.net(model.preprocess(files)), dim=1).numpy()
    assert np.allclose(by_hand, model.predict_proba(files), atol=1e-6)


def test_an_image_is_the_same_as_file_as_pillow_image_and_as_array(scans: Path) -> None:
    model = tacit.load(scans / "run")
    path = scans / "moved" / "test" / "left" / "03.png"
    pixels = np.asarray(Image.open(path))
    expected = model.predict_proba(path)
    for given in (
        str(path),
        Image.open(path),
        pixels,
        pixels[None],
        pixels[None, :, :, None],
        np.stack([pixels] * 3, axis=-1),
        torch.from_numpy(pixels.copy()),
        model.stored(path).numpy(),
        pixels / 255,
        pixels.astype(np.float32)[None] / 255,
    ):
        assert np.array_equal(model.predict_proba(given), expected)
    both = model.predict_proba([path, pixels, Image.open(path)])
    assert np.allclose(both, expected.repeat(3, axis=0), atol=1e-6)  # a larger batch may round differently


def test_16_bit_images_are_refused_by_a_model_of_8_bit_images(scans: Path, tmp_path: Path) -> None:
    model = tacit.load(scans / "run")
    Image.fromarray(np.full((20, 20), 4000, np.uint16)).save(tmp_path / "deep.png")
    for given in (tmp_path / "deep.png", np.full((20, 20), 4000, np.uint16)):
        with refused("data.too-few-bits"):
            model.predict(given)


def test_the_file_describes_the_model_completely(scans: Path) -> None:
    with safe_open(scans / "run" / "model.safetensors", "pt") as file:
        about = json.loads(file.metadata()["tacit"])
    assert about["schema"] == 1
    assert about["tacit"] == tacit.__version__
    assert about["net"]["name"] == "linear"
    assert about["classes"] == ["left", "right"]
    assert about["fit"] == "crop"
    assert about["inputs"]["shape"] == [1, 16, 16]
    assert 0 < about["inputs"]["mean"][0] < 1
    assert about["method"] == "fedavg"
    assert about["pretrained"] == {}
    assert about["reference"]["samples"] == 24
    described = Description.from_json(json.dumps(about))
    assert Description.from_json(described.to_json()) == described


@pytest.mark.parametrize(
    "given, code",
    [
        (np.zeros((2, 29)), "predict.wrong-shape"),
        ({"mean radius": [1.0]}, "predict.missing-column"),
        (np.full((1, 30), np.nan), "data.missing-value"),
        ("nowhere.csv", "predict.no-such-path"),
        ([], "predict.wrong-shape"),
    ],
)
def test_rows_that_do_not_fit_are_refused(cells: Path, given: Any, code: str) -> None:
    with refused(code):
        tacit.load(cells / "run").predict(given)


def test_labels_that_the_model_does_not_know_are_refused(cells: Path) -> None:
    model = tacit.load(cells / "run")
    for labels, code in ((["benin"], "predict.unknown-class"), ([2], "predict.unknown-class"), ([0, 1], None)):
        with refused(code or "predict.different-lengths"):
            model.score(np.ones((1, 30)), labels)


def _older(folder: Path) -> Path:
    """A run as an earlier version wrote it: its model does not say how to use it."""
    trained.images_npz(folder)
    path = folder / "run" / "model.safetensors"
    about = {"net": {"name": "lenet", "norm": None, "width": 1.0}, "shape": [1, 16, 16], "classes": ["0", "1", "2"]}
    save_file(load_file(path), path, {"tacit": json.dumps(about)})
    return folder / "run"


@pytest.mark.parametrize("schema", [1, 2])
def test_resume_describes_the_model_of_an_earlier_version(tmp_path: Path, schema: int) -> None:
    folder = _older(tmp_path)
    before = load_file(folder / "model.safetensors")
    if schema == 1:
        (folder / "run.json").unlink()
        shutil.rmtree(folder / "checkpoint")
        (folder / "checkpoint").mkdir()
        (folder / "checkpoint" / "latest.json").write_text('{"round": 2}')
    with refused("model.no-description") as caught:
        tacit.load(folder)
    assert f"tacit resume {folder}" in caught.error.remedy
    result = tacit.resume(folder)
    arrays = arrays_in(tmp_path / "images.npz")
    assert tacit.load(folder).score(arrays["x_test"], arrays["y_test"]) == result.accuracy
    after = load_file(folder / "model.safetensors")
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_what_is_no_finished_model_is_refused(tmp_path: Path) -> None:
    farm.write_images(tmp_path / "images.npz")
    settings = trained.QUICK | {"data": str(tmp_path / "images.npz")}
    tacit.run(out=tmp_path / "apart", method="local-only", **settings)
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.safetensors").write_text("no model")
    for name, code in (
        ("apart", "run.no-common-model"),
        ("empty", "run.none"),
        ("gone", "model.no-file"),
        ("text.safetensors", "model.broken"),
        ("model.onnx", "model.exported"),
    ):
        with refused(code) as caught:
            tacit.load(tmp_path / name)
        assert "resume" not in caught.error.remedy, name
    shutil.copytree(tmp_path / "apart", tmp_path / "half")
    (tmp_path / "half" / "checkpoint" / "latest.json").write_text('{"round": 1}')
    with refused("run.not-finished"):
        tacit.load(tmp_path / "half")


def test_a_damaged_description_is_refused_in_one_sentence(cells: Path, tmp_path: Path) -> None:
    path, draw = tmp_path / "model.safetensors", np.random.default_rng(0)
    tensors = load_file(cells / "run" / "model.safetensors")
    with safe_open(cells / "run" / "model.safetensors", "pt") as file:
        about = json.loads(file.metadata()["tacit"])
    others: list[Any] = [None, -1, 0, 2.5, "x", [], {}, [1, "a"], True, float("nan")]
    errors: list[TacitError] = []
    for number in range(300):
        changed = json.loads(json.dumps(about))
        place = changed[draw.choice(["net", "inputs", "reference"])] if number % 2 else changed
        key = str(draw.choice(list(place)))
        if number % 5:
            place[key] = others[draw.integers(len(others))]
        else:
            del place[key]
        save_file(tensors, path, {"tacit": json.dumps(changed)})
        try:
            tacit.load(path).predict_proba(np.ones((1, 30)))
        except TacitError as error:
            errors.append(error)
    assert 150 < len(errors) < 300
    assert all("\n" not in str(error) and error.remedy for error in errors)


OWN = """
from safetensors.torch import load_file
from torch import nn
PATH = {path!r}
def make(shape, classes):
    body = nn.Linear(256, 5)
    body.load_state_dict(load_file(PATH))
    body.requires_grad_(False)
    net = nn.Sequential(nn.Flatten(), body, nn.ReLU(), nn.Linear(5, classes))
    net.pretrained = {{"name": "tiny", "licence": "CC0"}}
    return net
"""


def test_an_own_network_is_imported_only_on_request_and_its_frozen_weights_are_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    torch.manual_seed(3)
    weights = tmp_path / "weights.safetensors"
    save_file(torch.nn.Linear(256, 5).state_dict(), weights)
    (tmp_path / "own_frozen_net.py").write_text(OWN.format(path=str(weights)))
    farm.write_images(tmp_path / "images.npz")
    result = tacit.run(out="run", data=str(tmp_path / "images.npz"), net="own_frozen_net:make", **trained.QUICK)
    assert {"1.weight", "1.bias"} <= load_file("run/model.safetensors").keys()
    assert set(result.params or {}) == {"3.weight", "3.bias"}
    with refused("model.needs-import"):
        tacit.load("run")
    save_file(torch.nn.Linear(256, 5).state_dict(), weights)  # other weights than those of the training
    model = tacit.load("run", import_net=True)
    arrays = arrays_in(Path("images.npz"))
    assert model.score(arrays["x_test"], arrays["y_test"]) == result.accuracy
    assert model.description.pretrained == {"name": "tiny", "licence": "CC0"}
    assert tacit.resume("run").accuracy == result.accuracy


def test_a_model_has_a_short_repr(cells: Path) -> None:
    model = tacit.load(cells / "run")
    assert repr(model) == "<Model mlp, 30 vectors to 2 classes, fedavg>"
    assert isinstance(model, Model)
