"""Rounds with secure aggregation: the outcome of ordinary ones, with clients that leave, and what the server sees."""

from collections.abc import Generator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tacit.engines.events import ClientAnswered, ClientStarted, RoundBegan
from tacit.engines.faults import Faults
from tacit.engines.in_process import InProcessTransport
from tacit.engines.job import ClientFailure, ClientNews, ClientResult, ClientTask, Job, RunState
from tacit.engines.memory import Memories
from tacit.engines.rounds import TooFewClientsError, run_rounds
from tacit.engines.secure_messages import (
    KeysDown,
    KeysUp,
    MaskDown,
    MaskedUp,
    RevealDown,
    RevealUp,
    SharesDown,
    SharesUp,
)
from tacit.engines.workers import WorkerTransport
from tacit.method import Training
from tacit.methods.fedavg import FedAvg
from tacit.methods.fedprox import FedProx
from tacit.methods.fedseal import FedSeal
from tacit.methods.moon import Moon
from tacit.methods.overlap_sgd import OverlapSgd
from tacit.methods.scaffold import Scaffold
from tacit.methods.semifl import SemiFl
from tacit.methods.ssfl import Ssfl
from tacit.nets import Net, build
from tacit.objectives import Supervised
from tacit.params import Params
from tacit.protect.config import Protection
from tests.engines.farm import run_job
from tests.refusals import refused
from tests.toys import Noisy, federation, hide, job, labeled, linear, play_all, points

SECURE = Protection(secure=True)
PROTECTIONS = Protection(), SECURE
NONE = Faults()
PLAIN = Supervised("plain")


def seven(method: Any = None, net: Net | None = None, *, rounds: int = 2, faults: Faults = NONE, **options: Any) -> Job:
    """Seven clients of different sizes; five must stay in a round."""
    data = federation([points(k, 10 + 3 * k) for k in range(7)])
    train = Training(batch=6, lr=0.1)
    return job(method or FedAvg(PLAIN), data, net or linear(), train=train, rounds=rounds, faults=faults, **options)


def near(first: Params, second: Params, within: float = 1e-6) -> None:
    for name in first:
        torch.testing.assert_close(first[name], second[name], rtol=0, atol=within)


@pytest.mark.parametrize(
    "method", [FedAvg(PLAIN), FedAvg(PLAIN, weights="uniform"), FedProx(PLAIN), FedProx(PLAIN, weights="samples")]
)
def test_the_outcome_is_that_of_the_plain_mean(method: Any) -> None:
    # Rounding: at most K·2^-25 over the total weight, in two rounds; float32 itself rounds to 2^-24.
    near(play_all(seven(method, protect=SECURE)).state.w, play_all(seven(method)).state.w)


def test_memories_survive() -> None:
    # MOON compares with the model of the last visit, which is in its memory.
    plain, hidden = (play_all(seven(Moon(PLAIN, mu=5.0), build("mlp", (4,), 3), protect=each)) for each in PROTECTIONS)
    near(hidden.state.w, plain.state.w, 1e-5)
    assert set(hidden.memories) == set(plain.memories)
    for client, memory in plain.memories.items():
        near(hidden.memories[client].own.w, memory.w, 1e-5)
        assert hidden.memories[client].secret is None


def test_workers_and_one_process_give_the_same_bits() -> None:
    given = seven(protect=SECURE)
    with closing(WorkerTransport(given, 2)) as transport:
        several = run_job(given, transport)
    one = run_job(given, InProcessTransport(given, strict=True))
    assert several.state == one.state


class Recorder(InProcessTransport):
    """Notes what the server gets, and lets clients leave at a stage."""

    leave: Mapping[type, tuple[int, ...]] = {}

    def __init__(self, given: Job, strict: bool = False) -> None:
        super().__init__(given, strict)
        self.seen: list[tuple[int, ClientTask, Any]] = []

    def run(self, round: int, tasks: Mapping[int, ClientTask]) -> Generator[ClientNews]:
        for item in super().run(round, tasks):
            if isinstance(item, tuple):
                client, outcome = item
                if client in self.leave.get(type(tasks[client].down), ()):
                    outcome = ClientFailure("client.gone", "is gone")
                self.seen.append((client, tasks[client], outcome))
                yield client, outcome
            else:
                yield item


