"""The estimate before a run counts what a run does."""

import time
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from tacit.engines.events import ClientStarted, Event, RoundBegan, Waiting
from tacit.engines.job import Job
from tacit.learn import fit
from tacit.method import Training
from tacit.methods.fedavg import FedAvg
from tacit.nets import build
from tacit.nets.border import UpperNet
from tacit.objectives import FixMatch, Supervised
from tacit.runs import estimate as estimates
from tacit.runs.config import from_options
from tacit.runs.estimate import Estimate, estimate, trace, work
from tacit.runs.experiment import Experiment
from tacit.runs.followers import progress
from tests import toys
from tests.engines import farm


@pytest.mark.parametrize("objective", [FixMatch(), Supervised()])
@pytest.mark.parametrize("train", [Training(batch=4, epochs=2), Training(batch=3, steps=5, unlabeled_batch=6)])
def test_the_samples_of_a_round_are_those_that_training_sees(objective: FixMatch, train: Training) -> None:
    job = farm_job(objective, train)
    steps, seen = 0, 0.0
    for client in range(job.federation.clients):
        context = job.client(0, client)
        steps += fit(context, context.initial(), objective).steps
        held, batch_u = context.data, train.unlabeled_batch or train.batch
        unlabeled = 0 if objective.labels_only else min(len(held.unlabeled), batch_u)
        per_step = min(len(held.labeled), train.batch) + unlabeled
        seen += per_step * fit(context, context.initial(), objective).steps
    assert steps
    assert work(job).at_clients == pytest.approx(seen)


def farm_job(objective: FixMatch, train: Training) -> Job:
    return toys.job(FedAvg(objective), farm.federation(clients=3), build("linear", (1, 16, 16), 3), train=train)


def test_more_rounds_and_fewer_workers_take_longer() -> None:
    job = farm_job(FixMatch(), Training(batch=4))
    todo = work(job)
    assert todo.at_server == 12
    assert todo.step == 8
    traced = trace(job)
    assert traced.seconds > 0
    assert traced.bytes >= 16 * 16 * 4, "at least the inputs are held"
    few, many = (estimate(job, rounds, 1) for rounds in (1, 1000))
    assert few is not None
    assert many is not None
    assert many.seconds > few.seconds
    assert many.bytes == pytest.approx(few.bytes)


def test_nothing_is_estimated_without_samples() -> None:
    data = farm.federation(clients=3)
    empty = replace(data, pool=data.pool.take(data.order[:0]))
    assert estimate(toys.job(FedAvg(), empty, build("linear", (1, 16, 16), 3)), 5, 0) is None


def _shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float) -> str:
    images = str(farm.write_images(tmp_path / "images.npz"))
    config = from_options({"data": images, "labels": "client", "per_class": 2, "rounds": 1, "workers": 0})
    monkeypatch.setattr(estimates, "estimate", lambda *_: Estimate(seconds, 5e8))
    screen = StringIO()
    progress.announce(Experiment.create(config, tmp_path / "run"), Console(file=screen, width=200))
    return screen.getvalue()


def test_only_a_long_run_is_announced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "short").mkdir()
    assert _shown(tmp_path / "short", monkeypatch, 59) == ""
    assert "about 2.0 h and 500.0 MB of memory" in _shown(tmp_path, monkeypatch, 7200)


def test_a_log_shows_where_a_long_round_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = str(farm.write_images(tmp_path / "images.npz"))
    config = from_options({"data": images, "labels": "client", "per_class": 2, "rounds": 1, "workers": 0})
    experiment = Experiment.create(config, tmp_path / "run")
    events: list[Event] = [RoundBegan(0, (0, 1)), ClientStarted(0, 0), Waiting(0), Waiting(0)]
    monkeypatch.setattr(Experiment, "events", lambda self: (event for event in events))
    clock = iter([0.0, 10.0, 20.0, 31.0, 31.0, 40.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    screen = StringIO()
    progress._lines(experiment, Console(file=screen, width=80), "")
    assert screen.getvalue().splitlines() == ["round 1/1, 0 of 2 clients answered"]


def test_a_step_on_cached_features_is_what_is_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TACIT_CACHE", str(tmp_path / "cache"))
    images = str(farm.write_images(tmp_path / "images.npz", 30, 10))
    net = {"net": "efficientnet-lite0", "net.weights": "none", "net.width": 0.25, "net.options.side": 16}
    cached = {"net.views": 1, "net.train": "head"}
    few = {"data": images, "labels": "client", "per_class": 2, "clients": 2, "rounds": 1, "workers": 0}
    seen: list[Job] = []

    def noted(job: Job, rounds: int, workers: int | None) -> Estimate | None:
        seen.append(job)
        return estimate(job, rounds, workers)

    monkeypatch.setattr(estimates, "estimate", noted)
    screen = StringIO()
    made = Experiment.create(from_options(few | net | cached), tmp_path / "run")
    progress.announce(made, Console(file=screen, width=80))
    assert [isinstance(job.net, UpperNet) for job in seen] == [True]
    assert screen.getvalue().startswith("frozen layers see 40 images once")
