"""Runs within a run: one for each part of the labels, for cross-validation, and one on the clients' labels alone.

They are ordinary runs in folders below the run's checkpoint, so that an interrupted one continues where it was. Their
results are there before the first round of the run itself, which learns from all labels.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from tacit.data.folds import without_fold
from tacit.engines.crossed import CrossValidated
from tacit.engines.job import Job
from tacit.engines.judging import can_judge
from tacit.engines.selection import Judged
from tacit.federation import Samples
from tacit.learn import Score
from tacit.learn.central import score_on, trained_alone
from tacit.metrics.predictions import Predictions
from tacit.random import Streams
from tacit.runs import config as configs
from tacit.runs.build import build_job
from tacit.runs.config import Config
from tacit.runs.directory import RunDirectory
from tacit.runs.sections import TrackConfig

if TYPE_CHECKING:
    from tacit.runs.experiment import Experiment

NOTE = "cross_validation.json"
ALONE = "fedavg+supervised"  # labels only, where clients have them
PATIENCE, LEAST = 10, 10  # of its training: evaluations without a gain, and steps of a visit


@dataclass(frozen=True)
class Part:
    """A run within a run, and what to call it."""

    name: str
    experiment: "Experiment"


def unfinished(main: "Experiment") -> Iterator[Part]:
    """The runs that have to end before the first round of a run."""
    if main.finished_rounds() >= main.directory.total_rounds():
        return
    for part in (*_folds(main), *_alone(main)):
        if part.experiment.finished_rounds() < part.experiment.directory.total_rounds():
            yield part


def with_results(main: "Experiment", job: Job) -> Job:
    """The job of a run, with what the runs within it found; runs those that have not ended."""
    for part in unfinished(main):
        for _ in part.experiment.rounds():
            pass
    if main.config.data.folds and main.config.data.fold is None:
        job = replace(job, crossed=_crossed(main, job))
    if alone := [*_alone(main)]:
        job = replace(job, reference=_reference(alone[0].experiment))
    return job


def known(main: "Experiment", job: Job) -> Job:
    """The job with what cross-validation found, if it has ended."""
    note = main.directory.read_note(NOTE)
    return job if note is None else replace(job, crossed=CrossValidated.from_json(note))


def predictions(main: "Experiment") -> Predictions | None:
    """Outputs for all labels of the models that did not learn from them; None without cross-validation."""
    return _folder(main).predictions()


def tested(main: "Experiment") -> Samples:
    """The samples that a run's outputs belong to: its test set or, if it has none, the labels fold by fold."""
    federation, data = main.job.federation, main.config.data
    if len(federation.test) or not data.folds:
        return federation.test
    parts = [_fold_job(main, fold).federation.test for fold in range(data.folds)]
    return Samples(torch.cat([part.x for part in parts]), torch.cat([part.y for part in parts]))


# --- cross-validation -------------------------------------------------------------------------------------------------


def _folds(main: "Experiment") -> Iterator[Part]:
    data = main.config.data
    for fold in range(data.folds or 0) if data.fold is None else ():
        job, config = _fold_job(main, fold), _fold_config(main, fold)
        yield Part(
            f"fold {fold + 1} of {data.folds}", main.within(_folder(main).path / f"fold-{fold + 1}", config, job)
        )


def _fold_config(main: "Experiment", fold: int) -> Config:
    config = replace(_quiet(main.config), data=replace(main.config.data, fold=fold))
    if can_judge(main.job) or config.log.select != "guard":
        return config
    return replace(config, log=replace(config.log, select="last"))


def _fold_job(main: "Experiment", fold: int) -> Job:
    """The job of a fold, on the samples that are at hand."""
    config, job = _fold_config(main, fold), main.job
    if config.data.hold_out is not None:  # clients hold out labels of what the fold leaves
        return build_job(config)[0]
    assert config.data.folds is not None
    federation = without_fold(job.federation, config.data.folds, fold, Streams(config.seed))
    return replace(job, federation=federation, selection=replace(job.selection, select=config.log.select))


def _crossed(main: "Experiment", job: Job) -> CrossValidated:
    """What cross-validation found; computed once for a number of rounds."""
    note = main.directory.read_note(NOTE)
    if note is not None and len(note["rounds"]) == main.config.rounds:
        return CrossValidated.from_json(note)
    parts = [part.experiment for part in _folds(main)]
    outputs = [predicted for part in parts if (predicted := part.directory.predictions()) is not None]
    scores = _by_round(parts, main.config.rounds)
    found, shown = CrossValidated(scores), tuple(outputs)
    if len(job.federation.server.labeled) and main.config.log.select == "guard":
        found, shown = _compared(scores, outputs, [part.work for part in parts])
    if not len(job.federation.test) and shown:
        y, logits = (np.concatenate([getattr(each, name) for each in shown]) for name in ("y", "logits"))
        _folder(main).write_predictions(Predictions(y, logits, shown[0].classes))
    main.directory.write_note(NOTE, found.to_json())
    return found


