"""Kept results: what is in the file, what is merged with what, and that the pages of the docs say what it says."""

import json
from pathlib import Path
from typing import Any

import pytest

from tacit.bench import cells, docs, files, keep
from tacit.errors import TacitError
from tests.bench import small

ROOT = Path(__file__).parents[2]
KEPT = sorted(path for path in (ROOT / "benchmarks/results").glob("*.json") if path.stem != "ratios")  # of speed


def kept(path: Path, out: Path, quick: bool = False) -> dict[str, Any]:
    """Keep what is done, and read it again."""
    benchmark = files.read(path)
    found = cells.spots(benchmark, quick)
    runs = keep.of_runs(found, cells.home(out, benchmark, quick))
    return keep.read(keep.write(benchmark, quick, found, runs, "1.2.3"))


def test_what_is_kept(tmp_path: Path) -> None:
    path = small.write(tmp_path)
    planned = small.planned(path, tmp_path, [0, 10, 2])
    for cell, accuracies in zip(planned, ([0.5, 0.6, 0.71234567], [0.1] * 3, [0.2] * 3), strict=False):
        small.pretend(cell, accuracies)
    result = kept(path, tmp_path)
    assert list(result) == ["benchmark", "quick", "date", "tacit", "torch", "python", "machine", "settings", "cells"]
    assert (result["benchmark"], result["quick"], result["tacit"]) == ("small-table", False, "1.2.3")
    assert result["machine"]["cores"] >= 1
    assert list(result["cells"]) == ["iid"]
    cell = result["cells"]["iid"]["fedavg"]
    assert (cell["config_hash"], cell["method_version"]) == (planned[0].spot.hash, planned[0].spot.version)
    assert cell["settings"] == cells.settings(planned[0].config)
    assert list(cell["seeds"]) == ["0", "2", "10"]
    assert cell["seeds"]["0"] == {
        "last5": 0.604115,
        "best": 0.712346,
        "rounds": 3,
        "steps": 30,
        "bytes_up": 1500,
        "bytes_down": 3000,
        "seconds": 6.0,
        "curve": [[1, 0.5], [2, 0.6], [3, 0.7123]],
    }


def test_the_file_is_the_same_when_nothing_changes_and_has_a_line_per_seed(tmp_path: Path) -> None:
    path = small.write(tmp_path)
    for cell in small.planned(path, tmp_path, [0, 1]):
        small.pretend(cell, [0.5] * 3)
    kept(path, tmp_path)
    file = tmp_path / "results/small-table.json"
    text = file.read_text()
    kept(path, tmp_path)
    assert file.read_text() == text
    assert sum('"last5"' in line for line in text.splitlines()) == 10


def test_unfinished_runs_and_those_of_other_configs_are_not_kept(tmp_path: Path) -> None:
    path = small.write(tmp_path)
    first, second, third = small.planned(path, tmp_path)[:3]
    small.pretend(first, [0.5] * 2)
    small.pretend(small.planned(path, tmp_path, extra={"train.lr": 0.5})[1], [0.5] * 3)
    with pytest.raises(TacitError, match="no cell of small-table is finished: run it first"):
        kept(path, tmp_path)
    assert not (tmp_path / "results").exists()
    small.pretend(third, [0.5] * 3)
    assert list(kept(path, tmp_path)["cells"]["iid"]) == ["labels-only"]
    assert second.folder.exists()


def test_what_was_kept_stays_unless_its_cell_is_measured_anew(tmp_path: Path) -> None:
    path = small.write(tmp_path)
    one, other = small.planned(path, tmp_path / "a")[0], small.planned(path, tmp_path / "a")[1]
    small.pretend(one, [0.5] * 3)
    small.pretend(other, [0.6] * 3)
    kept(path, tmp_path / "a")
    small.pretend(small.planned(path, tmp_path / "b", [1])[0], [0.7] * 3)
    result = kept(path, tmp_path / "b")["cells"]["iid"]
    assert {seed: values["last5"] for seed, values in result["fedavg"]["seeds"].items()} == {"0": 0.5, "1": 0.7}
    assert result["fixmatch"]["seeds"]["0"]["last5"] == 0.6
    path = small.changed(tmp_path, 'objective.view = "plain"', 'objective.view = "strong"')
    small.pretend(small.planned(path, tmp_path / "c", [3])[0], [0.8] * 3)
    result = kept(path, tmp_path / "c")["cells"]["iid"]
    assert {seed: values["last5"] for seed, values in result["fedavg"]["seeds"].items()} == {"3": 0.8}
    assert "fixmatch" in result


