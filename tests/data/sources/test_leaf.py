"""FEMNIST and Shakespeare from LEAF's files and from a plain text, grouped by writer or speaker."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tacit.data.sources import Source, known, load
from tacit.data.sources.leaf import ALPHABET, WINDOW, speeches
from tests.data.files import load_refused
from tests.data.kinds import pictured


def save(path: Path, users: dict[str, tuple[list[Any], list[Any]]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "users": list(users),
        "num_samples": [len(y) for _, y in users.values()],
        "user_data": {name: {"x": x, "y": y} for name, (x, y) in users.items()},
    }
    path.write_text(json.dumps(content), encoding="utf-8")


# FEMNIST


def page(value: float) -> list[float]:
    return [value] + [1.0] * 783


def femnist(folder: Path) -> None:
    save(folder / "train/b.json", {"w3": ([page(0.5)], [61])})
    save(folder / "train/a.json", {"w9": ([page(0.0), page(0.25)], [0, 10]), "w0": ([], []), "w1": ([page(1.0)], [36])})
    save(folder / "test/a.json", {"w9": ([page(0.1)], [3])})


@pytest.mark.parametrize("below", ["", "data"])
def test_femnist_is_read_with_its_writers(data: Path, below: str) -> None:
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
    assert not pictured(source).flip
    assert source.inputs.kind == "images"


@pytest.mark.parametrize(
    "x, y, code",
    [
        ([page(2.0)], [1], "data.wrong-format"),
        ([page(float("nan"))], [1], "data.wrong-format"),
        ([[0.0] * 783], [1], "data.wrong-format"),
        ([[0.0], [0.0, 1.0]], [1, 2], "data.wrong-format"),
        (["text"], [1], "data.wrong-format"),
        ([page(0.0)], [62], "data.wrong-labels"),
    ],
)
def test_a_wrong_femnist_file_is_refused(data: Path, x: list[Any], y: list[Any], code: str) -> None:
    femnist(data / "femnist")
    save(data / "femnist/train/b.json", {"w": (x, y)})
    load_refused("femnist", code, "train/b.json")


def test_femnist_needs_the_folders_that_leaf_makes(data: Path) -> None:
    load_refused("femnist", "data.manual-download", "TalwalkarLab/leaf", str(data / "femnist"))
    femnist(data / "femnist")
    (data / "femnist/test/a.json").unlink()
    load_refused("femnist", "data.missing-file", str(data / "femnist/test"))
    (data / "femnist/test").rmdir()
    load_refused("femnist", "data.no-test-folder", str(data / "femnist/test"))


# Shakespeare


def test_shakespeare_is_read_from_leafs_files(data: Path) -> None:
    text = "What's past is prologue; what to come, in yours and my discharge. O brave new world_"
    assert len(text) > WINDOW
    save(data / "shakespeare/train/a.json", {"ROMEO": ([text[:80]], [text[80]]), "JULIET": ([text[1:81]], ["_"])})
    save(data / "shakespeare/test/a.json", {"ROMEO": ([text[2:82]], [text[82]])})
    source = load("shakespeare")
    assert source.inputs.kind == "text"
    assert source.classes == tuple(ALPHABET)
    assert len(set(ALPHABET)) == 80
    assert source.x.shape == (2, 80)
    assert source.x.dtype == torch.uint8
    assert "".join(source.classes[code] for code in source.x[0]) == text[:80]
    assert [source.classes[code] for code in source.y] == [text[80], " "]  # an unknown character counts as a space
    assert source.groups is not None
    assert source.groups.tolist() == [0, 1]


@pytest.mark.parametrize("x, y", [(["short"], ["a"]), (["a" * 80], ["ab"]), (["a" * 80], [3]), ([[1] * 80], ["a"])])
def test_a_wrong_shakespeare_file_is_refused(data: Path, x: list[Any], y: list[Any]) -> None:
    save(data / "shakespeare/train/a.json", {"ROMEO": (x, y)})
    save(data / "shakespeare/test/a.json", {"ROMEO": (["a" * 80], ["b"])})
    load_refused("shakespeare", "data.wrong-format", "a.json")


def test_speeches_are_grouped_by_speaker() -> None:
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


def test_shakespeare_is_read_from_a_plain_text(data: Path) -> None:
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


def test_no_training_window_contains_test_text(data: Path) -> None:
    source, said = plain(data)
    samples = zip(source.x, source.y, strict=True)
    shown = ["".join(source.classes[code] for code in [*window, after]) for window, after in samples]
    assert not any(said["ROMEO"][795:806] in window for window in shown)  # text across the cut
    assert max(said["ROMEO"].find(window) for window in shown) + 81 <= 800


def test_a_wrong_text_is_refused(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (data / "shakespeare").mkdir()
    path = data / "shakespeare/input.txt"
    path.write_text("ROMEO:\nToo little.\n")
    load_refused("shakespeare", "data.no-samples", "input.txt")
    monkeypatch.setitem(known.SUMS, "shakespeare/tinyshakespeare_input.txt", "0" * 64)
    load_refused("shakespeare", "data.wrong-checksum", "input.txt")
