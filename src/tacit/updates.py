"""What the fields of an upload may hold. A method annotates them; the engine checks every upload against them.

    class WeightsUp:
        w: Update          # a model: names, shapes and types of the network
        n: SampleCount

A field that is not a model or a plain number says what it is with `Shaped`: its shape, its type and the range of its
values. The numbers that a client logs have known
names: those below, and what its method and the parts of it, such as its objective, declare in `logs`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from typing import Annotated, Any, Literal, Protocol, runtime_checkable

import torch
from pydantic import Field
from torch import Tensor

from tacit.nets import Net
from tacit.params import Params, Sparse

MOST_SAMPLES = 2**53  # the largest whole number up to which floats are exact


# What any method may log: training and its objective, the engine's diagnosis of pseudo-labels, and evaluation.
_TRAINING = (
    "steps",
    "sampling_rate",
    "loss_supervised",
    "loss_unlabeled",
    "loss_consistency",
    "weight_unlabeled",
    "kept",
)
_PSEUDO_LABELS = ("pseudo_kept", "pseudo_accuracy", "pseudo_unknown", "pseudo_class", "pseudo_class_share")
COMMON_METRICS = frozenset([*_TRAINING, *_PSEUDO_LABELS, "complementary_accuracy", "local_accuracy"])


def known_metrics(method: object) -> frozenset[str] | None:
    """The names that clients of a method may log; None if it, or a part of it, is a user's code that declares none.

    A method, an objective or any other dataclass among their fields declares in `logs`, a class attribute or a
    property, which names it adds to the common ones.
    """
    own = getattr(method, "logs", () if type(method).__module__.startswith("tacit.") else None)
    values = [getattr(method, item.name) for item in fields(method)] if is_dataclass(method) else []
    parts = [known_metrics(value) for value in values if is_dataclass(value) and not isinstance(value, type)]
    if own is None or None in parts:
        return None
    return COMMON_METRICS.union(own, *(names for names in parts if names is not None))


@dataclass(frozen=True)
class Facts:
    """What a declaration may depend on; all of it is known before round 0."""

    net: Net
    classes: int
    shape: tuple[int, ...]  # of one stored sample
    method: Any  # for its hyper-parameters
    dtype: torch.dtype  # of stored samples


@dataclass(frozen=True)
class ModelField:
    """A field that holds a model, or some of its tensors, by the names of the network."""

    names: Literal["all", "trainable", "some"] = "all"
    change: bool = False  # it holds differences from the model that was sent, not the model itself


@dataclass(frozen=True)
class CountField:
    """A field that says how many samples an upload stands for: at most those that its sender holds.

    A tensor, which is `Shaped` as well, holds one number for each part of the samples; an upload stands for their sum.
    """

    within: str | None = None  # another field of the message, which is never smaller
    weight: bool = True  # the server weighs the upload by it, so a limit on shares lowers it


Bound = float | Callable[[Facts], float | None] | None  # None: no bound


@dataclass(frozen=True)
class Shaped:
    """A field that holds one tensor: its shape, where None is any length up to `longest`, its type, and its range."""

    shape: Callable[[Facts], tuple[int | None, ...]]
    dtype: torch.dtype = torch.float32
    longest: int = 65_536
    least: Bound = None  # of every value
    most: Bound = None

    def bounds(self, facts: Facts) -> tuple[float, float]:
        """The smallest and the largest possible value."""
        least, most = (bound(facts) if callable(bound) else bound for bound in (self.least, self.most))
        return -math.inf if least is None else least, math.inf if most is None else most


Update = Annotated[Params, ModelField()]  # a model that is meant to be averaged over clients
TrainableUpdate = Annotated[Params, ModelField("trainable")]  # the same without buffers
PartialUpdate = Annotated[Params, ModelField("some")]  # some tensors of a model
Change = Annotated[Params, ModelField(change=True)]  # differences of a whole model
TrainableChange = Annotated[Params, ModelField("trainable", change=True)]
SparseUpdate = Annotated[dict[str, Sparse], ModelField()]  # changes of a model
SparseTrainableUpdate = Annotated[dict[str, Sparse], ModelField("trainable")]
SampleCount = Annotated[int, Field(ge=0, le=MOST_SAMPLES, strict=True), CountField()]
# How many samples of each class; an upload stands for their sum.
ClassCounts = Annotated[Tensor, Shaped(lambda facts: (facts.classes,), torch.int64), CountField()]


@dataclass(frozen=True)
class LabelCounts:
    """How many samples have a label of each class, true or given; neither samples nor means of them."""

    of: Annotated[Tensor, Shaped(lambda facts: (facts.classes,), torch.int64), CountField(weight=False)]

    smallest_group = None


@runtime_checkable
class SampleMeans(Protocol):
    """A part of an upload that holds means of samples; a site lets it leave only if each is of enough samples.

    A tensor in the shape of samples outside of such a part counts as samples.
    """

    @property
    def smallest_group(self) -> int | None:
        """How many samples the mean of the fewest has; None if there is no mean."""
        ...
