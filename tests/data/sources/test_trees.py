"""Tiny ImageNet and COVID-19 Radiography from small trees of image files."""

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from tacit.data.sources import known, load
from tests.data.files import load_refused, pixels, write
from tests.data.kinds import pictured


def save_all(place: Path, files: dict[str, bytes]) -> None:
    for name, raw in files.items():
        write(place / name, raw)


def image(array: NDArray[np.uint8], form: str) -> bytes:
    file = io.BytesIO()
    Image.fromarray(array).save(file, form)
    return file.getvalue()


def tiny() -> dict[str, bytes]:
    ids = ("n02", "n01", "n03")  # their numbers follow this order
    files = {
        "wnids.txt": "".join(f"{name}\n" for name in ids).encode(),
        "words.txt": b"n01\tgoldfish\nn02\ttoad, frog\n",
    }
    for number, name in enumerate(ids):
        colour = np.full((64, 64, 3), 80 * number, dtype=np.uint8)
        files[f"train/{name}/images/{name}_0.JPEG"] = image(colour, "jpeg")
        files[f"train/{name}/images/{name}_1.JPEG"] = image(colour[..., 0], "jpeg")  # some are grey
        files[f"train/{name}/{name}_boxes.txt"] = b"0\t0\t1\t1\n"
        files[f"val/images/val_{number}.JPEG"] = image(colour, "jpeg")
        files[f"test/images/test_{number}.JPEG"] = b"never read"
    files["val/val_annotations.txt"] = b"".join(f"val_{n}.JPEG\t{ids[n]}\t0\t0\t1\t1\n".encode() for n in (2, 0, 1))
    return files


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("size", [None, 32])
def test_tiny_imagenet_is_read_from_a_folder_or_a_zip_archive(
    data: Path, monkeypatch: pytest.MonkeyPatch, packed: bool, size: int | None
) -> None:
    monkeypatch.setitem(known.COUNTS, "tiny-imagenet", (6, 3))
    if packed:
        with zipfile.ZipFile(data / "tiny-imagenet-200.zip", "w") as archive:
            for name, raw in tiny().items():
                archive.writestr(f"tiny-imagenet-200/{name}", raw)
    else:
        save_all(data / "tiny-imagenet-200", tiny())
    source = load("tiny-imagenet", size)
    assert source.x.shape == (6, 3, size or 64, size or 64)
    assert source.classes == ("toad, frog", "goldfish", "n03")
    assert source.y.tolist() == [1, 1, 0, 0, 2, 2]
    assert source.y_test.tolist() == [2, 0, 1]
    assert (source.x[:, 0, 5, 5] // 80).tolist() == source.y.tolist()
    assert (source.x_test[:, 2, 5, 5] // 80).tolist() == source.y_test.tolist()
    assert pictured(source).flip


def test_an_incomplete_tiny_imagenet_is_refused(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(known.COUNTS, "tiny-imagenet", (6, 3))
    save_all(data / "tiny-imagenet-200", tiny())
    first = data / "tiny-imagenet-200/train/n01/images/n01_0.JPEG"
    first.write_bytes(first.read_bytes()[:300])
    load_refused("tiny-imagenet", "data.unreadable-images", str(first))
    first.unlink()
    load_refused("tiny-imagenet", "data.wrong-shape", "5 training images")
    (data / "tiny-imagenet-200/wnids.txt").unlink()
    load_refused("tiny-imagenet", "data.missing-file", "wnids.txt")


@pytest.mark.parametrize(
    "place, covid, normal",
    [
        ("COVID-19_Radiography_Dataset", "COVID/images", "Normal/images"),
        ("COVID-19 Radiography Database", "COVID-19", "NORMAL"),
    ],
)
def test_covid_radiography_is_read_from_any_release(data: Path, place: str, covid: str, normal: str) -> None:
    below = "/images" if "images" in covid else ""
    for number, folder in enumerate((covid, normal, f"Viral Pneumonia{below}", f"Lung_Opacity{below}")):
        for side in range(20, 30):
            xray = np.full((side, side + number), 60 * number, dtype=np.uint8)
            write(data / place / folder / f"{side}.png", image(xray, "png"))
            write(data / place / folder / "notes.txt", b"not an image")
            if below:
                write(data / place / folder.replace("images", "masks") / f"{side}.png", b"never read")
    source = load("covid-radiography")
    assert source.classes == ("COVID-19", "normal", "viral pneumonia")
    assert source.x.shape == (24, 1, 64, 64)
    assert torch.bincount(source.y).tolist() == [8, 8, 8]
    assert torch.bincount(source.y_test).tolist() == [2, 2, 2]
    assert (source.x[:, 0, 9, 9] // 60).tolist() == source.y.tolist()
    assert not pictured(source).flip
    assert load("covid-radiography", 16).x.shape[2:] == (16, 16)


def test_covid_radiography_without_a_class_is_refused(data: Path) -> None:
    write(data / "COVID-19_Radiography_Dataset/COVID/images/1.png", image(pixels(9, 9), "png"))
    load_refused("covid-radiography", "data.incomplete-data-set", "Normal")


def test_covid_radiography_must_be_downloaded_by_hand(data: Path) -> None:
    load_refused("covid-radiography", "data.manual-download", "kaggle.com", str(data))
