"""A user's `.npz` file is read, or refused with a remedy."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tacit.data.sources import load
from tests.data.files import load_refused, pixels
from tests.data.kinds import pictured

Arrays = dict[str, NDArray[np.generic]]


def good() -> Arrays:
    return {
        "x": pixels(40, 9, 8),
        "y": np.arange(40) % 4,
        "x_test": pixels(8, 9, 8, seed=1),
        "y_test": np.arange(8) % 4,
    }


def write(path: Path, arrays: Arrays) -> str:
    np.savez(path / "mine.npz", **arrays)  # type: ignore[arg-type]  # numpy types the names as the flag allow_pickle
    return str(path / "mine.npz")


def test_a_file_is_read(tmp_path: Path) -> None:
    arrays = good()
    source = load(write(tmp_path, arrays))
    assert np.array_equal(source.x.numpy()[:, 0], arrays["x"])
    assert np.array_equal(source.y.numpy(), arrays["y"])
    assert np.array_equal(source.x_test.numpy()[:, 0], arrays["x_test"])
    assert np.array_equal(source.y_test.numpy(), arrays["y_test"])
    assert source.y.dtype == torch.int64
    assert source.classes == ("0", "1", "2", "3")
    assert not pictured(source).flip


def test_both_channel_layouts_give_the_same_images(tmp_path: Path) -> None:
    colours = pixels(40, 9, 8, 3)
    last = load(write(tmp_path, {"x": colours, "y": np.arange(40) % 4}))
    first = load(write(tmp_path, {"x": colours.transpose(0, 3, 1, 2), "y": np.arange(40) % 4}))
    assert first.x.shape[1:] == (3, 9, 8)
    assert torch.equal(first.x, last.x)
    assert first.x.is_contiguous()
    assert last.x.is_contiguous()
    assert pictured(last).mean == pytest.approx((last.x.double() / 255).mean((0, 2, 3)).tolist())
    assert pictured(last).std == pytest.approx((last.x.double() / 255).std((0, 2, 3), correction=0).tolist())


def test_a_fifth_of_the_labels_becomes_the_test_set(tmp_path: Path) -> None:
    x = pixels(200, 5, 5)
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
    assert pictured(source).std[0] > 0


@pytest.mark.parametrize(
    "change, code",
    [
        ({"x": None}, "data.missing-array"),
        ({"y": None}, "data.missing-array"),
        ({"x_test": None}, "data.missing-array"),
        ({"y_test": None}, "data.missing-array"),
        ({"x": pixels(40, 9, 8) / 100}, "data.different-shapes"),
        ({"x": pixels(40, 9, 8).astype(np.int64)}, "data.bad-image-array"),
        ({"x": pixels(40, 72)}, "data.different-shapes"),
        ({"x": pixels(40, 9, 8, 5)}, "data.bad-image-array"),
        ({"x": pixels(40, 0, 8)}, "data.bad-image-array"),
        ({"x": pixels(39, 9, 8)}, "data.different-lengths"),
        ({"x": pixels(0, 9, 8), "y": np.arange(0)}, "data.different-lengths"),
        ({"y": np.zeros((40, 1), dtype=int)}, "data.bad-label-array"),
        ({"y": np.zeros(40)}, "data.bad-label-array"),
        ({"y": np.full(40, -1)}, "data.no-labels"),
        ({"y": np.arange(40) % 4 * 2}, "data.class-numbers-with-gaps"),
        ({"y": np.arange(40) % 4 - 2}, "data.class-numbers-with-gaps"),
        ({"y": (np.arange(40) % 4 - 1).astype(np.uint8)}, "data.unsigned-labels"),
        ({"x_test": pixels(8, 8, 8)}, "data.different-shapes"),
        ({"y_test": np.arange(8)}, "data.bad-test-labels"),
        ({"y_test": np.arange(8) % 4 - 1}, "data.bad-test-labels"),
        ({"x_test": None, "y_test": None, "y": np.where(np.arange(40) < 4, np.arange(40), -1)}, "data.too-few-labels"),
        ({"x": np.array([{"a": 1}] * 40)}, "data.unreadable-file"),
    ],
)
def test_a_file_with_wrong_arrays_is_refused(tmp_path: Path, change: dict[str, Any], code: str) -> None:
    name = write(tmp_path, {name: value for name, value in (good() | change).items() if value is not None})
    load_refused(name, code, name)


def test_the_error_shows_the_wrong_array(tmp_path: Path) -> None:
    name = write(tmp_path, good() | {"x": pixels(40, 9, 8, 5)})
    load_refused(name, "data.bad-image-array", f"x in {name} is uint8 of shape (40, 9, 8, 5); make it (n, h, w) or")


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
        np.save(file, pixels(40, 9, 8))


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def nothing(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize("spoil", [no_bytes, some_text, half_a_file, other_bytes, one_array])
def test_a_damaged_file_is_refused(tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    name = write(tmp_path, good())
    spoil(Path(name))
    load_refused(name, "data.unreadable-file", name)


@pytest.mark.parametrize("spoil", [a_folder, nothing])
def test_a_missing_file_is_refused(tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    name = write(tmp_path, good())
    spoil(Path(name))
    load_refused(name, "data.no-file", name)
