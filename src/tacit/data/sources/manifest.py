"""A user's images in a CSV file: columns `path` and `label`, and optionally `split` and `group`."""

import os
from pathlib import Path

from tacit.data.sources.arrays import Source
from tacit.data.sources.image_files import ImageFile, to_part, to_source
from tacit.data.sources.images import Scale
from tacit.data.sources.names import nearest
from tacit.data.sources.table_file import Row, open_table
from tacit.errors import TacitError
from tacit.federation import UNLABELED

_COLUMNS = ("path", "label", "split", "group")


def from_manifest(path: Path, scale: Scale) -> Source:
    """The images that a CSV file lists.

    Paths are relative to the file; other columns are ignored. An empty label means unlabeled. The split is train or
    test; without test rows 20 % of the labeled images become the test set, always the same ones. The group says who
    made an image.
    """
    files = _rows(path)
    known = {file.label for file in files if not file.test}
    for file in files:
        if file.test and file.label not in known:
            raise TacitError(
                f"line {file.line} of {path} has the label {file.label}, which no training row has",
                "add training rows with that label",
                code="data.class-only-in-test",
            )
    return to_source(path, files, scale, "add rows whose split is test")


def part_of_manifest(path: Path, classes: tuple[str, ...], scale: Scale) -> Source:
    """The data of one member of a federation with these classes, in a CSV file as `from_manifest` reads it."""
    return to_part(path, _rows(path, some_labeled=False), classes, scale)


def _rows(path: Path, *, some_labeled: bool = True) -> list[ImageFile]:
    if not path.is_file():
        raise TacitError(f"there is no file {path}", "check the path", code="data.no-file")
    columns, found = open_table(path)
    _check_columns(path, columns)
    rows = [_row(path, columns, row) for row in found]
    _check_rows(path, rows, some_labeled)
    return rows


def _check_columns(path: Path, columns: list[str]) -> None:
    for name in columns:
        near = nearest(name, set(_COLUMNS) - set(columns))
        if near and name not in _COLUMNS:
            raise TacitError(
                f"{path} has a column {name!r} in line 1",
                f"rename it to {near}, or pick a clearly different name",
                code="data.misspelt-column",
            )
    for name in ("path", "label"):
        if name not in columns:
            remedy = "start with the header `path,label`, or add a `label` column to a numeric table"
            raise TacitError(f"{path} has no column {name} in line 1", remedy, code="data.missing-column")


def _row(path: Path, columns: list[str], row: Row) -> ImageFile:
    where = row.where
    text = {name: str(cell).strip() for name, cell in zip(columns, row.cells, strict=True)}
    if text["label"] == str(UNLABELED):
        problem = f"{where} has the label {UNLABELED}"
        raise TacitError(problem, "leave it empty for unlabeled", code="data.minus-one-label")
    if text.get("split", "train") not in ("train", "test"):
        raise TacitError(f"{where} has the split '{text['split']}'", "write train or test", code="data.bad-split-value")
    test, group = text.get("split") == "test", text.get("group", "")
    file = ImageFile(str(path.parent / text["path"]), text["label"], test, group, row.number)
    if not text["path"] or not Path(file.path).is_file():
        raise TacitError(
            f"{where} names {file.path}, and there is no such file",
            "correct the path, relative to the CSV file",
            code="data.missing-image",
        )
    if file.test and not file.label:
        raise TacitError(
            f"{where} has a test image without a label",
            "label it, or make its split train",
            code="data.unlabeled-test-image",
        )
    if "group" in text and not file.group and not file.test:
        raise TacitError(
            f"{where} has no group",
            "name one in every training row, or leave out the column",
            code="data.missing-group",
        )
    return file


def _check_rows(path: Path, files: list[ImageFile], some_labeled: bool) -> None:
    first: dict[str, int] = {}
    for file in files:
        before = first.setdefault(os.path.normpath(file.path), file.line)
        if before != file.line:
            problem = f"line {file.line} of {path} names the same file as line {before}"
            raise TacitError(problem, "remove one of them", code="data.duplicate-image")
    if some_labeled and not any(file.label and not file.test for file in files):
        raise TacitError(
            f"{path} has no training row with a label",
            "label at least some images of every class",
            code="data.no-labels",
        )
