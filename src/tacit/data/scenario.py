"""Where the labels are: which samples the server has, which the clients have, and which of those show a label."""

from dataclasses import dataclass
from hashlib import sha256
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from tacit.data import partition as partitions
from tacit.data.augment import ImageViews
from tacit.data.partition import Indices
from tacit.data.sources import Source
from tacit.errors import TacitError, unknown
from tacit.federation import UNLABELED, Federation, Samples, ServerData
from tacit.random import Streams

Place = Literal["client", "server", "some", "all"]


@dataclass(frozen=True, eq=False)
class Split:
    """Positions in the training samples of a source: who holds them, and which show their label."""

    clients: list[Indices]
    labeled: NDArray[np.bool_]  # over all samples: shows its label at the client that holds it
    server: Indices  # labeled samples of the server
    validation: Indices

    def hash(self) -> str:
        """A fingerprint (SHA-256) of every position in order; equal splits have equal ones."""
        digest = sha256()
        sizes = np.array([len(part) for part in self.clients])
        for part in (sizes, *self.clients, np.flatnonzero(self.labeled), self.server, self.validation):
            digest.update(len(part).to_bytes(8, "little"))  # else a sample could move from one part to the next
            digest.update(part.astype("<i8").tobytes())
        return digest.hexdigest()

    def to_json(self) -> dict[str, object]:
        """The split as plain lists, for a file beside the results."""
        return {
            "clients": [part.tolist() for part in self.clients],
            "labeled": np.flatnonzero(self.labeled).tolist(),
            "server": self.server.tolist(),
            "validation": self.validation.tolist(),
        }


@dataclass(frozen=True)
class Budget:
    """How many labels there are, said in one of three ways, or in none: every label."""

    per_class: int | None = None
    n_labels: int | None = None
    label_fraction: float | None = None

    def __post_init__(self) -> None:
        """Refuse amounts that mean nothing."""
        given = [amount for amount in (self.per_class, self.n_labels, self.label_fraction) if amount is not None]
        if len(given) > 1:
            raise TacitError("--per-class, --n-labels and --label-fraction exclude each other: give one of them")
        if any(amount <= 0 for amount in given) or (self.label_fraction or 0) > 1:
            raise TacitError("a number of labels must be above 0, a label fraction also at most 1: correct it")

    @property
    def everything(self) -> bool:
        """No amount is given."""
        return self == Budget()


def split(
    y: Indices,
    classes: int,
    *,
    clients: int,
    partition: str,
    labels: Place,
    per_class: int | None = None,
    n_labels: int | None = None,
    label_fraction: float | None = None,
    some: float = 0.1,
    validation: int = 0,
    streams: Streams,
) -> Split:
    """Deal samples with true labels `y` (-1: nobody knows it) to server and clients, and hide labels.

    Args:
        y: (n,) true labels.
        classes: How many classes there are.
        clients: How many clients there are.
        partition: How clients share the samples the server does not take, such as `dirichlet:0.3`.
        labels: `server`: drawn evenly over classes, no client sees a label. `client`: every client has some.
            `some`: a few clients have labels, the others none. `all`: every label is at its client.
        per_class: Labels per class; at each client if labels are there, as far as it has the class.
        n_labels: Labels in total, spread evenly over classes (server) or clients.
        label_fraction: This part of all known labels (server), or of those of each client.
        some: The part of clients with labels, when `labels` is `some`; all their labels if no amount is given.
        validation: Labeled samples the server keeps aside, evenly over classes; drawn first, so the same for any
            amount and place of labels.
        streams: Named randomness.
    """
    budget = Budget(per_class, n_labels, label_fraction)
    _check(labels, budget, some)
    known = np.flatnonzero(y != UNLABELED)
    aside = _validation(y, known, classes, validation, streams)
    known = np.setdiff1d(known, aside, assume_unique=True)
    server = _server_labels(y, known, classes, budget, streams) if labels == "server" else known[:0]
    owned = _deal(y, np.concatenate([server, aside]), clients, partition, streams)
    shown = np.zeros(len(y), dtype=np.bool_)
    if labels != "server":
        holders = _labeled_clients(clients, some if labels == "some" else 1.0, streams)
        shown[_client_labels(y, {k: owned[k] for k in holders}, budget, streams)] = True
    return Split(owned, shown, server, aside)


def federation(source: Source, split: Split) -> Federation:
    """All data of a run: the source's pixels, not copied, and only the labels the split shows."""
    hidden = ~torch.from_numpy(split.labeled)
    true = Samples(source.x, source.y)
    return Federation(
        pool=Samples(source.x, source.y.masked_fill(hidden, UNLABELED)),
        order=torch.from_numpy(np.concatenate(split.clients)),
        starts=torch.from_numpy(np.cumsum([0, *(len(part) for part in split.clients)])),
        server=ServerData(true.take(torch.from_numpy(split.server)), true.take(torch.from_numpy(split.validation))),
        test=Samples(source.x_test, source.y_test),
        classes=source.classes,
        views=ImageViews(source.mean, source.std, source.flip, source.shift),
        truth=source.y,
    )


