"""Events: in which order they come from each transport, what they say, and that they survive JSON."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.engines import events, workers
from tacit.engines.events import (
    ClientAnswered,
    ClientFailed,
    ClientStarted,
    Event,
    RoundBegan,
    RoundEnded,
    RoundProgress,
    Waiting,
)
from tacit.engines.faults import Faults
from tacit.engines.in_process import InProcessTransport
from tacit.engines.job import Job, RunState, Transport
from tacit.engines.memory import Memories
from tacit.engines.rounds import TooFewClientsError, run_rounds
from tacit.engines.workers import WorkerTransport
from tacit.method import ClientContext
from tests.engines import farm
from tests.engines.farm import tally_job
from tests.runs.test_record import CLIENTS, COUNTS, NUMBERS, RECORDS

TRANSPORTS: dict[str, Callable[[Job], Transport]] = {
    "in process": InProcessTransport,
    "1 worker": lambda job: WorkerTransport(job, 1),
    "2 workers": lambda job: WorkerTransport(job, 2),
}


def state() -> RunState:
    return RunState(Memories(Path("never written"), 1 << 30))


def happens(job: Job, transport: Transport) -> list[Event]:
    """All events of a job, without those that say that nothing is new."""
    with closing(transport):
        return [event for event in run_rounds(job, transport, state()) if not isinstance(event, Waiting)]


def by_round(happened: list[Event]) -> list[list[Event]]:
    """The events of each round, from its beginning to its end."""
    ends = [at + 1 for at, event in enumerate(happened) if isinstance(event, RoundEnded)]
    return [happened[first:last] for first, last in zip([0, *ends], ends, strict=False)]


def of_client(happened: list[Event], client: int) -> list[Event]:
    return [event for event in happened if getattr(event, "client", None) == client]


@pytest.mark.parametrize("transport_name", TRANSPORTS)
def test_a_round_begins_its_clients_start_and_answer_and_it_ends(transport_name: str) -> None:
    job = tally_job()
    rounds = by_round(happens(job, TRANSPORTS[transport_name](job)))
    assert len(rounds) == job.rounds
    for number, (began, *between, ended) in enumerate(rounds):
        assert began == RoundBegan(number, job.sample(number))
        assert isinstance(ended, RoundEnded)
        assert ended.record.round == ended.round == number
        assert len(between) == 2 * job.cohort
        for client in job.sample(number):
            started, answered = of_client(between, client)
            assert started == ClientStarted(number, client)
            assert isinstance(answered, ClientAnswered)
            assert answered.bytes_up == ended.record.traffic[client][1] > 0
            assert 0 <= answered.seconds <= ended.record.seconds


def test_in_one_process_clients_work_one_after_the_other_in_ascending_order() -> None:
    job = tally_job(rounds=1)
    _, *between, _ = happens(job, InProcessTransport(job))
    sequence = [(type(event), getattr(event, "client", None)) for event in between]
    assert sequence == [(kind, client) for client in job.sample(0) for kind in (ClientStarted, ClientAnswered)]


def test_no_more_clients_work_at_once_than_there_are_workers() -> None:
    job = tally_job(cohort=8)
    progress, most = RoundProgress(), 0
    for event in happens(job, WorkerTransport(job, 2)):
        progress.follow(event)
        most = max(most, len(progress.working))
    assert most == 2


def test_the_seconds_of_a_client_are_those_it_worked() -> None:
    first = tally_job().sample(0)[0]
    job = tally_job(lambda client: time.sleep(0.3 if client.client == first else 0), rounds=1)
    took = {
        event.client: event.seconds
        for event in happens(job, InProcessTransport(job))
        if isinstance(event, ClientAnswered)
    }
    assert took.pop(first) >= 0.3
    assert min(took.values()) < 0.3


@pytest.mark.parametrize("transport_name", TRANSPORTS)
@pytest.mark.parametrize(
    "fault, code",
    [("lost", "client.upload-lost"), ("nonfinite", "client.not-finite"), ("crash", "client.worker-died")],
)
def test_an_injected_fault_is_a_failure_of_its_client(fault: str, code: str, transport_name: str) -> None:
    job = tally_job(faults=Faults(**dict[str, Any]({fault: 0.6})), min_clients=0)
    happened = happens(job, TRANSPORTS[transport_name](job))
    failed = [event for event in happened if isinstance(event, ClientFailed)]
    skipped = {
        (event.round, client): reason
        for event in happened
        if isinstance(event, RoundEnded)
        for client, reason in event.record.skipped.items()
    }
    assert {(event.round, event.client): event.reason for event in failed} == skipped
    assert {event.code for event in failed} - {"client.diverged"} == {code}  # the other: all of a round had the fault
    assert len(skipped) > 1


def test_an_upload_that_cannot_be_used_arrives_before_its_client_fails() -> None:
    job = tally_job(faults=Faults(lost=1.0), min_clients=0, rounds=1)
    happened = happens(job, InProcessTransport(job))
    for client in job.sample(0):
        assert [type(event) for event in of_client(happened, client)] == [ClientStarted, ClientAnswered, ClientFailed]


def test_a_client_that_fails_is_seen_before_the_round_stops() -> None:
    def fails(client: ClientContext) -> None:
        raise ValueError("the scanner is offline")

    job = tally_job(fails)
    happened: list[Event] = []
    with pytest.raises(TooFewClientsError):
        happened.extend(run_rounds(job, InProcessTransport(job), state()))
    failed = [event for event in happened if isinstance(event, ClientFailed)]
    assert [event.client for event in failed] == list(job.sample(0))
    assert {(event.code, event.reason) for event in failed} == {
        ("client.failed", "failed: ValueError: the scanner is offline")
    }


def slow_job(folder: Path) -> tuple[Job, int]:
    """A job with one client per round that works until the file `go` is there."""
    first = tally_job().sample(0)[0]

    def act(client: ClientContext) -> None:
        until = time.monotonic() + farm.PATIENCE
        while client.client == first and not (folder / "go").exists() and time.monotonic() < until:
            time.sleep(0.01)

    return tally_job(act, rounds=1), first


def test_a_slow_client_works_while_others_have_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "QUIET", 0.05)
    job, slow = slow_job(tmp_path)
    progress, waited = RoundProgress(), 0
    with closing(WorkerTransport(job, 2)) as transport:
        for event in run_rounds(job, transport, state()):
            if isinstance(event, RoundEnded):
                assert (progress.working, len(progress.answered)) == (set(), 4)
            progress.follow(event)
            if isinstance(event, Waiting) and len(progress.answered) == 3:
                assert progress.working == {slow}
                waited += 1
                if waited == 3:
                    (tmp_path / "go").touch()
    assert waited >= 3


def test_workers_can_be_used_again_after_a_round_was_given_up(tmp_path: Path) -> None:
    """The answers to the old tasks must not be taken for answers to the new ones."""
    job, _ = slow_job(tmp_path)
    with closing(WorkerTransport(job, 2)) as transport:
        given_up = run_rounds(job, transport, state())
        while not isinstance(next(given_up), ClientAnswered):
            pass
        began = time.monotonic()
        given_up.close()
        assert time.monotonic() - began < 3  # nobody waits for the slow client
        (tmp_path / "go").touch()
        again = [event for event in run_rounds(job, transport, state()) if isinstance(event, RoundEnded)]
    (expected,) = (event for event in happens(job, InProcessTransport(job)) if isinstance(event, RoundEnded))
    assert replace(again[0].record, seconds=0) == replace(expected.record, seconds=0)


def test_within_a_round_the_state_is_that_of_the_last_round_that_ended() -> None:
    job, run_state, ended = tally_job(), state(), 0
    for event in run_rounds(job, InProcessTransport(job), run_state):
        ended += isinstance(event, RoundEnded)
        assert run_state.round == ended


def test_round_records_are_the_records_of_the_rounds_that_ended_and_close_the_events() -> None:
    closed: list[bool] = []

    def some() -> Iterator[Any]:
        try:
            yield from happened
        finally:
            closed.append(True)

    job = tally_job()
    happened = happens(job, InProcessTransport(job))
    only: Any = events.round_records(some())  # type: ignore[arg-type]
    assert next(only).round == 0
    assert next(only).round == 1
    only.close()
    assert closed == [True]


# --- JSON -------------------------------------------------------------------------------------------------------------

EVENTS = st.one_of(
    st.builds(RoundBegan, COUNTS, st.lists(CLIENTS, max_size=4).map(tuple)),
    st.builds(ClientStarted, COUNTS, CLIENTS),
    st.builds(ClientAnswered, COUNTS, CLIENTS, NUMBERS, COUNTS),
    st.builds(ClientFailed, COUNTS, CLIENTS, st.text(), st.text()),
    st.builds(Waiting, COUNTS),
    st.builds(RoundEnded, RECORDS),
)


@given(EVENTS)
def test_an_event_survives_json(event: Event) -> None:
    line = events.to_json(event)
    assert "\n" not in line
    assert events.from_json(line) == events.from_json(line.encode()) == event


@given(EVENTS, st.data())
def test_an_event_without_one_of_its_fields_is_refused(event: Event, data: st.DataObject) -> None:
    values = json.loads(events.to_json(event))
    del values[data.draw(st.sampled_from(sorted(values)))]
    with pytest.raises(ValueError, match="not an event"):
        events.from_json(json.dumps(values))


@pytest.mark.parametrize("line", ["", "7", "[]", "null", '{"event": "Party"}', '{"event": []}', '{"event": "Waiting"}'])
def test_other_json_is_not_an_event(line: str) -> None:
    with pytest.raises(ValueError, match="not an event|Expecting value"):
        events.from_json(line)


@given(st.lists(EVENTS, max_size=12))
def test_progress_survives_json_after_any_events(happened: list[Event]) -> None:
    progress = RoundProgress()
    for event in happened:
        progress.follow(event)
    assert RoundProgress.from_json(progress.to_json()) == progress


@pytest.mark.parametrize(
    "text", ["", "7", "{}", '{"round": 0, "clients": 1, "working": [], "answered": [], "failed": {}}']
)
def test_other_json_is_not_the_progress_of_a_round(text: str) -> None:
    with pytest.raises(ValueError, match="not the progress|Expecting value"):
        RoundProgress.from_json(text)


def test_progress_counts_who_has_answered() -> None:
    progress = RoundProgress()
    for event in (
        RoundBegan(2, (1, 4, 6)),
        ClientStarted(2, 1),
        ClientStarted(2, 4),
        ClientAnswered(2, 1, 0.5, 10),
        ClientFailed(2, 6, "client.not-connected", "is not connected"),
    ):
        progress.follow(event)
    assert (progress.working, progress.answered, progress.failed) == ({4}, {1}, {6: "is not connected"})
    assert progress.answered_text("sites") == "1 of 3 sites answered"