def played(given: Job, leave: Mapping[type, tuple[int, ...]]) -> tuple[Any, list[Any], Recorder]:
    transport = Recorder(given)
    transport.leave = leave
    state = RunState(Memories(Path("never written"), 1 << 30))
    return state, list(run_rounds(given, transport, state)), transport


@pytest.mark.parametrize("stage", [KeysDown, SharesDown, MaskDown])
@pytest.mark.parametrize("gone", [(0,), (2, 5)])
def test_the_mean_is_that_of_those_who_stayed(stage: type, gone: tuple[int, ...]) -> None:
    given = seven(protect=SECURE, rounds=1)
    state, events, _ = played(given, {stage: gone})
    stayed = replace(seven(rounds=1), left_out=dict.fromkeys(gone, 0))
    near(state.state.w, play_all(stayed).state.w)
    record = events[-1].record
    assert record.clients == 7 - len(gone)
    assert set(record.skipped) == set(gone)


def test_who_leaves_after_its_upload_still_counts() -> None:
    state, events, _ = played(seven(protect=SECURE, rounds=1), {RevealDown: (1, 6)})
    near(state.state.w, play_all(seven(rounds=1)).state.w)
    assert events[-1].record.clients == 7


@pytest.mark.parametrize("stage", [KeysDown, SharesDown, MaskDown, RevealDown])
def test_a_round_with_too_few_survivors_stops(stage: type) -> None:
    leave = {stage: (0, 1, 2, 3, 4) if stage is KeysDown else (0, 1, 2)}
    with pytest.raises(TooFewClientsError):
        played(seven(protect=SECURE, rounds=1), leave)


MALFORMED = [
    (KeysDown, KeysUp(1, 2, 3)),  # type: ignore[arg-type]
    (KeysDown, KeysUp("00", "zz", "")),
    (SharesDown, SharesUp(7)),  # type: ignore[arg-type]
    (SharesDown, SharesUp({0: 1})),  # type: ignore[dict-item]
    (SharesDown, SharesUp(dict.fromkeys((0, 1, 3, 4, 5, 6), "zz"))),
    (SharesDown, KeysUp("", "", "")),
    (MaskDown, MaskedUp(torch.zeros(3, dtype=torch.int64))),
    (MaskDown, MaskedUp(torch.zeros(17))),
    (MaskDown, MaskedUp(torch.zeros(10_000, dtype=torch.int64))),
    (MaskDown, MaskedUp("words")),  # type: ignore[arg-type]
    (RevealDown, RevealUp(5)),  # type: ignore[arg-type]
    (RevealDown, RevealUp({0: ("own mask", "zz")})),
]


@pytest.mark.parametrize("stage, up", MALFORMED)
def test_a_malformed_answer_costs_its_sender_only(stage: type, up: object) -> None:
    class Malformed(Recorder):
        def run(self, round: int, tasks: Mapping[int, ClientTask]) -> Generator[ClientNews]:
            for item in super().run(round, tasks):
                sent = isinstance(item, tuple) and item[0] == 2 and isinstance(tasks[2].down, stage)
                size = len(given.codec.encode(up))
                yield (2, ClientResult(up, None, {}, bytes_up=size)) if sent else item

    given = seven(protect=SECURE, rounds=1)
    state = RunState(Memories(Path("never written"), 1 << 30))
    record = list(run_rounds(given, Malformed(given), state))[-1].record  # type: ignore[union-attr]
    counted = stage is RevealDown  # its upload had arrived
    assert set(record.skipped) == (set() if counted else {2})
    stayed = seven(rounds=1) if counted else replace(seven(rounds=1), left_out={2: 0})
    near(state.state.w, play_all(stayed).state.w)


def test_the_server_sees_masked_uploads_only() -> None:
    given = seven(protect=SECURE, rounds=1)
    _, _, transport = played(given, {})
    uploads = [outcome for _, task, outcome in transport.seen if isinstance(task.down, MaskDown)]
    assert len(uploads) == 7
    model = play_all(seven(rounds=1)).state.w
    for outcome in uploads:
        assert isinstance(outcome.up, MaskedUp)
        words = outcome.up.words
        assert words.double().abs().median() > 2**56  # the model's own numbers are below 2^32
        assert len(words) == sum(value.numel() for value in model.values()) + 2
        assert set(outcome.metrics) == {"steps"}


