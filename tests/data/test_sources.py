"""Data sets by name: the shipped and the real ones are what they say, and a user's file is read or refused."""

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tacit.catalog import sentence
from tacit.data.sources import SOURCES, find, is_path, load
from tacit.errors import TacitError
from tests.data.real import cifar10, folder_with

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


def test_the_known_names() -> None:
    assert set(SOURCES) == {
        "fashion-small", "mnist", "fashion-mnist", "emnist-balanced", "femnist", "svhn", "cifar10", "cifar100",
        "tiny-imagenet", "shakespeare", "covid-radiography", "pathmnist", "dermamnist", "octmnist", "pneumoniamnist",
        "retinamnist", "breastmnist", "bloodmnist", "tissuemnist", "organamnist", "organcmnist", "organsmnist",
    }  # fmt: skip
    for name, loader in SOURCES.items():
        assert sentence(loader).endswith("."), name
        assert "class" in sentence(loader) or name == "shakespeare"


def test_find_reads_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TACIT_DATA", str(tmp_path / "nowhere"))
    for name in (*SOURCES, "no/folder", "none.csv", "none.npz"):
        assert callable(find(name))
    assert not (tmp_path / "nowhere").exists()


def test_names_and_paths(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("pictures", "mnist"):
        (tmp_path / name).mkdir()
    for path in ("x.npz", "x.csv", "a/b", "./x", "/x", "pictures"):
        assert is_path(path), path
    for name in ("mnist", "cifar10", "unknown", "mnist.zip", ""):
        assert not is_path(name), name


def test_chestmnist_has_several_labels() -> None:
    with pytest.raises(TacitError, match="chestmnist have several labels each, .*: choose another"):
        find("chestmnist")


@pytest.mark.parametrize("name", ["mnist", "cifar10", "pathmnist", "shakespeare", "fashion-small", "mine.npz"])
def test_only_image_files_can_be_scaled(name: str) -> None:
    with pytest.raises(TacitError, match=f"{name} have a size of their own: leave data.size out"):
        find(name, 32)
    for scaled in ("tiny-imagenet", "covid-radiography", "a/folder", "a.csv"):
        assert callable(find(scaled, 32))
    with pytest.raises(TacitError, match="can not be scaled to 0 pixels"):
        find("a/folder", 0)


# The real files, where a machine has them.


def digest(image: torch.Tensor) -> str:
    return hashlib.md5(image.numpy().tobytes()).hexdigest()


@pytest.mark.data
@pytest.mark.parametrize(
    "name, folder, first, last",
    [
        ("mnist", "MNIST/raw", "2ce86e4daeeff3a0cdebce6897c784ba", "4cbc26cd65a7520ac820c54476b7c1f8"),
        ("fashion-mnist", "FashionMNIST/raw", "4faf81e309af5194c477affdbefc6116", "0679e37e18345b46f008d686722262e3"),
    ],
)
def test_the_real_idx_sets(monkeypatch: pytest.MonkeyPatch, name: str, folder: str, first: str, last: str) -> None:
    folder_with(folder, monkeypatch)
    source = load(name)
    assert source.x.shape == (60_000, 1, 28, 28)
    assert source.x_test.shape == (10_000, 1, 28, 28)
    balance = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949] if name == "mnist" else [6000] * 10
    assert torch.bincount(source.y).tolist() == balance
    assert source.y[:5].tolist() == ([5, 0, 4, 1, 9] if name == "mnist" else [9, 0, 0, 3, 0])
    assert digest(source.x[0]) == first
    assert digest(source.x_test[-1]) == last
    assert source.mean == pytest.approx([0.1307 if name == "mnist" else 0.2860], abs=1e-4)
    assert source.std == pytest.approx([0.3081 if name == "mnist" else 0.3530], abs=1e-4)


@pytest.mark.data
def test_fashion_small_is_part_of_the_real_set(monkeypatch: pytest.MonkeyPatch) -> None:
    folder_with("FashionMNIST/raw", monkeypatch)
    small, real = load("fashion-small"), load("fashion-mnist")
    label = {bytes(image): int(y) for image, y in zip(real.x.numpy(), real.y, strict=True)}
    assert all(label[bytes(image)] == y for image, y in zip(small.x.numpy(), small.y.tolist(), strict=True))


@pytest.mark.data
def test_the_real_pneumoniamnist(monkeypatch: pytest.MonkeyPatch) -> None:
    folder_with("medmnist/pneumoniamnist.npz", monkeypatch)
    source = load("pneumoniamnist")
    assert source.x.shape == (4_708 + 524, 1, 28, 28)
    assert torch.bincount(source.y).tolist() == [1349, 3883]
    assert torch.bincount(source.y_test).tolist() == [234, 390]
    assert digest(source.x[0]) == "42b230eb2b3c407265871b79ffde8ce8"
    assert digest(source.x[4_708]) == "be76597436d5b3e687fb8424f284e716"
    assert source.classes == ("normal", "pneumonia")
    assert not source.flip


@pytest.mark.data
def test_the_real_shakespeare(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = folder_with("shakespeare/tinyshakespeare_input.txt", monkeypatch)
    source = load("shakespeare")
    assert source.text
    assert source.x.shape == (793_934, 80)
    assert len(source.y_test) == 186_812
    assert len(source.classes) == 64
    assert source.groups is not None
    assert torch.equal(source.groups, source.groups.sort().values)
    assert len(torch.bincount(source.groups)) == 193
    said = "".join(source.classes[code] for code in source.x[0])
    assert said.startswith("Before we proceed any further, hear me speak.\nYou are all resolved rather to die")
    assert said[:45] in (folder / "shakespeare/tinyshakespeare_input.txt").read_text()


@pytest.mark.data
def test_the_real_cifar10(monkeypatch: pytest.MonkeyPatch) -> None:
    cifar10(monkeypatch)
    source = load("cifar10")
    assert source.x.shape == (50_000, 3, 32, 32)
    assert torch.bincount(source.y).tolist() == [5000] * 10
    assert torch.bincount(source.y_test).tolist() == [1000] * 10
    assert source.y[:5].tolist() == [6, 9, 9, 4, 1]
    assert source.x[0, :, 0, 0].tolist() == [59, 62, 63]
    assert source.mean == pytest.approx((0.4914, 0.4822, 0.4465), abs=1e-4)
    assert source.std == pytest.approx((0.2470, 0.2435, 0.2616), abs=1e-4)


# The user's own file.


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
        (
            {"y": (np.arange(40) % 4 - 1).astype(np.uint8)},
            "255 in y of .* looks like -1 stored as uint8: save y as int64",
        ),
        ({"x_test": images(8, 8, 8)}, "make them alike"),
        ({"y_test": np.arange(8)}, "labels outside 0 to 3"),
        ({"y_test": np.arange(8) % 4 - 1}, "labels outside 0 to 3"),
        ({"x_test": None, "y_test": None, "y": np.where(np.arange(40) < 4, np.arange(40), -1)}, "too few labeled"),
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


@pytest.mark.parametrize("name", ["arr.npy", "some/arr.npy"])
def test_a_single_array_is_answered_with_the_way_to_save_two(name: str) -> None:
    with pytest.raises(TacitError, match=f"^{name} holds a single array: save images and labels with numpy.savez"):
        find(name)
