"""SSFL's tables: cells run what their titles say, and otherwise the values of the paper's Table A.1 and its release."""

import re
from dataclasses import replace
from typing import Any

import pytest

from tacit.bench import plan, spec
from tacit.bench.plan import Cell
from tacit.runs.config import Config
from tests.bench.test_published import TABLES

NAMES = [f"ssfl-{table}" for table in [*TABLES["ssfl"], "factors"]]
EPOCH = 65_536 // 64  # steps, M/B

CONSTANT: dict[str, Any] = {
    "T": 16,
    "R": 0.4,
    "S": 1,
    "norm": "group",
    "labels": "server",
    "batch": 64,
    "server_batch": 64,
    "momentum": 0.9,
    "nesterov": True,
    "weight_decay": 1e-4,
    "optimizer": "keep",
    "buffers": "average",
    "augment": "ssfl",
}
# Users, labels, steps, of these warm-up; rate and schedule as released.
DATA: dict[str, tuple[Any, ...]] = {
    "cifar10": (10, 1000, 300 * EPOCH, 5 * EPOCH, 0.165, "cosine:413/624:1e-5"),
    "svhn": (10, 1000, 40 * EPOCH, 5 * EPOCH, 0.165, "cosine:7133/3120:1e-5"),
    "emnist-balanced": (47, 4700, 100 * EPOCH, 0, 0.03, "cosine:7/16:1e-4"),
    "fashion-mnist": (10, 1000, 1600, 0, 0.03, "cosine:7/16"),
}
OF_DATA = ("K", "N_s", "steps", "warm", "lr", "schedule")
TABLE: dict[str, dict[str, Any]] = {  # not in the titles of these tables
    "ssfl-table3": {"T": 32},
    "ssfl-table4": {"K": 16},
    "ssfl-table-f1": {"K": 30},
    "ssfl-figure2": {"buffers": "keep"},
    "ssfl-factors": {"T": 4},
}
SUPERVISED: dict[str, Any] = {"batch": 128, "lr": 0.1, "nesterov": False, "schedule": "constant", "warm": 0}
ROW: dict[tuple[str, str], dict[str, Any]] = {
    ("ssfl-figure2", "self-training"): {"lr": 0.03, "warm": 0},
    ("ssfl-table3", "fedavg"): {"labels": "all"},
    ("ssfl-table3", "sharing"): {"labels": "all"},
    ("ssfl-table4", "easgd"): SUPERVISED,
    ("ssfl-table4", "overlap-sgd"): SUPERVISED,
}
WORDS: dict[str, dict[str, Any]] = {
    "two groups": {"S": 2},
    "five groups": {"S": 5},
    "ten groups": {"S": 10},
    "grouping-based": {"S": 2},
    "all labels": {"labels": "all"},
    "(BN)": {"norm": "batch"},
    "BatchNorm": {"norm": "batch"},
}
METHODS = {  # by words in a title; the first match counts
    "self-training": "ssfl+pseudo-label",
    "group": "fedrgd",
    "EASGD": "easgd",
    "OverlapSGD": "overlap-sgd",
    "Supervised": "fedavg+supervised",
    "DataSharing": "fedavg+supervised",
}
SAME_NAME = ("batch", "lr", "schedule", "momentum", "nesterov", "weight_decay", "optimizer", "buffers")


def settings_in(title: str) -> dict[str, Any]:
    """The settings that a title names: `K = 20, C_k = 10` is K and C_k."""
    found: dict[str, Any] = {}
    for symbols, value in re.findall(r"\b((?:(?:R|T|K|C_k|N_s|E) = )+)(\d[\d.,]*)", title):
        found |= dict.fromkeys(symbols.split(" = ")[:-1], float(value.rstrip(",").replace(",", "")))
    for words, settings in WORDS.items():
        found |= settings if words in title else {}
    return found | ({"steps": found.pop("E") * EPOCH} if "E" in found else {})


def wanted(name: str, cell: Cell) -> dict[str, Any]:
    """The settings a cell should have."""
    title = f"{cell.column.title}, {cell.row.title}"
    data = dict(zip(OF_DATA, DATA[cell.config.data.name], strict=True))
    settings = CONSTANT | data | TABLE.get(name, {}) | ROW.get((name, cell.row.name), {}) | settings_in(title)
    method = next((method for words, method in METHODS.items() if words in cell.row.title), "ssfl")
    if cell.config.data.name == "emnist-balanced":
        settings["norm"] = None
    return {"C_k": settings["K"]} | settings | {"method": method}


