"""Hundreds of wrong configs, command lines, data files and runs: one sentence, exit code 2, nothing left behind."""

import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tacit.cli import app
from tacit.data.split.config import DataConfig
from tacit.engines.faults import Faults
from tacit.engines.limits import Limits
from tacit.errors import TacitError
from tacit.method import Training
from tacit.objectives import OBJECTIVES
from tacit.runs import config as configs
from tacit.runs import registry
from tacit.runs.experiment import Experiment
from tacit.runs.net.config import NetConfig
from tacit.runs.sections import EngineConfig, LogConfig
from tests.engines import farm

SECTIONS = {
    "data": DataConfig,
    "net": NetConfig,
    "train": Training,
    "server": Training,
    "engine": EngineConfig,
    "faults": Faults,
    "limits": Limits,
    "log": LogConfig,
}
# Values that no setting of any type accepts.
IMPOSSIBLE: list[Any] = [{"a": 1}, [1, 2], [[]], {}, float("nan"), [None]]
# Values that no number setting accepts.
NO_NUMBER: list[Any] = ["many", "", "1e", "١x", True, -1, -0.5, 1e400, -(10**30)]


def wrong_settings() -> Iterator[tuple[str, str, Any]]:
    """Every setting of every section with values that it cannot have."""
    for section, kind in SECTIONS.items():
        for setting in fields(kind):
            dictionary = (section, setting.name) == ("net", "options")  # for whose entries test_net_options.py is
            values = [value for value in IMPOSSIBLE if not (dictionary and isinstance(value, dict))]
            if isinstance(setting.default, (int, float)) and not isinstance(setting.default, bool):
                values += NO_NUMBER
            if isinstance(setting.default, bool):
                values += ["perhaps", 3, -1.5]
            yield from ((section, setting.name, value) for value in values)


def wrong_hyper_parameters() -> Iterator[tuple[str, str, Any]]:
    """Every hyper-parameter of every method and objective with values that it cannot have."""
    for name, kind in registry.methods().items():
        for item in registry.settings_of(kind):
            if item.name != "objective":
                yield from ((name, f"method.{item.name}", value) for value in IMPOSSIBLE)
    for name, objective in OBJECTIVES.items():
        for item in registry.settings_of(objective):
            yield from ((f"fedavg+{name}", f"objective.{item.name}", value) for value in IMPOSSIBLE)


def sentence_of(make: Callable[[], object]) -> str:
    """The sentence that refuses a value; fails if it is accepted."""
    with pytest.raises(TacitError) as caught:
        make()
    sentence = str(caught.value)
    assert sentence
    assert "\n" not in sentence
    assert "Traceback" not in sentence
    return sentence


@pytest.mark.parametrize("section", SECTIONS)
def test_every_impossible_value_of_a_setting_is_refused(section: str) -> None:
    tried = 0
    for place, name, value in wrong_settings():
        if place == section:
            sentence = sentence_of(lambda p=place, n=name, v=value: configs.make({p: {n: v}}))  # type: ignore[misc]
            assert name in sentence or section in sentence
            tried += 1
    assert tried >= 10


def test_every_impossible_value_of_a_hyper_parameter_is_refused() -> None:
    tried = 0
    for method, path, value in wrong_hyper_parameters():
        sentence = sentence_of(lambda m=method, p=path, v=value: configs.from_options({"method": m, p: v}))  # type: ignore[misc]
        assert path.partition(".")[2] in sentence
        tried += 1
    assert tried >= 200


# Wrong values for each option; a value may be empty.
WORDS = {
    "method": ["", "+", "fedavg+", "+fixmatch", "fedavg+fedavg", "no.module:T", ":", "os:path", "fedmatch+uda", "🙂"],
    "data": ["", "no-such", "x.npy", "missing.npz", "missing.csv", "\x00", "empty.npz", "text.npz", "ragged.csv"],
    "partition": ["", "dirichlet:", "dirichlet:0", "dirichlet:-1", "classes:0", "classes:x", "iid:3", "shards:9999"],
    "net": ["", "no-net", "lenet:", "no.module:net", "os:getcwd", "fedsiam-cnn:3"],
    "labels": ["", "clients", "none", "SERVER "],
    "rounds": ["0", "-3", "1.5", "many", "1e9999", ""],
    "clients": ["0", "-1", "100000000", "2.5", "x"],
    "cohort": ["0", "-1", "99", "y"],
    "per-class": ["0", "-4", "1.5", "z"],
    "lr": ["0", "-0.1", "nan", "fast", "inf"],
    "batch": ["0", "-8", "0.5"],
    "workers": ["-1", "x", "1.5"],
    "device": ["", "gpu9", "cuda:99", "tpu", "🙂"],
    "engine": ["", "spark", "Local"],
    "seed": ["-1", "x", "0.5"],
    "set": ["", "=", "x", "x=1", "method.x=1", "train.lr=", "data=3", "a.b.c=1", "method.name=", "engine.ray=1"],
}
COMMANDS = [
    [],
    ["nothing"],
    ["run", "missing.toml"],
    ["run", "."],
    ["run", "broken.toml"],
    ["run", "binary.toml"],
    ["run", "--no-such-option"],
    ["resume"],
    ["resume", "missing"],
    ["resume", "images.npz"],
    ["show", "nothing"],
    ["show", ""],
    ["ls", "everything"],
    ["compare", "good.toml", "--methods", ""],
    ["compare", "good.toml", "--methods", "fedavg", "--seeds", "x"],
    ["compare", "missing.toml", "--methods", "fedavg"],
    ["report", "missing"],
    ["report", "images.npz"],
    ["report"],
    ["data", "missing.toml"],
    ["data", "--data", "images.npz", "--format", "gif"],
    ["bench", "run", "nothing"],
    ["bench", "run", "broken.toml"],
    ["bench", "show", "good.toml"],
    ["bench", "table", "fedseal-table4", "--format", "word"],
    ["bench", "run", "fedseal-table4", "--only", "nobody"],
    ["bench", "run", "fedseal-table4", "--column", "nowhere"],
    ["bench", "run", "fedseal-table4", "--seeds", "x"],
    ["bench", "keep", "nothing"],
    ["bench", "show", "fedseal-table4-quick"],
    ["bench", "table", "fedsiam-table5"],
    ["show", "fixmatsch"],
    ["show", "fedmatch+uda"],
    ["run", "--method", "examples/fedavgm.py"],
    ["report", "images.npz", "--format", "pdf"],
    ["site", "check"],
    ["site", "init", "s", "--name", "a b"],
    ["hub", "status"],
    ["bench", "docs", "missing.md"],
]
GOOD = ["--data", "images.npz", "--labels", "client", "--per-class", "2", "--clients", "3", "--net", "linear"]
GOOD += ["--rounds", "1", "--workers", "0", "--out", "out"]


