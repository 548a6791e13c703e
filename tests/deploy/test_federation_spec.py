"""The spec of a federation: it survives TOML, matches the hub's data, and is refused if it is broken."""

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tacit.data.federate import federate
from tacit.data.inputs import CharacterInputs, ImageInputs
from tacit.data.sources import Source
from tacit.data.split.config import DataConfig
from tacit.data.split.split import Split
from tacit.data.views.augment import ImageViews
from tacit.deploy.federation_spec import FederationSpec, federation_toml, read_federation
from tacit.errors import TacitError
from tacit.runs import config as configs
from tacit.runs.build import build_data
from tests.deploy import places
from tests.refusals import refused

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
def test_a_spec_survives_toml(
    classes: list[str],
    channels: int,
    numbers: list[tuple[float, float]],
    flip: bool,
    shift: int | None,
    bits: int | None,
) -> None:
    mean, std = zip(*numbers[:channels], strict=True)
    spec = FederationSpec(tuple(classes), ImageInputs((channels, 8, 9), mean, std, flip, shift, bits))
    assert FederationSpec.from_toml(spec.to_toml()) == spec


@pytest.mark.parametrize("normalise", ["data", "unit", "half"])
def test_the_spec_has_the_views_of_the_hubs_data(normalise: Any) -> None:
    config = configs.from_options(
        {"data.partition": "sites", "data.normalise": normalise, "data.flip": True, "data.shift": 3, "data.bits": 12}
    )
    federation = federate(*build_data(config), config.data)
    spec, views = FederationSpec.of(federation), federation.views
    assert isinstance(views, ImageViews)
    expected = ImageInputs((1, 28, 28), views.mean, views.std, views.flip, views.pad, 12)
    assert (spec.classes, spec.inputs) == (federation.classes, expected)


def test_a_spec_of_text_has_no_mean_and_std() -> None:
    none = np.empty(0, dtype=np.int64)
    split = Split([none], np.empty(0, dtype=np.bool_), none, none)
    nothing = torch.empty(0, 80, dtype=torch.uint8), torch.empty(0, dtype=torch.int64)
    source = Source("text", *nothing, *nothing, ("a", "b"), CharacterInputs((80,), ("a", "b")))
    spec = FederationSpec.of(federate(source, split, DataConfig()))
    assert tomllib.loads(spec.to_toml()) == {"classes": ["a", "b"], "shape": [80], "flip": False, "text": True}
    assert FederationSpec.from_toml(spec.to_toml()) == spec


@pytest.mark.parametrize(
    "change",
    [
        {"classes": ["a"]},
        {"classes": ["a", "a"]},
        {"shape": [16, 16]},
        {"mean": [0.1, 0.2]},
        {"classes": None},
    ],
)
def test_a_broken_spec_is_refused(change: dict[str, Any]) -> None:
    with refused("federation.broken"):
        FederationSpec.from_tree(tree_with(change))


@pytest.mark.parametrize("change", [{"shape": [1, 0, 16]}, {"std": [0.0]}, {"bits": 32}, {"colour": 1}])
def test_impossible_values_in_a_spec_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(TacitError) as caught:
        FederationSpec.from_tree(tree_with(change))
    assert next(iter(change)) in caught.value.problem


def tree_with(change: dict[str, Any]) -> dict[str, Any]:
    tree = {"classes": ["a", "b"], "shape": [1, 16, 16], "mean": [0.5], "std": [0.5]} | change
    return {name: value for name, value in tree.items() if value is not None}


def test_text_that_is_not_toml_is_refused() -> None:
    with refused("federation.broken"):
        FederationSpec.from_toml("classes = [")


def test_the_file_for_sites_holds_the_run_and_the_spec(tmp_path: Path) -> None:
    config = places.hub_config(tmp_path, method="fedavg+fixmatch")
    spec = places.federation_spec(config)
    spec = replace(spec, inputs=replace(spec.inputs, shift=2))  # type: ignore[type-var]
    path = tmp_path / "federation.toml"
    path.write_text(federation_toml(config, spec), encoding="utf-8")
    assert read_federation(path) == (config, spec, {})


def test_a_missing_or_incomplete_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "federation.toml"
    with refused("federation.no-file"):
        read_federation(path)
    path.write_text("[config]\nseed = 1\n", encoding="utf-8")
    with refused("federation.incomplete-file"):
        read_federation(path)
