"""Who holds what: the data of every client, of the server, and the test set.

Label -1 means "no label". Labels at the clients, at the server, at some clients or everywhere differ only in the
contents of the same tensors; no code depends on it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

UNLABELED = -1


@dataclass(frozen=True)
class Samples:
    """Inputs `x` (n, …) as stored (see `Inputs`) and labels `y` (n,), -1 for none.

    `group` (n,) says which samples belong together, such as those of a patient, where evaluation must not divide them.
    """

    x: Tensor
    y: Tensor
    group: Tensor | None = None

    def __post_init__(self) -> None:
        """Refuse inputs, labels and groups of different length."""
        if len(self.x) != len(self.y):
            raise ValueError(f"{len(self.x)} inputs but {len(self.y)} labels")
        if self.group is not None and len(self.group) != len(self.y):
            raise ValueError(f"{len(self.group)} groups but {len(self.y)} labels")

    def __len__(self) -> int:
        """Number of samples."""
        return len(self.y)

    @property
    def labeled(self) -> Tensor:
        """Positions of the samples with a label."""
        return (self.y != UNLABELED).nonzero().reshape(-1)

    @property
    def unlabeled(self) -> Tensor:
        """Positions of the samples without a label."""
        return (self.y == UNLABELED).nonzero().reshape(-1)

    def take(self, index: Tensor) -> "Samples":
        """The samples at these positions, as copies."""
        group = None if self.group is None else self.group.index_select(0, index)
        # x[index] takes 20 times as long
        return Samples(self.x.index_select(0, index), self.y.index_select(0, index), group)

    def folds(self, order: Tensor, count: int) -> Tensor:
        """(n,) The fold of each sample of `order`: dealt in turn, the samples of a group together."""
        place = torch.arange(len(order))
        if self.group is None:
            return place % count
        found, which = self.group[order].unique(return_inverse=True)
        first = torch.full_like(found, len(order)).scatter_reduce_(0, which, place, "amin")
        return first.argsort().argsort()[which] % count

    def fingerprint(self) -> int:
        """A 64-bit number that other samples, or other labels, do not share."""
        digest = blake2b(digest_size=8)
        for part in (self.x, self.y):
            digest.update(part.cpu().contiguous().numpy().tobytes())
        return int.from_bytes(digest.digest(), "big", signed=True)


@dataclass(frozen=True)
class ServerData:
    """What the server holds: labeled samples to train on and a validation set; either may be empty."""

    labeled: Samples
    validation: Samples


class Views(Protocol):
    """How stored inputs become what a network sees: floats, normalised, augmented or not."""

    def plain(self, x: Tensor) -> Tensor:
        """Normalised only."""
        ...

    def weak(self, x: Tensor, stream: torch.Generator) -> Tensor:
        """Changed slightly, so that the label certainly still holds."""
        ...

    def strong(self, x: Tensor, stream: torch.Generator) -> Tensor:
        """Changed heavily, so that the label most likely still holds."""
        ...


@runtime_checkable
class BatchedViews(Views, Protocol):
    """Views that can be made of several batches at once, which is faster per sample."""

    def of_batches(
        self, x: Tensor, sizes: Sequence[int], kinds: Sequence[str], stream: torch.Generator
    ) -> list[Tensor]:
        """Views of these kinds, weak or strong, of all samples `x`, with the bits of one call per batch and kind.

        `sizes` are those of the batches, which follow each other in `x`; each takes all kinds before the next one.
        """
        ...


class Difference(NamedTuple):
    """Why samples of one holder do not fit those of another, what to do, and the code of the error."""

    problem: str
    remedy: str
    code: str


class Inputs(Protocol):
    """What one sample is. Everything else asks this object and never a tensor's rank or type.

    Implementations are frozen dataclasses in `tacit.data.inputs`.
    """

    @property
    def kind(self) -> str:
        """The kind of samples, in one word: images, text or vectors."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one stored sample."""
        ...

    @property
    def dtype(self) -> torch.dtype:
        """The type of stored samples."""
        ...

    @property
    def bits(self) -> int | None:
        """How many bits 16-bit grey values use; None if unknown, or if there are no such values."""
        ...

    @property
    def mixable(self) -> bool:
        """Whether a weighted mean of two samples is a sample."""
        ...

    @property
    def drawable(self) -> bool:
        """Whether samples are pictures: their shape is channels, height, width."""
        ...

    @property
    def from_files(self) -> bool:
        """Whether a site can bring files with such samples."""
        ...

    @property
    def reads_classes(self) -> bool:
        """Whether samples are made of the classes themselves, as a text is of characters."""
        ...

    @property
    def sizes(self) -> tuple[int, ...]:
        """Smallest and largest width and height of files before they were scaled; empty if unknown or not pictures."""
        ...

    @property
    def suggested_net(self) -> str:
        """A network of ours that reads such samples and has features."""
        ...

    @property
    def settings(self) -> tuple[str, ...]:
        """The settings in `[data]` that only such samples have."""
        ...

    @property
    def export_note(self) -> str:
        """How to make the input of an exported model from a sample, in words."""
        ...

    def with_moments(self, mean: tuple[float, ...], std: tuple[float, ...]) -> "Inputs":
        """These inputs with the normalisation that pretrained weights expect, one value per channel or one for all."""
        ...

    def configured(self, data: Any) -> "Inputs":
        """These inputs with what the section `[data]` of a config sets differently."""
        ...

    def views(self, data: Any) -> Views:
        """What a network sees of such samples, by the section `[data]` of a config."""
        ...

    def blank(self) -> Tensor:
        """One sample of zeros as a network gets it, to try a network with."""
        ...

    def invent(self, count: int, stream: torch.Generator) -> Tensor:
        """Stored samples of noise, for a dry run."""
        ...

    def noise(self, kind: str, views: Views, stream: torch.Generator) -> Tensor:
        """What a network sees of one sample of pure noise: `gaussian`, or random `pixels` if samples have any."""
        ...

    def describe(self, count: int, parts: str, classes: int) -> str:
        """A number of samples, their form and their classes in words; `parts` says what they are used for."""
        ...

    def pictures(self, seen: Tensor, views: Views) -> Tensor:
        """What a network sees as pictures (n, h, w, c) with values from 0 to 1; only if `drawable`."""
        ...

    def written(self, seen: Tensor, width: int) -> str:
        """What a network sees of one sample as at most `width` characters; only if not `drawable`."""
        ...

    def level_name(self, place: int) -> str:
        """What a number of `Reader.levels` is about, such as the brightness."""
        ...

    def difference(self, other: "Inputs") -> Difference | None:
        """Why a site with `other` inputs cannot take part in a federation with these; None: it can."""
        ...

    def adopt(self, x: Tensor, other: "Inputs") -> Tensor:
        """Samples that a site stores as `other`, in the form of these; only if there is no `difference`."""
        ...

    def to_plain(self) -> dict[str, Any]:
        """As values that TOML and JSON can hold; `tacit.data.inputs.from_plain` is the way back."""
        ...


