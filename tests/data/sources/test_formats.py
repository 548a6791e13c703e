"""Readers of file formats: what was written is read back, and a damaged file is refused by name."""

import gzip
import io
import json
import os
import pickle
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.io import savemat

from tacit.data.sources import formats
from tests.data.files import idx_bytes, pixels, python2_pickle
from tests.refusals import refused

HERE = Path("some/file")


@contextmanager
def broken(code: str, place: Path = HERE) -> Iterator[None]:
    """A file at this place must be refused with this code, in one line that names it."""
    with refused(code) as refusal:
        yield
    assert str(refusal.error).startswith(f"{place} ")
    assert "\n" not in str(refusal.error)


# IDX and gzip


@pytest.mark.parametrize("shape", [(5,), (5, 3, 4), (0, 3, 4)])
def test_an_idx_file_is_read(shape: tuple[int, ...]) -> None:
    array = pixels(*shape)
    assert np.array_equal(formats.idx(HERE, idx_bytes(array), len(shape)), array)


@pytest.mark.parametrize(
    "raw, code",
    [
        (b"", "data.wrong-format"),
        (idx_bytes(pixels(5, 3, 4))[:9], "data.wrong-format"),
        (idx_bytes(pixels(5)), "data.wrong-format"),
        (b"\0\0\x0d" + idx_bytes(pixels(5, 3, 4))[3:], "data.wrong-format"),
        (b"<html>" * 20, "data.wrong-format"),
        (idx_bytes(pixels(5, 3, 4))[:-1], "data.wrong-length"),
        (idx_bytes(pixels(5, 3, 4)) + b"!", "data.wrong-length"),
    ],
)
def test_a_wrong_idx_file_is_refused(raw: bytes, code: str) -> None:
    with broken(code):
        formats.idx(HERE, raw, 3)


def test_gzip_is_optional(tmp_path: Path) -> None:
    (tmp_path / "plain").write_bytes(b"content")
    (tmp_path / "packed.gz").write_bytes(gzip.compress(b"content"))
    assert formats.content(tmp_path / "plain") == formats.content(tmp_path / "packed.gz") == b"content"


