"""A user's images in folders: `labeled/<class>/…`, `unlabeled/…` and `test/<class>/…`."""

import os
from collections.abc import Iterator
from pathlib import Path

from PIL import Image

from tacit.data.sources import dicom
from tacit.data.sources.arrays import Source
from tacit.data.sources.image_files import ImageFile, to_part, to_source
from tacit.data.sources.images import Scale
from tacit.data.sources.names import nearest
from tacit.errors import TacitError

PARTS = ("labeled", "unlabeled", "test")  # the folders that are read
_SYSTEM_FILES = {"thumbs.db", "desktop.ini", "__macosx"}  # of Windows and macOS; hidden files are skipped too
_LABELED_ELSEWHERE = ("train", "training")  # other usual names of the folder labeled
_NAMED = 3  # folders named in an error message


def from_folder(path: Path, scale: Scale) -> Source:
    """The images in `labeled/<class>/…`, `unlabeled/…` and, if it exists, `test/<class>/…`.

    Classes are sorted by name, or as numbers if all are numbers. Without a folder `test`, 20 % of the labeled images
    become the test set, always the same ones. Images are never flipped: a folder does not say whether flips preserve
    labels. See `images.load` for size and colours.
    """
    if not path.is_dir():
        raise _missing(path)
    if not (path / "labeled").is_dir():
        raise TacitError(f"{path} has no folder labeled", _labeled_remedy(path), code="data.no-labeled-folder")
    _refuse_unused(path)
    files = list(_by_class(path / "labeled"))
    files += [ImageFile(file, "") for file in _files(path / "unlabeled")]
    if (path / "test").is_dir():
        test = [ImageFile(file.path, file.label, test=True) for file in _by_class(path / "test")]
        _check_test(path, {file.label for file in files}, {file.label for file in test})
        files += test
    return to_source(path, files, scale, "add a folder test with a folder for each class")


def part_of_folder(path: Path, classes: tuple[str, ...], scale: Scale) -> Source:
    """The data of one member of a federation with these classes, in a folder as `from_folder` reads it.

    Classes may be missing, and so may the folder `labeled`. Nothing is held out for testing.
    """
    if not path.is_dir():
        raise _missing(path)
    if not any((path / name).is_dir() for name in ("labeled", "unlabeled")):
        problem = f"{path} has no folder labeled or unlabeled"
        raise TacitError(problem, _labeled_remedy(path), code="data.no-labeled-folder")
    _refuse_unused(path)
    labeled, test = ([*_by_class(path / name)] if (path / name).is_dir() else [] for name in ("labeled", "test"))
    files = labeled + [ImageFile(file, "") for file in _files(path / "unlabeled")]
    return to_part(path, files + [ImageFile(file.path, file.label, test=True) for file in test], classes, scale)


def _missing(path: Path) -> TacitError:
    return TacitError(f"there is no folder {path}", "check the path", code="data.no-folder")


def _labeled_remedy(path: Path) -> str:
    """What to do about a folder without `labeled`, depending on what it has instead."""
    folders = sorted(entry.name for entry in path.iterdir() if entry.is_dir() and not is_system_file(entry.name))
    for name in folders:
        if name.lower() in _LABELED_ELSEWHERE or nearest(name, PARTS) == "labeled":
            return f"rename {name} to labeled"
    classes = [name for name in folders if name not in ("unlabeled", "test") and _has_images(path / name)]
    if not classes:
        return "put images into labeled/<class>/ and unlabeled/"
    more = ", …" if len(classes) > _NAMED else ""
    return f"move {', '.join(classes[:_NAMED])}{more} into labeled/"


def _refuse_unused(path: Path) -> None:
    """Refuse images in a folder that is not read, so that none is left out in silence."""
    for entry in sorted(path.iterdir()):
        if entry.name in PARTS or is_system_file(entry.name) or not entry.is_dir() or not _images_below(entry):
            continue
        near = nearest(entry.name, PARTS)
        remedy = f"rename {entry.name} to {near}" if near else f"move {entry.name} into one of them, or elsewhere"
        problem = f"only the folders {', '.join(PARTS)} of {path} are read"
        raise TacitError(problem, remedy, code="data.unused-folder")


def _images_below(folder: Path) -> bool:
    return any(Path(file).suffix.lower() in _known() for file in _files(folder))


def _has_images(folder: Path) -> bool:
    known = _known()
    return any(file.suffix.lower() in known for file in folder.glob("*.*") if not is_system_file(file.name))


def _known() -> set[str]:
    """The suffixes of images."""
    return {*Image.registered_extensions(), dicom.SUFFIX}


def is_system_file(name: str) -> bool:
    """Whether a file is hidden, or one that Windows or macOS leave behind."""
    return name.startswith(".") or name.lower() in _SYSTEM_FILES


def _by_class(folder: Path) -> Iterator[ImageFile]:
    """The images in the class folders of a folder, sorted by class and file name."""
    for entry in sorted(folder.iterdir()):
        if is_system_file(entry.name):
            continue
        if not entry.is_dir():
            raise TacitError(
                f"{entry} is in no class folder",
                f"move it into {folder.name}/<class>/",
                code="data.image-without-class",
            )
        files = _files(entry)
        if not files:
            raise TacitError(
                f"the class folder {entry} is empty", "put images into it or remove it", code="data.empty-class"
            )
        yield from (ImageFile(file, entry.name) for file in files)


def _files(folder: Path) -> list[str]:
    """All files below a folder in order, without hidden and system files."""
    found = []
    for place, folders, names in os.walk(folder, onerror=_raise):
        folders[:] = [name for name in folders if not is_system_file(name)]
        found += [str(Path(place, name)) for name in names if not is_system_file(name)]
    return sorted(found)


def _raise(error: OSError) -> None:
    """A missing folder has no files, but an unreadable one must not count as empty."""
    if not isinstance(error, FileNotFoundError):
        problem = f"{error.filename} cannot be read ({error.strerror})"
        raise TacitError(problem, "change its permissions", code="data.unreadable-folder") from error


def _check_test(path: Path, known: set[str], test: set[str]) -> None:
    if not test:
        problem = f"{path / 'test'} is empty"
        raise TacitError(problem, "put images into test/<class>/ or remove it", code="data.empty-test")
    if unknown := sorted(test - known):
        raise TacitError(
            f"{path} has the class {unknown[0]} in test but not in labeled",
            f"add images to labeled/{unknown[0]}/",
            code="data.class-only-in-test",
        )
