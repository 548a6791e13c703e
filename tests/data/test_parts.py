"""What one holder of a federation has: the federation's classes, some or none of them, and nothing held out."""

from pathlib import Path

import numpy as np
import pytest

from tacit.data.images import Scale
from tacit.data.sources import load_part
from tacit.errors import TacitError
from tests.data.test_folders import pixels, save

CLASSES = ("dog", "yak", "cat")


def npz(folder: Path, y: list[int], test: list[int] | None = None) -> Path:
    arrays = {"x": pixels(len(y), 6, 6), "y": np.array(y)}
    if test is not None:
        arrays |= {"x_test": pixels(len(test), 6, 6), "y_test": np.array(test)}
    np.savez(folder / "own.npz", **arrays)  # type: ignore[arg-type]  # numpy types the names as the flag allow_pickle
    return folder / "own.npz"


def refused(path: Path, message: str) -> None:
    with pytest.raises(TacitError, match=message) as caught:
        load_part(path, CLASSES)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("y", [[2, 0, -1, 2], [-1, -1, -1], [1, 1, 1]])
def test_numbers_of_arrays_count_the_federations_classes(y: list[int], tmp_path: Path) -> None:
    source = load_part(npz(tmp_path, y), CLASSES)
    assert (source.y.tolist(), len(source.y_test), source.classes) == (y, 0, CLASSES)


def test_test_arrays_are_its_own(tmp_path: Path) -> None:
    source = load_part(npz(tmp_path, [1, 1], [2]), CLASSES)
    assert (source.y.tolist(), source.y_test.tolist()) == ([1, 1], [2])


@pytest.mark.parametrize("y, message", [([0, 3], "a sample of class 3 .* 0 to 2, from dog to cat"), ([-2], "class -2")])
def test_numbers_of_other_classes_are_refused(y: list[int], message: str, tmp_path: Path) -> None:
    refused(npz(tmp_path, y), message)


def test_a_test_sample_needs_a_label(tmp_path: Path) -> None:
    refused(npz(tmp_path, [0], [-1]), "y_test in .* has labels outside 0 to 2")


def test_folders_may_lack_classes_and_labels(tmp_path: Path) -> None:
    for place in (
        "a/labeled/cat/1.png",
        "a/labeled/dog/1.png",
        "a/unlabeled/1.png",
        "a/test/yak/1.png",
        "b/unlabeled/1.png",
    ):
        save(tmp_path / place, pixels(9, 8))
    one, two = (load_part(tmp_path / name, CLASSES) for name in ("a", "b"))
    assert (sorted(one.y.tolist()), one.y_test.tolist()) == ([-1, 0, 2], [1])
    assert (two.y.tolist(), len(two.y_test)) == ([-1], 0)
    assert load_part(tmp_path / "a", CLASSES, Scale(4)).x.shape[2:] == (4, 4)


def test_a_list_may_lack_classes_and_labels(tmp_path: Path) -> None:
    for name in "abc":
        save(tmp_path / f"{name}.png", pixels(9, 8))
    path = tmp_path / "list.csv"
    path.write_text("path,label,split\na.png,,train\nb.png,,train\nc.png,cat,test\n", encoding="utf-8")
    source = load_part(path, CLASSES)
    assert (source.y.tolist(), source.y_test.tolist()) == ([-1, -1], [2])


@pytest.mark.parametrize(
    "place, message",
    [
        ("labeled/cats/1.png", "has a class cats, which the federation does not know: rename it to cat"),
        ("test/yeti/1.png", "has no folder labeled or unlabeled"),
        ("labeled/yeti/1.png", "has a class yeti, .*: use only dog, yak, cat$"),
        ("dog/1.png", "has no folder labeled or unlabeled: move dog into labeled/"),
    ],
)
def test_folders_that_do_not_fit_are_refused(place: str, message: str, tmp_path: Path) -> None:
    save(tmp_path / "own" / place, pixels(9, 8))
    refused(tmp_path / "own", message)


def test_a_folder_without_images_to_learn_from_is_refused(tmp_path: Path) -> None:
    save(tmp_path / "test/dog/1.png", pixels(9, 8))
    (tmp_path / "unlabeled").mkdir()
    refused(tmp_path, "has no image to learn from")
    refused(tmp_path / "gone", "there is no folder")
