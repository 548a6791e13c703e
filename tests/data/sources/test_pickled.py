"""CIFAR's pickles are read, and a pickle that names anything else is refused before it runs."""

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tacit.data.sources import pickled
from tests.data.files import pixels, python2_pickle


def batch() -> dict[bytes, Any]:
    return {b"data": pixels(4, 3072), b"labels": [0, 1, 2, 3], b"filenames": [b"a_0.png", b"a_1.png"]}


def test_a_batch_of_python_2_is_read() -> None:
    raw = python2_pickle(batch())
    by_pickle = pickle.loads(raw, encoding="bytes")
    assert np.array_equal(by_pickle[b"data"], batch()[b"data"])  # the test writes what Python reads
    found = pickled.read(raw)
    assert np.array_equal(found["data"], batch()[b"data"])
    assert found["data"].dtype == np.uint8
    assert found["labels"] == [0, 1, 2, 3]
    assert found["filenames"] == ["a_0.png", "a_1.png"]


class Bomb:
    """Makes a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_with_code_is_refused_and_not_run(tmp_path: Path, protocol: int) -> None:
    raw = pickle.dumps({"data": Bomb(tmp_path / "made"), "labels": [1]}, protocol=protocol)
    with pytest.raises(ValueError, match="asks for .*mkdir"):
        pickled.read(raw)
    assert not (tmp_path / "made").exists()
    pickle.loads(raw)
    assert (tmp_path / "made").exists()  # so it was a bomb


@pytest.mark.parametrize(
    "raw",
    [
        b"cos\nsystem\n(S'touch made'\ntR.",  # the classic: os.system('touch made')
        b"(S'touch made'\nios\nsystem\n.",  # the same by the instruction INST
        b"(cos\nsystem\nS'touch made'\no.",  # and by OBJ
        b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x0atouch made\x85R.",  # and by STACK_GLOBAL
        b"cbuiltins\neval\n(S'1'\ntR.",
        b"cbuiltins\ngetattr\n(cnumpy\nndarray\nS'tofile'\ntR.",
        b"cnumpy\nfromfile\n.",  # other names of numpy
        b"cnumpy\nndarray.tofile\n.",  # attributes of allowed names
        b"\x80\x04\x8c\x05numpy\x8c\x0endarray.tofile\x93.",
        b"cnumpy.core.multiarray\nfromfile\n.",
        b"Pname\n.",  # persistent objects
        b"\x80\x02\x82\x01.",  # the extension registry
    ],
)
def test_every_way_to_name_code_is_refused(raw: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="not a pickle of plain data"):
        pickled.read(raw)
    assert list(tmp_path.iterdir()) == []


def test_allowed_names_cannot_be_changed() -> None:
    for state in (b"}S'shape'\nK\x01s", b"N}S'shape'\nK\x01s\x86"):  # BUILD on the class itself, with and without slots
        with pytest.raises(ValueError, match="not a pickle of plain data"):
            pickled.read(b"\x80\x02cnumpy\nndarray\n" + state + b"b.")
    assert np.zeros(3).shape == (3,)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"no pickle at all",
        python2_pickle(batch())[:5000],
        python2_pickle(batch())[:-1],
        pickle.dumps(np.zeros(3), protocol=2),  # numpy 2 names another module
        pickle.dumps(b"bytes", protocol=2),  # Python 3 calls a codec
        b"\x80\x02(.",
        b"\x80\x02K\x01b.",
        b"\x80\x02h\x07.",
        b"\x80\x02e.",
        b"\x80\x02K\x01)R.",
        b"\x80\x02cnumpy\ndtype\n)R.",
    ],
)
def test_a_damaged_or_other_pickle_is_refused(raw: bytes) -> None:
    with pytest.raises(ValueError, match="not a pickle of plain data") as caught:
        pickled.read(raw)
    assert "\n" not in str(caught.value)
