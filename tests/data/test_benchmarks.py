"""Known data sets from small files in their formats: layouts, labels, pixels, and faults in one sentence."""

import gzip
import hashlib
import io
import pickle
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from scipy.io import savemat

from tacit.data import benchmarks, known, medmnist
from tacit.data.sources import load
from tacit.errors import TacitError


@pytest.fixture
def data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty data folder, where made files need not have the checksums of the original ones."""
    monkeypatch.setenv("TACIT_DATA", str(tmp_path))
    for key in list(known.SUMS):
        monkeypatch.delitem(known.SUMS, key)
    return tmp_path


def pixels(*shape: int, seed: int = 0) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def write(path: Path, raw: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(raw)
    return path


def idx(array: NDArray[np.uint8]) -> bytes:
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def refused(name: str, message: str) -> None:
    with pytest.raises(TacitError, match=message) as caught:
        load(name)
    assert "\n" not in str(caught.value)


# MNIST and its kin


def idx_files() -> dict[str, bytes]:
    return {
        "train-images-idx3-ubyte": idx(pixels(20, 28, 28)),
        "train-labels-idx1-ubyte": idx(np.arange(20, dtype=np.uint8) % 10),
        "t10k-images-idx3-ubyte": idx(pixels(10, 28, 28, seed=1)),
        "t10k-labels-idx1-ubyte": idx(np.arange(10, dtype=np.uint8)),
    }


@pytest.mark.parametrize("name, folder", [("mnist", "MNIST"), ("fashion-mnist", "FashionMNIST")])
@pytest.mark.parametrize("below", ["raw/", ""])
@pytest.mark.parametrize("packed", [True, False])
def test_idx_sets(
    data: Path, monkeypatch: pytest.MonkeyPatch, name: str, folder: str, below: str, packed: bool
) -> None:
    monkeypatch.setitem(known.COUNTS, name, (20, 10))
    for file, raw in idx_files().items():
        write(data / folder / f"{below}{file}{'.gz' * packed}", gzip.compress(raw) if packed else raw)
    source = load(name)
    assert np.array_equal(source.x[:, 0].numpy(), pixels(20, 28, 28))
    assert np.array_equal(source.x_test[:, 0].numpy(), pixels(10, 28, 28, seed=1))
    assert source.y.tolist() == [*range(10), *range(10)]
    assert source.y_test.tolist() == list(range(10))
    assert not source.flip
    assert source.shift == (2 if name == "fashion-mnist" else None)


def test_fashion_mnist_of_debian(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(known.COUNTS, "fashion-mnist", (20, 10))
    monkeypatch.setattr(benchmarks, "DEBIAN", str(data / "usr/share/datasets/fashion-mnist"))
    for file, raw in idx_files().items():
        write(data / f"usr/share/datasets/fashion-mnist/{file}.gz", gzip.compress(raw))
    assert load("fashion-mnist").x.shape == (20, 1, 28, 28)


@pytest.mark.parametrize(
    "file, raw, message",
    [
        ("train-images-idx3-ubyte", idx(pixels(19, 28, 28)), "holds 20 labels and images \\(19, 1, 28, 28\\)"),
        ("train-images-idx3-ubyte", idx(pixels(20, 28, 27)), "where they should be \\(20, 1, 28, 28\\)"),
        ("train-labels-idx1-ubyte", idx(np.full(20, 10, dtype=np.uint8)), "labels 10 to 10"),
        ("t10k-labels-idx1-ubyte", idx(pixels(9)), "holds 9 labels"),
        ("t10k-images-idx3-ubyte", b"<html>not found</html>", "t10k-images-idx3-ubyte.gz is no IDX file"),
        ("t10k-images-idx3-ubyte", b"\x1f\x8b broken", "t10k-images-idx3-ubyte.gz is damaged or cut short"),
    ],
)
def test_wrong_idx_sets(data: Path, monkeypatch: pytest.MonkeyPatch, file: str, raw: bytes, message: str) -> None:
    monkeypatch.setitem(known.COUNTS, "mnist", (20, 10))
    for name, good in (idx_files() | {file: raw}).items():
        write(data / f"MNIST/raw/{name}.gz", good)
    refused("mnist", f"{data}.*{message}.*: delete it and run again to fetch it, or put the original there")


def test_the_checksum_is_that_of_the_bytes_inside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TACIT_DATA", str(tmp_path))
    monkeypatch.setitem(known.COUNTS, "mnist", (20, 10))
    for file, raw in idx_files().items():
        monkeypatch.setitem(known.SUMS, f"MNIST/raw/{file}", hashlib.sha256(raw).hexdigest())
        write(tmp_path / f"MNIST/raw/{file}.gz", gzip.compress(raw, compresslevel=1))
    assert len(load("mnist").x) == 20
    changed = write(tmp_path / "MNIST/raw/train-images-idx3-ubyte.gz", gzip.compress(idx(pixels(20, 28, 28, seed=5))))
    refused("mnist", f"{changed} is not the original")


def emnist(data: Path, *, packed: bool) -> None:
    letters = np.zeros((47, 28, 28), dtype=np.uint8)
    letters[:, 2, 9] = 255  # row 9, column 2: the files hold columns
    files = {}
    for part in ("train", "test"):
        files[f"emnist-balanced-{part}-images-idx3-ubyte.gz"] = gzip.compress(idx(letters))
        files[f"emnist-balanced-{part}-labels-idx1-ubyte.gz"] = gzip.compress(idx(np.arange(47, dtype=np.uint8)))
    if packed:
        (data / "EMNIST/raw").mkdir(parents=True)
        with zipfile.ZipFile(data / "EMNIST/raw/gzip.zip", "w") as archive:
            for name, raw in files.items():
                archive.writestr(f"gzip/{name}", raw)
    else:
        for name, raw in files.items():
            write(data / "EMNIST/raw" / name.removesuffix(".gz"), gzip.decompress(raw))


@pytest.mark.parametrize("packed", [True, False])
def test_emnist(data: Path, monkeypatch: pytest.MonkeyPatch, packed: bool) -> None:
    monkeypatch.setitem(known.COUNTS, "emnist-balanced", (47, 47))
    emnist(data, packed=packed)
    source = load("emnist-balanced")
    assert len(source.classes) == len(set(source.classes)) == 47
    assert source.classes[10] == "A"
    assert source.classes[-1] == "t"
    assert source.x[:, 0, 9, 2].tolist() == [255] * 47
    assert int(source.x.sum(dtype=torch.int64)) == 47 * 255
    assert source.y_test.tolist() == list(range(47))


def test_an_emnist_archive_with_another_checksum(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    emnist(data, packed=True)
    monkeypatch.setitem(known.SUMS, "EMNIST/raw/gzip.zip", "0" * 32)
    refused("emnist-balanced", "gzip.zip is not the original")


# SVHN


def svhn(data: Path, count: int = 12, **change: Any) -> None:
    for part in ("train", "test"):
        content = {"X": pixels(32, 32, 3, count), "y": np.arange(count, dtype=np.uint8)[:, None] % 10 + 1} | change
        file = io.BytesIO()
        savemat(file, content)
        write(data / f"SVHN/{part}_32x32.mat", file.getvalue())


def test_svhn(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(known.COUNTS, "svhn", (12, 12))
    svhn(data)
    source = load("svhn")
    assert source.y.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 2]
    assert np.array_equal(source.x[7].numpy(), pixels(32, 32, 3, 12)[..., 7].transpose(2, 0, 1))
    assert not source.flip


@pytest.mark.parametrize(
    "change, message",
    [
        ({"X": pixels(32, 32, 3, 11)}, "holds 12 labels and images \\(11, 3, 32, 32\\)"),
        ({"X": pixels(32, 32, 3, 12) / 255}, "holds images float64"),
        ({"X": pixels(32, 32)}, "holds images uint8 \\(32, 32\\)"),
        ({"y": np.full((12, 1), 11, dtype=np.uint8)}, "labels 11 to 11"),
    ],
)
def test_wrong_svhn(data: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], message: str) -> None:
    monkeypatch.setitem(known.COUNTS, "svhn", (12, 12))
    svhn(data, **change)
    refused("svhn", message)


# CIFAR

BATCHES = ("data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch")


def cifar10_python() -> dict[str, bytes]:
    batches = {}
    for seed, name in enumerate(BATCHES):
        content = {b"data": pixels(10, 3072, seed=seed), b"labels": list(range(10))}
        batches[name] = pickle.dumps(content, protocol=2)
    return batches


def cifar10_binary() -> dict[str, bytes]:
    labels = np.arange(10, dtype=np.uint8)[:, None]
    batches = {f"{name}.bin": np.hstack([labels, pixels(10, 3072, seed=s)]) for s, name in enumerate(BATCHES)}
    return {name: rows.tobytes() for name, rows in batches.items()}


def as_folder(place: Path, files: dict[str, bytes]) -> None:
    for name, raw in files.items():
        write(place / name, raw)


def as_archive(place: Path, files: dict[str, bytes]) -> None:
    with tarfile.open(place, "w:gz") as archive:
        for name, raw in files.items():
            info = tarfile.TarInfo(f"top/{name}")
            info.size = len(raw)
            archive.addfile(info, io.BytesIO(raw))


@pytest.mark.parametrize(
    "place, save, files",
    [
        ("cifar-10-batches-py", as_folder, cifar10_python),
        ("cifar-10-python.tar.gz", as_archive, cifar10_python),
        ("cifar-10-batches-bin", as_folder, cifar10_binary),
        ("cifar-10-binary.tar.gz", as_archive, cifar10_binary),
    ],
)
def test_cifar10(
    data: Path,
    monkeypatch: pytest.MonkeyPatch,
    place: str,
    save: Callable[[Path, dict[str, bytes]], None],
    files: Callable[[], dict[str, bytes]],
) -> None:
    monkeypatch.setitem(known.COUNTS, "cifar10", (50, 10))
    save(data / place, files())
    source = load("cifar10")
    assert source.x.shape == (50, 3, 32, 32)
    assert np.array_equal(source.x[40:].reshape(10, -1).numpy(), pixels(10, 3072, seed=4))
    assert np.array_equal(source.x_test.reshape(10, -1).numpy(), pixels(10, 3072, seed=5))
    assert source.y.tolist() == [*range(10)] * 5
    assert source.flip
    assert source.classes[3] == "cat"
    assert sorted(path.name for path in data.iterdir()) == [place]


def test_an_incomplete_cifar10(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(known.COUNTS, "cifar10", (50, 10))
    as_folder(data / "cifar-10-batches-bin", cifar10_binary())
    third = data / "cifar-10-batches-bin/data_batch_3.bin"
    third.write_bytes(third.read_bytes()[:-3073])
    refused("cifar10", "images \\(49, 3, 32, 32\\) where they should be \\(50, 3, 32, 32\\)")
    third.unlink()
    refused("cifar10", "cifar-10-batches-bin has no file data_batch_3.bin")


def test_every_cifar10_batch_is_checked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TACIT_DATA", str(tmp_path))
    as_folder(tmp_path / "cifar-10-batches-py", cifar10_python())
    for name, raw in cifar10_python().items():
        refused("cifar10", f"cifar-10-batches-py/{name} is not the original")
        monkeypatch.setitem(known.SUMS, f"cifar-10-batches-py/{name}", hashlib.md5(raw).hexdigest())
    refused("cifar10", "where they should be \\(50000, 3, 32, 32\\)")


def cifar100_python() -> dict[str, bytes]:
    def batch(count: int, seed: int) -> bytes:
        fine = [n % 100 for n in range(count)]
        content = {b"data": pixels(count, 3072, seed=seed), b"fine_labels": fine, b"coarse_labels": [0] * count}
        return pickle.dumps(content, protocol=2)

    names = {b"fine_label_names": [b"fine %d" % n for n in range(100)], b"coarse_label_names": [b"coarse"]}
    return {"train": batch(200, 0), "test": batch(100, 1), "meta": pickle.dumps(names, protocol=2)}


def cifar100_binary() -> dict[str, bytes]:
    def batch(count: int, seed: int) -> bytes:
        fine = np.arange(count, dtype=np.uint8)[:, None] % 100
        return np.hstack([0 * fine, fine, pixels(count, 3072, seed=seed)]).tobytes()

    names = "".join(f"fine {n}\n" for n in range(100)).encode()
    return {"train.bin": batch(200, 0), "test.bin": batch(100, 1), "fine_label_names.txt": names + b"\n"}


@pytest.mark.parametrize(
    "place, save, files",
    [
        ("cifar-100-python", as_folder, cifar100_python),
        ("cifar-100-python.tar.gz", as_archive, cifar100_python),
        ("cifar-100-binary", as_folder, cifar100_binary),
        ("cifar-100-binary.tar.gz", as_archive, cifar100_binary),
    ],
)
def test_cifar100(
    data: Path,
    monkeypatch: pytest.MonkeyPatch,
    place: str,
    save: Callable[[Path, dict[str, bytes]], None],
    files: Callable[[], dict[str, bytes]],
) -> None:
    monkeypatch.setitem(known.COUNTS, "cifar100", (200, 100))
    save(data / place, files())
    source = load("cifar100")
    assert source.y.tolist() == [*range(100), *range(100)]
    assert source.classes[99] == "fine 99"
    assert len(source.classes) == 100
    assert np.array_equal(source.x_test.reshape(100, -1).numpy(), pixels(100, 3072, seed=1))
    assert source.flip


def test_cifar100_needs_all_its_names(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(known.COUNTS, "cifar100", (200, 100))
    as_folder(data / "cifar-100-binary", cifar100_binary() | {"fine_label_names.txt": b"apple\nbear\n"})
    refused("cifar100", "cifar-100-binary names 2 classes where there should be 100")


# Trees of images


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
def test_tiny_imagenet(data: Path, monkeypatch: pytest.MonkeyPatch, packed: bool, size: int | None) -> None:
    monkeypatch.setitem(known.COUNTS, "tiny-imagenet", (6, 3))
    if packed:
        with zipfile.ZipFile(data / "tiny-imagenet-200.zip", "w") as archive:
            for name, raw in tiny().items():
                archive.writestr(f"tiny-imagenet-200/{name}", raw)
    else:
        as_folder(data / "tiny-imagenet-200", tiny())
    source = load("tiny-imagenet", size)
    assert source.x.shape == (6, 3, size or 64, size or 64)
    assert source.classes == ("toad, frog", "goldfish", "n03")
    assert source.y.tolist() == [1, 1, 0, 0, 2, 2]
    assert source.y_test.tolist() == [2, 0, 1]
    assert (source.x[:, 0, 5, 5] // 80).tolist() == source.y.tolist()
    assert (source.x_test[:, 2, 5, 5] // 80).tolist() == source.y_test.tolist()
    assert source.flip


def test_an_incomplete_tiny_imagenet(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(known.COUNTS, "tiny-imagenet", (6, 3))
    as_folder(data / "tiny-imagenet-200", tiny())
    first = data / "tiny-imagenet-200/train/n01/images/n01_0.JPEG"
    first.write_bytes(first.read_bytes()[:300])
    refused("tiny-imagenet", f"1 of 6 files can not be read as images, the first is {first}")
    first.unlink()
    refused("tiny-imagenet", "has 5 training images where there should be 6")
    (data / "tiny-imagenet-200/wnids.txt").unlink()
    refused("tiny-imagenet", "has no file wnids.txt")


@pytest.mark.parametrize(
    "place, covid, normal",
    [
        ("COVID-19_Radiography_Dataset", "COVID/images", "Normal/images"),
        ("COVID-19 Radiography Database", "COVID-19", "NORMAL"),
    ],
)
def test_covid_radiography(data: Path, place: str, covid: str, normal: str) -> None:
    below = "/images" if "images" in covid else ""
    for number, folder in enumerate((covid, normal, f"Viral Pneumonia{below}", f"Lung_Opacity{below}")):
        for side in range(20, 30):
            xray = np.full((side, side + number), 60 * number, dtype=np.uint8)
            write(data / place / folder / f"{side}.png", image(xray, "png"))
            write(data / place / folder / "notes.txt", b"no image")
            if below:
                write(data / place / folder.replace("images", "masks") / f"{side}.png", b"never read")
    source = load("covid-radiography")
    assert source.classes == ("COVID-19", "normal", "viral pneumonia")
    assert source.x.shape == (24, 1, 64, 64)
    assert torch.bincount(source.y).tolist() == [8, 8, 8]
    assert torch.bincount(source.y_test).tolist() == [2, 2, 2]
    assert (source.x[:, 0, 9, 9] // 60).tolist() == source.y.tolist()
    assert not source.flip
    assert load("covid-radiography", 16).x.shape[2:] == (16, 16)


def test_covid_radiography_without_a_class(data: Path) -> None:
    write(data / "COVID-19_Radiography_Dataset/COVID/images/1.png", image(pixels(9, 9), "png"))
    refused("covid-radiography", "has no images in Normal: unpack all of the data set again")


# MedMNIST


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
def test_medmnist(data: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
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
    "change, message",
    [
        ({"val_images": None}, "has no bytes val_images"),
        ({"test_labels": np.zeros((6, 1))}, "has no bytes test_images with whole numbers test_labels"),
        ({"test_images": pixels(5, 28, 28)}, "holds 6 labels and images \\(5, 1, 28, 28\\)"),
        ({"train_images": pixels(12, 64, 64)}, "where they should be \\(12, 1, 28, 28\\)"),
        ({"train_images": pixels(12, 28, 28, 3)}, "where they should be \\(12, 1, 28, 28\\)"),
        ({"train_labels": np.full((12, 1), 2)}, "labels 2 to 2 where they should be 0 to 1"),
        ({"train_labels": np.zeros((12, 14), dtype=int)}, "holds 168 labels"),
    ],
)
def test_a_wrong_medmnist_file(
    data: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], message: str
) -> None:
    arrays = {name: value for name, value in (med_arrays("breastmnist") | change).items() if value is not None}
    path = save_med(data, monkeypatch, "breastmnist", arrays)
    refused("breastmnist", f"{path} .*{message}.*: delete it and run again")


def test_a_garbage_medmnist_file(data: Path) -> None:
    write(data / "medmnist/bloodmnist.npz", b"PK garbage")
    refused("bloodmnist", "bloodmnist.npz can not be read: delete it and run again to fetch it")


# What is known fits together.


def test_what_is_fetched_is_what_is_looked_for() -> None:
    for place, remote in known.REMOTES.items():
        assert place == remote.place
        assert len(remote.checksum) in (32, 64)
        assert all(url.startswith("http") for url in remote.urls)
    assert all(len(value) in (32, 64) for value in known.SUMS.values())
    assert len(set(known.SUMS.values())) == len(known.SUMS)
    sums = [known.checksum for known in medmnist.MEDMNIST.values()]
    assert len({*sums}) == len(sums) == 11


FETCHED = "mnist fashion-mnist emnist-balanced svhn cifar10 cifar100 tiny-imagenet shakespeare pathmnist"


@pytest.mark.parametrize("name", FETCHED.split())
def test_a_set_that_is_not_there_is_fetched(data: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(benchmarks, "DEBIAN", str(data / "nowhere"))
    asked = []

    def retrieve(url: str, known_hash: str, fname: str, path: Path, downloader: object) -> None:
        asked.append((url, known_hash, Path(path) / fname))
        raise ValueError("wrong checksum")

    monkeypatch.setattr("pooch.retrieve", retrieve)
    refused(name, "could not be fetched .*: try again, or get http.* yourself and put it there")
    url, checksum, path = asked[0]
    assert path.is_relative_to(data)
    assert checksum.startswith(("md5:", "sha256:"))
    assert path.name in url or name == "shakespeare"
