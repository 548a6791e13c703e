"""Bounds trained in one place: what the labels alone give, the labels with all unlabeled samples, and all labels.

They are methods without clients, so that they have checkpoints, a folder and reports like any run. A round is the time
between two evaluations on validation samples. Several rates are tried side by side, and a bound ends when none of them
gains any more, whatever the config says about epochs and rounds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from typing import ClassVar, Literal

from tacit.learn import LocalState, Objective
from tacit.learn.central import Attempt, Pace, Recipe, begin, proceed
from tacit.method import ClientContext, Needs, Reply, ServerContext
from tacit.objectives import OBJECTIVES, Supervised
from tacit.objectives.supervised import WeakAndStrong
from tacit.params import Params

RATES = (0.03, 0.1, 0.01)
PACE = Pace(every=100, patience=10, limit=20_000)
ROUNDS = PACE.limit // PACE.every
TRIAL = 10  # evaluations after which a rate that is clearly behind another ends
PER_LABEL = 4  # unlabeled samples in a batch for each labeled one, where the config does not say
Gathered = Literal["labels", "unlabeled", "everything"]


@dataclass(frozen=True)
class CentralState:
    """How far each way to train got."""

    attempts: list[Attempt]


@dataclass(frozen=True)
class Nothing:
    """The message that is never sent."""


@dataclass(frozen=True)
class Central:
    """A model trained in one place, the best of several rates on validation."""

    rates: tuple[float, ...] = RATES  # learning rates to try

    needs = Needs()
    gathers: ClassVar[Gathered] = "labels"  # whose samples are brought to one place

    @property
    def objectives(self) -> Sequence[Objective]:
        """What to train with each rate: strong views help labels alone too, and a bound must not leave that out."""
        return [Supervised(), WeakAndStrong()]

    @property
    def recipes(self) -> list[Recipe]:
        """All ways to train."""
        return [Recipe(objective, lr) for objective in self.objectives for lr in self.rates]

    def start(self, server: ServerContext) -> CentralState:
        """Every way starts from the same weights."""
        return CentralState([begin(server, recipe) for recipe in self.recipes])

    def send(self, server: ServerContext, state: CentralState) -> tuple[CentralState, Mapping[int, Nothing]]:
        """Train each way that has not ended until the next evaluation; send nothing."""
        batch = server.train.unlabeled_batch or PER_LABEL * server.train.batch
        here, attempts = replace(server, train=replace(server.train, unlabeled_batch=batch)), []
        for number, (recipe, before) in enumerate(zip(self.recipes, state.attempts, strict=True)):
            after = before
            if not before.ended(PACE):
                after = proceed(here, recipe, number, before, server.data.validation, PACE)
                server.log("steps", after.steps - before.steps)
            attempts.append(after)
        leader = max(attempts, key=lambda attempt: attempt.rank)
        server.log("validation_now", leader.now / max(1, len(server.data.validation)))
        return CentralState(self._without_hopeless(attempts, len(server.data.validation))), {}

    def client_update(
        self, client: ClientContext, memory: LocalState | None, down: Nothing
    ) -> Reply[LocalState, Nothing]:
        """Never called, since nothing is sent."""
        return Reply(memory, None)

    def merge(self, server: ServerContext, state: CentralState, ups: Mapping[int, Nothing]) -> CentralState:
        """Nothing arrives."""
        return state

    def model(self, state: CentralState) -> Params:
        """The best model on validation so far."""
        return self._leader(state)[1].best

    def ended(self, state: CentralState) -> str:
        """Why training is over; empty if it is not."""
        if not all(attempt.ended(PACE) for attempt in state.attempts):
            return ""
        return f"{PACE.patience} evaluations brought no gain on validation, or {PACE.limit:,} steps were made"

    def explain(self, state: CentralState) -> tuple[str, str]:
        """Which model is saved, and why."""
        recipe, attempt = self._leader(state)
        named = OBJECTIVES | {"supervised on weak and strong views": WeakAndStrong}
        name = next(name for name, kind in named.items() if isinstance(recipe.objective, kind))
        return f"{name} at rate {recipe.lr:g}, {attempt.steps:,} steps", "it is best on validation"

    def _leader(self, state: CentralState) -> tuple[Recipe, Attempt]:
        pairs = zip(self.recipes, state.attempts, strict=True)
        return max(pairs, key=lambda pair: pair[1].rank)

    def _without_hopeless(self, attempts: list[Attempt], count: int) -> list[Attempt]:
        """End ways that are two standard errors behind the best one after their trial."""
        best = max(attempt.right for attempt in attempts)
        share = max(0, best) / max(1, count)
        least = best - 2 * sqrt(share * (1 - share) * count)
        over = [attempt.steps >= TRIAL * PACE.every and attempt.right < least for attempt in attempts]
        return [replace(a, waited=PACE.patience) if end else a for a, end in zip(attempts, over, strict=True)]


@dataclass(frozen=True)
class LabelsOnly(Central):
    """The labels alone, all in one place: what a federation has to beat."""


@dataclass(frozen=True)
class Pooled(Central):
    """The labels and all unlabeled samples in one place, with FixMatch or FreeMatch: what a federation could reach."""

    needs = Needs(simulation=True)
    gathers: ClassVar[Gathered] = "unlabeled"

    @property
    def objectives(self) -> Sequence[Objective]:
        """Whichever is better on validation."""
        return [OBJECTIVES["fixmatch"](), OBJECTIVES["freematch"]()]


@dataclass(frozen=True)
class AllLabels(Central):
    """Every sample in one place, with its label if that is known: what more labels would give."""

    needs = Needs(simulation=True)
    gathers: ClassVar[Gathered] = "everything"


CENTRAL = {"labels-only": LabelsOnly, "pooled": Pooled, "all-labels": AllLabels}
