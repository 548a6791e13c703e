"""Everything goes wrong at once, and the run still ends with the same bits and every absence explained."""

from dataclasses import replace
from functools import cache

import pytest

from tacit.engines.faults import Faults
from tacit.engines.inline import InlineCourier
from tacit.engines.local import LocalCourier
from tacit.engines.loop import Job
from tacit.random import Streams
from tests.engines.farm import Outcome, carry, tally_job

KINDS = ("lost", "nonfinite", "slow", "crash")
DEADLINE = 3.0  # seconds: met by every client that is not made slow, however busy the machine
REASONS = {
    "crash": "its worker died twice",
    "slow": f"took longer than {DEADLINE} s",
    "lost": "upload lost",
    "nonfinite": "sent non-finite numbers",
}
ALL = Faults(lost=0.15, nonfinite=0.15, slow=0.05, crash=0.4)


def expected(job: Job) -> list[dict[int, str]]:
    """Who is left out of each round and why, from the probabilities alone, in the order a fault could strike."""

    def strikes(kind: str, round: int, client: int, attempt: int = 0) -> bool:
        return job.faults.strikes(kind, job.streams, round, client, attempt)

    out = []
    for round in range(job.rounds):
        skipped: dict[int, str] = {}
        for client in job.sample(round):
            if strikes("crash", round, client) and strikes("crash", round, client, 1):
                skipped[client] = REASONS["crash"]
            elif kind := next((kind for kind in ("slow", "lost", "nonfinite") if strikes(kind, round, client)), None):
                skipped[client] = REASONS[kind]
        out.append(skipped)
    return out


def faulty(seed: int) -> Job:
    return tally_job(faults=ALL, streams=Streams(seed), rounds=5, deadline=DEADLINE, min_clients=0)


@cache
def eventful() -> Job:
    """A seed under which every kind of fault strikes, a worker dies only once somewhere, and one client is slow.

    Each slow client costs a real deadline.
    """
    for seed in range(1000):
        job = faulty(seed)
        reasons = [reason for skipped in expected(job) for reason in skipped.values()]
        once = any(
            job.faults.strikes("crash", job.streams, round, client) and client not in expected(job)[round]
            for round in range(job.rounds)
            for client in job.sample(round)
        )
        if set(reasons) == set(REASONS.values()) and reasons.count(REASONS["slow"]) == 1 and once:
            return job
    raise AssertionError("no seed is eventful enough")


@cache
def inline() -> Outcome:
    return carry(eventful(), InlineCourier(eventful()))


def test_a_run_full_of_faults_ends_and_names_everybody() -> None:
    outcome, job = inline(), eventful()
    assert outcome.skipped == expected(job)
    assert len(outcome.records) == job.rounds
    for round, record in enumerate(outcome.records):
        assert record["clients"] + len(record["skipped"]) == job.cohort
        assert set(record["traffic"]) == set(job.sample(round))  # what was sent in vain was sent all the same
        silent = {k for k, reason in record["skipped"].items() if reason in (REASONS["crash"], REASONS["slow"])}
        for client, (down, up) in record["traffic"].items():
            assert down > 0
            assert (up == 0) == (client in silent)


@pytest.mark.parametrize("workers", [1, 2])
def test_the_bits_are_the_same_in_worker_processes(workers: int) -> None:
    assert carry(eventful(), LocalCourier(eventful(), workers)) == inline()


def test_a_worker_that_dies_once_changes_nothing() -> None:
    """Where every crash is followed by a second attempt that works, the bits are those of a run without faults."""
    crashes = (replace(faulty(seed), faults=Faults(crash=0.2), rounds=2) for seed in range(1000))
    job = next(job for job in crashes if deaths(job) and not any(expected(job)))
    healthy = replace(job, faults=Faults())
    reference = carry(healthy, InlineCourier(healthy))
    assert carry(job, LocalCourier(job, 2)) == carry(job, InlineCourier(job)) == reference
    assert inline().state != carry(replace(eventful(), faults=Faults()), InlineCourier(eventful())).state


def deaths(job: Job) -> int:
    """How many first attempts end with the worker."""
    visits = [(round, client) for round in range(job.rounds) for client in job.sample(round)]
    return sum(job.faults.strikes("crash", job.streams, round, client) for round, client in visits)


def test_faults_strike_about_as_often_as_asked() -> None:
    """10,000 draws: the standard deviation of a share is at most 0.005, the bounds are six of them away."""
    faults, streams = Faults(lost=0.1, nonfinite=0.3, slow=0.5, crash=0.9), Streams(0)
    for kind in KINDS:
        count = sum(faults.strikes(kind, streams, round, client) for round in range(100) for client in range(100))
        assert abs(count / 10_000 - getattr(faults, kind)) < 0.03


def test_faults_are_drawn_independently() -> None:
    """Two kinds, two attempts, two clients or two rounds agree on a coin as often as two coins do."""
    faults, streams = Faults(0.5, 0.5, 0.5, 0.5), Streams(3)

    def coins(kind: str, attempt: int = 0, shift: int = 0, later: int = 0) -> list[bool]:
        return [
            faults.strikes(kind, streams, round + later, client + shift, attempt)
            for round in range(40)
            for client in range(40)
        ]

    first = coins("lost")
    for other in (coins("nonfinite"), coins("slow"), coins("crash"), coins("lost", 1), coins("lost", 0, 40)):
        agree = sum(a == b for a, b in zip(first, other, strict=True)) / len(first)
        assert abs(agree - 0.5) < 0.075  # six standard deviations of 1,600 coins
    assert coins("lost") == first
    assert coins("lost", later=40) != first


def test_probabilities_of_zero_and_one_are_certain() -> None:
    for kind in KINDS:
        assert not any(Faults().strikes(kind, Streams(0), 0, client) for client in range(200))
        assert all(Faults(**{kind: 1.0}).strikes(kind, Streams(0), 0, client) for client in range(200))
