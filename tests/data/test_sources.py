"""Data sets: the shipped one is what it says, and a user's file is read or refused in one sentence."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tacit.data.sources import find, load
from tacit.errors import TacitError

Arrays = dict[str, NDArray[np.generic]]


def images(*shape: int, seed: int = 0) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def good() -> Arrays:
    return {
        "x": images(40, 9, 8),
        "y": np.arange(40) % 4,
        "x_test": images(8, 9, 8, seed=1),
        "y_test": np.arange(8) % 4,
    }


def write(path: Path, arrays: Arrays) -> str:
    np.savez(path / "mine.npz", **arrays)  # type: ignore[arg-type]  # numpy types the names as the flag allow_pickle
    return str(path / "mine.npz")


def test_fashion_small() -> None:
    source = load("fashion-small")
    assert source.x.shape == (6000, 1, 28, 28)
    assert source.x.dtype == torch.uint8
    assert source.y.dtype == torch.int64
    assert source.x_test.shape == (1000, 1, 28, 28)
    assert torch.bincount(source.y).tolist() == [600] * 10
    assert torch.bincount(source.y_test).tolist() == [100] * 10
    assert len(source.classes) == 10
    assert not source.flip
    assert source.shift == 2
    pixels = source.x.double() / 255
    assert source.mean == pytest.approx([float(pixels.mean())])
    assert source.std == pytest.approx([float(pixels.std(correction=0))])


def test_fashion_small_does_not_repeat_a_test_image() -> None:
    source = load("fashion-small")
    assert not {bytes(image) for image in source.x.numpy()} & {bytes(image) for image in source.x_test.numpy()}


def test_a_wrong_name_gets_the_closest_one() -> None:
    with pytest.raises(TacitError, match="unknown data set 'fashion-smal': did you mean 'fashion-small'?"):
        find("fashion-smal")


def test_own_file(tmp_path: Path) -> None:
    arrays = good()
    source = load(write(tmp_path, arrays))
    assert np.array_equal(source.x.numpy()[:, 0], arrays["x"])
    assert np.array_equal(source.y.numpy(), arrays["y"])
    assert np.array_equal(source.x_test.numpy()[:, 0], arrays["x_test"])
    assert np.array_equal(source.y_test.numpy(), arrays["y_test"])
    assert source.y.dtype == torch.int64
    assert source.classes == ("0", "1", "2", "3")
    assert not source.flip


def test_the_layouts_are_the_same_images(tmp_path: Path) -> None:
    colours = images(40, 9, 8, 3)
    last = load(write(tmp_path, {"x": colours, "y": np.arange(40) % 4}))
    first = load(write(tmp_path, {"x": colours.transpose(0, 3, 1, 2), "y": np.arange(40) % 4}))
    assert first.x.shape[1:] == (3, 9, 8)
    assert torch.equal(first.x, last.x)
    assert first.x.is_contiguous()
    assert last.x.is_contiguous()
    assert last.mean == pytest.approx((last.x.double() / 255).mean((0, 2, 3)).tolist())
    assert last.std == pytest.approx((last.x.double() / 255).std((0, 2, 3), correction=0).tolist())


def test_a_fifth_of_the_labels_becomes_the_test_set(tmp_path: Path) -> None:
    x = images(200, 5, 5)
    y = np.where(np.arange(200) < 100, np.arange(200) % 4, -1)
    name = write(tmp_path, {"x": x, "y": y})
    source, again = load(name), load(name)
    assert len(source.y_test) == 20
    assert torch.bincount(source.y_test).tolist() == [5] * 4
    assert int((source.y == -1).sum()) == 100
    label = {bytes(image): int(y_) for image, y_ in zip(x, y, strict=True)}
    train = {bytes(image[0]): int(y_) for image, y_ in zip(source.x.numpy(), source.y, strict=True)}
    test = {bytes(image[0]): int(y_) for image, y_ in zip(source.x_test.numpy(), source.y_test, strict=True)}
    assert train | test == label
    assert not train.keys() & test.keys()
    assert torch.equal(source.x_test, again.x_test)


def test_a_constant_channel_can_be_normalised(tmp_path: Path) -> None:
    source = load(write(tmp_path, good() | {"x": np.full((40, 9, 8), 7, dtype=np.uint8)}))
    assert source.std[0] > 0


@pytest.mark.parametrize(
    "change, message",
    [
        ({"x": None}, "has no array x"),
        ({"y": None}, "has no array y"),
        ({"x_test": None}, "has no array x_test"),
        ({"y_test": None}, "has no array y_test"),
        ({"x": images(40, 9, 8) / 255}, "x in .* is float64 of shape (40, 9, 8)"),
        ({"x": images(40, 72)}, "x in .* is uint8 of shape (40, 72)"),
        ({"x": images(40, 9, 8, 5)}, "x in .* is uint8 of shape (40, 9, 8, 5)"),
        ({"x": images(40, 0, 8)}, "x in .* is uint8 of shape (40, 0, 8)"),
        ({"x": images(39, 9, 8)}, "39 images in x and 40 labels in y"),
        ({"x": images(0, 9, 8), "y": np.arange(0)}, "0 images in x"),
        ({"y": np.zeros((40, 1), dtype=int)}, "y in .* is int64 of shape (40, 1)"),
        ({"y": np.zeros(40)}, "y in .* is float64"),
        ({"y": np.full(40, -1)}, "-1 everywhere"),
        ({"y": np.arange(40) % 4 * 2}, "the 4 classes in .* are numbered 0 to 6"),
        ({"y": np.arange(40) % 4 - 2}, "are numbered -2 to 1"),
        ({"x_test": images(8, 8, 8)}, "make them alike"),
        ({"y_test": np.arange(8)}, "labels outside 0 to 3"),
        ({"y_test": np.arange(8) % 4 - 1}, "labels outside 0 to 3"),
        ({"x_test": None, "y_test": None, "y": np.where(np.arange(40) < 4, np.arange(40), -1)}, "4 labels, too few"),
        ({"x": np.array([{"a": 1}] * 40)}, "can not be read"),
    ],
)
def test_a_wrong_file_is_one_sentence(tmp_path: Path, change: dict[str, object], message: str) -> None:
    arrays = {name: value for name, value in (good() | change).items() if value is not None}
    check_refused(write(tmp_path, arrays), message)  # type: ignore[arg-type]


def no_bytes(path: Path) -> None:
    path.write_bytes(b"")


def some_text(path: Path) -> None:
    path.write_text("x,y\n1,2\n")


def half_a_file(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:2000])


def other_bytes(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[500:600] = bytes(100)
    path.write_bytes(raw)


def one_array(path: Path) -> None:
    with path.open("wb") as file:
        np.save(file, images(40, 9, 8))


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def nothing(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize("spoil", [no_bytes, some_text, half_a_file, other_bytes, one_array])
def test_a_spoilt_file_is_one_sentence(tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    name = write(tmp_path, good())
    spoil(Path(name))
    check_refused(name, "can not be read: write it again")


@pytest.mark.parametrize("spoil", [a_folder, nothing])
def test_a_missing_file_is_one_sentence(tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    name = write(tmp_path, good())
    spoil(Path(name))
    with pytest.raises(TacitError, match="there is no file .*mine.npz: check the path"):
        load(name)


def check_refused(name: str, message: str) -> None:
    pattern = message.replace("(", r"\(").replace(")", r"\)")
    with pytest.raises(TacitError, match=pattern) as caught:
        load(name)
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)
