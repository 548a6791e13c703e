"""From what a user asks for to a config: bounds by name, and another method than that of the file."""

from typing import Any

from tacit.runs import config as configs
from tacit.runs.bounds import plan
from tacit.runs.resolve import resolve
from tests.refusals import refused

FILE: dict[str, Any] = {
    "seed": 3,
    "data": {"labels": "server", "per_class": 5},
    "method": {"name": "fedprox+fixmatch", "mu": 0.5},
    "objective": {"labeler": "global"},
}


def test_a_bound_is_a_name_like_any_other() -> None:
    found = resolve({"method": "labels-only", "rounds": 4}, FILE)
    assert found.name == "labels-only"
    assert found.config == plan(FILE, {"rounds": 4}, "labels-only", 3)
    assert resolve({"method": "all-labels", "seed": 5}, FILE).config == plan(FILE, {}, "all-labels", 5)


def test_another_method_gets_the_settings_of_the_file_that_it_has() -> None:
    found = resolve({"method": "fedavg+supervised"}, FILE)
    assert found.config == configs.from_options({"method": "fedavg+supervised", **_common()})
    assert found.lines == ("fedavg+supervised: without method.mu, objective.labeler, which it does not have",)


def test_the_method_of_the_file_keeps_all_its_settings() -> None:
    for options in ({}, {"method": "fedprox+fixmatch"}, {"method.name": None}):
        found = resolve(options, FILE)
        assert found.config == configs.from_options({}, FILE)
        assert found.lines == ()


def test_an_option_that_the_method_does_not_have_is_refused() -> None:
    with refused("names.unknown-setting"):
        resolve({"method": "fedavg+supervised", "objective.labeler": "global"}, FILE)


def test_a_misspelled_setting_of_the_file_is_refused_for_every_method() -> None:
    with refused("names.unknown-setting"):
        resolve({"method": "fedavg+supervised"}, FILE | {"objective": {"labeller": "global"}})


def _common() -> dict[str, Any]:
    return {"seed": 3, "labels": "server", "per_class": 5}


def test_a_bound_says_that_it_decides_its_own_length() -> None:
    options = {"data": "fashion-small", "labels": "server", "n_labels": 50, "method": "labels-only"}
    assert resolve(options).lines == ()
    (line,) = resolve(options | {"rounds": 3}).lines
    assert line.startswith("without effect: rounds (labels-only trains until")
