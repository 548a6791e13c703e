"""Known data sets from small files in their formats: layouts, labels, pixels, and refusals of wrong files."""

import gzip
import hashlib
import io
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.io import savemat

from tacit.data.sources import benchmarks, known, load, medmnist
from tests.data.files import idx_bytes, load_refused, pixels, python2_pickle, write
from tests.data.kinds import pictured

# MNIST, Fashion-MNIST and EMNIST


def idx_files() -> dict[str, bytes]:
    return {
        "train-images-idx3-ubyte": idx_bytes(pixels(20, 28, 28)),
        "train-labels-idx1-ubyte": idx_bytes(np.arange(20, dtype=np.uint8) % 10),
        "t10k-images-idx3-ubyte": idx_bytes(pixels(10, 28, 28, seed=1)),
        "t10k-labels-idx1-ubyte": idx_bytes(np.arange(10, dtype=np.uint8)),
    }


@pytest.mark.parametrize("name, folder", [("mnist", "MNIST"), ("fashion-mnist", "FashionMNIST")])
@pytest.mark.parametrize("below", ["raw/", ""])
@pytest.mark.parametrize("packed", [True, False])
def test_mnist_and_fashion_mnist_are_read_from_idx_files(
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
    assert not pictured(source).flip
    assert pictured(source).shift == (2 if name == "fashion-mnist" else None)


def test_fashion_mnist_is_found_where_debian_puts_it(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(known.COUNTS, "fashion-mnist", (20, 10))
    monkeypatch.setattr(benchmarks, "DEBIAN", str(data / "usr/share/datasets/fashion-mnist"))
    for file, raw in idx_files().items():
        write(data / f"usr/share/datasets/fashion-mnist/{file}.gz", gzip.compress(raw))
    assert load("fashion-mnist").x.shape == (20, 1, 28, 28)


@pytest.mark.parametrize(
    "file, raw, code",
    [
        ("train-images-idx3-ubyte", idx_bytes(pixels(19, 28, 28)), "data.wrong-shape"),
        ("train-images-idx3-ubyte", idx_bytes(pixels(20, 28, 27)), "data.wrong-shape"),
        ("train-labels-idx1-ubyte", idx_bytes(np.full(20, 10, dtype=np.uint8)), "data.wrong-labels"),
        ("t10k-labels-idx1-ubyte", idx_bytes(pixels(9)), "data.wrong-shape"),
        ("t10k-images-idx3-ubyte", b"<html>not found</html>", "data.wrong-format"),
        ("t10k-images-idx3-ubyte", b"\x1f\x8b broken", "data.damaged-file"),
    ],
)
def test_a_wrong_idx_file_is_refused(
    data: Path, monkeypatch: pytest.MonkeyPatch, file: str, raw: bytes, code: str
) -> None:
    monkeypatch.setitem(known.COUNTS, "mnist", (20, 10))
    for name, good in (idx_files() | {file: raw}).items():
        write(data / f"MNIST/raw/{name}.gz", good)
    load_refused("mnist", code, str(data / "MNIST/raw"))


def test_the_checksum_covers_the_bytes_after_decompression(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TACIT_DATA", str(tmp_path))
    monkeypatch.setitem(known.COUNTS, "mnist", (20, 10))
    for file, raw in idx_files().items():
        monkeypatch.setitem(known.SUMS, f"MNIST/raw/{file}", hashlib.sha256(raw).hexdigest())
        write(tmp_path / f"MNIST/raw/{file}.gz", gzip.compress(raw, compresslevel=1))
    assert len(load("mnist").x) == 20
    changed = write(
        tmp_path / "MNIST/raw/train-images-idx3-ubyte.gz", gzip.compress(idx_bytes(pixels(20, 28, 28, seed=5)))
    )
    load_refused("mnist", "data.wrong-checksum", str(changed))


def emnist(data: Path, *, packed: bool) -> None:
    letters = np.zeros((47, 28, 28), dtype=np.uint8)
    letters[:, 2, 9] = 255  # row 9, column 2: the files hold columns
    files = {}
    for part in ("train", "test"):
        files[f"emnist-balanced-{part}-images-idx3-ubyte.gz"] = gzip.compress(idx_bytes(letters))
        files[f"emnist-balanced-{part}-labels-idx1-ubyte.gz"] = gzip.compress(idx_bytes(np.arange(47, dtype=np.uint8)))
    if packed:
        (data / "EMNIST/raw").mkdir(parents=True)
        with zipfile.ZipFile(data / "EMNIST/raw/gzip.zip", "w") as archive:
            for name, raw in files.items():
                archive.writestr(f"gzip/{name}", raw)
    else:
        for name, raw in files.items():
            write(data / "EMNIST/raw" / name.removesuffix(".gz"), gzip.decompress(raw))


@pytest.mark.parametrize("packed", [True, False])
def test_emnist_is_read_upright(data: Path, monkeypatch: pytest.MonkeyPatch, packed: bool) -> None:
    monkeypatch.setitem(known.COUNTS, "emnist-balanced", (47, 47))
    emnist(data, packed=packed)
    source = load("emnist-balanced")
    assert len(source.classes) == len(set(source.classes)) == 47
    assert source.classes[10] == "A"
    assert source.classes[-1] == "t"
    assert source.x[:, 0, 9, 2].tolist() == [255] * 47
    assert int(source.x.sum(dtype=torch.int64)) == 47 * 255
    assert source.y_test.tolist() == list(range(47))


def test_an_emnist_archive_with_another_checksum_is_refused(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    emnist(data, packed=True)
    monkeypatch.setitem(known.SUMS, "EMNIST/raw/gzip.zip", "0" * 32)
    load_refused("emnist-balanced", "data.wrong-checksum", "gzip.zip")


# SVHN


def svhn(data: Path, count: int = 12, **change: Any) -> None:
    for part in ("train", "test"):
        content = {"X": pixels(32, 32, 3, count), "y": np.arange(count, dtype=np.uint8)[:, None] % 10 + 1} | change
        file = io.BytesIO()
        savemat(file, content)
        write(data / f"SVHN/{part}_32x32.mat", file.getvalue())


def test_svhn_is_read_with_ten_as_zero(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(known.COUNTS, "svhn", (12, 12))
    svhn(data)
    source = load("svhn")
    assert source.y.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 2]
    assert np.array_equal(source.x[7].numpy(), pixels(32, 32, 3, 12)[..., 7].transpose(2, 0, 1))
    assert not pictured(source).flip


@pytest.mark.parametrize(
    "change, code",
    [
        ({"X": pixels(32, 32, 3, 11)}, "data.wrong-shape"),
        ({"X": pixels(32, 32, 3, 12) / 255}, "data.wrong-format"),
        ({"X": pixels(32, 32)}, "data.wrong-format"),
        ({"y": np.full((12, 1), 11, dtype=np.uint8)}, "data.wrong-labels"),
    ],
)
def test_a_wrong_svhn_file_is_refused(
    data: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], code: str
) -> None:
    monkeypatch.setitem(known.COUNTS, "svhn", (12, 12))
    svhn(data, **change)
    load_refused("svhn", code)


# CIFAR

BATCHES = ("data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch")


def cifar10_python() -> dict[str, bytes]:
    batches = {}
    for seed, name in enumerate(BATCHES):
        content = {b"data": pixels(10, 3072, seed=seed), b"labels": list(range(10))}
        batches[name] = python2_pickle(content)
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
def test_cifar10_is_read_from_any_of_its_versions(
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
    assert pictured(source).flip
    assert source.classes[3] == "cat"
    assert sorted(path.name for path in data.iterdir()) == [place]


def test_an_incomplete_cifar10_is_refused(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(known.COUNTS, "cifar10", (50, 10))
    as_folder(data / "cifar-10-batches-bin", cifar10_binary())
    third = data / "cifar-10-batches-bin/data_batch_3.bin"
    third.write_bytes(third.read_bytes()[:-3073])
    load_refused("cifar10", "data.wrong-shape", "(49, 3, 32, 32)")
    third.unlink()
    load_refused("cifar10", "data.missing-file", "data_batch_3.bin")


def test_every_cifar10_batch_is_compared_with_its_checksum(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TACIT_DATA", str(tmp_path))
    as_folder(tmp_path / "cifar-10-batches-py", cifar10_python())
    for name, raw in cifar10_python().items():
        load_refused("cifar10", "data.wrong-checksum", f"cifar-10-batches-py/{name}")
        monkeypatch.setitem(known.SUMS, f"cifar-10-batches-py/{name}", hashlib.md5(raw).hexdigest())
    load_refused("cifar10", "data.wrong-shape", "(50000, 3, 32, 32)")


def test_a_changed_pickle_is_refused_before_it_is_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TACIT_DATA", str(tmp_path))
    monkeypatch.setattr("tacit.data.sources.pickled.read", None)
    as_folder(tmp_path / "cifar-10-batches-py", cifar10_python())
    as_folder(tmp_path / "cifar-100-python", cifar100_python())
    load_refused("cifar10", "data.wrong-checksum")
    load_refused("cifar100", "data.wrong-checksum")


def cifar100_python() -> dict[str, bytes]:
    def batch(count: int, seed: int) -> bytes:
        fine = [n % 100 for n in range(count)]
        content = {b"data": pixels(count, 3072, seed=seed), b"fine_labels": fine, b"coarse_labels": [0] * count}
        return python2_pickle(content)

    names = {b"fine_label_names": [b"fine %d" % n for n in range(100)], b"coarse_label_names": [b"coarse"]}
    return {"train": batch(200, 0), "test": batch(100, 1), "meta": python2_pickle(names)}


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
def test_cifar100_is_read_from_any_of_its_versions(
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
    assert pictured(source).flip


def test_cifar100_needs_all_class_names(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(known.COUNTS, "cifar100", (200, 100))
    as_folder(data / "cifar-100-binary", cifar100_binary() | {"fine_label_names.txt": b"apple\nbear\n"})
    load_refused("cifar100", "data.wrong-class-names", "names 2 classes")


# Facts about the original files


def test_addresses_and_checksums_are_well_formed() -> None:
    for place, remote in known.REMOTES.items():
        assert place == remote.place
        assert len(remote.checksum) in (32, 64)
        assert all(url.startswith("http") for url in remote.urls)
    assert all(len(value) in (32, 64) for value in known.SUMS.values())
    assert len(set(known.SUMS.values())) == len(known.SUMS)
    sums = [each.checksum for each in medmnist.MEDMNIST.values()]
    assert len({*sums}) == len(sums) == 11


FETCHED = "mnist fashion-mnist emnist-balanced svhn cifar10 cifar100 tiny-imagenet shakespeare pathmnist"


@pytest.mark.parametrize("name", FETCHED.split())
def test_a_missing_data_set_is_downloaded(data: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(benchmarks, "DEBIAN", str(data / "nowhere"))
    asked = []

    def retrieve(url: str, known_hash: str, fname: str, path: Path, downloader: object) -> None:
        asked.append((url, known_hash, Path(path) / fname))
        raise ValueError("wrong checksum")

    monkeypatch.setattr("pooch.retrieve", retrieve)
    load_refused(name, "data.download-failed", "http")
    url, checksum, path = asked[0]
    assert path.is_relative_to(data)
    assert checksum.startswith(("md5:", "sha256:"))
    assert path.name in url or name == "shakespeare"
