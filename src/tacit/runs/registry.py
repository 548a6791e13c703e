"""What each name stands for: methods, objectives, data sets, networks, partitions and splits.

A file in `tacit/methods` is all it takes to add a method; there is no list to maintain. A user's own method or
objective is named `module:Class`.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import tacit.methods
from tacit import nets, user_code
from tacit.data import sources
from tacit.data.split import papers, partition
from tacit.discovery import offered
from tacit.errors import TacitError, notice_renamed, unknown
from tacit.method import Method, Variant
from tacit.objectives import OBJECTIVES
from tacit.runs.central import CENTRAL
from tacit.runs.settings import Setting, check, settings

# The attributes that a user's class must have to be a method or an objective.
_PARTS = {
    "method": ("needs", "start", "send", "client_update", "merge", "model"),
    "objective": ("labels_only", "needs", "local_loss"),
}


@cache
def methods() -> Mapping[str, Variant]:
    """Every method in the package by name."""
    found = offered("tacit.methods", tacit.methods.__path__, "METHODS")
    return {name: Variant.of(kind) for name, kind in found.items()}


@dataclass(frozen=True)
class Kind:
    """A kind of thing that has names."""

    names: Callable[[], Mapping[str, Any]]
    option: str  # of the command line, to choose one
    about: Callable[[str, Any], str] = lambda _, thing: sentence(thing)  # one line on a name and its thing


# Everything that `tacit ls` lists and `tacit show` explains.
KINDS = {
    "methods": Kind(methods, "method"),
    "objectives": Kind(lambda: OBJECTIVES, "method"),
    "datasets": Kind(lambda: sources.SOURCES, "data"),
    "nets": Kind(lambda: nets.NETS, "net"),
    "partitions": Kind(lambda: partition.PARTITIONS, "partition"),
    "splits": Kind(lambda: papers.SPLITS, "split", lambda name, _: papers.describe(name)),
}


def listing(kind: str) -> dict[str, str]:
    """The names of one kind, each with one line on what it is."""
    if kind not in KINDS:
        raise unknown("kind", kind, KINDS)
    return {name: KINDS[kind].about(name, thing) for name, thing in KINDS[kind].names().items()}


def sentence(thing: object) -> str:
    """The first line of its documentation."""
    about = thing.about if isinstance(thing, Variant) else inspect.getdoc(thing) or ""
    return about.partition("\n")[0]


def settings_of(kind: type | Variant) -> list[Setting]:
    """What can be set of a class or of a variant of a method, with its own defaults."""
    if not isinstance(kind, Variant):
        return settings(kind)
    own = [item for item in settings(kind.kind) if item.name not in kind.without]
    return [replace(item, default=kind.defaults.get(item.name, item.default)) for item in own]


def build_method(name: str, values: Mapping[str, Any], objective: Mapping[str, Any]) -> Method[Any, Any, Any, Any]:
    """The method `name` (`fedavg`, `fedavg+fixmatch`, `my_module:MyMethod`) with these hyper-parameters."""
    first, plus, second = name.partition("+")
    variant = _find_method(first)
    kind, composes = variant.kind, _composes(variant)
    if (plus or objective) and not composes:
        raise _brings_its_own(first, second, objective)
    hidden = ["objective", *variant.without]
    values = with_preset(variant, renamed(kind, values))
    chosen = {**variant.defaults, **check(kind, values, "method", hidden=hidden, owner=first)}
    if composes:
        of_objective = _find("objective", second, OBJECTIVES) if plus else _default_objective(first, kind)
        given = check(of_objective, objective, "objective", owner=second or _called(of_objective))
        chosen["objective"] = of_objective(**complete(of_objective, given, "objective"))
    method: Method[Any, Any, Any, Any] = kind(**complete(kind, chosen, "method"))
    return method


def _brings_its_own(method: str, objective: str, settings: Iterable[str] = ()) -> TacitError:
    names = ", ".join(f"objective.{name}" for name in settings)
    remedy = f"use it without '+{objective}'" if objective else f"leave out {names}"
    return TacitError(f"{method} has its own objective", remedy, code="method.own-objective")


def renamed(kind: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Hyper-parameters by their present names; a former one, in `RENAMED` of the class, works and gives a notice."""
    former: Mapping[str, str] = getattr(kind, "RENAMED", {})
    present = {name: value for name, value in values.items() if name not in former}
    for old in values.keys() & former.keys():
        notice_renamed(f"method.{old}", f"method.{former[old]}")
        present.setdefault(former[old], values[old])
    return present


