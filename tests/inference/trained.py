"""Small runs of every kind of samples, in folders whose training data can be moved away."""

import string
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import tacit
from tacit.data.inputs import CharacterInputs
from tacit.data.sources import leaf
from tacit.data.sources.arrays import Source
from tacit.runs.result.finished import Result
from tests.data.tables import cancer_csv
from tests.engines import farm

QUICK: dict[str, Any] = {"labels": "all", "clients": 3, "rounds": 2, "batch": 16, "lr": 0.05, "workers": 0}


def images_npz(folder: Path) -> Result:
    """A run on small images in an array file."""
    farm.write_images(folder / "images.npz")
    return tacit.run(out=folder / "run", data=str(folder / "images.npz"), **QUICK)


def write_image_folder(folder: Path, count: int = 12, side: tuple[int, int] = (90, 70)) -> Path:
    """Labeled and test images of two classes, grey PNGs: one class is bright at the left, the other at the right."""
    draw = np.random.default_rng(0)
    for part in ("labeled", "test"):
        for label, bright in (("left", slice(0, 40)), ("right", slice(50, 90))):
            for number in range(count):
                pixels = draw.integers(0, 90, side[::-1], dtype=np.uint8)
                pixels[:, bright] += 120
                path = folder / part / label / f"{number:02}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(pixels).save(path)
    return folder


def image_folder(folder: Path, **changes: Any) -> Result:
    """A run on image files, which are cropped and scaled."""
    data = write_image_folder(folder / "scans")
    settings = QUICK | {"data": str(data), "data.size": 16, "net": "linear"} | changes
    return tacit.run(out=folder / "run", **settings)


def table(folder: Path) -> Result:
    """A run on the rows of a table."""
    data = cancer_csv(folder / "cells.csv")
    return tacit.run(out=folder / "run", data=str(data), net="mlp", **QUICK)


ALPHABET = tuple(" " + string.ascii_lowercase)


def text(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Result:
    """A run on windows of ten characters of a repeated sentence, under the name of a real data set."""
    words = "the quick brown fox jumps over the lazy dog " * 12
    codes = torch.tensor([ALPHABET.index(letter) for letter in words], dtype=torch.uint8)
    x, y = codes.unfold(0, 10, 1)[:-1].contiguous(), codes[10:].long()
    groups = torch.arange(len(y)) % 6
    source = Source("shakespeare", x, y, x[:60], y[:60], ALPHABET, CharacterInputs((10,), ALPHABET), groups)
    monkeypatch.setitem(leaf.SOURCES, "shakespeare", lambda: source)
    monkeypatch.setattr("tacit.data.sources.SOURCES", {"shakespeare": lambda: source})
    return tacit.run(out=folder / "run", data="shakespeare", net="lstm", **QUICK | {"net.width": 0.1})