@pytest.mark.parametrize("spoil", [lambda raw: raw[:-9], lambda raw: raw[:40] + b"?" + raw[41:], lambda raw: raw[:5]])
def test_a_damaged_gzip_file_is_refused(tmp_path: Path, spoil: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "file.gz"
    path.write_bytes(spoil(gzip.compress(pixels(1000).tobytes())))
    with broken("data.damaged-file", path):
        formats.content(path)


# CIFAR


def test_the_binary_version_of_cifar_is_read() -> None:
    x, y = pixels(4, 3, 32, 32), np.array([3, 0, 9, 1], dtype=np.uint8)
    raw = np.concatenate([y[:, None], x.reshape(4, -1)], axis=1).tobytes()
    found = formats.cifar_binary(HERE, raw, labels=1)
    assert np.array_equal(found[0], x)
    assert found[1].tolist() == y.tolist()
    fine = np.concatenate([y[:, None] * 0 + 7, y[:, None], x.reshape(4, -1)], axis=1).tobytes()
    assert formats.cifar_binary(HERE, fine, labels=2)[1].tolist() == y.tolist()
    for wrong in (b"", raw[:-1], raw + b"!"):
        with broken("data.wrong-length"):
            formats.cifar_binary(HERE, wrong, labels=1)


def batch(count: int = 4) -> dict[bytes, Any]:
    return {b"data": pixels(count, 3072), b"labels": [i % 10 for i in range(count)]}


def test_a_pickled_batch_is_read() -> None:
    x, y = formats.cifar_pickle(HERE, python2_pickle(batch()), "labels")
    assert np.array_equal(x, batch()[b"data"].reshape(4, 3, 32, 32))
    assert y.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("raw", [b"", b"no pickle", python2_pickle(batch())[:5000], pickle.dumps(os.mkdir)])
def test_another_pickle_is_refused(raw: bytes) -> None:
    with broken("data.wrong-format"):
        formats.cifar_pickle(HERE, raw, "labels")


@pytest.mark.parametrize(
    "change",
    [
        {b"data": None},
        {b"labels": None},
        {b"labels": [1, 2]},
        {b"labels": [b"a", b"b", b"c", b"d"]},
        {b"data": pixels(4, 3071)},
        {b"data": [1, 2, 3, 4]},
    ],
)
def test_a_pickle_that_is_not_a_batch_is_refused(change: dict[bytes, Any]) -> None:
    content = {name: value for name, value in (batch() | change).items() if value is not None}
    with broken("data.wrong-format"):
        formats.cifar_pickle(HERE, python2_pickle(content), "labels")


def test_class_names_are_read() -> None:
    raw = python2_pickle({b"fine_label_names": [b"apple", b"bear"]})
    assert formats.cifar_names(HERE, raw) == ["apple", "bear"]
    with broken("data.wrong-class-names"):
        formats.cifar_names(HERE, python2_pickle(batch()))


# MATLAB


def mat_bytes(**arrays: NDArray[np.generic]) -> bytes:
    file = io.BytesIO()
    savemat(file, arrays, do_compression=True)
    return file.getvalue()


def test_a_matlab_file_is_read() -> None:
    x, y = pixels(32, 32, 3, 5), np.arange(5, dtype=np.uint8)[:, None]
    found = formats.matlab(HERE, mat_bytes(X=x, y=y, more=y), "X", "y")
    assert np.array_equal(found[0], x)
    assert np.array_equal(found[1], y)


@pytest.mark.parametrize("raw", [b"", b"x" * 500, mat_bytes(X=pixels(9))[:-30], mat_bytes(X=pixels(9))])
def test_a_wrong_matlab_file_is_refused(raw: bytes) -> None:
    with broken("data.wrong-format"):
        formats.matlab(HERE, raw, "X", "y")


# Archives and folders


def tar_of(path: Path, files: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(f"top/{name}")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def test_a_folder_and_a_tar_archive_give_the_same_files(tmp_path: Path) -> None:
    content = {"a": b"first", "b": b"second", "c": b"third"}
    for name, raw in content.items():
        (tmp_path / name).write_bytes(raw)
    archive = tar_of(tmp_path / "all.tar.gz", content)
    for place in (tmp_path, archive):
        assert formats.files(place, ["a", "c"]) == {"a": b"first", "c": b"third"}
        with broken("data.missing-file", place):
            formats.files(place, ["a", "d"])
    archive.write_bytes(archive.read_bytes()[:-20])
    with broken("data.damaged-file", archive):
        formats.files(archive, ["c"])


def test_a_zip_archive_and_a_folder_give_the_same_tree(tmp_path: Path) -> None:
    content = {"b/2": b"second", "a/1": b"first"}
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        for name, raw in content.items():
            archive.writestr(name, raw)
            path = tmp_path / "folder" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(raw)
    for place in (tmp_path / "folder", tmp_path / "all.zip"):
        with formats.tree(place) as (names, opener):
            assert names == ["a/1", "b/2"]
            with opener("b/2") as file:
                assert file.read() == b"second"
    with broken("data.missing-file", tmp_path / "all.zip"):
        formats.zipped(tmp_path / "all.zip", "c")


def test_a_damaged_zip_archive_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "all.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("name", pixels(1000).tobytes())
    raw = path.read_bytes()
    for spoilt in (raw[:500] + b"?" + raw[501:], raw[:-30]):
        path.write_bytes(spoilt)
        with broken("data.damaged-file", path):
            formats.zipped(path, "name")


# LEAF


def leaf_data() -> dict[str, Any]:
    user_data = {"a": {"x": [[0.0], [1.0]], "y": [0, 1]}, "b": {"x": [[0.5]], "y": [2]}}
    return {"users": ["a", "b"], "num_samples": [2, 1], "user_data": user_data}


def test_leaf_files_are_read_user_by_user(tmp_path: Path) -> None:
    (tmp_path / "1.json").write_text(json.dumps(leaf_data()))
    assert [(user, len(x), y) for _, user, x, y in formats.leaf(tmp_path)] == [("a", 2, [0, 1]), ("b", 1, [2])]


@pytest.mark.parametrize(
    "text, code",
    [
        (None, "data.missing-file"),
        ("", "data.wrong-format"),
        (json.dumps(leaf_data())[:-9], "data.wrong-format"),
        ("[1]", "data.wrong-format"),
        (json.dumps(leaf_data() | {"users": ["a", "c"]}), "data.wrong-format"),
        (json.dumps(leaf_data() | {"num_samples": [2, 2]}), "data.wrong-length"),
        (json.dumps(leaf_data() | {"num_samples": [2]}), "data.wrong-length"),
        (
            json.dumps(leaf_data() | {"user_data": {"a": {"x": [], "y": []}, "b": {"x": [1], "y": []}}}),
            "data.wrong-length",
        ),
    ],
)
def test_a_wrong_leaf_file_is_refused(tmp_path: Path, text: str | None, code: str) -> None:
    if text is not None:
        (tmp_path / "1.json").write_text(text)
    with broken(code, tmp_path if text is None else tmp_path / "1.json"):
        list(formats.leaf(tmp_path))


def test_numbers_and_shapes_are_checked() -> None:
    x, y = pixels(4, 1, 2, 2), np.array([0, 1, 2, 1], dtype=np.uint8)
    assert formats.checked(HERE, x, y, (4, 1, 2, 2), 3)[1].dtype == np.int64
    with broken("data.wrong-shape"):
        formats.checked(HERE, x, y, (5, 1, 2, 2), 3)
    with broken("data.wrong-shape"):
        formats.checked(HERE, x, y[:3], (4, 1, 2, 2), 3)
    with broken("data.wrong-labels"):
        formats.checked(HERE, x, y, (4, 1, 2, 2), 2)
    with broken("data.wrong-labels"):
        formats.checked(HERE, x, y.astype(int) - 1, (4, 1, 2, 2), 3)


def test_the_error_says_what_to_do() -> None:
    with refused("data.wrong-length") as refusal:
        formats.idx(HERE, idx_bytes(pixels(5, 3, 4))[:-1], 3)
    assert str(refusal.error) == (
        "some/file has 59 bytes where its header says 60; "
        "delete it and run again to download it, or put the original there"
    )
