"""Readers of file formats: what was written is read back, and a damaged file is named in one sentence."""

import gzip
import io
import json
import os
import pickle
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.io import savemat

from tacit.data import formats, pickled
from tacit.errors import TacitError

HERE = Path("some/file")
REMEDY = "delete it and run again to fetch it, or put the original there"


def pixels(*shape: int) -> NDArray[np.uint8]:
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


def idx_bytes(array: NDArray[np.uint8]) -> bytes:
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def refused(work: Callable[[], object], message: str) -> None:
    with pytest.raises(TacitError, match=message) as caught:
        work()
    assert str(caught.value).endswith(REMEDY)
    assert "\n" not in str(caught.value)


# IDX and gzip


@pytest.mark.parametrize("shape", [(5,), (5, 3, 4), (0, 3, 4)])
def test_idx(shape: tuple[int, ...]) -> None:
    array = pixels(*shape)
    assert np.array_equal(formats.idx(HERE, idx_bytes(array), len(shape)), array)


@pytest.mark.parametrize(
    "raw, message",
    [
        (b"", "some/file is no IDX file of bytes with 3 axes"),
        (idx_bytes(pixels(5, 3, 4))[:9], "is no IDX file"),
        (idx_bytes(pixels(5)), "is no IDX file of bytes with 3 axes"),
        (b"\0\0\x0d" + idx_bytes(pixels(5, 3, 4))[3:], "is no IDX file"),
        (b"<html>" * 20, "is no IDX file"),
        (idx_bytes(pixels(5, 3, 4))[:-1], "holds 59 bytes where its header says 60"),
        (idx_bytes(pixels(5, 3, 4)) + b"!", "holds 61 bytes where its header says 60"),
    ],
)
def test_a_wrong_idx_file(raw: bytes, message: str) -> None:
    refused(lambda: formats.idx(HERE, raw, 3), message)


def test_gzip_is_optional(tmp_path: Path) -> None:
    (tmp_path / "plain").write_bytes(b"content")
    (tmp_path / "packed.gz").write_bytes(gzip.compress(b"content"))
    assert formats.content(tmp_path / "plain") == formats.content(tmp_path / "packed.gz") == b"content"


@pytest.mark.parametrize("spoil", [lambda raw: raw[:-9], lambda raw: raw[:40] + b"?" + raw[41:], lambda raw: raw[:5]])
def test_a_damaged_gzip_file(tmp_path: Path, spoil: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "file.gz"
    path.write_bytes(spoil(gzip.compress(pixels(1000).tobytes())))
    refused(lambda: formats.content(path), f"{path} is damaged or cut short")


# CIFAR


def test_cifar_binary() -> None:
    x, y = pixels(4, 3, 32, 32), np.array([3, 0, 9, 1], dtype=np.uint8)
    raw = np.concatenate([y[:, None], x.reshape(4, -1)], axis=1).tobytes()
    found = formats.cifar_binary(HERE, raw, labels=1)
    assert np.array_equal(found[0], x)
    assert found[1].tolist() == y.tolist()
    fine = np.concatenate([y[:, None] * 0 + 7, y[:, None], x.reshape(4, -1)], axis=1).tobytes()
    assert formats.cifar_binary(HERE, fine, labels=2)[1].tolist() == y.tolist()
    for wrong in (b"", raw[:-1], raw + b"!"):
        refused(lambda wrong=wrong: formats.cifar_binary(HERE, wrong, labels=1), "no whole number of images")  # type: ignore[misc]


def batch(count: int = 4) -> dict[Any, Any]:
    names = [f"a_{i}.png".encode() for i in range(count)]
    return {b"data": pixels(count, 3072), b"labels": [i % 10 for i in range(count)], b"filenames": names}


# As Python 2 wrote them: every string is a short or long byte string.
def python2(value: Any) -> bytes:
    out = io.BytesIO()

    def text(raw: bytes) -> bytes:
        return b"U" + bytes([len(raw)]) + raw if len(raw) < 256 else b"T" + struct.pack("<i", len(raw)) + raw

    out.write(b"\x80\x02}q\x01(")
    for key, item in value.items():
        out.write(text(key))
        if isinstance(item, np.ndarray):
            out.write(b"cnumpy.core.multiarray\n_reconstruct\nq\x02cnumpy\nndarray\nq\x03K\x00\x85" + text(b"b"))
            out.write(b"\x87R(K\x01" + b"".join(b"M" + struct.pack("<H", n) for n in item.shape) + b"\x86")
            out.write(b"cnumpy\ndtype\nq\x04" + text(b"u1") + b"K\x00K\x01\x87R(K\x03" + text(b"|") + b"NNN")
            out.write(b"J\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89" + text(item.tobytes()) + b"tb")
        else:
            out.write(b"](" + b"".join(b"K" + bytes([i]) if isinstance(i, int) else text(i) for i in item) + b"e")
    out.write(b"u.")
    return out.getvalue()


@pytest.mark.parametrize("write", [python2, lambda value: pickle.dumps(value, protocol=2)])
def test_a_pickled_batch_is_read(write: Callable[[Any], bytes]) -> None:
    raw = write(batch())
    by_pickle = pickle.loads(raw, encoding="bytes")
    assert np.array_equal(by_pickle[b"data"], batch()[b"data"])  # the test writes what Python reads
    x, y = formats.cifar_pickle(HERE, raw, "labels")
    assert np.array_equal(x, batch()[b"data"].reshape(4, 3, 32, 32))
    assert y.tolist() == [0, 1, 2, 3]
    assert formats.unpickled(HERE, raw)["filenames"][1] in (b"a_1.png", "a_1.png")


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(min_size=1),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=20,
    )
)
def test_plain_data_is_read_as_pickle_reads_it(value: object) -> None:
    assert pickled.read(pickle.dumps(value, protocol=2)) == value


