"""Membership inference: whether a model tells which samples it was trained on. An attack, in numbers.

An attacker has the model and a sample with its label. The attack gives the sample a score, larger for what it takes for
a training sample. 0.5 is the area under the ROC curve of guessing, 1 that of certainty.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from tacit.metrics import bootstrap
from tacit.metrics.evaluation import Estimate
from tacit.metrics.predictions import Floats, Predictions

FALSE_ALARMS = 0.01  # of held-out samples, at which the share of training samples found is given …
ENOUGH = 100  # … if there are at least this many of them
SMALLEST = 1e-12  # of a probability: confidence has no infinite logit
_BLOCK = 2_000_000  # weights in memory at a time
FEWEST = 5  # calibration samples of a class from which on it has a scale of its own

LOSS = "loss"  # a small one means a training sample (Yeom et al. 2018)
BY_CLASS = "confidence within the class"  # compared with held-out samples of the class (after Carlini et al. 2022)


@dataclass(frozen=True)
class Attack:
    """How well one attack tells training samples from held-out ones."""

    auc: Estimate
    found: Estimate | None  # share of training samples found at 1 % false alarms; None with few held-out samples


@dataclass(frozen=True)
class Membership:
    """All attacks, on training samples with and without a label that the model saw."""

    about: str  # which model and samples
    attacks: Mapping[str, Mapping[str, Attack]]  # kind of training samples -> attack -> result
    members: Mapping[str, int]  # kind of training samples -> how many
    others: int  # held-out samples

    def to_json(self) -> str:
        """Everything as one JSON object."""
        return json.dumps(asdict(self), indent=2)


def membership(
    about: str, members: Mapping[str, Predictions], others: Predictions, *, draws: int = bootstrap.DRAWS, seed: int = 0
) -> Membership:
    """The attacks on several kinds of training samples, with the outputs of the model for each sample."""
    attacks = _attacks(draws, seed)
    found = {kind: {name: attack(given, others) for name, attack in attacks} for kind, given in members.items()}
    return Membership(about, found, {kind: len(given) for kind, given in members.items()}, len(others))


def _attacks(draws: int, seed: int) -> list[tuple[str, Callable[[Predictions, Predictions], Attack]]]:
    def by_loss(members: Predictions, others: Predictions) -> Attack:
        return _attack(log_odds(members), log_odds(others), draws, seed)

    def by_class(members: Predictions, others: Predictions) -> Attack:
        # Every second held-out sample is the attacker's own, to calibrate with; the attack is measured on the rest.
        own, rest = (others.take(np.arange(first, len(others), 2)) for first in (0, 1))
        return _attack(calibrated(members, own), calibrated(rest, own), draws, seed)

    return [(LOSS, by_loss), (BY_CLASS, by_class)]


def log_odds(given: Predictions) -> Floats:
    """(n,): log p/(1 - p) of the true class; it falls with the loss -log p."""
    p = np.clip(given.probabilities[np.arange(len(given)), given.y], SMALLEST, 1 - SMALLEST)
    return np.asarray(np.log(p) - np.log1p(-p))


def calibrated(given: Predictions, own: Predictions) -> Floats:
    """(n,): how many standard deviations the log-odds lie above those of the attacker's own samples of the class."""
    known = log_odds(own)
    mean, scale = np.full(len(given.classes), known.mean()), np.full(len(given.classes), known.std())
    for label in own.present:
        of_class = known[own.y == label]
        if len(of_class) >= FEWEST:
            mean[label], scale[label] = of_class.mean(), of_class.std()
    return np.asarray((log_odds(given) - mean[given.y]) / np.maximum(scale[given.y], 1e-12))


def _attack(members: Floats, others: Floats, draws: int, seed: int) -> Attack:
    """The area under the curve and the share found, with intervals from draws of members and, apart, of others."""
    scores, member = np.concatenate([members, others]), np.arange(len(members) + len(others)) < len(members)
    area, share = _curve(scores, member, np.ones((1, len(scores))))
    drawn = [_curve(scores, member, w) for w in _drawn_weights(len(members), len(others), draws, seed)]
    areas, shares = (np.concatenate([each[place] for each in drawn]) for place in (0, 1))
    return Attack(_estimate(area, areas), _estimate(share, shares) if len(others) >= ENOUGH else None)


def _drawn_weights(members: int, others: int, draws: int, seed: int) -> Iterator[Floats]:
    """Blocks (b, n) of how often each sample is drawn; as many members and as many others as there are."""
    generator = np.random.default_rng([seed, 96])
    block = max(1, _BLOCK // (members + others))
    for start in range(0, draws, block):
        size = min(block, draws - start)
        parts = [generator.multinomial(n, np.full(n, 1 / n), size=size) for n in (members, others)]
        yield np.concatenate(parts, axis=1).astype(np.float64)


def _curve(scores: Floats, member: NDArray[np.bool_], w: Floats) -> tuple[Floats, Floats]:
    """Weights (b, n) -> the area under the ROC curve (b,), and the share found at the false alarms allowed (b,)."""
    order = np.argsort(-scores, kind="stable")
    last = np.flatnonzero(np.append(np.diff(scores[order]) != 0, True))  # equal scores share a threshold
    hits, alarms = (np.cumsum(w[:, order] * side[order], axis=1)[:, last] for side in (member, ~member))
    hits, alarms = (np.pad(each / each[:, -1:], ((0, 0), (1, 0))) for each in (hits, alarms))
    area = (np.diff(alarms, axis=1) * (hits[:, 1:] + hits[:, :-1]) / 2).sum(axis=1)
    return area, np.where(alarms <= FALSE_ALARMS, hits, 0.0).max(axis=1)


def _estimate(value: Floats, drawn: Floats) -> Estimate:
    low, high = np.quantile(drawn, [(1 - bootstrap.LEVEL) / 2, (1 + bootstrap.LEVEL) / 2])
    return Estimate(float(value[0]), float(low), float(high))
