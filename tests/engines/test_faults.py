"""Every fault at once: the run still ends with the same bits, and each missing client is named with its reason."""

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from tacit.engines import failures
from tacit.engines.faults import Faults
from tacit.engines.in_process import InProcessTransport
from tacit.engines.job import Job
from tacit.engines.workers import WorkerTransport
from tacit.random import Streams
from tests.engines.farm import Outcome, run_job, tally_job

KINDS = ("lost", "nonfinite", "slow", "crash")
DEADLINE = 3.0  # seconds: met by every client that is not made slow, however busy the machine
REASONS = {
    "crash": failures.worker_died().reason,
    "slow": failures.too_slow(DEADLINE).reason,
    "lost": failures.upload_lost().reason,
    "nonfinite": failures.not_finite().reason,
}
ALL = Faults(lost=0.15, nonfinite=0.15, slow=0.05, crash=0.4)


def expected(job: Job) -> list[dict[int, str]]:
    """Who is left out of each round and why, from the probabilities alone, in the order in which faults occur."""

    def occurs(kind: str, round: int, client: int, attempt: int = 0) -> bool:
        return job.faults.occurs(kind, job.streams, round, client, attempt)

    out = []
    for round in range(job.rounds):
        skipped: dict[int, str] = {}
        for client in job.sample(round):
            if occurs("crash", round, client) and occurs("crash", round, client, 1):
                skipped[client] = REASONS["crash"]
            elif kind := next((kind for kind in ("slow", "lost", "nonfinite") if occurs(kind, round, client)), None):
                skipped[client] = REASONS[kind]
        out.append(skipped)
    return out


def with_seed(seed: int) -> Job:
    return tally_job(faults=ALL, streams=Streams(seed), rounds=5, deadline=DEADLINE, min_clients=0)


@cache
def faulty_job() -> Job:
    """A seed with every kind of fault, a worker that dies only once, and a single slow client.

    Each slow client costs a real deadline.
    """
    for seed in range(1000):
        job = with_seed(seed)
        reasons = [reason for skipped in expected(job) for reason in skipped.values()]
        once = any(
            job.faults.occurs("crash", job.streams, round, client) and client not in expected(job)[round]
            for round in range(job.rounds)
            for client in job.sample(round)
        )
        if set(reasons) == set(REASONS.values()) and reasons.count(REASONS["slow"]) == 1 and once:
            return job
    raise AssertionError("no seed has all of this")


@cache
def in_process() -> Outcome:
    return run_job(faulty_job(), InProcessTransport(faulty_job()))


def test_a_run_with_every_fault_ends_and_names_each_missing_client() -> None:
    outcome, job = in_process(), faulty_job()
    assert outcome.skipped == expected(job)
    assert len(outcome.records) == job.rounds
    for round, record in enumerate(outcome.records):
        assert record["clients"] + len(record["skipped"]) == job.cohort
        assert set(record["traffic"]) == set(job.sample(round))  # bytes to clients that failed count too
        silent = {k for k, reason in record["skipped"].items() if reason in (REASONS["crash"], REASONS["slow"])}
        for client, (down, up) in record["traffic"].items():
            assert down > 0
            assert (up == 0) == (client in silent)


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_give_the_same_bits_under_faults(workers: int) -> None:
    assert run_job(faulty_job(), WorkerTransport(faulty_job(), workers)) == in_process()


def test_a_worker_that_dies_once_changes_nothing() -> None:
    """If every crash is followed by a second attempt that works, the bits are those of a run without faults."""
    crashes = (replace(with_seed(seed), faults=Faults(crash=0.2), rounds=2) for seed in range(1000))
    job = next(job for job in crashes if deaths(job) and not any(expected(job)))
    healthy = replace(job, faults=Faults())
    reference = run_job(healthy, InProcessTransport(healthy))
    assert run_job(job, WorkerTransport(job, 2)) == run_job(job, InProcessTransport(job)) == reference
    assert in_process().state != run_job(replace(faulty_job(), faults=Faults()), InProcessTransport(faulty_job())).state


def deaths(job: Job) -> int:
    """How many first attempts end with the worker."""
    tasks = [(round, client) for round in range(job.rounds) for client in job.sample(round)]
    return sum(job.faults.occurs("crash", job.streams, round, client) for round, client in tasks)


def test_faults_occur_about_as_often_as_configured() -> None:
    """10,000 draws: the standard deviation of a share is at most 0.005, the bounds are six of them away."""
    faults, streams = Faults(lost=0.1, nonfinite=0.3, slow=0.5, crash=0.9), Streams(0)
    for kind in KINDS:
        count = sum(faults.occurs(kind, streams, round, client) for round in range(100) for client in range(100))
        assert abs(count / 10_000 - getattr(faults, kind)) < 0.03


def test_faults_are_drawn_independently() -> None:
    """Two kinds, two attempts, two clients or two rounds agree on a coin as often as two coins do."""
    faults, streams = Faults(0.5, 0.5, 0.5, 0.5), Streams(3)

    def coins(kind: str, attempt: int = 0, shift: int = 0, later: int = 0) -> list[bool]:
        return [
            faults.occurs(kind, streams, round + later, client + shift, attempt)
            for round in range(40)
            for client in range(40)
        ]

    first = coins("lost")
    for other in (coins("nonfinite"), coins("slow"), coins("crash"), coins("lost", 1), coins("lost", 0, 40)):
        agree = sum(a == b for a, b in zip(first, other, strict=True)) / len(first)
        assert abs(agree - 0.5) < 0.075  # six standard deviations of 1,600 coins
    assert coins("lost") == first
    assert coins("lost", later=40) != first


def test_probability_zero_never_occurs_and_one_always_does() -> None:
    for kind in KINDS:
        assert not any(Faults().occurs(kind, Streams(0), 0, client) for client in range(200))
        assert all(Faults(**dict[str, Any]({kind: 1.0})).occurs(kind, Streams(0), 0, client) for client in range(200))
