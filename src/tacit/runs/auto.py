"""`auto`: look at the data, then decide on method, network, steps, rates and views, before round 0.

What comes out is an ordinary, complete config, and lines with the reasons. Settings that the user gives stay. The
numbers follow the page of the method anchor, which says where they were measured.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, NamedTuple

from torch import Tensor

from tacit import nets
from tacit.data import sources
from tacit.data.federate import federate
from tacit.data.folds import with_all_labels
from tacit.data.sources import Source
from tacit.data.split.config import DataConfig
from tacit.data.unknown import with_unknown
from tacit.federation import UNLABELED, Federation, Samples
from tacit.formatting import format_range
from tacit.random import Streams
from tacit.runs import config as configs
from tacit.runs.build import build_data
from tacit.runs.choices import pretrained as pretrained_choice
from tacit.runs.choices.views import choose_views, is_slow, not_measurable
from tacit.runs.config import Config

AUTO, METHOD = "auto", "anchor"  # the word, and what it stands for wherever a sample has no label
VERSION = 3  # raise it when other decisions follow from the same data: stored results of `auto` are void then
ROUNDS = 40
VISIT = 40  # steps of a client's visit to aim for
LEAST = 10  # steps of a visit to a client with few samples
KEPT = 0.75  # share of its samples that a client without labels usually trains on
EPOCHS = 10  # at most
GUARDED_FROM, HELD_OUT = 100, 5  # labels from which on one in five is held out
TESTED_FROM, FOLDS = 1000, 5  # labels from which on a fifth of them is a good test set; parts for cross-validation
RATE = {"train.lr": 0.03, "train.schedule": "cosine"}
SERVER = {"server.steps": 28, "server.lr": 0.01}  # an epoch over few labels is few steps, so they are counted

# The first labels decide what clients learn, so a committee gives them, and they change slowly.
COMMITTEE = 5
MEMORY = 0.8

Settings = dict[str, Any]


class Declared(NamedTuple):
    """What a site says about its samples: how many there are, and how many of them show a label."""

    samples: int
    labeled: int


@dataclass(frozen=True)
class Seen:
    """What matters about the data: who has how many labels and other samples."""

    at_server: int  # labels
    at_clients: int  # labels
    labeled_clients: int
    unlabeled: int  # at all clients
    sizes: tuple[int, ...]  # samples of each client; empty if sites have them

    @classmethod
    def of(cls, federation: Federation) -> "Seen":
        """What a federation holds."""
        sizes = federation.starts.diff()
        shown = (federation.pool.y[federation.order] != UNLABELED).long()
        each = [int(part.sum()) for part in shown.split(sizes.tolist())]
        return cls(
            at_server=len(federation.server.labeled),
            at_clients=sum(each),
            labeled_clients=sum(count > 0 for count in each),
            unlabeled=len(shown) - sum(each),
            sizes=tuple(sizes.tolist()) if len(shown) else (),
        )

    @property
    def sites(self) -> bool:
        """Whether clients hold samples that are not here, and of which nothing is known."""
        return not self.sizes

    def with_declared(self, sites: Sequence[Declared]) -> "Seen":
        """The same with what sites say about themselves."""
        if not sites:
            return self
        labels = [site.labeled for site in sites]
        return replace(
            self,
            at_clients=sum(labels),
            labeled_clients=sum(count > 0 for count in labels),
            unlabeled=sum(site.samples - site.labeled for site in sites),
            sizes=tuple(site.samples for site in sites),
        )


@dataclass(frozen=True)
class Decided:
    """A complete config without the word auto, lines with the reasons, and the data, since it is loaded already."""

    config: Config
    lines: tuple[str, ...]
    source: Source


def decide(
    given: Mapping[str, Any],
    base: Mapping[str, Any],
    tell: Callable[[str], None] | None = None,
    sites: Sequence[Declared] = (),
) -> Decided:
    """Decide what neither the options nor the file give; refuses what a run would refuse.

    `tell` gets a line before something that takes long. `sites` is what the sites of a hub have declared.
    """
    tree = configs.without_listing({name: value for name, value in base.items() if name != "method"})
    options = {name: value for name, value in given.items() if name not in ("method", "method.name")}
    fixed = {configs.OPTIONS.get(name, name) for name in options} | configs.flat(tree).keys()

    def config_with(decisions: Settings) -> Config:
        return configs.from_options({k: v for k, v in decisions.items() if k not in fixed} | options, tree)

    first = config_with({"method.name": METHOD})
    source = sources.load(first.data.name, *first.data.reading)
    start = pretrained_choice.choose(first, source, fixed)
    net = start.settings or _of_net(first, source)
    decisions: Settings = {"method.name": METHOD} | _of_data(first.data, source) | net
    if first.protect.silences_clients:
        decisions.pop("data.hold_out", None)
    config = config_with(decisions)
    if config.data.size != first.data.size:
        source = sources.load(config.data.name, *config.data.reading)
    federation = federate(*build_data(config, source), config.data)
    seen, views = Seen.of(federation).with_declared(sites if config.data.at_sites else ()), None
    unmeasured = "given"
    if "data.augment" not in fixed:
        labeled = _labels(federation)
        if tell is not None and is_slow(federation, labeled):
            tell("comparing strong views on the labels at hand; --set data.augment=fixmatch skips this")
        views = choose_views(federation, labeled, config.data, Streams(config.seed))
        unmeasured = not_measurable(federation, labeled) or "a short training does not learn the labels with it"
    decisions |= {"method.name": _method(seen), "rounds": ROUNDS} | _of_training(seen, config)
    decisions |= _of_selection(federation, config.data)
    decisions |= {"data.augment": views.best} if views else {}
    config = config_with(decisions)
    why = str(views) if views else f"{config.data.augment} ({unmeasured})"
    return Decided(config, tuple(_reasons(config, federation, seen, why, start.line)), source)


def with_labels_present(config: Config) -> tuple[Config, Source]:
    """A config whose labels are those of the user's own data, as `decide` sees it, if it gives no number; the data."""
    source = sources.load(config.data.name, *config.data.reading)
    found = {name.removeprefix("data."): value for name, value in _of_data(config.data, source).items()}
    given = {"validation": config.data.validation} if config.data.validation else {}
    return replace(config, data=replace(config.data, **found | given)), source


