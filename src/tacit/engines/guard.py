"""Which round counts and which model is saved, judged on validation samples, never on the test set.

A guarded run trains its reference first: the best model that the server's labels alone give, from several initial
weights, on weak and strong views. A round is rejected if its model is below the reference by more than two standard
errors and the uploads made it worse: worse than what the server has without them, by more than two standard errors
until some round was level with the reference, by anything after that. A rejected round equals one in which no upload
arrived.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from math import sqrt
from typing import Any

import torch
from torch import Tensor

from tacit import params
from tacit.engines.job import Job, RunState, Transport, add_to_log
from tacit.engines.record import RoundRecord
from tacit.engines.selection import AVERAGED, Judged, Selection
from tacit.engines.uploads import Uploads
from tacit.learn import Score
from tacit.learn.central import Pace, best_of, score_on
from tacit.method import ServerContext
from tacit.params import Params

ERRORS = 2.0  # standard errors that the model of a round may be below
ONE_SIDED = 1.645  # standard errors that the last one may be below: a one-sided test at 5 %
GIVE_UP = 5  # rejected rounds in a row after which clients are not asked any more
PACE = Pace(every=50, patience=10, limit=4000)  # of the reference


@dataclass(frozen=True)
class Verdict:
    """What the validation samples say about a round."""

    score: Score | None = None  # of its model; None if it was not judged
    rejected: str = ""  # why the round does not count; empty if it does

    def as_record(self) -> dict[str, Any]:
        """What the record of the round says about it."""
        return {"validation": _accuracy(self.score), "rejected": self.rejected}


@dataclass(frozen=True)
class Choice:
    """The model to save, and why it is this one."""

    model: Params
    what: str
    why: str
    score: Score | None = None  # on the validation samples


def guard_problem(job: Job) -> str:
    """Why rounds cannot be guarded; empty if they can."""
    if not len(job.federation.server.validation):
        return "there are no validation samples at the server"
    if not len(job.federation.server.labeled.labeled):
        return "the server has no labels to train a reference on"
    return ""


def begin(job: Job) -> Selection:
    """Before the first round: the guard trains its reference."""
    if job.selection.select != "guard" or guard_problem(job):
        return Selection()
    server = job.server(0, {})
    alone = replace(server, streams=server.streams.within("reference"))
    found = best_of(alone, job.selection.recipes, job.federation.server.validation, PACE)
    return Selection(reference=Judged(found.best, -1, found.right, found.loss))


def judge(
    job: Job, selection: Selection, round: int, model: Params | None, alone: Callable[[], Params | None]
) -> tuple[Selection, Verdict]:
    """Judge the model of a round; `alone` gives the model that the server would have without uploads."""
    if model is None or not len(job.federation.server.validation):
        return selection, Verdict()
    guarded = selection.reference is not None
    if not guarded and not job.evaluates(round):
        return selection, Verdict()
    score = validate(job, model)
    if selection.reference is not None:
        why = _objection(job, selection, score, model, alone)
        if why:
            return _after_loss(selection), Verdict(score, why)
        level = selection.level or score.correct >= _least(selection.reference.right, score.count)
        selection = replace(selection, in_a_row=0, level=level)
    return (_follow(job, selection, round, model, score) if job.evaluates(round) else selection), Verdict(score)


def validate(job: Job, model: Params) -> Score:
    """The score of a model on the validation samples."""
    return score_on(job.server(0, {}), model, job.federation.server.validation)


def choose(job: Job, run_state: RunState) -> Choice | None:
    """The model to save after the last round; None if the method has no common model."""
    last, selection = job.method.model(run_state.state), run_state.selection
    if last is None:
        return None
    if job.selection.select == "best" and selection.best is not None:
        best = selection.best
        return Choice(best.model, f"round {best.round + 1}", "it is best on validation", validate(job, best.model))
    if job.selection.select == "average" and selection.recent:
        return _average(job, selection, last)
    if job.selection.select == "guard":
        return _guarded(job, selection, last)
    if explain := getattr(job.method, "explain", None):
        what, why = explain(run_state.state)
        return Choice(last, what, why, validate(job, last))
    return Choice(last, "last round", "")


def _average(job: Job, selection: Selection, last: Params) -> Choice:
    mean = params.mean(selection.recent)
    scores = validate(job, mean), validate(job, last)
    count = len(selection.recent)
    if scores[0].correct >= scores[1].correct:
        why = "on validation it is not below the last round"
        return Choice(mean, f"average of the last {count} evaluated rounds", why, scores[0])
    return Choice(last, "last round", f"on validation it is above the average of the last {count}", scores[1])


def _guarded(job: Job, selection: Selection, last: Params) -> Choice:
    reference = selection.reference
    if reference is None:
        return Choice(last, "last round", f"the guard was off: {guard_problem(job)}")
    score, alone = validate(job, last), validate(job, reference.model)
    lost = f"; {selection.rejected} rounds were rejected" if selection.rejected else ""
    if _finite(last) and not _clearly_below(_right(job, last), _right(job, reference.model)):
        level = "not below" if score.correct >= alone.correct else "not significantly below"
        return Choice(last, "last round", f"on validation it is {level} labels only{lost}", score)
    why = f"on validation the last round is below labels only{lost}"
    return Choice(reference.model, "labels only", why, alone)


def _right(job: Job, model: Params) -> Tensor:
    """(n,) whether a model gets each validation sample right."""
    samples = job.federation.server.validation
    outputs = score_on(job.server(0, {}), model, samples, outputs=True).outputs
    return torch.cat(outputs).argmax(1) == samples.y


def _clearly_below(last: Tensor, reference: Tensor) -> bool:
    """Whether the last round is below labels only, by a one-sided test at 5 % on the samples where they differ.

    The reference is the best of several models on these very samples, so its accuracy there is too high, while the last
    round was not chosen by anything: without the allowance, real gains of a few points would be thrown away.
    """
    behind = int(reference.sum()) - int(last.sum())
    return behind > ONE_SIDED * sqrt(int((last != reference).sum()))


def _objection(job: Job, selection: Selection, score: Score, model: Params, alone: Callable[[], Params | None]) -> str:
    """Why a round does not count; empty if it does."""
    assert selection.reference is not None
    if not _finite(model):
        return "its model is not finite"
    least = _least(selection.reference.right, score.count)
    if score.correct >= least:
        return ""
    without = alone()
    if without is None:
        return ""
    right = validate(job, without).correct
    bar = right if selection.level else _least(right, score.count)
    if score.correct >= bar:
        return ""
    return (
        f"{_percent(score.correct, score.count)} on validation, below labels only"
        f" ({_percent(selection.reference.right, score.count)}) and the server alone ({_percent(right, score.count)})"
    )


def _least(right: int, count: int) -> float:
    """The fewest right samples that two standard errors below `right` of `count` leave."""
    share = right / count
    return right - ERRORS * sqrt(share * (1 - share) * count)


def _percent(right: int, count: int) -> str:
    return f"{right / count:.1%}"


def _finite(model: Params) -> bool:
    return all(bool(value.isfinite().all()) for value in model.values())


def _after_loss(selection: Selection) -> Selection:
    in_a_row = selection.in_a_row + 1
    stopped = f"the guard rejected {in_a_row} rounds in a row" if in_a_row >= GIVE_UP else ""
    return replace(selection, in_a_row=in_a_row, rejected=selection.rejected + 1, stopped=stopped)


def _follow(job: Job, selection: Selection, round: int, model: Params, score: Score) -> Selection:
    """Remember an evaluated round."""
    rule, changed = job.selection, dict[str, Any]()
    judged = Judged(model, round, score.correct, score.loss / score.count)
    if rule.select == "average":
        changed["recent"] = [*selection.recent, model][-AVERAGED:]
    if rule.needs_validation:
        most = -1 if selection.best is None else selection.best.right
        waited = 0 if score.correct > most else selection.waited + 1
        changed["waited"] = waited
        if selection.best is None or judged.rank > selection.best.rank:
            kept = model if rule.select == "best" else {}
            changed["best"] = replace(judged, model=kept)
        if rule.patience is not None and waited >= rule.patience:
            changed["stopped"] = f"{waited} evaluations brought no gain on validation"
    return replace(selection, **changed)


class Alone:
    """The server's state after a round in which no upload arrived, computed if it is needed."""

    def __init__(self, job: Job, server: ServerContext, sent: Any, log: dict[str, float]) -> None:
        """`sent` is the state after `send`, `log` what was logged until then."""
        self._job, self._log, self._merged = job, log, list[Any]()
        self._server, self._sent = replace(server, log=partial(add_to_log, self._log)), sent

    def __call__(self) -> Params | None:
        """Its model."""
        if not self._merged:
            self._merged.append(
                self._job.method.merge(self._server, self._sent, Uploads({}, self._job.upload_form, {}))
            )
        return self._job.method.model(self._merged[0])

    def state(self, log: dict[str, float]) -> Any:
        """The state; `log` gets what was logged on the way to it, and nothing else."""
        self()
        log.clear()
        log.update(self._log)
        return self._merged[0]


