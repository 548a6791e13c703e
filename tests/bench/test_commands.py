"""`tacit bench` as a person types it."""

import json
from pathlib import Path
from unittest.mock import Mock

import pytest

from tacit.bench import files, keep
from tacit.report.read import load
from tests.bench import small
from tests.test_cli import Shell, fits


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Shell:
    small.write(tmp_path)
    return Shell(monkeypatch, capsys, tmp_path)


@pytest.mark.parametrize("command", ["", "ls", "run", "show", "table", "keep", "docs"])
def test_every_command_explains_itself(shell: Shell, command: str) -> None:
    said = shell("bench", *command.split(), "--help")
    assert said.code == 0
    assert "Usage" in said.out
    assert fits(said.out)


def test_from_the_file_to_the_page(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "folder", lambda: shell.folder)
    listed = shell("bench", "ls")
    assert (listed.code, listed.err) == (0, "")
    assert listed.lines[1].split() == ["small-table", "A", "small", "table", "3", "–"]

    ran = shell("bench", "run", "small_table", "--seeds", "0,1", "--column", "iid")
    assert (ran.code, ran.err) == (0, "")
    assert "6/6 cells" in ran.out
    assert "mean ± std over 2 seeds" in ran.out
    assert "Two classes" not in ran.out
    assert ran.lines[-1] == "report: runs/bench/small-table/report.html"
    assert "Two classes" in (shell.folder / "runs/bench/small-table/report.html").read_text()
    (shell.folder / "runs/bench/small-table/report.html").unlink()
    assert (shell.folder / "runs/bench/small-table/iid/labels-only/seed-1/model.safetensors").exists()

    shown = shell("bench", "show", "small-table")
    assert shown.code == 0
    assert "Two classes" in shown.out
    assert fits(shown.out)
    assert "rounds to" not in shown.out
    assert (shell.folder / "runs/bench/small-table/report.html").exists()
    reached = shell("bench", "show", "small-table", "--reach", "0.5")
    assert (reached.code, fits(reached.out)) == (0, True)
    assert "rounds to" in reached.out
    assert "0.5 %" in reached.out
    assert shell("bench", "show", "small-table", "--reach", "101").code == 2
    assert shell("report", "runs/bench/small-table").code == 0
    assert "tacit bench run small-table --seeds 0,1" in (shell.folder / "report.html").read_text()
    again = shell("bench", "run", "small-table", "--seeds", "0,1", "--column", "iid", "--quiet")
    assert again.out in ran.out

    kept = shell("bench", "keep", "small-table")
    assert kept.out == f"3 of 5 cells kept: {shell.folder / 'results/small-table.json'}\n"
    assert len(json.loads((shell.folder / "results/small-table.json").read_text())["cells"]["iid"]) == 3
    assert shell("bench", "ls").lines[1].split()[-2:] == ["3", "2"]  # a bound is kept too, and in no file
    markdown = shell("bench", "table", "small-table", "--format", "markdown")
    elsewhere = shell("bench", "table", "small-table", "--format", "markdown", "--out", "nowhere")
    assert markdown.out == elsewhere.out, "kept results stand in for runs"

    (shell.folder / "page.md").write_text("<!-- bench: small-table -->\n<!-- end bench -->\n")
    assert shell("bench", "docs", "page.md").out == "changed: page.md\n"
    assert markdown.out in (shell.folder / "page.md").read_text()


def test_runs_and_kept_results_are_read_once_for_the_table_and_its_page(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    small.pretend(small.planned(shell.folder / "small_table.toml", Path("runs/bench"))[0], [0.5] * 3)
    runs, kept = Mock(wraps=load), Mock(wraps=keep.read)
    monkeypatch.setattr(keep, "load", runs)
    monkeypatch.setattr(keep, "read", kept)
    assert shell("bench", "show", "small_table.toml").code == 0
    assert (runs.call_count, kept.call_count) == (1, 1)


def test_report_of_a_table_without_runs_says_what_to_do(shell: Shell) -> None:
    (shell.folder / "runs/bench/small-table/iid").mkdir(parents=True)
    (shell.folder / "runs/bench/small-table/report.html").write_text("of kept results")
    said = shell("report", "runs/bench/small-table")
    make = "`tacit run`, `tacit compare` or `tacit bench run`"
    none = f"runs/bench/small-table holds no run: give a folder that has some, or make one first with {make}"
    assert (said.code, said.out, said.err) == (2, "", f"tacit: {none}\n")
    small.pretend(small.planned(shell.folder / "small_table.toml", Path("runs/bench"))[0], [0.5])
    said = shell("report", "runs/bench")
    one = "runs/bench holds the runs of benchmarks: give the folder of one, such as runs/bench/small-table"
    assert (said.code, said.out, said.err) == (2, "", f"tacit: {one}\n")
    assert shell("report", "runs/bench/small-table").code == 0


def test_quick_rows_and_settings(shell: Shell) -> None:
    words = ("bench", "run", "small_table.toml", "--quick", "--only", "fedavg", "--only", "labels-only")
    said = shell(*words, "--column", "iid", "--set", "train.lr=0.25", "--out", "here", "--workers", "1")
    assert (said.code, said.err) == (0, "")
    assert "2/2 cells" in said.out
    assert "quick: not the paper's scale" in said.out
    config = (shell.folder / "here/small-table-quick/iid/fedavg/seed-0/config.toml").read_text()
    assert "lr = 0.25" in config
    assert "rounds = 1" in config
    assert "workers = 1" in config
    for form in ("csv", "latex"):
        table = ("bench", "table", "small_table.toml", "--quick", "--set", "train.lr=0.25", "--out", "here")
        printed = shell(*table, "--format", form)
        assert printed.code == 0
        assert "95.13" in printed.out


@pytest.mark.parametrize(
    "words, said",
    [
        (
            ["run", "nothing"],
            "tacit: unknown benchmark 'nothing': choose one of `tacit bench ls`, or give the path of a TOML file\n",
        ),
        (["run", "nothing.toml"], "there is no file nothing.toml"),
        (["run", "small_table.toml", "--only", "fedavk"], "unknown row 'fedavk': did you mean 'fedavg'?"),
        (["run", "small_table.toml", "--seeds", "a"], "'a' is not a seed"),
        (["run", "small_table.toml", "--seeds", ","], "--seeds is empty"),
        (["run", "small_table.toml", "--side-by-side", "5000"], "5000 cells can not run side by side"),
        (["run", "small_table.toml", "--side-by-side", "2", "--workers", "2"], "leave out --workers or --side-by-side"),
        (["run", "small_table.toml", "--set", "train.lt=1"], "row fedavg, column iid: unknown setting in train 'lt'"),
        (["table", "small_table.toml", "--format", "html"], "'html'"),
        (["keep", "small_table.toml"], "no cell of small-table is finished"),
        (["docs", "nowhere"], "there is no page nowhere"),
    ],
)
def test_a_mistake_is_one_sentence_and_runs_nothing(shell: Shell, words: list[str], said: str) -> None:
    failed = shell("bench", *words)
    assert failed.code == 2
    assert said in failed.err
    assert failed.err.count("\n") == 1
    assert not (shell.folder / "runs").exists()


def test_a_cell_that_fails_is_named_below_the_table(shell: Shell) -> None:
    small.changed(shell.folder, 'partition = "classes:2"', "clients = 5000")
    failed = shell("bench", "run", "small_table.toml", "--only", "fedavg", "--quick")
    assert failed.code == 2
    assert "FedAvg" in failed.out
    assert failed.err.startswith("tacit: 1 of 2 cells failed: FedAvg, Two classes, seed 0: 5000 clients can not share")
