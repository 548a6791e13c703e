"""The user's own images: a folder with a folder for each class, or a CSV file that lists them."""

import csv
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

import numpy as np
from PIL import Image

from tacit.data import images
from tacit.data.arrays import Labels, Source, hold_out, image_source
from tacit.data.images import Scale
from tacit.errors import TacitError
from tacit.federation import UNLABELED

_COLUMNS = ("path", "label", "split", "group")
_ALIKE = 0.75  # of difflib: splt is a slip of split, site is a column of its own
_LITTER = {"thumbs.db", "desktop.ini", "__macosx"}  # of Windows and macOS, beside hidden files
_ONCE_LABELED = ("train", "training")  # what others call the folder labeled
PARTS = ("labeled", "unlabeled", "test")  # of a folder of images
_NAMED, _MANY = 3, 10  # folders, and classes, in a sentence


@dataclass(frozen=True)
class _Item:
    """An image file, its class ("" when nobody knows), and whether it is for testing."""

    path: str
    label: str
    test: bool = False
    group: str = ""
    line: int = 0  # in the manifest


def from_folder(path: Path, scale: Scale) -> Source:
    """The images in `labeled/<class>/…`, `unlabeled/…` and, if it is there, `test/<class>/…`.

    Classes are sorted by name, or as numbers where all are. Without a folder `test`, 20 % of the labeled images become
    the test set, always the same ones. Images are never flipped: a folder does not say whether that keeps labels. For
    their size and colours see `images.load`.
    """
    if not path.is_dir():
        raise TacitError(f"there is no folder {path}: check the path")
    if not (path / "labeled").is_dir():
        raise TacitError(f"{path} has no folder labeled: {_instead_of_labeled(path)}")
    _refuse_unused(path)
    items = list(_by_class(path / "labeled"))
    items += [_Item(file, "") for file in _files(path / "unlabeled")]
    if (path / "test").is_dir():
        test = [_Item(item.path, item.label, test=True) for item in _by_class(path / "test")]
        _check_folders(path, {item.label for item in items}, {item.label for item in test})
        items += test
    return _source(path, items, scale, "add a folder test with a folder for each class")


def from_manifest(path: Path, scale: Scale) -> Source:
    """The images a CSV file lists: columns `path` and `label`, and `split` and `group` if they are there.

    Paths are relative to the file; other columns are ignored. An empty label means unlabeled; split is train or test,
    and without test rows 20 % of the labeled images become the test set, always the same ones; group says who made an
    image.
    """
    items = _rows(path)
    known = {item.label for item in items if not item.test}
    for item in items:
        if item.test and item.label not in known:
            raise _line(path, item.line, f"has the label {item.label}, which no training row has: add such rows")
    return _source(path, items, scale, "add rows whose split is test")


def part_of_folder(path: Path, classes: tuple[str, ...], scale: Scale) -> Source:
    """What one holder of a federation with these classes has in a folder as `from_folder` reads it.

    Classes may be missing, and the folder `labeled` too. Nothing is held out for testing.
    """
    if not path.is_dir():
        raise TacitError(f"there is no folder {path}: check the path")
    if not any((path / name).is_dir() for name in ("labeled", "unlabeled")):
        raise TacitError(f"{path} has no folder labeled or unlabeled: {_instead_of_labeled(path)}")
    _refuse_unused(path)
    labeled, test = ([*_by_class(path / name)] if (path / name).is_dir() else [] for name in ("labeled", "test"))
    items = labeled + [_Item(file, "") for file in _files(path / "unlabeled")]
    return _part(path, items + [_Item(item.path, item.label, test=True) for item in test], classes, scale)


def part_of_manifest(path: Path, classes: tuple[str, ...], scale: Scale) -> Source:
    """What one holder of a federation with these classes has in a CSV file as `from_manifest` reads it."""
    return _part(path, _rows(path, some_labeled=False), classes, scale)


