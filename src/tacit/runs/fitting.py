"""Settings that fit: each method gets those that it has; what was left out is known, so that it can be listed."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from tacit.errors import TacitError
from tacit.runs import config as configs
from tacit.runs.auto import AUTO
from tacit.runs.bounds import is_bound
from tacit.runs.registry import own_settings


@dataclass(frozen=True)
class Fitted:
    """The settings of a file and of options that one method has, and the dotted names of the others."""

    base: dict[str, Any]
    extra: dict[str, Any]
    dropped: tuple[str, ...] = ()

    def note(self, method: str) -> str:
        """One line on what was left out; empty if nothing was."""
        return f"{method}: without {', '.join(self.dropped)}, which it does not have" if self.dropped else ""


def fit(base: Mapping[str, Any], extra: Mapping[str, Any], methods: Sequence[str]) -> dict[str, Fitted]:
    """The settings of each method, out of those of a file and of options by dotted name."""
    base = configs.without_listing(base)
    return {
        method: Fitted(
            _without(base, foreign),
            {name: value for name, value in extra.items() if name not in foreign},
            tuple(sorted(foreign & (configs.flat(base).keys() | extra.keys()))) if not is_bound(method) else (),
        )
        for method, foreign in foreign_settings(methods, named_in(base)).items()
    }


def named_in(base: Mapping[str, Any]) -> str:
    """The method that a file's settings are written for."""
    section = base.get("method")
    return str(section.get("name", configs.DEFAULT_METHOD)) if isinstance(section, Mapping) else configs.DEFAULT_METHOD


def foreign_settings(methods: Sequence[str], written_for: str = configs.DEFAULT_METHOD) -> dict[str, set[str]]:
    """For each method, the settings that it lacks and another method, or the one of the file, has: meant for those.

    A setting that none of them has is in no set, so it is refused like any other mistake. `auto` has none itself.
    """
    own = {name: set[str]() if name == AUTO else own_settings(name) for name in methods if not is_bound(name)}
    all_of_them = set[str]().union(*own.values())
    with suppress(TacitError):  # a name that does not exist counts only where it is used
        all_of_them |= own_settings(written_for)
    return {name: all_of_them - own.get(name, all_of_them) for name in methods}


def _without(tree: Mapping[str, Any], left_out: set[str]) -> dict[str, Any]:
    """Nested settings without those with these dotted names."""
    return {
        section: {name: value for name, value in values.items() if f"{section}.{name}" not in left_out}
        if isinstance(values, Mapping)
        else values
        for section, values in tree.items()
    }
