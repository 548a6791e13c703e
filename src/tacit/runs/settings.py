"""Settings are fields of dataclasses: check values against a field's type, and list fields with their comments."""

import inspect
import math
import tokenize
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from io import StringIO
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from tacit.errors import TacitError, closest_first, did_you_mean, unknown

SHOWN = 8  # settings listed in an error
LONGEST = 80  # characters of a value in an error


@dataclass(frozen=True)
class Setting:
    """A field as users see it: its name, default, comment, and the words it may be, if it is one of a few words."""

    name: str
    default: object
    comment: str
    words: tuple[str, ...] = ()


def check(
    kind: type, values: Mapping[str, Any], path: str, hidden: Iterable[str] = (), owner: str = ""
) -> dict[str, Any]:
    """Validate values for the fields of a dataclass and return them converted; refuse a wrong name or value.

    `path` is their section, `owner` the name of the method or objective they belong to.
    """
    hints = get_type_hints(kind, include_extras=True)
    known = {item.name for item in fields(kind)} - set(hidden)
    checked = {}
    for name, value in values.items():
        if name not in known:
            raise _unknown_setting(path or kind.__name__.lower(), name, known, owner)
        where = f"{path}.{name}" if path else name
        try:
            checked[name] = TypeAdapter(hints[name]).validate_python(value)
        except ValidationError as error:
            reason = "; ".join(dict.fromkeys(_reason(problem, hints[name]) for problem in error.errors()))
            raise _impossible(where, value, reason) from error
        number = isinstance(checked[name], (int, float)) and not isinstance(checked[name], bool)
        if number and (isinstance(value, bool) or not _finite(checked[name])):
            raise _impossible(where, value, "it must be a finite number")
    return checked


def _impossible(where: str, value: object, remedy: str) -> TacitError:
    return TacitError(f"{where} = {_shown(value)} is invalid", remedy, code="settings.impossible-value")


def _reason(problem: Mapping[str, Any], hint: Any) -> str:
    """What a value should be; for a pattern, which is not for people, the description that comes with it."""
    words = _described(hint) if problem["type"] == "string_pattern_mismatch" else []
    it = "each name in it" if problem["loc"] else "it"
    return f"{it} must be {words[0]}" if words else _plain(str(problem["msg"]))


def _plain(message: str) -> str:
    """A message of pydantic without what it says about parsing, which is not the user's concern."""
    return message.replace("Input should", "it must").partition(", unable to")[0]


def _described(hint: Any) -> list[str]:
    """The descriptions in a type and in its parts."""
    here = [part.description for part in getattr(hint, "__metadata__", ()) if isinstance(part, FieldInfo)]
    return [*filter(None, here), *(words for part in get_args(hint) for words in _described(part))]


def _finite(number: float) -> bool:
    try:
        return math.isfinite(number)
    except OverflowError:  # a whole number with hundreds of digits
        return False


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except ValueError:  # a whole number with thousands of digits
        text = "a number"
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def _unknown_setting(path: str, name: str, known: Iterable[str], owner: str) -> TacitError:
    """The error for a setting that does not exist; it lists those of the owner, since they depend on it."""
    if not known:
        whose = f"{owner} has no settings in {path}" if owner else f"{path} has no settings"
        return TacitError(whose, f"leave out {path}.{name}", code="settings.none")
    if not owner:
        return unknown(f"setting in {path}", name, known, code="names.unknown-setting")
    names = closest_first(name, known)
    shown = f"METHOD+{owner}" if path == "objective" else owner
    more = f" and {len(names) - SHOWN} more (see `tacit show {shown}`)" if len(names) > SHOWN else ""
    own = f"{owner} has {', '.join(names[:SHOWN])}{more}"
    remedy = " ".join(filter(None, [did_you_mean(name, known), own]))
    return TacitError(f"unknown setting in {path} '{name}'", remedy, code="names.unknown-setting")


def settings(kind: type) -> list[Setting]:
    """The fields of a dataclass with their defaults, and the comment behind each or the description of its type."""
    owners = [owner for owner in reversed(kind.__mro__) if is_dataclass(owner)]  # a subclass inherits comments too
    comments = {name: text for owner in owners for name, text in _comments(inspect.getsource(owner)).items()}
    hints, found = get_type_hints(kind, include_extras=True), []
    for item in sorted(fields(kind), key=lambda item: bool(item.kw_only)):  # what a class shares with others comes last
        hint = hints[item.name]
        comment = comments.get(item.name) or " ".join(_described(hint)[:1])
        found.append(Setting(item.name, default_of(item), comment, _words(hint)))
    return found


def default_of(item: Field[Any]) -> Any:
    """A field's default; None where it has none."""
    if item.default_factory is not MISSING:
        return item.default_factory()
    return None if item.default is MISSING else item.default


def _words(hint: Any) -> tuple[str, ...]:
    """The words a `Literal` allows, also inside a union."""
    if get_origin(hint) is Literal:
        return tuple(map(str, get_args(hint)))
    several = get_origin(hint) in (Union, UnionType, Annotated)
    return tuple(word for part in get_args(hint) for word in _words(part)) if several else ()


def _comments(source: str) -> dict[str, str]:
    """The comment at the end of each line that starts with `name:`."""
    comments = {}
    for token in tokenize.generate_tokens(StringIO(source).readline):
        name, colon, _ = token.line.strip().partition(":")
        if token.type == tokenize.COMMENT and colon and name.isidentifier():
            comments[name] = token.string.lstrip("# ")
    return comments