def _part(path: Path, items: list[_Item], classes: tuple[str, ...], scale: Scale) -> Source:
    if strangers := sorted({item.label for item in items if item.label} - set(classes)):
        near = _nearest(strangers[0], classes)
        remedy = f"rename it to {near}" if near else f"use only {', '.join(classes[:_MANY])}"
        more = ", …" if not near and len(classes) > _MANY else ""
        raise TacitError(f"{path} has a class {strangers[0]}, which the federation does not know: {remedy}{more}")
    if all(item.test for item in items):
        raise TacitError(f"{path} has no image to learn from: put images into labeled/<class>/ or unlabeled/")
    test = np.array([item.test for item in items])
    return _arrays(path, items, classes, (np.flatnonzero(~test), np.flatnonzero(test)), scale)


def _instead_of_labeled(path: Path) -> str:
    """What to do about a folder without `labeled`, by what it has."""
    folders = sorted(entry.name for entry in path.iterdir() if entry.is_dir() and not _is_litter(entry.name))
    for name in folders:
        if name.lower() in _ONCE_LABELED or _nearest(name, PARTS) == "labeled":
            return f"rename {name} to labeled"
    classes = [name for name in folders if name not in ("unlabeled", "test") and _has_images(path / name)]
    if not classes:
        return "put images into labeled/<class>/ and unlabeled/"
    more = ", …" if len(classes) > _NAMED else ""
    return f"move {', '.join(classes[:_NAMED])}{more} into labeled/"


def _refuse_unused(path: Path) -> None:
    """Images in a folder that is not read would be missed without a word."""
    for entry in sorted(path.iterdir()):
        if entry.name in PARTS or _is_litter(entry.name) or not entry.is_dir() or not _images_below(entry):
            continue
        near = _nearest(entry.name, PARTS)
        remedy = f"rename {entry.name} to {near}" if near else f"move {entry.name} into one of them, or elsewhere"
        raise TacitError(f"{path} is read in its folders {', '.join(PARTS)} only: {remedy}")


def _images_below(folder: Path) -> bool:
    return any(Path(file).suffix.lower() in Image.registered_extensions() for file in _files(folder))


def _has_images(folder: Path) -> bool:
    known = Image.registered_extensions()
    return any(file.suffix.lower() in known for file in folder.glob("*.*") if not _is_litter(file.name))


def _is_litter(name: str) -> bool:
    return name.startswith(".") or name.lower() in _LITTER


def _nearest(name: str, known: Iterable[str]) -> str:
    """The known name that this one resembles, or nothing."""
    return next(iter(get_close_matches(name.strip().lower(), list(known), 1, _ALIKE)), "")


def _by_class(folder: Path) -> Iterator[_Item]:
    """The images in the folders of a folder, classes and files in the order of their names."""
    for entry in sorted(folder.iterdir()):
        if _is_litter(entry.name):
            continue
        if not entry.is_dir():
            raise TacitError(f"{entry} lies in no class: move it into {folder.name}/<class>/")
        files = _files(entry)
        if not files:
            raise TacitError(f"the class folder {entry} is empty: put images into it or remove it")
        yield from (_Item(file, entry.name) for file in files)


def _files(folder: Path) -> list[str]:
    """All files below a folder in order, without what is hidden or litter."""
    found = []
    for place, folders, names in os.walk(folder, onerror=_raise):
        folders[:] = [name for name in folders if not _is_litter(name)]
        found += [str(Path(place, name)) for name in names if not _is_litter(name)]
    return sorted(found)


def _raise(error: OSError) -> None:
    """What is not there has no files; what may not be read is no empty folder."""
    if not isinstance(error, FileNotFoundError):
        raise TacitError(f"{error.filename} can not be read ({error.strerror}): change its permissions") from error


def _check_folders(path: Path, known: set[str], test: set[str]) -> None:
    if not test:
        raise TacitError(f"{path / 'test'} is empty: put images into test/<class>/ or remove it")
    if strangers := sorted(test - known):
        raise TacitError(f"{path} has the class {strangers[0]} in test but not in labeled: add images of it there")


def _rows(path: Path, *, some_labeled: bool = True) -> list[_Item]:
    if not path.is_file():
        raise TacitError(f"there is no file {path}: check the path")
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            _check_columns(path, reader.fieldnames)
            items = [_item(path, row, reader.line_num) for row in reader]
    except (csv.Error, UnicodeDecodeError, OSError):
        raise TacitError(f"{path} can not be read: save it as CSV in UTF-8") from None
    _check_rows(path, items, some_labeled)
    return items


