"""The page about a benchmark."""

import re
from pathlib import Path

import pytest

from tacit.bench import cells, files, keep, page
from tacit.report.plots import COLORS
from tests.bench import small
from tests.report.test_page import Outline, keys, summary


def written(path: Path, out: Path, quick: bool = False) -> str:
    """The page about a file's table, as its runs are."""
    benchmark = files.read(path)
    found = cells.spots(benchmark, quick)
    folder = cells.home(out, benchmark, quick)
    results = keep.results(benchmark, quick, found, folder)
    place = page.write(benchmark, quick, found, results, folder, ["train.lr=0.5"] if quick else [])
    assert place is not None
    return place.read_text(encoding="utf-8")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return small.write(tmp_path)


def test_the_table_stands_beside_the_papers_numbers(path: Path, tmp_path: Path) -> None:
    for cell in small.planned(path, tmp_path / "out")[:2]:  # FedAvg and FixMatch, IID
        small.pretend(cell, [0.9, 0.9, 0.9])
    text = written(path, tmp_path / "out")
    outline = Outline(text)
    assert (outline.open, outline.wrong) == ([], [])
    assert "<h1>A small table</h1>" in text
    assert "<p>Three bright bands.</p>" in text
    # 90 - 95.13 and 90 - 97.5
    assert summary(text) == (
        "2 of 5 cells are done. Of the 2 published numbers there are for these, ours differ by −6.3 points on average, "
        "from −7.5 to −5.1."
    )
    row = "<th scope='row'>FixMatch</th><td>1</td><td>90.0</td><td>90.0</td><td>97.50¹,²</td><td>−7.5</td>"
    assert row in text
    assert "² its helpers too" in text
    assert "<li>not run yet: Two classes</li>" in text
    assert "40.00" not in text, "of a column that is not run yet"
    heads = re.findall("<h2 .*?>(.*?)</h2>", text)
    assert heads == ["Results", "Costs of one run", "Accuracy", "Who holds what", "Configuration", "Run it again"]
    assert f"<code>tacit bench run {path}</code>" in text
    assert (tmp_path / "out/small-table/command.txt").read_text() == f"tacit bench run {path}\n"


def test_colours_go_by_the_order_of_the_files_rows(path: Path, tmp_path: Path) -> None:
    reached = {"fedavg": 0.5, "fixmatch": 0.9, "labels-only": 0.6}
    for cell in small.planned(path, tmp_path / "out"):
        if cell.spot.place != ("iid", "fedavg"):  # the first row, of which only the second column is done
            small.pretend(cell, [reached[cell.spot.row.name]] * 3)
    fedavg, fixmatch, labels_only = (color.lower() for color in COLORS[:3])
    iid, classes = keys(written(path, tmp_path / "out"))
    assert iid == {fixmatch: "FixMatch", labels_only: "Labels only"}
    assert classes == {labels_only: "Labels only", fedavg: "FedAvg"}


def test_a_reduced_scale_is_called_one(path: Path, tmp_path: Path) -> None:
    benchmark = files.read(path)
    for cell in small.planned(path, tmp_path / "out", quick=True)[:1]:
        small.pretend(cell, [0.9])
    text = written(path, tmp_path / "out", quick=True)
    assert "<p class='warning'>Reduced scale (rounds = 1): not comparable with the paper&#x27;s numbers.</p>" in text
    assert summary(text) == "1 of 5 cells are done."
    assert f"tacit bench run {benchmark.path} --quick --set train.lr=0.5" in text


def test_kept_results_are_in_the_table_without_a_run(path: Path, tmp_path: Path) -> None:
    benchmark = files.read(path)
    found = cells.spots(benchmark)
    for cell in small.planned(path, tmp_path / "out", seeds=(0, 1))[:2]:
        small.pretend(cell, [0.9, 0.9, 0.9])
    folder = cells.home(tmp_path / "out", benchmark, False)
    keep.write(benchmark, False, found, keep.of_runs(found, folder), "0")
    text = written(path, tmp_path / "elsewhere")
    assert "<th scope='row'>FedAvg</th><td>2</td><td>90.0 ± 0.0</td>" in text
    assert "are kept results" in text
    assert "Accuracy</h2>" not in text
    assert "--seeds 0,1" in text
    assert not (tmp_path / "elsewhere/small-table/command.txt").exists()


def test_a_table_of_which_nothing_is_done_has_no_page(path: Path, tmp_path: Path) -> None:
    benchmark = files.read(path)
    assert page.write(benchmark, False, cells.spots(benchmark), keep.Results({}, {}), tmp_path / "out", []) is None
    assert not (tmp_path / "out").exists()
