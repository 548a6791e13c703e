"""From what a user asks for to one config: `auto`, a method or a bound by name, with the settings that it has."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tacit.data.sources import Source
from tacit.runs import config as configs
from tacit.runs.auto import AUTO, Declared, decide
from tacit.runs.bounds import is_bound, plan
from tacit.runs.central import CENTRAL
from tacit.runs.config import Config
from tacit.runs.fitting import fit, named_in

METHOD = ("method.name", "method")  # the two names of the same option
OF_METHODS = ("method", "objective")  # sections whose settings are meant for a method by name


@dataclass(frozen=True)
class Resolved:
    """A config, the name that the user gave its method, and lines about what was decided on the way."""

    config: Config
    name: str
    lines: tuple[str, ...] = ()
    loaded: Source | None = None  # the data, if it had to be read to decide


def resolve(
    options: Mapping[str, Any],
    base: Mapping[str, Any] | None = None,
    default: str = AUTO,
    tell: Callable[[str], None] | None = None,
    sites: Sequence[Declared] = (),
) -> Resolved:
    """The config of options, by short or dotted names, on top of the settings of a file; None means "not given".

    If the options name another method than the file, it gets the settings of the file that it has. If neither names
    one, nor sets anything of a method, it is `default`. `tell` gets a line before something that takes long. `sites`
    is what the sites of a hub have declared, for `auto`.
    """
    base, given = base or {}, {name: value for name, value in options.items() if value is not None}
    asked = next((str(given[name]) for name in METHOD if isinstance(given.get(name), str)), None)
    name = asked or (named_in(base) if _about_methods(base, given) else default)
    if name == AUTO:
        decided = decide(given, base, tell, sites)
        return Resolved(decided.config, AUTO, decided.lines, decided.source)
    if is_bound(name):
        others = {key: value for key, value in given.items() if key not in METHOD}
        config = plan(base, others, name, others.pop("seed", base.get("seed", 0)))
        own_length = name in CENTRAL and "rounds" in given
        note = f"without effect: rounds ({name} trains until validation shows no more gain)"
        return Resolved(config, name, (note,) if own_length else ())
    if asked is None or asked == named_in(base):
        return Resolved(configs.from_options(given, base), name)
    fitted = fit(base, {}, [asked])[asked]
    return Resolved(configs.from_options(given, fitted.base), asked, tuple(filter(None, [fitted.note(asked)])))


def _about_methods(base: Mapping[str, Any], given: Mapping[str, Any]) -> bool:
    """Whether a file or options say anything about a method or an objective."""
    return any(base.get(section) for section in OF_METHODS) or any(
        name.partition(".")[0] in OF_METHODS for name in given
    )
