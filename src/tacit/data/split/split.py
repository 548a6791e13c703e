"""Draw a split: which samples the server and each client hold, and which of them show their label."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256

import numpy as np
from numpy.typing import NDArray

from tacit.data.split import partition as partitions
from tacit.data.split.apportion import Indices
from tacit.data.split.config import DataConfig, check
from tacit.data.split.orders import Orders
from tacit.data.split.pool import SamplePool
from tacit.data.split.stream import Arrival, arrivals
from tacit.errors import TacitError
from tacit.random import Streams


def _nothing() -> Indices:
    return np.empty(0, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Split:
    """Positions in a source's training samples: who holds them, and which show their label."""

    clients: list[Indices]  # shared samples included
    labeled: NDArray[np.bool_]  # over all samples: shows its label at the client that holds it
    server: Indices  # labeled samples of the server
    validation: Indices
    test: Indices = field(default_factory=_nothing)  # empty if the source's test set is used
    shared: Indices = field(default_factory=_nothing)
    arrival: Arrival | None = None

    def hash(self) -> str:
        """SHA-256 over every position in order; equal splits have equal hashes."""
        digest = sha256()
        sizes = np.array([len(part) for part in self.clients])
        shown = np.flatnonzero(self.labeled)
        steps = sizes[:0] if self.arrival is None else self.arrival.step.numpy()
        for part in (sizes, *self.clients, shown, self.server, self.validation, self.test, self.shared, steps):
            digest.update(len(part).to_bytes(8, "little"))  # so that a sample cannot move to the next part unnoticed
            digest.update(part.astype("<i8").tobytes())
        return digest.hexdigest()

    def to_json(self) -> dict[str, object]:
        """The split as plain lists, for `split.json`."""
        plain = {"server": self.server, "validation": self.validation, "test": self.test, "shared": self.shared}
        steps = {} if self.arrival is None else {"steps": self.arrival.step.tolist()}
        return {
            "clients": [part.tolist() for part in self.clients],
            "labeled": np.flatnonzero(self.labeled).tolist(),
            **{name: part.tolist() for name, part in plain.items()},
            **steps,
        }


def draw_split(
    y: Indices,
    classes: int,
    data: DataConfig,
    streams: Streams,
    groups: Indices | None = None,
    names: Sequence[str] = (),
    *,
    whole_groups: bool = False,
    spare: int = 0,
) -> Split:
    """Divide samples with true labels `y` (-1: unknown) among server and clients, and hide labels.

    A label of `classes` or more is that of an unknown class: its samples go to the clients by the partition, like those
    of any class, and never show a label. With all labels shown there is no place for them, so they are left out.

    The order of draws is fixed: test, validation, the samples used, shared ones, the server's labels. A draw does not
    depend on later ones, so the same test set serves any number and placement of labels. Each takes from its own part
    of one order (`Orders`), so as far as there is room it does not depend on earlier ones either. The last `spare`
    samples are those of the source's test set. `groups` says who made each
    sample, for partitions by writer or speaker; such a source has a separate test set, see `pooled`. `names` are the
    class names for error messages. With `whole_groups` no group is divided between validation and training, or between
    clients.
    """
    check(data)
    orders = None if data.draw == "0.1" else Orders.draw(y, spare, streams)
    pool = SamplePool(y, classes, streams, names, orders)
    test = pool.take_evenly("test", data.test or 0 if groups is None else 0)
    if whole_groups and groups is not None:
        validation = pool.take_groups("validation", data.validation, groups)
    else:
        validation = pool.take_evenly("validation", data.validation)
    pool.reduce_to(data.samples)
    shared = pool.take_evenly("shared", data.shared)
    server = _server_labels(pool, data) if data.labels == "server" else pool.left[:0]
    if not len(pool.left) and not data.at_sites:
        raise TacitError(
            f"the server takes all {len(y)} samples and leaves none for the clients",
            "lower the number of labels",
            code="data.no-client-samples",
        )
    owned, stays = _divide(pool, data, groups, whole_groups)
    shown = np.zeros(len(y), dtype=np.bool_)
    shown[shared] = True
    if data.labels == "all":
        owned = [part[y[part] < classes] for part in owned]
    for part in owned if data.labels == "all" else [stays]:
        shown[part] = pool.has_class[part]
    clients = [np.sort(np.concatenate([part, shared])) for part in owned] if len(shared) else owned
    arrival = None
    if data.stream_steps > 1:
        always = np.concatenate([stays, shared])
        arrival = arrivals(owned, always, len(y), data.stream_steps, data.rounds_per_step, data.keep, streams)
    return Split(clients, shown, server, validation, test, shared, arrival)


def class_counts(y: Indices, classes: int, split: Split) -> tuple[Indices, Indices]:
    """(clients, classes + 1) labeled and unlabeled samples by true class; the last column counts unknown classes."""
    width = classes + 1
    tables = []
    for shown in (True, False):
        rows = [part[split.labeled[part] == shown] for part in split.clients]
        client = np.repeat(np.arange(len(rows)), [len(row) for row in rows])
        place = client * width + y[np.concatenate(rows)] % width  # -1 % width is the last column
        tables.append(np.bincount(place, minlength=len(rows) * width).reshape(len(rows), width))
    return tables[0], tables[1]


def _server_labels(pool: SamplePool, data: DataConfig) -> Indices:
    """The server's labeled samples: all without a budget; a larger budget includes a smaller one's."""
    available, per_class = pool.available, data.per_class
    if not data.budget:
        want = available
    elif per_class is None:
        want = pool.spread(available, _total(data, len(pool.known)), pool.streams.numpy_at("server classes"))
    elif per_class <= available.min():
        want = np.full(pool.classes, per_class)
    else:
        raise TacitError(
            f"{per_class} labels per class are more than the {available.min()} samples of class {pool.rarest}"
            " with a known label",
            "lower --per-class",
            code="data.too-few-of-class",
        )
    return pool.take("server labels", want)


