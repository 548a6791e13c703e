"""The settings of a run: validated, complete, and written with the run so that it can be repeated exactly.

seed, rounds, cohort                 at the top
[method] name, its hyper-parameters  [objective] its hyper-parameters
[data] [net] [net.options] [train] [server] [engine] [faults] [limits] [protect] [log] [track]
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from enum import Enum
from functools import cached_property
from pathlib import Path
from typing import Any

import tomli_w

from tacit.data import sources
from tacit.data.split import papers, partition
from tacit.data.split.config import DataConfig
from tacit.data.views import augment
from tacit.engines.faults import Faults
from tacit.engines.limits import Limits
from tacit.errors import TacitError, notice_renamed, unknown
from tacit.learn import learning_rate
from tacit.method import Count, Method, Natural, Training
from tacit.protect import rules
from tacit.protect.config import Protection
from tacit.runs import full_config, toml_file
from tacit.runs.directory import Fingerprints, fingerprint
from tacit.runs.net.config import NetConfig, completed
from tacit.runs.registry import build_method, renamed
from tacit.runs.sections import EngineConfig, LogConfig, TrackConfig
from tacit.runs.settings import check

DEFAULT_METHOD = "fedavg"
read = toml_file.read
# A server has few labels: one pass over them in large batches would hardly train at all.
SERVER = {"epochs": 10, "batch": 10}


class Role(Enum):
    """What a field of `Config` can change. Stated once, on the field; no other code lists settings by their effect."""

    RESULT = "result"  # the model, and what a client computes and sends
    COURSE = "course"  # the model, but not what a client sends in a round: a site that agreed need not agree again
    SEED = "seed"  # the model, within one row of a table
    CARRIER = "carrier"  # what computes it; never a number, on one type of processor
    DISPLAY = "display"  # what is shown elsewhere; never a number


OUTCOME = (Role.RESULT, Role.COURSE, Role.SEED)  # all that determines the model
SETTINGS = (Role.RESULT, Role.COURSE)  # the same for every seed


def _as(role: Role, default: Any) -> Any:
    """Declare a field of `Config` with its role and its default."""
    factory = (lambda: dict(default)) if isinstance(default, dict) else (lambda: default)
    return field(default_factory=factory, metadata={"role": role})


@dataclass(frozen=True)
class Config:
    """Everything a run depends on."""

    seed: Natural = _as(Role.SEED, 0)  # seed of all randomness
    rounds: Count = _as(Role.COURSE, 30)  # rounds of communication
    cohort: Count | None = _as(Role.RESULT, None)  # clients per round; all when not given
    method: dict[str, Any] = _as(Role.RESULT, {"name": DEFAULT_METHOD})  # its name and its settings
    objective: dict[str, Any] = _as(Role.RESULT, {})  # settings of the objective
    data: DataConfig = _as(Role.RESULT, DataConfig())
    net: NetConfig = _as(Role.RESULT, NetConfig())
    train: Training = _as(Role.RESULT, Training())
    server: dict[str, Any] = _as(Role.RESULT, SERVER)  # settings of [train] that differ at the server
    engine: EngineConfig = _as(Role.CARRIER, EngineConfig())
    faults: Faults = _as(Role.COURSE, Faults())
    limits: Limits = _as(Role.COURSE, Limits())
    protect: Protection = _as(Role.RESULT, Protection())
    log: LogConfig = _as(Role.COURSE, LogConfig())
    track: TrackConfig = _as(Role.DISPLAY, TrackConfig())

    def fingerprints(self) -> Fingerprints:
        """Hashes of the settings that determine the model, with and without the seed."""
        outcome, settings = (fingerprint(self.tree(*roles)) for roles in (OUTCOME, SETTINGS))
        return Fingerprints(outcome, settings)

    def tree(self, *roles: Role) -> dict[str, Any]:
        """The nested settings with these roles (default: all) as a TOML file has them: unset ones are left out."""
        return {name: value for name, value in _without_none(asdict(self)).items() if name in names_of(*roles)}

    @property
    def method_name(self) -> str:
        """The method's full name, such as `fedavg+fixmatch`."""
        return str(self.method["name"])

    def build_method(self) -> Method[Any, Any, Any, Any]:
        """The method with its hyper-parameters: built once, since it holds nothing else and is frozen."""
        return self._built

    @cached_property
    def _built(self) -> Method[Any, Any, Any, Any]:
        values = {name: value for name, value in self.method.items() if name != "name"}
        return build_method(self.method_name, values, self.objective)

    @property
    def server_train(self) -> Training:
        """How the server trains: like the clients, except for what `[server]` sets."""
        return replace(self.train, **check(Training, self.server, "server"))


