"""Mistakes and interruptions: one line on standard error, an exit code, and how to continue."""

import errno
import os
import sys
from pathlib import Path

import pytest

import tacit
from tacit.runs import registry
from tests.cli.shell import Shell, code_of

CARELESS = """
from dataclasses import dataclass

from tests.engines.farm import *


@dataclass(frozen=True)
class Seen:
    clients: object


@dataclass(frozen=True)
class Hoarder(Tally):
    def merge(self, server, state, ups):
        return Seen(set(ups))

    def model(self, state):
        return None


@dataclass(frozen=True)
class Chatty(Tally):
    def send(self, server, state):
        return state, {client: Seen({client}) for client in server.cohort}
"""


@pytest.mark.parametrize("kind", ["Hoarder", "Chatty"])
@pytest.mark.parametrize("workers", [0, 1])
def test_a_state_or_message_that_cannot_be_encoded_is_refused(shell: Shell, kind: str, workers: int) -> None:
    (shell.folder / "careless.py").write_text(CARELESS)
    words = ("--method", f"careless:{kind}", "--workers", workers, "--out", "mine")
    said = shell("run", "images.npz.toml", *words)
    sys.modules.pop("careless")
    assert said.code == 2
    assert said.err.splitlines()[-1].startswith("tacit: a set can")
    assert not (shell.folder / "mine" / "checkpoint" / "latest.json").exists()


@pytest.mark.parametrize(
    "words, what, how",
    [
        (("compare", "images.npz.toml", "--methods", "fedavg"), "tacit.cli.compare.run_all", "run the same command"),
        (("demo", "--out", "my demo"), "tacit.cli.demo.show", "continue with: tacit demo --out 'my demo'"),
        (("demo",), "tacit.cli.demo.show", "continue with: tacit demo --out runs/demo"),
    ],
)
def test_ctrl_c_prints_how_to_continue_several_runs(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], what: str, how: str
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(what, interrupt)
    stopped = shell(*words)
    assert stopped.code == 130
    assert stopped.err.startswith(f"stopped; {how}")
    assert not (shell.folder / "runs").exists()


COMPARE = ["compare", "images.npz.toml", "--methods"]


