"""MedMNIST from small files."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tacit.data.sources import load, medmnist
from tests.data.files import load_refused, pixels, write


def med_arrays(name: str) -> dict[str, NDArray[np.generic]]:
    channels, classes = medmnist.MEDMNIST[name].channels, len(medmnist.MEDMNIST[name].classes)
    arrays: dict[str, NDArray[np.generic]] = {}
    for seed, (part, count) in enumerate((("train", 12), ("val", 5), ("test", 6))):
        shape = (count, 28, 28) if channels == 1 else (count, 28, 28, channels)
        arrays[f"{part}_images"] = pixels(*shape, seed=seed)
        arrays[f"{part}_labels"] = np.arange(count, dtype=np.uint8)[:, None] % classes
    return arrays


def save_med(data: Path, monkeypatch: pytest.MonkeyPatch, name: str, arrays: dict[str, NDArray[np.generic]]) -> Path:
    monkeypatch.setattr(medmnist, "MEDMNIST", {name: small(medmnist.MEDMNIST[name])})
    (data / "medmnist").mkdir()
    np.savez_compressed(data / f"medmnist/{name}.npz", **arrays)  # type: ignore[arg-type]
    return data / f"medmnist/{name}.npz"


def small(known: medmnist.MedSet) -> medmnist.MedSet:
    return medmnist.MedSet(known.about, (12, 5, 6), known.channels, known.flip, known.checksum, known.classes)


@pytest.mark.parametrize("name", list(medmnist.MEDMNIST))
def test_training_and_validation_images_are_joined(data: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    arrays = med_arrays(name)
    save_med(data, monkeypatch, name, arrays)
    source = load(name)
    channels = 1 if arrays["train_images"].ndim == 3 else 3
    assert source.x.shape == (17, channels, 28, 28)
    assert np.array_equal(source.x[14].numpy().transpose(1, 2, 0).squeeze(), arrays["val_images"][2])
    assert source.y.tolist() == [*arrays["train_labels"][:, 0], *arrays["val_labels"][:, 0]]
    assert source.y_test.tolist() == arrays["test_labels"][:, 0].tolist()
    assert source.name == name


@pytest.mark.parametrize(
    "change, code",
    [
        ({"val_images": None}, "data.missing-array"),
        ({"test_labels": np.zeros((6, 1))}, "data.missing-array"),
        ({"test_images": pixels(5, 28, 28)}, "data.wrong-shape"),
        ({"train_images": pixels(12, 64, 64)}, "data.wrong-shape"),
        ({"train_images": pixels(12, 28, 28, 3)}, "data.wrong-shape"),
        ({"train_labels": np.full((12, 1), 2)}, "data.wrong-labels"),
        ({"train_labels": np.zeros((12, 14), dtype=int)}, "data.wrong-shape"),
    ],
)
def test_a_wrong_medmnist_file_is_refused(
    data: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], code: str
) -> None:
    arrays = {name: value for name, value in (med_arrays("breastmnist") | change).items() if value is not None}
    path = save_med(data, monkeypatch, "breastmnist", arrays)
    load_refused("breastmnist", code, str(path))


def test_a_damaged_medmnist_file_is_refused(data: Path) -> None:
    write(data / "medmnist/bloodmnist.npz", b"PK garbage")
    load_refused("bloodmnist", "data.unreadable-file", "bloodmnist.npz", "download")
