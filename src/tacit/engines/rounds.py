"""The rounds, the same for every engine: sample, send, exchange, merge, commit, evaluate, record."""

import math
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from tacit.engines import failures as reasons
from tacit.engines import guard, secure_round
from tacit.engines.events import ClientAnswered, ClientFailed, ClientStarted, Event, RoundBegan, RoundEnded, Waiting
from tacit.engines.hostile import attacked
from tacit.engines.job import ClientFailure, ClientOutcome, ClientResult, ClientTask, Job, RunState, Transport
from tacit.engines.judging import Judge
from tacit.engines.merging import Merged, clipped, merge_soundly, within_limits
from tacit.engines.private import SENDER, privacy_of, private_upload, withheld
from tacit.engines.record import RoundRecord
from tacit.engines.scores import named_scores
from tacit.engines.uploads import check_upload
from tacit.engines.wire import finite
from tacit.errors import TacitError
from tacit.learn import Score
from tacit.method import ServerContext
from tacit.params import Params
from tacit.protect import sample_dp
from tacit.protect.sample_budget import delta_of, largest_epsilon

DECODED = 256 << 20  # bytes of uploads in a round up to which all stay decoded; larger ones are decoded when needed


class MethodFailedError(TacitError):
    """A method's own function raised an error, or returned something it must not."""

    def __init__(self, problem: str) -> None:
        """`problem` names the function and the error."""
        super().__init__(problem, "fix the method", code="method.failed", resumable=True)


class TooFewClientsError(TacitError):
    """Fewer clients replied in a round than the run needs."""

    def __init__(self, problem: str, failures: Mapping[int, ClientFailure]) -> None:
        """`failures` holds who is missing and why."""
        diverged = {failure.code for failure in failures.values()} & {
            reasons.diverged().code,
            reasons.broken_model().code,
        }
        remedy = (
            "lower train.lr in a new run, or go back to an earlier round with `--from`" if diverged else "fix the cause"
        )
        super().__init__(problem, remedy, code="engine.too-few-clients", resumable=True)
        self.failures = failures


def run_rounds(job: Job, transport: Transport, run_state: RunState) -> Generator[Event]:
    """Run the rounds that are left. `run_state` is that after the last round that ended, also within a round."""
    log: dict[str, float] = {}  # what `start` logs belongs to the first round
    if run_state.state is None:
        with _method_call(job, "start", 0):
            run_state.state = job.method.start(job.server(0, log))
        run_state.selection = guard.begin(job)
    while not run_state.finished(job):
        record = yield from _run_round(job, transport, run_state, log)
        yield RoundEnded(record)
        log = {}


def _run_round(
    job: Job, transport: Transport, run_state: RunState, log: dict[str, float]
) -> Generator[Event, None, RoundRecord]:
    began, round, method = time.perf_counter(), run_state.round, job.method
    server = job.server(round, log)
    with _method_call(job, "send", round):
        state, downs = method.send(server, run_state.state)
        if unknown := sorted(client for client in downs if client not in range(job.federation.clients)):
            raise ValueError(f"there is no client {unknown[0]}, only 0 to {job.federation.clients - 1}")
    with _method_call(job, "model", round):
        local = job.evaluates(round) and (job.evaluate_local or method.model(state) is None)
    tasks = {
        client: ClientTask(down, run_state.memories.get(client), local)
        for client, down in sorted(downs.items())
        if round < job.left_out.get(client, job.rounds)
    }
    outcomes = yield from _exchange(job, round, transport, tasks)
    _account(job, run_state, outcomes)
    outcomes |= {client: reasons.left_out() for client in downs if client not in tasks}
    outcomes = attacked(job, round, downs, outcomes)
    results, failures = _separate(job, round, outcomes, tasks)
    with _method_call(job, "model", round):
        results, outside = within_limits(job, state, results)
    if job.protect.hides_clients:
        results = withheld(results)
    failures = dict(sorted((failures | outside).items()))
    yield from (_failed(round, client, why) for client, why in failures.items() if outcomes[client] is not why)
    if len(downs) >= len(server.cohort):  # a method that asks only some may lose them: the others have answered before
        _refuse_too_few(job, round, results, failures)
    sent, before = state, dict(log)
    with _method_call(job, "merge", round):
        merged = _merge(job, server, state, downs or _unsent(job, run_state), results, log)
    state = merged.state
    for client, why in merged.failures.items():
        result = results.pop(client)
        failures[client] = why.with_bytes(result.bytes_down, result.bytes_up)
        yield _failed(round, client, why)
    with _method_call(job, "model", round):
        model = method.model(state)
        if model is not None and not isinstance(model, dict):
            raise TypeError(f"it must return Params or None, not {type(model).__name__}")
    with _method_call(job, "evaluation", round):
        alone = guard.Alone(job, server, sent, before)
        judge = Judge(job, transport, round)
        run_state.selection, verdict = guard.judge(job, run_state.selection, round, model, alone, judge)
        if verdict.rejected:
            state, model = alone.state(log), alone()
        score = _evaluated(job, transport, round, model)
        scores = named_scores(job, score)
    run_state.advance(state, {} if verdict.rejected else results)
    known = list(run_state.local_accuracy.values()) if local else []
    record = _record(round, time.perf_counter() - began, score, scores, known, results, failures, log)
    record = replace(record, sample_privacy=_sample_privacy(job, run_state, results))
    if job.protect.hides_clients:
        record = replace(record, privacy=privacy_of(job, round + 1))
    record = guard.with_choice(job, transport, run_state, replace(record, **verdict.as_record()), judge)
    return judge.with_traffic(record)


