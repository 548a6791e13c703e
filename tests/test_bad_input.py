"""Wrong configs, command lines, data files and runs by the hundred: one sentence, exit code 2, nothing left over."""

import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tacit import catalog, cli
from tacit import config as configs
from tacit.config import EngineConfig, LogConfig, NetConfig
from tacit.data.scenario import Scenario
from tacit.engines.faults import Faults
from tacit.errors import TacitError
from tacit.experiment import Experiment
from tacit.method import Training
from tacit.objectives import OBJECTIVES
from tests.engines import farm

SECTIONS = {
    "data": Scenario,
    "net": NetConfig,
    "train": Training,
    "server": Training,
    "engine": EngineConfig,
    "faults": Faults,
    "log": LogConfig,
}
# Never a value of any setting, whatever its type.
IMPOSSIBLE: list[Any] = [{"a": 1}, [1, 2], [[]], {}, float("nan"), [None]]
# Wrong for a number.
NO_NUMBER: list[Any] = ["many", "", "1e", "١x", True, -1, -0.5, 1e400, -(10**30)]


def wrong_settings() -> Iterator[tuple[str, str, Any]]:
    """Every setting of every section with values that it can not have."""
    for section, kind in SECTIONS.items():
        for setting in fields(kind):
            values = list(IMPOSSIBLE)
            if isinstance(setting.default, (int, float)) and not isinstance(setting.default, bool):
                values += NO_NUMBER
            if isinstance(setting.default, bool):
                values += ["perhaps", 3, -1.5]
            yield from ((section, setting.name, value) for value in values)


def wrong_hyper_parameters() -> Iterator[tuple[str, str, Any]]:
    """Every hyper-parameter of every method and objective likewise."""
    for name, kind in catalog.methods().items():
        for item in catalog.settings(kind):
            if item.name != "objective":
                yield from ((name, f"method.{item.name}", value) for value in IMPOSSIBLE)
    for name, kind in OBJECTIVES.items():
        for item in catalog.settings(kind):
            yield from ((f"fedavg+{name}", f"objective.{item.name}", value) for value in IMPOSSIBLE)


def refused(make: Callable[[], object]) -> str:
    """The sentence of a refusal; anything else than a refusal fails."""
    with pytest.raises(TacitError) as caught:
        make()
    sentence = str(caught.value)
    assert sentence
    assert "\n" not in sentence
    assert "Traceback" not in sentence
    return sentence


@pytest.mark.parametrize("section", SECTIONS)
def test_no_impossible_value_of_a_setting_gets_in_or_breaks_anything(section: str) -> None:
    tried = 0
    for place, name, value in wrong_settings():
        if place == section:
            sentence = refused(lambda p=place, n=name, v=value: configs.make({p: {n: v}}))  # type: ignore[misc]
            assert name in sentence or section in sentence
            tried += 1
    assert tried >= 10


def test_no_impossible_hyper_parameter_gets_in_or_breaks_anything() -> None:
    tried = 0
    for method, path, value in wrong_hyper_parameters():
        sentence = refused(lambda m=method, p=path, v=value: configs.from_options({"method": m, p: v}))  # type: ignore[misc]
        assert path.partition(".")[2] in sentence
        tried += 1
    assert tried >= 200


# What is wrong after each option; a word may be empty.
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
    """Good commands with one wrong word, and commands that are wrong as they are."""
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
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one good data file and several bad ones."""
    folder = tmp_path_factory.mktemp("desk")
    farm.write_images(folder / "images.npz", 60, 15)
    np.savez(folder / "empty.npz")
    np.savez(folder / "text.npz", x=np.array(["a", "b"]), y=np.array([0, 1]))
    (folder / "ragged.csv").write_text("path,label\na.png\n")
    (folder / "good.toml").write_text("rounds = 1\n")
    (folder / "broken.toml").write_text("rounds = = 1\n")
    (folder / "binary.toml").write_bytes(bytes(range(256)))
    return folder


def said(words: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """The sentence on standard error of a command that must fail with code 2 and leave nothing."""
    before = sorted(path.relative_to(folder) for path in folder.rglob("*"))
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "argv", ["tacit", *words])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    _, err = capsys.readouterr()
    assert ended.value.code == 2, (words, err)
    assert sorted(path.relative_to(folder) for path in folder.rglob("*")) == before
    return err


@pytest.mark.parametrize("words", command_lines(), ids=lambda words: " ".join(words[:1] + words[-2:]) or "none")
def test_a_wrong_command_line_is_one_sentence(
    words: list[str], desk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    err = said(words, desk, monkeypatch, capsys)
    if words:  # without a command the help is shown
        assert err.startswith("tacit: ")
        assert err.count("\n") == 1
        assert "Traceback" not in err


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished run and the data it is of."""
    folder = tmp_path_factory.mktemp("run")
    farm.write_images(folder / "images.npz", 60, 15)
    values = {"data": str(folder / "images.npz"), "labels": "client", "per_class": 2, "clients": 3, "net": "linear"}
    config = configs.from_options(values | {"rounds": 3, "workers": 0, "method": "scaffold"})
    experiment = Experiment.create(config, folder / "out")
    playing = experiment.rounds()
    next(playing)
    next(playing)
    playing.close()
    return folder


FILES = ["config.toml", "split.json", "rounds.jsonl", "checkpoint/latest.json", "checkpoint/state.*"]
HARM: dict[str, Callable[[bytes], bytes]] = {
    "emptied": lambda data: b"",
    "cut": lambda data: data[: len(data) // 2],
    "turned around": lambda data: data[::-1],
    "a list": lambda data: b"[]",
    "null": lambda data: b"null",
    "random": lambda data: np.random.default_rng(0).bytes(max(8, len(data))),
}


@pytest.mark.parametrize("harm", HARM)
@pytest.mark.parametrize("name", FILES)
def test_a_harmed_run_is_refused_and_left_as_it_is(
    name: str, harm: str, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "out"
    shutil.copytree(run / "out", copy)
    (path,) = copy.glob(name)
    path.write_bytes(HARM[harm](path.read_bytes()))
    files = {file: file.read_bytes() for file in copy.rglob("*") if file.is_file()}
    err = said(["resume", str(copy)], tmp_path, monkeypatch, capsys)
    assert err.count("\n") == 1
    assert {file: file.read_bytes() for file in copy.rglob("*") if file.is_file()} == files
