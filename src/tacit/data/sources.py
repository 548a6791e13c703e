"""Data sets by name: those that ship or can be fetched, and the user's own files and folders."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tacit.data import benchmarks, folders, leaf, medmnist, npz, trees
from tacit.data.arrays import Source
from tacit.data.images import AS_FOUND, Scale
from tacit.errors import TacitError, meant

__all__ = ["SOURCES", "Source", "find", "is_path", "load", "load_part"]

# The first line of each one's documentation is what `tacit ls datasets` shows.
SOURCES: dict[str, Callable[..., Source]] = {
    "fashion-small": benchmarks.fashion_small,
    "mnist": benchmarks.mnist,
    "fashion-mnist": benchmarks.fashion_mnist,
    "emnist-balanced": benchmarks.emnist_balanced,
    "femnist": leaf.femnist,
    "svhn": benchmarks.svhn,
    "cifar10": benchmarks.cifar10,
    "cifar100": benchmarks.cifar100,
    "tiny-imagenet": trees.tiny_imagenet,
    "shakespeare": leaf.shakespeare,
    "covid-radiography": trees.covid_radiography,
    **{name: medmnist.loader(name) for name in medmnist.MEDMNIST},
}
_SCALED = {"tiny-imagenet", "covid-radiography"}  # of images that are decoded one by one, to any size


def find(name: str, size: int | None = None, bits: int | None = None) -> Callable[[], Source]:
    """What loads the data set of this name, or the one at this path; nothing is read yet.

    A path is a `.npz` file (`x`, `y`), a `.csv` file (`path,label`) or a folder (`labeled/<class>/…`, `unlabeled/…`).
    `size` is the side in pixels that images of folders, CSV files, covid-radiography and tiny-imagenet are scaled to.
    `bits` is how many of their 16 bits deep grey images of folders and CSV files use; other images have no such choice.
    """
    if size is not None and size < 1:
        raise TacitError(f"images can not be scaled to {size} pixels: choose a size of 1 or more")
    if name.endswith(".npy"):
        raise TacitError(f"{name} holds a single array: save images and labels with numpy.savez('my.npz', x=…, y=…)")
    if is_path(name):
        return _own(name, Scale(size, bits))
    if name == "chestmnist":
        raise TacitError("images of chestmnist have several labels each, which no method here learns: choose another")
    if name not in SOURCES:
        own = f"one of `tacit ls datasets`, or a path of your own such as ./{name}"
        guess = meant(name, SOURCES)
        raise TacitError(f"unknown data set '{name}': {f'{guess} Else give' if guess else 'give'} {own}")
    if name in _SCALED:
        return partial(SOURCES[name], size)
    return _fixed(name, SOURCES[name], size)


def load(name: str, size: int | None = None, bits: int | None = None) -> Source:
    """The data set of this name, or the one at this path; see `find`."""
    return find(name, size, bits)()


def load_part(path: Path, classes: tuple[str, ...], scale: Scale = AS_FOUND) -> Source:
    """What one holder of a federation with these classes has at a path; see `find`. Arrays have their own size."""
    if path.suffix == ".npz":
        return npz.part_of_file(path, classes)
    kind = folders.part_of_manifest if path.suffix == ".csv" else folders.part_of_folder
    return kind(path, classes, scale)


def is_path(name: str) -> bool:
    """Whether a name means a file or folder of the user and not a data set of the package."""
    if name in SOURCES or not name:
        return False
    separators = {"/", os.sep, os.altsep or os.sep}
    return name.endswith((".npz", ".csv")) or any(mark in name for mark in separators) or Path(name).is_dir()


def _own(name: str, scale: Scale) -> Callable[[], Source]:
    if name.endswith(".npz"):
        return _fixed(name, partial(npz.from_file, Path(name)), scale.size)
    kind = folders.from_manifest if name.endswith(".csv") else folders.from_folder
    return partial(kind, Path(name), scale)


def _fixed(name: str, loader: Callable[[], Source], size: int | None) -> Callable[[], Source]:
    if size is not None:
        raise TacitError(f"images of {name} have a size of their own: leave data.size out")
    return loader
