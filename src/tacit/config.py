"""A run as settings: validated, complete, and written with the run so that it can be repeated exactly.

seed, rounds, cohort                 at the top
[method] name, its hyper-parameters  [objective] its hyper-parameters
[data] [net] [train] [server] [engine] [faults] [log] [track]
"""

import shlex
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Literal

import tomli_w

from tacit import nets
from tacit.catalog import build_method, check
from tacit.data import augment, papers, partition, sources
from tacit.data.scenario import Scenario
from tacit.engines.faults import Faults
from tacit.errors import TacitError, unknown
from tacit.learn import learning_rate
from tacit.method import Count, Method, Natural, Positive, Training

DEFAULT_METHOD = "fedavg"
# A server has few labels, and one pass in large batches is next to no training.
SERVER = {"epochs": 10, "batch": 10}


@dataclass(frozen=True)
class NetConfig:
    """The network."""

    name: str = "lenet"  # of `tacit ls nets`, or module:callable(shape, classes) that makes a torch module
    norm: nets.Norm | None = None  # normalisation layers; the network's own when not given
    width: Positive = 1.0  # factor on the number of channels


@dataclass(frozen=True)
class EngineConfig:
    """What carries the rounds; nothing here changes the resulting model, but a deadline that strikes and the device.

    A GPU adds in another order than a CPU, and need not give the same bits as one of another make.
    """

    name: Literal["local", "flower"] = "local"  # worker processes on this machine, or Flower's simulation on Ray
    ray: str | None = None  # address of a Ray cluster for Flower; RAY_ADDRESS, or one started here when not given
    workers: Natural | None = None  # processes; when not given one per core, 1 beside a GPU; 0: in this process
    strict: bool = False  # without processes too, send everything through encode and decode
    device: str = "cpu"  # or cuda, cuda:1, …
    deadline: Positive | None = None  # seconds after which a round goes on without a client; workers = 0 waits for all
    min_clients: Natural = 1  # replies without which a round stops the run
    memory_mb: Positive = 1024.0  # client memories held in RAM; the rest is on disk


@dataclass(frozen=True)
class LogConfig:
    """What is measured and saved, and how often."""

    evaluate_every: Count = 1  # rounds
    local: bool = False  # also evaluate every client's own model
    checkpoint_every: Count = 1  # rounds


@dataclass(frozen=True)
class TrackConfig:
    """Where else the rounds are shown; nothing here changes a number."""

    tensorboard: bool = False  # event files in the run's folder; needs tacit[tensorboard]
    mlflow: str | None = None  # a folder for MLflow's database, or the address of its server; needs tacit[mlflow]


@dataclass(frozen=True)
class Config:
    """Everything a run depends on."""

    seed: Natural = 0  # of all randomness
    rounds: Count = 30  # of communication
    cohort: Count | None = None  # clients per round; all when not given
    method: dict[str, Any] = field(default_factory=lambda: {"name": DEFAULT_METHOD})
    objective: dict[str, Any] = field(default_factory=dict)
    data: Scenario = Scenario()
    net: NetConfig = NetConfig()
    train: Training = Training()
    server: dict[str, Any] = field(
        default_factory=lambda: dict(SERVER)
    )  # settings of [train] that differ at the server
    engine: EngineConfig = EngineConfig()
    faults: Faults = Faults()
    log: LogConfig = LogConfig()
    track: TrackConfig = TrackConfig()

    @property
    def method_name(self) -> str:
        """The method's full name, such as `fedavg+fixmatch`."""
        return str(self.method["name"])

    def build_method(self) -> Method[Any, Any, Any, Any]:
        """The method with its hyper-parameters."""
        values = {name: value for name, value in self.method.items() if name != "name"}
        return build_method(self.method_name, values, self.objective)

    @property
    def server_train(self) -> Training:
        """How the server trains: as the clients, but for `[server]`."""
        return replace(self.train, **check(Training, self.server, "server"))


# The short names of the command line and of `tacit.run`, and where each stands in a config.
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


NAMES = tuple(item.name for item in fields(Config))
KINDS: dict[str, Any] = {item.name: item.type for item in fields(Config) if is_dataclass(item.type)}
SECTIONS = (*KINDS, "method", "objective", "server")


def make(tree: Mapping[str, Any]) -> Config:
    """A config from nested settings, checked as a whole."""
    if strangers := sorted(tree.keys() - set(NAMES)):
        raise unknown("setting", strangers[0], NAMES)
    sections: dict[str, Any] = {}
    for name, value in tree.items():
        if name in SECTIONS and not isinstance(value, Mapping):
            raise TacitError(f"{name} is a section: write [{name}] and its settings below it")
        if kind := KINDS.get(name):
            given = papers.completed(dict(value)) if name == "data" else value
            sections[name] = kind(**check(kind, given, name))
    plain = {name: value for name, value in tree.items() if name not in sections}
    config = Config(**sections, **check(Config, plain, ""))
    config = replace(
        config,
        method={"name": DEFAULT_METHOD} | config.method,
        server=SERVER | config.server,
        data=replace(config.data, name=_anywhere(config.data.name)),
    )
    return _consistent(config)


