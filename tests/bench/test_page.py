"""The HTML page about a benchmark."""

import re
from pathlib import Path

import pytest

from tacit.bench import page, plan, results, spec
from tacit.report.plots import COLORS
from tests.bench import small
from tests.report.test_page import Outline, keys, summary, without_roles


def written(path: Path, out: Path, quick: bool = False) -> str:
    """The page about a file's table with its present runs."""
    benchmark = spec.read(path)
    cells = plan.cells(benchmark, quick)
    folder = plan.run_folder(out, benchmark, quick)
    found = results.collect(benchmark, quick, cells, folder)
    place = page.write(benchmark, quick, cells, found, folder, ["train.lr=0.5"] if quick else [])
    assert place is not None
    return place.read_text(encoding="utf-8")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return small.write(tmp_path)


def test_the_page_shows_the_table_with_the_papers_numbers(path: Path, tmp_path: Path) -> None:
    for run in small.planned(path, tmp_path / "out")[:2]:  # FedAvg and FixMatch, IID
        small.pretend(run, [0.9, 0.9, 0.9])
    text = written(path, tmp_path / "out")
    outline = Outline(text)
    assert (outline.open, outline.wrong) == ([], [])
    assert "<h1>A small table</h1>" in text
    assert "<p>Three bright bands.</p>" in text
    # 90 - 95.13 and 90 - 97.5
    assert summary(text) == (
        "2 of 5 cells are done. Ours differ from the 2 published numbers by −6.3 points on average (−7.5 to −5.1)."
    )
    row = "<th scope='row'>FixMatch</th><td>1</td><td>90.0</td><td>90.0</td><td>97.50¹,²</td><td>−7.5</td>"
    assert row in without_roles(text)
    assert "² its helpers too" in text
    assert "<li>not run yet: Two classes</li>" in text
    assert "40.00" not in text, "this column has not been run"
    heads = re.findall("<h2 .*?>(.*?)</h2>", text)
    assert heads == ["Results", "Costs of one run", "Accuracy", "Data per client", "Configuration", "Reproduce"]
    assert f"<code>tacit bench run {path}</code>" in text
    assert (tmp_path / "out/small-table/command.txt").read_text() == f"tacit bench run {path}\n"


def test_colors_follow_the_order_of_rows_in_the_file(path: Path, tmp_path: Path) -> None:
    reached = {"fedavg": 0.5, "fixmatch": 0.9, "labels-only": 0.6}
    for run in small.planned(path, tmp_path / "out"):
        if run.cell.place != ("iid", "fedavg"):  # the first row has a result in the second column only
            small.pretend(run, [reached[run.cell.row.name]] * 3)
    fedavg, fixmatch, labels_only = (color.lower() for color in COLORS[:3])
    iid, classes = keys(written(path, tmp_path / "out"))
    assert iid == {fixmatch: "FixMatch", labels_only: "Labels only"}
    assert classes == {labels_only: "Labels only", fedavg: "FedAvg"}


def test_a_reduced_scale_has_a_warning(path: Path, tmp_path: Path) -> None:
    benchmark = spec.read(path)
    for run in small.planned(path, tmp_path / "out", quick=True)[:1]:
        small.pretend(run, [0.9])
    text = written(path, tmp_path / "out", quick=True)
    assert "<p class='warning'>Reduced scale (rounds = 1): not comparable with the paper&#x27;s numbers.</p>" in text
    assert summary(text) == "1 of 5 cells are done."
    assert f"tacit bench run {benchmark.path} --quick --set train.lr=0.5" in text


def test_stored_results_are_in_the_table_without_a_run(path: Path, tmp_path: Path) -> None:
    benchmark = spec.read(path)
    cells = plan.cells(benchmark)
    for run in small.planned(path, tmp_path / "out", seeds=(0, 1))[:2]:
        small.pretend(run, [0.9, 0.9, 0.9])
    folder = plan.run_folder(tmp_path / "out", benchmark, False)
    results.save_runs(benchmark, False, cells, results.from_runs(cells, folder), "0")
    text = written(path, tmp_path / "elsewhere")
    assert "<th scope='row'>FedAvg</th><td>2</td><td>90.0 ± 0.0</td>" in without_roles(text)
    assert "are stored results" in text
    assert "Accuracy</h2>" not in text
    assert "--seeds 0,1" in text
    assert not (tmp_path / "elsewhere/small-table/command.txt").exists()


def test_a_table_without_results_has_no_page(path: Path, tmp_path: Path) -> None:
    benchmark = spec.read(path)
    assert page.write(benchmark, False, plan.cells(benchmark), results.Results({}, {}), tmp_path / "out", []) is None
    assert not (tmp_path / "out").exists()
