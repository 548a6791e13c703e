"""The user's own images: folders and CSV files are read as they say, or refused in one sentence."""

import errno
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image, PngImagePlugin

from tacit.data import images
from tacit.data.sources import load
from tacit.errors import TacitError


def pixels(*shape: int, seed: int = 0) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def save(path: Path, array: NDArray[np.generic]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(array).save(path)
    return path


def grey_folder(root: Path, test: bool = True) -> Path:
    """Ten cats, ten dogs, three unlabeled, and one of each to test on; every image is its own."""
    for number in range(10):
        save(root / f"labeled/dog/{number}.png", pixels(9, 8, seed=number))
        save(root / f"labeled/cat/deeper/{number}.png", pixels(9, 8, seed=100 + number))
    for number in range(3):
        save(root / f"unlabeled/{number}.png", pixels(9, 8, seed=200 + number))
    if test:
        save(root / "test/dog/a.png", pixels(9, 8, seed=300))
        save(root / "test/cat/a.png", pixels(9, 8, seed=301))
    return root


def refused(name: Path, message: str) -> None:
    with pytest.raises(TacitError, match=message) as caught:
        load(str(name))
    assert "\n" not in str(caught.value)
    assert ": " in str(caught.value)


# Folders


@pytest.mark.parametrize(
    "name, remedy",
    [
        ("unlabelled", "rename unlabelled to unlabeled"),
        ("Unlabeled", "rename Unlabeled to unlabeled"),
        ("val", "move val into one of them, or elsewhere"),
    ],
)
def test_images_that_would_not_be_read_are_named(tmp_path: Path, name: str, remedy: str) -> None:
    grey_folder(tmp_path)
    (tmp_path / name).mkdir()
    (tmp_path / name / "notes.txt").write_text("no image")
    load(str(tmp_path))
    save(tmp_path / name / "deeper/a.png", pixels(9, 8))
    refused(tmp_path, remedy)


def test_a_folder_that_may_not_be_read_is_not_called_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grey_folder(tmp_path)
    scan = os.scandir

    def scandir(path: str) -> object:
        if Path(path).name == "dog":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return scan(path)

    monkeypatch.setattr(os, "scandir", scandir)
    refused(tmp_path, r"dog can not be read \(Permission denied\): change its permissions")


def test_a_folder(tmp_path: Path) -> None:
    grey_folder(tmp_path)
    (tmp_path / "labeled/.hidden").mkdir()
    (tmp_path / "labeled/.hidden/notes").write_text("no image")
    (tmp_path / "labeled/cat/.DS_Store").write_text("no image")
    (tmp_path / "unlabeled/.cache").mkdir()
    (tmp_path / "unlabeled/.cache/x").write_text("no image")
    for litter in ("labeled/Thumbs.db", "labeled/dog/desktop.ini", "test/cat/Thumbs.db", "unlabeled/thumbs.db"):
        (tmp_path / litter).write_text("no image")
    for place in ("labeled", "labeled/dog", "unlabeled"):
        (tmp_path / place / "__MACOSX").mkdir()
        (tmp_path / place / "__MACOSX/x.png").write_text("no image")
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
    assert not source.flip
    assert source.groups is None
    assert source.mean == pytest.approx([float(source.x.double().mean() / 255)])


def test_a_folder_without_test_images_lends_a_fifth_as_a_file_does(tmp_path: Path) -> None:
    whole = load(str(grey_folder(tmp_path / "with")))
    source = load(str(grey_folder(tmp_path / "without", test=False)))
    assert torch.bincount(source.y_test).tolist() == [2, 2]
    assert int((source.y == -1).sum()) == 3
    np.savez(tmp_path / "same.npz", x=whole.x.numpy()[:, 0], y=whole.y.numpy())
    file = load(str(tmp_path / "same.npz"))
    assert torch.equal(file.x, source.x)
    assert torch.equal(file.x_test, source.x_test)
    assert torch.equal(file.y, source.y)


def test_a_folder_without_unlabeled_images(tmp_path: Path) -> None:
    for number in range(5):
        save(tmp_path / f"labeled/only/{number}.png", pixels(4, 4, seed=number))
    assert load(str(tmp_path)).y.tolist() == [0] * 4


def test_one_colour_makes_all_images_rgb(tmp_path: Path) -> None:
    grey_folder(tmp_path)
    save(tmp_path / "unlabeled/colour.png", pixels(9, 8, 3, seed=7))
    source = load(str(tmp_path))
    assert source.x.shape == (24, 3, 9, 8)
    assert torch.equal(source.x[0, 0], source.x[0, 2])
    assert np.array_equal(source.x[-1].numpy().transpose(1, 2, 0), pixels(9, 8, 3, seed=7))
    assert len(source.mean) == 3


def one(tmp_path: Path, image: Image.Image, form: str = "png", **options: object) -> NDArray[np.uint8]:
    path = tmp_path / f"image.{form}"
    image.save(path, **options)  # type: ignore[arg-type]
    found: NDArray[np.uint8] = images.load([str(path)], images.open_file)[0][0]
    return found


def test_modes(tmp_path: Path) -> None:
    rgb, grey, alpha = pixels(6, 5, 3), pixels(6, 5), pixels(6, 5, seed=1)
    rgba = Image.fromarray(np.dstack([rgb, alpha]))
    assert np.array_equal(one(tmp_path, rgba), rgb.transpose(2, 0, 1))  # alpha is dropped
    grey_alpha = Image.merge("LA", (Image.fromarray(grey), Image.fromarray(alpha)))
    assert np.array_equal(one(tmp_path, grey_alpha), grey[None])
    deep = np.array([[0, 256, 65535], [257, 32896, 400]], dtype=np.uint16)
    assert one(tmp_path, Image.fromarray(deep)).tolist() == [[[0, 1, 255], [1, 128, 2]]]  # 65535 is white
    assert one(tmp_path, Image.fromarray(grey > 100)).tolist() == [np.where(grey > 100, 255, 0).tolist()]
    palette = Image.fromarray(rgb).quantize(20)
    wanted = np.asarray(palette.convert("RGB")).transpose(2, 0, 1)
    assert np.array_equal(one(tmp_path, palette), wanted)
    assert np.array_equal(one(tmp_path, palette, transparency=bytes([0, 128, 255])), wanted)


@pytest.mark.parametrize(
    "most, bits", [(255, 8), (256, 10), (1023, 10), (1024, 12), (4095, 12), (4096, 14), (16384, 16), (65535, 16)]
)
def test_deep_grey_is_scaled_by_the_bits_it_uses(tmp_path: Path, most: int, bits: int) -> None:
    path = save(tmp_path / "a.png", np.array([[0, most // 2, most]], dtype=np.uint16))
    found, note, used = images.load([str(path)], images.open_file)
    white = 2**bits - 1
    assert found.reshape(-1).tolist() == [0, round(most // 2 * 255 / white), round(most * 255 / white)]
    assert note == f"Grey values of 16 bits were scaled from {bits} bits."
    assert used == bits


def test_deep_images_of_one_data_set_have_one_scale_and_others_are_left_alone(tmp_path: Path) -> None:
    arrays = [np.full((4, 4), value, dtype=np.uint16) for value in (200, 4000)]
    paths = [save(tmp_path / f"{n}.png", array) for n, array in enumerate(arrays)]
    paths.append(save(tmp_path / "plain.png", np.full((4, 4), 200, dtype=np.uint8)))
    found = images.load([str(path) for path in paths], images.open_file)[0]
    assert found[:, 0, 0, 0].tolist() == [12, 249, 200]  # 200 and 4000 of 4095, and 200 of 255


def test_bits_that_are_given_count_whatever_the_largest_value(tmp_path: Path) -> None:
    dark = [str(save(tmp_path / "dark.png", np.full((4, 4), 900, dtype=np.uint16)))]
    found, note, bits = images.load(dark, images.open_file, images.Scale(bits=12))
    assert (found[0, 0, 0, 0], bits) == (56, 12)  # 900 of 4095
    assert note == "Grey values of 16 bits were scaled from 12 bits."
    plain = [str(save(tmp_path / "plain.png", np.full((4, 4), 200, dtype=np.uint8)))]
    found, note, bits = images.load(plain, images.open_file, images.Scale(bits=12))
    assert (found[0, 0, 0, 0], note, bits) == (200, "", None)


def test_values_beyond_the_bits_that_are_given_are_refused(tmp_path: Path) -> None:
    paths = [save(tmp_path / f"{most}.png", np.full((4, 4), most, dtype=np.uint16)) for most in (1023, 4000)]
    assert images.load([str(paths[0])], images.open_file, images.Scale(bits=10))[0].max() == 255
    remedy = r"4000.png has the grey value 4000, more than 11 bits hold: set data.bits = 12 in the config"
    with pytest.raises(TacitError, match=remedy):
        images.load([str(path) for path in paths], images.open_file, images.Scale(bits=11))


@pytest.mark.parametrize("value", [-1, 65536, 70_000, 280_000])
def test_grey_values_that_16_bits_do_not_hold_are_refused_and_not_cut_off(tmp_path: Path, value: int) -> None:
    paths = [tmp_path / "fine.tif", tmp_path / "deep.tif"]
    for path, most in zip(paths, (65535, value), strict=True):
        Image.fromarray(np.full((4, 4), most, dtype=np.int32)).save(path)
    assert images.load([str(paths[0])], images.open_file)[0].max() == 255
    sentence = (
        f"deep.tif has the grey value {value}, which 16 bits do not hold: save such images as grey of 8 or 16 bits"
    )
    with pytest.raises(TacitError, match=sentence):
        images.load([str(path) for path in paths], images.open_file)


@pytest.mark.parametrize(
    "read",
    [images.load, partial(images.stack, size=(4, 4), grey=True)],
    ids=["a user's own", "a data set of a known size"],
)
def test_grey_values_that_are_no_whole_numbers_are_refused_by_name(tmp_path: Path, read: Callable[..., object]) -> None:
    Image.fromarray(np.full((4, 4), 0.5, dtype=np.float32)).save(tmp_path / "scan.tif")
    sentence = "scan.tif has grey values that are no whole numbers, .* range: save such images as grey of 8 or 16 bits"
    with pytest.raises(TacitError, match=sentence):
        read([str(tmp_path / "scan.tif")], images.open_file)


def test_of_an_animation_the_first_frame_counts(tmp_path: Path) -> None:
    frames = [Image.fromarray(np.full((4, 4), value, dtype=np.uint8)) for value in (10, 200)]
    assert (one(tmp_path, frames[0], "gif", save_all=True, append_images=frames[1:]) == 10).all()


def test_images_are_turned_as_exif_says(tmp_path: Path) -> None:
    grey = np.zeros((16, 24), dtype=np.uint8)
    grey[:, :12] = 255
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned: the top is at the right
    turned = one(tmp_path, Image.fromarray(grey), "jpg", exif=exif, quality=95)
    assert turned.shape == (1, 24, 16)
    assert turned[0, :10].min() > 200
    assert turned[0, 14:].max() < 50


def test_sizes(tmp_path: Path) -> None:
    small, wide, large = (save(tmp_path / f"{width}.png", pixels(8, width)) for width in (8, 128, 129))

    def shape(*paths: Path, size: int | None = None) -> tuple[int, ...]:
        return images.load([str(path) for path in paths], images.open_file, images.Scale(size))[0].shape[2:]

    assert shape(small, small) == (8, 8)
    assert shape(wide) == (8, 128)
    assert shape(large) == (64, 64)
    assert shape(small, wide) == (64, 64)
    assert shape(small, size=20) == (20, 20)
    assert shape(small, large, size=20) == (20, 20)


def test_what_was_done_to_the_images_is_noted(tmp_path: Path) -> None:
    square, wide, large = (save(tmp_path / f"{w}.png", pixels(h, w)) for h, w in ((8, 8), (31, 40), (120, 149)))

    def note(*paths: Path, size: int | None = None) -> str:
        return images.load([str(path) for path in paths], images.open_file, images.Scale(size))[1]

    assert note(square, square) == note(square, size=8) == ""
    assert note(square, size=9) == "Images were resized from 8×8; data.size changes that."
    assert note(wide, size=9) == "Images were cut and resized from 40×31; data.size changes that."
    assert note(large, wide) == "Images were cut and resized from 40×31 … 149×120; data.size changes that."


def test_the_middle_is_kept(tmp_path: Path) -> None:
    array = np.zeros((10, 30), dtype=np.uint8)
    array[:, 10:20] = 200
    found = images.load([str(save(tmp_path / "a.png", array))], images.open_file, images.Scale(10))[0]
    assert found.tolist() == [[[[200] * 10] * 10]]


def test_size_is_handed_on(tmp_path: Path) -> None:
    source = load(str(grey_folder(tmp_path)), size=5)
    assert source.x.shape[2:] == (5, 5)
    assert source.note == "Images were cut and resized from 8×9; data.size changes that."


def test_bits_are_handed_on(tmp_path: Path) -> None:
    for name in "cat", "dog":
        for number in range(5):
            save(tmp_path / f"labeled/{name}/{number}.png", np.full((4, 4), 900, dtype=np.uint16))
    found, told = load(str(tmp_path)), load(str(tmp_path), bits=12)
    assert (int(found.x[0, 0, 0, 0]), found.bits) == (224, 10)
    assert (int(told.x[0, 0, 0, 0]), told.bits) == (56, 12)


def test_the_order_is_that_of_the_names_whatever_the_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [str(save(tmp_path / f"{n}.png", np.full((n % 7 + 1, 5), n, dtype=np.uint8))) for n in range(60)]
    for threads in (1, 4):
        monkeypatch.setattr(images, "THREADS", threads)
        assert images.load(paths, images.open_file, images.Scale(4))[0][:, 0, 0, 0].tolist() == list(range(60))


def text(path: Path) -> None:
    path.write_text("no image")


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
def test_files_that_are_no_images_are_counted(tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    grey_folder(tmp_path)
    for name in ("x.png", "y.png"):
        spoil(tmp_path / "labeled/dog" / name)
    first = tmp_path / "labeled/dog/x.png"
    refused(tmp_path, f"2 of 27 files can not be read as images, the first is {first}: remove or replace them")


@pytest.mark.parametrize("limit", [50, 30])  # pixels; Pillow warns above the limit and refuses above twice of it
def test_an_image_that_would_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
    refused(grey_folder(tmp_path), "is an image of more than 0 million pixels: shrink it first")


def test_a_text_chunk_that_would_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = PngImagePlugin.PngInfo()
    info.add_text("note", "a" * 5000, zip=True)
    Image.fromarray(pixels(9, 8)).save(grey_folder(tmp_path) / "unlabeled/a.png", pnginfo=info)
    monkeypatch.setattr(PngImagePlugin, "MAX_TEXT_CHUNK", 1000)
    refused(tmp_path, "1 of 26 files can not be read as images")


def no_labeled(root: Path) -> None:
    (root / "labeled").rename(root / "pictures")


def british(root: Path) -> None:
    (root / "labeled").rename(root / "Labelled")


def as_for_training(root: Path) -> None:
    (root / "labeled").rename(root / "train")


def classes_at_the_top(root: Path) -> None:
    save(root / "labeled/cat/direct.png", pixels(9, 8))
    for entry in (root / "labeled").iterdir():
        entry.rename(root / entry.name)
    (root / "labeled").rmdir()


def many_classes_at_the_top(root: Path) -> None:
    classes_at_the_top(root)
    for name in ("ant", "bee"):
        save(root / name / "1.JPG", pixels(9, 8))


def file_without_class(root: Path) -> None:
    save(root / "labeled/stray.png", pixels(9, 8))


def empty_class(root: Path) -> None:
    (root / "labeled/bird").mkdir()


def no_class(root: Path) -> None:
    (root / "labeled").rename(root / ".old")
    (root / "labeled").mkdir()


def new_class(root: Path) -> None:
    save(root / "test/bird/a.png", pixels(9, 8))


def empty_test(root: Path) -> None:
    (root / "test").rename(root / ".old")
    (root / "test").mkdir()


@pytest.mark.parametrize(
    "spoil, message",
    [
        (no_labeled, "has no folder labeled: put images into labeled/<class>/ and unlabeled/"),
        (british, "has no folder labeled: rename Labelled to labeled$"),
        (as_for_training, "has no folder labeled: rename train to labeled$"),
        (classes_at_the_top, "has no folder labeled: move cat, dog into labeled/$"),
        (many_classes_at_the_top, "has no folder labeled: move ant, bee, cat, … into labeled/$"),
        (file_without_class, "stray.png lies in no class: move it into labeled/<class>/"),
        (empty_class, "the class folder .*bird is empty"),
        (new_class, "has the class bird in test but not in labeled"),
        (empty_test, "test is empty: put images into test/<class>/ or remove it"),
    ],
)
def test_a_wrong_folder(tmp_path: Path, spoil: Callable[[Path], None], message: str) -> None:
    spoil(grey_folder(tmp_path))
    refused(tmp_path, message)


def test_a_folder_without_any_class(tmp_path: Path) -> None:
    no_class(grey_folder(tmp_path, test=False))
    refused(tmp_path, "has no labeled image")


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    refused(tmp_path / "nowhere", "there is no folder .*nowhere: check the path")


def test_too_few_labels_to_test_on(tmp_path: Path) -> None:
    save(tmp_path / "labeled/a/1.png", pixels(4, 4))
    refused(tmp_path, r"has too few labeled samples to test on \(1\): add a folder test")


# CSV files


def manifest(root: Path, text: str) -> Path:
    for number in range(12):
        save(root / f"images/{number}.png", pixels(6, 6, seed=number))
    (root / "list.csv").write_text(text, encoding="utf-8")
    return root / "list.csv"


def rows(labels: str, more: Callable[[int], str] = lambda number: "") -> str:
    return "".join(f"images/{n}.png,{'' if c == '-' else c}{more(n)}\n" for n, c in enumerate(labels))


def test_a_manifest(tmp_path: Path) -> None:
    path = manifest(tmp_path, "\ufeffpath,label\n" + rows("babababab---"))
    source = load(str(path))
    assert source.classes == ("a", "b")
    assert source.x.shape == (11, 1, 6, 6)
    assert source.y.tolist().count(-1) == 3
    assert len(source.y_test) == 1
    assert source.groups is None
    assert not source.flip


def test_labels_that_are_whole_numbers_are_sorted_as_numbers(tmp_path: Path) -> None:
    labels = ["10", "9", "2"] * 4
    lines = "".join(f"images/{n}.png,{label}\n" for n, label in enumerate(labels))
    path = manifest(tmp_path, "path,label\n" + lines)
    assert load(str(path)).classes == ("2", "9", "10")
    path.write_text("path,label\n" + lines.replace(",9", ",nine"))
    assert load(str(path)).classes == ("10", "2", "nine")


def test_other_columns_are_ignored(tmp_path: Path) -> None:
    path = manifest(tmp_path, GOOD)
    plain = load(str(path))
    for names in ("patient,site", "age,labels"):  # labels resembles a column that is there
        path.write_text(GOOD.replace("\n", ",1,2\n").replace("label,1,2", f"label,{names}"))
        assert torch.equal(load(str(path)).x, plain.x)


def test_a_manifest_with_split_and_group(tmp_path: Path) -> None:
    groups = ["x", "z", "y"]
    text = rows("babababab-ba", lambda n: f",{'test' if n > 9 else 'train'},{groups[n % 3]}")
    source = load(str(manifest(tmp_path, "path,label,split,group\n" + text)))
    assert source.y.tolist() == [1, 0, 1, 0, 1, 0, 1, 0, 1, -1]
    assert source.y_test.tolist() == [1, 0]
    assert np.array_equal(source.x_test[0, 0].numpy(), pixels(6, 6, seed=10))
    assert source.groups is not None
    assert source.groups.tolist() == [0, 2, 1, 0, 2, 1, 0, 2, 1, 0]


def test_groups_follow_their_images_when_a_fifth_is_held_out(tmp_path: Path) -> None:
    text = rows("abababababab", lambda n: f",{n % 3}")
    source = load(str(manifest(tmp_path, "path,label,group\n" + text)))
    number = {pixels(6, 6, seed=n).tobytes(): n for n in range(12)}
    assert source.groups is not None
    assert source.groups.dtype == torch.int64
    assert source.groups.tolist() == [number[bytes(image)] % 3 for image in source.x.numpy()]


GOOD = "path,label\n" + rows("babababab---")


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "has no column path in line 1: begin it with path,label"),
        ("path\n1.png\n", "has no column label in line 1"),
        ("file,label\n", "has no column path"),
        (
            GOOD.replace("path,label", "path,label,splt").replace("\n", ",\n"),
            "has a column 'splt' in line 1: rename it to split",
        ),
        (GOOD.replace("path,label", "Path,label"), "has a column 'Path' in line 1: rename it to path"),
        (GOOD.replace(",", ";"), "is separated by ';': use commas"),
        (GOOD.replace(",", "\t"), r"is separated by '\\t': use commas"),
        (GOOD.replace("3.png,a", "3.png,-1"), "line 5 of .* has the label -1: leave it empty for unlabeled"),
        (GOOD + "images/1.png\n", "line 14 of .* has more or fewer fields than line 1"),
        (GOOD + "images/1.png,a,b\n", "line 14 of .* has more or fewer fields than line 1"),
        (GOOD.replace("images/3.png", "images/99.png"), "line 5 of .* names .*images/99.png, where there is no file"),
        (GOOD.replace("images/3.png", ""), "line 5 of .* where there is no file"),
        (GOOD.replace("images/3.png", "images/../images/1.png"), "line 5 of .* names the same file as line 3"),
        ("path,label\n" + rows("-----"), "has no training row with a label"),
        ("path,label\n", "has no training row with a label"),
        ("path,label,split\n" + rows("aabb", lambda n: ",test"), "has no training row with a label"),
        ("path,label,split\n" + rows("aabb", lambda n: ",valid"), "line 2 of .* has the split 'valid': write train or"),
        ("path,label,split\n" + rows("aab-", lambda n: ",test" if n > 1 else ",train"), "line 5 of .* without a label"),
        (
            "path,label,split\n" + rows("aab", lambda n: ",test" if n > 1 else ",train"),
            "line 4 of .* has the label b,",
        ),
        ("path,label,group\n" + rows("aab", lambda n: "," if n > 1 else ",g"), "line 4 of .* has no group"),
        ("path,label\n" + rows("ab"), r"has too few labeled samples to test on \(2\): add rows whose split is test"),
    ],
)
def test_a_wrong_manifest(tmp_path: Path, text: str, message: str) -> None:
    refused(manifest(tmp_path, text), message)


def test_a_manifest_that_can_not_be_read(tmp_path: Path) -> None:
    path = manifest(tmp_path, GOOD)
    path.write_bytes(GOOD.replace(",a", ",\u00e4").encode("latin-1"))
    refused(path, "can not be read: save it as CSV in UTF-8")
    path.unlink()
    refused(path, "there is no file .*list.csv: check the path")