def _total(data: DataConfig, known: int) -> int:
    """How many of `known` labels `n_labels` or `label_fraction` asks for."""
    share = data.label_fraction or 0
    total = data.n_labels if data.n_labels is not None else round(share * known)
    if not 0 < total <= known:
        raise TacitError(
            f"{total} labels cannot be drawn from {known} samples with a known label",
            f"change the number of labels to one from 1 to {known}",
            code="data.label-amount-out-of-range",
        )
    return total


def _divide(
    pool: SamplePool, data: DataConfig, groups: Indices | None, whole_groups: bool
) -> tuple[list[Indices], Indices]:
    """The samples of every client, and which of all these are the labeled ones."""
    name, _ = partitions.parse(data.partition)
    apart = data.labels in ("client", "all") and data.budget and name in partitions.OF_LABELED
    if not apart:
        owned = _parts(pool, data, groups, whole_groups)
        return owned, _client_labels(pool, owned, data)
    if whole_groups:
        raise TacitError(
            f"{name} divides labeled and unlabeled samples separately, and samples of a group must stay together",
            "use iid, dirichlet:0.5 or by-writer",
            code="data.partition-divides-groups",
        )
    labeled = pool.take("client labels", _labels_of_all(pool, data))
    rng = pool.streams.numpy_at("labeled partition")
    divided = partitions.OF_LABELED[name](pool.y[labeled], data.clients, rng)
    pairs = zip(divided, _parts(pool, data, groups, whole_groups), strict=True)
    return [np.sort(np.concatenate([labeled[a], b])) for a, b in pairs], labeled


def _parts(pool: SamplePool, data: DataConfig, groups: Indices | None, whole_groups: bool) -> list[Indices]:
    """The samples left, divided by the partition."""
    rng, orders = pool.streams.numpy_at("partition"), pool.orders
    left = pool.left if orders is None else pool.mixed("samples", pool.left, rng)
    population = None if orders is None else pool.y[orders.own]
    made_by = None if groups is None else groups[left]
    parts = partitions.partition(
        data.partition, pool.y[left], data.clients, rng, made_by, whole_groups=whole_groups, population=population
    )
    return [np.sort(left[part]) for part in parts]


def _labels_of_all(pool: SamplePool, data: DataConfig) -> Indices:
    """How many labels of every class the clients have together, where labeled samples are divided separately."""
    if data.per_class is None:
        return pool.spread(pool.available, _total(data, len(pool.known)), pool.streams.numpy_at("label classes"))
    want = np.full(pool.classes, data.per_class * data.clients)
    if (want > pool.available).any():
        raise TacitError(
            f"{data.per_class} labels per class at {data.clients} clients need {want[0]} samples of each class, and"
            f" class {pool.rarest} has {pool.available.min()}",
            "lower --per-class",
            code="data.too-few-of-class",
        )
    return want


def _labeled_clients(data: DataConfig, streams: Streams) -> list[int]:
    """The clients that show labels, at least one."""
    part = data.labeled_clients if data.labels == "some" else 1.0
    count = max(1, round(part * data.clients))
    chosen: list[int] = streams.numpy_at("labeled clients").permutation(data.clients)[:count].tolist()
    return sorted(chosen)


def _client_labels(pool: SamplePool, owned: list[Indices], data: DataConfig) -> Indices:
    """The labeled samples of the clients, out of those they own."""
    if data.labels == "server" or (data.labels == "all" and not data.budget):
        return pool.left[:0]
    known = {k: owned[k][pool.has_class[owned[k]]] for k in _labeled_clients(data, pool.streams)}
    if not data.budget:
        return np.concatenate(list(known.values()))
    shares = _shares(np.array([len(part) for part in known.values()]), data, pool)
    shown = [
        _labels_of_client(pool, part, data, share, pool.streams.numpy_at("client labels", client=k))
        for (k, part), share in zip(known.items(), shares.tolist(), strict=True)
        if share
    ]
    if not shown:
        raise TacitError(
            "no client would have a single label",
            "ask for more labels, or use fewer clients",
            code="data.no-client-labels",
        )
    return np.concatenate(shown)


def _shares(available: Indices, data: DataConfig, pool: SamplePool) -> Indices:
    """The largest number of labels that clients with `available` known labels show."""
    rates = partitions.RATES.get(partitions.parse(data.partition)[0])
    if rates and data.label_fraction is None:
        raise TacitError(
            f"{data.partition} sets the fraction of its labels that each client knows",
            "use --label-fraction",
            code="data.needs-label-fraction",
        )
    if data.n_labels is not None:
        return pool.spread(available, _total(data, int(available.sum())), pool.streams.numpy_at("labels per client"))
    if data.label_fraction is None:
        return available
    rate = np.full(len(available), data.label_fraction)
    if rates:
        rate = pool.streams.numpy_at("label rates").permutation(rates(len(available), data.label_fraction))
    return np.rint(rate * available).astype(np.int64)


def _labels_of_client(
    pool: SamplePool, known: Indices, data: DataConfig, share: int, rng: np.random.Generator
) -> Indices:
    """The samples that show their label at one client."""
    available = np.bincount(pool.y[known])
    if data.per_class is not None:
        return pool.choose("labels", known, np.minimum(available, data.per_class), rng)
    if data.n_labels is not None:
        return pool.choose("labels", known, pool.spread(available, share, rng), rng)
    return pool.mixed("labels", known, rng)[:share]  # not class by class: a fraction preserves the client's class mix