def _check(labels: str, budget: Budget, some: float) -> None:
    """Refuse a place of labels that does not go with their amount."""
    if labels not in get_args(Place):
        raise unknown("place of labels", labels, get_args(Place))
    if labels in ("server", "client") and budget.everything:
        raise TacitError(f"labels at the {labels} need a number: give --per-class, --n-labels or --label-fraction")
    if labels == "all" and not budget.everything:
        raise TacitError("all labels are shown: leave their number out, or use --labels client")
    if labels == "some" and not 0 < some <= 1:
        raise TacitError(
            f"labels can not be at a share {some:g} of the clients: set data.some above 0 and at most to 1"
        )


def _validation(y: Indices, known: Indices, classes: int, count: int, streams: Streams) -> Indices:
    """The server's validation samples."""
    if not 0 <= count <= len(known):
        raise TacitError(
            f"{count} validation samples can not be drawn from {len(known)} with a known label: change --validation"
        )
    want = _even(np.bincount(y[known], minlength=classes), count, streams.numpy_at("validation classes"))
    return _draw(y, known, want, streams.numpy_at("validation"))


def _server_labels(y: Indices, known: Indices, classes: int, budget: Budget, streams: Streams) -> Indices:
    """The server's labeled samples; a larger budget adds to those of a smaller one."""
    room = np.bincount(y[known], minlength=classes)
    if budget.per_class is None:
        want = _even(room, _total(budget, len(known)), streams.numpy_at("server classes"))
    elif budget.per_class <= room.min():
        want = np.full(classes, budget.per_class)
    else:
        raise TacitError(
            f"{budget.per_class} labels per class are asked for and class {room.argmin()} has {room.min()} samples "
            "with a known label: lower --per-class"
        )
    return _draw(y, known, want, streams.numpy_at("server labels"))


def _total(budget: Budget, known: int) -> int:
    """How many labels `n_labels` or `label_fraction` mean where `known` could be shown."""
    total = budget.n_labels if budget.n_labels is not None else round((budget.label_fraction or 0) * known)
    if not 0 < total <= known:
        raise TacitError(f"{total} labels can not be drawn from {known} samples with a known label: change the number")
    return total


def _deal(y: Indices, taken: Indices, clients: int, spec: str, streams: Streams) -> list[Indices]:
    """The samples of every client: those the server did not take."""
    rest = np.setdiff1d(np.arange(len(y)), taken, assume_unique=True)
    if not len(rest):
        raise TacitError(
            f"the server takes all {len(y)} samples and leaves the clients none: lower the number of labels"
        )
    parts = partitions.partition(spec, y[rest], clients, streams.numpy_at("partition"))
    return [rest[part] for part in parts]


def _labeled_clients(clients: int, part: float, streams: Streams) -> list[int]:
    """The clients that show labels, at least one."""
    count = max(1, round(part * clients))
    chosen: list[int] = streams.numpy_at("labeled clients").permutation(clients)[:count].tolist()
    return sorted(chosen)


def _client_labels(y: Indices, held: dict[int, Indices], budget: Budget, streams: Streams) -> Indices:
    """The samples that show their label, out of those `held` by the clients that show any."""
    known = {k: part[y[part] != UNLABELED] for k, part in held.items()}
    if budget.everything:
        return np.concatenate(list(known.values()))
    shares = _shares(np.array([len(part) for part in known.values()]), budget, streams)
    shown = [
        _labels_of_client(y, part, budget, share, streams.numpy_at("client labels", client=k))
        for (k, part), share in zip(known.items(), shares.tolist(), strict=True)
        if share
    ]
    if not shown:
        raise TacitError("no client would have a single label: ask for more labels, or use fewer clients")
    return np.concatenate(shown)


def _shares(room: Indices, budget: Budget, streams: Streams) -> Indices:
    """How many labels clients with `room` known labels show at most."""
    if budget.n_labels is not None:
        return _even(room, _total(budget, int(room.sum())), streams.numpy_at("labels per client"))
    if budget.label_fraction is not None:
        room = np.rint(budget.label_fraction * room).astype(np.int64)
    return room


def _labels_of_client(y: Indices, known: Indices, budget: Budget, share: int, rng: np.random.Generator) -> Indices:
    """The samples that show their label at one client."""
    room = np.bincount(y[known])
    if budget.per_class is not None:
        return _draw(y, known, np.minimum(room, budget.per_class), rng)
    if budget.n_labels is not None:
        return _draw(y, known, _even(room, share, rng), rng)
    mixed: Indices = rng.permutation(known)  # not class by class: a fraction keeps the client's own mix
    return mixed[:share]


def _draw(y: Indices, samples: Indices, want: Indices, rng: np.random.Generator) -> Indices:
    """Ascending: `want[c]` random samples of every class c."""
    mixed = rng.permutation(samples)
    by_class = mixed[np.argsort(y[mixed], kind="stable")]
    label = y[by_class]
    rank = np.arange(len(label)) - np.searchsorted(label, label)  # how many of its class stand before it
    return np.sort(by_class[rank < want[label]])


def _even(room: Indices, total: int, rng: np.random.Generator) -> Indices:
    """Spread `total` over places, as evenly as their `room` allows; random places get what is left over."""
    low, high = 0, total
    while low < high:  # the highest level to which all places can be filled
        level = (low + high + 1) // 2
        low, high = (level, high) if np.minimum(room, level).sum() <= total else (low, level - 1)
    filled = np.minimum(room, low)
    filled[rng.permutation(np.flatnonzero(room > low))[: total - filled.sum()]] += 1
    return filled
