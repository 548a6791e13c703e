"""Settings without an effect are reported, and those with one are not."""

from dataclasses import replace
from typing import Any

import pytest

from tacit.data.inputs import VectorInputs
from tacit.runs.config import from_options
from tacit.runs.without_effect import without_effect
from tests import toys


def names(options: dict[str, Any], **changes: Any) -> list[str]:
    data = toys.federation([toys.images(k, 12) for k in range(2)], server=toys.images(5, 6))
    lines = without_effect(from_options(options), replace(data, **changes))
    return [line.removeprefix("without effect: ").partition(" (")[0] for line in lines]


@pytest.mark.parametrize(
    "options, name",
    [
        ({"data.labeled_clients": 0.5}, "data.labeled_clients"),
        ({"data.rounds_per_step": 3}, "data.rounds_per_step"),
        ({"data.keep": True}, "data.keep"),
        ({"data.noise": 0.5}, "data.noise"),
        ({"labels": "all", "per_class": 5}, "the number of labels"),
        ({"epochs": 3, "train.steps": 4}, "train.epochs"),
        ({"server.epochs": 3, "server.steps": 4}, "server.epochs"),
        ({"engine.ray": "auto"}, "engine.ray"),
        ({"engine.strict": True}, "engine.strict"),
        ({"engine": "flower", "engine.threads": 2}, "engine.threads"),
    ],
)
def test_a_setting_without_effect_is_named(options: dict[str, Any], name: str) -> None:
    assert names(options) == [name]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"labels": "some", "data.labeled_clients": 0.5},
        {"data.stream_steps": 2, "data.keep": True},
        {"data.flip": False},
        {"partition": "dirichlet:0.5"},
        {"labels": "all", "per_class": 5, "partition": "fedmatch"},
        {"epochs": 3},
        {"server.lr": 0.5},
        {"engine.strict": True, "workers": 0},
        {"train.steps": 4},
    ],
)
def test_a_setting_with_an_effect_is_not_named(options: dict[str, Any]) -> None:
    assert names(options) == []


def test_a_partition_by_class_of_samples_without_a_class_is_named() -> None:
    hidden = toys.federation([toys.hide(toys.images(k, 12)) for k in range(2)])
    (line,) = without_effect(from_options({"partition": "dirichlet:0.5"}), hidden)
    assert line.startswith("without effect: dirichlet:0.5 for all samples")
    known = replace(hidden, truth=toys.images(0, 24).y)
    assert without_effect(from_options({"partition": "dirichlet:0.5"}), known) == []


def test_a_server_without_labels_has_no_use_for_settings() -> None:
    alone = toys.federation([toys.images(k, 12) for k in range(2)])
    (line,) = without_effect(from_options({"server.lr": 0.5, "server.epochs": 2}), alone)
    assert line.startswith("without effect: server.epochs, server.lr")


def test_views_of_images_have_no_effect_on_vectors() -> None:
    rows = VectorInputs(("a",), (0.0,), (1.0,))
    assert names({"data.augment": "none", "data.noise": 0.5}, inputs=rows) == ["data.augment"]
