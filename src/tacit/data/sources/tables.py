"""A user's table of numbers, as CSV or Parquet: a column `label`, optionally `split` and `group`, and features."""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tacit.data.sources.arrays import Floats, Labels, Source, hold_out, hold_out_groups, vector_source
from tacit.data.sources.names import group_numbers, label_numbers, ordered, refuse_unknown
from tacit.data.sources.table_file import open_table
from tacit.errors import TacitError
from tacit.federation import UNLABELED

_NAMES = ("label", "split", "group")  # columns that are no features
_MISSING = {"", "na", "n/a", "nan", "null", "none", "?"}


@dataclass(frozen=True, eq=False)
class Table:
    """The rows of a table: features, labels ("" when unknown), groups ("" without), and which are for testing."""

    features: tuple[str, ...]
    x: Floats
    labels: list[str]
    groups: list[str]
    test: list[bool]


def is_table(path: Path) -> bool:
    """Whether a file is a table: Parquet, or CSV with a column label, none called path, another one, and rows."""
    if path.suffix == ".parquet":
        return True
    try:
        columns, rows = open_table(path, pad=True)
        if "label" not in columns or next(rows, None) is None:
            return False
    except TacitError:
        return False  # the reader of manifests reports it
    return not any(name.strip().lower() == "path" for name in columns) and bool(set(columns) - set(_NAMES))


def from_table(path: Path) -> Source:
    """The rows of a table as vectors.

    An empty label means unlabeled. The split is train or test; without test rows 20 % of the labeled rows become the
    test set, always the same ones, or whole groups if there is a column group. A group is never divided.
    """
    table = _read(path)
    classes = ordered({label for label, test in zip(table.labels, table.test, strict=True) if label and not test})
    if not classes:
        problem, remedy = f"{path} has no training row with a label", "label at least some rows of every class"
        raise TacitError(problem, remedy, code="data.no-labels")
    for label, test in zip(table.labels, table.test, strict=True):
        if test and label not in classes:
            problem = f"{path} has the label {label} in test rows only"
            raise TacitError(problem, "add training rows with that label", code="data.class-only-in-test")
    y, groups = label_numbers(table.labels, classes), group_numbers(table.groups)
    return _source(
        path, table, classes, y, divide(path, y, np.array(table.test), groups, "add rows whose split is test")
    )


def part_of_table(path: Path, classes: tuple[str, ...]) -> Source:
    """The rows of one member of a federation with these classes; nothing is held out for testing."""
    table = _read(path)
    refuse_unknown(path, set(table.labels), classes)
    test = np.array(table.test)
    if test.all():
        raise TacitError(f"{path} has no training rows", "add rows whose split is train", code="data.no-training-rows")
    y = label_numbers(table.labels, classes)
    return _source(path, table, classes, y, (np.flatnonzero(~test), np.flatnonzero(test)))


def divide(path: Path, y: Labels, test: Any, groups: Labels | None, remedy: str) -> tuple[Labels, Labels]:
    """Positions of the training and the test part; refuses a group in both, and holds some out without test rows."""
    if not test.any():
        return hold_out(path, y, remedy) if groups is None else hold_out_groups(path, y, groups, remedy)
    if groups is not None and len(both := np.intersect1d(groups[test], groups[~test])):
        problem = f"{path} has {len(both)} groups with rows for training and rows for testing"
        raise TacitError(problem, "give all rows of a group the same split", code="data.group-on-both-sides")
    return np.flatnonzero(~test), np.flatnonzero(test)


def as_features(x: Any, what: str) -> Floats:
    """(n, d) numbers as float32; refuses missing values and infinities, and says where. `what` holds them."""
    with np.errstate(over="ignore"):
        found: Floats = np.asarray(x).astype(np.float32)
    for wrong, kind in ((np.isnan(found), "missing"), (np.isinf(found), "infinite")):
        if wrong.any():
            row, column = np.argwhere(wrong)[0].tolist()
            raise _bad_value(kind, f"row {row} of {what}", f"column {column}", int(wrong.sum()))
    return found


