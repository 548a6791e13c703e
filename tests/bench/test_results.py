"""Stored results: what is in the file, how it is merged, and that the tables in the docs match it."""

import json
from pathlib import Path
from typing import Any

import pytest

from tacit.bench import docs, identity, plan, results, spec
from tests.bench import small
from tests.refusals import refused
from tests.report.runs import record

ROOT = Path(__file__).parents[2]
OTHER = ("growth", "ratios", "views-cached")  # results of scripts
STORED = sorted(path for path in (ROOT / "benchmarks/results").glob("*.json") if path.stem not in OTHER)


def saved(path: Path, out: Path, quick: bool = False) -> dict[str, Any]:
    """Store the results of finished runs, and read them again."""
    benchmark = spec.read(path)
    cells = plan.cells(benchmark, quick)
    runs = results.from_runs(cells, plan.run_folder(out, benchmark, quick))
    return results.read(results.save_runs(benchmark, quick, cells, runs, "1.2.3"))


def test_the_contents_of_the_file(tmp_path: Path) -> None:
    path = small.write(tmp_path)
    planned = small.planned(path, tmp_path, [0, 10, 2])
    for run, accuracies in zip(planned, ([0.5, 0.6, 0.71234567], [0.1] * 3, [0.2] * 3), strict=False):
        small.pretend(run, accuracies)
    result = saved(path, tmp_path)
    assert list(result) == ["benchmark", "quick", "date", "tacit", "torch", "python", "machine", "settings", "cells"]
    assert (result["benchmark"], result["quick"], result["tacit"]) == ("small-table", False, "1.2.3")
    assert result["machine"]["cores"] >= 1
    assert list(result["cells"]) == ["iid"]
    cell = result["cells"]["iid"]["fedavg"]
    assert (cell["config_hash"], cell["code"]) == (planned[0].cell.hash, planned[0].cell.code)
    assert cell["settings"] == identity.settings(planned[0].config)
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


