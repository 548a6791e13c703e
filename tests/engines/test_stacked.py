"""Clients that train as one batched model: the numbers of one client at a time, up to rounding."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tacit.data.views.augment import ImageViews
from tacit.engines.in_process import InProcessTransport
from tacit.engines.job import Job
from tacit.engines.stacked import StackedTransport
from tacit.learn import stacked
from tacit.learn.stacked import asked, fit_stacked
from tacit.method import Method, Training
from tacit.methods.fedavg import FedAvg
from tacit.methods.fedprox import FedProx
from tacit.methods.scaffold import Scaffold
from tacit.nets import Net, build
from tacit.objectives import FixMatch, Supervised
from tacit.runs.config import from_options
from tacit.runs.experiment import Experiment
from tests.engines import farm
from tests.engines.farm import run_job
from tests.toys import apart, federation, images, job, normed, play_all, rounds

TRAIN = Training(steps=3, batch=4, lr=0.05, weight_decay=1e-3)
METHODS: dict[str, Method[Any, Any, Any, Any]] = {
    "fedavg": FedAvg(Supervised()),
    "fedprox": FedProx(Supervised(), mu=0.3),
}
ROUNDING = 1e-5  # largest difference of a weight after two rounds


def lenet() -> Net:
    return build("lenet", (1, 16, 16), 3, "none", width=0.5)


def job_of(method: Method[Any, Any, Any, Any], net: Net | None = None, **train: Any) -> Job:
    data = federation([images(k, 12) for k in range(5)], views=ImageViews((0.5,), (0.25,), flip=True))
    return job(method, data, net or lenet(), rounds=2, train=replace(TRAIN, **train))


def model(given: Job, size: int) -> Any:
    class Stacked(StackedTransport):
        def __init__(self, of: Job, strict: bool = False) -> None:
            super().__init__(of, size)

    played = play_all(given, False, Stacked if size > 1 else InProcessTransport)
    assert not any(record.skipped for record in played.records)
    return given.method.model(played.state), [record.metrics for record in played.records]


@pytest.mark.parametrize("size", [2, 5, 8])
@pytest.mark.parametrize("name", METHODS)
def test_stacked_clients_agree_with_one_at_a_time_up_to_rounding(
    name: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = list[Any]()

    def watched(visits: Any) -> Any:
        groups.append(stacked.fit_stacked(visits))
        return groups[-1]

    monkeypatch.setattr("tacit.engines.stacked.fit_stacked", watched)
    given = job_of(METHODS[name])
    (found, logged), (expected, logged_alone) = model(given, size), model(given, 1)
    assert apart(found, expected) < ROUNDING
    assert apart(found, given.server(0, {}).initial()) > 1e-3
    for one, two in zip(logged, logged_alone, strict=True):
        assert one["loss_supervised"] == pytest.approx(two["loss_supervised"], rel=1e-4)
        assert one["steps"] == two["steps"]
    alone = [group for group in groups if group is None]
    assert len(alone) == (2 if size == 2 else 0)  # the fifth client of each round is alone


@pytest.mark.parametrize(
    "method, net, train",
    [
        (FedAvg(FixMatch()), None, {}),
        (Scaffold(Supervised()), None, {}),
        (FedAvg(Supervised(class_weights="balanced")), None, {}),
        (FedAvg(Supervised()), normed, {}),
        (FedAvg(Supervised()), None, {"steps": None}),
        (FedAvg(Supervised()), None, {"clip": 1.0}),
        (FedAvg(Supervised()), None, {"precision": "bf16"}),
    ],
)
def test_what_cannot_be_stacked_has_the_bits_of_one_at_a_time(method: Any, net: Any, train: dict[str, Any]) -> None:
    given = job_of(method, net() if net else None, **train)
    assert run_job(given, StackedTransport(given, 3)) == run_job(given, InProcessTransport(given))


def test_batches_of_different_sizes_are_not_stacked() -> None:
    data = federation([images(k, 9 + k) for k in range(2)])
    given = job(METHODS["fedavg"], data, lenet(), train=replace(TRAIN, batch=10))
    server = given.server(0, {})
    down = given.method.send(server, given.method.start(server))[1][0]
    visits = [asked(partial(given.method.client_update, given.client(0, k), None, down)) for k in range(2)]
    assert all(visit is not None for visit in visits)
    assert fit_stacked([visit for visit in visits if visit is not None]) is None


def test_a_client_that_fails_is_left_out_alone() -> None:
    given = farm.job(FedAvg(Supervised()), rounds=1)
    broken = replace(given, method=_Fails(Supervised()))
    record = next(iter(rounds(broken, False, _OfThree))).record
    assert len(record.skipped) == 1


class _OfThree(StackedTransport):
    def __init__(self, of: Job, strict: bool = False) -> None:
        super().__init__(of, 3)


class _Fails(FedAvg):
    def client_update(self, client: Any, memory: Any, down: Any) -> Any:
        if client.client == min(_cohort(client)):
            raise RuntimeError("no")
        return super().client_update(client, memory, down)


def _cohort(client: Any) -> tuple[int, ...]:
    return farm.job(FedAvg(Supervised()), rounds=1).sample(client.round)


def test_a_run_may_stack_its_clients(tmp_path: Path) -> None:
    data = str(farm.write_images(tmp_path / "images.npz"))
    base = {"data": data, "clients": 4, "labels": "all", "net": "lenet", "method": "fedavg+supervised", "rounds": 2}
    models = []
    for number, more in enumerate(({"workers": 0}, {"engine.stack": 4})):
        settings = base | {"train.steps": 2, "batch": 6} | more
        experiment = Experiment.create(from_options(settings), tmp_path / str(number))
        for _ in experiment.rounds():
            pass
        models.append(experiment._model())
    assert apart(models[0], models[1]) < ROUNDING
