"""The rows of a comparison that are no method: what they have in common with the others, and what not."""

import shutil
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from tacit import config as configs
from tacit import demo
from tacit.bench import cells, files
from tacit.compare import compare, plan, strangers
from tacit.data import scenario
from tacit.demo import COMMON
from tacit.errors import TacitError
from tacit.random import Streams
from tests.bench import small

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
def test_all_labels_are_all_whatever_the_server_was_meant_to_have(
    given: dict[str, Any], bound: str, in_file: bool
) -> None:
    file, extra = ({"data": given}, {}) if in_file else ({}, given)
    config = plan(file, extra, bound, 3)
    assert (config.data.labels, config.data.budget, config.seed) == ("all", (), 3)
    y = np.arange(12_000) % 10
    dealt = scenario.split(y, 10, config.data, Streams(3))
    held = np.concatenate(dealt.clients)
    assert len(held) == 12_000 - config.data.validation - (config.data.test or 0)
    assert dealt.labeled[held].all()


def test_the_rest_of_a_split_is_kept() -> None:
    given = {"split": "fedmatch-batch-noniid-server", "clients": 20}
    data = plan({}, given, "all-labels", 0).data
    assert (data.name, data.clients, data.partition, data.normalise) == ("cifar10", 20, "fedmatch", "unit")


@pytest.mark.parametrize("given", AT_SERVER)
def test_a_bound_is_the_same_when_it_is_read_again(given: dict[str, Any]) -> None:
    config = plan({}, given, "all-labels", 0)
    assert configs.make(tomllib.loads(configs.dumps(config))) == config


def test_labels_of_clients_are_dealt_as_for_the_others() -> None:
    given = {"labels": "client", "per_class": 5, "partition": "fedmatch"}
    assert plan({}, given, "all-labels", 0).data.budget == (5,)


def test_a_setting_goes_to_the_methods_that_have_it() -> None:
    missing = strangers(["labels-only", "fedprox+fixmatch", "semifl", "fedavg+supervised"])
    assert missing["labels-only"] == set()  # a bound takes nothing of these sections anyway
    assert {"objective.labeler", "method.mu"} <= missing["semifl"]
    assert "objective.labeler" not in missing["fedprox+fixmatch"]
    assert {"objective.labeler", "method.mu"} <= missing["fedavg+supervised"]
    assert "method.name" not in set().union(*missing.values())


def test_a_setting_that_no_method_has_is_refused(tmp_path: Path) -> None:
    common: dict[str, Any] = {"labels": "server", "per_class": 5}
    for extra in ({"method.nu": 1}, {"objective.labeller": "global"}, {"method.preset": "as-released"}):
        with pytest.raises(TacitError, match=f"{next(iter(extra)).partition('.')[2]}|presets"):
            compare({}, common | extra, ["fedavg+fixmatch", "semifl"], [0], tmp_path, "quiet", Console())
    assert not list(tmp_path.iterdir())


def test_a_seed_among_the_settings_is_refused_where_each_run_has_its_own(tmp_path: Path) -> None:
    refusal = "seeds are given with --seeds: leave out --set seed"
    with pytest.raises(TacitError, match=refusal):
        compare({}, {"seed": 5}, ["fedavg"], [0], tmp_path, "quiet", Console())
    with pytest.raises(TacitError, match=refusal):
        cells.spots(files.read(small.write(tmp_path)), extra={"seed": 5})


@pytest.mark.parametrize(
    "found, called, said",
    [
        (True, "/x/src/tacit/__main__.py", "tacit"),
        (False, "/x/src/tacit/__main__.py", "python -m tacit"),
        (False, "my bin/tacit", "'my bin/tacit'"),
    ],
)
def test_the_demo_says_how_the_program_is_called_from_here(
    monkeypatch: pytest.MonkeyPatch, found: bool, called: str, said: str
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}" if found else None)
    monkeypatch.setattr(sys, "argv", [called])
    assert demo._program() == said


def test_the_demo_ends_with_the_bound() -> None:
    config = plan({}, COMMON, "all-labels", 0)
    assert config == configs.from_options(COMMON | {"method": "fedavg+supervised", "labels": "all", "per_class": None})
