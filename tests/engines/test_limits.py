"""How far one client can move the model, and what happens when uploads cannot be merged into a sound one."""

import math
from collections.abc import Callable, Generator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.aggregation import WeightsUp
from tacit.engines import failures
from tacit.engines.events import ClientFailed, round_records
from tacit.engines.in_process import InProcessTransport
from tacit.engines.job import ClientNews, ClientResult, ClientTask, Job, RunState
from tacit.engines.limits import Limits, largest_count, lengths, too_long
from tacit.engines.memory import Memories
from tacit.engines.rounds import run_rounds
from tacit.methods.easgd import EasgdUp
from tacit.methods.fedavg import FedAvg
from tacit.methods.fedmix import FedMix, FedMixUp
from tacit.methods.scaffold import Scaffold, ScaffoldUp
from tacit.objectives import Supervised
from tacit.params import scale
from tests.refusals import refused
from tests.test_contract import NAMES, build_job, supported
from tests.toys import labeled, play_all

Change = Callable[[Any], Any]


class Changing(InProcessTransport):
    """Some clients change their upload of one round, or lose it."""

    def __init__(self, job: Job, changes: Mapping[int, Change | None], round: int = 1) -> None:
        super().__init__(job, strict=True)
        self.changes, self.round = changes, round

    def run(self, round: int, tasks: Mapping[int, ClientTask]) -> Generator[ClientNews]:
        for news in super().run(round, tasks):
            if isinstance(news, tuple) and round == self.round and news[0] in self.changes:
                client, outcome = news
                change = self.changes[client]
                assert isinstance(outcome, ClientResult)
                yield client, failures.upload_lost() if change is None else replace(outcome, up=change(outcome.up))
            else:
                yield news


def played(job: Job, changes: Mapping[int, Change | None]) -> tuple[bytes, list[dict[int, str]]]:
    """The final state, and the codes of the failures in each round."""
    state = RunState(Memories(Path(), 1 << 30))
    failed: list[dict[int, str]] = [{} for _ in range(job.rounds)]
    for event in run_rounds(job, Changing(job, changes), state):
        if isinstance(event, ClientFailed):
            failed[event.round][event.client] = event.code
    return job.codec.encode(state.state), failed


def huge(up: WeightsUp) -> WeightsUp:
    """As large as floats can be, all of them finite."""
    return replace(up, w={name: torch.full_like(value, 3.4e38) for name, value in up.w.items()})


@pytest.mark.parametrize("evil", [(2,), (0, 3)])
def test_clients_whose_uploads_break_the_model_are_left_out_by_name(evil: tuple[int, ...]) -> None:
    """Without any limit set. The average of such numbers is finite, but nobody can train from it."""
    job = labeled(FedAvg(Supervised()), clients=4, rounds=3)
    bits, failed = played(job, dict.fromkeys(evil, huge))
    assert failed == [{}, dict.fromkeys(evil, "client.breaks-model"), {}]
    assert bits == played(job, dict.fromkeys(evil, None))[0]


def test_if_all_clients_diverge_none_of_them_is_blamed() -> None:
    job = labeled(FedAvg(Supervised()), clients=3, rounds=2, min_clients=0)
    _, failed = played(job, dict.fromkeys(range(3), lambda up: replace(up, w=scale(up.w, math.nan))))
    assert failed == [{}, dict.fromkeys(range(3), "client.diverged")]


def doubled(up: ScaffoldUp) -> ScaffoldUp:
    """Finite, but x + Δy is not."""
    return replace(up, dy={name: torch.full_like(value, 3.4e38) for name, value in up.dy.items()})


def test_the_only_sender_of_numbers_that_overflow_is_left_out() -> None:
    job = labeled(Scaffold(Supervised(), server_lr=3.0), clients=1, rounds=3)
    bits, failed = played(job, {0: doubled})
    assert failed == [{}, {0: "client.breaks-model"}, {}]
    assert bits == played(replace(job, min_clients=0), {0: None})[0]


@pytest.mark.parametrize("evil", [(1,), (0, 2)])
def test_senders_of_numbers_that_overflow_are_left_out_together(evil: tuple[int, ...]) -> None:
    job = labeled(Scaffold(Supervised(), server_lr=30.0), clients=4, rounds=3, train=replace(labeled_train(), lr=1e-4))
    bits, failed = played(job, dict.fromkeys(evil, doubled))
    assert failed == [{}, dict.fromkeys(evil, "client.breaks-model"), {}]
    assert bits == played(job, dict.fromkeys(evil, None))[0]


def labeled_train() -> Any:
    return labeled(FedAvg(Supervised())).train


def test_no_client_is_left_out_if_most_uploads_diverge() -> None:
    """Training diverges: the model breaks, and in the next round the clients say what they received."""
    job = labeled(Scaffold(Supervised(), server_lr=30.0), clients=4, rounds=3, min_clients=0)
    _, failed = played(job, dict.fromkeys(range(4), doubled))
    assert failed == [{}, {}, dict.fromkeys(range(4), "client.broken-model")]


def test_an_upload_that_cannot_be_merged_costs_its_sender_the_round() -> None:
    """An average over no samples raises an error, which must not stop the run."""
    job = labeled(FedAvg(Supervised()), clients=1, rounds=3)
    bits, failed = played(job, {0: lambda up: replace(up, n=0)})
    assert failed == [{}, {0: "client.cannot-merge"}, {}]
    assert bits == played(replace(job, min_clients=0), {0: None})[0]