def with_preset(variant: Variant, values: Mapping[str, Any]) -> dict[str, Any]:
    """Hyper-parameters, completed by those of their preset if they name one, such as `as-released`."""
    known = variant.presets
    given = {name: value for name, value in values.items() if name != "preset"}
    if "preset" not in values:
        return given
    if not known:
        raise TacitError(f"{variant.kind.__name__} has no presets", "leave out method.preset", code="method.no-presets")
    preset = str(values["preset"])
    if preset not in known:
        raise unknown("preset", preset, known)
    return {**known[preset], **given}


def method_kinds(name: str) -> tuple[Variant, type | None]:
    """A method, and the class of the objective it is composed with, if any."""
    first, plus, second = name.partition("+")
    if first in OBJECTIVES:
        raise TacitError(
            f"'{first}' is an objective",
            f"combine it with a method, such as fedavg+{first}",
            code="method.is-objective",
        )
    variant = _find_method(first)
    if not _composes(variant):
        if plus:
            raise _brings_its_own(first, second)
        return variant, None
    return variant, _find("objective", second, OBJECTIVES) if plus else _default_objective(first, variant.kind)


def canonical(name: str) -> str:
    """A method's name with its objective, given or default: `fedavg` is `fedavg+fixmatch`."""
    first, _, _ = name.partition("+")
    objective = method_kinds(name)[1]
    return first if objective is None else f"{first}+{_called(objective)}"


def own_settings(name: str) -> set[str]:
    """The dotted names of the settings of a method and of its objective, former names included."""
    variant, objective = method_kinds(name)
    own = (item.name for item in fields(variant.kind) if item.name not in variant.without)
    of_method = ["name", *(["preset"] if variant.presets else []), *own, *getattr(variant.kind, "RENAMED", ())]
    of_objective = [item.name for item in fields(objective)] if objective else []
    return {*(f"method.{name}" for name in of_method), *(f"objective.{name}" for name in of_objective)}


def _composes(variant: Variant) -> bool:
    """Whether a method takes an objective after a `+`."""
    return any(item.name == "objective" for item in fields(variant.kind))


def _default_objective(name: str, kind: Any) -> Any:
    default = next(item.default for item in fields(kind) if item.name == "objective")
    if default is MISSING:
        raise TacitError(
            f"{name} needs an objective",
            f"write {name}+fixmatch, or choose another from `tacit ls objectives`",
            code="method.needs-objective",
        )
    return type(default)


def _called(objective: type) -> str:
    own = f"{objective.__module__}:{objective.__qualname__}"
    return next((name for name, kind in OBJECTIVES.items() if kind is objective), own)


def complete(kind: type, values: dict[str, Any], path: str) -> dict[str, Any]:
    """The values; refuses them if a field without a default is missing."""
    for item in fields(kind):
        if item.default is MISSING and item.default_factory is MISSING and item.name not in values:
            raise TacitError(
                f"{path}.{item.name} has no default",
                f"set it with --set {path}.{item.name}=VALUE",
                code="settings.no-default",
            )
    return values


def _find_method(name: str) -> Variant:
    """The method of this name, or the user's class."""
    return Variant.of(CENTRAL[name] if name in CENTRAL else _find("method", name, methods()))


def _find(what: str, name: str, known: Mapping[str, Any]) -> Any:
    if ":" not in name:
        if name.endswith(".py"):
            raise TacitError(
                f"'{name}' is a file",
                f"run this in its folder, and write {Path(name).stem}:ClassName",
                code="names.is-file",
            )
        if name not in known:
            raise unknown(what, name, known)
        return known[name]
    kind = user_code.load(what, name)
    if not isinstance(kind, type) or not is_dataclass(kind):
        raise TacitError(f"{name} cannot be used as {what}", "make it a frozen dataclass", code="names.not-a-dataclass")
    if missing := [part for part in _PARTS[what] if not hasattr(kind, part)]:
        raise TacitError(
            f"{name} cannot be used as {what}", f"add {', '.join(missing)} to it", code="names.incomplete-class"
        )
    return kind
