"""Local only: as many models as clients, from one start, and nothing is exchanged."""

import pytest

from tacit.learn import evaluate, fit
from tacit.method import Training
from tacit.methods.fedavg import FedAvg
from tacit.methods.local_only import LocalOnly, LocalOnlyDown, LocalOnlyMemory
from tacit.objectives import Supervised
from tests.toys import federation, job, linear, play_all, points, rounds, same, started, visit

SUPERVISED = Supervised(view="plain")
DATA = federation([points(0, 20), points(1, 10), points(2, 5)], test=points(8, 60))
TRAIN = Training(batch=6, lr=0.1, optimizer="keep")


def test_every_client_continues_from_its_own_model() -> None:
    given = job(LocalOnly(SUPERVISED), DATA, linear(), train=TRAIN)
    played = play_all(given)
    begin = given.net.init(given.streams.at("init"))
    for k in range(3):
        w, carried = begin, None
        for round in range(3):
            trained = fit(given.client(round, k), w, SUPERVISED, carried=carried)
            w, carried = trained.params, trained.carried
        assert same(played.memories[k].w, w)
    assert not same(played.memories[0].w, played.memories[1].w)


def test_a_client_that_was_away_keeps_its_model() -> None:
    given = job(LocalOnly(SUPERVISED), DATA, linear(), train=TRAIN, cohort=1, rounds=6)
    last: dict[int, LocalOnlyMemory] = {}
    for moment in rounds(given):
        (visited,) = moment.record.traffic
        for k, memory in moment.memories.items():
            assert (k in last and same(memory.w, last[k].w)) == (k != visited)
        last = dict(moment.memories)
    assert len(last) > 1


def test_all_start_from_the_weights_every_other_method_starts_from() -> None:
    data = federation([points(0, 20), points(1, 20)])
    net, still = linear(), Training(lr=1e-30, momentum=0.0)
    given = job(LocalOnly(SUPERVISED), data, net, train=still, rounds=1)
    common = job(FedAvg(SUPERVISED), data, net)
    begin = started(common).w
    assert all(same(visit(given, k, LocalOnlyDown()).model, begin) for k in (0, 1))


def test_no_model_is_exchanged() -> None:
    small, large = (
        play_all(job(LocalOnly(), federation([points(0, 20, features=n)] * 2), linear(n), rounds=2)) for n in (4, 400)
    )
    for record in small.records + large.records:
        assert record.bytes_up == 0
        assert record.bytes_down == small.records[0].bytes_down < 2 * 100  # a signal to continue, whatever the model
    assert small.state == large.state


def test_its_accuracy_is_the_mean_of_the_clients_last_ones() -> None:
    given = job(LocalOnly(SUPERVISED), DATA, linear(), train=TRAIN, cohort=1, rounds=6)
    expected: dict[int, float] = {}
    for moment in rounds(given):
        (visited,) = moment.record.traffic
        score = evaluate(given.net, moment.memories[visited].w, DATA.test, DATA.views, given.device)
        expected[visited] = score.correct / score.count
        assert moment.record.accuracy is None
        assert moment.record.local_accuracy == pytest.approx(sum(expected.values()) / len(expected))
    assert len(expected) > 1
    assert len(set(expected.values())) > 1


def test_there_is_no_common_model() -> None:
    given = job(LocalOnly(), DATA, linear())
    server = given.server(0, {})
    state = given.method.start(server)
    assert given.method.model(state) is None
    assert given.method.merge(server, state, {}) == state