class Arrivals(Protocol):
    """Which samples a client has in which round: data that streams in."""

    def present(self, samples: Tensor, round: int) -> Tensor:
        """The positions in the pool, among these, that are present in this round."""
        ...


@dataclass(frozen=True)
class Parts:
    """Samples of a pool that belong to clients: client k has `order[starts[k]:starts[k + 1]]`."""

    order: Tensor
    starts: Tensor

    def of(self, client: int) -> Tensor:
        """The positions in the pool of a client's samples."""
        return self.order[int(self.starts[client]) : int(self.starts[client + 1])]


@dataclass(frozen=True)
class Federation:
    """All data of one run. Client k owns the samples `order[starts[k]:starts[k + 1]]` of the pool.

    One pool and one index array instead of a list of clients: a hundred thousand clients need no objects. A sample may
    be at several clients (data sharing), or at its client in some rounds only (`arrivals`). `truth` holds the labels
    that clients do not see; it belongs to the simulator and cannot be reached from a context. In it, samples of classes
    that the model does not have (`unknown`) have the numbers after those of `classes`.
    """

    pool: Samples
    order: Tensor
    starts: Tensor
    server: ServerData
    test: Samples
    classes: tuple[str, ...]
    inputs: Inputs
    views: Views
    truth: Tensor | None = field(default=None, repr=False)
    arrivals: Arrivals | None = field(default=None, repr=False)
    unknown: tuple[str, ...] = ()
    note: str = ""  # what the reader did to the samples, in sentences
    left_out: int = 0  # files that could not be read
    held_out: Parts | None = field(default=None, repr=False)  # labeled samples that clients judge models by

    @property
    def clients(self) -> int:
        """How many clients there are."""
        return len(self.starts) - 1

    def client(self, client: int, round: int) -> Samples:
        """Copies of the samples that a client holds in a round."""
        return self.pool.take(self._owned(client, round))

    def held_out_by(self, client: int) -> Samples:
        """Copies of the labeled samples that a client does not train on, to judge models by."""
        rows = self.order[:0] if self.held_out is None else self.held_out.of(client)
        return self.pool.take(rows)

    def true_labels(self, client: int, round: int) -> Tensor | None:
        """The labels that the client would see if none were hidden; None if they are unknown."""
        return None if self.truth is None else self.truth[self._owned(client, round)]

    def share_memory(self) -> None:
        """Move the tensors to shared memory, for worker processes that do not inherit them."""
        for samples in (self.pool, self.test):
            samples.x.share_memory_()
            samples.y.share_memory_()

    def _owned(self, client: int, round: int) -> Tensor:
        owned = self.order[int(self.starts[client]) : int(self.starts[client + 1])]
        return owned if self.arrivals is None else self.arrivals.present(owned, round)
