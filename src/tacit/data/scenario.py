"""Where the labels are: which samples the server has, which the clients have, and which of those show a label."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Annotated, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from tacit.data import partition as partitions
from tacit.data.augment import VARIANTS, ImageViews, TextViews
from tacit.data.draw import Draw, draw_of_classes, spread
from tacit.data.partition import Indices
from tacit.data.sources import Source
from tacit.data.stream import Arrival, arrivals
from tacit.errors import TacitError, unknown
from tacit.federation import UNLABELED, Federation, Samples, ServerData, Views
from tacit.random import Streams

Place = Literal["client", "server", "some", "all"]
Number = Annotated[int, Field(gt=0)]
Share = Annotated[float, Field(gt=0, le=1)]
Bits = Annotated[int, Field(ge=8, le=16)]


@dataclass(frozen=True)
class Scenario:
    """Which data, who holds it, where the labels are, what arrives when, and what a network sees of it."""

    name: str = "fashion-small"  # of `tacit ls datasets`, or a path: an image folder, a .csv manifest, an .npz
    split: str | None = None  # settings of this section from a paper, of `tacit ls splits`; what else is given wins
    size: Number | None = None  # side in pixels that images of folders, manifests, tiny-imagenet, covid-radiography get
    bits: Bits | None = None  # that 16-bit grey images of folders, manifests and sites use; found when not given
    samples: Number | None = None  # training samples used, the mix of classes kept; all when not given
    test: Number | None = None  # drawn from all samples (with groups: from its test samples); its own when not given
    clients: Number = 10  # how many hold the data
    partition: str = "iid"  # how it is dealt to them, of `tacit ls partitions`
    labels: Place = "server"  # who has labels
    per_class: Number | None = None  # labels per class, at each holder of labels
    n_labels: Number | None = None  # labels in total
    label_fraction: Share | None = None  # labels as a share of the samples
    some: Share = 0.1  # share of clients with labels, for labels = "some"
    validation: Annotated[int, Field(ge=0)] = 0  # labeled samples the server keeps for validation
    shared: Annotated[int, Field(ge=0)] = 0  # labeled samples of which every client gets a copy
    steps: Number = 1  # unlabeled samples come to their client in so many parts, one after another
    step_rounds: Number = 10  # rounds that a step lasts
    keep: bool = False  # samples of earlier steps stay
    normalise: Literal["data", "unit", "half"] = "data"  # by the data's mean and deviation; to 0..1; to -1..1
    flip: bool | None = None  # the weak view also flips images; as is right for the data set when not given
    shift: Annotated[int, Field(ge=0)] | None = None  # pixels the weak view shifts by at most; likewise
    augment: str = "fixmatch"  # strong view: fixmatch, or the variant of a paper

    @property
    def at_sites(self) -> bool:
        """Whether clients hold data of their own, each on its own machine; the source is then the server's alone."""
        return self.partition == partitions.SITES

    @property
    def budget(self) -> tuple[float, ...]:
        """The number of labels in whichever of the three ways it is given."""
        given = (self.per_class, self.n_labels, self.label_fraction)
        return tuple(amount for amount in given if amount is not None)


