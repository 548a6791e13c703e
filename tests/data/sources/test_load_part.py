"""The data of one member of a federation: some or none of its classes, and nothing held out."""

from pathlib import Path

import numpy as np
import pytest

from tacit.data.sources import load_part
from tacit.data.sources.images import Scale
from tests.data.files import pixels, save_image
from tests.refusals import refused

CLASSES = ("dog", "yak", "cat")


def npz(folder: Path, y: list[int], test: list[int] | None = None) -> Path:
    arrays = {"x": pixels(len(y), 6, 6), "y": np.array(y)}
    if test is not None:
        arrays |= {"x_test": pixels(len(test), 6, 6), "y_test": np.array(test)}
    np.savez(folder / "own.npz", **arrays)  # type: ignore[arg-type]  # numpy types the names as the flag allow_pickle
    return folder / "own.npz"


def part_refused(path: Path, code: str, *mentions: str) -> None:
    with refused(code) as refusal:
        load_part(path, CLASSES)
    assert "\n" not in str(refusal.error)
    for words in mentions:
        assert words in str(refusal.error)


@pytest.mark.parametrize("y", [[2, 0, -1, 2], [-1, -1, -1], [1, 1, 1]])
def test_labels_of_arrays_number_the_federations_classes(y: list[int], tmp_path: Path) -> None:
    source = load_part(npz(tmp_path, y), CLASSES)
    assert (source.y.tolist(), len(source.y_test), source.classes) == (y, 0, CLASSES)


def test_test_arrays_are_read(tmp_path: Path) -> None:
    source = load_part(npz(tmp_path, [1, 1], [2]), CLASSES)
    assert (source.y.tolist(), source.y_test.tolist()) == ([1, 1], [2])


@pytest.mark.parametrize("y, wrong", [([0, 3], "class 3"), ([-2], "class -2")])
def test_class_numbers_out_of_range_are_refused(y: list[int], wrong: str, tmp_path: Path) -> None:
    part_refused(npz(tmp_path, y), "data.unknown-class", wrong, "0 to 2, from dog to cat")


def test_a_test_sample_needs_a_label(tmp_path: Path) -> None:
    part_refused(npz(tmp_path, [0], [-1]), "data.bad-test-labels")


def test_folders_may_lack_classes_and_labels(tmp_path: Path) -> None:
    for place in (
        "a/labeled/cat/1.png",
        "a/labeled/dog/1.png",
        "a/unlabeled/1.png",
        "a/test/yak/1.png",
        "b/unlabeled/1.png",
    ):
        save_image(tmp_path / place, pixels(9, 8))
    one, two = (load_part(tmp_path / name, CLASSES) for name in ("a", "b"))
    assert (sorted(one.y.tolist()), one.y_test.tolist()) == ([-1, 0, 2], [1])
    assert (two.y.tolist(), len(two.y_test)) == ([-1], 0)
    assert load_part(tmp_path / "a", CLASSES, Scale(4)).x.shape[2:] == (4, 4)


def test_a_manifest_may_lack_classes_and_labels(tmp_path: Path) -> None:
    for name in "abc":
        save_image(tmp_path / f"{name}.png", pixels(9, 8))
    path = tmp_path / "list.csv"
    path.write_text("path,label,split\na.png,,train\nb.png,,train\nc.png,cat,test\n", encoding="utf-8")
    source = load_part(path, CLASSES)
    assert (source.y.tolist(), source.y_test.tolist()) == ([-1, -1], [2])


@pytest.mark.parametrize(
    "place, code, remedy",
    [
        ("labeled/cats/1.png", "data.unknown-class", "rename it to cat"),
        ("test/yeti/1.png", "data.no-labeled-folder", "put images into"),
        ("labeled/yeti/1.png", "data.unknown-class", "use only dog, yak, cat"),
        ("dog/1.png", "data.no-labeled-folder", "move dog into labeled/"),
    ],
)
def test_a_folder_that_does_not_fit_is_refused(place: str, code: str, remedy: str, tmp_path: Path) -> None:
    save_image(tmp_path / "own" / place, pixels(9, 8))
    part_refused(tmp_path / "own", code, remedy)


def test_a_folder_without_training_images_is_refused(tmp_path: Path) -> None:
    save_image(tmp_path / "test/dog/1.png", pixels(9, 8))
    (tmp_path / "unlabeled").mkdir()
    part_refused(tmp_path, "data.no-training-images")
    part_refused(tmp_path / "gone", "data.no-folder")
