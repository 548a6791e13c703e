"""A run from config to folder and back: what it writes, what it refuses, and what Python gets."""

import inspect
import json
import math
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open

import tacit
from tacit.engines import checkpoint
from tacit.engines.in_process import InProcessTransport
from tacit.engines.rounds import TooFewClientsError
from tacit.errors import TacitError
from tacit.params import equal, size
from tacit.runs import config as configs
from tacit.runs import simulation
from tacit.runs.config import from_options
from tacit.runs.experiment import Experiment
from tacit.runs.sections import EngineConfig
from tests.engines import farm
from tests.refusals import refused


@pytest.fixture
def images(tmp_path: Path) -> str:
    """A data set of 120 + 30 small images."""
    return str(farm.write_images(tmp_path / "images.npz"))


def small(images: str, **changes: Any) -> dict[str, Any]:
    """Two rounds over four clients, in this process."""
    values = {"data": images, "clients": 4, "labels": "client", "per_class": 2, "rounds": 2, "workers": 0}
    return values | {"method": "fedavg+fixmatch", "train.steps": 2, "train.batch": 6, "lr": 0.05} | changes


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_run_directory_has_all_documented_files(tmp_path: Path, images: str) -> None:
    result = tacit.run(out=tmp_path / "deep" / "run", **small(images))
    folder = tmp_path / "deep" / "run"
    assert {path.name for path in folder.iterdir()} == {
        "run.json",
        "config.toml",
        "split.json",
        "rounds.jsonl",
        "model.safetensors",
        "card.md",
        "predictions.npz",
        "checkpoint",
    }
    assert [path.name for path in folder.parent.iterdir()] == ["run"], "no other file is left behind"
    assert configs.make(configs.read(folder / "config.toml")) == result.config
    records = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    assert records == result.history
    assert [record["round"] for record in records] == [0, 1]
    split = json.loads((folder / "split.json").read_text())
    assert sorted(sample for client in split["clients"] for sample in client) == list(range(120))
    assert len(split["labeled"]) == 4 * 3 * 2
    counts = split["counts"]
    assert counts["labeled"] == [[2, 2, 2, 0]] * 4
    assert [sum(row) + 6 for row in counts["unlabeled"]] == [len(client) for client in split["clients"]]
    assert (counts["classes"], counts["server"]) == (["0", "1", "2"], [0, 0, 0])
    assert {path.name for path in (folder / "checkpoint").iterdir()} == {
        "latest.json",
        "round.1.json",
        "state.1",
        "state.2",
    }
    with safe_open(folder / "model.safetensors", "pt") as model:
        about = json.loads(model.metadata()["tacit"])
        assert about["net"] == asdict(result.config.net)
        assert (about["net"]["name"], about["net"]["width"]) == ("lenet", 1.0)
        assert (about["shape"], about["classes"]) == ([1, 16, 16], ["0", "1", "2"])
        assert result.params is not None
        assert equal({name: model.get_tensor(name) for name in model.keys()}, result.params)  # noqa: SIM118


def test_a_record_describes_its_round(tmp_path: Path, images: str) -> None:
    record = tacit.run(**small(images, cohort=3)).history[0]
    assert record["clients"] == len(record["traffic"]) == 3
    assert record["steps"] == 3 * 2
    assert record["bytes_down"] == sum(down for down, _ in record["traffic"].values())
    assert record["bytes_up"] == sum(up for _, up in record["traffic"].values())
    assert record["skipped"] == {}
    assert 0 <= record["accuracy"] <= 1
    assert record["loss"] > 0
    assert record["local_accuracy"] is None
    assert record["metrics"]["loss_supervised"].keys() == {"mean", "min", "max"}
    assert record["seconds"] > 0


def test_a_result_has_the_model_and_its_accuracy(images: str) -> None:
    result = tacit.run(**small(images, rounds=3))
    assert result.accuracy == result.history[-1]["accuracy"]
    assert len(result.history) == 3
    assert result.params is not None
    net = result.net()
    assert isinstance(net, torch.nn.Module)
    assert not net.training
    assert sum(p.numel() for p in net.parameters()) == size(result.params)
    test, views = result.job.federation.test, result.job.federation.views
    with torch.no_grad():
        answers = net(views.plain(test.x)).argmax(1)
    assert float((answers == test.y).float().mean()) == pytest.approx(result.accuracy)


def test_the_network_of_a_result_has_its_batchnorm_statistics(images: str) -> None:
    result = tacit.run(**small(images, **{"net.norm": "batch"}))
    test, views = result.job.federation.test, result.job.federation.views
    with torch.no_grad():
        answers = result.net()(views.plain(test.x)).argmax(1)
    assert float((answers == test.y).float().mean()) == pytest.approx(result.accuracy)


