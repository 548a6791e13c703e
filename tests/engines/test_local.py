"""Worker processes: the same bits for any number of them, and whatever happens to one costs one client at most."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from tacit.engines import local
from tacit.engines.faults import Faults
from tacit.engines.inline import InlineCourier
from tacit.engines.local import LocalCourier, default_workers, one_thread, repeatable
from tacit.engines.loop import Arrived, Courier, Job, Parcel, TooFewClientsError
from tacit.federation import Federation, Samples
from tacit.method import ClientContext, Method, Reply
from tacit.methods.fedavg import FedAvg
from tacit.methods.local_only import LocalOnly
from tacit.methods.scaffold import Scaffold
from tacit.objectives import FixMatch
from tacit.random import Streams
from tests.engines import farm
from tests.engines.farm import Outcome, carry, tally_job

METHODS: dict[str, Method[Any, Any, Any, Any]] = {
    "fedavg+fixmatch": FedAvg(FixMatch(threshold=0.4)),
    "scaffold": Scaffold(FixMatch(threshold=0.4)),
    "local-only": LocalOnly(FixMatch(threshold=0.4)),
}
LONG = 3.0  # seconds: a deadline that an idle client meets on the busiest machine


@cache
def inline(name: str) -> Outcome:
    job = farm.job(METHODS[name])
    return carry(job, InlineCourier(job))


CARRIERS: dict[str, Callable[[Job], Courier]] = {
    "strict": lambda job: InlineCourier(job, strict=True),
    "1 worker": lambda job: LocalCourier(job, 1),
    "2 workers": lambda job: LocalCourier(job, 2),
    "4 workers": lambda job: LocalCourier(job, 4),
}


@pytest.mark.parametrize("carrier", CARRIERS)
@pytest.mark.parametrize("name", METHODS)
def test_the_same_bits_whatever_carries_the_messages(name: str, carrier: str) -> None:
    job = farm.job(METHODS[name])
    assert carry(job, CARRIERS[carrier](job)) == inline(name)


def test_a_worker_for_every_core_that_may_be_used_and_one_beside_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5, 9}, raising=False)
    assert default_workers(torch.device("cpu")) == 3
    assert default_workers(torch.device("cuda")) == 1
    monkeypatch.delattr(os, "sched_getaffinity")  # as on other systems
    assert default_workers(torch.device("cpu")) == 64


def test_a_gpu_is_asked_for_the_same_bits_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[bool, bool]] = []
    monkeypatch.setattr(torch, "use_deterministic_algorithms", lambda on, warn_only: asked.append((on, warn_only)))
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", False)
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    repeatable(torch.device("cpu"))
    assert (asked, torch.backends.cudnn.deterministic) == ([], False)
    repeatable(torch.device("cuda"))
    assert (asked, torch.backends.cudnn.deterministic) == ([(True, True)], True)
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"  # whoever chose another keeps it


def test_the_same_bits_from_spawned_workers() -> None:
    job = farm.job(METHODS["scaffold"])
    assert carry(job, LocalCourier(job, 1, start="spawn")) == inline("scaffold")


@pytest.mark.parametrize("name", METHODS)
def test_the_runs_that_are_compared_do_something(name: str) -> None:
    """Models move, memories exist where they should, pseudo-labels are kept, and the seed matters."""
    outcome, job = inline(name), farm.job(METHODS[name])
    other = replace(job, streams=Streams(8))
    assert carry(other, InlineCourier(other)) != outcome
    remembers = [client for client, memory in outcome.memories.items() if memory is not None]
    visited = sorted({client for round in range(3) for client in job.sample(round)})
    assert remembers == ([] if name == "fedavg+fixmatch" else visited)
    assert any(record["metrics"]["pseudo_kept"]["mean"] > 0 for record in outcome.records)
    assert all(record["skipped"] == {} for record in outcome.records)


def test_every_byte_is_counted_as_encoded() -> None:
    """In each round and direction, and the same whether or not the bytes are really made."""
    job = farm.job(METHODS["scaffold"])
    sizes: dict[int, tuple[int, int]] = {}

    class Scale(InlineCourier):
        def exchange(self, round: int, parcels: Any) -> Any:
            outcomes = super().exchange(round, parcels)
            for client, outcome in outcomes.items():
                assert isinstance(outcome, Arrived)
                down, up = (len(job.codec.encode(message)) for message in (parcels[client].down, outcome.up))
                sizes[client] = down, up
            return outcomes

    outcome = carry(replace(job, rounds=1), Scale(job))
    record = outcome.records[0]
    assert record["traffic"] == sizes
    assert record["bytes_down"] == sum(down for down, _ in sizes.values())
    assert record["bytes_up"] == sum(up for _, up in sizes.values())
    dense = sum(value.numel() for value in job.net.init(job.streams.at("init")).values()) * 4
    trainable = job.net.size() * 4
    headers = 4000  # names and shapes
    for down, up in sizes.values():
        assert dense + trainable < down < dense + trainable + headers  # x and c
        assert dense + trainable < up < dense + trainable + headers  # Δy and Δc


def test_evaluation_is_the_same_for_any_number_of_workers_and_right() -> None:
    job = farm.job(METHODS["fedavg+fixmatch"], federation=farm.federation(clients=2, test=1203))
    assert job.federation.clients < 4
    model = job.net.init(job.streams.at("some weights"))
    scores = []
    for make in (InlineCourier, *CARRIERS.values()):
        with closing(make(job)) as courier, one_thread():
            scores.append(courier.evaluate(model))
    assert all(score == scores[0] for score in scores)
    test, views = job.federation.test, job.federation.views
    with torch.no_grad():
        logits = job.net.apply(model, views.plain(test.x))
    assert scores[0].count == 1203
    assert scores[0].correct == int((logits.argmax(1) == test.y).sum())
    assert scores[0].loss == pytest.approx(float(functional.cross_entropy(logits, test.y, reduction="sum")), rel=1e-5)


@dataclass(frozen=True)
class Trap:
    """At one client: write down which process is at work, then wait to be killed, so many times."""

    client: int
    folder: Path
    times: int

    def __call__(self, context: ClientContext) -> None:
        caught = len(list(self.folder.glob("*.pid")))
        if context.client != self.client or context.round != 1 or caught >= self.times:
            return
        wait_for_death(self.folder, caught)


def wait_for_death(folder: Path, number: int) -> None:
    """Tell the killer which process is at work."""
    unfinished = folder / f"{number}.tmp"
    unfinished.write_text(str(os.getpid()))
    unfinished.rename(folder / f"{number}.pid")
    time.sleep(farm.PATIENCE)


@contextmanager
def killer(folder: Path, times: int) -> Iterator[None]:
    """Another process that kills -9 whoever writes its number into the folder."""
    wait = f"for i in $(seq 3000); do [ -e {folder}/$n.pid ] && break; sleep 0.02; done"
    script = f"for n in $(seq 0 {times - 1}); do {wait}; kill -9 $(cat {folder}/$n.pid) || exit 1; done"
    process = subprocess.Popen(["sh", "-c", script], start_new_session=True)
    try:
        yield
        assert process.wait(farm.PATIENCE) == 0
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def client_of_round_1() -> int:
    return tally_job().sample(1)[2]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_client_whose_worker_is_killed_is_served_by_another(tmp_path: Path, workers: int) -> None:
    quiet = tally_job()
    job = tally_job(Trap(client_of_round_1(), tmp_path, times=1))
    with killer(tmp_path, times=1):
        outcome = carry(job, LocalCourier(job, workers))
    assert outcome == carry(quiet, InlineCourier(quiet))
    assert outcome.skipped == [{}, {}, {}]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_client_that_kills_two_workers_is_left_out_and_named(tmp_path: Path, workers: int) -> None:
    client = client_of_round_1()
    job = tally_job(Trap(client, tmp_path, times=2))
    with killer(tmp_path, times=2):
        outcome = carry(job, LocalCourier(job, workers))
    assert outcome.skipped == [{}, {client: "its worker died twice"}, {}]
    check_acknowledged(job, outcome)


def test_a_worker_killed_while_idle_costs_nobody_anything() -> None:
    job = tally_job()
    before = farm.children()
    courier = LocalCourier(job, 2)
    victims = farm.children() - before
    assert len(victims) == 2
    os.kill(victims.pop(), signal.SIGKILL)
    assert carry(job, courier) == carry(job, InlineCourier(job))


def test_a_worker_killed_during_evaluation_costs_nothing(tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class Fragile:
        """Views in which the first process to look is killed."""

        inner: Any
        weak: Any = None
        strong: Any = None

        def plain(self, x: torch.Tensor) -> torch.Tensor:
            if os.getpid() != main:
                with suppress(FileExistsError):
                    (tmp_path / "first").touch(exist_ok=False)
                    wait_for_death(tmp_path, 0)
            plain: torch.Tensor = self.inner.plain(x)
            return plain

    main = os.getpid()
    whole = farm.federation(test=1100)
    job = tally_job(federation=replace(whole, views=Fragile(whole.views)), rounds=1)
    with killer(tmp_path, times=1):
        outcome = carry(job, LocalCourier(job, 2))
    calm = tally_job(federation=whole, rounds=1)
    assert outcome == carry(calm, InlineCourier(calm))


def check_acknowledged(job: Job, outcome: Outcome) -> None:
    """What every client believes was merged is exactly what the server merged."""
    state = job.codec.decode(outcome.state)
    believed = {k: job.codec.decode(memory).visits for k, memory in outcome.memories.items() if memory}
    assert believed == state.visits


def raise_at(client: int) -> Callable[[ClientContext], None]:
    def act(context: ClientContext) -> None:
        if context.client == client:
            raise ValueError("the scanner is [/offline]")

    return act


@pytest.mark.parametrize("carrier", ["strict", "1 worker", "2 workers"])
def test_a_client_that_raises_is_left_out_and_named(carrier: str) -> None:
    client = client_of_round_1()
    job = tally_job(raise_at(client))
    outcome = carry(job, CARRIERS[carrier](job))
    for round, skipped in enumerate(outcome.skipped):
        hit = client in job.sample(round)
        assert skipped == ({client: "failed: ValueError: the scanner is [/offline]"} if hit else {})
        assert outcome.records[round]["clients"] == 4 - hit
    check_acknowledged(job, outcome)


def test_the_traceback_of_a_failure_is_kept() -> None:
    client = client_of_round_1()
    job = tally_job(raise_at(client))
    for courier in (InlineCourier(job), LocalCourier(job, 1)):
        with closing(courier):
            down = job.method.send(job.server(1, {}), job.method.start(job.server(1, {})))[1][client]
            absent = courier.exchange(1, {client: Parcel(down, None)})[client]
        assert not isinstance(absent, Arrived)
        assert "in raise_at" in absent.detail or "in act" in absent.detail


@pytest.mark.parametrize("carrier", ["inline", "2 workers"])
def test_a_reply_that_can_not_travel_is_one_clients_problem(carrier: str) -> None:
    """A method that answers with the wrong thing at one client does not end the run."""

    @dataclass(frozen=True)
    class Careless(farm.Tally):
        def client_update(self, client: Any, memory: Any, down: Any) -> Any:
            reply = super().client_update(client, memory, down)
            return Reply(reply.memory, {1, 2}) if client.client == culprit else reply

    Careless.__module__ = farm.__name__
    culprit = client_of_round_1()
    job = farm.job(Careless(), net=tally_job().net)
    outcome = carry(job, InlineCourier(job) if carrier == "inline" else LocalCourier(job, 2))
    assert outcome.skipped[1].keys() == {culprit}
    assert "WireError: a set can not travel" in outcome.skipped[1][culprit]


def sleep_at(client: int) -> Callable[[ClientContext], None]:
    def act(context: ClientContext) -> None:
        if (context.client, context.round) == (client, 1):
            time.sleep(farm.PATIENCE)

    return act


def test_a_client_past_the_deadline_is_left_out_and_its_worker_replaced() -> None:
    client = client_of_round_1()
    job = tally_job(sleep_at(client), deadline=LONG)
    began = time.monotonic()
    outcome = carry(job, LocalCourier(job, 2))
    assert outcome.skipped == [{}, {client: f"took longer than {LONG} s"}, {}]
    assert LONG <= time.monotonic() - began < farm.PATIENCE
    check_acknowledged(job, outcome)


def test_the_time_a_worker_takes_to_start_is_not_its_clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock jumps far past the deadline while a worker starts: the first one, and the one that replaces it."""
    starts: list[str] = []

    class Clock:
        @staticmethod
        def monotonic() -> float:
            return time.monotonic() + 10 * farm.PATIENCE * len(starts)

    class Slow(local._Errand):
        def answers(self) -> bool:
            if not self.worker.ready:
                starts.append("another worker is set up")
            return super().answers()

    def die_once(_: ClientContext) -> None:
        with suppress(FileExistsError):
            (tmp_path / "first").touch(exist_ok=False)
            os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(local, "time", Clock)
    monkeypatch.setattr(local, "_Errand", Slow)
    job = tally_job(die_once, deadline=farm.PATIENCE, cohort=1)
    outcome = carry(job, LocalCourier(job, 1))
    assert len(starts) == 2
    assert outcome.skipped == [{}, {}, {}]


