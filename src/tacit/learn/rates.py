"""Learning rates: by the schedule of a run, or lower on a plateau of the validation loss."""

from dataclasses import dataclass, replace
from fractions import Fraction
from math import cos, pi

from tacit.errors import TacitError
from tacit.method import Training


def learning_rate(train: Training, round: int, rounds: int) -> float:
    """The learning rate of a round: linear warm-up, then the schedule over the remaining rounds."""
    if round < train.warmup:
        return train.lr * (round + 1) / train.warmup
    kind, _, argument = train.schedule.partition(":")
    elapsed, span = round - train.warmup, max(1, rounds - train.warmup)
    try:
        if kind == "constant" and not argument:
            return train.lr
        if kind == "decay" and 0 < float(argument) <= 1:
            return train.lr * float(argument) ** elapsed
        waves, _, least = argument.partition(":")
        if kind == "cosine" and 0 <= float(least or 0) <= 1:
            return train.lr * max(float(least or 0), cos(float(Fraction(waves or "1/2")) * pi * elapsed / span))
    except (ValueError, ZeroDivisionError, OverflowError):
        pass
    remedy = "choose constant, cosine, cosine:7/16 or decay:0.995"
    raise TacitError(f"unknown schedule '{train.schedule}'", remedy, code="learn.unknown-schedule")


@dataclass(frozen=True)
class Plateau:
    """A learning rate that falls while a loss does not (Serra et al. 2018), as a share of the first one."""

    share: float = 1.0
    best: float = 1e30  # the lowest loss so far
    waited: int = 0  # losses since then

    def after(self, loss: float, patience: int, decay: float) -> "Plateau":
        """The rate after this loss: divided by `decay` once `patience` losses in a row were no lower than the best."""
        if loss < self.best:
            return Plateau(self.share, loss)
        if self.waited + 1 < patience:
            return replace(self, waited=self.waited + 1)
        return Plateau(self.share / decay, self.best)