def _by_round(parts: Sequence["Experiment"], rounds: int) -> tuple[Score | None, ...]:
    """The score over all labels after each round; a run that stopped early keeps its last model."""
    curves = []
    for part in parts:
        count, curve = len(part.job.federation.test), dict[int, Score]()
        for record in part.directory.rounds():
            if record.accuracy is not None:
                loss = (record.loss or 0.0) * count
                curve[record.round] = Score(round(record.accuracy * count), loss, count)
        curves.append(curve)
    found: list[Score | None] = []
    for number in range(rounds):
        each = [curve.get(number) or (curve[max(curve)] if number > max(curve) else None) for curve in curves]
        known_all = [score for score in each if score is not None]
        found.append(sum(known_all, Score()) if len(known_all) == len(each) else None)
    return tuple(found)


def _compared(
    scores: tuple[Score | None, ...], outputs: Sequence[Predictions], jobs: Sequence[Job]
) -> tuple[CrossValidated, tuple[Predictions, ...]]:
    """With what labels only give, by the recipe that is best on the labels held out; and the better one's outputs."""
    recipes = jobs[0].selection.recipes
    tries = [[_held_out(job, number) for job in jobs] for number in range(len(recipes))]
    totals = [sum((score for score, _ in each), Score()) for each in tries]
    best = max(range(len(recipes)), key=lambda number: (totals[number].correct, -totals[number].loss))
    alone = torch.cat([right for _, right in tries[best]])
    rounds = torch.cat([torch.from_numpy(each.predicted == each.y) for each in outputs])
    gained, lost = int((rounds & ~alone).sum()), int((alone & ~rounds).sum())
    found = CrossValidated(scores, replace(totals[best], outputs=()), best, gained, lost)
    if found.helps:
        return found, tuple(outputs)
    logits = [torch.cat(score.outputs).numpy() for score, _ in tries[best]]
    return found, tuple(replace(each, logits=shown) for each, shown in zip(outputs, logits, strict=True))


def _held_out(job: Job, number: int) -> tuple[Score, Tensor]:
    """The score of labels only on the labels that a fold holds out, and (n,) which of them it gets right."""
    server, test = job.server(0, {}), job.federation.test
    model = trained_alone(replace(server, streams=server.streams.within("reference")), job.selection.recipes, number)
    score = score_on(server, model, test, outputs=True)
    return score, torch.cat(score.outputs).argmax(1) == test.y


# --- labels only at clients -------------------------------------------------------------------------------------------


def _alone(main: "Experiment") -> Iterator[Part]:
    """Rounds on the clients' labels alone, whose best model is the reference of a guard that clients' counts feed."""
    config, job = main.config, main.job
    counts = config.data.hold_out is not None and not len(job.federation.server.validation)
    if config.log.select != "guard" or not counts or config.data.at_sites:
        return
    tree = configs.in_full(_quiet(config))
    log, train = {**tree["log"], "select": "best"}, {**tree["train"], "patience": PATIENCE}
    if not train.get("steps") or train["steps"] < LEAST:
        train["steps"] = LEAST
    made = configs.make(tree | {"method": {"name": ALONE}, "objective": {}, "log": log, "train": train})
    selection = replace(job.selection, select="best", patience=PATIENCE)
    work = replace(job, method=made.build_method(), train=made.train, selection=selection)
    yield Part("labels only", main.within(_folder(main).path / "labels-only", made, work))


def _reference(experiment: "Experiment") -> Judged:
    last = experiment.directory.rounds()[-1].selected
    model = experiment.result().params
    assert last is not None
    assert model is not None
    count = int(last["validation"]["samples"])
    return Judged(model, -1, round(last["validation"]["accuracy"] * count), 0.0, count)


# --- folders ----------------------------------------------------------------------------------------------------------


def _quiet(config: Config) -> Config:
    """The config of a run within a run, which no tracker follows."""
    return replace(config, track=TrackConfig())


def _folder(main: "Experiment") -> RunDirectory:
    """The folder of all runs within a run, and of what they give together."""
    return RunDirectory(main.directory.checkpoint / "within")
