"""`tacit bench` as a user types it."""

import json
from pathlib import Path
from unittest.mock import Mock

import pytest

from tacit import errors
from tacit.bench import results, spec
from tacit.report.history import load
from tests.bench import small
from tests.cli.shell import Shell, fits


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Shell:
    small.write(tmp_path)
    return Shell(monkeypatch, capsys, tmp_path)


@pytest.mark.parametrize("command", ["", "ls", "run", "show", "table", "save", "docs"])
def test_every_command_has_help_that_fits_80_columns(shell: Shell, command: str) -> None:
    printed = shell("bench", *command.split(), "--help")
    assert printed.code == 0
    assert "Usage" in printed.out
    assert fits(printed.out)


def test_a_benchmark_from_its_file_to_the_docs_page(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spec, "folder", lambda: shell.folder)
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
    reached = shell("bench", "show", "small-table", "--rounds-to", "0.5")
    assert (reached.code, fits(reached.out)) == (0, True)
    assert "rounds to" in reached.out
    assert "0.5 %" in reached.out
    assert shell("bench", "show", "small-table", "--rounds-to", "101").code == 2
    assert shell("report", "runs/bench/small-table").code == 0
    assert "tacit bench run small-table --seeds 0,1" in (shell.folder / "report.html").read_text()
    again = shell("bench", "run", "small-table", "--seeds", "0,1", "--column", "iid", "--quiet")
    assert again.out in ran.out

    saved = shell("bench", "save", "small-table")
    assert saved.out == f"3 of 5 cells saved: {shell.folder / 'results/small-table.json'}\n"
    assert len(json.loads((shell.folder / "results/small-table.json").read_text())["cells"]["iid"]) == 3
    assert shell("bench", "ls").lines[1].split()[-2:] == [
        "3",
        "2",
    ]  # the stored bound does not count, since it is not in the file
    markdown = shell("bench", "table", "small-table", "--format", "markdown")
    elsewhere = shell("bench", "table", "small-table", "--format", "markdown", "--out", "nowhere")
    assert markdown.out == elsewhere.out, "stored results replace runs"

    (shell.folder / "page.md").write_text("<!-- bench: small-table -->\n<!-- end bench -->\n")
    assert shell("bench", "docs", "page.md").out == "changed: page.md\n"
    assert markdown.out in (shell.folder / "page.md").read_text()


def test_runs_and_stored_results_are_read_once_for_the_table_and_its_page(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    small.pretend(small.planned(shell.folder / "small_table.toml", Path("runs/bench"))[0], [0.5] * 3)
    runs, stored = Mock(wraps=load), Mock(wraps=results.read)
    monkeypatch.setattr(results, "load", runs)
    monkeypatch.setattr(results, "read", stored)
    assert shell("bench", "show", "small_table.toml").code == 0
    assert (runs.call_count, stored.call_count) == (1, 1)


def test_old_spellings_work_with_a_notice(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    errors.notice_renamed.cache_clear()
    small.pretend(small.planned(shell.folder / "small_table.toml", Path("runs/bench"))[0], [0.5] * 3)
    quick = ("--quick", "--only", "fedavg", "--column", "iid")
    ran = shell("bench", "run", "small_table.toml", *quick, "--side-by-side", "1", "--quiet")
    assert (ran.code, ran.err) == (0, "tacit: --side-by-side is now --jobs\n")
    shown = shell("bench", "show", "small_table.toml", "--reach", "50")
    assert (shown.code, shown.err) == (0, "tacit: --reach is now --rounds-to\n")
    assert shown.out == shell("bench", "show", "small_table.toml", "--rounds-to", "50").out
    saved = shell("bench", "keep", "small_table.toml")
    assert (saved.code, saved.err) == (0, "tacit: tacit bench keep is now tacit bench save\n")
    assert (shell.folder / "results/small-table.json").exists()
    for command, old in (("run", "--side-by-side"), ("show", "--reach"), ("", "keep")):
        assert old not in shell("bench", *command.split(), "--help").out


def test_a_report_of_a_folder_without_runs_is_refused(shell: Shell) -> None:
    (shell.folder / "runs/bench/small-table/iid").mkdir(parents=True)
    (shell.folder / "runs/bench/small-table/report.html").write_text("of stored results")
    failed = shell("report", "runs/bench/small-table")
    assert (failed.code, failed.out) == (2, "")
    assert failed.err.startswith("tacit: runs/bench/small-table holds no run; ")
    small.pretend(small.planned(shell.folder / "small_table.toml", Path("runs/bench"))[0], [0.5])
    failed = shell("report", "runs/bench")
    assert (failed.code, failed.out) == (2, "")
    assert failed.err.endswith("such as runs/bench/small-table\n")
    assert shell("report", "runs/bench/small-table").code == 0


def test_options_choose_scale_rows_columns_and_settings(shell: Shell) -> None:
    words = ("bench", "run", "small_table.toml", "--quick", "--only", "fedavg", "--only", "labels-only")
    printed = shell(*words, "--column", "iid", "--set", "train.lr=0.25", "--out", "here", "--workers", "1")
    assert (printed.code, printed.err) == (0, "")
    assert "2/2 cells" in printed.out
    assert "quick: not the paper's scale" in printed.out
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
    "words, shown",
    [
        (["run", "nothing"], "unknown benchmark 'nothing'"),
        (["run", "nothing.toml"], "nothing.toml"),
        (["run", "small_table.toml", "--only", "fedavk"], "unknown row 'fedavk'; did you mean 'fedavg'?"),
        (["run", "small_table.toml", "--seeds", "a"], "'a'"),
        (["run", "small_table.toml", "--seeds", ","], "--seeds"),
        (["run", "small_table.toml", "--jobs", "5000"], "cannot run 5000 cells at once"),
        (["run", "small_table.toml", "--jobs", "2", "--workers", "2"], "leave out --workers or --jobs"),
        (["run", "small_table.toml", "--set", "train.lt=1"], "row fedavg, column iid: "),
        (["table", "small_table.toml", "--format", "html"], "'html'"),
        (["save", "small_table.toml"], "no cell of small-table is finished"),
        (["docs", "nowhere"], "there is no page nowhere"),
    ],
)
def test_a_mistake_prints_one_sentence_and_runs_nothing(shell: Shell, words: list[str], shown: str) -> None:
    failed = shell("bench", *words)
    assert failed.code == 2
    assert shown in failed.err
    assert failed.err.count("\n") == 1
    assert not (shell.folder / "runs").exists()


def test_a_cell_that_fails_is_named_below_the_table(shell: Shell) -> None:
    small.changed(shell.folder, 'partition = "classes:2"', "clients = 5000")
    failed = shell("bench", "run", "small_table.toml", "--only", "fedavg", "--quick")
    assert failed.code == 2
    assert "FedAvg" in failed.out
    assert failed.err.startswith("tacit: 1 of 2 cells failed: FedAvg, Two classes, seed 0: 5000 clients ")
