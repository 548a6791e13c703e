"""One reader of CSV and Parquet files, for training, prediction and evaluation."""

import sys
from itertools import islice
from pathlib import Path

import pytest

from tacit.data.sources.table_file import open_table
from tests.refusals import refused


def written(folder: Path, text: str) -> Path:
    path = folder / "t.csv"
    path.write_bytes(text.encode())
    return path


def test_rows_come_with_their_line_and_empty_lines_are_skipped(tmp_path: Path) -> None:
    columns, rows = open_table(written(tmp_path, '\ufeffa,b\n1,"x\ny"\n\n2,z\n'))
    assert columns == ["a", "b"]
    assert [(row.number, row.cells) for row in rows] == [(3, ["1", "x\ny"]), (5, ["2", "z"])]


def test_a_row_of_another_width_is_refused_or_padded(tmp_path: Path) -> None:
    path = written(tmp_path, "a,b\n1\n1,2,3\n")
    assert [row.cells for row in open_table(path, pad=True).rows] == [["1", ""], ["1", "2"]]
    with refused("data.wrong-field-count") as caught:
        list(open_table(path).rows)
    assert "line 2" in caught.error.problem


def test_rows_are_read_as_they_are_taken(tmp_path: Path) -> None:
    path = written(tmp_path, "a,b\n1,2\n1,2,3\n")
    assert [row.cells for row in islice(open_table(path).rows, 1)] == [["1", "2"]]


@pytest.mark.parametrize(
    "text, code", [("a;b\n1;2\n", "data.wrong-separator"), ("a\x00\udcff", "data.unreadable-file")]
)
def test_what_is_no_table_is_refused(tmp_path: Path, text: str, code: str) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(text.encode(errors="surrogateescape"))
    with refused(code):
        list(open_table(path).rows)


def test_without_pyarrow_the_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with refused("data.needs-pyarrow") as caught:
        open_table(tmp_path / "t.parquet")
    assert "tacit[parquet]" in caught.error.remedy


def test_a_parquet_file_has_empty_cells_where_values_are_missing(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install tacit[parquet]")
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"a": [1.5, None], "b": ["x", None]}), tmp_path / "t.parquet")
    columns, rows = open_table(tmp_path / "t.parquet")
    assert columns == ["a", "b"]
    assert [(row.where, row.cells) for row in rows] == [
        (f"row 0 of {tmp_path / 't.parquet'}", [1.5, "x"]),
        (f"row 1 of {tmp_path / 't.parquet'}", ["", ""]),
    ]
    (tmp_path / "t.parquet").write_bytes(b"no table")
    with refused("data.unreadable-file"):
        open_table(tmp_path / "t.parquet")