def test_kept_numbers_are_those_of_the_runs(tmp_path: Path) -> None:
    path = small.write(tmp_path)
    for cell in small.planned(path, tmp_path, [0, 1])[:4]:
        small.pretend(cell, [0.25, 0.5, 0.75])
    found = cells.spots(files.read(path))
    runs = keep.of_runs(found, tmp_path / "small-table")
    result = kept(path, tmp_path)
    assert keep.of_kept(found, result) == runs
    benchmark = files.read(path)
    assert keep.results(benchmark, False, found) == keep.Results({}, runs)
    there = keep.results(benchmark, False, found, tmp_path / "small-table")
    assert (there.measured, there.runs.keys()) == (runs, runs.keys())


def test_a_run_comes_before_what_is_kept_of_its_cell(tmp_path: Path) -> None:
    path = small.write(tmp_path)
    for cell in small.planned(path, tmp_path / "then")[:2]:
        small.pretend(cell, [0.5] * 3)
    kept(path, tmp_path / "then")
    small.pretend(small.planned(path, tmp_path / "now")[0], [0.75] * 3)
    benchmark = files.read(path)
    results = keep.results(benchmark, False, cells.spots(benchmark), tmp_path / "now/small-table")
    assert list(results.runs) == [("iid", "fedavg")]
    shown = cells.spots(benchmark)
    assert results.kept(shown) == "1 of these 2 cells is a kept result, not run in this folder, and so is their time"
    assert results.kept(shown[:1]) == ""
    assert keep.results(benchmark, False, shown).kept(shown) == ""  # nothing was run here
    assert {row: seeds[0].last5 for (_, row), seeds in results.measured.items()} == {"fedavg": 0.75, "fixmatch": 0.5}


def test_kept_numbers_of_another_config_are_not_shown(tmp_path: Path) -> None:
    path = small.write(tmp_path)
    small.pretend(small.planned(path, tmp_path)[0], [0.5] * 3)
    result = kept(path, tmp_path)
    benchmark = files.read(path)
    assert keep.of_kept(cells.spots(benchmark, False, {"train.lr": 0.5}), result) == {}


def test_kept_numbers_of_another_default_are_not_shown(tmp_path: Path) -> None:
    path = small.write(tmp_path)
    for cell in small.planned(path, tmp_path)[:2]:
        small.pretend(cell, [0.5] * 3)
    kept(path, tmp_path)
    file = tmp_path / "results/small-table.json"
    fedavg, fixmatch = found = cells.spots(files.read(path))[:2]
    assert list(keep.of_kept(found, keep.read(file))) == [fedavg.place, fixmatch.place]
    text = file.read_text()
    # What the code of then had as defaults: another threshold, no clip, no setting `train.lr`, one more setting.
    for old, new, left in (
        ('"method.objective.threshold": 0.95', '"method.objective.threshold": 0.9', [fedavg.place]),
        ('"train.clip": null', '"train.clip": 1.0', []),
        ('"train.lr": 0.01, ', "", [fedavg.place, fixmatch.place]),
        ('"train.lr": 0.01, ', '"train.lr": 0.01, "train.rate": 1, ', []),
    ):
        assert old in text
        file.write_text(text.replace(old, new))
        assert list(keep.of_kept(found, keep.read(file))) == left


def test_settings_that_all_cells_share_are_written_once(tmp_path: Path) -> None:
    path = small.write(tmp_path)
    for cell in small.planned(path, tmp_path):
        small.pretend(cell, [0.5] * 3)
    result = kept(path, tmp_path)
    written = json.loads((tmp_path / "results/small-table.json").read_text())
    assert written["settings"]["train.lr"] == 0.01
    assert written["cells"]["iid"]["fixmatch"]["settings"].keys() >= {"data.partition", "method.objective.threshold"}
    for column, rows in written["cells"].items():
        for row, cell in rows.items():
            assert not cell["settings"].keys() & written["settings"].keys()
            assert written["settings"] | cell["settings"] == result["cells"][column][row]["settings"]