@pytest.mark.parametrize("dtype", ["u1", "<i8", ">i4", "<f4", "bool"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_of_every_plain_kind_are_read(dtype: str, order: Any) -> None:
    array = np.asarray(np.arange(12).reshape(3, 4).astype(dtype), order=order)
    found = pickled.read(pickle.dumps([array, array], protocol=2))
    assert np.array_equal(found[0], array)
    assert np.array_equal(found[1], array)
    assert found[0].dtype == array.dtype


class Bomb:
    def __init__(self, path: Path, call: Any = os.mkdir) -> None:
        self.path, self.call = path, call

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return self.call, (str(self.path),)


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_a_pickle_with_code_is_refused_and_not_run(tmp_path: Path, protocol: int) -> None:
    raw = pickle.dumps({b"data": Bomb(tmp_path / "made"), b"labels": [1]}, protocol=protocol)
    refused(lambda: formats.cifar_pickle(HERE, raw, "labels"), "can not be read")
    assert not (tmp_path / "made").exists()
    pickle.loads(raw)
    assert (tmp_path / "made").exists()  # so it was a bomb


def test_a_name_that_is_not_plain_data_is_refused_where_it_stands() -> None:
    raw = pickle.dumps({b"data": os.mkdir}, protocol=2)  # named, not called
    refused(lambda: formats.unpickled(HERE, raw), "asks for .*mkdir, which is not plain data")


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"no pickle at all",
        python2(batch())[:5000],
        python2(batch())[:-1],
        pickle.dumps(np.array([{"a": 1}], dtype=object), protocol=2),
        pickle.dumps(np.zeros(2, dtype=[("a", "i4")]), protocol=2),
        pickle.dumps(np.dtype("u1"), protocol=2),
        b"\x80\x02cnumpy\nndarray\n.",
        b"\x80\x02(.",
        b"\x80\x02K\x01b.",
        b"\x80\x02q\x01.",
        b"\x80\x02h\x07.",
        b"\x80\x02e.",
        b"\x80\x02]K\x01K\x02s.",
        b"\x80\x02K\x01)R.",
        b"\x80\x02cnumpy\ndtype\n)R.",
        b"\x80\x02c_codecs\nencode\nK\x01\x85R.",
    ],
)
def test_other_pickles_are_refused(raw: bytes) -> None:
    refused(lambda: formats.unpickled(HERE, raw), "some/file can not be read")


@pytest.mark.parametrize(
    "change",
    [
        {b"data": None},
        {b"labels": None},
        {b"labels": [1, 2]},
        {b"labels": ["a", "b", "c", "d"]},
        {b"data": pixels(4, 3071)},
        {b"data": np.zeros((4, 3072))},
        {b"data": [1, 2, 3, 4]},
    ],
)
def test_a_pickle_that_is_no_batch(change: dict[bytes, Any]) -> None:
    content = {name: value for name, value in (batch() | change).items() if value is not None}
    refused(lambda: formats.cifar_pickle(HERE, pickle.dumps(content, protocol=2), "labels"), "is no batch of CIFAR")


# MATLAB


def mat_bytes(**arrays: NDArray[np.generic]) -> bytes:
    file = io.BytesIO()
    savemat(file, arrays, do_compression=True)
    return file.getvalue()


