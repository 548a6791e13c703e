"""Messages that let clients judge a model on labels they hold out: a model to them, two counts back, nothing else."""

from dataclasses import dataclass

from tacit.params import Params


@dataclass(frozen=True)
class CountDown:
    """A model to judge."""

    model: Params


@dataclass(frozen=True)
class CountUp:
    """How many of the labels that a client holds out the model gets right, and how many there are."""

    right: int
    count: int


COUNTS = CountDown, CountUp
