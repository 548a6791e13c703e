"""Tables of numbers are read as vectors, or refused with a remedy."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tacit.data.inputs import VectorInputs
from tacit.data.sources import Source, load, load_part
from tests.data.files import load_refused, pixels
from tests.data.kinds import pictured
from tests.data.tables import cancer, cancer_csv, cancer_npz, digits, write_csv
from tests.refusals import refused

PLAIN = [[n, n % 7, "ab"[n % 2]] for n in range(20)]


def table(folder: Path, names: str = "age,height,label", rows: Any = PLAIN) -> str:
    return str(write_csv(folder / "mine.csv", names.split(","), rows))


def vectors(source: Source) -> VectorInputs:
    assert isinstance(source.inputs, VectorInputs)
    return source.inputs


def test_csv_and_npz_give_the_same_vectors(tmp_path: Path) -> None:
    (one, two) = (load(str(path)) for path in (cancer_csv(tmp_path / "a.csv"), cancer_npz(tmp_path / "a.npz")))
    assert torch.equal(one.x, two.x)
    assert torch.equal(one.y, two.y)
    assert torch.equal(one.x_test, two.x_test)
    assert one.classes == two.classes == ("benign", "malignant")
    assert one.inputs == two.inputs
    assert (one.x.dtype, one.inputs.shape, len(one.y) + len(one.y_test)) == (torch.float32, (30,), 569)
    assert vectors(one).features[:2] == ("mean radius", "mean texture")


def test_the_statistics_are_those_of_the_training_rows(tmp_path: Path) -> None:
    x, y = digits()
    np.savez(tmp_path / "digits.npz", x=x, y=y)
    source = load(str(tmp_path / "digits.npz"))
    rows, inputs = source.x.double(), vectors(source)
    assert inputs.mean == pytest.approx(rows.mean(0).tolist())
    constant = rows.std(0, correction=0) == 0
    assert constant.any()
    expected = torch.where(constant, torch.ones(64, dtype=torch.float64), rows.std(0, correction=0))
    assert inputs.std == pytest.approx(expected.tolist())
    assert inputs.features[:2] == ("x0", "x1")


def test_an_empty_label_is_unlabeled_and_split_names_the_test_rows(tmp_path: Path) -> None:
    rows = [[n, "" if n % 3 == 0 else "ab"[n % 2], "test" if n > 15 and n % 3 else "train"] for n in range(20)]
    source = load(table(tmp_path, "age,label,split", rows))
    assert source.x_test.reshape(-1).tolist() == [16, 17, 19]
    assert int((source.y == -1).sum()) == 7
    assert vectors(source).features == ("age",)


def test_groups_are_held_out_whole(tmp_path: Path) -> None:
    rows = [[n, n // 5, "ab"[n % 2]] for n in range(100)]
    source = load(table(tmp_path, "age,group,label", rows))
    assert source.groups is not None
    assert source.whole_groups
    train, test = ({int(n) // 5 for n in part.reshape(-1)} for part in (source.x, source.x_test))
    assert not train & test
    assert len(source.x_test) == 20


def test_floats_and_16_bit_numbers_of_a_npz_file_are_images(tmp_path: Path) -> None:
    x, y = pixels(20, 6, 5), np.arange(20) % 2
    for name, given, bits in (("f", x / 255, None), ("d", x.astype(np.uint16) * 16, 12), ("u", x, None)):
        np.savez(tmp_path / f"{name}.npz", x=given, y=y)
        source = load(str(tmp_path / f"{name}.npz"))
        assert (source.inputs.shape, source.inputs.bits) == ((1, 6, 5), bits)
        assert pictured(source).mean[0] == pytest.approx(float(x.mean()) / 255, abs=0.05)
        assert bool(source.note) == (name != "u")
    np.savez(tmp_path / "g.npz", x=x / 100, y=y)
    load_refused(tmp_path / "g.npz", "data.float-image-range")


def test_class_names_of_a_npz_file_may_be_strings(tmp_path: Path) -> None:
    y = np.array(["cat", "dog", "", "dog"] * 10)
    np.savez(tmp_path / "a.npz", x=pixels(40, 6, 6), y=y)
    source = load(str(tmp_path / "a.npz"))
    assert source.classes == ("cat", "dog")
    assert int((source.y == -1).sum()) == 10
    part = load_part(tmp_path / "a.npz", ("ant", "cat", "dog"))
    assert torch.bincount(part.y + 1).tolist() == [10, 0, 10, 20]


def changed(row: int, column: int, value: Any) -> Any:
    return [[value if (n, c) == (row, column) else old for c, old in enumerate(each)] for n, each in enumerate(PLAIN)]


@pytest.mark.parametrize(
    "names, rows, code, mentions",
    [
        ("age,height,label", changed(3, 0, ""), "data.missing-value", "line 5"),
        ("age,height,label", changed(3, 0, "NaN"), "data.missing-value", "age"),
        ("age,height,label", changed(3, 1, "tall"), "data.not-a-number", "'tall' in column height"),
        ("age,height,label", changed(3, 1, "1_000"), "data.not-a-number", "height"),
        ("age,height,label", changed(3, 1, "-inf"), "data.infinite-value", "height"),
        ("age,height,label", changed(3, 1, "1e300"), "data.infinite-value", "height"),
        ("age,height,label", changed(3, 2, "-1"), "data.minus-one-label", "line 5"),
        ("age,age,label", PLAIN, "data.duplicate-column", "age"),
        ("age,Group,label", PLAIN, "data.misspelt-column", "rename it to group"),
        ("age,label", PLAIN, "data.wrong-field-count", "line 2"),
        ("age,height,label", [[*row[:2], ""] for row in PLAIN], "data.no-labels", "mine.csv"),
        ("age,group,label", changed(3, 1, ""), "data.missing-group", "line 5"),
        ("age,split,label", changed(3, 1, "dev"), "data.bad-split-value", "line 2"),
        ("age,group,label", [[*row[:1], 0, *row[2:]] for row in PLAIN], "data.too-few-groups-to-test", "mine.csv"),
    ],
)
def test_a_wrong_table_is_refused(tmp_path: Path, names: str, rows: Any, code: str, mentions: str) -> None:
    load_refused(table(tmp_path, names, rows), code, mentions)


def test_wrong_test_rows_are_refused(tmp_path: Path) -> None:
    names = "age,split,group,label"
    rows = [[n, "test" if n > 15 else "train", n % 4, "ab"[n % 2]] for n in range(20)]
    load_refused(table(tmp_path, names, rows), "data.group-on-both-sides")
    rows[18][3] = ""
    load_refused(table(tmp_path, names, rows), "data.unlabeled-test-row")
    rows[18][3] = "c"
    load_refused(table(tmp_path, names, rows), "data.class-only-in-test")
    with refused("data.fixed-size"):
        load(table(tmp_path), size=32)


def test_arrays_with_gaps_or_infinities_are_refused(tmp_path: Path) -> None:
    for value, code in ((np.nan, "data.missing-value"), (np.inf, "data.infinite-value")):
        x, labels, _ = cancer()
        x = x.copy()
        x[7, 2] = value
        np.savez(tmp_path / "a.npz", x=x, y=np.array(labels))
        load_refused(tmp_path / "a.npz", code, "row 7", "column 2")


def test_parquet_is_read_or_names_the_package_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.parquet"
    path.touch()
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    load_refused(path, "data.needs-pyarrow", "tacit[parquet]")


def test_a_parquet_file_gives_the_same_rows_as_csv(tmp_path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    x, labels, names = cancer()
    columns = {name: x[:, n] for n, name in enumerate(names)} | {"label": labels}
    parquet.write_table(pyarrow.table(columns), tmp_path / "a.parquet")
    one, two = load(str(tmp_path / "a.parquet")), load(str(cancer_csv(tmp_path / "a.csv")))
    assert torch.equal(one.x, two.x)
    assert one.inputs == two.inputs
