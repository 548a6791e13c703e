"""What a hub tells of its data: it comes back as it was, and what is broken is refused in one sentence."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tacit import config as configs
from tacit.data import scenario
from tacit.data.augment import ImageViews
from tacit.data.scenario import Scenario, Split
from tacit.data.sources import Source
from tacit.deploy.description import Description, federation_text, read_federation
from tacit.errors import TacitError
from tacit.prepare import build_data
from tests.deploy import places

names = st.lists(st.text(min_size=1, max_size=8), min_size=2, max_size=4, unique=True)
shares = st.floats(0.01, 1)


@given(
    classes=names,
    channels=st.integers(1, 3),
    numbers=st.lists(st.tuples(st.floats(0, 1), shares), min_size=3, max_size=3),
    flip=st.booleans(),
    shift=st.none() | st.integers(0, 9),
    bits=st.none() | st.integers(8, 16),
)
def test_it_comes_back_as_it_was(
    classes: list[str],
    channels: int,
    numbers: list[tuple[float, float]],
    flip: bool,
    shift: int | None,
    bits: int | None,
) -> None:
    mean, std = zip(*numbers[:channels], strict=True)
    said = Description(tuple(classes), (channels, 8, 9), mean, std, flip, shift, bits)
    assert Description.from_text(said.to_text()) == said


@pytest.mark.parametrize("normalise", ["data", "unit", "half"])
def test_a_site_sees_what_the_hub_sees(normalise: Any) -> None:
    config = configs.from_options(
        {"data.partition": "sites", "data.normalise": normalise, "data.flip": True, "data.shift": 3, "data.bits": 12}
    )
    federation = scenario.federation(*build_data(config), config.data)
    said, seen = Description.of(federation), federation.views
    assert isinstance(seen, ImageViews)
    assert (said.mean, said.std, said.flip, said.shift) == (seen.mean, seen.std, seen.flip, seen.pad)
    assert (said.classes, said.shape, said.bits, said.text) == (federation.classes, (1, 28, 28), 12, False)


def test_text_has_no_pixels() -> None:
    none = np.empty(0, dtype=np.int64)
    split = Split([none], np.empty(0, dtype=np.bool_), none, none)
    nothing = torch.empty(0, 80, dtype=torch.uint8), torch.empty(0, dtype=torch.int64)
    source = Source("text", *nothing, *nothing, ("a", "b"), (), (), flip=False, text=True)
    said = Description.of(scenario.federation(source, split, Scenario()))
    assert said == Description(("a", "b"), (80,), text=True)
    assert Description.from_text(said.to_text()) == said


@pytest.mark.parametrize(
    "change, message",
    [
        ({"classes": ["a"]}, "classes are not two or more different names"),
        ({"classes": ["a", "a"]}, "classes are not two or more different names"),
        ({"shape": [16, 16]}, r"a sample of shape \[16, 16\] is no image"),
        ({"shape": [1, 0, 16]}, r"description.shape = \[1, 0, 16\] is not possible"),
        ({"mean": [0.1, 0.2]}, "mean and std are not 1 numbers each"),
        ({"std": [0.0]}, "description.std = .* is not possible"),
        ({"bits": 32}, "description.bits = 32 is not possible"),
        ({"colour": 1}, "unknown setting in description 'colour'"),
        ({"classes": None}, "it has no classes"),
    ],
)
def test_what_is_broken_is_one_sentence(change: dict[str, Any], message: str) -> None:
    tree = {"classes": ["a", "b"], "shape": [1, 16, 16], "mean": [0.5], "std": [0.5]} | change
    with pytest.raises(TacitError, match=message):
        Description.from_tree({name: value for name, value in tree.items() if value is not None})


def test_a_text_that_is_no_toml_is_refused() -> None:
    with pytest.raises(TacitError, match="is not valid TOML .*: ask the hub for it again"):
        Description.from_text("classes = [")


def test_the_file_for_sites_holds_the_run_and_the_description(tmp_path: Path) -> None:
    config = places.hub(tmp_path, method="fedavg+fixmatch")
    said = replace(places.describe(config), shift=2)
    path = tmp_path / "federation.toml"
    path.write_text(federation_text(config, said), encoding="utf-8")
    assert read_federation(path) == (config, said)


def test_a_file_without_its_parts_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "federation.toml"
    with pytest.raises(TacitError, match="there is no file .*: ask the hub"):
        read_federation(path)
    path.write_text("[config]\nseed = 1\n", encoding="utf-8")
    with pytest.raises(TacitError, match=r"has no section \[description\]"):
        read_federation(path)
