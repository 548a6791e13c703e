"""A run from config to folder and back: what it writes, what it refuses, and what it gives to Python."""

import inspect
import json
import math
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open

import tacit
from tacit import config as configs
from tacit import simulation
from tacit.config import EngineConfig, from_options
from tacit.engines import checkpoint
from tacit.engines.inline import InlineCourier
from tacit.engines.loop import TooFewClientsError
from tacit.errors import TacitError
from tacit.experiment import Experiment
from tacit.params import equal, size
from tests.engines import farm


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


def test_a_run_directory_holds_all_that_is_promised(tmp_path: Path, images: str) -> None:
    result = tacit.run(out=tmp_path / "deep" / "run", **small(images))
    folder = tmp_path / "deep" / "run"
    assert {path.name for path in folder.iterdir()} == {
        "config.toml",
        "split.json",
        "rounds.jsonl",
        "model.safetensors",
        "checkpoint",
    }
    assert [path.name for path in folder.parent.iterdir()] == ["run"], "nothing is left beside it"
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
    assert {path.name for path in (folder / "checkpoint").iterdir()} == {"latest.json", "state.2"}
    with safe_open(folder / "model.safetensors", "pt") as model:
        about = json.loads(model.metadata()["tacit"])
        assert about == {
            "net": {"name": "lenet", "norm": None, "width": 1.0},
            "shape": [1, 16, 16],
            "classes": ["0", "1", "2"],
        }
        assert result.params is not None
        assert equal({name: model.get_tensor(name) for name in model.keys()}, result.params)  # noqa: SIM118


def test_a_record_says_what_happened_in_its_round(tmp_path: Path, images: str) -> None:
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


def test_python_gets_the_model_and_its_numbers(images: str) -> None:
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


def test_the_network_keeps_its_batchnorm_statistics(images: str) -> None:
    result = tacit.run(**small(images, **{"net.norm": "batch"}))
    test, views = result.job.federation.test, result.job.federation.views
    with torch.no_grad():
        answers = result.net()(views.plain(test.x)).argmax(1)
    assert float((answers == test.y).float().mean()) == pytest.approx(result.accuracy)


def test_a_method_without_a_common_model_reports_the_clients_average(tmp_path: Path, images: str) -> None:
    result = tacit.run(out=tmp_path / "run", **small(images, method="local-only"))
    assert result.params is None
    assert result.accuracy == result.history[-1]["local_accuracy"]
    assert not (tmp_path / "run" / "model.safetensors").exists()
    with pytest.raises(TacitError, match="local-only has no common model: each client keeps its own"):
        result.net()