def test_matlab() -> None:
    x, y = pixels(32, 32, 3, 5), np.arange(5, dtype=np.uint8)[:, None]
    found = formats.matlab(HERE, mat_bytes(X=x, y=y, more=y), "X", "y")
    assert np.array_equal(found[0], x)
    assert np.array_equal(found[1], y)


@pytest.mark.parametrize("raw", [b"", b"x" * 500, mat_bytes(X=pixels(9))[:-30], mat_bytes(X=pixels(9))])
def test_a_wrong_matlab_file(raw: bytes) -> None:
    refused(lambda: formats.matlab(HERE, raw, "X", "y"), "is no MATLAB file with X and y")


# Archives and folders


def tar_of(path: Path, files: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(f"top/{name}")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def test_files_of_a_folder_and_of_a_tar_archive(tmp_path: Path) -> None:
    content = {"a": b"first", "b": b"second", "c": b"third"}
    for name, raw in content.items():
        (tmp_path / name).write_bytes(raw)
    archive = tar_of(tmp_path / "all.tar.gz", content)
    for place in (tmp_path, archive):
        assert formats.files(place, ["a", "c"]) == {"a": b"first", "c": b"third"}
        refused(lambda place=place: formats.files(place, ["a", "d"]), f"{place} has no file d")  # type: ignore[misc]
    archive.write_bytes(archive.read_bytes()[:-20])
    refused(lambda: formats.files(archive, ["c"]), "is damaged or cut short")


def test_a_zip_archive_and_a_folder_are_the_same_tree(tmp_path: Path) -> None:
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
    refused(lambda: formats.zipped(tmp_path / "all.zip", "c"), "has no file c")


def test_a_damaged_zip_archive(tmp_path: Path) -> None:
    path = tmp_path / "all.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("name", pixels(1000).tobytes())
    raw = path.read_bytes()
    path.write_bytes(raw[:500] + b"?" + raw[501:])
    refused(lambda: formats.zipped(path, "name"), "is damaged at name")
    path.write_bytes(raw[:-30])
    refused(lambda: formats.zipped(path, "name"), "is damaged or cut short")


# LEAF


def leaf_data() -> dict[str, Any]:
    user_data = {"a": {"x": [[0.0], [1.0]], "y": [0, 1]}, "b": {"x": [[0.5]], "y": [2]}}
    return {"users": ["a", "b"], "num_samples": [2, 1], "user_data": user_data}


def test_leaf(tmp_path: Path) -> None:
    (tmp_path / "1.json").write_text(json.dumps(leaf_data()))
    assert [(user, len(x), y) for _, user, x, y in formats.leaf(tmp_path)] == [("a", 2, [0, 1]), ("b", 1, [2])]


@pytest.mark.parametrize(
    "text, message",
    [
        (None, "has no JSON files"),
        ("", "is no JSON file of LEAF"),
        (json.dumps(leaf_data())[:-9], "is no JSON file of LEAF"),
        ("[1]", "is no JSON file of LEAF"),
        (json.dumps(leaf_data() | {"users": ["a", "c"]}), "is no JSON file of LEAF"),
        (json.dumps(leaf_data() | {"num_samples": [2, 2]}), "other numbers of samples"),
        (json.dumps(leaf_data() | {"num_samples": [2]}), "other numbers of samples"),
        (json.dumps(leaf_data() | {"user_data": {"a": {"x": [], "y": []}, "b": {"x": [1], "y": []}}}), "other numbers"),
    ],
)
def test_a_wrong_leaf_file(tmp_path: Path, text: str | None, message: str) -> None:
    if text is not None:
        (tmp_path / "1.json").write_text(text)
    refused(lambda: list(formats.leaf(tmp_path)), message)


def test_checked() -> None:
    x, y = pixels(4, 1, 2, 2), np.array([0, 1, 2, 1], dtype=np.uint8)
    assert formats.checked(HERE, x, y, (4, 1, 2, 2), 3)[1].dtype == np.int64
    refused(lambda: formats.checked(HERE, x, y, (5, 1, 2, 2), 3), "where they should be \\(5, 1, 2, 2\\)")
    refused(lambda: formats.checked(HERE, x, y[:3], (4, 1, 2, 2), 3), "holds 3 labels")
    refused(lambda: formats.checked(HERE, x, y, (4, 1, 2, 2), 2), "labels 0 to 2 where they should be 0 to 1")
    refused(lambda: formats.checked(HERE, x, y.astype(int) - 1, (4, 1, 2, 2), 3), "labels -1 to 1")