# The short names of the command line and of `tacit.run`, and the setting that each stands for. `make tables` writes
# the options of the command line from them.
OPTIONS = {
    "method": "method.name",
    "data": "data.name",
    "split": "data.split",
    "labels": "data.labels",
    "per_class": "data.per_class",
    "n_labels": "data.n_labels",
    "label_fraction": "data.label_fraction",
    "validation": "data.validation",
    "clients": "data.clients",
    "partition": "data.partition",
    "cohort": "cohort",
    "net": "net.name",
    "rounds": "rounds",
    "epochs": "train.epochs",
    "batch": "train.batch",
    "lr": "train.lr",
    "workers": "engine.workers",
    "device": "engine.device",
    "engine": "engine.name",
    "seed": "seed",
}


# Settings by their names up to tacit 0.1, which still work, and their present names.
RENAMED = {
    "data.some": "data.labeled_clients",
    "data.steps": "data.stream_steps",
    "data.step_rounds": "data.rounds_per_step",
}

NET_OPTIONS = "net.options."  # the one section within a section

NAMES = tuple(item.name for item in fields(Config))


def names_of(*roles: Role) -> list[str]:
    """The fields of a config with one of these roles; all fields if no role is given."""
    return [item.name for item in fields(Config) if not roles or item.metadata["role"] in roles]


SECTION_TYPES: dict[str, Any] = {item.name: item.type for item in fields(Config) if is_dataclass(item.type)}
SECTIONS = (*SECTION_TYPES, "method", "objective", "server")


def make(tree: Mapping[str, Any]) -> Config:
    """A config from nested settings, checked as a whole."""
    tree = _with_present_names(tree)
    if unknown_names := sorted(tree.keys() - set(NAMES)):
        raise unknown("setting", unknown_names[0], NAMES)
    sections: dict[str, Any] = {}
    for name, value in tree.items():
        if name in SECTIONS and not isinstance(value, Mapping):
            raise TacitError(
                f"{name} is a section", f"write [{name}] and its settings below it", code="config.section-as-value"
            )
        if kind := SECTION_TYPES.get(name):
            given = papers.completed(dict(value)) if name == "data" else value
            sections[name] = kind(**check(kind, given, name))
    plain = {name: value for name, value in tree.items() if name not in sections}
    config = Config(**sections, **check(Config, plain, ""))
    if "name" not in tree.get("net", {}):
        config = replace(config, net=replace(config.net, name=sources.kind_of(config.data.name).suggested_net))
    config = replace(
        config,
        method={"name": DEFAULT_METHOD} | config.method,
        server=SERVER | config.server,
        data=replace(
            config.data, name=_absolute(config.data.name), partition=partition.canonical(config.data.partition)
        ),
        train=_precision_as_given(config.train),
        protect=replace(config.protect, combine=rules.canonical(config.protect.combine)),
    )
    return _consistent(config)


def _precision_as_given(train: Training) -> Training:
    """The default precision as not given, so that equal runs have equal configs and hashes."""
    return replace(train, precision=None) if train.precision == "fp32" else train


def _with_present_names(tree: Mapping[str, Any]) -> dict[str, Any]:
    """The nested settings, those with an old name under their present one."""
    found = {name: dict(value) if isinstance(value, Mapping) else value for name, value in tree.items()}
    for old, new in RENAMED.items():
        (section, before), after = old.split("."), new.split(".")[1]
        place = found.get(section)
        if not isinstance(place, dict) or before not in place:
            continue
        if after in place:
            raise TacitError(f"{old} is the old name of {new}", f"leave {old} out", code="config.given-twice")
        notice_renamed(old, new)
        place[after] = place.pop(before)
    return found


def _absolute(name: str) -> str:
    """The user's own data by its full path, so that the run can be resumed from any folder."""
    return str(Path(name).absolute()) if sources.is_path(name) else name


def _consistent(config: Config) -> Config:
    """Refuse settings that are wrong only in combination, and names that do not exist, before anything starts."""
    config = _as_checked(replace(config, net=completed(config.net)))
    for section, train in (("train", config.train), ("server", config.server_train)):
        learning_rate(train, train.warmup, max(config.rounds, train.warmup + 1))
        if train.nesterov and not train.momentum:
            raise TacitError(
                f"{section}.nesterov needs momentum",
                f"set {section}.momentum above 0",
                code="config.nesterov-without-momentum",
            )
    partition.parse(config.data.partition)
    sources.find(config.data.name, config.data.size)
    if config.data.augment not in augment.VARIANTS:
        raise unknown("strong view", config.data.augment, augment.VARIANTS)
    if config.cohort is not None and config.cohort > config.data.clients:
        raise TacitError(
            f"a cohort of {config.cohort} cannot be drawn from {config.data.clients} clients",
            "lower --cohort",
            code="config.cohort-too-large",
        )
    if config.faults.slow and config.engine.deadline is None:
        raise TacitError(
            "faults.slow needs a deadline", "set engine.deadline, in seconds", code="config.slow-without-deadline"
        )
    return config


