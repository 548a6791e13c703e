"""Names to things: methods, objectives, networks, data sets and partitions, found where they are defined.

A method is known by adding its file to `tacit/methods`; nobody keeps a list. A user's own method or objective is
known by `module:Class`.
"""

import importlib
import inspect
import math
import pkgutil
import tokenize
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from io import StringIO
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

import tacit.methods
from tacit import nets, own
from tacit.data import papers, partition, sources
from tacit.errors import TacitError, closest_first, meant, unknown
from tacit.method import Method
from tacit.objectives import OBJECTIVES

# What a user's own class must offer to serve as one.
_PARTS = {
    "method": ("needs", "start", "send", "client_update", "merge", "model"),
    "objective": ("labels_only", "visit"),
}


SHOWN = 8  # settings in a sentence
LONGEST = 80  # letters of a value in a sentence


@dataclass(frozen=True)
class Setting:
    """A field as a user meets it: its name, default, the comment beside it, and the words it may be, if words."""

    name: str
    default: object
    comment: str
    words: tuple[str, ...] = ()


@cache
def methods() -> Mapping[str, type]:
    """Every method in the package by name."""
    found: dict[str, type] = {}
    for module in pkgutil.iter_modules(tacit.methods.__path__):
        found |= importlib.import_module(f"tacit.methods.{module.name}").METHODS
    return dict(sorted(found.items()))


def listing(kind: str) -> dict[str, str]:
    """The names of one kind, each with the first sentence of its documentation."""
    kinds: dict[str, Mapping[str, Any]] = {
        "methods": methods(),
        "objectives": OBJECTIVES,
        "datasets": sources.SOURCES,
        "nets": nets.NETS,
        "partitions": partition.PARTITIONS,
    }
    if kind == "splits":
        return {name: papers.describe(name) for name in papers.SPLITS}
    if kind not in kinds:
        raise unknown("kind of thing to list", kind, [*kinds, "splits"])
    return {name: sentence(thing) for name, thing in kinds[kind].items()}


def sentence(thing: object) -> str:
    """The first line of its documentation."""
    return (inspect.getdoc(thing) or "").partition("\n")[0]


def build_method(name: str, values: Mapping[str, Any], objective: Mapping[str, Any]) -> Method[Any, Any, Any, Any]:
    """The method `name` (`fedavg`, `fedavg+fixmatch`, `my_module:MyMethod`) with these hyper-parameters."""
    first, plus, second = name.partition("+")
    kind = _find("method", first, methods())
    composes = any(item.name == "objective" for item in fields(kind))
    if (plus or objective) and not composes:
        raise _brings_its_own(first, second, objective)
    settings = check(kind, with_preset(kind, values), "method", hidden=["objective"], owner=first)
    if composes:
        chosen = _find("objective", second, OBJECTIVES) if plus else _default_objective(first, kind)
        given = check(chosen, objective, "objective", owner=second or _called(chosen))
        settings["objective"] = chosen(**_complete(chosen, given, "objective"))
    method: Method[Any, Any, Any, Any] = kind(**_complete(kind, settings, "method"))
    return method


def _brings_its_own(method: str, objective: str, settings: Iterable[str] = ()) -> TacitError:
    names = ", ".join(f"objective.{name}" for name in settings)
    remedy = f"use it without '+{objective}'" if objective else f"leave {names} out"
    return TacitError(f"{method} brings its own objective: {remedy}")