def test_a_method_without_a_common_model_reports_the_clients_mean_accuracy(tmp_path: Path, images: str) -> None:
    result = tacit.run(out=tmp_path / "run", **small(images, method="local-only"))
    assert result.params is None
    assert result.accuracy == result.history[-1]["local_accuracy"]
    assert not (tmp_path / "run" / "model.safetensors").exists()
    with refused("run.no-common-model"):
        result.net()


def test_without_a_folder_nothing_is_left_on_disk(tmp_path: Path, images: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    monkeypatch.chdir(scratch)
    result = tacit.run(**small(images))
    assert result.params is not None
    assert len(list(scratch.iterdir())) == 1, "the result can still be saved"
    del result
    assert list(scratch.iterdir()) == []
    with refused("method.needs-server-labels"):
        tacit.run(**small(images, method="server-only"))
    assert list(scratch.iterdir()) == []


def test_the_same_seed_gives_the_same_bits_and_another_seed_does_not(images: str) -> None:
    first, again, other = (tacit.run(**small(images, seed=seed)) for seed in (3, 3, 4))
    assert first.params is not None
    assert again.params is not None
    assert other.params is not None
    assert equal(first.params, again.params)
    assert not equal(first.params, other.params)


def test_a_folder_that_holds_a_run_is_refused_and_unchanged(tmp_path: Path, images: str) -> None:
    tacit.run(out=tmp_path / "run", **small(images))
    before = files(tmp_path)
    with refused("run.exists") as caught:
        tacit.run(out=tmp_path / "run", **small(images, seed=5))
    assert f"`tacit resume {tmp_path / 'run'}`" in caught.error.remedy
    assert files(tmp_path) == before


def test_a_folder_that_is_not_empty_is_refused_and_unchanged(tmp_path: Path, images: str) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("three years of work")
    (tmp_path / "file").write_text("not a folder")
    before = files(tmp_path)
    for name in ("full", "file"):
        with refused("run.not-empty"):
            tacit.run(out=tmp_path / name, **small(images))
    assert files(tmp_path) == before


def test_an_empty_folder_is_accepted(tmp_path: Path, images: str) -> None:
    (tmp_path / "empty").mkdir()
    tacit.run(out=tmp_path / "empty", **small(images))
    assert (tmp_path / "empty" / "model.safetensors").exists()


@pytest.mark.parametrize("place", ["images.npz/run", "x" * 300, ".", "/proc/nowhere/run"])
def test_a_folder_that_cannot_be_written_is_refused(
    tmp_path: Path, images: str, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    (tmp_path / "here").mkdir()
    if place == ".":
        monkeypatch.chdir(tmp_path / "here")
    else:
        monkeypatch.chdir(tmp_path)
    before = files(tmp_path)
    with refused("storage.cannot-write") as caught:
        tacit.run(out=place, **small(images))
    assert "\n" not in str(caught.error)
    assert files(tmp_path) == before
    assert {path.name for path in tmp_path.iterdir()} == {"here", "images.npz"}


def test_a_failed_write_leaves_no_files(tmp_path: Path, images: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "rename", fail)
    with refused("storage.cannot-write"):
        tacit.run(out=tmp_path / "run", **small(images))
    assert {path.name for path in tmp_path.iterdir()} == {"images.npz"}


OWN = '''
from dataclasses import dataclass

import torch

from tacit.aggregation import WeightsDown, WeightsState, WeightsUp
from tacit.learn import LocalState, Objective
from tacit.method import Needs
from tacit.methods.fedavg import FedAvg
from tacit.objectives import Supervised


@dataclass(frozen=True)
class Mine:
    """A user's method: FedAvg, with a scaled average."""

    objective: Objective = Supervised()  # loss of a batch
    boost: float = 1.0  # factor on the average

    needs = Needs(client_labels=True)

    def fedavg(self):
        return FedAvg(self.objective)

    def start(self, server):
        return self.fedavg().start(server)

    def send(self, server, state):
        return self.fedavg().send(server, state)

    def client_update(self, client, memory, down):
        return self.fedavg().client_update(client, memory, down)

    def merge(self, server, state, ups):
        merged = self.fedavg().merge(server, state, ups)
        return WeightsState({name: value * self.boost for name, value in merged.w.items()})

    def model(self, state):
        return state.w


@dataclass(frozen=True)
class Validated(Mine):
    needs = Needs(validation=True)


@dataclass(frozen=True)
class Featured(Mine):
    needs = Needs(features=True)


@dataclass(frozen=True)
class AtServer(Mine):
    needs = Needs(server_labels=True)


@dataclass(frozen=True)
class Fresh(Mine):
    needs = Needs(fresh_momentum=True)


@dataclass(frozen=True)
class AtClients(Mine):
    needs = Needs(client_labels=True)


@dataclass(frozen=True)
class Failing(Mine):
    def client_update(self, client, memory, down):
        if client.round == 1:
            raise RuntimeError(f"no power at {client.client}")
        return super().client_update(client, memory, down)


class TwoLayers(torch.nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(torch.Size(shape).numel(), classes))

    def forward(self, x):
        return self.layers(x)
'''


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a user's module in the folder where the program runs."""
    (tmp_path / "lab").mkdir()
    (tmp_path / "lab" / "lab_methods.py").write_text(inspect.cleandoc(OWN))
    monkeypatch.chdir(tmp_path / "lab")
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield "lab_methods"
    sys.modules.pop("lab_methods", None)


def test_a_users_method_is_named_by_module_and_class(images: str, own: str) -> None:
    mine = tacit.run(**small(images, method=f"{own}:Mine"))
    ours = tacit.run(**small(images, method="fedavg+supervised"))
    assert mine.params is not None
    assert ours.params is not None
    assert equal(mine.params, ours.params)
    eager = {"objective.threshold": 0.34}
    with_objective = tacit.run(**small(images, method=f"{own}:Mine+fixmatch", **eager))
    ours = tacit.run(**small(images, **eager))
    assert with_objective.params is not None
    assert ours.params is not None
    assert equal(with_objective.params, ours.params)
    assert not equal(with_objective.params, mine.params)


def test_settings_of_a_users_method_are_checked_and_reach_it(tmp_path: Path, images: str, own: str) -> None:
    with refused("names.unknown-setting"):
        tacit.run(**small(images, method=f"{own}:Mine", **{"method.bost": 2}))
    plain, scaled = (
        tacit.run(out=tmp_path / f"run-{boost}", **small(images, method=f"{own}:Mine+fixmatch", **settings))
        for boost, settings in ((1, {}), (0, {"method.boost": 0.0}))
    )
    assert plain.params is not None
    assert scaled.params is not None
    assert all(bool((value == 0).all()) for value in scaled.params.values())
    assert not equal(plain.params, scaled.params)
    again = tacit.resume(tmp_path / "run-0")
    assert again.history == scaled.history


def test_a_users_method_runs_in_worker_processes(images: str, own: str) -> None:
    inline, workers = (tacit.run(**small(images, method=f"{own}:Mine+fixmatch", workers=n)) for n in (0, 2))
    assert inline.params is not None
    assert workers.params is not None
    assert equal(inline.params, workers.params)


def test_a_users_network_is_named_by_module_and_class(images: str, own: str) -> None:
    result = tacit.run(**small(images, net=f"{own}:TwoLayers"))
    assert result.params is not None
    assert set(result.params) == {"layers.1.weight", "layers.1.bias"}


@pytest.mark.parametrize(
    "method, changes, code",
    [
        ("lab_methods:AtClients", {"labels": "server"}, "method.needs-client-labels"),
        ("fedavg+supervised", {"labels": "server"}, "method.needs-client-labels"),
        ("lab_methods:AtServer", {}, "method.needs-server-labels"),
        ("server-only", {}, "method.needs-server-labels"),
        ("lab_methods:Validated", {}, "method.needs-validation"),
        ("lab_methods:Featured", {"net": "linear"}, "method.needs-features"),
        ("lab_methods:Fresh", {"train.optimizer": "keep"}, "method.needs-fresh-momentum"),
        ("fedavg", {"train.buffers": "recompute"}, "net.recompute-without-samples"),
        ("fedavg", {"train.buffers": "keep", "net.norm": "batch", "net": "lenet"}, "net.no-common-buffers"),
        (
            "fedmatch",
            {"train.buffers": "recompute", "net.norm": "batch", "net": "lenet"},
            "method.needs-averaged-buffers",
        ),
        ("fedsem", {"data.steps": 2}, "method.needs-steady-data"),
        ("fedseal", {"data.steps": 2, "labels": "server", "validation": 6}, "method.needs-steady-data"),
        ("globalmix", {"engine": "flower"}, "method.simulation-only"),
        ("fedavg", {"clients": 121}, "data.too-many-clients"),
        ("fedavg", {"device": "cuda:99"}, "engine.no-device"),
        ("fedavg", {"device": "mps"}, "engine.device-not-reproducible"),
        ("fedavg", {"data.bits": 12}, "data.no-16-bit-images"),
    ],
)
def test_a_run_whose_needs_are_not_met_is_refused_before_anything_is_written(
    tmp_path: Path,
    images: str,
    own: str,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    changes: dict[str, Any],
    code: str,
) -> None:
    monkeypatch.setattr(simulation, "find_spec", lambda name: name)
    with refused(code) as caught:
        tacit.run(out=tmp_path / "new" / "run", **small(images, method=method, **changes))
    assert "\n" not in str(caught.error)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("changes", [{"per_class": None}, {"n_labels": 3}, {"net": "cnn", "data": "none.npz"}])
def test_data_that_cannot_be_used_is_refused_before_anything_is_written(
    tmp_path: Path, images: str, changes: dict[str, Any]
) -> None:
    with pytest.raises(TacitError):
        tacit.run(out=tmp_path / "new" / "run", **small(images, **changes))
    assert not (tmp_path / "new").exists()


def test_the_error_for_missing_labels_suggests_an_objective_that_needs_none(images: str) -> None:
    with refused("method.needs-client-labels") as caught:
        tacit.run(**small(images, method="fedavg+supervised", labels="server"))
    assert caught.error.problem == "fedavg+supervised needs labels at the clients, and they have none"
    assert "+fixmatch" in caught.error.remedy


@pytest.mark.parametrize(
    "method, changes",
    [
        ("lab_methods:AtClients", {}),
        ("lab_methods:AtServer", {"labels": "server"}),
        ("lab_methods:Validated", {"validation": 6}),
        ("lab_methods:Featured", {"net": "lenet"}),
        ("lab_methods:Fresh", {}),
    ],
)
def test_a_run_whose_needs_are_met_starts(images: str, own: str, method: str, changes: dict[str, Any]) -> None:
    tacit.run(**small(images, method=f"{method}+fixmatch", rounds=1, **changes))


def rewrite(path: str, **changes: Any) -> None:
    with np.load(path) as archive:
        arrays = dict(archive)
    for name, change in changes.items():
        arrays[name] = change(arrays[name])
    np.savez(path, **arrays)


def swapped(y: Any) -> Any:
    y = y.copy()
    y[[0, 1]] = y[[1, 0]]
    return y


def brighter(x: Any) -> Any:
    x = x.copy()
    x[7, 0, 0, 0] ^= 1
    return x


@pytest.mark.parametrize(
    "changes",
    [
        {"y": swapped},
        {"x": brighter},
        {"x_test": brighter},
        {"y_test": swapped},
        {"x": lambda x: x[:-1], "y": lambda y: y[:-1]},
    ],
    ids=["labels", "pixels", "test pixels", "test labels", "fewer"],
)
def test_a_run_is_not_resumed_on_other_data(tmp_path: Path, images: str, changes: dict[str, Any]) -> None:
    rounds = Experiment.create(from_options(small(images)), tmp_path / "run").rounds()
    next(rounds)
    rounds.close()
    before = files(tmp_path / "run")
    rewrite(images, **changes)
    with refused("run.data-changed"):
        tacit.resume(tmp_path / "run")
    assert files(tmp_path / "run") == before


def test_a_run_is_resumed_on_a_rewritten_copy_of_its_data(tmp_path: Path, images: str) -> None:
    rounds = Experiment.create(from_options(small(images)), tmp_path / "run").rounds()
    next(rounds)
    rounds.close()
    rewrite(images)
    assert len(tacit.resume(tmp_path / "run").history) == 2


def test_only_the_folder_of_a_run_can_be_resumed(tmp_path: Path) -> None:
    with refused("run.none"):
        tacit.resume(tmp_path)
    with refused("run.no-folder"):
        tacit.resume(tmp_path / "nowhere")


def test_an_unfinished_run_has_no_result(tmp_path: Path, images: str) -> None:
    experiment = Experiment.create(from_options(small(images)), tmp_path / "run")
    rounds = experiment.rounds()
    next(rounds)
    rounds.close()
    with refused("run.not-finished") as caught:
        experiment.result()
    assert experiment.directory.resume_command in caught.error.remedy
    with refused("run.not-finished"):
        Experiment.create(from_options(small(images)), tmp_path / "never").result()


def test_a_run_with_too_few_clients_saves_tracebacks_and_can_be_resumed(tmp_path: Path, images: str, own: str) -> None:
    settings = small(images, method=f"{own}:Failing")
    with pytest.raises(TooFewClientsError, match="0 of 4"):
        tacit.run(out=tmp_path / "run", **settings)
    log = (tmp_path / "run" / "errors.log").read_text()
    for client in range(4):
        assert f"round 2, client {client}\n" in log
        assert f"RuntimeError: no power at {client}" in log
    assert "Traceback" in log
    config = tmp_path / "run" / "config.toml"
    config.write_text(config.read_text().replace("min_clients = 1", "min_clients = 0"))
    assert tacit.resume(tmp_path / "run").history[1]["clients"] == 0


def test_an_error_that_stops_a_run_names_the_command_that_resumes_it(tmp_path: Path, images: str, own: str) -> None:
    settings, folder = small(images, method=f"{own}:Failing"), tmp_path / "my run"
    with pytest.raises(TooFewClientsError) as caught:
        tacit.run(out=folder, **settings)
    assert caught.value.resumable
    how = f", then resume with `tacit resume '{folder}'` ({folder}/errors.log has the traceback)"
    assert caught.value.remedy.endswith(how)
    with pytest.raises(TooFewClientsError) as in_memory:
        tacit.run(**settings)
    assert in_memory.value.remedy.endswith("then run again with out=FOLDER, so that it can be resumed")
    experiment = Experiment.reopen(folder)
    with closing(InProcessTransport(experiment.job)) as transport, pytest.raises(TooFewClientsError) as at_hub:
        list(experiment.rounds(transport))
    assert at_hub.value.resumable
    assert "tacit resume" not in at_hub.value.remedy, "a hub adds its own command"


class Killed(BaseException):
    """An end of the process that no code catches."""


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_a_run_that_stops_right_after_its_last_round_has_a_model(
    tmp_path: Path, images: str, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    def killed(*arguments: Any) -> None:
        save(*arguments)
        if arguments[1].round == 2:
            raise Killed

    save = checkpoint.save
    experiment = Experiment.create(from_options(small(images)), tmp_path / "run")
    rounds = experiment.rounds()
    next(rounds)
    if how == "stopped":
        next(rounds)
        rounds.close()
    else:
        monkeypatch.setattr(checkpoint, "save", killed)
        with pytest.raises(Killed):
            next(rounds)
    assert experiment.finished_rounds() == 2
    assert isinstance(experiment.result().net(), torch.nn.Module)


@pytest.mark.parametrize("harm", ["gone", "empty", "cut"])
def test_resume_writes_a_lost_model_again(tmp_path: Path, images: str, harm: str) -> None:
    tacit.run(out=tmp_path / "run", **small(images))
    model = tmp_path / "run" / "model.safetensors"
    before = model.read_bytes()
    model.unlink()
    if harm != "gone":
        model.write_bytes(before[:1000] if harm == "cut" else b"")
    with refused("run.broken-model") as caught:
        Experiment.reopen(tmp_path / "run").result()
    assert f"`tacit resume {tmp_path / 'run'}`" in caught.error.remedy
    tacit.resume(tmp_path / "run")
    assert model.read_bytes() == before


@pytest.mark.parametrize("package", ["flwr", "ray"])
def test_flower_is_refused_if_it_is_not_installed(
    tmp_path: Path, images: str, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    Experiment.create(from_options(small(images)), tmp_path / "old")
    monkeypatch.setattr(simulation, "find_spec", lambda name: None if name == package else name)
    with refused("engine.flower-missing") as caught:
        tacit.run(out=tmp_path / "new" / "run", **small(images, engine="flower"))
    assert package in caught.error.problem
    assert not (tmp_path / "new").exists()
    with refused("engine.flower-missing"):
        Experiment.reopen(tmp_path / "old", EngineConfig("flower"))
    Experiment.reopen(tmp_path / "old")


def test_the_accuracy_of_a_run_without_any_evaluation_is_nan(images: str, own: str) -> None:
    settings = small(images, method="local-only", **{"engine.min_clients": 0, "faults.crash": 1.0})
    assert math.isnan(tacit.run(**settings).accuracy)


def test_a_number_that_is_not_finite_is_null_in_the_log(tmp_path: Path, images: str) -> None:
    settings = small(images, method="local-only+supervised", lr=1e20, **{"train.momentum": 0})
    tacit.run(out=tmp_path / "run", **settings)

    def refuse(word: str) -> None:
        raise AssertionError(word)

    for line in (tmp_path / "run" / "rounds.jsonl").read_text().splitlines():
        record = json.loads(line, parse_constant=refuse)
        assert record["metrics"]["loss_supervised"].keys() == {"mean", "min", "max"}
    assert record["metrics"]["loss_supervised"]["mean"] is None


def test_torch_has_its_threads_back_after_a_run(images: str) -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        tacit.run(**small(images))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