def test_numbers_that_claims_are_about_are_stored_where_they_are_logged(tmp_path: Path) -> None:
    path = small.write(tmp_path)
    run, other = small.planned(path, tmp_path)[:2]
    for each in (run, other):
        small.pretend(each, [0.5] * 3)
    rounds = [record(0, 0.5), *(record(i, 0.5, server={"weight_diversity": i / 10}) for i in (1, 2))]
    (run.folder / "rounds.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rounds))
    cells = saved(path, tmp_path)["cells"]["iid"]
    assert cells["fedavg"]["seeds"]["0"]["logged"] == {"weight_diversity": 0.15}
    assert "logged" not in cells["fixmatch"]["seeds"]["0"]


def test_the_file_is_reproducible_and_has_a_line_per_seed(tmp_path: Path) -> None:
    path = small.write(tmp_path)
    for run in small.planned(path, tmp_path, [0, 1]):
        small.pretend(run, [0.5] * 3)
    saved(path, tmp_path)
    file = tmp_path / "results/small-table.json"
    text = file.read_text()
    saved(path, tmp_path)
    assert file.read_text() == text
    assert sum('"last5"' in line for line in text.splitlines()) == 10


def test_unfinished_runs_and_runs_of_other_configs_are_not_stored(tmp_path: Path) -> None:
    path = small.write(tmp_path)
    first, second, third = small.planned(path, tmp_path)[:3]
    small.pretend(first, [0.5] * 2)
    small.pretend(small.planned(path, tmp_path, extra={"train.lr": 0.5})[1], [0.5] * 3)
    with refused("bench.none-finished"):
        saved(path, tmp_path)
    assert not (tmp_path / "results").exists()
    small.pretend(third, [0.5] * 3)
    assert list(saved(path, tmp_path)["cells"]["iid"]) == ["labels-only"]
    assert second.folder.exists()


def test_stored_results_stay_until_their_cell_is_run_again(tmp_path: Path) -> None:
    path = small.write(tmp_path)
    one, other = small.planned(path, tmp_path / "a")[0], small.planned(path, tmp_path / "a")[1]
    small.pretend(one, [0.5] * 3)
    small.pretend(other, [0.6] * 3)
    saved(path, tmp_path / "a")
    small.pretend(small.planned(path, tmp_path / "b", [1])[0], [0.7] * 3)
    result = saved(path, tmp_path / "b")["cells"]["iid"]
    assert {seed: values["last5"] for seed, values in result["fedavg"]["seeds"].items()} == {"0": 0.5, "1": 0.7}
    assert result["fixmatch"]["seeds"]["0"]["last5"] == 0.6
    path = small.changed(tmp_path, 'objective.view = "plain"', 'objective.view = "strong"')
    small.pretend(small.planned(path, tmp_path / "c", [3])[0], [0.8] * 3)
    result = saved(path, tmp_path / "c")["cells"]["iid"]
    assert {seed: values["last5"] for seed, values in result["fedavg"]["seeds"].items()} == {"3": 0.8}
    assert "fixmatch" in result


def test_stored_results_equal_those_of_the_runs(tmp_path: Path) -> None:
    path = small.write(tmp_path)
    for run in small.planned(path, tmp_path, [0, 1])[:4]:
        small.pretend(run, [0.25, 0.5, 0.75])
    cells = plan.cells(spec.read(path))
    runs = results.from_runs(cells, tmp_path / "small-table")
    result = saved(path, tmp_path)
    assert results.from_stored(cells, result) == runs
    benchmark = spec.read(path)
    assert results.collect(benchmark, False, cells) == results.Results({}, runs)
    there = results.collect(benchmark, False, cells, tmp_path / "small-table")
    assert (there.measured, there.runs.keys()) == (runs, runs.keys())


def test_a_run_takes_precedence_over_the_stored_result_of_its_cell(tmp_path: Path) -> None:
    path = small.write(tmp_path)
    for run in small.planned(path, tmp_path / "then")[:2]:
        small.pretend(run, [0.5] * 3)
    saved(path, tmp_path / "then")
    small.pretend(small.planned(path, tmp_path / "now")[0], [0.75] * 3)
    benchmark = spec.read(path)
    there = results.collect(benchmark, False, plan.cells(benchmark), tmp_path / "now/small-table")
    assert list(there.runs) == [("iid", "fedavg")]
    shown = plan.cells(benchmark)
    note = "1 of these 2 cells is a stored result, not run in this folder; the times are stored too"
    assert there.stored_note(shown) == note
    assert there.stored_note(shown[:1]) == ""
    assert results.collect(benchmark, False, shown).stored_note(shown) == ""  # nothing was run here
    assert {row: seeds[0].last5 for (_, row), seeds in there.measured.items()} == {"fedavg": 0.75, "fixmatch": 0.5}


def test_stored_results_of_another_config_are_not_shown(tmp_path: Path) -> None:
    path = small.write(tmp_path)
    small.pretend(small.planned(path, tmp_path)[0], [0.5] * 3)
    result = saved(path, tmp_path)
    benchmark = spec.read(path)
    assert results.from_stored(plan.cells(benchmark, False, {"train.lr": 0.5}), result) == {}


def test_stored_results_of_another_default_are_not_shown(tmp_path: Path) -> None:
    path = small.write(tmp_path)
    for run in small.planned(path, tmp_path)[:2]:
        small.pretend(run, [0.5] * 3)
    saved(path, tmp_path)
    file = tmp_path / "results/small-table.json"
    fedavg, fixmatch = cells = plan.cells(spec.read(path))[:2]
    assert list(results.from_stored(cells, results.read(file))) == [fedavg.place, fixmatch.place]
    text = file.read_text()
    # Earlier defaults: another threshold, another clip, no setting `train.lr`, one more setting.
    for old, new, left in (
        ('"method.objective.threshold": 0.95', '"method.objective.threshold": 0.9', [fedavg.place]),
        ('"train.clip": null', '"train.clip": 1.0', []),
        ('"train.lr": 0.01, ', "", [fedavg.place, fixmatch.place]),
        ('"train.lr": 0.01, ', '"train.lr": 0.01, "train.rate": 1, ', []),
    ):
        assert old in text
        file.write_text(text.replace(old, new))
        assert list(results.from_stored(cells, results.read(file))) == left


def test_settings_that_all_cells_share_are_written_once(tmp_path: Path) -> None:
    path = small.write(tmp_path)
    for run in small.planned(path, tmp_path):
        small.pretend(run, [0.5] * 3)
    result = saved(path, tmp_path)
    written = json.loads((tmp_path / "results/small-table.json").read_text())
    assert written["settings"]["train.lr"] == 0.01
    assert written["cells"]["iid"]["fixmatch"]["settings"].keys() >= {"data.partition", "method.objective.threshold"}
    for column, rows in written["cells"].items():
        for row, cell in rows.items():
            assert not cell["settings"].keys() & written["settings"].keys()
            assert written["settings"] | cell["settings"] == result["cells"][column][row]["settings"]


def test_results_stored_without_settings_are_matched_by_hash_alone(tmp_path: Path) -> None:
    path = small.write(tmp_path)
    small.pretend(small.planned(path, tmp_path)[0], [0.5] * 3)
    saved(path, tmp_path)
    file = tmp_path / "results/small-table.json"
    written = json.loads(file.read_text())
    del written["settings"], written["cells"]["iid"]["fedavg"]["settings"]
    file.write_text(json.dumps(written))
    assert list(results.from_stored(plan.cells(spec.read(path)), results.read(file))) == [("iid", "fedavg")]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"cells": {"iid": {"fedavg": {}}}}', "\xff"])