def test_a_round_without_any_client_stops_with_the_reasons() -> None:
    def act(context: ClientContext) -> None:
        if context.round == 1:
            raise RuntimeError(f"out of paper at {context.client}")

    job = tally_job(act)
    first, second, third, _ = job.sample(1)
    for make in (InlineCourier, CARRIERS["2 workers"]):
        with pytest.raises(TooFewClientsError) as caught:
            carry(job, make(job))
        sentence = str(caught.value)
        assert sentence.startswith("round 2: 0 of 4 clients replied")
        for client in (first, second, third):
            assert f"client {client}: failed: RuntimeError: out of paper at {client}" in sentence
        assert "1 must (engine.min_clients)" in sentence
        assert "\n" not in sentence
        assert caught.value.absent.keys() == set(job.sample(1))


def test_as_many_clients_as_asked_for_must_reply() -> None:
    client = client_of_round_1()
    strict = tally_job(raise_at(client), min_clients=4)
    with pytest.raises(TooFewClientsError, match="3 of 4 clients replied and 4 must"):
        carry(strict, InlineCourier(strict))
    relaxed = replace(strict, min_clients=3)
    assert carry(relaxed, InlineCourier(relaxed)).skipped[1].keys() == {client}


def test_no_reply_at_all_can_be_allowed() -> None:
    def act(context: ClientContext) -> None:
        raise ValueError("never")

    job = tally_job(act, min_clients=0)
    outcome = carry(job, InlineCourier(job))
    assert [record["clients"] for record in outcome.records] == [0, 0, 0]
    assert all(memory is None for memory in outcome.memories.values())


