"""`tacit compare`: several methods and seeds on one config."""

import html
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import tacit
from tacit.learn.central import Pace
from tacit.runs import config as configs
from tacit.runs.central import CENTRAL
from tacit.runs.experiment import Experiment
from tests.cli.shell import CONFIG, Shell, code_of, fits


def test_compare_runs_everything_once(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("compare", "images.npz.toml", "--methods", "fedavg+fixmatch, local-only", "--seeds", "0,1", "--out", "all")
    said = shell(*words, "--set", "train.lr=0.125")
    assert (said.code, said.err) == (0, "")
    places = [Path("all") / method / f"seed-{seed}" for method in ("fedavg+fixmatch", "local-only") for seed in (0, 1)]
    for place in places:
        run = tacit.resume(shell.folder / place)
        assert (run.config.method_name, run.config.seed) == (place.parent.name, int(place.name[-1]))
        assert run.config.train.lr == 0.125
    assert "fedavg+fixmatch" in said.out
    assert "±" in said.out
    assert said.lines[-1] == "report: all/report.html"
    methods = "--methods 'fedavg+fixmatch, local-only' --seeds 0,1"
    command = f"tacit compare images.npz.toml {methods} --out all --set train.lr=0.125"
    assert html.escape(command) in (shell.folder / "all/report.html").read_text()
    assert shell("report", "all").code == 0
    assert html.escape(command) in (shell.folder / "report.html").read_text()
    assert fits(said.out)
    before = {path: path.stat().st_mtime_ns for place in places for path in (shell.folder / place).rglob("*")}

    def forbidden(*_: object) -> None:
        raise AssertionError("a finished run was run again")

    monkeypatch.setattr("tacit.runs.followers.progress.run", forbidden)
    again = shell(*words, "--set", "train.lr=0.125")
    assert again.code == 0
    assert before == {path: path.stat().st_mtime_ns for place in places for path in (shell.folder / place).rglob("*")}
    assert code_of(*words, "--set", "train.lr=0.25") == "run.other-config"


def test_compare_adds_bounds(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tacit.runs.central.PACE", Pace(every=2, patience=2, limit=8))
    bounds = "labels-only,pooled,all-labels,all-labels-strong"
    words = ("compare", "images.npz.toml", "--methods", f"{bounds},fedavg+fixmatch", "--out", "all", "-q")
    said = shell(*words, "--set", "objective.threshold=0.5")
    assert said.code == 0, said.err
    written = (shell.folder / "all").rglob("config.toml")
    settings = {path.parent.parent.name: tomllib.loads(path.read_text()) for path in written}
    assert {settings[name]["method"]["name"] for name in CENTRAL} == CENTRAL.keys()
    assert settings["all-labels-strong"]["data"]["labels"] == "all"
    assert settings["all-labels-strong"]["objective"]["view"] == "strong"
    assert settings["fedavg+fixmatch"]["objective"]["threshold"] == 0.5
    for row in bounds.split(","):
        assert any(line.split()[:1] == [row] for line in said.lines)
    at_server = shell(*words[:-2], "other", "-q", "--set", "data.labels=server")
    assert at_server.code == 0, at_server.err
    labels_only = tomllib.loads((shell.folder / "other/labels-only/seed-0/config.toml").read_text())
    assert labels_only["data"]["labels"] == "server"
    assert shell("report", "all", "-o", "page.html").code == 0
    assert "all-labels-strong" in (shell.folder / "page.html").read_text()


def test_compare_gives_each_method_the_settings_it_has(shell: Shell) -> None:
    words = ("compare", "images.npz.toml", "--methods", "fedavg+fixmatch,fedsem", "--out", "all")
    said = shell(*words, "--set", "objective.threshold=0.5", "--set", "method.first=0.5")
    assert said.code == 0, said.err
    assert "fedavg+fixmatch: without method.first, which it does not have" in said.lines
    assert "fedsem: without objective.threshold, which it does not have" in said.lines
    written = {
        path.parent.parent.name: configs.make(configs.read(path)) for path in (shell.folder / "all").rglob("*.toml")
    }
    assert written["fedavg+fixmatch"].objective == {"threshold": 0.5}
    assert written["fedavg+fixmatch"].method == {"name": "fedavg+fixmatch"}
    assert written["fedsem"].objective == {}
    assert written["fedsem"].method == {"name": "fedsem", "phase1_share": 0.5}


def test_compare_checks_every_method_before_the_first_one_runs(shell: Shell) -> None:
    said = shell("compare", "images.npz.toml", "--methods", "fedavg,fedseal", "--out", "all", "-q")
    assert (said.code, "fedseal" in said.err) == (2, True)
    assert not (shell.folder / "all").exists()


def test_compare_counts_a_seed_once(shell: Shell) -> None:
    said = shell("compare", "images.npz.toml", "--methods", "fedavg,fedavg", "--seeds", "1,1,01", "--out", "all", "-q")
    assert said.code == 0
    assert "±" not in said.out
    assert [path.name for path in (shell.folder / "all").iterdir() if path.is_dir()] == ["fedavg"]


def test_compare_continues_an_interrupted_run(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("compare", "images.npz.toml", "--methods", "fedavg", "--seeds", "3", "--out", "all", "--quiet")
    finished: list[int] = []
    rounds = Experiment.rounds

    def stop_after_one(self: Experiment) -> Iterator[object]:
        for record in rounds(self):
            finished.append(record.round)
            yield record
            if len(finished) == 1:
                raise KeyboardInterrupt

    monkeypatch.setattr(Experiment, "rounds", stop_after_one)
    assert shell(*words).code == 130
    assert shell(*words).code == 0
    assert finished == [0, 1]


def test_compare_accepts_another_number_of_workers(shell: Shell) -> None:
    words = ("compare", "images.npz.toml", "--methods", "fedavg", "--out", "all", "--quiet")
    assert shell(*words).code == 0
    said = shell(*words, "--set", "engine.workers=1", "--set", "engine.deadline=60")
    assert (said.code, said.err) == (0, "")


def test_compare_uses_the_seed_of_its_config(shell: Shell) -> None:
    with (shell.folder / "images.npz.toml").open("r+") as file:
        file.write(f"seed = 7\n{CONFIG}")
    said = shell("compare", "images.npz.toml", "--methods", "fedavg", "--out", "all", "-q")
    assert (said.code, said.err) == (0, "")
    assert "seeds 7" in said.out
    assert [path.name for path in (shell.folder / "all/fedavg").iterdir()] == ["seed-7"]


def test_all_configs_of_a_comparison_are_checked_before_the_first_one_runs(shell: Shell) -> None:
    assert code_of("compare", "images.npz.toml", "--methods", "fedavg,fedawg", "--out", "all") == "names.unknown-method"
    assert not (shell.folder / "all").exists()


def test_a_method_that_diverges_does_not_end_a_comparison(shell: Shell) -> None:
    words = ("compare", "images.npz.toml", "--methods", "fedavg+supervised,local-only", "--out", "all")
    changes = ("--set", "net.name=lenet", "--set", "train.lr=1e20", "--set", "log.local=true")
    said = shell(*words, *changes)
    assert (said.code, said.err) == (0, "")
    reason = "diverged in round 2: rate 1e+20 is high for fedavg+supervised"
    assert f"fedavg+supervised {reason}" in " ".join(said.out.split())
    assert any(line.split()[:2] == ["fedavg+supervised", "–"] for line in said.lines)
    assert any(line.startswith("local-only ") for line in said.lines)
    assert reason in (shell.folder / "all/report.html").read_text()
    again = shell(*words, *changes, "-q")
    assert again.code == 0
    assert reason in " ".join(again.out.split())