def _with_heads(net: NetConfig, method: object) -> NetConfig:
    """The network with the second head that the objective has a use for, unless the user decided about it."""
    objective = getattr(method, "objective", None)
    if net.one_vs_all is None and objective is not None and objective.needs.one_vs_all:
        return replace(net, one_vs_all=True)
    return net


def _as_checked(config: Config) -> Config:
    """The config with the values that its method and objective were built with: 0.1 instead of "0.1".

    Only those that differ from the defaults stay, so that equal runs have equal configs and hashes.
    """
    method: Any = config.build_method()
    given = renamed(type(method), config.method)
    values = {name: value if name in full_config.AS_GIVEN else getattr(method, name) for name, value in given.items()}
    objective = {name: getattr(method.objective, name) for name in config.objective}
    values, objective = full_config.chosen(config.method_name, values, objective)
    server = check(Training, config.server, "server")
    server = full_config.chosen_at_server(server, config.train, SERVER)
    net = _with_heads(config.net, method)
    checked = replace(config, net=net, method=values, objective=objective, server=server)
    vars(checked)["_built"] = method  # these values build the same method
    return checked


def from_options(options: Mapping[str, Any], base: Mapping[str, Any] | None = None) -> Config:
    """A config from nested settings, overridden by options with short or dotted names; None means "not given"."""
    tree = without_listing(base or {})
    for name, value in _one_by_one(options):
        if value is None:
            continue
        path = OPTIONS.get(name, name)
        if path in RENAMED:
            notice_renamed(path, RENAMED[path])
            path = RENAMED[path]
        if "." not in path and path not in NAMES:
            remedy = (
                "write section.name, such as train.lr or method.mu (`tacit show METHOD` lists a method's settings, "
                "the config.toml of any run has all the others)"
            )
            raise unknown("option", name, [*OPTIONS, *NAMES], remedy)
        *section, last = path.split(".", 1)
        place = tree.setdefault(section[0], {}) if section else tree
        if path.startswith(NET_OPTIONS) and isinstance(place, dict):
            last = path.removeprefix(NET_OPTIONS)
            place["options"] = place = dict(place.get("options", {}))
        if not isinstance(place, dict):
            raise TacitError(
                f"{section[0]} is given both as a value and as a section",
                "leave out one of them",
                code="config.value-and-section",
            )
        place[last] = value
    return make(tree)


def without_listing(base: Mapping[str, Any]) -> dict[str, Any]:
    """Nested settings by their present names; of a run's full config, only what was chosen (see `full_config`)."""
    return full_config.without_listing(_with_present_names(base), DEFAULT_METHOD, SERVER)


def _one_by_one(options: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Settings one by one: a section given as a whole is taken apart, so that its other settings stay."""
    for name, value in options.items():
        if name in (*SECTIONS, NET_OPTIONS.rstrip(".")) and isinstance(value, Mapping):
            yield from _one_by_one({f"{name}.{inner}": each for inner, each in value.items()})
        else:
            yield name, value


def refuse_sites(config: Config) -> None:
    """Refuse a config whose data is at sites: only a hub can run it."""
    if config.data.at_sites:
        raise TacitError(
            "only a hub can run a config whose data is at sites",
            "use `tacit hub run`, or another --partition",
            code="config.needs-hub",
        )


def dumps(config: Config) -> str:
    """The full config as TOML, with every setting of method, objective and server.

    Settings that are None are left out, since TOML has no null.
    """
    return tomli_w.dumps(in_full(config))


def in_full(config: Config) -> dict[str, Any]:
    """Every setting, nested."""
    method = config.build_method()
    return config.tree() | full_config.in_full(config.method_name, config.method, method, config.server_train)


def flat(tree: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Nested settings by their dotted names; those that are not given are left out."""
    found: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{before}{name}.")
        elif value is not None:
            found[before + name] = value
    return found


def _without_none(tree: dict[str, Any]) -> dict[str, Any]:
    return {
        name: _without_none(value) if isinstance(value, dict) else value
        for name, value in tree.items()
        if value is not None
    }