@pytest.mark.parametrize("carrier", ["strict", "2 workers"])
@pytest.mark.parametrize("kind, reason", [("nonfinite", "sent non-finite numbers"), ("lost", "upload lost")])
def test_an_upload_that_does_not_count_leaves_no_memory_behind(carrier: str, kind: str, reason: str) -> None:
    job = tally_job(faults=Faults(**{kind: 0.3}), rounds=5, min_clients=0)
    outcome = carry(job, CARRIERS[carrier](job))
    hit = [{k: reason for k in job.sample(r) if job.faults.strikes(kind, job.streams, r, k)} for r in range(5)]
    assert outcome.skipped == hit
    assert any(hit)
    assert not all(len(skipped) == 4 for skipped in hit)
    check_acknowledged(job, outcome)


def test_memories_of_a_client_that_only_listened_are_kept() -> None:
    """Nothing was uploaded, so nothing can be lost: local-only lives on this."""
    outcome = inline("local-only")
    assert all(record["bytes_up"] == 0 for record in outcome.records)
    assert any(memory is not None for memory in outcome.memories.values())


@dataclass(frozen=True)
class CountingFederation(Federation):
    """Writes down every request for a client's samples, from whatever process."""

    book: Path | None = None

    def client(self, client: int, round: int) -> Samples:
        assert self.book is not None
        with self.book.open("a") as file:
            file.write(f"{round} {client}\n")
        return super().client(client, round)


