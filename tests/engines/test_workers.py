"""Worker processes: the same bits for any number of them; a worker that fails costs one client at most."""

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

from tacit.engines import failures, workers
from tacit.engines.faults import Faults
from tacit.engines.in_process import InProcessTransport
from tacit.engines.job import ClientFailure, ClientResult, ClientTask, Job, Transport
from tacit.engines.rounds import TooFewClientsError
from tacit.engines.workers import WorkerTransport
from tacit.federation import Federation, Samples
from tacit.method import ClientContext, Method, Reply
from tacit.methods.fedavg import FedAvg
from tacit.methods.local_only import LocalOnly
from tacit.methods.scaffold import Scaffold
from tacit.objectives import FixMatch
from tacit.process import default_workers, make_deterministic, one_thread
from tacit.random import Streams
from tests.engines import farm
from tests.engines.farm import Outcome, run_job, tally_job
from tests.toys import outcomes

METHODS: dict[str, Method[Any, Any, Any, Any]] = {
    "fedavg+fixmatch": FedAvg(FixMatch(threshold=0.4)),
    "scaffold": Scaffold(FixMatch(threshold=0.4)),
    "local-only": LocalOnly(FixMatch(threshold=0.4)),
}
FAULTS = [("nonfinite", failures.not_finite().reason), ("lost", failures.upload_lost().reason)]
LONG = 3.0  # seconds: a deadline that an idle client meets on the busiest machine


@cache
def in_process(name: str) -> Outcome:
    job = farm.job(METHODS[name])
    return run_job(job, InProcessTransport(job))


TRANSPORTS: dict[str, Callable[[Job], Transport]] = {
    "strict": lambda job: InProcessTransport(job, strict=True),
    "1 worker": lambda job: WorkerTransport(job, 1),
    "2 workers": lambda job: WorkerTransport(job, 2),
    "4 workers": lambda job: WorkerTransport(job, 4),
}


@pytest.mark.parametrize("transport_name", TRANSPORTS)
@pytest.mark.parametrize("name", METHODS)
def test_every_transport_gives_the_same_bits(name: str, transport_name: str) -> None:
    job = farm.job(METHODS[name])
    assert run_job(job, TRANSPORTS[transport_name](job)) == in_process(name)


def test_default_workers_are_one_per_usable_core_or_one_with_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5, 9}, raising=False)
    assert default_workers(torch.device("cpu")) == 3
    assert default_workers(torch.device("cuda")) == 1
    monkeypatch.delattr(os, "sched_getaffinity")  # as on other systems
    assert default_workers(torch.device("cpu")) == 64


def test_make_deterministic_changes_settings_on_a_gpu_only(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[bool, bool]] = []
    monkeypatch.setattr(torch, "use_deterministic_algorithms", lambda on, warn_only: asked.append((on, warn_only)))
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", False)
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    make_deterministic(torch.device("cpu"))
    assert (asked, torch.backends.cudnn.deterministic) == ([], False)
    make_deterministic(torch.device("cuda"))
    assert (asked, torch.backends.cudnn.deterministic) == ([(True, True)], True)
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"  # a value that was set before stays


def test_spawned_workers_give_the_same_bits() -> None:
    job = farm.job(METHODS["scaffold"])
    assert run_job(job, WorkerTransport(job, 1, start="spawn")) == in_process("scaffold")


@pytest.mark.parametrize("name", METHODS)
def test_the_compared_runs_learn_and_depend_on_the_seed(name: str) -> None:
    """Memories exist where they should, pseudo-labels are accepted, and another seed gives another outcome."""
    outcome, job = in_process(name), farm.job(METHODS[name])
    other = replace(job, streams=Streams(8))
    assert run_job(other, InProcessTransport(other)) != outcome
    remembers = [client for client, memory in outcome.memories.items() if memory is not None]
    sampled = sorted({client for round in range(3) for client in job.sample(round)})
    assert remembers == ([] if name == "fedavg+fixmatch" else sampled)
    assert any(record["metrics"]["pseudo_kept"]["mean"] > 0 for record in outcome.records)
    assert all(record["skipped"] == {} for record in outcome.records)


def test_every_byte_is_counted_as_encoded() -> None:
    """In each round and direction, also by a transport that does not decode what it encodes."""
    job = farm.job(METHODS["scaffold"])
    sizes: dict[int, tuple[int, int]] = {}

    class Measuring(InProcessTransport):
        def run(self, round: int, tasks: Any) -> Any:
            news = list(super().run(round, tasks))
            for client, outcome in outcomes(news).items():
                assert isinstance(outcome, ClientResult)
                down, up = (len(job.codec.encode(message)) for message in (tasks[client].down, outcome.up))
                sizes[client] = down, up
            yield from news

    outcome = run_job(replace(job, rounds=1), Measuring(job))
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


