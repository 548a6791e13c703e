"""Settings of `[data]`: old names still work, with one notice."""

from typing import Any

import pytest

from tacit.errors import notice_renamed
from tacit.runs.config import from_options, make
from tests.refusals import refused

OLD = {"labels": "some", "some": 0.3, "steps": 4, "step_rounds": 2}
NEW = {"labels": "some", "labeled_clients": 0.3, "stream_steps": 4, "rounds_per_step": 2}


@pytest.fixture(autouse=True)
def unnoticed() -> None:
    notice_renamed.cache_clear()


def test_old_names_in_a_file_give_the_same_config() -> None:
    assert make({"data": OLD}) == make({"data": NEW})


@pytest.mark.parametrize("options", [{f"data.{name}": value for name, value in OLD.items()}, {"data": OLD}])
def test_old_names_among_options_give_the_same_config(options: dict[str, Any]) -> None:
    assert from_options(options) == make({"data": NEW})


def test_an_old_name_is_noticed_once(capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        from_options({"data.steps": 4, "labels": "all"})
        make({"data": {"steps": 4, "labels": "all"}})
    assert capsys.readouterr().err == "tacit: data.steps is now data.stream_steps\n"


def test_an_option_overrides_an_old_name_in_the_file() -> None:
    assert from_options({"data.stream_steps": 5}, {"data": OLD}) == make({"data": NEW | {"stream_steps": 5}})


def test_an_old_and_a_new_name_together_are_refused() -> None:
    with refused("config.given-twice"):
        make({"data": OLD | {"stream_steps": 4}})


def test_nested_settings_of_the_caller_stay_as_they_are() -> None:
    tree = {"data": dict(OLD)}
    make(tree)
    assert tree == {"data": OLD}
