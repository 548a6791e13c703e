"""Training in one place, without rounds: several ways at once, each until validation shows no more gain.

What is judged is an average of the weights over the steps, which is steadier than the weights themselves, so that no
schedule has to know when training ends.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tacit import params
from tacit.federation import Samples
from tacit.learn.evaluation import EVALUATION_BATCH, Score, evaluate
from tacit.learn.forward import LocalLoss
from tacit.learn.training import LocalState, Objective, fit
from tacit.method import Holder, Needs
from tacit.params import Params

SMOOTHING = 0.99  # share of the average that stays in a step; less in the first ones
WORST = 1e30  # a loss before the first evaluation


@dataclass(frozen=True)
class Recipe:
    """One way to train."""

    objective: Objective
    lr: float
    start: int = 0  # which initial weights; 0: those that every method starts from


@dataclass(frozen=True)
class Pace:
    """How often to evaluate, and when to stop."""

    every: int = 100  # steps between evaluations
    patience: int = 10  # evaluations without a gain after which training ends
    limit: int = 20_000  # steps at most


ALONE = Pace(every=100, patience=1_000_000, limit=600)  # where no samples can tell when to stop


@dataclass(frozen=True)
class Attempt:
    """How far training by a recipe got, and the best model on validation so far."""

    w: Params
    average: Params
    best: Params
    carried: LocalState | None = None
    steps: int = 0
    right: int = -1  # validation samples that the best model gets right
    loss: float = WORST  # its mean loss on them
    now: int = -1  # samples that the present average gets right
    waited: int = 0  # evaluations since more were right than ever before

    def ended(self, pace: Pace) -> bool:
        """Whether training is over."""
        return self.waited >= pace.patience or self.steps >= pace.limit

    @property
    def rank(self) -> tuple[int, float]:
        """How good the best model is, to compare attempts: samples that are right, then the loss."""
        return self.right, -self.loss


def begin(holder: Holder, recipe: Recipe) -> Attempt:
    """Before the first step."""
    w = holder.initial()
    if recipe.start:
        stream = holder.streams.within(f"start {recipe.start}").at("init")
        w = {name: value.to(holder.device) for name, value in holder.net.init(stream).items()}
    return Attempt(w, params.clone(w), params.clone(w))


def proceed(holder: Holder, recipe: Recipe, number: int, attempt: Attempt, validation: Samples, pace: Pace) -> Attempt:
    """Train until the next evaluation; `number` names the random streams of this recipe."""
    here = replace(
        holder,
        round=attempt.steps // pace.every,
        streams=holder.streams.within(f"recipe {number}"),
        train=replace(holder.train, steps=pace.every, lr=recipe.lr, schedule="constant", warmup=0, optimizer="keep"),
    )
    average = params.channels_last({name: value.to(holder.device) for name, value in attempt.average.items()})
    trained = fit(here, attempt.w, _Smoothed(recipe.objective, average, attempt.steps), carried=attempt.carried)
    average, steps = params.clone(average), attempt.steps + trained.steps
    score = score_on(holder, average, validation)
    loss = score.loss / max(1, score.count)
    found = replace(attempt, w=trained.params, average=average, carried=trained.carried, steps=steps, now=score.correct)
    if not trained.steps or not all(bool(value.isfinite().all()) for value in average.values()):
        return replace(attempt, steps=steps, waited=pace.patience)
    gained = score.correct > attempt.right
    waited = 0 if gained else attempt.waited + 1
    if (score.correct, -loss) > attempt.rank:
        return replace(found, best=average, right=score.correct, loss=loss, waited=waited)
    return replace(found, waited=waited)


def best_of(holder: Holder, recipes: Sequence[Recipe], validation: Samples, pace: Pace) -> Attempt:
    """Train by all recipes to their end; the best attempt on validation, the first one if several are as good."""
    attempts = []
    for number, recipe in enumerate(recipes):
        attempt = begin(holder, recipe)
        while not attempt.ended(pace):
            attempt = proceed(holder, recipe, number, attempt, validation, pace)
        attempts.append(attempt)
    return max(attempts, key=lambda attempt: attempt.rank)


def trained_alone(holder: Holder, recipes: Sequence[Recipe], number: int) -> Params:
    """The model that one of the recipes gives after a fixed number of steps, without a look at validation samples."""
    attempt, ignored = begin(holder, recipes[number]), holder.samples.take(torch.arange(1))
    while not attempt.ended(ALONE):
        attempt = proceed(holder, recipes[number], number, attempt, ignored, ALONE)
    return attempt.average


def score_on(holder: Holder, model: Params, samples: Samples, *, outputs: bool = False) -> Score:
    """The score of a model on labeled samples, in parts of fixed size; with its outputs if asked for."""
    rows = torch.arange(len(samples)).split(EVALUATION_BATCH)
    net, views, device = holder.net, holder.views, holder.device
    return sum((evaluate(net, model, samples.take(row), views, device, outputs=outputs) for row in rows), Score())


@dataclass(frozen=True)
class _Smoothed:
    """An objective whose steps an average of the weights follows."""

    objective: Objective
    average: Params  # changed in place
    before: int  # steps made in earlier visits

    @property
    def labels_only(self) -> bool:
        """As the objective."""
        return self.objective.labels_only

    @property
    def needs(self) -> Needs:
        """As the objective."""
        return self.objective.needs

    def local_loss(self, holder: Holder, received: Params, carried: Mapping[str, Tensor]) -> LocalLoss:
        """The objective's, with one thing more to do after a step."""
        local, steps = self.objective.local_loss(holder, received, carried), self.before

        def follow(w: Params) -> None:
            nonlocal steps
            local.after_step(w)
            steps += 1
            share = min(SMOOTHING, steps / (steps + 9))
            torch._foreach_lerp_([*self.average.values()], [w[name].detach() for name in self.average], 1 - share)

        return replace(local, after_step=follow)