def test_results_that_were_kept_without_their_settings_go_by_their_hash(tmp_path: Path) -> None:
    path = small.write(tmp_path)
    small.pretend(small.planned(path, tmp_path)[0], [0.5] * 3)
    kept(path, tmp_path)
    file = tmp_path / "results/small-table.json"
    written = json.loads(file.read_text())
    del written["settings"], written["cells"]["iid"]["fedavg"]["settings"]
    file.write_text(json.dumps(written))
    assert list(keep.of_kept(cells.spots(files.read(path)), keep.read(file))) == [("iid", "fedavg")]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"cells": {"iid": {"fedavg": {}}}}', "\xff"])
def test_a_damaged_file_is_one_sentence(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(TacitError, match="does not hold kept results"):
        keep.read(path)


def test_nothing_is_kept_inside_an_installed_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "site-packages/tacit"
    monkeypatch.setattr(files, "HERE", package / "bench/files.py")
    assert files.folder() == package / "_benchmarks"
    files.folder().mkdir(parents=True)
    path = small.write(files.folder())
    small.pretend(small.planned(path, tmp_path)[0], [0.5] * 3)
    with pytest.raises(TacitError, match=f"installed package, .*: copy {path} to a folder of your own, then keep that"):
        kept(path, tmp_path)
    assert not (files.folder() / "results").exists()
    copy = tmp_path / path.name
    copy.write_text(path.read_text())
    assert list(kept(copy, tmp_path)["cells"]) == ["iid"], "its runs are found, since it has the same name"


PAGE = "# Results\n\n<!-- bench: {name} -->\nold\n<!-- end bench -->\n\nThe end: `<!-- bench: x -->`.\n"


@pytest.fixture
def known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The small benchmark as the only one of the package."""
    path = small.write(tmp_path)
    monkeypatch.setattr(files, "folder", lambda: tmp_path)
    return path


def test_pages_are_filled_from_kept_results_alone(tmp_path: Path, known: Path) -> None:
    page = tmp_path / "docs/results.md"
    page.parent.mkdir()
    page.write_text(PAGE.format(name="small-table"))
    (cell, other) = small.planned(known, tmp_path)[:2]
    small.pretend(cell, [0.5] * 3)
    kept(known, tmp_path)
    small.pretend(other, [0.9] * 3)  # done and not kept
    assert docs.fill([page.parent]) == [page]
    text = page.read_text()
    assert "| FedAvg | 1 | 50.0 | 50.0 | 95.13¹ | −45.1 |" in text
    assert "90.0" not in text
    assert text.startswith("# Results\n\n<!-- bench: small-table -->\n**A small table**\n")
    assert text.endswith("² its helpers too\n<!-- end bench -->\n\nThe end: `<!-- bench: x -->`.\n")
    assert docs.fill([page]) == []


def test_the_reduced_scale_has_a_name_of_its_own(tmp_path: Path, known: Path) -> None:
    small.pretend(small.planned(known, tmp_path, quick=True)[0], [0.5])
    kept(known, tmp_path, quick=True)
    text = docs.filled(PAGE.format(name="small-table-quick"), Path("page.md"))
    assert "not the paper's scale" in text
    assert "| FedAvg | 1 | 50.0 |" in text


@pytest.mark.usefixtures("known")
def test_wrong_pages_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(TacitError, match="unknown benchmark 'smal-table': did you mean 'small-table'"):
        docs.filled(PAGE.format(name="smal-table"), Path("page.md"))
    with pytest.raises(TacitError, match="page.md begins a table that has no end"):
        docs.filled("<!-- bench: small-table -->\n", Path("page.md"))
    with pytest.raises(TacitError, match="there is no page"):
        docs.fill([tmp_path / "nowhere.md"])


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_every_cell_that_is_kept_names_its_settings(path: Path) -> None:
    for rows in keep.read(path)["cells"].values():
        for row, cell in rows.items():
            assert cell["settings"].keys() >= {"data.partition", "train.lr", "server_train.lr", "log.local"}, row
            assert any(name.startswith("method.") for name in cell["settings"]), row


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))], ids=lambda path: path.name
)
def test_the_tables_in_the_docs_are_what_the_kept_results_give(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert docs.filled(text, page) == text, "run `make tables`"
