"""The table in its four formats, checked against runs made by hand."""

import csv
from collections.abc import Mapping, Sequence
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from tacit.bench import export, plan, results, spec, tables
from tests.bench import small

Given = Mapping[str, Sequence[float]]  # the accuracy of each seed by "column/row"; one number in all rounds


def table_of(folder: Path, given: Given, path: Path | None = None, quick: bool = False) -> tables.ResultTable:
    """The table with results for these cells only."""
    path, out = path or small.write(folder), folder / "runs"
    for run in small.planned(path, out, range(5), quick):
        seeds = given.get("/".join(run.cell.place), ())
        if run.seed < len(seeds):
            small.pretend(run, [seeds[run.seed]] * run.config.rounds)
    benchmark = spec.read(path)
    cells = plan.cells(benchmark, quick)
    return tables.build(benchmark, cells, results.from_runs(cells, plan.run_folder(out, benchmark, quick)), quick)


def shown(given: tables.ResultTable, width: int = 80) -> list[str]:
    out = StringIO()
    tables.show(given, Console(file=out, width=width, color_system=None))
    return [line.rstrip() for line in out.getvalue().splitlines()]


ONE = {"iid/fedavg": [0.95], "iid/fixmatch": [0.98], "iid/labels-only": [0.9]}
TWO = {"iid/fedavg": [0.94, 0.96], "iid/fixmatch": [0.985, 0.987], "iid/labels-only": [0.9, 0.9]}


def test_the_table_on_a_terminal(tmp_path: Path) -> None:
    lines = shown(table_of(tmp_path, ONE))
    assert lines[0] == "A small table"
    assert lines[2] == "IID, 2 labels per class at each client, 3 rounds"
    cells_of = {line.split("  ")[0].strip(): line.split() for line in lines}
    assert cells_of["Labels only"][2:6] == ["90.0", "90.0", "–", "–"]
    (fedavg,) = [line for line in lines if "95.13" in line]
    assert " ".join(fedavg.split()) == "FedAvg 95.0 95.0 95.13¹ −0.1 0/1 30 1.5 kB 3.0 kB 6.0 s"
    (fixmatch,) = [line for line in lines if "97.50" in line]
    assert fixmatch.split()[1:5] == ["98.0", "98.0", "97.50¹,²", "+0.5"]
    assert "★" not in "".join(lines), "one seed is not enough to lead"
    assert lines[-6:] == [
        "not run yet: Two classes",
        "last 3: mean of the last 3 evaluations",
        "below: seeds that end below labels-only with the same seed",
        "paper: Nobody, Table 1",
        "¹ all of it was chosen on the test set",
        "² its helpers too",
    ]


CURVES = [[0.1, 0.5, 0.6], [0.6, 0.7, 0.2]]  # of two seeds: 60 % after rounds 3 and 1, 70 % never and after round 2


@pytest.mark.parametrize("target, one, two", [(60, "3", "2"), (59.9, "3", "2"), (10, "1", "1"), (60.1, "–", "–")])
def test_the_rounds_to_an_accuracy(tmp_path: Path, target: float, one: str, two: str) -> None:
    """The first evaluation with at least this accuracy; the mean over seeds, or – unless all of them get there."""
    path, out = small.write(tmp_path), tmp_path / "runs"
    for run in small.planned(path, out, range(2)):
        if run.cell.place == ("iid", "fedavg") or (run.cell.place == ("iid", "fixmatch") and run.seed == 0):
            small.pretend(run, CURVES[run.seed])
    benchmark = spec.read(path)
    cells = plan.cells(benchmark)
    measured = results.from_runs(cells, plan.run_folder(out, benchmark, False))
    full = tables.build(benchmark, cells, measured, False, target)
    by_row = {line.title: line.rounds_to for line in full.blocks[0].lines}
    assert by_row == {"FedAvg": two, "FixMatch": one, "Labels only": "–"}
    lines = shown(full)
    assert all(len(line) <= 80 for line in lines)
    (head,) = [line for line in lines if line.startswith("row")]
    assert head.split() == ["row", "last", "3", "(%)", "best", "paper", "diff.", f"{target:g}", "%", "steps", "time"]
    (fixmatch,) = [line for line in lines if line.startswith("FixMatch")]
    assert fixmatch.split()[-4:] == [one, "30", "6.0", "s"]
    assert "rounds to" not in "".join(shown(tables.build(benchmark, cells, measured, False)))


def test_several_seeds_show_their_spread_and_a_leader(tmp_path: Path) -> None:
    lines = shown(table_of(tmp_path, TWO))
    (fedavg,) = [line for line in lines if "95.13" in line]
    assert fedavg.startswith("FedAvg ")
    assert "95.0 ± 1.4" in fedavg
    (fixmatch,) = [line for line in lines if "97.50" in line]
    assert fixmatch.startswith("FixMatch\u00a0★")
    assert "98.6 ± 0.1" in fixmatch
    assert "last 3: mean of the last 3 evaluations; mean ± std over 2 seeds" in lines
    assert "★ leads every other row by more than the sum of their standard deviations" in lines


