"""A config in full and in short: every setting of the method, its objective and the server, or only the chosen ones.

A run writes all of them into its config.toml. What a config holds, compares and hashes is the short form, so that
reading the file back gives the same config, and a new setting with a default changes no hash.
"""

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from tacit.errors import TacitError
from tacit.method import Training, Variant
from tacit.runs.registry import method_kinds, with_preset
from tacit.runs.settings import default_of

Tree = dict[str, Any]

AS_GIVEN = ("name", "preset")  # of [method]: no field of the method's class
PLAIN = (bool, int, float, str)  # what TOML has, apart from lists of these


def in_full(name: str, given: Mapping[str, Any], method: Any, server: Training) -> Tree:
    """The sections [method], [objective] and [server] with every setting that TOML can hold.

    `given` is the short section [method] of the method called `name`; values that TOML has no form for, such as None,
    are left out.
    """
    variant, objective = method_kinds(name)
    return {
        "method": {"name": name, **given, **_values(method, _defaults(variant))},
        "objective": _values(method.objective, _defaults(objective)) if objective else {},
        "server": _values(server, _defaults(Training)),
    }


def chosen(name: str, method: Mapping[str, Any], objective: Mapping[str, Any]) -> tuple[Tree, Tree]:
    """The settings of a method and of its objective that differ from what they would be if they were not given."""
    of_method, of_objective = _expected(name, method)
    return _differing(method, of_method), _differing(objective, of_objective)


def chosen_at_server(server: Mapping[str, Any], train: Training, standard: Mapping[str, Any]) -> Tree:
    """The settings of [server] that differ from those of [train]; those of `standard` always stay."""
    return {name: value for name, value in server.items() if name in standard or value != getattr(train, name)}


def without_listing(tree: Mapping[str, Any], default_method: str, standard: Mapping[str, Any]) -> Tree:
    """Nested settings as a base for others: a section that lists all its settings loses those at their defaults.

    Such a section comes from a run. Its values were not chosen one by one, so another method, or another rate of the
    clients, brings its own. `standard` holds the defaults of [server] that are not those of [train].
    """
    method = tree.get("method", {})
    try:
        of_method, of_objective = _expected(str(method.get("name", default_method)), method)
    except (TacitError, AttributeError):  # refused later, with all other checks
        return dict(tree)
    at_server = asdict(Training()) | dict(_section(tree, "train")) | dict(standard)
    expected = {"method": of_method, "objective": of_objective, "server": at_server}
    return {
        name: _differing(value, expected[name]) if name in expected and _lists_all(value, expected[name]) else value
        for name, value in tree.items()
    }


def _expected(name: str, method: Mapping[str, Any]) -> tuple[Tree, Tree]:
    """What the settings of a method and of its objective are without being given, by its preset if it names one."""
    variant, objective = method_kinds(name)
    preset = {key: value for key, value in method.items() if key == "preset"}
    return _defaults(variant) | with_preset(variant, preset), _defaults(objective) if objective else {}


def _defaults(kind: type | Variant) -> Tree:
    """The default of every setting of a class; None if it has none."""
    variant = Variant.of(kind)
    own = [item for item in fields(variant.kind) if item.name not in ("objective", *variant.without)]
    return {item.name: variant.defaults.get(item.name, default_of(item)) for item in own}


def _values(thing: object, names: Mapping[str, Any]) -> Tree:
    found = {name: getattr(thing, name) for name in names}
    return {name: value for name, value in found.items() if _writable(value)}


def _writable(value: Any) -> bool:
    return all(map(_writable, value)) if isinstance(value, list | tuple) else isinstance(value, PLAIN)


def _differing(given: Mapping[str, Any], expected: Mapping[str, Any]) -> Tree:
    known = expected.keys() - set(AS_GIVEN)
    return {name: value for name, value in given.items() if name not in known or value != expected[name]}


def _lists_all(given: Any, expected: Mapping[str, Any]) -> bool:
    return isinstance(given, Mapping) and all(name in given for name, value in expected.items() if _writable(value))


def _section(tree: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = tree.get(name, {})
    return section if isinstance(section, Mapping) else {}