@pytest.mark.parametrize("carrier", ["strict", "1 worker", "4 workers"])
def test_only_active_clients_cost_anything(tmp_path: Path, carrier: str) -> None:
    plain = farm.federation(clients=50, each=3)
    values = {item.name: getattr(plain, item.name) for item in fields(plain)}
    job = tally_job(federation=CountingFederation(**values, book=tmp_path / "book"))
    outcome = carry(job, CARRIERS[carrier](job))
    asked = sorted(tuple(map(int, line.split())) for line in (tmp_path / "book").read_text().splitlines())
    assert asked == [(round, client) for round in range(3) for client in job.sample(round)]
    assert sum(memory is not None for memory in outcome.memories.values()) <= 12


def test_close_leaves_no_process() -> None:
    before = farm.children()
    job = tally_job()
    courier = LocalCourier(job, 3)
    assert len(farm.children() - before) == 3
    courier.close()
    assert farm.children() == before


def test_close_ends_a_worker_in_the_middle_of_its_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after Ctrl-C, which leaves workers with a client nobody waits for."""
    monkeypatch.setattr("tacit.engines.local.GRACE", 0.1)
    before = farm.children()
    job = tally_job(lambda _: time.sleep(farm.PATIENCE))
    courier = LocalCourier(job, 2)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tacit.engines.local.wait", interrupt)
    with pytest.raises(KeyboardInterrupt):
        carry(job, courier)
    assert farm.children() == before


def test_workers_end_by_themselves_when_the_main_process_is_killed(tmp_path: Path) -> None:
    job = tally_job(rounds=1_000_000)

    def work() -> None:
        courier = LocalCourier(job, 3)
        (tmp_path / "started").touch()
        carry(job, courier)

    with farm.forked(work) as main:
        assert farm.eventually((tmp_path / "started").exists)
        assert len(farm.members(main)) == 4
        os.kill(main, signal.SIGKILL)
        assert farm.eventually(lambda: not farm.members(main))


def test_idle_workers_end_too_also_those_that_replaced_others(tmp_path: Path) -> None:
    """A replacement inherits the pipes of all others; kept open, they would never learn of the end."""
    client = client_of_round_1()
    job = tally_job(Trap(client, tmp_path, times=1))

    def work() -> None:
        courier = LocalCourier(job, 3)
        down = job.method.send(job.server(1, {}), job.method.start(job.server(1, {})))[1][client]
        courier.exchange(1, {client: Parcel(down, None)})
        (tmp_path / "replaced").touch()
        time.sleep(farm.PATIENCE)

    with farm.forked(work) as main, killer(tmp_path, times=1):
        assert farm.eventually((tmp_path / "replaced").exists)
        assert len(farm.members(main)) == 4
        os.kill(main, signal.SIGKILL)
        assert farm.eventually(lambda: not farm.members(main))
