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
from tacit.engines.crossed import CrossValidated
from tacit.engines.job import Job, RunState, Transport, add_to_log
from tacit.engines.judging import Judge, asks_clients, can_judge
from tacit.engines.record import RoundRecord
from tacit.engines.selection import AVERAGED, Chosen, Judged, Selection
from tacit.engines.uploads import Uploads
from tacit.learn import Score
from tacit.learn.central import Pace, best_of, score_on, trained_alone
from tacit.method import ServerContext
from tacit.params import Params

ERRORS = 2.0  # standard errors that the model of a round may be below
ONE_SIDED = 1.645  # standard errors that the last one may be below: a one-sided test at 5 %
LABELS_ONLY = "labels only"  # what a guarded run saves if the rounds are no better
ScoreOf = Callable[[Params], Score]
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
    if crossed(job) or job.reference is not None:
        return ""
    if job.hold_out and not len(job.federation.server.validation):
        return "labels only would need rounds of its own at the clients, which the sites of a hub do not make"
    if not len(job.federation.server.validation):
        return f"there are no validation samples at the server, and {_silence(job)}"
    if not len(job.federation.server.labeled.labeled):
        return "the server has no labels to train a reference on"
    return ""


def crossed(job: Job) -> bool:
    """Whether cross-validation decides: it compared the rounds with labels only, and no validation samples can."""
    found = job.crossed is not None and job.crossed.reference is not None
    return found and not can_judge(job)


def _silence(job: Job) -> str:
    """Why clients do not judge models."""
    if job.protect.silences_clients:
        return "clients return no counts with secure aggregation or differential privacy"
    return "clients hold no labels out (data.hold_out = 0.2 lets them)"


def begin(job: Job) -> Selection:
    """Before the first round: the guard trains its reference."""
    if job.selection.select != "guard" or guard_problem(job):
        return Selection()
    if job.reference is not None:
        return Selection(reference=job.reference)
    server = job.server(0, {})
    alone = replace(server, streams=server.streams.within("reference"))
    if crossed(job):
        assert job.crossed is not None
        model = trained_alone(alone, job.selection.recipes, job.crossed.recipe)
        return Selection(reference=Judged(model, -1, 0, 0.0))
    found = best_of(alone, job.selection.recipes, job.federation.server.validation, PACE)
    return Selection(reference=Judged(found.best, -1, found.right, found.loss))


def judge(
    job: Job,
    selection: Selection,
    round: int,
    model: Params | None,
    alone: Callable[[], Params | None],
    score_of: ScoreOf | None = None,
) -> tuple[Selection, Verdict]:
    """Judge the model of a round; `alone` gives the model that the server would have without uploads.

    `score_of` scores a model; without it the validation samples do.
    """
    if model is None or not can_judge(job):
        return selection, Verdict()
    guarded = selection.reference is not None
    if not guarded and not job.evaluates(round):
        return selection, Verdict()
    score_of = score_of or Judge(job, None, round)
    score = score_of(model)
    if not score.count:
        return selection, Verdict()
    if selection.reference is not None:
        why = _objection(selection, score, model, alone, score_of)
        if why:
            return _after_loss(selection), Verdict(score, why)
        level = selection.level or score.correct >= _least(_expected(selection.reference, score), score.count)
        selection = replace(selection, in_a_row=0, level=level)
    return (_follow(job, selection, round, model, score) if job.evaluates(round) else selection), Verdict(score)


def choose(job: Job, run_state: RunState, score_of: ScoreOf | None = None) -> Choice | None:
    """The model to save after the last round; None if the method has no common model.

    `score_of` scores a model; without it the validation samples do, or what clients said in the last round counts.
    """
    last, selection = job.method.model(run_state.state), run_state.selection
    if last is None:
        return None
    if selection.chosen is not None:
        known = selection.chosen
        return Choice(known.model, known.what, known.why, Score(known.right, 0.0, known.count))
    score_of = score_of or Judge(job, None, run_state.round)
    if job.selection.select == "best" and selection.best is not None:
        best = selection.best
        score = Score(best.right, 0.0, best.count) if best.count else score_of(best.model)
        return Choice(best.model, f"round {best.round + 1}", "it is best on validation", score)
    if job.selection.select == "average" and selection.recent:
        return _average(selection, last, score_of)
    if job.selection.select == "guard":
        return _guarded(job, selection, last, score_of)
    if job.selection.needs_validation and job.selection.select != "last":
        return Choice(last, "last round", "no client returned counts of right labels")
    if explain := getattr(job.method, "explain", None):
        what, why = explain(run_state.state)
        return Choice(last, what, why, score_of(last))
    measured = job.crossed is not None and not len(job.federation.test)
    return Choice(last, "last round", "log.select is last" if measured else "")


def _average(selection: Selection, last: Params, score_of: ScoreOf) -> Choice:
    mean = params.mean(selection.recent)
    scores = score_of(mean), score_of(last)
    count = len(selection.recent)
    if scores[0].correct >= scores[1].correct:
        why = "on validation it is not below the last round"
        return Choice(mean, f"average of the last {count} evaluated rounds", why, scores[0])
    return Choice(last, "last round", f"on validation it is above the average of the last {count}", scores[1])


