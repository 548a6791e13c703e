"""Options of the command line: every one stands for a field of the config, with its type and its comment."""

from typing import Any, get_args

import pytest
import typer

from scripts import option_table
from tacit.cli import app
from tacit.cli.option_table import TABLE
from tacit.cli.options import DATA_SETTINGS, SETTINGS
from tacit.runs import config as configs


def parameters(command: str) -> dict[str, Any]:
    """The options of a command as they reach the program."""
    group: Any = typer.main.get_command(app.app)
    return {item.name: item for item in group.commands[command].params}


def test_the_table_is_what_the_config_fields_say() -> None:
    assert option_table.TABLE.read_text(encoding="utf-8") == option_table.rendered(), "run make tables"


def test_every_option_reaches_a_config_field() -> None:
    assert {name: option.path for name, option in TABLE.items()} == configs.OPTIONS
    for option in TABLE.values():
        section, _, name = option.path.rpartition(".")
        kind = configs.SECTION_TYPES.get(section, configs.Config)
        assert option.path == "method.name" or name in kind.__dataclass_fields__


def test_run_takes_every_option_and_data_those_about_data() -> None:
    assert set(SETTINGS) < parameters("run").keys()
    assert parameters("data").keys() & TABLE.keys() == set(DATA_SETTINGS)
    assert {option.path for name, option in TABLE.items() if name not in DATA_SETTINGS}.isdisjoint(
        path for path in configs.OPTIONS.values() if path.startswith("data.")
    )


@pytest.mark.parametrize("name", TABLE)
def test_an_option_has_the_type_and_the_help_of_its_setting(name: str) -> None:
    option, made = TABLE[name], parameters("run")[name]
    assert made.opts == [f"--{name.replace('_', '-')}"]
    assert made.help == option.help
    assert made.type.name == {str: "text", int: "integer", float: "float"}[option.kind]
    assert made.default is None, "a setting that is not given must not override the config file"


def test_the_type_of_an_option_is_found_in_its_annotation() -> None:
    hints = {"train.lr": float, "train.epochs": int, "data.labels": str, "engine.workers": int, "cohort": int}
    assert {path: option_table.described(path)[0] for path in hints} == hints
    with pytest.raises(TypeError):
        option_table.plain_type(get_args(dict[str, Any])[1])