def _accuracy(score: Score | None) -> dict[str, float] | None:
    if score is None:
        return None
    low, high = score.interval
    return {"accuracy": score.correct / score.count, "low": low, "high": high, "samples": score.count}


def with_choice(job: Job, transport: Transport, run_state: RunState, record: RoundRecord) -> RoundRecord:
    """The record; that of the last round also says which model is saved, and how good it is."""
    if not run_state.finished(job):
        return record
    early, choice = run_state.ended_early(job), choose(job, run_state)
    record = replace(record, stopped=early if run_state.round < job.rounds else "")
    if choice is None:
        return record
    chosen, test = bool(choice.why), job.federation.test
    if not chosen and record.accuracy is not None:
        return record
    score = transport.evaluate(choice.model)
    accuracy, loss = (score.correct / score.count, score.loss / score.count) if score.count else (None, None)
    if record.accuracy is None:
        record = replace(record, accuracy=accuracy, loss=loss)
    if not chosen:
        return record
    majority = float(test.y.bincount().max() / len(test)) if len(test) else None
    selected = {
        "what": choice.what,
        "why": choice.why,
        "validation": _accuracy(choice.score),
        "accuracy": accuracy,
        "loss": loss,
        "samples": score.count,
        "chance": 1 / len(job.federation.classes),
        "majority": majority,
    }
    return replace(record, selected=selected)
