"""The section `[data]` of a config, and the checks that need several of its settings."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field

from tacit.data.split import partition as partitions
from tacit.errors import TacitError, unknown

Place = Literal["client", "server", "some", "all"]
Number = Annotated[int, Field(gt=0)]
Share = Annotated[float, Field(gt=0, le=1)]
Part = Annotated[float, Field(gt=0, lt=1)]
Folds = Annotated[int, Field(ge=2)]
Amount = Annotated[float, Field(ge=0)]
Bits = Annotated[int, Field(ge=8, le=16)]


def _classes(value: Any) -> Any:
    """Names separated by commas as a list, and no class as None."""
    if isinstance(value, str):
        value = [name.strip() for name in value.split(",") if name.strip()]
    return None if value in (0, [], ()) and value is not False else value


Classes = Annotated[Annotated[int, Field(ge=0)] | tuple[str, ...] | None, BeforeValidator(_classes)]


@dataclass(frozen=True)
class DataConfig:
    """Which data, who holds it, where the labels are, what arrives when, and what a network sees of it."""

    name: str = "fashion-small"  # see `tacit ls datasets`; or a path: an image folder, .csv, .npz, .parquet
    split: str | None = None  # settings of a paper, see `tacit ls splits`; any other setting given here overrides them
    size: Number | None = None  # image side in pixels, for folders, manifests, tiny-imagenet and covid-radiography
    bits: Bits | None = None  # bits that 16-bit grey images use (folders, manifests, sites); detected when not given
    fit: Literal["crop", "pad"] | None = None  # images that are not square are cropped, or get black borders
    skip_broken: bool | None = None  # files that cannot be read as images are left out and listed, not refused
    samples: Number | None = None  # training samples to use, in the same class proportions; all when not given
    draw: Literal["nested", "0.1"] = "nested"  # a seed's samples: the same for any amounts; or as Tacit 0.1 drew them
    test: Number | None = None  # test samples to draw (with groups: from the test set); the test set when not given
    clients: Number = 10  # number of clients
    partition: str = "iid"  # how clients share the samples; see `tacit ls partitions`
    labels: Place = "server"  # who has labels
    per_class: Number | None = None  # labels per class, at each holder of labels
    n_labels: Number | None = None  # labels in total
    label_fraction: Share | None = None  # labels as a fraction of the samples
    labeled_clients: Share = 0.1  # fraction of clients with labels, for labels = "some"
    unknown_classes: Classes = None  # the last N classes, or these names: never labeled, and not the model's
    validation: Annotated[int, Field(ge=0)] = 0  # labeled samples the server holds out for validation
    hold_out: Part | None = None  # share of its labels that a client with labels holds out, to count right answers
    folds: Folds | None = None  # cross-validation: parts of the labels, each held out in turn by a run of its own
    fold: Annotated[int, Field(ge=0)] | None = None  # the part that this run holds out as its test set, from 0
    shared: Annotated[int, Field(ge=0)] = 0  # labeled samples that every client gets a copy of
    stream_steps: Number = 1  # steps in which a client's unlabeled samples arrive; 1: all are there from the start
    rounds_per_step: Number = 10  # rounds between two of these steps
    keep: bool = False  # samples of earlier steps stay
    normalise: Literal["data", "unit", "half"] = "data"  # by the data's mean and deviation; to 0..1; to -1..1
    flip: bool | None = None  # the weak view may flip images; the data set decides when not given
    shift: Annotated[int, Field(ge=0)] | None = None  # pixels the weak view shifts by at most; as with flip
    augment: str = "fixmatch"  # strong view of images: fixmatch, gentle, or a paper's variant
    noise: Amount = 0.1  # weak view of vectors: deviation of the noise added, in deviations of a feature
    strong_noise: Amount = 0.3  # strong view of vectors: the same, larger
    mask: Annotated[float, Field(ge=0, lt=1)] = 0.2  # strong view of vectors: share of features set to their mean

    @property
    def reading(self) -> tuple[int | None, int | None, bool, bool]:
        """How images are read: size, bits, whether they are padded, and whether broken files are left out."""
        return self.size, self.bits, self.fit == "pad", bool(self.skip_broken)

    @property
    def at_sites(self) -> bool:
        """Whether clients are sites that hold their own data; the source is then the server's alone."""
        return self.partition == partitions.SITES

    @property
    def budget(self) -> tuple[float, ...]:
        """The number of labels, in whichever of the three ways it is given."""
        given = (self.per_class, self.n_labels, self.label_fraction)
        return tuple(amount for amount in given if amount is not None)


def check(data: DataConfig) -> None:
    """Refuse a placement of labels that does not fit their number."""
    labels, budget = data.labels, data.budget
    if data.at_sites:
        _check_sites(data)
    if labels not in get_args(Place):
        raise unknown("place of labels", labels, get_args(Place))
    if len(budget) > 1:
        raise TacitError(
            "--per-class, --n-labels and --label-fraction exclude each other",
            "give only one of them",
            code="data.conflicting-label-amounts",
        )
    if any(amount <= 0 for amount in budget) or (data.label_fraction or 0) > 1:
        raise TacitError(
            "the number of labels is out of range",
            "give a number above 0, for --label-fraction also at most 1",
            code="data.bad-label-amount",
        )
    if labels in ("server", "client") and not budget and not data.at_sites:
        raise TacitError(
            f"labels at the {labels} need a number",
            "give --per-class, --n-labels or --label-fraction, or use --labels all",
            code="data.needs-label-amount",
        )
    if labels == "some" and not 0 < data.labeled_clients <= 1:
        raise TacitError(
            f"labels cannot be at a fraction {data.labeled_clients:g} of the clients",
            "set data.labeled_clients above 0 and at most to 1",
            code="data.bad-labeled-clients",
        )


def _check_sites(data: DataConfig) -> None:
    """Refuse what is possible only where one party divides all samples."""
    if data.labels != "server" and data.budget:
        raise TacitError(
            "sites show the labels they have",
            "leave out per_class, n_labels and label_fraction",
            code="data.labels-fixed-at-sites",
        )
    if data.shared or data.stream_steps > 1:
        raise TacitError(
            "sites have their own samples, all at once",
            "leave out data.shared and data.stream_steps",
            code="data.samples-fixed-at-sites",
        )
    if data.unknown_classes:
        raise TacitError(
            "sites have unlabeled samples of whatever classes they find",
            "leave out data.unknown_classes",
            code="data.classes-fixed-at-sites",
        )
