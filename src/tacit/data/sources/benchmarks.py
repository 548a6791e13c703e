"""The image sets that papers compare on, each read in its published format.

Files are below the data folder, where their usual loaders put them. Archives are read without unpacking them.
"""

import string
from collections.abc import Sequence
from functools import partial
from importlib import resources
from pathlib import Path

import numpy as np

from tacit.data.sources import formats, npz
from tacit.data.sources.arrays import Pair, Source, image_source
from tacit.data.sources.fetch import broken, fetch, local, verify
from tacit.data.sources.known import COUNTS, REMOTES, SUMS

DEBIAN = "/usr/share/datasets/fashion-mnist"  # where the package dataset-fashion-mnist puts its files
_CLOTHES = ("T-shirt", "trousers", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
_DIGITS = tuple(string.digits)
_CHARACTERS = tuple(string.digits + string.ascii_uppercase + "abdefghnqrt")  # other small letters count as capitals
_CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_BATCHES = ("data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch")


def fashion_small() -> Source:
    """6,000 + 1,000 images of clothes, 28×28 grey, 10 classes (a subset of Fashion-MNIST)."""
    with resources.as_file(resources.files("tacit.data") / "fashion_small.npz") as path:
        arrays = npz.read(path, "install tacit again")
    train, test = (npz.pair(path, arrays, f"x_{part}", f"y_{part}") for part in ("train", "test"))
    return _clothes("fashion-small", train, test)


def mnist() -> Source:
    """60,000 + 10,000 handwritten digits, 28×28 grey, 10 classes."""
    train, test = (_idx_pair("mnist", part, ["MNIST/raw", "MNIST"]) for part in (0, 1))
    return image_source("mnist", train, test, _DIGITS, flip=False)


def fashion_mnist() -> Source:
    """60,000 + 10,000 images of clothes, 28×28 grey, 10 classes."""
    folders = ["FashionMNIST/raw", "FashionMNIST", DEBIAN]
    train, test = (_idx_pair("fashion-mnist", part, folders) for part in (0, 1))
    return _clothes("fashion-mnist", train, test)


def emnist_balanced() -> Source:
    """112,800 + 18,800 handwritten digits and letters, 28×28 grey, 47 classes."""
    train, test = (_emnist_pair(part) for part in (0, 1))
    return image_source("emnist-balanced", train, test, _CHARACTERS, flip=False)


def svhn() -> Source:
    """73,257 + 26,032 house numbers cut to one digit, 32×32 RGB, 10 classes."""
    train, test = (_svhn_pair(part) for part in (0, 1))
    return image_source("svhn", train, test, _DIGITS, flip=False)


def cifar10() -> Source:
    """50,000 + 10,000 photographs of animals and vehicles, 32×32 RGB, 10 classes."""
    place = local("cifar-10-batches-bin", "cifar-10-batches-py", "cifar-10-python.tar.gz", "cifar-10-binary.tar.gz")
    place = place or fetch(REMOTES["cifar-10-python.tar.gz"])
    if "bin" in place.name:
        folder, names = "cifar-10-batches-bin", [f"{name}.bin" for name in _BATCHES]
        reader = partial(formats.cifar_binary, labels=1)
    else:
        folder, names = "cifar-10-batches-py", list(_BATCHES)
        reader = partial(formats.cifar_pickle, label="labels")
    raw = _verified(place, folder, names)
    batches = [reader(place / name, raw.pop(name)) for name in names]
    train, test = _cifar_parts("cifar10", place, batches, 10)
    return image_source("cifar10", train, test, _CIFAR10, flip=True)


def cifar100() -> Source:
    """50,000 + 10,000 photographs, 32×32 RGB, 100 classes (the fine labels)."""
    place = local("cifar-100-python", "cifar-100-binary", "cifar-100-python.tar.gz", "cifar-100-binary.tar.gz")
    place = place or fetch(REMOTES["cifar-100-python.tar.gz"])
    if "binary" in place.name:
        raw = _verified(place, "cifar-100-binary", ["train.bin", "test.bin", "fine_label_names.txt"])
        classes = raw["fine_label_names.txt"].decode("latin-1").split("\n")
        batches = [formats.cifar_binary(place / name, raw[name], labels=2) for name in ("train.bin", "test.bin")]
    else:
        raw = _verified(place, "cifar-100-python", ["train", "test", "meta"])
        classes = formats.cifar_names(place / "meta", raw["meta"])
        batches = [formats.cifar_pickle(place / name, raw[name], "fine_labels") for name in ("train", "test")]
    train, test = _cifar_parts("cifar100", place, batches, 100)
    names = tuple(name for name in classes if name)
    if len(names) != 100:
        raise broken(place, f"names {len(names)} classes, and should name 100", code="data.wrong-class-names")
    return image_source("cifar100", train, test, names, flip=True)


def _clothes(name: str, train: Pair, test: Pair) -> Source:
    # All shoes point left and every garment fills its frame, so flips and wide shifts give images that do not occur.
    return image_source(name, train, test, _CLOTHES, flip=False, shift=2)


def _idx_pair(name: str, part: int, folders: Sequence[str]) -> Pair:
    """Images and labels of the training (0) or test (1) part, from the first folder that has them or downloaded."""
    arrays = []
    for kind, axes in (("images-idx3-ubyte", 3), ("labels-idx1-ubyte", 1)):
        file = f"{('train', 't10k')[part]}-{kind}"
        places = [f"{folder}/{file}{end}" for folder in folders for end in (".gz", "")]
        path = local(*places) or fetch(REMOTES[f"{folders[0]}/{file}.gz"])
        raw = formats.content(path)
        arrays.append(formats.idx(path, raw, axes))
        verify(path, raw, SUMS.get(f"{folders[0]}/{file}"))
    return formats.checked(path, arrays[0][:, None], arrays[1], (COUNTS[name][part], 1, 28, 28), 10)


def _emnist_pair(part: int) -> Pair:
    arrays = []
    for kind, axes in (("images-idx3-ubyte", 3), ("labels-idx1-ubyte", 1)):
        path, raw = _emnist_file(f"emnist-balanced-{('train', 'test')[part]}-{kind}")
        arrays.append(formats.idx(path, raw, axes))
    x = arrays[0].transpose(0, 2, 1)[:, None]  # the files store columns first, MNIST rows
    shape = (COUNTS["emnist-balanced"][part], 1, 28, 28)
    return formats.checked(path, x, arrays[1], shape, len(_CHARACTERS))


def _emnist_file(name: str) -> tuple[Path, bytes]:
    folders = ("EMNIST/raw", "EMNIST/raw/gzip", "EMNIST")
    path = local(*(f"{folder}/{name}{end}" for folder in folders for end in (".gz", "")))
    if path:
        return path, formats.content(path)
    path = local("EMNIST/raw/gzip.zip", "EMNIST/gzip.zip", "gzip.zip") or fetch(REMOTES["EMNIST/raw/gzip.zip"])
    if "train-images" in name:  # verify the half gigabyte with all four files only once
        verify(path, None, SUMS.get("EMNIST/raw/gzip.zip"))
    return path, formats.ungzip(path, formats.zipped(path, f"gzip/{name}.gz"))


def _svhn_pair(part: int) -> Pair:
    name = f"{('train', 'test')[part]}_32x32.mat"
    path = local(f"SVHN/{name}", f"svhn/{name}", name) or fetch(REMOTES[f"SVHN/{name}"])
    raw = formats.content(path)
    verify(path, raw, SUMS.get(f"SVHN/{name}"))
    x, y = formats.matlab(path, raw, "X", "y")
    if x.ndim != 4 or x.dtype != np.uint8 or y.dtype.kind not in "iu":
        raise broken(
            path, f"has images {x.dtype} {x.shape}, and should have uint8 (32, 32, 3, n)", code="data.wrong-format"
        )
    images, digits = x.transpose(3, 2, 0, 1).astype(np.uint8, copy=False), y.reshape(-1).astype(np.int64)
    digits[digits == 10] = 0  # the files label the digit 0 as 10
    return formats.checked(path, images, digits, (COUNTS["svhn"][part], 3, 32, 32), 10)


def _verified(place: Path, folder: str, names: Sequence[str]) -> dict[str, bytes]:
    raw = formats.files(place, names)
    for name in names:
        verify(place / name, raw[name], SUMS.get(f"{folder}/{name}"))
    return raw


def _cifar_parts(name: str, place: Path, batches: Sequence[Pair], classes: int) -> list[Pair]:
    """All batches but the last for training, the last for testing."""
    x, y = (np.concatenate([batch[i] for batch in batches[:-1]]) for i in (0, 1))
    parts = ((x, y), batches[-1])
    return [
        formats.checked(place, *part, (count, 3, 32, 32), classes)
        for part, count in zip(parts, COUNTS[name], strict=True)
    ]


SOURCES = {
    "fashion-small": fashion_small,
    "mnist": mnist,
    "fashion-mnist": fashion_mnist,
    "emnist-balanced": emnist_balanced,
    "svhn": svhn,
    "cifar10": cifar10,
    "cifar100": cifar100,
}