def _anywhere(name: str) -> str:
    """Data of one's own by its full path, so that the run can be resumed from any folder."""
    return str(Path(name).absolute()) if sources.is_path(name) else name


def _consistent(config: Config) -> Config:
    """Refuse what single settings can not show to be wrong; every name is looked up here, before anything starts."""
    config = _as_checked(config)
    for section, train in (("train", config.train), ("server", config.server_train)):
        learning_rate(train, train.warmup, max(config.rounds, train.warmup + 1))
        if train.nesterov and not train.momentum:
            raise TacitError(f"nesterov needs momentum: set {section}.momentum above 0")
    partition.parse(config.data.partition)
    sources.find(config.data.name, config.data.size)
    if config.data.augment not in augment.VARIANTS:
        raise unknown("strong view", config.data.augment, augment.VARIANTS)
    nets.find(config.net.name)
    if config.cohort is not None and config.cohort > config.data.clients:
        raise TacitError(
            f"a cohort of {config.cohort} can not be drawn from {config.data.clients} clients: lower --cohort"
        )
    if config.faults.slow and config.engine.deadline is None:
        raise TacitError("slow clients need a deadline: set engine.deadline, in seconds")
    return config


def _as_checked(config: Config) -> Config:
    """The config with the values its method and objective are really built with: 0.1 instead of "0.1"."""
    method: Any = config.build_method()
    as_given = {"name", "preset"}
    values = {name: value if name in as_given else getattr(method, name) for name, value in config.method.items()}
    objective = {name: getattr(method.objective, name) for name in config.objective}
    return replace(config, method=values, objective=objective)


def from_options(options: Mapping[str, Any], base: Mapping[str, Any] | None = None) -> Config:
    """A config from short or dotted names on top of nested settings; None stands for "not given"."""
    tree = {name: dict(value) if isinstance(value, Mapping) else value for name, value in (base or {}).items()}
    for name, value in _one_by_one(options):
        if value is None:
            continue
        path = OPTIONS.get(name, name)
        if "." not in path and path not in NAMES:
            remedy = (
                "write section.name, such as train.lr or method.mu; `tacit show METHOD` lists a method's settings, "
                "and the config.toml of any run has all others"
            )
            raise unknown("option", name, [*OPTIONS, *NAMES], remedy)
        *section, last = path.split(".", 1)
        place = tree.setdefault(section[0], {}) if section else tree
        if not isinstance(place, dict):
            raise TacitError(f"{section[0]} is given as a value and as a section: leave out the one that is wrong")
        place[last] = value
    return make(tree)


def _one_by_one(options: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Settings by name; a section that is given as a whole stands for these, so that the rest of it stays."""
    for name, value in options.items():
        if name in SECTIONS and isinstance(value, Mapping):
            yield from ((f"{name}.{inner}", each) for inner, each in value.items())
        else:
            yield name, value


def refuse_sites(config: Config) -> None:
    """Refuse data at sites, where nothing can be played but by a hub."""
    if config.data.at_sites:
        raise TacitError("sites hold data of their own: use `tacit hub run`, or another --partition")


def assignments(texts: Iterable[str] | None) -> dict[str, Any]:
    """What was given with `--set`, by name."""
    return dict(map(parse_assignment, texts or ()))


def parse_assignment(text: str) -> tuple[str, Any]:
    """`method.mu=0.1` as name and value; a value that is no TOML is taken as a string."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise TacitError(f"'{text}' is not a setting: write --set section.name=value, such as --set train.lr=0.1")
    try:
        return name.strip(), tomllib.loads(f"value = {value}")["value"]
    except ValueError:  # also of a number with thousands of digits
        return name.strip(), value.strip()


def read(path: Path) -> dict[str, Any]:
    """The nested settings in a TOML file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))  # some editors begin with a mark
    except FileNotFoundError:
        raise TacitError(f"there is no file {path}: give the path of a TOML config") from None
    except IsADirectoryError:
        inside = path / "config.toml"
        again = shlex.join(["tacit", "resume", str(path)])
        remedy = f"{inside}, or go on with `{again}`" if inside.exists() else "the path of a TOML config"
        raise TacitError(f"{path} is a folder: give {remedy}") from None
    except OSError as error:
        raise TacitError(f"can not read {path}: {error}; give the path of a TOML config") from error
    except UnicodeDecodeError as error:
        raise TacitError(f"{path} is not text in UTF-8: save it as UTF-8, or give another file") from error
    except ValueError as error:  # no TOML, or a number with thousands of digits
        raise TacitError(f"{path} is not valid TOML: {error}; mend it there") from error


def dumps(config: Config) -> str:
    """The full config as TOML; settings that are not given are left out, since TOML has no word for them."""
    return tomli_w.dumps(_without_none(asdict(config)))


def flat(tree: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Settings by their dotted names, without those that are not given."""
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
