"""`[net.options]`: the parameters of a network's factory after shape and classes, as settings."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import field, make_dataclass
from keyword import iskeyword
from typing import Any, get_type_hints

from pydantic import TypeAdapter
from pydantic.errors import PydanticUserError

from tacit import nets
from tacit.runs.registry import complete
from tacit.runs.settings import check

PLAIN = (bool, int, float, str)  # what TOML has
OTHER_SETTINGS = ("norm", "width")  # of networks of the package, directly in [net]


def check_options(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The options as the factory of the network `name` takes them; refuses a wrong name or value, or a missing one."""
    kind = options_of(name, given)
    return complete(kind, check(kind, given, "net.options", owner=name), "net.options")


def as_settings(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The options as a config has them: checked, but only plain values are converted."""
    checked = check_options(name, given)
    return {option: value if isinstance(value, PLAIN) else given[option] for option, value in checked.items()}


def options_of(name: str, given: Mapping[str, Any] | None = None) -> type:
    """A dataclass with the options of the network `name` as fields; `given` ones too if its factory takes any name."""
    factory = nets.find(name)
    try:
        parameters = list(inspect.signature(factory).parameters.values())
    except (TypeError, ValueError):  # a callable in C has no signature
        parameters = [inspect.Parameter("options", inspect.Parameter.VAR_KEYWORD)]
    open_ended = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters)
    named = [each for each in parameters if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)]
    positional = sum(each.kind is each.POSITIONAL_ONLY for each in parameters)
    own = [each for each in named[max(0, 2 - positional) :] if ":" in name or each.name not in OTHER_SETTINGS]
    types, taken = _types(factory), {each.name for each in named}
    columns = [(each.name, types.get(each.name, Any), _with_default(each.default)) for each in own]
    others = [option for option in given or {} if open_ended and option not in taken and _is_name(option)]
    return make_dataclass("Options", [*columns, *((option, Any, _with_default()) for option in others)], kw_only=True)


def _with_default(value: Any = inspect.Parameter.empty) -> Any:
    """A field with this default, if any."""
    return field() if value is inspect.Parameter.empty else field(default_factory=lambda: value)


def _is_name(option: str) -> bool:
    return option.isidentifier() and not iskeyword(option)


def _types(factory: Callable[..., Any]) -> dict[str, Any]:
    """The type of each parameter, if a value can be checked against it."""
    try:
        annotated: Any = inspect.getattr_static(factory, "__init__") if isinstance(factory, type) else factory
        hints = get_type_hints(annotated, include_extras=True)
    except (NameError, TypeError):  # a name that only type checkers know, or a callable without annotations
        return {}
    return {name: hint for name, hint in hints.items() if _checkable(hint)}


def _checkable(hint: Any) -> bool:
    try:
        TypeAdapter(hint)
    except PydanticUserError:
        return False
    return True