# What is wrong, the command, and the code of the error; no code where another package words the error.
MISTAKES = {
    "unknown command": (["rum"], ""),
    "misspelled command": (["bnch"], ""),
    "unknown option": (["run", "--round", "3"], ""),
    "missing argument": (["resume"], ""),
    "option of the wrong type": (["run", "--rounds", "many"], ""),
    "misspelled method": (["run", "--method", "fedavgg"], "names.unknown-method"),
    "misspelled objective": (["run", "--method", "fedavg+fixmach"], "names.unknown-objective"),
    "misspelled net": (["run", "--net", "lennet"], "names.unknown-network"),
    "misspelled data set": (["run", "--data", "fashion"], "names.unknown-data-set"),
    "a folder without its slash": (["run", "--data", "my-scans"], "names.unknown-data-set"),
    "a single class": (["run", "--data", "alike.npz", "--labels", "all"], "data.one-class"),
    "misspelled partition": (["run", "--partition", "idd"], "names.unknown-partition"),
    "sites without a hub": (["run", "--partition", "sites"], "config.needs-hub"),
    "data at sites": (["data", "--partition", "sites"], "config.needs-hub"),
    "misspelled kind": (["ls", "method"], "names.unknown-kind"),
    "misspelled method to show": (["show", "fedproxx"], "names.unknown-method"),
    "impossible value": (["run", "--rounds", "0"], "settings.impossible-value"),
    "unmet need": (
        ["run", "--labels", "client", "--per-class", "1", "--method", "server-only"],
        "method.needs-server-labels",
    ),
    "missing config": (["run", "nowhere.toml"], "config.no-file"),
    "folder as config": (["run", "."], "config.is-folder"),
    "broken TOML": (["run", "broken.toml"], "config.not-toml"),
    "unknown key": (["run", "odd.toml"], "names.unknown-setting"),
    "no assignment": (["run", "--set", "method.mu"], "config.not-an-assignment"),
    "set of an unknown setting": (["run", "--set", "train.lrr=1"], "names.unknown-setting"),
    "set of a section": (["run", "--set", "train=1"], "config.section-as-value"),
    "existing out": (["run", "images.npz.toml", "--out", "full"], "run.not-empty"),
    "out in a file": (["run", "images.npz.toml", "--out", "images.npz/x"], "storage.cannot-write"),
    "missing device": (["run", "images.npz.toml", "--device", "abacus"], "engine.no-device"),
    "resume of a missing folder": (["resume", "nowhere"], "run.no-folder"),
    "resume of another folder": (["resume", "full"], "run.none"),
    "bad seeds": ([*COMPARE, "fedavg", "--seeds", "0,x"], "cli.not-a-seed"),
    "odd seeds": ([*COMPARE, "fedavg", "--seeds", "²"], "cli.not-a-seed"),
    "negative seeds": ([*COMPARE, "fedavg", "--seeds", "-1"], "cli.not-a-seed"),
    "no seeds": ([*COMPARE, "fedavg", "--seeds", ","], "cli.empty-list"),
    "a seed for a comparison": ([*COMPARE, "fedavg", "--set", "seed=5"], "compare.seed-setting"),
    "no methods": ([*COMPARE, ""], "cli.empty-list"),
    "misspelled bound": ([*COMPARE, "all-lables"], "names.unknown-method"),
    "compare without config": (["compare", "nowhere.toml", "--methods", "fedavg"], "config.no-file"),
    "json and quiet": (["run", "images.npz.toml", "--json", "--quiet"], "cli.json-and-quiet"),
    "json and quiet again": (["resume", "full", "--json", "--quiet"], "cli.json-and-quiet"),
    "format without plots": (["report", "full", "--format", "png"], "cli.format-without-plots"),
}


# The errors of other rooms, whose own tests check the code.
ELSEWHERE = {
    "no labels": ["run", "--labels", "client"],
    "a site without settings": ["site", "check"],
    "missing data file": ["run", "--data", "none.npz", "--per-class", "1"],
    "broken data file": ["run", "--data", "broken.npz", "--per-class", "1"],
    "report of a missing folder": ["report", "nowhere"],
    "report of another folder": ["report", "full"],
}


@pytest.fixture
def messy(shell: Shell) -> Shell:
    """A shell in a folder with broken files."""
    (shell.folder / "full").mkdir()
    (shell.folder / "full" / "other.txt").write_text("something")
    (shell.folder / "broken.toml").write_text("rounds = = 3")
    (shell.folder / "odd.toml").write_text("roundss = 3")
    (shell.folder / "broken.npz").write_bytes(b"PK\x03\x04 and so on")
    return shell


@pytest.mark.parametrize("mistake", [*MISTAKES, *ELSEWHERE])
def test_a_mistake_is_one_line_and_exit_code_2_and_writes_nothing(messy: Shell, mistake: str) -> None:
    words = ELSEWHERE[mistake] if mistake in ELSEWHERE else MISTAKES[mistake][0]
    before = sorted(messy.folder.rglob("*"))
    said = messy(*words)
    assert said.code == 2
    assert said.out == ""
    assert said.err.startswith("tacit: ")
    assert said.err.count("\n") == 1
    assert "Traceback" not in said.err
    assert sorted(messy.folder.rglob("*")) == before, "something was written"


@pytest.mark.parametrize("mistake", [name for name, (_, code) in MISTAKES.items() if code])
def test_a_mistake_has_a_code(messy: Shell, mistake: str) -> None:
    words, code = MISTAKES[mistake]
    assert code_of(*words) == code