def _check_columns(path: Path, names: object) -> None:
    columns = list(names) if isinstance(names, list) else []
    if len(columns) == 1 and (mark := next((mark for mark in (";", "\t") if mark in columns[0]), None)):
        raise TacitError(f"{path} is separated by {mark!r}: use commas")
    for name in columns:
        near = _nearest(name, set(_COLUMNS) - set(columns))
        if near and name not in _COLUMNS:
            raise TacitError(f"{path} has a column {name!r} in line 1: rename it to {near}, or to something unlike it")
    for name in ("path", "label"):
        if name not in columns:
            raise TacitError(f"{path} has no column {name} in line 1: begin it with path,label")


def _item(path: Path, row: dict[str | None, str | None], line: int) -> _Item:
    if None in row or None in row.values():
        raise _line(path, line, "has more or fewer fields than line 1: give it as many, with quotes around commas")
    text = {name: (value or "").strip() for name, value in row.items()}
    if text["label"] == str(UNLABELED):
        raise _line(path, line, f"has the label {UNLABELED}: leave it empty for unlabeled")
    if text.get("split", "train") not in ("train", "test"):
        raise _line(path, line, f"has the split '{text['split']}': write train or test")
    test, group = text.get("split") == "test", text.get("group", "")
    item = _Item(str(path.parent / text["path"]), text["label"], test, group, line)
    if not text["path"] or not Path(item.path).is_file():
        raise _line(path, line, f"names {item.path}, where there is no file: mend the path, relative to the CSV file")
    if item.test and not item.label:
        raise _line(path, line, "has a test image without a label: label it, or make its split train")
    if "group" in text and not item.group and not item.test:
        raise _line(path, line, "has no group: name one in every training row, or leave the column out")
    return item


def _check_rows(path: Path, items: list[_Item], some_labeled: bool) -> None:
    first: dict[str, int] = {}
    for item in items:
        before = first.setdefault(os.path.normpath(item.path), item.line)
        if before != item.line:
            raise _line(path, item.line, f"names the same file as line {before}: keep one of them")
    if some_labeled and not any(item.label and not item.test for item in items):
        raise TacitError(f"{path} has no training row with a label: give at least some images of every class one")


def _line(path: Path, line: int, what: str) -> TacitError:
    return TacitError(f"line {line} of {path} {what}")


def _source(path: Path, items: list[_Item], scale: Scale, remedy: str) -> Source:
    classes = _ordered({item.label for item in items if item.label})
    if not classes:
        raise TacitError(f"{path} has no labeled image: put images into labeled/<class>/")
    return _arrays(path, items, classes, _parts(path, items, _numbers(items, classes), remedy), scale)


def _numbers(items: list[_Item], classes: tuple[str, ...]) -> Labels:
    number = {"": UNLABELED} | {name: index for index, name in enumerate(classes)}
    return np.array([number[item.label] for item in items], dtype=np.int64)


def _arrays(
    path: Path, items: list[_Item], classes: tuple[str, ...], parts: tuple[Labels, Labels], scale: Scale
) -> Source:
    """The images themselves, those of the training and of the test part."""
    (train, test), y = parts, _numbers(items, classes)
    x, note, bits = images.load([item.path for item in items], images.open_file, scale)
    groups = _groups([items[row].group for row in train])
    pairs = (x[train], y[train]), (x[test], y[test])
    return image_source(str(path), *pairs, classes, flip=False, groups=groups, note=note, bits=bits)


def _ordered(names: set[str]) -> tuple[str, ...]:
    """By name, or as numbers where all are whole numbers."""
    numbers = all(re.fullmatch(r"[+-]?[0-9]+", name) for name in names)
    return tuple(sorted(names, key=lambda name: (int(name) if numbers else 0, name)))


def _parts(path: Path, items: list[_Item], y: Labels, remedy: str) -> tuple[Labels, Labels]:
    test = np.array([item.test for item in items])
    if test.any():
        return np.flatnonzero(~test), np.flatnonzero(test)
    return hold_out(path, y, remedy)


def _groups(names: list[str]) -> Labels | None:
    """The number of each one's group, groups in the order of their names; None without groups."""
    if not all(names):
        return None
    return np.unique(names, return_inverse=True)[1].astype(np.int64)
