"""A user's images in folders are read by class, or refused with a remedy."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, PngImagePlugin

from tacit.data.sources import load
from tests.data.files import load_refused, pixels, save_image
from tests.data.kinds import pictured


def grey_folder(root: Path, test: bool = True) -> Path:
    """Ten cats, ten dogs, three unlabeled, and one of each to test on; every image is its own."""
    for number in range(10):
        save_image(root / f"labeled/dog/{number}.png", pixels(9, 8, seed=number))
        save_image(root / f"labeled/cat/deeper/{number}.png", pixels(9, 8, seed=100 + number))
    for number in range(3):
        save_image(root / f"unlabeled/{number}.png", pixels(9, 8, seed=200 + number))
    if test:
        save_image(root / "test/dog/a.png", pixels(9, 8, seed=300))
        save_image(root / "test/cat/a.png", pixels(9, 8, seed=301))
    return root


@pytest.mark.parametrize(
    "name, remedy",
    [
        ("unlabelled", "rename unlabelled to unlabeled"),
        ("Unlabeled", "rename Unlabeled to unlabeled"),
        ("val", "move val into one of them, or elsewhere"),
    ],
)
def test_images_in_an_unused_folder_are_refused(tmp_path: Path, name: str, remedy: str) -> None:
    grey_folder(tmp_path)
    (tmp_path / name).mkdir()
    (tmp_path / name / "notes.txt").write_text("not an image")
    load(str(tmp_path))
    save_image(tmp_path / name / "deeper/a.png", pixels(9, 8))
    load_refused(tmp_path, "data.unused-folder", remedy)


def test_an_unreadable_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grey_folder(tmp_path)
    scan = os.scandir

    def scandir(path: str) -> object:
        if Path(path).name == "dog":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return scan(path)

    monkeypatch.setattr(os, "scandir", scandir)
    load_refused(tmp_path, "data.unreadable-folder", "dog", "Permission denied")


def test_a_folder_is_read_by_class(tmp_path: Path) -> None:
    grey_folder(tmp_path)
    (tmp_path / "labeled/.hidden").mkdir()
    (tmp_path / "labeled/.hidden/notes").write_text("not an image")
    (tmp_path / "labeled/cat/.DS_Store").write_text("not an image")
    (tmp_path / "unlabeled/.cache").mkdir()
    (tmp_path / "unlabeled/.cache/x").write_text("not an image")
    for litter in ("labeled/Thumbs.db", "labeled/dog/desktop.ini", "test/cat/Thumbs.db", "unlabeled/thumbs.db"):
        (tmp_path / litter).write_text("not an image")
    for place in ("labeled", "labeled/dog", "unlabeled"):
        (tmp_path / place / "__MACOSX").mkdir()
        (tmp_path / place / "__MACOSX/x.png").write_text("not an image")
    source = load(str(tmp_path))
    assert source.classes == ("cat", "dog")
    assert source.x.shape == (23, 1, 9, 8)
    assert source.x.dtype == torch.uint8
    assert source.y.tolist() == [0] * 10 + [1] * 10 + [-1] * 3
    assert source.y_test.tolist() == [0, 1]
    assert np.array_equal(source.x[10, 0].numpy(), pixels(9, 8, seed=0))
    assert np.array_equal(source.x[0, 0].numpy(), pixels(9, 8, seed=100))
    assert np.array_equal(source.x[22, 0].numpy(), pixels(9, 8, seed=202))
    assert np.array_equal(source.x_test[1, 0].numpy(), pixels(9, 8, seed=300))
    assert not pictured(source).flip
    assert source.groups is None
    assert pictured(source).mean == pytest.approx([float(source.x.double().mean() / 255)])


def test_without_test_images_a_fifth_is_held_out_as_in_a_file(tmp_path: Path) -> None:
    whole = load(str(grey_folder(tmp_path / "with")))
    source = load(str(grey_folder(tmp_path / "without", test=False)))
    assert torch.bincount(source.y_test).tolist() == [2, 2]
    assert int((source.y == -1).sum()) == 3
    np.savez(tmp_path / "same.npz", x=whole.x.numpy()[:, 0], y=whole.y.numpy())
    file = load(str(tmp_path / "same.npz"))
    assert torch.equal(file.x, source.x)
    assert torch.equal(file.x_test, source.x_test)
    assert torch.equal(file.y, source.y)


def test_a_folder_needs_no_unlabeled_images(tmp_path: Path) -> None:
    for number in range(5):
        save_image(tmp_path / f"labeled/only/{number}.png", pixels(4, 4, seed=number))
    assert load(str(tmp_path)).y.tolist() == [0] * 4


def test_one_colour_image_makes_all_rgb(tmp_path: Path) -> None:
    grey_folder(tmp_path)
    save_image(tmp_path / "unlabeled/colour.png", pixels(9, 8, 3, seed=7))
    source = load(str(tmp_path))
    assert source.x.shape == (24, 3, 9, 8)
    assert torch.equal(source.x[0, 0], source.x[0, 2])
    assert np.array_equal(source.x[-1].numpy().transpose(1, 2, 0), pixels(9, 8, 3, seed=7))
    assert len(pictured(source).mean) == 3


def test_size_reaches_the_images(tmp_path: Path) -> None:
    source = load(str(grey_folder(tmp_path)), size=5)
    assert source.x.shape[2:] == (5, 5)
    assert source.note == "Images were cropped and resized from 8×9; data.size changes that."


def test_bits_reach_the_images(tmp_path: Path) -> None:
    for name in "cat", "dog":
        for number in range(5):
            save_image(tmp_path / f"labeled/{name}/{number}.png", np.full((4, 4), 900, dtype=np.uint16))
    found, given = load(str(tmp_path)), load(str(tmp_path), bits=12)
    assert (int(found.x[0, 0, 0, 0]), pictured(found).bits) == (224, 10)
    assert (int(given.x[0, 0, 0, 0]), pictured(given).bits) == (56, 12)


def text(path: Path) -> None:
    path.write_text("not an image")


def nothing(path: Path) -> None:
    path.write_bytes(b"")


def half(path: Path) -> None:
    Image.fromarray(pixels(50, 50)).save(path)
    path.write_bytes(path.read_bytes()[:1200])


def other_bytes(path: Path) -> None:
    Image.fromarray(pixels(50, 50)).save(path)
    raw = bytearray(path.read_bytes())
    raw[60:90] = bytes(30)
    path.write_bytes(raw)


@pytest.mark.parametrize("spoil", [text, nothing, half, other_bytes])
def test_files_that_are_not_images_are_counted(tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    grey_folder(tmp_path)
    for name in ("x.png", "y.png"):
        spoil(tmp_path / "labeled/dog" / name)
    first = tmp_path / "labeled/dog/x.png"
    load_refused(tmp_path, "data.unreadable-images", "2 of 27 files", str(first))


@pytest.mark.parametrize("limit", [50, 30])  # pixels; Pillow warns above the limit and refuses above twice of it
def test_an_image_that_would_fill_the_memory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
    load_refused(grey_folder(tmp_path), "data.image-too-large")


def test_a_text_chunk_that_would_fill_the_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = PngImagePlugin.PngInfo()
    info.add_text("note", "a" * 5000, zip=True)
    Image.fromarray(pixels(9, 8)).save(grey_folder(tmp_path) / "unlabeled/a.png", pnginfo=info)
    monkeypatch.setattr(PngImagePlugin, "MAX_TEXT_CHUNK", 1000)
    load_refused(tmp_path, "data.unreadable-images", "1 of 26 files")


def no_labeled(root: Path) -> None:
    (root / "labeled").rename(root / "pictures")


def british(root: Path) -> None:
    (root / "labeled").rename(root / "Labelled")


def as_for_training(root: Path) -> None:
    (root / "labeled").rename(root / "train")


def classes_at_the_top(root: Path) -> None:
    save_image(root / "labeled/cat/direct.png", pixels(9, 8))
    for entry in (root / "labeled").iterdir():
        entry.rename(root / entry.name)
    (root / "labeled").rmdir()


def many_classes_at_the_top(root: Path) -> None:
    classes_at_the_top(root)
    for name in ("ant", "bee"):
        save_image(root / name / "1.JPG", pixels(9, 8))


def file_without_class(root: Path) -> None:
    save_image(root / "labeled/stray.png", pixels(9, 8))


def empty_class(root: Path) -> None:
    (root / "labeled/bird").mkdir()


def no_class(root: Path) -> None:
    (root / "labeled").rename(root / ".old")
    (root / "labeled").mkdir()


def new_class(root: Path) -> None:
    save_image(root / "test/bird/a.png", pixels(9, 8))


def empty_test(root: Path) -> None:
    (root / "test").rename(root / ".old")
    (root / "test").mkdir()


@pytest.mark.parametrize(
    "spoil, code, name",
    [
        (no_labeled, "data.no-labeled-folder", "put images into labeled/<class>/ and unlabeled/"),
        (british, "data.no-labeled-folder", "rename Labelled to labeled"),
        (as_for_training, "data.no-labeled-folder", "rename train to labeled"),
        (classes_at_the_top, "data.no-labeled-folder", "move cat, dog into labeled/"),
        (many_classes_at_the_top, "data.no-labeled-folder", "move ant, bee, cat, … into labeled/"),
        (file_without_class, "data.image-without-class", "stray.png"),
        (empty_class, "data.empty-class", "bird"),
        (new_class, "data.class-only-in-test", "bird"),
        (empty_test, "data.empty-test", "test"),
    ],
)
def test_a_wrong_folder_is_refused(tmp_path: Path, spoil: Callable[[Path], None], code: str, name: str) -> None:
    spoil(grey_folder(tmp_path))
    load_refused(tmp_path, code, name)


def test_a_folder_without_classes_is_refused(tmp_path: Path) -> None:
    no_class(grey_folder(tmp_path, test=False))
    load_refused(tmp_path, "data.no-labels")


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    load_refused(tmp_path / "nowhere", "data.no-folder", "nowhere")


def test_too_few_labels_for_a_test_set_are_refused(tmp_path: Path) -> None:
    save_image(tmp_path / "labeled/a/1.png", pixels(4, 4))
    load_refused(tmp_path, "data.too-few-labels", "add a folder test")