def command_lines() -> list[list[str]]:
    """A good command with one wrong value, and commands that are wrong as a whole."""
    changed = []
    for option, words in WORDS.items():
        for word in words:
            rest = GOOD[:]
            if f"--{option}" in rest:
                place = rest.index(f"--{option}")
                del rest[place : place + 2]
            changed.append(["run", *rest, f"--{option}", word])
    return changed + COMMANDS


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one good data file and several bad ones."""
    folder = tmp_path_factory.mktemp("workspace")
    farm.write_images(folder / "images.npz", 60, 15)
    np.savez(folder / "empty.npz")
    np.savez(folder / "text.npz", x=np.array(["a", "b"]), y=np.array([0, 1]))
    (folder / "ragged.csv").write_text("path,label\na.png\n")
    (folder / "good.toml").write_text("rounds = 1\n")
    (folder / "broken.toml").write_text("rounds = = 1\n")
    (folder / "binary.toml").write_bytes(bytes(range(256)))
    return folder


def error_of(
    words: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> str:
    """What a command prints to standard error; it must fail with exit code 2 and write nothing."""
    before = sorted(path.relative_to(folder) for path in folder.rglob("*"))
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "argv", ["tacit", *words])
    with pytest.raises(SystemExit) as ended:
        app.main()
    _, err = capsys.readouterr()
    assert ended.value.code == 2, (words, err)
    assert sorted(path.relative_to(folder) for path in folder.rglob("*")) == before
    return err


@pytest.mark.parametrize("words", command_lines(), ids=lambda words: " ".join(words[:1] + words[-2:]) or "none")
def test_a_wrong_command_line_is_one_sentence(
    words: list[str], workspace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    err = error_of(words, workspace, monkeypatch, capsys)
    if words:  # without a command the help is printed
        notices = [line for line in err.splitlines() if " is now " in line]  # of a former name, which still works
        (sentence,) = [line for line in err.splitlines() if line not in notices]
        assert sentence.startswith("tacit: ")
        assert "Traceback" not in err


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run that stopped before its last round, and its data."""
    folder = tmp_path_factory.mktemp("run")
    farm.write_images(folder / "images.npz", 60, 15)
    values = {"data": str(folder / "images.npz"), "labels": "client", "per_class": 2, "clients": 3, "net": "linear"}
    config = configs.from_options(values | {"rounds": 3, "workers": 0, "method": "scaffold"})
    experiment = Experiment.create(config, folder / "out")
    rounds = experiment.rounds()
    next(rounds)
    next(rounds)
    rounds.close()
    return folder


FILES = ["run.json", "config.toml", "split.json", "rounds.jsonl", "checkpoint/latest.json", "checkpoint/state.*"]
DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "emptied": lambda data: b"",
    "cut": lambda data: data[: len(data) // 2],
    "reversed": lambda data: data[::-1],
    "a list": lambda data: b"[]",
    "null": lambda data: b"null",
    "random": lambda data: np.random.default_rng(0).bytes(max(8, len(data))),
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_run_is_refused_and_unchanged(
    name: str,
    damage: str,
    run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    copy = tmp_path / "out"
    shutil.copytree(run / "out", copy)
    path = max(copy.glob(name))  # of several states, the last one
    path.write_bytes(DAMAGE[damage](path.read_bytes()))
    files = {file: file.read_bytes() for file in copy.rglob("*") if file.is_file()}
    err = error_of(["resume", str(copy)], tmp_path, monkeypatch, capsys)
    assert err.count("\n") == 1
    assert {file: file.read_bytes() for file in copy.rglob("*") if file.is_file()} == files
