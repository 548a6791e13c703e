"""The columns and rows of a CSV or Parquet file. Nothing else opens such files."""

import csv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tacit.errors import TacitError

BATCH = 1024  # rows of a Parquet file that are read together


class Row(NamedTuple):
    """One row of a table; a cell of a CSV file is text, and an empty one of a Parquet file is "" too."""

    number: int  # the line in a CSV file, from 1; the row in a Parquet file, from 0
    where: str  # the same in words
    cells: list[Any]


class TableFile(NamedTuple):
    """A table whose rows are read as they are taken, so that a long one needs little memory."""

    columns: list[str]
    rows: Iterator[Row]


def open_table(path: Path, *, pad: bool = False) -> TableFile:
    """The table in a file: Parquet if its name says so, else CSV.

    A CSV row with more or fewer fields than the first is refused; with `pad`, it is cut, or filled with empty cells.
    """
    if path.suffix.lower() == ".parquet":
        return _parquet(path)
    with _readable(path, "save it as CSV in UTF-8"), path.open(newline="", encoding="utf-8-sig") as file:
        columns = next(csv.reader(file), [])
    if len(columns) == 1 and (mark := next((mark for mark in (";", "\t") if mark in columns[0]), None)):
        raise TacitError(f"{path} is separated by {mark!r}", "use commas", code="data.wrong-separator")
    return TableFile(columns, _csv_rows(path, len(columns), pad))


def _csv_rows(path: Path, width: int, pad: bool) -> Iterator[Row]:
    with _readable(path, "save it as CSV in UTF-8"), path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(file)
        next(reader, None)
        for cells in reader:
            where = f"line {reader.line_num} of {path}"
            if cells and len(cells) != width and not pad:
                raise TacitError(
                    f"{where} has more or fewer fields than line 1",
                    "give it the same number, with quotes around commas",
                    code="data.wrong-field-count",
                )
            if cells:
                yield Row(reader.line_num, where, (cells + [""] * width)[:width])


def _parquet(path: Path) -> TableFile:
    try:
        from pyarrow import parquet
    except ImportError:
        problem, remedy = f"reading {path} needs pyarrow", "run `pip install 'tacit[parquet]'`, or save it as .csv"
        raise TacitError(problem, remedy, code="data.needs-pyarrow") from None
    with _readable(path, "save it as Parquet again"):
        file = parquet.ParquetFile(path)
        return TableFile(list(file.schema_arrow.names), _parquet_rows(path, file))


def _parquet_rows(path: Path, file: Any) -> Iterator[Row]:
    with _readable(path, "save it as Parquet again"):
        cells = (
            ["" if value is None else value for value in row]
            for batch in file.iter_batches(batch_size=BATCH)
            for row in zip(*(column.to_pylist() for column in batch.columns), strict=True)
        )
        yield from (Row(number, f"row {number} of {path}", row) for number, row in enumerate(cells))


@contextmanager
def _readable(path: Path, remedy: str) -> Iterator[None]:
    """Turn an error while reading a file into one sentence."""
    try:
        yield
    except (OSError, ValueError, csv.Error) as error:  # pyarrow's errors are among these
        raise TacitError(f"{path} cannot be read", remedy, code="data.unreadable-file") from error
