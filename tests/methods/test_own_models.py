"""What methods whose workers have their own models share: EASGD and Overlap Local-SGD."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from tacit.aggregation import WeightsDown
from tacit.engines.job import Job
from tacit.learn import fit
from tacit.method import Training
from tacit.methods.easgd import Easgd, EasgdDown, EasgdMemory
from tacit.methods.fedavg import FedAvg
from tacit.methods.overlap_sgd import OverlapMemory, OverlapSgd
from tacit.objectives import FixMatch, Supervised
from tacit.params import Params, scale
from tests.methods import by_hand
from tests.toys import federation, hide, job, labeled, linear, play_all, points, rounds, same, started, visit

KEEP = Training(batch=6, lr=0.1, optimizer="keep")


@dataclass(frozen=True)
class Family:
    """How a method names its model, message and memory."""

    method: Callable[..., Any]
    common: Callable[[Any], Params]  # of a state
    down: Callable[[Params], Any]
    sent: Callable[[Any], Params]  # of a message
    memory: Callable[[Params], Any]


FAMILIES = {
    "easgd": Family(
        Easgd,
        lambda state: state.w,
        lambda w: EasgdDown(w, 0.3),
        lambda down: down.centre,
        lambda x: EasgdMemory(x, None),
    ),
    "overlap-sgd": Family(
        OverlapSgd, lambda state: state.z, WeightsDown, lambda down: down.w, lambda x: OverlapMemory(x, None)
    ),
}


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> Family:
    return FAMILIES[request.param]


def with_server_labels(family: Family) -> Job:
    """Clients and server have labels; momentum is carried between rounds."""
    data = federation([points(k, 20) for k in range(3)], points(9, 12))
    return job(family.method(), data, linear(), train=KEEP)


def test_a_worker_remembers_its_own_model_only(family: Family) -> None:
    moments = list(rounds(labeled(family.method(), clients=5, cohort=2)))
    seen = set().union(*(moment.record.traffic for moment in moments))
    assert set(moments[-1].memories) == seen
    assert not same(*[moments[-1].memories[k].x for k in sorted(seen)[:2]])


def test_a_worker_without_labels_uploads_nothing(family: Family) -> None:
    data = federation([points(0, 20), hide(points(1, 20))])
    result = play_all(job(family.method(), data, linear()))
    assert [record.traffic[1][1] for record in result.records] == [0, 0, 0]


def test_a_worker_that_does_not_train_remembers_the_same_model(family: Family) -> None:
    task = job(family.method(), federation([hide(points(1, 20))]), linear())
    w = family.common(started(task))
    memory = family.memory(scale(w, 1.5))
    reply = visit(task, 0, family.down(w), memory)
    assert (reply.up, reply.memory, reply.model) == (None, memory, memory.x)


def test_a_worker_continues_with_its_momentum(family: Family) -> None:
    task = labeled(family.method(), train=KEEP)
    down = family.down(family.common(started(task)))
    memory = visit(task, 0, down).memory
    assert memory.carried.velocity is not None
    with_it, without = (visit(task, 0, down, each, 1).memory.x for each in (memory, replace(memory, carried=None)))
    assert not same(with_it, without)


def test_the_server_trains_the_common_model_before_it_sends_it(family: Family) -> None:
    task = with_server_labels(family)
    first, start = by_hand.turn(task), family.common(started(task))
    trained = fit(task.server(0, {}), start, Supervised()).params
    assert not same(trained, start)
    assert same(family.common(first.sent), trained)
    assert all(same(family.sent(down), trained) for down in first.downs.values())


def test_the_server_continues_with_its_momentum(family: Family) -> None:
    task = with_server_labels(family)
    first = by_hand.turn(task)
    assert first.state.carried is first.sent.carried
    states = (first.state, replace(first.state, carried=None))
    with_it, without = (family.common(by_hand.turn(task, 1, each).sent) for each in states)
    assert not same(with_it, without)


def test_pseudo_labels_of_an_objective_are_diagnosed(family: Family) -> None:
    data = federation([hide(points(0, 20), 6)], truth=points(0, 20).y)
    method = family.method(FixMatch(threshold=0.0))
    record = play_all(job(method, data, linear(), rounds=1)).records[0]
    assert record.metrics["pseudo_kept"]["mean"] == 1
    assert "pseudo_accuracy" in record.metrics


def test_traffic_is_that_of_fedavg(family: Family) -> None:
    """To within a few bytes, for α or the number of samples."""
    methods: tuple[Any, ...] = (family.method(), FedAvg(Supervised()))
    ours, plain = (play_all(labeled(method, rounds=2)).records for method in methods)
    for one, other in zip(ours, plain, strict=True):
        for k in range(3):
            assert one.traffic[k] == pytest.approx(other.traffic[k], abs=24)
            assert min(one.traffic[k]) > 60  # fifteen numbers of four bytes