def test_events_show_the_work_once() -> None:
    _, events, _ = played(seven(protect=SECURE, rounds=1), {})
    for kind, count in ((RoundBegan, 1), (ClientStarted, 7), (ClientAnswered, 7)):
        assert sum(isinstance(event, kind) for event in events) == count


def test_every_byte_of_the_four_exchanges_counts() -> None:
    _, events, transport = played(seven(protect=SECURE, rounds=1), {})
    record = events[-1].record
    assert record.bytes_up == sum(outcome.bytes_up for _, _, outcome in transport.seen)
    assert record.bytes_down == sum(outcome.bytes_down for _, _, outcome in transport.seen)
    assert len(transport.seen) == 4 * 7


def test_lost_uploads_are_recovered_from() -> None:
    given = seven(protect=SECURE, faults=Faults(lost=0.15), rounds=3, min_clients=0)
    records = play_all(given).records
    assert any("upload lost" in record.skipped.values() and record.clients >= 5 for record in records)


def test_a_broken_upload_costs_its_sender_the_round() -> None:
    given = seven(protect=SECURE, faults=Faults(nonfinite=0.15), rounds=3, min_clients=0)
    records = play_all(given).records
    broken = [record for record in records if record.skipped]
    assert broken
    assert all(record.accuracy is not None for record in records)


def test_a_client_without_samples_adds_nothing() -> None:
    data = federation([points(0, 10), points(1, 12), points(2, 9), replace(points(3, 4), y=torch.full((4,), -1))])
    plain, hidden = (
        play_all(job(FedAvg(PLAIN), data, linear(), rounds=1, protect=each)).state.w for each in PROTECTIONS
    )
    near(hidden, plain)


@pytest.mark.parametrize("method", [FedAvg(PLAIN), FedAvg(PLAIN, weights="uniform"), FedProx(PLAIN), Moon(PLAIN)])
def test_summable_methods_merge_a_mean_like_its_parts(method: Any) -> None:
    assert method.summable
    given = seven(method)
    ups = {k: reply.up for k, reply in ((k, _visit(given, k)) for k in range(7))}
    state = given.method.start(given.server(0, {}))
    server = given.server(0, {})
    _, downs = given.method.send(server, state)
    words = sum((given.sum_form.encode(up, 7) for up in list(ups.values())[1:]), given.sum_form.encode(ups[0], 7))
    alone = given.method.merge(server, state, {0: given.sum_form.decode(words)})
    near(alone.w, given.method.merge(server, state, ups).w)
    assert downs


@pytest.mark.parametrize("method", [SemiFl(threshold=0.3), FedSeal(bootstrap=1, threshold=0.3), OverlapSgd(PLAIN)])
def test_methods_that_train_at_the_server_have_the_plain_outcome(method: Any) -> None:
    labels = 20 if isinstance(method, OverlapSgd) else 0
    clients = [hide(points(k, 12 + k), labels) for k in range(4)]
    data = federation(clients, server=points(9, 12), validation=points(8, 12), views=Noisy())
    train = Training(batch=6, lr=0.1, momentum=0.0)
    plain, hidden = (
        play_all(job(method, data, linear(), train=train, server_train=train, rounds=2, protect=each))
        for each in PROTECTIONS
    )
    assert any(record.steps for record in plain.records)
    near(method.model(hidden.state), method.model(plain.state), 1e-5)


def _visit(given: Job, client: int) -> Any:
    state = given.method.start(given.server(0, {}))
    _, downs = given.method.send(given.server(0, {}), state)
    return given.method.client_update(given.client(0, client), None, downs[client])


@pytest.mark.parametrize("method", [Scaffold(PLAIN), Ssfl()])
def test_methods_that_need_more_than_a_mean_are_refused(method: Any) -> None:
    with refused("protect.not-a-sum"):
        _ = seven(method).sum_form


def test_sample_noise_and_secure_aggregation_work_together() -> None:
    given = labeled(FedAvg(PLAIN), 4, protect=Protection(sample_noise=1.0, sample_clip=1.0, secure=True))
    last = play_all(given).records[-1]
    assert last.sample_privacy is not None
    assert last.sample_privacy["epsilon"]
    assert last.sample_privacy["delta"] == 1e-5
