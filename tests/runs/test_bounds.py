"""Bounds in one place: what they learn from, when they end, and that they are runs like any other."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tacit.data.gather import gathered, with_validation
from tacit.federation import Samples
from tacit.learn.central import Attempt, Pace
from tacit.params import equal
from tacit.random import Streams
from tacit.report.history import load
from tacit.runs import central
from tacit.runs import config as configs
from tacit.runs.bounds import plan
from tacit.runs.build import build_job
from tacit.runs.central import CENTRAL, CentralState
from tacit.runs.experiment import Experiment
from tests import toys
from tests.engines import farm
from tests.refusals import refused

QUICK = Pace(every=3, patience=2, limit=60)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(central, "PACE", QUICK)


def options(folder: Path, **changes: Any) -> dict[str, Any]:
    data = folder / "images.npz"
    if not data.exists():
        farm.write_images(data)
    common = {"data": str(data), "clients": 3, "labels": "server", "per_class": 4, "validation": 12, "net": "linear"}
    return common | {"workers": 0, "batch": 4, "rounds": 2, "epochs": 7} | changes


def finished(config: configs.Config, folder: Path) -> Experiment:
    experiment = Experiment.create(config, folder)
    for _ in experiment.rounds():
        pass
    return experiment


# What they learn from


def test_the_samples_of_each_bound() -> None:
    clients = [toys.hide(toys.points(k, 20), 2) for k in range(3)]
    truth = torch.cat([toys.points(k, 20).y for k in range(3)])
    data = toys.federation(clients, toys.points(9, 12), truth=truth)
    labels, pooled, everything = (gathered(data, what).server.labeled for what in ("labels", "unlabeled", "everything"))
    assert (len(labels), len(labels.labeled)) == (18, 18)
    assert (len(pooled), len(pooled.labeled)) == (72, 18)
    assert (len(everything), len(everything.labeled)) == (72, 72)
    assert torch.equal(everything.y[12:], truth)
    assert torch.equal(pooled.x, everything.x)


def test_a_sample_at_several_clients_counts_once() -> None:
    data = toys.federation([toys.points(0, 10)])
    twice = replace(data, order=torch.cat([data.order, data.order[:4]]))
    assert len(gathered(twice, "unlabeled").server.labeled) == 10


def test_without_validation_samples_a_fifth_of_the_labels_of_each_class_is_held_out() -> None:
    data = toys.federation([toys.points(0, 10)], toys.images(0, 33))
    held = with_validation(data, Streams(0)).server
    assert held.validation.y.bincount().tolist() == [2, 2, 2]
    assert len(held.labeled) == 27
    given = toys.federation([toys.points(0, 10)], toys.images(0, 33), validation=toys.images(1, 6))
    assert with_validation(given, Streams(0)) is given


def test_one_label_of_a_class_is_not_held_out() -> None:
    data = toys.federation([toys.points(0, 4)], toys.samples([[0.0] * 4] * 4, [0, 0, 0, 1]))
    held = with_validation(data, Streams(0)).server
    assert held.validation.y.tolist() == [0]
    assert 1 in held.labeled.y.tolist()


def test_whole_groups_are_held_out_and_their_other_samples_left_out() -> None:
    x, y = torch.arange(48.0).reshape(24, 2), torch.arange(24) % 2
    group = torch.arange(24) // 2 % 6  # six groups of four samples, two of each class
    pool = Samples(x, y, group)
    data = toys.federation([pool.take(torch.arange(12)), pool.take(torch.arange(12, 18))])
    data = replace(data, pool=replace(data.pool, group=group[:18]))
    data = replace(data, server=replace(data.server, labeled=pool.take(torch.arange(18, 24))))
    held = with_validation(data, Streams(0))
    out = held.server.validation.group
    assert out is not None
    assert len(out.unique()) == 1  # two of six labels: at least a fifth
    assert held.server.validation.y.tolist() == [0, 1]
    assert len(held.server.labeled) == 4
    rest = [held.server.labeled.group, *(held.client(k, 0).group for k in range(2))]
    assert all(part is not None and not torch.isin(part, out).any() for part in rest)
    assert [len(held.client(k, 0)) for k in range(2)] == [10, 6]  # the second has groups that the server lacks


# When they end


@pytest.mark.parametrize("bound", sorted(CENTRAL))
@pytest.mark.parametrize("place", [{}, {"labels": "client", "per_class": 2}, {"labels": "client", "validation": 0}])
def test_a_bound_trains_until_no_rate_gains(tmp_path: Path, bound: str, place: dict[str, Any]) -> None:
    config = plan({}, options(tmp_path, **place), bound, 0)
    experiment = finished(config, tmp_path / bound)
    records = experiment.directory.rounds()
    assert records[-1].stopped or len(records) == 20
    assert experiment.directory.is_finished()
    chosen = records[-1].selected
    assert chosen is not None
    assert chosen["chance"] == pytest.approx(1 / len(experiment.job.federation.classes))
    assert chosen["majority"] >= chosen["chance"]
    assert sum(record.clients for record in records) == 0
    assert load(tmp_path / bound).last5 == chosen["accuracy"] == experiment.result().accuracy


def test_epochs_and_rounds_of_the_config_do_not_matter(tmp_path: Path) -> None:
    models = []
    for number, changes in enumerate(({"epochs": 1, "rounds": 3}, {"epochs": 9, "rounds": 50, "server.epochs": 4})):
        config = plan({}, options(tmp_path, **changes), "labels-only", 0)
        models.append(finished(config, tmp_path / str(number)).result().params)
    assert models[0] is not None
    assert models[1] is not None
    assert equal(models[0], models[1])


def test_a_resumed_bound_has_the_same_bits(tmp_path: Path) -> None:
    config = plan({}, options(tmp_path), "pooled", 0)
    whole = finished(config, tmp_path / "whole").result()
    rounds = Experiment.create(config, tmp_path / "parts").rounds()
    for _ in range(2):
        next(rounds)
    rounds.close()
    again = Experiment.reopen(tmp_path / "parts")
    assert len(list(again.rounds())) > 0
    assert whole.params is not None
    found = again.result().params
    assert found is not None
    assert equal(whole.params, found)


def test_a_rate_that_is_clearly_behind_ends_after_its_trial() -> None:
    w = {"w": torch.zeros(1)}
    steps = central.TRIAL * QUICK.every

    def attempt(right: int, steps: int = steps) -> Attempt:
        return Attempt(w, w, w, steps=steps, right=right, loss=1.0)

    after = CENTRAL["labels-only"]()._without_hopeless([attempt(80), attempt(60), attempt(75), attempt(10, 1)], 100)
    assert [each.ended(QUICK) for each in after] == [False, True, False, False]


def test_the_model_of_a_bound_is_the_best_of_all_rates() -> None:
    bad, good = ({"w": torch.full((1,), value)} for value in (0.0, 1.0))
    attempts = [
        Attempt(w, w, w, steps=3, right=right, loss=0.5) for w, right in ((bad, 3), (good, 7), (bad, 5), (bad, 6))
    ]
    bound = CENTRAL["labels-only"](rates=(0.03, 0.1))  # each on weak views, then each on both
    assert bound.model(CentralState(attempts)) is good
    assert "rate 0.1" in bound.explain(CentralState(attempts))[0]


# As runs


def test_the_config_of_a_bound_runs_again(tmp_path: Path) -> None:
    config = plan({}, options(tmp_path, **{"method.rates": [0.1]}), "all-labels", 4)
    assert config.method == {"name": "all-labels", "rates": (0.1,)}
    assert configs.make(configs.read(_written(config, tmp_path))) == config


def _written(config: configs.Config, folder: Path) -> Path:
    path = folder / "config.toml"
    path.write_text(configs.dumps(config))
    return path


def test_bounds_with_the_samples_of_clients_are_for_simulations_only(tmp_path: Path) -> None:
    config = plan({}, options(tmp_path, engine="flower"), "pooled", 0)
    with refused("method.simulation-only"):
        build_job(config)


@pytest.mark.parametrize("in_rounds", [False, True])
def test_bounds_are_without_attacks_and_protection(in_rounds: bool) -> None:
    base = {"data": {"clients": 8}, "faults": {"hostile": 2, "attack": "sign"}, "protect": {"combine": "median"}}
    extra = {"faults.strength": 3.0, "protect.combine": "krum:1"}
    plain = plan({"data": {"clients": 8}}, {}, "labels-only", 0, in_rounds=in_rounds)
    assert plan(base, extra, "labels-only", 0, in_rounds=in_rounds) == plain
