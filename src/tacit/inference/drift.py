"""Whether samples resemble those that a model was tested on: brightness or features, sizes of images, confidence."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

from tacit.data.sources.images import Size
from tacit.inference.description import Description

FEWEST = 20  # samples below which nothing is reported: their mean is mostly chance
SHIFT = 1.0  # least shift of a mean that is reported, in deviations between samples
SCALE = 1.5  # factor on the sizes seen in training within which an image has a usual size
SHARE = 0.1  # least share of images of an unusual size that is reported
UNSURE = 0.9  # confidence below which an answer counts as unsure, unless another threshold is given
MORE_UNSURE = 0.2  # least rise of the share of unsure answers that is reported


@dataclass(frozen=True)
class Seen:
    """Sums over predicted samples; those of parts add up."""

    samples: int = 0
    levels: tuple[float, ...] = ()  # sum of each level
    files: int = 0  # samples that are image files
    unusual: int = 0  # of these, files of an unusual size
    unsure: int = 0  # answers below the threshold

    def __add__(self, other: "Seen") -> "Seen":
        """The sums over both."""
        pairs = zip(self.levels, other.levels, strict=True) if self.levels and other.levels else None
        levels = tuple(a + b for a, b in pairs) if pairs else self.levels or other.levels
        counts = {name: getattr(self, name) + getattr(other, name) for name in _COUNTS}
        return Seen(levels=levels, **counts)

    def to_plain(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self) | {"levels": list(self.levels)}

    @classmethod
    def from_plain(cls, values: Mapping[str, Any]) -> "Seen":
        """From `to_plain`."""
        counts = {name: int(values[name]) for name in _COUNTS}
        return cls(levels=tuple(map(float, values["levels"])), **counts)


_COUNTS = ("samples", "files", "unusual", "unsure")


def see(about: Description, levels: Tensor, confidence: Tensor, sizes: list[Size], threshold: float | None) -> Seen:
    """The sums over some samples: levels (n, k), confidence (n,), and the sizes of those that are files."""
    unusual = sum(not _usual(size, about) for size in sizes)
    unsure = int((confidence < (UNSURE if threshold is None else threshold)).sum())
    return Seen(len(levels), tuple(levels.double().sum(dim=0).tolist()), len(sizes), unusual, unsure)


def warnings(about: Description, seen: Seen, threshold: float | None) -> Iterator[str]:
    """A sentence on every respect in which the samples differ from those that the model was tested on."""
    reference = about.reference
    if reference is None or seen.samples < FEWEST:
        return
    means = [total / seen.samples for total in seen.levels]
    shifts = [
        (abs(mean - usual) / spread, place)
        for place, (mean, usual, spread) in enumerate(zip(means, reference.levels, reference.spread, strict=True))
        if spread > 0
    ]
    worst, place = max(shifts, default=(0.0, 0))
    if worst > SHIFT:
        what = about.inputs.level_name(place)
        yield (
            f"{what} is {means[place]:.3g} on average and was {reference.levels[place]:.3g} for the test samples, "
            f"{worst:.1f} deviations away"
        )
    if seen.unusual > SHARE * seen.files:
        yield f"{seen.unusual:,} of {seen.files:,} images are much smaller or larger than those of the training"
    limit = UNSURE if threshold is None else threshold
    share, usual = seen.unsure / seen.samples, reference.share_below(limit)
    if share > usual + MORE_UNSURE:
        yield f"{share:.0%} of the answers have a confidence below {limit:g}, and {usual:.0%} of the test samples had"


def _usual(size: Size, about: Description) -> bool:
    """Whether an image file has about the size of those in training."""
    known = about.inputs.sizes
    return all(low / SCALE <= side <= high * SCALE for side, low, high in zip(size, known[:2], known[2:], strict=False))