@pytest.mark.parametrize("name", NAMES)
def test_generous_limits_change_nothing_of_an_honest_run(name: str) -> None:
    job = build_job(name, supported(name)[0])
    plain, limited = play_all(job), play_all(replace(job, limits=Limits(1e6, 1e9, 1.0)))
    assert job.codec.encode(plain.state) == job.codec.encode(limited.state)
    assert [record.skipped for record in limited.records] == [{} for _ in limited.records]


@pytest.mark.parametrize("name", NAMES)
def test_a_thousandfold_update_of_any_method_is_left_out(name: str) -> None:
    """Every tensor of every kind of upload, with the default of runs over sites."""
    job = replace(build_job(name, supported(name)[0]), limits=Limits(norm_factor=10.0))
    state = RunState(Memories(Path(), 1 << 30))
    transport = Changing(job, {0: _thousandfold}, round=0)
    record = next(round_records(run_rounds(job, transport, state)))
    senders = [client for client, (_, up) in record.traffic.items() if up]
    if 0 in senders and len(senders) >= 3:
        assert 0 in record.skipped


def _thousandfold(value: Any) -> Any:
    from tests.engines.test_uploads import every_tensor

    return value if value is None else every_tensor(value, lambda tensor: 1000 * tensor + 1000)


def test_with_two_senders_the_median_says_nothing() -> None:
    measured = {0: {"w": 1.0}, 1: {"w": 1e9}}
    assert too_long(measured, {}, Limits(norm_factor=10)) == {}
    assert too_long(measured, {}, Limits(max_norm=100)).keys() == {1}


def test_one_of_three_cannot_have_the_others_left_out() -> None:
    honest = {0: {"w": 1.0}, 1: {"w": 2.0}}
    for length in (0.0, 1e-9, 1e9, math.inf, math.nan):
        assert too_long(honest | {2: {"w": length}}, {}, Limits(norm_factor=10)).keys() <= {2}


def test_a_client_with_more_samples_may_go_further() -> None:
    measured = {0: {"w": 1.0}, 1: {"w": 1.0}, 2: {"w": 40.0}}
    assert too_long(measured, {0: 50, 1: 50, 2: 50}, Limits(norm_factor=10)).keys() == {2}
    assert too_long(measured, {0: 50, 1: 50, 2: 300}, Limits(norm_factor=10)) == {}


def test_models_are_measured_by_their_distance_and_changes_by_their_length() -> None:
    job = labeled(FedAvg(Supervised()))
    w = job.net.init(torch.Generator().manual_seed(0))
    moved = {name: value + 1 for name, value in w.items()}
    count = sum(value.numel() for value in w.values())
    assert lengths(job.upload_form, WeightsUp(moved, 3), w) == pytest.approx({"w": math.sqrt(count)})
    scaffold = labeled(Scaffold(Supervised()))
    found = lengths(scaffold.upload_form, ScaffoldUp(moved, scale(moved, 0)), w)
    assert found["dy"] == pytest.approx(math.sqrt(sum(float(v.square().sum()) for v in moved.values())))
    assert found["dc"] == 0
    assert EasgdUp.__dataclass_fields__["pull"].type is not None


@settings(deadline=None, max_examples=200)
@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=12), st.floats(0.01, 1.0))
def test_no_client_stands_for_more_than_its_share(counts: list[int], share: float) -> None:
    most = largest_count(counts, share)
    capped = [min(count, most) for count in counts]
    senders = [count for count in capped if count]
    if not senders:
        return
    if len(senders) * share <= 1:
        assert len(set(senders)) == 1
    else:
        assert max(senders) <= share * sum(senders) + 1  # counts are whole numbers
    total = sum(counts)
    if all(count <= share * total for count in counts):
        assert capped == counts


def test_the_share_holds_in_a_run_and_is_recorded() -> None:
    job = replace(labeled(FedAvg(Supervised()), rounds=1), limits=Limits(max_share=0.4))
    changed = Changing(job, {0: lambda up: replace(up, n=2), 1: lambda up: replace(up, n=2)}, round=0)
    record = next(round_records(run_rounds(job, changed, RunState(Memories(Path(), 1 << 30)))))
    assert record.samples == {0: 2, 1: 2, 2: 2}
    plain = next(
        round_records(run_rounds(labeled(FedAvg(Supervised())), InProcessTransport(job), RunState(Memories(Path(), 1))))
    )
    assert plain.samples == {0: 20, 1: 20, 2: 20}


def test_a_count_inside_another_message_is_capped_too() -> None:
    job = labeled(FedMix())
    up = FedMixUp(WeightsUp(job.net.init(torch.Generator().manual_seed(0)), 9), None)
    assert job.upload_form.count(up) == 9
    assert job.upload_form.capped(up, 4).trained.n == 4
    assert job.upload_form.capped(up, 10) is up


def test_an_error_of_the_method_itself_still_stops_the_run() -> None:
    class Failing(FedAvg):
        def merge(self, *_: Any) -> Any:
            raise RuntimeError("a bug")

    with refused("method.failed"):
        played(labeled(Failing(Supervised())), {})