def settings_of(config: Config) -> dict[str, Any]:
    """The settings it has, in the same words."""
    method: Any = config.build_method()
    period: int = getattr(method, "period", 0) or config.train.steps or 0
    return {
        **{name: getattr(config.train, name) for name in SAME_NAME},
        "T": period,
        "steps": config.rounds * period,
        "warm": config.train.warmup * period,
        "K": config.data.clients,
        "C_k": config.cohort or config.data.clients,
        "N_s": config.data.n_labels,
        "R": float(config.data.partition.removeprefix("main-class:")),
        "labels": config.data.labels,
        "S": getattr(method, "groups", 1),
        "method": config.method["name"],
        "norm": config.net.norm,
        "server_batch": config.server_train.batch,
        "augment": config.data.augment,
    }


@pytest.mark.parametrize("name", NAMES)
def test_a_cell_has_the_settings_its_titles_name(name: str) -> None:
    for cell in plan.cells(spec.find(name)):
        if not cell.row.bound:
            assert settings_of(cell.config) == wanted(name, cell), cell.place


@pytest.mark.parametrize("name", [name for name in NAMES if name != "ssfl-factors"])
def test_every_epoch_is_evaluated(name: str) -> None:
    for cell in plan.cells(spec.find(name)):
        log = cell.config.log
        assert log.evaluate_every == log.checkpoint_every
        assert cell.config.rounds % log.evaluate_every == 0
        if not cell.row.bound:
            assert log.evaluate_every * settings_of(cell.config)["T"] == EPOCH, cell.place


def test_a_changed_setting_is_noticed() -> None:
    cell = plan.cells(spec.find("ssfl-table1"))[0]
    right = wanted("ssfl-table1", cell)
    data, train = cell.config.data, cell.config.train
    for wrong in (
        {"rounds": 2560},
        {"cohort": 5},
        {"data": replace(data, partition="main-class:0.5")},
        {"train": replace(train, lr=0.146)},
        {"method": {"name": "ssfl", "period": 32}},
        {"method": {"name": "fedrgd"}},
    ):
        assert settings_of(replace(cell.config, **wrong)) != right


def test_titles_are_parsed() -> None:
    assert settings_in("SVHN, K = 20, u = 1/3 (C_k = 10)") == {"K": 20, "C_k": 10}
    assert settings_in("R = 0.4, T = 16, K = C_k = 10, N_s = 1,000, GroupNorm") == {
        "R": 0.4,
        "T": 16,
        "K": 10,
        "C_k": 10,
        "N_s": 1000,
    }
    assert settings_in("two groups, E = 120") == {"S": 2, "steps": 122_880}


# Numbers of figures, from the text of 3.3 and 4.1, Tables 1 and 2, and A.3.
FIGURES = {
    "ssfl-figure2": {
        "self-training": {"cifar10": 52.10},
        "batchnorm": {"cifar10": 85.11},
        "fedavg": {"cifar10": 92.83},
        "groups-2": {"cifar10": 93.38},
    },
    "ssfl-figure3": {
        "base": {"cifar10": 92.83, "svhn": 94.36},
        "r-0": {"cifar10": 93.38, "svhn": 94.15},
        "r-1": {"cifar10": 79.39, "svhn": 86.34},
    },
    "ssfl-figure4": {
        "k-20": {"cifar10": 92.13},
        "k-20-c-10": {"cifar10": 93.06},
        "k-30": {"cifar10": 91.87},
        "k-30-c-10": {"cifar10": 92.78},
    },
}


@pytest.mark.parametrize("name", FIGURES)
def test_the_numbers_of_figures_are_those_in_the_text(name: str) -> None:
    assert spec.find(name).published == FIGURES[name]


def test_the_numbers_of_longer_runs_are_those_in_the_text() -> None:
    published = spec.find("ssfl-table1").published
    assert {row: of for row, of in published.items() if row.endswith("-long")} == {
        "k-10-long": {"svhn": 96.17},
        "k-30-long": {"svhn": 93.94},
    }