def with_preset(kind: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Hyper-parameters on top of those of the preset that is named among them, such as `as-released`."""
    known: Mapping[str, Mapping[str, Any]] = getattr(kind, "PRESETS", {})
    given = {name: value for name, value in values.items() if name != "preset"}
    if "preset" not in values:
        return given
    if not known:
        raise TacitError(f"{kind.__name__} has no presets: leave method.preset out")
    preset = str(values["preset"])
    if preset not in known:
        raise unknown("preset", preset, known)
    return {**known[preset], **given}


def method_kinds(name: str) -> tuple[type, type | None]:
    """The class of a method and of the objective it is composed with, if any."""
    first, plus, second = name.partition("+")
    if first in OBJECTIVES:
        raise TacitError(f"'{first}' is an objective: write fedavg+{first}, or another method with it")
    kind = _find("method", first, methods())
    if not any(item.name == "objective" for item in fields(kind)):
        if plus:
            raise _brings_its_own(first, second)
        return kind, None
    return kind, _find("objective", second, OBJECTIVES) if plus else _default_objective(first, kind)


def own_settings(name: str) -> set[str]:
    """The dotted names of what can be set of a method and of its objective."""
    kind, objective = method_kinds(name)
    of_method = ["name", *(["preset"] if hasattr(kind, "PRESETS") else []), *(item.name for item in fields(kind))]
    of_objective = [item.name for item in fields(objective)] if objective else []
    return {*(f"method.{name}" for name in of_method), *(f"objective.{name}" for name in of_objective)}


def _default_objective(name: str, kind: Any) -> Any:
    default = next(item.default for item in fields(kind) if item.name == "objective")
    if default is MISSING:
        raise TacitError(f"{name} needs an objective: write {name}+fixmatch or another of `tacit ls objectives`")
    return type(default)


def _called(objective: type) -> str:
    return next((name for name, kind in OBJECTIVES.items() if kind is objective), objective.__name__)


def _complete(kind: type, values: dict[str, Any], path: str) -> dict[str, Any]:
    """`values`, if they hold every field that has no default."""
    for item in fields(kind):
        if item.default is MISSING and item.default_factory is MISSING and item.name not in values:
            raise TacitError(f"{path}.{item.name} has no default: set it with --set {path}.{item.name}=VALUE")
    return values


def _find(what: str, name: str, known: Mapping[str, type]) -> Any:
    if ":" not in name:
        if name.endswith(".py"):
            raise TacitError(f"'{name}' is a file: run this where it lies, and write {Path(name).stem}:ItsClass")
        if name not in known:
            raise unknown(what, name, known)
        return known[name]
    kind = own.load(what, name)
    if not isinstance(kind, type) or not is_dataclass(kind):
        raise TacitError(f"{name} can not serve as {what}: name a frozen dataclass")
    if missing := [part for part in _PARTS[what] if not hasattr(kind, part)]:
        raise TacitError(f"{name} can not serve as {what}: give it {', '.join(missing)}")
    return kind


def check(
    kind: type, values: Mapping[str, Any], path: str, hidden: Iterable[str] = (), owner: str = ""
) -> dict[str, Any]:
    """`values` for the fields of a dataclass, each validated; a wrong name or value is one sentence.

    `path` is the section they stand in, `owner` the method or objective they belong to, as its user calls it.
    """
    hints = get_type_hints(kind, include_extras=True)
    known = {item.name for item in fields(kind)} - set(hidden)
    checked = {}
    for name, value in values.items():
        if name not in known:
            raise _stranger(path or kind.__name__.lower(), name, known, owner)
        where = f"{path}.{name}" if path else name
        try:
            checked[name] = TypeAdapter(hints[name]).validate_python(value)
        except ValidationError as error:
            reason = "; ".join(dict.fromkeys(_reason(problem, hints[name]) for problem in error.errors()))
            raise TacitError(f"{where} = {_shown(value)} is not possible: {reason}") from error
        number = isinstance(checked[name], (int, float)) and not isinstance(checked[name], bool)
        if number and (isinstance(value, bool) or not _finite(checked[name])):
            raise TacitError(f"{where} = {_shown(value)} is not possible: it should be a finite number")
    return checked


def _reason(problem: Mapping[str, Any], hint: Any) -> str:
    """What is wrong with a value; where it is its pattern, which is not for people, the words that stand beside it."""
    words = _described(hint) if problem["type"] == "string_pattern_mismatch" else []
    it = "each name in it" if problem["loc"] else "it"
    return f"{it} should be {words[0]}" if words else str(problem["msg"]).replace("Input should", "it should")


def _described(hint: Any) -> list[str]:
    """The descriptions in a type, also of what it is made of."""
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


def _stranger(path: str, name: str, known: Iterable[str], owner: str) -> TacitError:
    """The error for a setting that is not there; which there are depends on the owner, so that they are said too."""
    if not known:
        return TacitError(f"{owner or path} has no settings: leave {path}.{name} out")
    if not owner:
        return unknown(f"setting in {path}", name, known)
    names = closest_first(name, known)
    shown = f"METHOD+{owner}" if path == "objective" else owner
    more = f" and {len(names) - SHOWN} more of `tacit show {shown}`" if len(names) > SHOWN else ""
    said = " ".join([*filter(None, [meant(name, known)]), f"{owner} has {', '.join(names[:SHOWN])}{more}"])
    return TacitError(f"unknown setting in {path} '{name}': {said}")


def settings(kind: type) -> list[Setting]:
    """The fields of a dataclass with their types, defaults and the comments beside them in the source."""
    owners = [owner for owner in reversed(kind.__mro__) if is_dataclass(owner)]  # a variant has its origin's fields too
    comments = {name: text for owner in owners for name, text in _comments(inspect.getsource(owner)).items()}
    hints, found = get_type_hints(kind, include_extras=True), []
    for item in fields(kind):
        default = item.default if item.default is not MISSING else None
        words = _words(hints[item.name])
        found.append(Setting(item.name, default, comments.get(item.name, ""), words))
    return found


def _words(hint: Any) -> tuple[str, ...]:
    """What a `Literal` allows, also where it is one of several types."""
    if get_origin(hint) is Literal:
        return tuple(map(str, get_args(hint)))
    several = get_origin(hint) in (Union, UnionType, Annotated)
    return tuple(word for part in get_args(hint) for word in _words(part)) if several else ()


def _comments(source: str) -> dict[str, str]:
    """The comment at the end of each line that begins with `name:`."""
    comments = {}
    for token in tokenize.generate_tokens(StringIO(source).readline):
        name, colon, _ = token.line.strip().partition(":")
        if token.type == tokenize.COMMENT and colon and name.isidentifier():
            comments[name] = token.string.lstrip("# ")
    return comments