# --- decisions --------------------------------------------------------------------------------------------------------


def _of_data(data: DataConfig, source: Source) -> Settings:
    """The labels present are the budget of the user's own data, if some of it has none."""
    needs_number = data.labels in ("server", "client")
    if data.budget or data.at_sites or not sources.is_path(data.name):
        return {}
    if needs_number and bool((source.y != UNLABELED).all()):
        return {}
    folds = _of_folds(data, source)
    guard = _of_guard(data, len(_shown(data, with_all_labels(source) if folds else source)))
    return ({"data.label_fraction": 1.0} if needs_number else {}) | folds | guard


def _shown(data: DataConfig, source: Source) -> Tensor:
    """The labels of a source that a model learns from."""
    found = with_unknown(source, data.unknown_classes)
    return found.y[(found.y != UNLABELED) & (found.y < len(found.classes))]


def _of_guard(data: DataConfig, labels: int) -> Settings:
    """Part of the labels is held out for the guard, if these are enough to tell a collapse from chance."""
    if data.labels == "all" or labels < GUARDED_FROM:
        return {}
    return {"data.validation": labels // HELD_OUT} if data.labels == "server" else {"data.hold_out": 1 / HELD_OUT}


def _of_folds(data: DataConfig, source: Source) -> Settings:
    """Labels too few for a test set, or for the guard, are held out in turn."""
    shown = _shown(data, with_all_labels(source))
    untested = source.held_out and len(shown) < TESTED_FROM
    unguarded = data.labels == "server" and len(shown) < GUARDED_FROM
    folds = min(FOLDS, int(shown.bincount().min())) if len(shown) else 0
    return {"data.folds": folds} if (untested or unguarded) and folds > 1 and not data.shared else {}


def _of_net(config: Config, source: Source) -> Settings:
    """A network that reads these samples, with group norm if it can have it."""
    name, kind = config.net.name, source.inputs.kind
    if name in nets.NETS and kind not in nets.NETS[name].reads:
        name = source.inputs.suggested_net
    grouped = name in nets.NETS and "group" in nets.NETS[name].norms
    return {"net.name": name} | ({"net.norm": "group"} if grouped else {})


def _method(seen: Seen) -> str:
    """Anchor wherever there is something without a label; it serves every place of labels."""
    return METHOD if seen.unlabeled or seen.sites else "fedavg+supervised"


def _of_training(seen: Seen, config: Config) -> Settings:
    """Enough steps in a visit, whatever an epoch is; the server's steps are counted too."""
    server = SERVER | {"server.batch": min(32, seen.at_server)} if seen.at_server else {}
    return RATE | server | _of_method(seen, config) | {"train.epochs": epochs(seen, config.train.batch)}


def _of_method(seen: Seen, config: Config) -> Settings:
    """The settings of anchor; a pretrained network needs no committee, since its members would agree."""
    if _method(seen) != METHOD:
        return {}
    start = {"method.committee": COMMITTEE} if seen.at_server and config.net.sha256 is None else {}
    steady = config.data.stream_steps == 1
    return {"method.least_steps": LEAST} | start | ({"method.memory": MEMORY} if seen.at_server and steady else {})


def _of_selection(federation: Federation, data: DataConfig) -> Settings:
    """Rounds are guarded against falling below the labels alone, if labels are held out to judge them by."""
    server = federation.server
    held_out = len(server.validation) or data.hold_out is not None or (data.folds and len(server.labeled))
    return {"log.select": "guard"} if held_out else {}


def epochs(seen: Seen, batch: int) -> int:
    """As many epochs as come closest to the steps of a visit to the middle client."""
    if seen.sites:
        return 3
    used = median(seen.sizes) * (KEPT if seen.labeled_clients == 0 else 1)
    return min(EPOCHS, max(1, round(VISIT * batch / max(1.0, used))))


def _labels(federation: Federation) -> Samples:
    """Every label at hand: the server's, or those that clients of a simulation show."""
    if len(federation.server.labeled):
        return federation.server.labeled
    return federation.pool.take(federation.pool.labeled)


# --- reasons ----------------------------------------------------------------------------------------------------------


def _reasons(config: Config, federation: Federation, seen: Seen, views: str, start: str) -> Iterator[str]:
    total = len(federation.pool) + len(federation.test)
    yield f"data     {federation.inputs.describe(total, _parts(seen, config), len(federation.classes))}"
    yield f"method   {config.method_name}: {_why(seen)}"
    norm = f" with {config.net.norm} norm: it needs no statistics of uneven clients" if config.net.norm else ""
    yield f"network  {config.net.name}{norm}{start}"
    yield f"steps    {_steps(config, seen)}"
    yield f"views    {views}"
    if (seen.at_server or config.log.select == "guard") and _method(seen) == METHOD:
        yield f"guard    {_guard(config, federation)}"
    if config.data.folds and not len(federation.test):
        yield f"test     {config.data.folds} runs, each without a part of the labels, since there are no test samples"


def _parts(seen: Seen, config: Config) -> str:
    at_clients = f"{seen.at_clients:,} labels at {seen.labeled_clients} of {config.data.clients} clients"
    labels = f"{seen.at_server:,} labels at the server" if seen.at_server else at_clients
    if seen.sites:
        return f"{labels if seen.at_server else 'labels at sites'}, other samples at {config.data.clients} sites"
    if config.data.at_sites:
        labels = labels.replace("clients", "sites")
        return f"{labels}, {seen.unlabeled:,} unlabeled at sites that declare {format_range(seen.sizes)} samples"
    return f"{labels}, {seen.unlabeled:,} unlabeled at clients of {format_range(seen.sizes)} samples"


def _why(seen: Seen) -> str:
    if _method(seen) != METHOD:
        return "every sample has a label"
    if seen.at_server:
        return "the server's labels correct what clients learn from confident labels of the common model"
    return "clients learn from their labels, and from confident labels of their own model on the rest"


def _guard(config: Config, federation: Federation) -> str:
    """Whether the run can tell that it is worse than its labels alone."""
    data, held_out = config.data, len(federation.server.validation)
    if not held_out and not data.folds and data.hold_out is None:
        return "off: no labels are held out to compare with labels only (--validation N holds some out)"
    if config.log.select != "guard":
        return f"off, since log.select = {config.log.select} is given"
    if not held_out and data.hold_out is not None:
        return (
            f"on: clients hold out {data.hold_out:.0%} of their labels and count which are right, to tell whether it "
            "is worse than labels only, which is saved then"
        )
    if not held_out:
        return (
            f"on: {data.folds} runs that each hold out a part of the {len(federation.server.labeled)} labels tell "
            "whether it is better than labels only, which is saved otherwise"
        )
    return f"on: {held_out} held-out labels tell whether it is worse than labels only, which is saved then"


def _steps(config: Config, seen: Seen) -> str:
    train, server = config.train, config.server_train
    passes = f"{train.steps} steps" if train.steps else f"{train.epochs} epoch{'s' * (train.epochs != 1)}"
    falls = " falling to 0" if train.schedule == "cosine" else ""
    clients = f"{config.rounds} rounds of {passes} at the clients, rate {train.lr:g}{falls}"
    amount = f"{server.steps} steps" if server.steps else f"{server.epochs} epochs"
    return clients + (f"; {amount} at the server, rate {server.lr:g}" if seen.at_server else "")