def test_without_a_folder_nothing_is_left_on_disk(tmp_path: Path, images: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    monkeypatch.chdir(scratch)
    result = tacit.run(**small(images))
    assert result.params is not None
    assert list(scratch.iterdir()) == []
    with pytest.raises(TacitError):
        tacit.run(**small(images, method="server-only"))
    assert list(scratch.iterdir()) == []


def test_the_same_settings_give_the_same_bits_and_another_seed_others(images: str) -> None:
    first, again, other = (tacit.run(**small(images, seed=seed)) for seed in (3, 3, 4))
    assert first.params is not None
    assert again.params is not None
    assert other.params is not None
    assert equal(first.params, again.params)
    assert not equal(first.params, other.params)


def test_a_folder_that_holds_a_run_is_refused_and_left_alone(tmp_path: Path, images: str) -> None:
    tacit.run(out=tmp_path / "run", **small(images))
    before = files(tmp_path)
    with pytest.raises(TacitError, match="already holds a run: choose another --out, or go on with `tacit resume "):
        tacit.run(out=tmp_path / "run", **small(images, seed=5))
    assert files(tmp_path) == before


def test_a_folder_with_other_things_is_refused_and_left_alone(tmp_path: Path, images: str) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("three years of work")
    (tmp_path / "file").write_text("not a folder")
    before = files(tmp_path)
    for name in ("full", "file"):
        with pytest.raises(TacitError, match="is not an empty folder: choose another --out"):
            tacit.run(out=tmp_path / name, **small(images))
    assert files(tmp_path) == before


def test_an_empty_folder_is_taken(tmp_path: Path, images: str) -> None:
    (tmp_path / "empty").mkdir()
    tacit.run(out=tmp_path / "empty", **small(images))
    assert (tmp_path / "empty" / "model.safetensors").exists()


@pytest.mark.parametrize("place", ["images.npz/run", "x" * 300, ".", "/proc/nowhere/run"])
def test_a_place_that_can_not_be_written_is_refused(
    tmp_path: Path, images: str, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    (tmp_path / "here").mkdir()
    if place == ".":
        monkeypatch.chdir(tmp_path / "here")
    else:
        monkeypatch.chdir(tmp_path)
    before = files(tmp_path)
    with pytest.raises(TacitError, match="can not write to .*; choose another --out") as caught:
        tacit.run(out=place, **small(images))
    assert "\n" not in str(caught.value)
    assert files(tmp_path) == before
    assert {path.name for path in tmp_path.iterdir()} == {"here", "images.npz"}


def test_a_write_that_fails_half_way_leaves_nothing(
    tmp_path: Path, images: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(TacitError, match="No space left on device; choose another --out"):
        tacit.run(out=tmp_path / "run", **small(images))
    assert {path.name for path in tmp_path.iterdir()} == {"images.npz"}


OWN = '''
from dataclasses import dataclass

import torch

from tacit import averaging
from tacit.averaging import WeightsDown, WeightsState, WeightsUp
from tacit.learn import Kept, Objective, fit
from tacit.method import Needs
from tacit.objectives import Supervised


@dataclass(frozen=True)
class Mine:
    """A method of one's own."""

    objective: Objective = Supervised()  # what a batch costs
    boost: float = 1.0  # scales the average

    needs = Needs(client_labels=True)

    def start(self, server):
        return averaging.start_weights(server)

    def send(self, server, state):
        return state, dict.fromkeys(server.cohort, WeightsDown(state.w))

    def client_update(self, client, memory, down):
        return averaging.answer(client, fit(client, down.w, self.objective, kept=memory), self.objective)

    def merge(self, server, state, ups):
        merged = averaging.merge_weights(server, state, ups, "samples")
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
    """The name of a module in the folder the program is run in."""
    (tmp_path / "lab").mkdir()
    (tmp_path / "lab" / "lab_methods.py").write_text(inspect.cleandoc(OWN))
    monkeypatch.chdir(tmp_path / "lab")
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield "lab_methods"
    sys.modules.pop("lab_methods", None)


def test_a_method_of_ones_own_is_named_by_module_and_class(images: str, own: str) -> None:
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


def test_its_settings_are_checked_and_reach_it(tmp_path: Path, images: str, own: str) -> None:
    with pytest.raises(TacitError, match="unknown setting in method 'bost': did you mean 'boost'?"):
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


def test_it_runs_in_worker_processes_too(images: str, own: str) -> None:
    inline, workers = (tacit.run(**small(images, method=f"{own}:Mine+fixmatch", workers=n)) for n in (0, 2))
    assert inline.params is not None
    assert workers.params is not None
    assert equal(inline.params, workers.params)


def test_a_network_of_ones_own(images: str, own: str) -> None:
    result = tacit.run(**small(images, net=f"{own}:TwoLayers"))
    assert result.params is not None
    assert set(result.params) == {"layers.1.weight", "layers.1.bias"}


@pytest.mark.parametrize(
    "method, changes, sentence",
    [
        (
            "lab_methods:AtClients",
            {"labels": "server"},
            "AtClients needs labels at the clients and these have none: set data.labels to client, some or all",
        ),
        (
            "fedavg+supervised",
            {"labels": "server"},
            "fedavg+supervised needs labels at the clients",
        ),
        ("lab_methods:AtServer", {}, "lab_methods:AtServer needs labels at the server: use --labels server"),
        ("server-only", {}, "server-only needs labels at the server: use --labels server"),
        (
            "lab_methods:Validated",
            {},
            "lab_methods:Validated needs validation samples at the server: use --validation 200 or another number",
        ),
        (
            "lab_methods:Featured",
            {"net": "linear"},
            "lab_methods:Featured needs a network with features and linear has none: use --net lenet",
        ),
        (
            "lab_methods:Fresh",
            {"train.optimizer": "keep"},
            "lab_methods:Fresh can not work with momentum kept between rounds: use train.optimizer = 'reset'",
        ),
        ("fedavg", {"train.buffers": "recompute"}, "buffers = 'recompute' needs samples at the server"),
        (
            "fedavg",
            {"train.buffers": "keep", "net.norm": "batch", "net": "lenet"},
            "buffers = 'keep' leaves the common model without BatchNorm statistics: use 'average' or --labels server",
        ),
        (
            "fedmatch",
            {"train.buffers": "recompute", "net.norm": "batch", "net": "lenet"},
            "fedmatch averages BatchNorm statistics with the weights: leave train.buffers out",
        ),
        ("fedsem", {"data.steps": 2}, "fedsem remembers the labels of samples and these come and go: use data.steps"),
        (
            "fedseal",
            {"data.steps": 2, "labels": "server", "validation": 6},
            "fedseal remembers the labels of samples and these come and go: use data.steps",
        ),
        ("fedavg", {"per_class": None}, "labels at the client need a number: give --per-class"),
        ("fedavg", {"n_labels": 3}, "exclude each other: give one of them"),
        ("fedavg", {"device": "cuda:99"}, "there is no device 'cuda:99' here: use --device cpu"),
        ("fedavg", {"device": "mps"}, "runs on a device 'mps' would not be the same twice: use --device cpu or cuda"),
        ("fedavg", {"data.bits": 12}, "has no grey images of 16 bits: leave data.bits out"),
        ("fedavg", {"net": "cnn", "data": "none.npz"}, "none.npz: check the path"),
    ],
)
def test_what_can_not_run_is_refused_before_anything_is_written(
    tmp_path: Path, images: str, own: str, method: str, changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(TacitError) as caught:
        tacit.run(out=tmp_path / "new" / "run", **small(images, method=method, **changes))
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "new").exists()


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
def test_what_has_all_it_needs_is_let_through(images: str, own: str, method: str, changes: dict[str, Any]) -> None:
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
def test_a_run_is_not_gone_on_with_on_other_data(tmp_path: Path, images: str, changes: dict[str, Any]) -> None:
    rounds = Experiment.create(from_options(small(images)), tmp_path / "run").rounds()
    next(rounds)
    rounds.close()
    before = files(tmp_path / "run")
    rewrite(images, **changes)
    with pytest.raises(TacitError, match="the data is not the same as when .* was started: restore it"):
        tacit.resume(tmp_path / "run")
    assert files(tmp_path / "run") == before


def test_the_same_data_written_again_is_the_same_data(tmp_path: Path, images: str) -> None:
    rounds = Experiment.create(from_options(small(images)), tmp_path / "run").rounds()
    next(rounds)
    rounds.close()
    rewrite(images)
    assert len(tacit.resume(tmp_path / "run").history) == 2


def test_what_is_no_run_can_not_be_resumed(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(TacitError, match="holds no run: give the folder a run was started in"):
            tacit.resume(folder)


def test_an_unfinished_run_has_no_result(tmp_path: Path, images: str) -> None:
    experiment = Experiment.create(from_options(small(images)), tmp_path / "run")
    rounds = experiment.rounds()
    next(rounds)
    rounds.close()
    with pytest.raises(TacitError, match="is not finished: go on with `tacit resume"):
        experiment.result()
    with pytest.raises(TacitError, match="is not finished: go on with `tacit resume"):
        Experiment.create(from_options(small(images)), tmp_path / "never").result()


def test_a_round_that_stops_the_run_keeps_the_tracebacks_and_can_be_resumed(
    tmp_path: Path, images: str, own: str
) -> None:
    settings = small(images, method=f"{own}:Failing")
    with pytest.raises(TooFewClientsError, match="round 2: 0 of 4 clients replied"):
        tacit.run(out=tmp_path / "run", **settings)
    log = (tmp_path / "run" / "errors.log").read_text()
    for client in range(4):
        assert f"round 2, client {client}\n" in log
        assert f"RuntimeError: no power at {client}" in log
    assert "Traceback" in log
    config = tmp_path / "run" / "config.toml"
    config.write_text(config.read_text().replace("min_clients = 1", "min_clients = 0"))
    assert tacit.resume(tmp_path / "run").history[1]["clients"] == 0


def test_what_stops_a_run_says_how_to_go_on(tmp_path: Path, images: str, own: str) -> None:
    settings, folder = small(images, method=f"{own}:Failing"), tmp_path / "my run"
    with pytest.raises(TacitError) as caught:
        tacit.run(out=folder, **settings)
    how = f"; mend the cause, then resume with `tacit resume '{folder}'`; {folder}/errors.log has the traceback"
    assert str(caught.value).endswith(how)
    with pytest.raises(TacitError, match="then resume, for which it needs a folder: give out=$"):
        tacit.run(**settings)
    experiment = Experiment.reopen(folder)
    with (
        closing(InlineCourier(experiment.job)) as courier,
        pytest.raises(TacitError, match="then resume; .*traceback$"),
    ):
        list(experiment.rounds(courier))  # of a hub, which adds its own command


class Killed(BaseException):
    """What nothing catches."""


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_a_run_that_ends_with_its_last_round_has_a_model(
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
def test_a_model_that_was_lost_is_written_again(tmp_path: Path, images: str, harm: str) -> None:
    tacit.run(out=tmp_path / "run", **small(images))
    model = tmp_path / "run" / "model.safetensors"
    before = model.read_bytes()
    model.unlink()
    if harm != "gone":
        model.write_bytes(before[:1000] if harm == "cut" else b"")
    with pytest.raises(TacitError, match="model.safetensors can not be read .*: write it again with `tacit resume "):
        Experiment.reopen(tmp_path / "run").result()
    tacit.resume(tmp_path / "run")
    assert model.read_bytes() == before


@pytest.mark.parametrize("package", ["flwr", "ray"])
def test_flower_is_refused_where_it_is_not_installed(
    tmp_path: Path, images: str, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    Experiment.create(from_options(small(images)), tmp_path / "old")
    monkeypatch.setattr(simulation, "find_spec", lambda name: None if name == package else name)
    with pytest.raises(TacitError, match=f"--engine flower needs the package {package}: .*, or use --engine local"):
        tacit.run(out=tmp_path / "new" / "run", **small(images, engine="flower"))
    assert not (tmp_path / "new").exists()
    with pytest.raises(TacitError, match=f"needs the package {package}"):
        Experiment.reopen(tmp_path / "old", EngineConfig("flower"))
    Experiment.reopen(tmp_path / "old")


def test_a_run_in_which_nobody_was_ever_evaluated_says_so(images: str, own: str) -> None:
    settings = small(images, method="local-only", **{"engine.min_clients": 0, "faults.crash": 1.0})
    assert math.isnan(tacit.run(**settings).accuracy)


def test_numbers_that_are_not_finite_do_not_break_the_log(tmp_path: Path, images: str) -> None:
    """JSON has no word for them."""
    settings = small(images, method="local-only+supervised", lr=1e20, **{"train.momentum": 0})
    tacit.run(out=tmp_path / "run", **settings)

    def refuse(word: str) -> None:
        raise AssertionError(word)

    for line in (tmp_path / "run" / "rounds.jsonl").read_text().splitlines():
        record = json.loads(line, parse_constant=refuse)
        assert record["metrics"]["loss_supervised"].keys() == {"mean", "min", "max"}
    assert record["metrics"]["loss_supervised"]["mean"] is None


def test_torch_has_its_threads_back_afterwards(images: str) -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        tacit.run(**small(images))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
