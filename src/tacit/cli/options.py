"""Options of the command line that stand for settings of a config."""

import inspect
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from tacit.cli.option_table import TABLE

Command = Callable[..., None]

# Options and arguments that several commands share but no setting stands for.
Config = Annotated[
    Path | None, typer.Argument(help="TOML config file; options on the command line override it.", show_default=False)
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Any setting, such as method.mu=0.1; can be repeated."),
]
From = Annotated[
    int | None,
    typer.Option("--from", metavar="ROUND", min=0, help="First return to the end of this round; 0 is the start."),
]
Port = Annotated[
    int | None, typer.Option(min=1, max=65535, help="Port of the page on this machine; default: a free one.")
]
Open = Annotated[bool, typer.Option("--open", help="Open the page in your browser.")]
SETTINGS = tuple(TABLE)
DATA_SETTINGS = tuple(name for name, option in TABLE.items() if option.path.startswith("data.") or name == "seed")


def with_settings(names: Iterable[str]) -> Callable[[Command], Command]:
    """Add options for these settings to a command, in place of its parameter `given`.

    The command gets `given` as a dictionary: every one of the names, with None where the option was left out.
    """

    def decorate(command: Command) -> Command:
        def wrapper(**values: Any) -> None:
            given = {name: values.pop(name) for name in names}
            command(given=given, **values)

        added = [_parameter(name) for name in names]
        parameters: list[inspect.Parameter] = []
        for each in inspect.signature(command, eval_str=True).parameters.values():
            parameters += added if each.name == "given" else [each.replace(kind=inspect.Parameter.KEYWORD_ONLY)]
        wrapper.__name__, wrapper.__doc__ = command.__name__, command.__doc__
        wrapper.__annotations__ = {each.name: each.annotation for each in parameters}
        vars(wrapper)["__signature__"] = inspect.Signature(parameters)
        return wrapper

    return decorate


def _parameter(name: str) -> inspect.Parameter:
    option = TABLE[name]
    kind: Any = option.kind
    annotation = Annotated[kind | None, typer.Option(help=option.help)]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