def test_evaluation_is_correct_and_the_same_for_any_number_of_workers() -> None:
    job = farm.job(METHODS["fedavg+fixmatch"], federation=farm.federation(clients=2, test=1203))
    assert job.federation.clients < 4
    model = job.net.init(job.streams.at("some weights"))
    scores = []
    for make in (InProcessTransport, *TRANSPORTS.values()):
        with closing(make(job)) as transport, one_thread():
            scores.append(transport.evaluate(model))
    assert all(score == scores[0] for score in scores)
    test, views = job.federation.test, job.federation.views
    with torch.no_grad():
        logits = job.net.apply(model, views.plain(test.x))
    assert scores[0].count == 1203
    assert scores[0].correct == int((logits.argmax(1) == test.y).sum())
    assert scores[0].loss == pytest.approx(float(functional.cross_entropy(logits, test.y, reduction="sum")), rel=1e-5)


@dataclass(frozen=True)
class Trap:
    """At one client: write down the process id, then wait to be killed, `times` times."""

    client: int
    folder: Path
    times: int

    def __call__(self, context: ClientContext) -> None:
        caught = len(list(self.folder.glob("*.pid")))
        if context.client != self.client or context.round != 1 or caught >= self.times:
            return
        wait_for_death(self.folder, caught)


def wait_for_death(folder: Path, number: int) -> None:
    """Tell the killer this process's id, and wait."""
    unfinished = folder / f"{number}.tmp"
    unfinished.write_text(str(os.getpid()))
    unfinished.rename(folder / f"{number}.pid")
    time.sleep(farm.PATIENCE)


@contextmanager
def killer(folder: Path, times: int) -> Iterator[None]:
    """Another process that kills -9 each process that writes its id into the folder."""
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
def test_a_client_whose_worker_is_killed_runs_on_another_worker(tmp_path: Path, workers: int) -> None:
    quiet = tally_job()
    job = tally_job(Trap(client_of_round_1(), tmp_path, times=1))
    with killer(tmp_path, times=1):
        outcome = run_job(job, WorkerTransport(job, workers))
    assert outcome == run_job(quiet, InProcessTransport(quiet))
    assert outcome.skipped == [{}, {}, {}]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_client_that_kills_two_workers_is_skipped(tmp_path: Path, workers: int) -> None:
    client = client_of_round_1()
    job = tally_job(Trap(client, tmp_path, times=2))
    with killer(tmp_path, times=2):
        outcome = run_job(job, WorkerTransport(job, workers))
    assert outcome.skipped == [{}, {client: failures.worker_died().reason}, {}]
    check_acknowledged(job, outcome)


def test_killing_an_idle_worker_changes_nothing() -> None:
    job = tally_job()
    before = farm.children()
    transport = WorkerTransport(job, 2)
    victims = farm.children() - before
    assert len(victims) == 2
    os.kill(victims.pop(), signal.SIGKILL)
    assert run_job(job, transport) == run_job(job, InProcessTransport(job))