def test_columns_and_rows_with_fewer_evaluations_are_named(tmp_path: Path) -> None:
    path = small.changed(tmp_path, "[columns.classes]", "[columns.classes]\nsettings.rounds = 2")
    done = table_of(tmp_path, ONE | {"classes/fedavg": [0.5], "classes/labels-only": [0.5]}, path)
    assert done.heads[0] == "last 3 (%)"
    assert done.notes[0] == "last 3: mean of the last 3 evaluations, or of fewer: Two classes (2)"
    log = tmp_path / "runs/small-table/iid/fixmatch/seed-0/rounds.jsonl"
    log.write_text(log.read_text().replace('"accuracy": 0.98', '"accuracy": null', 2))
    benchmark = spec.read(path)
    cells = plan.cells(benchmark)
    for some, named in ((cells, "FixMatch in IID (1), Two classes (2)"), (cells[:3], "FixMatch (1)")):
        again = tables.build(benchmark, some, results.from_runs(some, tmp_path / "runs/small-table"), False)
        assert again.notes[0] == f"last 3: mean of the last 3 evaluations, or of fewer: {named}"


def test_no_row_leads_while_one_is_missing_or_within_the_spread(tmp_path: Path) -> None:
    without = {place: seeds for place, seeds in TWO.items() if place != "iid/labels-only"}
    assert "★" not in "".join(shown(table_of(tmp_path / "a", without, small.write(made(tmp_path / "a")))))
    close = TWO | {"iid/fixmatch": [0.95, 0.97]}
    assert "★" not in "".join(shown(table_of(tmp_path / "b", close, small.write(made(tmp_path / "b")))))


def made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def test_a_row_with_another_number_of_labels_shows_it(tmp_path: Path) -> None:
    path = small.changed(tmp_path, "seeds = [0]", 'bounds = ["all-labels"]')
    lines = shown(table_of(tmp_path, {"iid/fedavg": [0.9], "iid/fixmatch": [0.9], "iid/all-labels": [0.99]}, path))
    assert any(line.startswith("All labels ") and "99.0" in line for line in lines)
    path = small.changed(tmp_path, 'objective.view = "plain"', "data.per_class = 3")
    lines = shown(table_of(tmp_path, {}, path))  # FixMatch has a result already
    assert any(line.startswith("FedAvg (3 labels") for line in lines)


def test_a_column_with_a_result_also_shows_its_missing_rows(tmp_path: Path) -> None:
    lines = shown(table_of(tmp_path, {"classes/labels-only": [0.5]}))
    (fedavg,) = [line.split() for line in lines if line.startswith("FedAvg")]
    assert fedavg[1:] == ["–", "–", "40.00¹", *"–––––"]
    assert [line for line in lines if "IID" in line] == ["not run yet: IID"]


def test_four_columns_of_ten_rows_fit_a_terminal(tmp_path: Path) -> None:
    text = small.TOML
    for name in ("three", "four"):
        text += f'\n[columns.{name}]\nsettings.data.partition = "even"\n'
    for number in range(7):
        text += f'[rows.row-{number}]\ntitle = "A method with a long name {number}"\n'
        text += f'settings.method.name = "fedprox+supervised"\nsettings.method.mu = 0.{number + 1}\n'
    path = small.write(tmp_path, text)
    places = ["/".join(cell.place) for cell in plan.cells(spec.read(path))]
    assert len(places) == 4 * 9 + 1
    many = {place: [0.94, 0.96, 0.95] for place in places}
    for run in small.planned(path, tmp_path / "runs", range(3)):
        small.pretend(run, [many["/".join(run.cell.place)][run.seed]] * 3)
        log = run.folder / "rounds.jsonl"
        log.write_text(log.read_text().replace('"bytes_up": 500', '"bytes_up": 123456789').replace("2.0", "2222.0"))
    benchmark = spec.read(path)
    cells = plan.cells(benchmark)
    full = tables.build(benchmark, cells, results.from_runs(cells, tmp_path / "runs/small-table"), False)
    lines = shown(full)
    assert all(len(line) <= 80 for line in lines)
    assert sum("95.0 ± 1.0" in line for line in lines) == len(places)
    assert "…" not in "".join(lines)


def test_the_title_says_quick(tmp_path: Path) -> None:
    quick = table_of(tmp_path, ONE, quick=True)
    assert shown(quick)[0] == "A small table (quick: not the paper's scale)"
    assert shown(quick)[2] == "IID, 2 labels per class at each client, 1 round"
    assert export.to_markdown(quick).startswith("**A small table (quick: not the paper's scale)**\n")


def test_the_table_as_markdown(tmp_path: Path) -> None:
    lines = export.to_markdown(table_of(tmp_path, TWO)).splitlines()
    assert lines[:3] == ["**A small table**", "", "Three bright bands."]
    assert lines[4].startswith("| IID | seeds | last 3 (%) | best (%) | paper | difference | below | labels | rounds |")
    assert lines[6] == (
        "| FedAvg | 2 | 95.0 ± 1.4 | 95.0 ± 1.4 | 95.13¹ | −0.1 | 0/2 | 2 labels per class at each client "
        "| 3 | 30 | 1.5 kB | 3.0 kB | 6.0 s |"
    )
    assert lines[7].startswith("| **FixMatch\u00a0★** | **2** | **98.6 ± 0.1** |")
    (rest,) = [line for line in lines if line.startswith("Not run yet")]
    assert rest.startswith("Not run yet: Two classes. Run with `tacit bench run ")
    widths = {line.count("|") for line in lines if line.startswith("|")}
    assert len(widths) == 1
    assert lines[-1] == "² its helpers too"


