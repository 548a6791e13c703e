"""One order of all samples per seed: every draw takes from its own part of it, so no amount moves another draw.

Each class has a random order. Labels and training samples come from its beginning, validation samples from its middle
on, test samples from its end, shared ones from the end of those used. So a draw of another size only grows or shrinks,
and as long as two draws do not meet, neither changes the other. The classes are interleaved evenly: the first n samples
have about the class proportions of the whole.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tacit.data.split.apportion import Indices
from tacit.random import Streams

MIDDLE = 0.5  # where validation samples begin


@dataclass(frozen=True, eq=False)
class Orders:
    """Where each sample stands in the order of its class: from 0 to 1, and from 1 on for spare samples."""

    place: NDArray[np.float64] = field(repr=False)

    @classmethod
    def draw(cls, y: Indices, spare: int, streams: Streams) -> "Orders":
        """The orders of samples with true labels `y`, unlabeled ones as a class of their own.

        The last `spare` samples come from the source's own test set. They follow all others, so that they are the
        first test samples and the last training samples, and the other places do not depend on whether they are there.
        """
        own = len(y) - spare
        rng, rng_spare = streams.numpy_at("order"), streams.numpy_at("spare order")
        key = np.concatenate([rng.random(own), 1 + rng_spare.random(spare)])
        within = np.concatenate([streams.numpy_at("place").random(own), rng_spare.random(spare)])
        by_class = np.lexsort((key, y))
        rank = np.empty(len(y), dtype=np.int64)
        rank[by_class] = np.arange(len(y)) - np.searchsorted(y[by_class], y[by_class])
        size = np.bincount(y[:own] + 1, minlength=int(y.max(initial=-1)) + 2)  # of each class without spare samples
        return cls((rank + within) / np.maximum(size[y + 1], 1))

    @property
    def own(self) -> NDArray[np.bool_]:
        """Which samples are not spare ones."""
        own: NDArray[np.bool_] = self.place < 1
        return own

    def prefer(self, use: str, samples: Indices) -> Indices:
        """The samples in the order in which a use takes them."""
        place = self.place[samples]
        if use in ("test", "shared"):
            place = -place
        elif use == "validation":  # to the end, then back from the middle
            place = np.where(place >= MIDDLE, place, place.max(initial=0.0) + 1 - place)
        chosen: Indices = samples[np.argsort(place, kind="stable")]
        return chosen