def _nothing() -> Indices:
    return np.empty(0, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Split:
    """Positions in the training samples of a source: who holds them, and which show their label."""

    clients: list[Indices]  # shared samples included
    labeled: NDArray[np.bool_]  # over all samples: shows its label at the client that holds it
    server: Indices  # labeled samples of the server
    validation: Indices
    test: Indices = field(default_factory=_nothing)  # empty where the source's own test samples serve
    shared: Indices = field(default_factory=_nothing)
    arrival: Arrival | None = None

    def hash(self) -> str:
        """A fingerprint (SHA-256) of every position in order; equal splits have equal ones."""
        digest = sha256()
        sizes = np.array([len(part) for part in self.clients])
        shown = np.flatnonzero(self.labeled)
        steps = sizes[:0] if self.arrival is None else self.arrival.step.numpy()
        for part in (sizes, *self.clients, shown, self.server, self.validation, self.test, self.shared, steps):
            digest.update(len(part).to_bytes(8, "little"))  # else a sample could move from one part to the next
            digest.update(part.astype("<i8").tobytes())
        return digest.hexdigest()

    def to_json(self) -> dict[str, object]:
        """The split as plain lists, for a file beside the results."""
        plain = {"server": self.server, "validation": self.validation, "test": self.test, "shared": self.shared}
        steps = {} if self.arrival is None else {"steps": self.arrival.step.tolist()}
        return {
            "clients": [part.tolist() for part in self.clients],
            "labeled": np.flatnonzero(self.labeled).tolist(),
            **{name: part.tolist() for name, part in plain.items()},
            **steps,
        }


def pooled(source: Source, scenario: Scenario, streams: Streams) -> Source:
    """The source whose training samples are all there are, if the test samples are to be drawn from these.

    Of a source that says who made each sample, the test samples do not say it, so they stay apart: the number asked
    for is drawn from them.
    """
    if scenario.test is None:
        return source
    if source.groups is not None:
        return _fewer_tests(source, scenario.test, streams)
    x, y = torch.cat([source.x, source.x_test]), torch.cat([source.y, source.y_test])
    return replace(source, x=x, y=y, x_test=source.x_test[:0], y_test=source.y_test[:0])


def _fewer_tests(source: Source, count: int, streams: Streams) -> Source:
    there = len(source.y_test)
    if count > there:
        raise TacitError(f"{count} test samples are asked for and {source.name} has {there}: lower data.test")
    drawn = torch.from_numpy(np.sort(streams.numpy_at("test").permutation(there)[:count]))
    return replace(source, x_test=source.x_test[drawn], y_test=source.y_test[drawn])


def split(
    y: Indices,
    classes: int,
    scenario: Scenario,
    streams: Streams,
    groups: Indices | None = None,
    names: Sequence[str] = (),
) -> Split:
    """Deal samples with true labels `y` (-1: nobody knows it) to server and clients, and hide labels.

    What is drawn earlier does not depend on what is drawn later: test, validation, the samples used, shared ones,
    the server's labels. So the same test set serves any amount and place of labels. `groups` tells who made each
    sample, for partitions that go by it; then the source has its test samples apart, see `pooled`. `names` are those
    of the classes, for what is refused.
    """
    _check(scenario)
    draw = Draw(y, classes, streams, names)
    test = draw.evenly("test", scenario.test or 0 if groups is None else 0)
    validation = draw.evenly("validation", scenario.validation)
    draw.keep_only(scenario.samples)
    shared = draw.evenly("shared", scenario.shared)
    server = _server_labels(draw, scenario) if scenario.labels == "server" else draw.left[:0]
    if not len(draw.left) and not scenario.at_sites:
        raise TacitError(
            f"the server takes all {len(y)} samples and leaves the clients none: lower the number of labels"
        )
    owned, stays = _deal(draw, scenario, groups)
    shown = np.zeros(len(y), dtype=np.bool_)
    shown[shared] = True
    for part in owned if scenario.labels == "all" else [stays]:
        shown[part] = y[part] != UNLABELED
    clients = [np.sort(np.concatenate([part, shared])) for part in owned] if len(shared) else owned
    arrival = None
    if scenario.steps > 1:
        always = np.concatenate([stays, shared])
        arrival = arrivals(owned, always, len(y), scenario.steps, scenario.step_rounds, scenario.keep, streams)
    return Split(clients, shown, server, validation, test, shared, arrival)


def federation(source: Source, split: Split, scenario: Scenario) -> Federation:
    """All data of a run: the source's pixels, not copied, and only the labels the split shows."""
    hidden = ~torch.from_numpy(split.labeled)
    true = Samples(source.x, source.y)
    own_test = Samples(source.x_test, source.y_test)
    return Federation(
        pool=Samples(source.x, source.y.masked_fill(hidden, UNLABELED)),
        order=torch.from_numpy(np.concatenate(split.clients)),
        starts=torch.from_numpy(np.cumsum([0, *(len(part) for part in split.clients)])),
        server=ServerData(true.take(torch.from_numpy(split.server)), true.take(torch.from_numpy(split.validation))),
        test=true.take(torch.from_numpy(split.test)) if len(split.test) else own_test,
        classes=source.classes,
        views=views(source, scenario),
        truth=source.y,
        arrivals=split.arrival,
        bits=source.bits if scenario.bits is None else scenario.bits,
    )


def views(source: Source, scenario: Scenario) -> Views:
    """What a network sees of the samples of a source."""
    if source.text:
        return TextViews(len(source.classes))
    moments = {"data": (source.mean, source.std), "unit": ((0.0,), (1.0,)), "half": ((0.5,), (0.5,))}
    mean, std = (value * len(source.mean) if len(value) == 1 else value for value in moments[scenario.normalise])
    flip = source.flip if scenario.flip is None else scenario.flip
    shift = source.shift if scenario.shift is None else scenario.shift
    return ImageViews(mean, std, flip, shift, VARIANTS[scenario.augment])


def counts(y: Indices, classes: int, split: Split) -> tuple[Indices, Indices]:
    """(clients, classes) samples that show their label and samples that do not, by their true class.

    A last column counts samples whose class nobody knows.
    """
    width = classes + 1
    tables = []
    for shown in (True, False):
        rows = [part[split.labeled[part] == shown] for part in split.clients]
        client = np.repeat(np.arange(len(rows)), [len(row) for row in rows])
        place = client * width + y[np.concatenate(rows)] % width  # -1 % width is the last column
        tables.append(np.bincount(place, minlength=len(rows) * width).reshape(len(rows), width))
    return tables[0], tables[1]


def _check(scenario: Scenario) -> None:
    """Refuse a place of labels that does not go with their amount."""
    labels, budget = scenario.labels, scenario.budget
    if scenario.at_sites:
        _check_sites(scenario)
    if labels not in get_args(Place):
        raise unknown("place of labels", labels, get_args(Place))
    if len(budget) > 1:
        raise TacitError("--per-class, --n-labels and --label-fraction exclude each other: give one of them")
    if any(amount <= 0 for amount in budget) or (scenario.label_fraction or 0) > 1:
        raise TacitError("a number of labels must be above 0, a label fraction also at most 1: correct it")
    if labels in ("server", "client") and not budget and not scenario.at_sites:
        amounts = "--per-class, --n-labels or --label-fraction"
        raise TacitError(f"labels at the {labels} need a number: give {amounts}, or use --labels all")
    if labels == "some" and not 0 < scenario.some <= 1:
        raise TacitError(
            f"labels can not be at a share {scenario.some:g} of the clients: set data.some above 0 and at most to 1"
        )


def _check_sites(scenario: Scenario) -> None:
    """Refuse what only somebody who deals all samples can do."""
    if scenario.labels != "server" and scenario.budget:
        raise TacitError("sites show the labels they have: leave per_class, n_labels and label_fraction out")
    if scenario.shared or scenario.steps > 1:
        raise TacitError("sites have their own samples, all at once: leave data.shared and data.steps out")


def _server_labels(draw: Draw, scenario: Scenario) -> Indices:
    """The server's labeled samples; a larger budget adds to those of a smaller one; all, if the data is its own."""
    room, per_class = draw.room, scenario.per_class
    if not scenario.budget:
        want = room
    elif per_class is None:
        want = spread(room, _total(scenario, len(draw.known)), draw.streams.numpy_at("server classes"))
    elif per_class <= room.min():
        want = np.full(draw.classes, per_class)
    else:
        raise TacitError(
            f"{per_class} labels per class are asked for and class {draw.rarest} has {room.min()} samples "
            "with a known label: lower --per-class"
        )
    return draw.take("server labels", want)


def _total(scenario: Scenario, known: int) -> int:
    """How many labels `n_labels` or `label_fraction` mean where `known` could be shown."""
    share = scenario.label_fraction or 0
    total = scenario.n_labels if scenario.n_labels is not None else round(share * known)
    if not 0 < total <= known:
        raise TacitError(f"{total} labels can not be drawn from {known} samples with a known label: change the number")
    return total


def _deal(draw: Draw, scenario: Scenario, groups: Indices | None) -> tuple[list[Indices], Indices]:
    """The samples of every client, and which of all these are the labeled ones."""
    name, _ = partitions.parse(scenario.partition)
    apart = scenario.labels in ("client", "all") and scenario.budget and name in partitions.OF_LABELED
    if not apart:
        owned = _parts(draw, scenario, groups)
        return owned, _client_labels(draw, owned, scenario)
    labeled = draw.take("client labels", _labels_of_all(draw, scenario))
    rng = draw.streams.numpy_at("labeled partition")
    dealt = partitions.OF_LABELED[name](draw.y[labeled], scenario.clients, rng)
    pairs = zip(dealt, _parts(draw, scenario, groups), strict=True)
    return [np.sort(np.concatenate([labeled[a], b])) for a, b in pairs], labeled


def _parts(draw: Draw, scenario: Scenario, groups: Indices | None) -> list[Indices]:
    """What is left, dealt as the partition says."""
    left, rng = draw.left, draw.streams.numpy_at("partition")
    made_by = None if groups is None else groups[left]
    parts = partitions.partition(scenario.partition, draw.y[left], scenario.clients, rng, made_by)
    return [left[part] for part in parts]


def _labels_of_all(draw: Draw, scenario: Scenario) -> Indices:
    """How many labels of every class the clients have together, where labeled samples are dealt apart."""
    if scenario.per_class is None:
        return spread(draw.room, _total(scenario, len(draw.known)), draw.streams.numpy_at("label classes"))
    want = np.full(draw.classes, scenario.per_class * scenario.clients)
    if (want > draw.room).any():
        raise TacitError(
            f"{scenario.per_class} labels per class at {scenario.clients} clients need {want[0]} samples of each class "
            f"and class {draw.rarest} has {draw.room.min()}: lower --per-class"
        )
    return want


def _labeled_clients(scenario: Scenario, streams: Streams) -> list[int]:
    """The clients that show labels, at least one."""
    part = scenario.some if scenario.labels == "some" else 1.0
    count = max(1, round(part * scenario.clients))
    chosen: list[int] = streams.numpy_at("labeled clients").permutation(scenario.clients)[:count].tolist()
    return sorted(chosen)


def _client_labels(draw: Draw, owned: list[Indices], scenario: Scenario) -> Indices:
    """The labeled samples of the clients, out of those they own."""
    if scenario.labels == "server" or (scenario.labels == "all" and not scenario.budget):
        return draw.left[:0]
    known = {k: owned[k][draw.y[owned[k]] != UNLABELED] for k in _labeled_clients(scenario, draw.streams)}
    if not scenario.budget:
        return np.concatenate(list(known.values()))
    shares = _shares(np.array([len(part) for part in known.values()]), scenario, draw.streams)
    shown = [
        _labels_of_client(draw.y, part, scenario, share, draw.streams.numpy_at("client labels", client=k))
        for (k, part), share in zip(known.items(), shares.tolist(), strict=True)
        if share
    ]
    if not shown:
        raise TacitError("no client would have a single label: ask for more labels, or use fewer clients")
    return np.concatenate(shown)


def _shares(room: Indices, scenario: Scenario, streams: Streams) -> Indices:
    """How many labels clients with `room` known labels show at most."""
    rates = partitions.RATES.get(partitions.parse(scenario.partition)[0])
    if rates and scenario.label_fraction is None:
        raise TacitError(f"{scenario.partition} says which share of its labels a client knows: use --label-fraction")
    if scenario.n_labels is not None:
        return spread(room, _total(scenario, int(room.sum())), streams.numpy_at("labels per client"))
    if scenario.label_fraction is None:
        return room
    rate = np.full(len(room), scenario.label_fraction)
    if rates:
        rate = streams.numpy_at("label rates").permutation(rates(len(room), scenario.label_fraction))
    return np.rint(rate * room).astype(np.int64)


def _labels_of_client(y: Indices, known: Indices, scenario: Scenario, share: int, rng: np.random.Generator) -> Indices:
    """The samples that show their label at one client."""
    room = np.bincount(y[known])
    if scenario.per_class is not None:
        return draw_of_classes(y, known, np.minimum(room, scenario.per_class), rng)
    if scenario.n_labels is not None:
        return draw_of_classes(y, known, spread(room, share, rng), rng)
    mixed: Indices = rng.permutation(known)  # not class by class: a fraction keeps the client's own mix
    return mixed[:share]