def _guarded(job: Job, selection: Selection, last: Params, score_of: ScoreOf) -> Choice:
    reference = selection.reference
    if reference is None:
        return Choice(last, "last round", f"the guard was off: {guard_problem(job)}")
    if crossed(job):
        assert job.crossed is not None
        return _crossed_choice(job.crossed, reference.model, last)
    if asks_clients(job):
        return _by_counts(selection, reference, last, score_of(last))
    score, alone = score_of(last), score_of(reference.model)
    lost = f"; {selection.rejected} rounds were rejected" if selection.rejected else ""
    if _finite(last) and not _clearly_below(_right(job, last), _right(job, reference.model)):
        level = "not below" if score.correct >= alone.correct else "not significantly below"
        return Choice(last, "last round", f"on validation it is {level} labels only{lost}", score)
    why = f"on validation the last round is below labels only{lost}"
    return Choice(reference.model, LABELS_ONLY, why, alone)


def _crossed_choice(found: CrossValidated, reference: Params, last: Params) -> Choice:
    """The last round if cross-validation finds it above labels only; otherwise what labels only give."""
    alone = found.reference
    assert alone is not None
    low, high = (100 * end for end in found.gain)
    compared = (
        f"cross-validated, {found.last.correct} of {found.last.count} labels are right and {alone.correct} with labels "
        f"only (95 % interval of the gain: {low:+.0f} to {high:+.0f} points)"
    )
    if _finite(last) and found.helps:
        return Choice(last, "last round", compared)
    return Choice(reference, LABELS_ONLY, f"the rounds could not be shown to gain: {compared}")


def _by_counts(selection: Selection, reference: Judged, last: Params, score: Score) -> Choice:
    """The choice by what clients counted: a one-sided test at 5 %, which does not know on which labels they differ."""
    alone = Score(reference.right, 0.0, reference.count)
    lost = f"; {selection.rejected} rounds were rejected" if selection.rejected else ""
    if not score.count:
        return Choice(last, "last round", "the guard was off: no client returned counts of right labels")
    behind = alone.correct / alone.count - score.correct / score.count
    share = (alone.correct + score.correct) / (alone.count + score.count)
    error = sqrt(share * (1 - share) * (1 / alone.count + 1 / score.count))
    if _finite(last) and behind <= ONE_SIDED * error:
        level = "not below" if behind <= 0 else "not significantly below"
        return Choice(last, "last round", f"on labels that clients held out it is {level} labels only{lost}", score)
    why = f"on labels that clients held out the last round is below labels only{lost}"
    return Choice(reference.model, LABELS_ONLY, why, alone)


def _expected(reference: Judged, score: Score) -> float:
    """How many of the samples of a score the reference gets right; clients that did not answer are not in it."""
    return reference.right * score.count / (reference.count or score.count)


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


def _objection(
    selection: Selection, score: Score, model: Params, alone: Callable[[], Params | None], score_of: ScoreOf
) -> str:
    """Why a round does not count; empty if it does."""
    assert selection.reference is not None
    if not _finite(model):
        return "its model is not finite"
    expected = _expected(selection.reference, score)
    if score.correct >= _least(expected, score.count):
        return ""
    without = alone()
    if without is None:
        return ""
    right = score_of(without).correct
    bar = right if selection.level else _least(right, score.count)
    if score.correct >= bar:
        return ""
    return (
        f"{_percent(score.correct, score.count)} on validation, below labels only"
        f" ({_percent(expected, score.count)}) and the server alone ({_percent(right, score.count)})"
    )


def _least(right: float, count: int) -> float:
    """The fewest right samples that two standard errors below `right` of `count` leave."""
    share = right / count
    return right - ERRORS * sqrt(share * (1 - share) * count)


def _percent(right: float, count: int) -> str:
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
    judged = Judged(model, round, score.correct, score.loss / score.count, score.count if asks_clients(job) else 0)
    if rule.select == "average":
        changed["recent"] = [*selection.recent, model][-AVERAGED:]
    if rule.needs_validation:
        most = -1.0 if selection.best is None else selection.best.rank[0]
        waited = 0 if judged.rank[0] > most else selection.waited + 1
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


def with_choice(job: Job, transport: Transport, run_state: RunState, record: RoundRecord, judge: Judge) -> RoundRecord:
    """The record; that of the last round also says which model is saved, and how good it is."""
    if not run_state.finished(job):
        return record
    early, choice = run_state.ended_early(job), choose(job, run_state, judge)
    if choice is not None and choice.score is not None and asks_clients(job):
        counts = choice.score.correct, choice.score.count
        run_state.selection = replace(
            run_state.selection, chosen=Chosen(choice.model, choice.what, choice.why, *counts)
        )
    record = replace(record, stopped=early if run_state.round < job.rounds else "")
    if choice is None:
        return record
    chosen, test = bool(choice.why), job.federation.test
    if not chosen and record.accuracy is not None:
        return record
    score = transport.evaluate(choice.model) if len(test) else _crossed_score(job, choice)
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
    if job.crossed is not None and not len(test):
        selected["cross_validated"] = _accuracy(score)
    return replace(record, selected=selected)


def _crossed_score(job: Job, choice: Choice) -> Score:
    """What cross-validation says of the model that is saved; nothing without it."""
    if job.crossed is None:
        return Score()
    alone = job.crossed.reference
    return alone if alone is not None and choice.what == LABELS_ONLY else job.crossed.last