def _evaluated(job: Job, transport: Transport, round: int, model: Params | None) -> Score | None:
    """The score of a round's model on the test set or, if there is none, what cross-validation found for the round."""
    if model is None or not job.evaluates(round):
        return None
    if not len(job.federation.test):
        return None if job.crossed is None else job.crossed.at(round)
    return transport.evaluate(model, outputs=bool(job.metrics))


def _merge(
    job: Job,
    server: ServerContext,
    state: Any,
    downs: Mapping[int, object],
    results: Mapping[int, ClientResult],
    log: dict[str, float],
) -> Merged:
    """The state with the uploads of a round: as they are, shortened, or as one noisy mean."""
    if job.protect.hides_clients and downs:
        up = private_upload(job, server.round, downs, results)
        return Merged(job.method.merge(server, state, {SENDER: up}), {})
    bounded = clipped(job, downs, results) if job.protect.combine == "clipped" else results
    return merge_soundly(job, server, state, bounded, log)


def _unsent(job: Job, run_state: RunState) -> Mapping[int, object]:
    """What a client would have got in a round without one; its noise must not reveal that there was none."""
    if not job.protect.hides_clients:
        return {}
    return dict(job.method.send(replace(job.server(run_state.round, {}), cohort=(SENDER,)), run_state.state)[1])


def _exchange(
    job: Job, round: int, transport: Transport, tasks: Mapping[int, ClientTask]
) -> Generator[Event, None, dict[int, ClientOutcome]]:
    """Run the tasks and yield what happens; returns every client's outcome."""
    yield RoundBegan(round, tuple(tasks))
    if not job.protect.secure:
        return (yield from _carry(round, transport, tasks, True))
    return (yield from secure_round.exchange(job, round, tasks, partial(_carry, round, transport)))


def _carry(
    round: int, transport: Transport, tasks: Mapping[int, ClientTask], shown: bool
) -> Generator[Event, None, dict[int, ClientOutcome]]:
    """Let the transport carry tasks; `shown` says whether a client's start and answer are events."""
    outcomes: dict[int, ClientOutcome] = {}
    began: dict[int, float] = {}
    with closing(transport.run(round, tasks)) as news:
        for item in news:
            now = time.perf_counter()
            if isinstance(item, Waiting):
                yield item
            elif isinstance(item, ClientStarted):
                began[item.client] = now
                if shown:
                    yield item
            else:
                client, outcome = item
                outcomes[client] = outcome
                if isinstance(outcome, ClientFailure):
                    yield _failed(round, client, outcome)
                elif shown:
                    yield ClientAnswered(round, client, now - began[client], outcome.bytes_up)
    return outcomes


def _account(job: Job, run_state: RunState, outcomes: Mapping[int, ClientOutcome]) -> None:
    """Add what every client sent to its account of DP-SGD, also if the upload does not count in the end."""
    for client, outcome in sorted(outcomes.items()):
        if job.sample_noise is not None and isinstance(outcome, ClientResult):
            run_state.spend(client, sample_dp.spent(job.sample_noise, outcome.metrics))


def _sample_privacy(
    job: Job, run_state: RunState, results: Mapping[int, ClientResult]
) -> dict[str, float | None] | None:
    """The largest ε of a client so far, None if it is infinite, and its δ; nothing without DP-SGD."""
    if job.sample_noise is None:
        return None
    declared = {client: result.held or 0 for client, result in results.items()}
    delta = delta_of(max(job.held(client) or declared.get(client, 0) for client in range(job.federation.clients)))
    found = largest_epsilon(run_state.spent.values(), delta)
    return {"epsilon": found if math.isfinite(found) else None, "delta": delta}