@pytest.mark.parametrize(
    "words, hint",
    [
        (["bnch"], "'bench'"),
        (["run", "--round", "3"], "--round"),
        (["run", "--rouds", "3"], "--rounds"),
        (["resume"], "folder"),
        (["run", "--rounds", "many"], "--rounds"),
    ],
)
def test_a_wrong_command_line_is_answered_with_the_closest_words(shell: Shell, words: list[str], hint: str) -> None:
    assert hint in shell(*words).err.lower()  # versions of typer differ in capitals


def test_a_run_that_cannot_continue_names_the_command_that_resumes_it(shell: Shell) -> None:
    said = shell("run", "images.npz.toml", "--set", "faults.crash=1.0", "--out", "mine")
    assert said.code == 2
    assert said.err.count("\n") == 1
    assert "0 of 4" in said.err
    assert "resume with `tacit resume mine`" in said.err


def test_ctrl_c_ends_with_130_and_prints_how_to_continue(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("tacit.runs.followers.progress.run", interrupt)
        said = shell("run", "images.npz.toml", "--out", "mine")
    assert said.code == 130
    assert said.err == "stopped after round 0 of 2; continue with: tacit resume mine\n"
    with monkeypatch.context() as patch:
        patch.setattr("tacit.runs.followers.progress.run", interrupt)
        assert shell("run", "images.npz.toml", "--out", "my run").err.endswith("tacit resume 'my run'\n")
    assert len(tacit.resume(shell.folder / "mine").history) == 2


def test_a_run_whose_config_was_changed_is_not_resumed(shell: Shell) -> None:
    shell.run("--quiet", "--out", "mine")
    config = shell.folder / "mine/config.toml"
    text = config.read_text()
    config.write_text(text.replace("workers = 0", "workers = 1"))
    assert shell("resume", "mine", "--quiet").code == 0, "the engine does not change the model"
    for old, new in (("rounds = 2", "rounds = 4"), ("lr = 0.01", "lr = 0.05"), ("seed = 0", "seed = 1")):
        assert old in text
        config.write_text(text.replace(old, new, 1))
        assert code_of("resume", "mine", "--quiet") == "run.config-changed"


def test_a_file_that_is_not_a_report_is_not_overwritten(shell: Shell) -> None:
    shell.run("--quiet", "--out", "mine")
    for words, place in ((["mine"], shell.folder / "mine"), (["mine", "mine"], shell.folder)):
        (place / "report.html").write_text("precious")
        assert shell("report", *words).code == 2
        assert (place / "report.html").read_text() == "precious"
    for _ in range(2):  # a report may be
        assert shell("report", "mine", "--out", "ours.html").code == 0


def test_an_error_of_the_operating_system_is_one_sentence(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """For any file, wherever it is opened."""

    def refused(*_: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), "/some/file")

    monkeypatch.setattr(registry, "listing", refused)
    said = shell("ls")
    assert said.code == 2
    assert said.err == "tacit: cannot use /some/file: Permission denied; correct this and try again\n"


def test_a_folder_in_place_of_the_log_is_refused(shell: Shell) -> None:
    shell.run("--quiet", "--out", "mine")
    (shell.folder / "mine/rounds.jsonl").rename(shell.folder / "mine/rounds")
    (shell.folder / "mine/rounds.jsonl").mkdir()
    said = shell("resume", "mine", "--quiet")
    assert said.code == 2
    assert "then resume with `tacit resume mine`" in said.err
    assert code_of("resume", "mine", "--quiet") == "storage.cannot-write"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("words", [("ls", "nets"), ("--version",)], ids=" ".join)
def test_output_to_a_full_disk_is_one_sentence(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        monkeypatch.setattr(sys, "stdout", full)
        said = shell(*words)
        full.flush()  # as Python does at exit
    assert said.code == 2
    assert said.err == "tacit: cannot continue: No space left on device; correct this and try again\n"


@pytest.mark.parametrize("words", [("ls", "nets"), ("--version",)], ids=" ".join)
def test_output_to_a_closed_pipe_ends_silently(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    with os.fdopen(theirs, "w", encoding="utf-8") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        said = shell(*words)
    assert (said.code, said.err) == (1, "")