def to_number(value: Any, where: str, column: str) -> float:
    """A finite number that float32 can hold."""
    if isinstance(value, str) and value.strip().lower() in _MISSING:
        raise _bad_value("missing", where, f"column {column}")
    try:
        number = float("" if isinstance(value, str) and "_" in value else value)
    except (TypeError, ValueError):
        raise TacitError(
            f"{where} has {value!r} in column {column}, where a number should be",
            "write a number, or remove the column; a column of image files is called path",
            code="data.not-a-number",
        ) from None
    if math.isnan(number):
        raise _bad_value("missing", where, f"column {column}")
    if abs(number) > float(np.finfo(np.float32).max):
        raise _bad_value("infinite", where, f"column {column}")
    return number


def _source(path: Path, table: Table, classes: tuple[str, ...], y: Labels, parts: tuple[Labels, Labels]) -> Source:
    train, test = parts
    groups = group_numbers([table.groups[row] for row in train])
    pairs = (table.x[train], y[train]), (table.x[test], y[test])
    source = vector_source(str(path), *pairs, classes, table.features, groups)
    held_out = not any(table.test) and len(test) > 0
    tested = group_numbers([table.groups[row] for row in test]) if held_out else None
    return replace(source, held_out=held_out, test_groups=None if tested is None else torch.from_numpy(tested))


def _read(path: Path) -> Table:
    if not path.is_file():
        raise TacitError(f"there is no file {path}", "check the path", code="data.no-file")
    names, rows = open_table(path)
    features = _features(path, names)
    columns = {name: names.index(name) for name in names}
    x, labels, groups, test = [], [], [], []
    for _, where, row in rows:
        x.append([to_number(row[columns[name]], where, name) for name in features])
        text = {name: str(row[columns[name]]).strip() if name in columns else "" for name in _NAMES}
        _check_names(where, text, "group" in columns)
        labels.append(text["label"])
        groups.append(text["group"])
        test.append(text["split"] == "test")
    if not x:
        raise TacitError(f"{path} has no rows", "add rows of numbers", code="data.no-rows")
    return Table(features, np.array(x, dtype=np.float32), labels, groups, test)


def _features(path: Path, names: list[str]) -> tuple[str, ...]:
    if twice := sorted({name for name in names if names.count(name) > 1 or not name.strip()}):
        problem = f"{path} has two columns {twice[0]!r}, or one without a name"
        raise TacitError(problem, "name every column differently", code="data.duplicate-column")
    for name in names:
        if name not in _NAMES and name.strip().lower() in _NAMES:
            problem = f"{path} has a column {name!r}"
            raise TacitError(problem, f"rename it to {name.strip().lower()}", code="data.misspelt-column")
    if "label" not in names:
        problem = f"{path} has no column label"
        raise TacitError(problem, "add one, empty where the label is unknown", code="data.missing-column")
    features = tuple(name for name in names if name not in _NAMES)
    if not features:
        raise TacitError(f"{path} has no column of numbers", "add some", code="data.missing-column")
    return features


def _check_names(where: str, text: dict[str, str], grouped: bool) -> None:
    if text["label"] == str(UNLABELED):
        problem = f"{where} has the label {UNLABELED}"
        raise TacitError(problem, "leave it empty for unlabeled", code="data.minus-one-label")
    if text["split"] not in ("", "train", "test"):
        raise TacitError(f"{where} has the split '{text['split']}'", "write train or test", code="data.bad-split-value")
    if text["split"] == "test" and not text["label"]:
        problem = f"{where} is a test row without a label"
        raise TacitError(problem, "label it, or make its split train", code="data.unlabeled-test-row")
    if grouped and not text["group"]:
        raise TacitError(
            f"{where} has no group", "name one in every row, or leave out the column", code="data.missing-group"
        )


def _bad_value(kind: str, where: str, column: str, count: int = 1) -> TacitError:
    more = f", one of {count:,} such values" if count > 1 else ""
    if kind == "missing":
        problem = f"{where} has no value in {column}{more}"
        return TacitError(problem, "fill it in, or remove the row or the column", code="data.missing-value")
    problem = f"{where} has an infinite value in {column}{more}"
    return TacitError(problem, "replace it by a finite number", code="data.infinite-value")
