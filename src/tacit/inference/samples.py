"""Samples to predict, from paths: image files, folders, globs, CSV, Parquet and array files, a block at a time."""

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tacit.data.sources import npz
from tacit.data.sources.table_file import open_table
from tacit.errors import TacitError
from tacit.inference.images import ImageReader, image_files
from tacit.inference.readers import Reader
from tacit.inference.text import TextReader
from tacit.inference.vectors import VectorReader

BLOCK = 64  # samples that are read and predicted together

Named = tuple[str, Any]  # the name of a sample, and what its reader turns into a sample


class Block(NamedTuple):
    """Some samples by name, not read yet."""

    names: tuple[str, ...]
    items: tuple[Any, ...]


def blocks(paths: Sequence[str], reader: Reader, size: int = BLOCK) -> Iterator[Block]:
    """The samples at these paths, in order; memory holds one block, and the array files among them."""
    named = (sample for path in paths for place in _places(path) for sample in _at(place, reader))
    while some := list(islice(named, size)):
        names, items = zip(*some, strict=True)
        yield Block(names, items)


def _places(path: str) -> list[Path]:
    """What a path stands for: itself, or what matches it as a pattern."""
    if Path(path).exists():
        return [Path(path)]
    top = Path(path).anchor
    try:
        found = sorted(Path(top).glob(path.removeprefix(top)))
    except ValueError:  # `**` within a name
        found = []
    if not found:
        raise TacitError(f"nothing is at {path}", "check the path", code="predict.no-such-path")
    return found


def _at(path: Path, reader: Reader) -> Iterator[Named]:
    if path.is_dir():
        if not isinstance(reader, ImageReader):
            raise TacitError(f"{path} is a folder", _files(reader), code="predict.is-folder")
        return ((file, file) for file in image_files(path))
    suffix = path.suffix.lower()
    if suffix in (".npz", ".npy"):
        return _arrays(path, reader)
    if suffix in (".csv", ".parquet"):
        return _rows(path, reader)
    if isinstance(reader, ImageReader):
        return iter([(str(path), str(path))])
    if isinstance(reader, TextReader):
        return _lines(path)
    raise TacitError(f"{path} is no table", _files(reader), code="predict.wrong-file")


def _files(reader: Reader) -> str:
    tables = "a CSV, Parquet or .npz file"
    return (
        f"give a .txt file with one text per line, or {tables}" if isinstance(reader, TextReader) else f"give {tables}"
    )


def _lines(path: Path) -> Iterator[Named]:
    """The lines of a text file."""
    try:
        with path.open(encoding="utf-8") as file:
            for row, line in enumerate(file):
                yield f"{path}#{row}", line.rstrip("\n")
    except (OSError, ValueError) as error:
        raise TacitError(f"{path} cannot be read", "save it as text in UTF-8", code="data.unreadable-file") from error


def _arrays(path: Path, reader: Reader) -> Iterator[Named]:
    """The rows of the array x, or of the only array."""
    if path.suffix.lower() == ".npy":
        try:
            x = np.load(path, allow_pickle=False)
        except (OSError, ValueError, EOFError):
            raise TacitError(f"{path} cannot be read", "write it again", code="data.unreadable-file") from None
    else:
        arrays = npz.read(path, "write it again with numpy.savez(path, x=…)")
        if "x" not in arrays and len(arrays) != 1:
            problem = f"{path} has no array x"
            raise TacitError(problem, "add it with numpy.savez(path, x=…)", code="data.missing-array")
        x = arrays.get("x", next(iter(arrays.values())))
        if "features" in arrays and isinstance(reader, VectorReader):
            x = reader.in_order(x, [str(name) for name in arrays["features"].reshape(-1)], str(path))
    for start in range(0, len(x), BLOCK):
        for row, sample in enumerate(reader.values(x[start : start + BLOCK]), start):
            yield f"{path}#{row}", sample.numpy()  # plain arrays travel to other processes as bytes


def _rows(path: Path, reader: Reader) -> Iterator[Named]:
    """The rows of a table: image files in a column path, texts in a column text, or features."""
    names, rows = open_table(path, pad=True)  # a short row lacks values, which is reported for that row
    if isinstance(reader, VectorReader):
        places = reader.columns(names, str(path))
        yield from ((f"{path}#{row}", [each.cells[place] for place in places]) for row, each in enumerate(rows))
        return
    column = "text" if isinstance(reader, TextReader) else "path"
    if column not in names:
        problem = f"{path} has no column {column}"
        raise TacitError(problem, f"rename the sample column to `{column}`", code="predict.missing-column")
    place = names.index(column)
    for row, each in enumerate(rows):
        cell = str(each.cells[place])
        yield (f"{path}#{row}", cell) if column == "text" else (str(path.parent / cell),) * 2