def test_the_table_as_csv(tmp_path: Path) -> None:
    rows = list(csv.DictReader(StringIO(export.to_csv(table_of(tmp_path, TWO)))))
    assert len(rows) == 5
    assert all(None not in row and None not in row.values() for row in rows)
    fixmatch = rows[1]
    assert (fixmatch["benchmark"], fixmatch["column"], fixmatch["row"]) == ("small-table", "IID", "FixMatch")
    assert (fixmatch["seeds"], fixmatch["last5"], fixmatch["last5_std"]) == ("2", "98.60", "0.14")
    assert fixmatch["averaged"] == "3"
    assert (fixmatch["paper"], fixmatch["difference"], fixmatch["caveats"]) == ("97.50", "1.10", "1 2")
    assert (fixmatch["rounds"], fixmatch["steps"], fixmatch["seconds"]) == ("3", "30", "6.0")
    assert (fixmatch["bytes_up"], fixmatch["bytes_down"], fixmatch["leads"]) == ("1500", "3000", "yes")
    assert (rows[3]["last5"], rows[3]["paper"], rows[3]["seeds"], rows[3]["leads"]) == ("", "40.00", "0", "")


def test_the_table_as_latex(tmp_path: Path) -> None:
    path = small.changed(tmp_path, 'title = "FedAvg"', 'title = "Fed_Avg & 50 % γ"')
    lines = export.to_latex(table_of(tmp_path, TWO, path)).splitlines()
    assert r"\begin{tabular}{lrrrrrrrrrr}" in lines
    assert r"\multicolumn{11}{l}{\emph{IID}} \\" in lines
    (fedavg,) = [line for line in lines if "95.13" in line]
    assert fedavg == (
        r"Fed\_Avg \& 50 \% $\gamma$ & 95.0 $\pm$ 1.4 & 95.0 $\pm$ 1.4 & 95.13\textsuperscript{1} & $-$0.1 "
        r"& 0/2 & 3 & 30 & 1.5 kB & 3.0 kB & 6.0 s \\"
    )
    (fixmatch,) = [line for line in lines if "97.50" in line]
    assert fixmatch.startswith(r"\textbf{FixMatch~$\star$} & \textbf{98.6 $\pm$ 0.1}")
    assert {line.count(" & ") for line in lines if line.endswith(r"\\") and "multicolumn" not in line} == {10}
    assert lines[-1] == r"\end{tabular}"


@pytest.mark.parametrize("form", export.FORMATS)
def test_a_table_without_results_can_be_printed(tmp_path: Path, form: str) -> None:
    empty = table_of(tmp_path, {})
    assert export.FORMATS[form](empty)
    assert shown(empty) == ["A small table", "", "not run yet: IID; Two classes"]


def test_seeds_below_labels_only_are_counted_with_the_same_seed(tmp_path: Path) -> None:
    # seed by seed: FedAvg is below, above, equal; FixMatch is above in its only seed, though below the mean of 0.8
    given = {"iid/labels-only": [0.7, 0.8, 0.9], "iid/fedavg": [0.6, 0.85, 0.9], "iid/fixmatch": [0.75]}
    full = table_of(tmp_path, given)
    assert [line.below for line in full.blocks[0].lines] == ["1/3", "0/1", "–"]
    assert [line.below for line in full.blocks[1].lines] == ["–", "–"], "nothing has been run there"
    by_row = {row["row"]: row["below_labels_only"] for row in csv.DictReader(StringIO(export.to_csv(full)))}
    assert by_row["FixMatch"] == "0"
    assert all(len(line) <= 80 for line in shown(full))
    assert "| below |" in export.to_markdown(full)


def test_without_labels_only_there_is_no_such_column(tmp_path: Path) -> None:
    full = table_of(tmp_path, {"iid/fedavg": [0.6, 0.85]})
    assert not full.compares
    assert "below" not in "\n".join(shown(full)) + export.to_markdown(full) + export.to_latex(full)


def test_only_footnotes_of_the_rows_shown_are_printed(tmp_path: Path) -> None:
    path = small.write(tmp_path)
    for run in small.planned(path, tmp_path):
        small.pretend(run, [0.5] * 3)
    benchmark = spec.read(path)
    cells = plan.cells(benchmark)
    measured = results.from_runs(cells, tmp_path / "small-table")
    whole, part = (tables.build(benchmark, plan.select(cells, only, []), measured, False) for only in ([], ["fedavg"]))
    assert [note[0] for note in whole.notes if note[0] in "¹²"] == ["¹", "²"]
    assert [note[0] for note in part.notes if note[0] in "¹²"] == ["¹"]
