"""What cross-validation found about a run before its own first round.

Every label is judged by a run that did not learn from it, and by models that learned from the other labels alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt
from typing import Any

from tacit.learn import Score

Z = 1.959964  # standard errors on each side of a 95 % interval


@dataclass(frozen=True)
class CrossValidated:
    """Scores over all labels, each from the run that held it out."""

    scores: tuple[Score | None, ...]  # of the common model after each round, where evaluated
    reference: Score | None = None  # of labels only, by the best recipe; None if the server has no labels
    recipe: int = 0  # the number of that recipe
    gained: int = 0  # labels that only the last round gets right
    lost: int = 0  # labels that only the reference gets right

    @property
    def last(self) -> Score:
        """Of the model that the rounds end with."""
        return next(score for score in reversed(self.scores) if score is not None)

    def at(self, round: int) -> Score | None:
        """Of the common model after a round."""
        return self.scores[round] if round < len(self.scores) else None

    @property
    def helps(self) -> bool:
        """Whether the rounds end above labels only: more labels right or, with as many, a lower loss."""
        assert self.reference is not None
        return (self.last.correct, -self.last.loss) > (self.reference.correct, -self.reference.loss)

    @property
    def gain(self) -> tuple[float, float]:
        """The 95 % interval of the gain over labels only, from the labels on which the two differ."""
        count, ahead = self.last.count, self.gained - self.lost
        half = Z * sqrt(max(0.0, self.gained + self.lost - ahead * ahead / count))
        return (ahead - half) / count, (ahead + half) / count

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        scores = [_plain(score) for score in self.scores]
        rest = {"recipe": self.recipe, "gained": self.gained, "lost": self.lost}
        return {"rounds": scores, "reference": _plain(self.reference)} | rest

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "CrossValidated":
        """What `to_json` wrote."""
        scores = tuple(_score(each) for each in values["rounds"])
        numbers = (int(values[name]) for name in ("recipe", "gained", "lost"))
        return cls(scores, _score(values["reference"]), *numbers)


def _plain(score: Score | None) -> list[float] | None:
    return None if score is None else [score.correct, score.loss, score.count]


def _score(values: Any) -> Score | None:
    return None if values is None else Score(int(values[0]), float(values[1]), int(values[2]))