def test_a_damaged_file_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text, encoding="latin-1")
    with refused("bench.broken-results"):
        results.read(path)


def test_nothing_is_stored_inside_an_installed_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "site-packages/tacit"
    monkeypatch.setattr(spec, "HERE", package / "bench/spec.py")
    assert spec.folder() == package / "_benchmarks"
    spec.folder().mkdir(parents=True)
    path = small.write(spec.folder())
    small.pretend(small.planned(path, tmp_path)[0], [0.5] * 3)
    with refused("bench.installed") as refusal:
        saved(path, tmp_path)
    assert str(path) in refusal.error.remedy
    assert not (spec.folder() / "results").exists()
    copy = tmp_path / path.name
    copy.write_text(path.read_text())
    assert list(saved(copy, tmp_path)["cells"]) == ["iid"], "the copy has the same name, so its runs are found"


PAGE = "# Results\n\n<!-- bench: {name} -->\nold\n<!-- end bench -->\n\nThe end: `<!-- bench: x -->`.\n"


@pytest.fixture
def known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The small benchmark as the only one of the package."""
    path = small.write(tmp_path)
    monkeypatch.setattr(spec, "folder", lambda: tmp_path)
    return path


def test_pages_are_filled_from_stored_results_only(tmp_path: Path, known: Path) -> None:
    page = tmp_path / "docs/results.md"
    page.parent.mkdir()
    page.write_text(PAGE.format(name="small-table"))
    run, other = small.planned(known, tmp_path)[:2]
    small.pretend(run, [0.5] * 3)
    saved(known, tmp_path)
    small.pretend(other, [0.9] * 3)  # finished, not stored
    assert docs.fill([page.parent]) == [page]
    text = page.read_text()
    assert "| FedAvg | 1 | 50.0 | 50.0 | 95.13¹ | −45.1 |" in text
    assert "90.0" not in text
    assert text.startswith("# Results\n\n<!-- bench: small-table -->\n**A small table**\n")
    assert text.endswith("² its helpers too\n<!-- end bench -->\n\nThe end: `<!-- bench: x -->`.\n")
    assert docs.fill([page]) == []


def test_a_page_can_show_the_reduced_scale(tmp_path: Path, known: Path) -> None:
    small.pretend(small.planned(known, tmp_path, quick=True)[0], [0.5])
    saved(known, tmp_path, quick=True)
    text = docs.filled(PAGE.format(name="small-table-quick"), Path("page.md"))
    assert "not the paper's scale" in text
    assert "| FedAvg | 1 | 50.0 |" in text


@pytest.mark.usefixtures("known")
def test_wrong_pages_are_refused(tmp_path: Path) -> None:
    with refused("names.unknown-benchmark"):
        docs.filled(PAGE.format(name="smal-table"), Path("page.md"))
    with refused("bench.open-table"):
        docs.filled("<!-- bench: small-table -->\n", Path("page.md"))
    with refused("bench.no-page"):
        docs.fill([tmp_path / "nowhere.md"])
    (tmp_path / "binary.md").write_bytes(b"\xff")
    with refused("bench.broken-page"):
        docs.fill([tmp_path / "binary.md"])


def test_what_was_read_is_saved_with_the_same_bytes(tmp_path: Path) -> None:
    path = small.write(tmp_path)
    for run in small.planned(path, tmp_path, [0, 1]):
        small.pretend(run, [0.5] * 3)
    stored = saved(path, tmp_path)
    results.save(tmp_path / "copy.json", stored)
    assert (tmp_path / "copy.json").read_bytes() == (tmp_path / "results/small-table.json").read_bytes()
    results.save(tmp_path / "empty.json", stored | {"cells": {}})
    assert results.read(tmp_path / "empty.json")["cells"] == {}


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.stem)
def test_every_stored_cell_has_its_settings(path: Path) -> None:
    for rows in results.read(path)["cells"].values():
        for row, cell in rows.items():
            assert cell["settings"].keys() >= {"data.partition", "train.lr", "server_train.lr", "log.local"}, row
            assert any(name.startswith("method.") for name in cell["settings"]), row


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))], ids=lambda path: path.name
)
def test_the_tables_in_the_docs_match_the_stored_results(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert docs.filled(text, page) == text, "run `make tables`"
