"""Data sets by name: those that ship or can be downloaded, and the user's files and folders.

A module here that reads data sets ends with a dict `SOURCES` from name to loader, and this package collects them. The
first line of a loader's docstring is what `tacit ls datasets` shows. If its samples are not images, a dict `KINDS` says
what they are. A loader that takes a `size` can scale its images.
"""

import inspect
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tacit.data.inputs import ImageInputs, Kind, VectorInputs
from tacit.data.sources import image_folder, manifest, npz, tables
from tacit.data.sources.arrays import Source
from tacit.data.sources.images import AS_FOUND, Scale
from tacit.discovery import offered
from tacit.errors import TacitError, did_you_mean

__all__ = ["SOURCES", "Source", "find", "is_path", "kind_of", "load", "load_part"]


SOURCES: dict[str, Callable[..., Source]] = offered(__name__, __path__, "SOURCES")
KINDS: dict[str, Kind] = offered(__name__, __path__, "KINDS")  # of those that are not images


def find(
    name: str, size: int | None = None, bits: int | None = None, pad: bool = False, skip_broken: bool = False
) -> Callable[[], Source]:
    """The loader of the data set with this name or at this path; nothing is read yet.

    A path is a `.npz` file (`x`, `y`), a `.csv` file (`path,label`, or a table of numbers with a column `label`), such
    a table as `.parquet`, or a folder (`labeled/<class>/…`, `unlabeled/…`).

    `size` is the side in pixels to scale images to, for folders, CSV files, covid-radiography and tiny-imagenet. `bits`
    is how many of their 16 bits images of folders, CSV and `.npz` files use; for other samples it has no effect. `pad`
    and `skip_broken` are for images of folders and CSV files; see `Scale`.
    """
    if size is not None and size < 1:
        raise TacitError(f"images cannot have a side of {size} pixels", "choose 1 or more", code="data.bad-size")
    if name.endswith(".npy"):
        raise TacitError(
            f"{name} holds a single array",
            "save images and labels with numpy.savez('my.npz', x=…, y=…)",
            code="data.single-array",
        )
    if is_path(name):
        return _at_path(name, Scale(size, bits, pad, skip_broken))
    if name == "chestmnist":
        raise TacitError(
            "images of chestmnist have several labels each, and no method here learns from those",
            "choose another data set",
            code="data.several-labels",
        )
    if name not in SOURCES:
        guess, rest = did_you_mean(name, SOURCES), f"one of `tacit ls datasets`, or a path such as ./{name}"
        remedy = f"{guess} Otherwise give {rest}" if guess else f"give {rest}"
        raise TacitError(f"unknown data set '{name}'", remedy, code="names.unknown-data-set")
    if "size" in inspect.signature(SOURCES[name]).parameters:
        return partial(SOURCES[name], size)
    return _fixed(name, SOURCES[name], size)


def kind_of(name: str) -> Kind:
    """What the samples of a data set are, by its name or the head of its file; images where that does not tell."""
    path = Path(name)
    if not is_path(name):
        return KINDS.get(name, ImageInputs)
    vectors = npz.holds_vectors(path) if path.suffix == ".npz" else path.is_file() and tables.is_table(path)
    return VectorInputs if vectors else ImageInputs


def load(
    name: str, size: int | None = None, bits: int | None = None, pad: bool = False, skip_broken: bool = False
) -> Source:
    """The data set with this name or at this path; see `find`."""
    return find(name, size, bits, pad, skip_broken)()


def load_part(path: Path, classes: tuple[str, ...], scale: Scale = AS_FOUND) -> Source:
    """The data at a path, held by one member of a federation with these classes; see `find`. Arrays are not resized."""
    if path.suffix == ".npz":
        return npz.part_of_file(path, classes, scale.bits)
    if tables.is_table(path):
        return tables.part_of_table(path, classes)
    read = manifest.part_of_manifest if path.suffix == ".csv" else image_folder.part_of_folder
    return read(path, classes, scale)


def is_path(name: str) -> bool:
    """Whether a name is the path of a file or folder and not a data set of this package."""
    if name in SOURCES or not name:
        return False
    separators = {"/", os.sep, os.altsep or os.sep}
    return (
        name.endswith((".npz", ".csv", ".parquet")) or any(mark in name for mark in separators) or Path(name).is_dir()
    )


def _at_path(name: str, scale: Scale) -> Callable[[], Source]:
    if name.endswith(".npz"):
        return _fixed(name, partial(npz.from_file, Path(name), scale.bits), scale.size)
    if tables.is_table(Path(name)):
        return _fixed(name, partial(tables.from_table, Path(name)), scale.size)
    read = manifest.from_manifest if name.endswith(".csv") else image_folder.from_folder
    return partial(read, Path(name), scale)


def _fixed(name: str, loader: Callable[[], Source], size: int | None) -> Callable[[], Source]:
    if size is not None:
        raise TacitError(f"samples of {name} have a fixed size", "leave out data.size", code="data.fixed-size")
    return loader
