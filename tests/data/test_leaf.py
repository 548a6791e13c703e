"""FEMNIST and Shakespeare: LEAF's files and the plain text, by the people who wrote or spoke."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tacit.data import known
from tacit.data.leaf import ALPHABET, WINDOW, speeches
from tacit.data.sources import Source, load
from tacit.errors import TacitError


@pytest.fixture
def data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("TACIT_DATA", str(tmp_path))
    monkeypatch.delitem(known.SUMS, "shakespeare/tinyshakespeare_input.txt")
    return tmp_path


def save(path: Path, users: dict[str, tuple[list[Any], list[Any]]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "users": list(users),
        "num_samples": [len(y) for _, y in users.values()],
        "user_data": {name: {"x": x, "y": y} for name, (x, y) in users.items()},
    }
    path.write_text(json.dumps(content), encoding="utf-8")


def refused(name: str, message: str) -> None:
    with pytest.raises(TacitError, match=message) as caught:
        load(name)
    assert "\n" not in str(caught.value)


# FEMNIST


def page(value: float) -> list[float]:
    return [value] + [1.0] * 783


def femnist(folder: Path) -> None:
    save(folder / "train/b.json", {"w3": ([page(0.5)], [61])})
    save(folder / "train/a.json", {"w9": ([page(0.0), page(0.25)], [0, 10]), "w0": ([], []), "w1": ([page(1.0)], [36])})
    save(folder / "test/a.json", {"w9": ([page(0.1)], [3])})


@pytest.mark.parametrize("below", ["", "data"])
def test_femnist(data: Path, below: str) -> None:
    femnist(data / "femnist" / below)
    source = load("femnist")
    assert source.x.shape == (4, 1, 28, 28)
    assert source.x[:, 0, 0, 0].tolist() == [0, 64, 255, 128]
    assert source.x[:, 0, 27, 27].tolist() == [255] * 4
    assert [source.classes[label] for label in source.y] == ["0", "A", "a", "z"]
    assert source.groups is not None
    assert source.groups.tolist() == [0, 0, 1, 2]
    assert source.y_test.tolist() == [3]
    assert len(source.classes) == 62
    assert not source.flip
    assert not source.text


@pytest.mark.parametrize(
    "x, y, message",
    [
        ([page(2.0)], [1], "not 784 numbers from 0 to 1"),
        ([page(float("nan"))], [1], "not 784 numbers from 0 to 1"),
        ([[0.0] * 783], [1], "not 784 numbers from 0 to 1"),
        ([[0.0], [0.0, 1.0]], [1, 2], "no rows of numbers"),
        (["text"], [1], "no rows of numbers"),
        ([page(0.0)], [62], "labels 62 to 62"),
    ],
)
def test_a_wrong_femnist_file(data: Path, x: list[Any], y: list[Any], message: str) -> None:
    femnist(data / "femnist")
    save(data / "femnist/train/b.json", {"w": (x, y)})
    refused("femnist", f"train/b.json has .*{message}")


def test_femnist_without_files(data: Path) -> None:
    refused("femnist", f"femnist has no direct download: run .*leaf and put .* train and test into {data / 'femnist'}")
    femnist(data / "femnist")
    (data / "femnist/test/a.json").unlink()
    refused("femnist", "test has no JSON files")
    (data / "femnist/test").rmdir()
    refused("femnist", "there is no folder .*test beside train")


# Shakespeare


def test_shakespeare_of_leaf(data: Path) -> None:
    text = "What's past is prologue; what to come, in yours and my discharge. O brave new world_"
    assert len(text) > WINDOW
    save(data / "shakespeare/train/a.json", {"ROMEO": ([text[:80]], [text[80]]), "JULIET": ([text[1:81]], ["_"])})
    save(data / "shakespeare/test/a.json", {"ROMEO": ([text[2:82]], [text[82]])})
    source = load("shakespeare")
    assert source.text
    assert source.classes == tuple(ALPHABET)
    assert len(set(ALPHABET)) == 80
    assert source.x.shape == (2, 80)
    assert source.x.dtype == torch.uint8
    assert "".join(source.classes[code] for code in source.x[0]) == text[:80]
    assert [source.classes[code] for code in source.y] == [text[80], " "]  # a stranger counts as a space
    assert source.groups is not None
    assert source.groups.tolist() == [0, 1]
    assert source.mean == source.std == ()


@pytest.mark.parametrize("x, y", [(["short"], ["a"]), (["a" * 80], ["ab"]), (["a" * 80], [3]), ([[1] * 80], ["a"])])
def test_a_wrong_shakespeare_file(data: Path, x: list[Any], y: list[Any]) -> None:
    save(data / "shakespeare/train/a.json", {"ROMEO": (x, y)})
    save(data / "shakespeare/test/a.json", {"ROMEO": (["a" * 80], ["b"])})
    refused("shakespeare", "a.json has samples that are not 80 characters and the one after them")


def test_speeches() -> None:
    text = "First Citizen:\nSpeak.\nNow: go\n\nALL:\nWe do.\n\n\nFirst Citizen:\nAgain\n\nTITUS:\n\n"
    text += "Senators, &C:\nAway!\n"
    assert speeches(text) == {"First Citizen": "Speak.\nNow: go\nAgain", "ALL": "We do.", "Senators, &C": "Away!"}


def words(length: int, seed: int) -> str:
    letters = np.random.default_rng(seed).choice(list("abcdefgh ,"), length)
    return "".join(letters)


def plain(data: Path) -> tuple[Source, dict[str, str]]:
    said = {"ROMEO": words(1000, 0), "Nurse": words(404, 1), "First Page": words(405, 2)}
    text = "\n\n".join(f"{name}:\n{line}" for name, line in said.items())
    (data / "shakespeare").mkdir()
    (data / "shakespeare/tinyshakespeare_input.txt").write_text(text, encoding="utf-8")
    return load("shakespeare"), said


def test_shakespeare_from_plain_text(data: Path) -> None:
    source, said = plain(data)
    assert source.classes == tuple(sorted(set("".join(said.values()))))
    assert source.groups is not None
    assert torch.bincount(source.groups).tolist() == [800 - 80, 324 - 80]  # the nurse says too little
    assert len(source.y_test) == (200 - 80) + (81 - 80)

    def shown(codes: Any) -> str:
        return "".join(source.classes[code] for code in codes)

    for start in (0, 1, 719):
        assert shown(source.x[start]) == said["ROMEO"][start : start + 80]
        assert shown([source.y[start]]) == said["ROMEO"][start + 80]
    assert shown(source.x[720]) == said["First Page"][:80]
    assert shown(source.x_test[0]) == said["ROMEO"][800:880]
    assert shown([source.y_test[119]]) == said["ROMEO"][999]
    assert shown(source.x_test[120]) == said["First Page"][324:404]


def test_no_test_text_was_trained_on(data: Path) -> None:
    source, said = plain(data)
    samples = zip(source.x, source.y, strict=True)
    shown = ["".join(source.classes[code] for code in [*window, after]) for window, after in samples]
    assert not any(said["ROMEO"][795:806] in window for window in shown)  # what lies across the cut
    assert max(said["ROMEO"].find(window) for window in shown) + 81 <= 800


def test_a_wrong_text(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (data / "shakespeare").mkdir()
    path = data / "shakespeare/input.txt"
    path.write_text("ROMEO:\nToo little.\n")
    refused("shakespeare", "input.txt has no speaker who says more than 400 characters: delete it and run again")
    monkeypatch.setitem(known.SUMS, "shakespeare/tinyshakespeare_input.txt", "0" * 64)
    refused("shakespeare", "input.txt is not the original")
