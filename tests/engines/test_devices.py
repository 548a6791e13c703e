"""Several devices share the clients of a run; two names of the CPU stand for them."""

import gc
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from tacit.engines.client import run_client
from tacit.engines.in_process import InProcessTransport
from tacit.engines.job import ClientTask, Job
from tacit.engines.workers import WorkerTransport
from tacit.method import ClientContext
from tacit.methods.scaffold import Scaffold
from tacit.objectives import FixMatch
from tacit.runs.config import from_options
from tacit.runs.devices import devices, worker_count
from tacit.runs.experiment import Experiment
from tacit.runs.sections import EngineConfig
from tests.engines import farm
from tests.engines.farm import run_job, tally_job
from tests.refusals import refused
from tests.second_device import DEVICE, SecondDevice, There

TWO = (torch.device("cpu"), torch.device("cpu:0"))  # different names of one device


def used(job: Job, workers: int, names: Sequence[torch.device], folder: Path) -> list[str]:
    """The devices on which the clients of a round ran, once for each worker."""
    run_job(job, WorkerTransport(job, workers, devices=names))
    return sorted({path.read_text(encoding="utf-8") + path.name for path in folder.iterdir()})


def test_devices_are_dealt_to_workers_in_turn(tmp_path: Path) -> None:
    def note(client: ClientContext) -> None:
        (tmp_path / str(os.getpid())).write_text(f"{client.device} ", encoding="utf-8")

    found = used(tally_job(note), 4, TWO, tmp_path)
    assert len(found) >= 2
    assert {line.split()[0] for line in found} <= {"cpu", "cpu:0"}


def test_several_devices_give_the_bits_of_one() -> None:
    job = farm.job(Scaffold(FixMatch(threshold=0.4)))
    expected = run_job(job, InProcessTransport(job))
    assert run_job(job, WorkerTransport(job, 2, devices=TWO)) == expected


def test_a_worker_that_is_replaced_keeps_its_device() -> None:
    transport = WorkerTransport(farm.job(Scaffold(FixMatch())), 2, devices=TWO)
    try:
        second = transport._pool[1]
        second.process.kill()
        second.process.join()
        assert [worker.device for worker in transport._living()] == list(TWO)
    finally:
        transport.close()


@pytest.mark.parametrize(
    "settings, count, expected",
    [
        ({}, 1, "cores"),
        ({}, 2, 2),
        ({"workers_per_device": 3}, 2, 6),
        ({"workers": 5}, 2, 5),
        ({"workers": 0}, 1, 0),
        ({"threads": 10_000}, 1, 1),
    ],
)
def test_the_number_of_workers(settings: dict[str, Any], count: int, expected: Any) -> None:
    found = worker_count(EngineConfig(**settings), TWO[:1] * count)
    assert found == (len(os.sched_getaffinity(0)) if expected == "cores" else expected)


@pytest.mark.parametrize(
    "settings, code",
    [
        ({"device": "cpu,meta"}, "engine.device-not-reproducible"),
        ({"device": "cpu,nowhere"}, "engine.no-device"),
        ({"device": "cpu,cpu", "workers": 0}, "engine.devices-without-workers"),
        ({"workers": 2, "workers_per_device": 2}, "engine.workers-twice"),
    ],
)
def test_devices_and_workers_that_cannot_be_are_refused(settings: dict[str, Any], code: str) -> None:
    engine = EngineConfig(**settings)
    with refused(code):
        worker_count(engine, devices(engine))


def test_devices_of_two_types_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "empty", lambda *_, **__: None)  # as if this machine had any device
    with refused("engine.devices-of-two-types"):
        devices(EngineConfig(device="cpu, cuda:0"))


@pytest.mark.parametrize(
    "more, code",
    [
        ({"workers": 2, "engine.workers_per_device": 2}, "engine.workers-twice"),
        ({"device": "cpu,cpu", "engine": "flower"}, "engine.several-devices-on-flower"),
    ],
)
def test_they_are_refused_before_anything_is_written(more: dict[str, Any], code: str, tmp_path: Path) -> None:
    data = str(farm.write_images(tmp_path / "images.npz"))
    with refused(code):
        Experiment.create(from_options({"data": data, "clients": 4, "per_class": 2} | more), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("changes", [{"engine.device": "cpu,cpu:0"}, {"engine.workers_per_device": 2}])
def test_a_run_on_several_devices_has_the_bits_of_one(changes: dict[str, Any], tmp_path: Path) -> None:
    data = str(farm.write_images(tmp_path / "images.npz"))
    base = {"data": data, "clients": 4, "per_class": 2, "net": "lenet", "rounds": 2, "method": "scaffold+fixmatch"}
    models = []
    for number, more in enumerate(({"workers": 0}, changes)):
        experiment = Experiment.create(from_options(base | more), tmp_path / str(number))
        for _ in experiment.rounds():
            pass
        models.append((tmp_path / str(number) / "model.safetensors").read_bytes())
    assert models[0] == models[1]


def test_a_client_holds_nothing_on_the_device_after_its_visit() -> None:
    job = farm.job(Scaffold(FixMatch(threshold=0.4)), device=DEVICE)
    with SecondDevice():
        server = job.server(0, {})
        job.net.apply(server.initial(), torch.zeros(1, 1, 16, 16, device=DEVICE))  # moves what belongs to the network
        _, downs = job.method.send(server, job.method.start(server))
        memory, held = None, []
        for round in range(3):
            result = run_client(job, round, 0, ClientTask(downs[server.cohort[0]], memory))
            memory = result.memory
            del result
            gc.collect()
            held.append(sum(type(thing) is There for thing in gc.get_objects()))
    assert memory is not None
    assert held[0] == held[1] == held[2]