def _failed(round: int, client: int, failure: ClientFailure) -> ClientFailed:
    return ClientFailed(round, client, failure.code, failure.reason)


@contextmanager
def _method_call(job: Job, function: str, round: int) -> Iterator[None]:
    """Name the function, the method and the round in an error; the original error is its cause."""
    try:
        yield
    except TacitError:
        raise
    except Exception as error:
        name, cause = type(job.method).__name__, f"{type(error).__name__}: {error}"
        raise MethodFailedError(f"{function} of {name} failed in round {round + 1}: {cause}") from error


def _separate(
    job: Job, round: int, outcomes: Mapping[int, ClientOutcome], tasks: Mapping[int, ClientTask]
) -> tuple[dict[int, ClientResult], dict[int, ClientFailure]]:
    """The results that count this round, and the failures, both in ascending order of clients."""
    results: dict[int, ClientResult] = {}
    failures: dict[int, ClientFailure] = {}
    few = sum(outcome.bytes_up for outcome in outcomes.values()) <= DECODED
    for client, outcome in sorted(outcomes.items()):
        if isinstance(outcome, ClientFailure):
            failures[client] = outcome
        elif job.faults.occurs("lost", job.streams, round, client):
            failures[client] = reasons.upload_lost().with_bytes(outcome.bytes_down, outcome.bytes_up)
        else:
            known = replace(outcome, held=job.held(client)) if outcome.held is None else outcome
            checked = check_upload(job.upload_form, known, few)
            if isinstance(checked, ClientResult):
                results[client] = checked
            elif checked.code == reasons.not_finite().code and not finite(tasks[client].down):
                failures[client] = reasons.broken_model().with_bytes(checked.bytes_down, checked.bytes_up)
            else:
                failures[client] = checked
    unsound = [client for client, failure in failures.items() if failure.code == reasons.not_finite().code]
    if len(unsound) > 1 and not any(result.up is not None for result in results.values()):
        failures |= {k: reasons.diverged().with_bytes(failures[k].bytes_down, failures[k].bytes_up) for k in unsound}
    return results, failures


def _refuse_too_few(
    job: Job, round: int, results: Mapping[int, ClientResult], failures: Mapping[int, ClientFailure]
) -> None:
    """Stop a round in which fewer clients replied than engine.min_clients asks for; all of them if it asks for more."""
    asked = len(results) + sum(failure.code != reasons.left_out().code for failure in failures.values())
    if not asked or len(results) >= min(job.min_clients, asked):
        return
    clients: dict[str, list[str]] = {}
    for client, failure in failures.items():
        clients.setdefault(failure.reason, []).append(str(client))
    why = "; ".join(f"client {', '.join(who[:5])}: {reason}" for reason, who in list(clients.items())[:3])
    raise TooFewClientsError(
        f"round {round + 1}: {len(results)} of {asked} clients replied, but engine.min_clients is {job.min_clients} "
        f"({why})",
        failures,
    )


def _record(
    round: int,
    seconds: float,
    score: Score | None,
    scores: dict[str, float],
    local: Sequence[float],
    results: Mapping[int, ClientResult],
    failures: Mapping[int, ClientFailure],
    log: dict[str, float],
) -> RoundRecord:
    """The record of a round; `local` holds the accuracies of the clients' own models."""
    outcomes: dict[int, ClientOutcome] = {**results, **failures}
    traffic = {client: (outcome.bytes_down, outcome.bytes_up) for client, outcome in sorted(outcomes.items())}
    return RoundRecord(
        round=round,
        seconds=seconds,
        accuracy=score.correct / score.count if score else None,
        loss=score.loss / score.count if score else None,
        local_accuracy=sum(local) / len(local) if local else None,
        clients=len(results),
        steps=int(sum(result.metrics.get("steps", 0) for result in results.values())),
        bytes_down=sum(down for down, _ in traffic.values()),
        bytes_up=sum(up for _, up in traffic.values()),
        traffic=traffic,
        metrics=_summary(results),
        server=log,
        samples={client: result.count for client, result in results.items() if result.count is not None},
        skipped={client: failure.reason for client, failure in failures.items()},
        codes={client: failure.code for client, failure in failures.items()},
        details={client: failure.detail for client, failure in failures.items() if failure.detail},
        scores=scores,
    )


def _summary(results: Mapping[int, ClientResult]) -> dict[str, dict[str, float]]:
    """Mean, minimum and maximum of each number that clients logged."""
    values: dict[str, list[float]] = {}
    for result in results.values():
        for name, value in result.metrics.items():
            values.setdefault(name, []).append(value)
    return {name: {"mean": sum(v) / len(v), "min": min(v), "max": max(v)} for name, v in sorted(values.items())}