def test_killing_a_worker_during_evaluation_changes_nothing(tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class Fragile:
        """Views that get the first worker that uses them killed."""

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
        outcome = run_job(job, WorkerTransport(job, 2))
    calm = tally_job(federation=whole, rounds=1)
    assert outcome == run_job(calm, InProcessTransport(calm))


def check_acknowledged(job: Job, outcome: Outcome) -> None:
    """Each client counts as merged exactly what the server merged."""
    state = job.codec.decode(outcome.state)
    believed = {k: job.codec.decode(memory).visits for k, memory in outcome.memories.items() if memory}
    assert believed == state.visits


def raise_at(client: int) -> Callable[[ClientContext], None]:
    def act(context: ClientContext) -> None:
        if context.client == client:
            raise ValueError("the scanner is [/offline]")

    return act


@pytest.mark.parametrize("transport_name", ["strict", "1 worker", "2 workers"])
def test_a_client_that_raises_is_skipped_with_its_error(transport_name: str) -> None:
    client = client_of_round_1()
    job = tally_job(raise_at(client))
    outcome = run_job(job, TRANSPORTS[transport_name](job))
    for round, skipped in enumerate(outcome.skipped):
        hit = client in job.sample(round)
        assert skipped == ({client: "failed: ValueError: the scanner is [/offline]"} if hit else {})
        assert outcome.records[round]["clients"] == 4 - hit
    check_acknowledged(job, outcome)


def test_a_failure_carries_the_traceback() -> None:
    client = client_of_round_1()
    job = tally_job(raise_at(client))
    for transport in (InProcessTransport(job), WorkerTransport(job, 1)):
        with closing(transport):
            down = job.method.send(job.server(1, {}), job.method.start(job.server(1, {})))[1][client]
            outcome = outcomes(transport.run(1, {client: ClientTask(down, None)}))[client]
        assert isinstance(outcome, ClientFailure)
        assert outcome.code == "client.failed"
        assert "in act" in outcome.detail


@pytest.mark.parametrize("transport_name", ["in process", "2 workers"])
def test_a_reply_that_cannot_be_encoded_costs_one_client(transport_name: str) -> None:
    """A method that replies with the wrong type at one client does not end the run."""

    @dataclass(frozen=True)
    class Careless(farm.Tally):
        def client_update(self, client: Any, memory: Any, down: Any) -> Any:
            reply = super().client_update(client, memory, down)
            return Reply(reply.memory, {1, 2}) if client.client == culprit else reply

    Careless.__module__ = farm.__name__
    culprit = client_of_round_1()
    job = farm.job(Careless(), net=tally_job().net)
    outcome = run_job(job, InProcessTransport(job) if transport_name == "in process" else WorkerTransport(job, 2))
    assert outcome.skipped[1].keys() == {culprit}
    assert "failed: a set cannot be sent" in outcome.skipped[1][culprit]


def sleep_at(client: int) -> Callable[[ClientContext], None]:
    def act(context: ClientContext) -> None:
        if (context.client, context.round) == (client, 1):
            time.sleep(farm.PATIENCE)

    return act


def test_a_client_past_the_deadline_is_skipped_and_its_worker_replaced() -> None:
    client = client_of_round_1()
    job = tally_job(sleep_at(client), deadline=LONG)
    began = time.monotonic()
    outcome = run_job(job, WorkerTransport(job, 2))
    assert outcome.skipped == [{}, {client: failures.too_slow(LONG).reason}, {}]
    assert LONG <= time.monotonic() - began < farm.PATIENCE
    check_acknowledged(job, outcome)


def test_a_deadline_starts_when_the_worker_is_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock jumps far past the deadline while a worker starts: the first worker, and its replacement."""
    starts: list[str] = []

    class Clock:
        @staticmethod
        def monotonic() -> float:
            return time.monotonic() + 10 * farm.PATIENCE * len(starts)

    class Slow(workers._Running):
        def has_answer(self) -> bool:
            if not self.worker.ready:
                starts.append("a worker is ready")
            return super().has_answer()

    def die_once(_: ClientContext) -> None:
        with suppress(FileExistsError):
            (tmp_path / "first").touch(exist_ok=False)
            os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(workers, "time", Clock)
    monkeypatch.setattr(workers, "_Running", Slow)
    job = tally_job(die_once, deadline=farm.PATIENCE, cohort=1)
    outcome = run_job(job, WorkerTransport(job, 1))
    assert len(starts) == 2
    assert outcome.skipped == [{}, {}, {}]


def test_a_round_without_any_reply_stops_with_the_reasons() -> None:
    def act(context: ClientContext) -> None:
        if context.round == 1:
            raise RuntimeError(f"out of paper at {context.client}")

    job = tally_job(act)
    first, second, third, _ = job.sample(1)
    for make in (InProcessTransport, TRANSPORTS["2 workers"]):
        with pytest.raises(TooFewClientsError) as caught:
            run_job(job, make(job))
        assert (caught.value.code, caught.value.resumable) == ("engine.too-few-clients", True)
        problem = caught.value.problem
        assert problem.startswith("round 2: 0 of 4 clients replied, but engine.min_clients is 1 (client ")
        for client in (first, second, third):
            assert f"client {client}: failed: RuntimeError: out of paper at {client}" in problem
        assert "\n" not in str(caught.value)
        assert caught.value.failures.keys() == set(job.sample(1))


def test_a_round_needs_min_clients_replies() -> None:
    client = client_of_round_1()
    strict = tally_job(raise_at(client), min_clients=4)
    with pytest.raises(TooFewClientsError, match="3 of 4 clients replied, but engine.min_clients is 4"):
        run_job(strict, InProcessTransport(strict))
    relaxed = replace(strict, min_clients=3)
    assert run_job(relaxed, InProcessTransport(relaxed)).skipped[1].keys() == {client}


def test_with_min_clients_zero_a_round_without_replies_continues() -> None:
    def act(context: ClientContext) -> None:
        raise ValueError("never")

    job = tally_job(act, min_clients=0)
    outcome = run_job(job, InProcessTransport(job))
    assert [record["clients"] for record in outcome.records] == [0, 0, 0]
    assert all(memory is None for memory in outcome.memories.values())


@pytest.mark.parametrize("transport_name", ["strict", "2 workers"])
@pytest.mark.parametrize("kind, reason", FAULTS)
def test_a_client_whose_upload_is_dropped_keeps_its_old_memory(transport_name: str, kind: str, reason: str) -> None:
    job = tally_job(faults=Faults(**dict[str, Any]({kind: 0.3})), rounds=5, min_clients=0)
    outcome = run_job(job, TRANSPORTS[transport_name](job))
    hit = [{k: reason for k in job.sample(r) if job.faults.occurs(kind, job.streams, r, k)} for r in range(5)]
    assert outcome.skipped == hit
    assert any(hit)
    assert not all(len(skipped) == 4 for skipped in hit)
    check_acknowledged(job, outcome)


def test_a_client_that_uploads_nothing_keeps_its_new_memory() -> None:
    """Nothing was uploaded, so nothing can be lost; local-only depends on this."""
    outcome = in_process("local-only")
    assert all(record["bytes_up"] == 0 for record in outcome.records)
    assert any(memory is not None for memory in outcome.memories.values())


@dataclass(frozen=True)
class CountingFederation(Federation):
    """Writes down every request for a client's samples, from any process."""

    requests: Path | None = None

    def client(self, client: int, round: int) -> Samples:
        assert self.requests is not None
        with self.requests.open("a") as file:
            file.write(f"{round} {client}\n")
        return super().client(client, round)


@pytest.mark.parametrize("transport_name", ["strict", "1 worker", "4 workers"])
def test_only_sampled_clients_are_loaded(tmp_path: Path, transport_name: str) -> None:
    plain = farm.federation(clients=50, each=3)
    values = {item.name: getattr(plain, item.name) for item in fields(plain)}
    job = tally_job(federation=CountingFederation(**values, requests=tmp_path / "requests"))
    outcome = run_job(job, TRANSPORTS[transport_name](job))
    asked = sorted(tuple(map(int, line.split())) for line in (tmp_path / "requests").read_text().splitlines())
    assert asked == [(round, client) for round in range(3) for client in job.sample(round)]
    assert sum(memory is not None for memory in outcome.memories.values()) <= 12


def test_close_leaves_no_process() -> None:
    before = farm.children()
    job = tally_job()
    transport = WorkerTransport(job, 3)
    assert len(farm.children() - before) == 3
    transport.close()
    assert farm.children() == before


def test_close_ends_a_busy_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after Ctrl-C, when workers are still busy with a client."""
    monkeypatch.setattr("tacit.engines.workers.GRACE", 0.1)
    before = farm.children()
    job = tally_job(lambda _: time.sleep(farm.PATIENCE))
    transport = WorkerTransport(job, 2)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tacit.engines.workers.wait", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run_job(job, transport)
    assert farm.children() == before


def test_workers_end_when_the_main_process_is_killed(tmp_path: Path) -> None:
    job = tally_job(rounds=1_000_000)

    def work() -> None:
        transport = WorkerTransport(job, 3)
        (tmp_path / "started").touch()
        run_job(job, transport)

    with farm.forked(work) as main:
        assert farm.eventually((tmp_path / "started").exists)
        assert len(farm.members(main)) == 4
        os.kill(main, signal.SIGKILL)
        assert farm.eventually(lambda: not farm.members(main))


def test_idle_and_replacement_workers_end_with_the_main_process(tmp_path: Path) -> None:
    """A replacement inherits the pipes of all others; if it left them open, the others would never see the end."""
    client = client_of_round_1()
    job = tally_job(Trap(client, tmp_path, times=1))

    def work() -> None:
        transport = WorkerTransport(job, 3)
        down = job.method.send(job.server(1, {}), job.method.start(job.server(1, {})))[1][client]
        outcomes(transport.run(1, {client: ClientTask(down, None)}))
        (tmp_path / "replaced").touch()
        time.sleep(farm.PATIENCE)

    with farm.forked(work) as main, killer(tmp_path, times=1):
        assert farm.eventually((tmp_path / "replaced").exists)
        assert len(farm.members(main)) == 4
        os.kill(main, signal.SIGKILL)
        assert farm.eventually(lambda: not farm.members(main))
