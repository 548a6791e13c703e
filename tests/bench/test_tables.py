"""The table in its four formats, against runs made by hand."""

import csv
from collections.abc import Mapping, Sequence
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from tacit.bench import cells, files, formats, keep, tables
from tests.bench import small

Given = Mapping[str, Sequence[float]]  # the accuracy of each seed by "column/row"; one number in all rounds


def sheet(folder: Path, given: Given, path: Path | None = None, quick: bool = False) -> tables.Sheet:
    """The table when these cells are done."""
    path, out = path or small.write(folder), folder / "runs"
    for cell in small.planned(path, out, range(5), quick):
        seeds = given.get("/".join(cell.spot.place), ())
        if cell.seed < len(seeds):
            small.pretend(cell, [seeds[cell.seed]] * cell.config.rounds)
    benchmark = files.read(path)
    found = cells.spots(benchmark, quick)
    return tables.build(benchmark, found, keep.of_runs(found, cells.home(out, benchmark, quick)), quick)


def shown(given: tables.Sheet, width: int = 80) -> list[str]:
    out = StringIO()
    tables.show(given, Console(file=out, width=width, color_system=None))
    return [line.rstrip() for line in out.getvalue().splitlines()]


ONE = {"iid/fedavg": [0.95], "iid/fixmatch": [0.98], "iid/labels-only": [0.9]}
TWO = {"iid/fedavg": [0.94, 0.96], "iid/fixmatch": [0.985, 0.987], "iid/labels-only": [0.9, 0.9]}


def test_terminal(tmp_path: Path) -> None:
    lines = shown(sheet(tmp_path, ONE))
    assert lines[0] == "A small table"
    assert lines[2] == "IID, 2 labels per class at each client, 3 rounds"
    cells_of = {line.split("  ")[0].strip(): line.split() for line in lines}
    assert cells_of["Labels only"][2:6] == ["90.0", "90.0", "–", "–"]
    (fedavg,) = [line for line in lines if "95.13" in line]
    assert " ".join(fedavg.split()) == "FedAvg 95.0 95.0 95.13¹ −0.1 30 1.5 kB 3.0 kB 6.0 s"
    (fixmatch,) = [line for line in lines if "97.50" in line]
    assert fixmatch.split()[1:5] == ["98.0", "98.0", "97.50¹,²", "+0.5"]
    assert "★" not in "".join(lines), "with one seed nobody can tell"
    assert lines[-5:] == [
        "not run yet: Two classes",
        "last 3: mean of the last 3 evaluations",
        "paper: Nobody, Table 1",
        "¹ all of it was chosen on the test set",
        "² its helpers too",
    ]


CURVES = [[0.1, 0.5, 0.6], [0.6, 0.7, 0.2]]  # of two seeds: 60 % after rounds 3 and 1, 70 % never and after round 2


@pytest.mark.parametrize("reach, one, two", [(60, "3", "2"), (59.9, "3", "2"), (10, "1", "1"), (60.1, "–", "–")])
def test_rounds_to_an_accuracy(tmp_path: Path, reach: float, one: str, two: str) -> None:
    """The first evaluation with at least so much, whatever follows; the mean over seeds, and – unless all get there."""
    path, out = small.write(tmp_path), tmp_path / "runs"
    for cell in small.planned(path, out, range(2)):
        if cell.spot.place == ("iid", "fedavg") or (cell.spot.place == ("iid", "fixmatch") and cell.seed == 0):
            small.pretend(cell, CURVES[cell.seed])
    benchmark = files.read(path)
    found = cells.spots(benchmark)
    measured = keep.of_runs(found, cells.home(out, benchmark, False))
    full = tables.build(benchmark, found, measured, False, reach)
    by_row = {line.title: line.reach for line in full.blocks[0].lines}
    assert by_row == {"FedAvg": two, "FixMatch": one, "Labels only": "–"}
    lines = shown(full)
    assert all(len(line) <= 80 for line in lines)
    (head,) = [line for line in lines if line.startswith("row")]
    assert head.split() == ["row", "last", "3", "(%)", "best", "paper", "diff.", f"{reach:g}", "%", "steps", "time"]
    (fixmatch,) = [line for line in lines if line.startswith("FixMatch")]
    assert fixmatch.split()[-4:] == [one, "30", "6.0", "s"]
    assert "rounds to" not in "".join(shown(tables.build(benchmark, found, measured, False)))


def test_spread_and_star(tmp_path: Path) -> None:
    lines = shown(sheet(tmp_path, TWO))
    (fedavg,) = [line for line in lines if "95.13" in line]
    assert fedavg.startswith("FedAvg ")
    assert "95.0 ± 1.4" in fedavg
    (fixmatch,) = [line for line in lines if "97.50" in line]
    assert fixmatch.startswith("FixMatch\u00a0★")
    assert "98.6 ± 0.1" in fixmatch
    assert "last 3: mean of the last 3 evaluations; mean ± std over 2 seeds" in lines
    assert "★ leads by more than both spreads together" in lines


def test_columns_and_rows_with_fewer_evaluations_are_named(tmp_path: Path) -> None:
    path = small.changed(tmp_path, "[columns.classes]", "[columns.classes]\nsettings.rounds = 2")
    done = sheet(tmp_path, ONE | {"classes/fedavg": [0.5], "classes/labels-only": [0.5]}, path)
    assert done.heads[0] == "last 3 (%)"
    assert done.notes[0] == "last 3: mean of the last 3 evaluations, or of fewer: Two classes (2)"
    log = tmp_path / "runs/small-table/iid/fixmatch/seed-0/rounds.jsonl"
    log.write_text(log.read_text().replace('"accuracy": 0.98', '"accuracy": null', 2))
    benchmark = files.read(path)
    found = cells.spots(benchmark)
    for some, named in ((found, "FixMatch in IID (1), Two classes (2)"), (found[:3], "FixMatch (1)")):
        again = tables.build(benchmark, some, keep.of_runs(some, tmp_path / "runs/small-table"), False)
        assert again.notes[0] == f"last 3: mean of the last 3 evaluations, or of fewer: {named}"


def test_nobody_leads_while_a_row_is_missing_or_within_the_spread(tmp_path: Path) -> None:
    without = {place: seeds for place, seeds in TWO.items() if place != "iid/labels-only"}
    assert "★" not in "".join(shown(sheet(tmp_path / "a", without, small.write(made(tmp_path / "a")))))
    close = TWO | {"iid/fixmatch": [0.95, 0.97]}
    assert "★" not in "".join(shown(sheet(tmp_path / "b", close, small.write(made(tmp_path / "b")))))


def made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def test_a_row_with_other_labels_says_so(tmp_path: Path) -> None:
    path = small.changed(tmp_path, "seeds = [0]", 'bounds = ["all-labels"]')
    lines = shown(sheet(tmp_path, {"iid/fedavg": [0.9], "iid/fixmatch": [0.9], "iid/all-labels": [0.99]}, path))
    assert any(line.startswith("All labels ") and "99.0" in line for line in lines)
    path = small.changed(tmp_path, 'objective.view = "plain"', "data.per_class = 3")
    lines = shown(sheet(tmp_path, {}, path))  # FixMatch is done already
    assert any(line.startswith("FedAvg (3 labels") for line in lines)


def test_a_column_of_which_something_is_done_is_shown_with_what_is_missing(tmp_path: Path) -> None:
    lines = shown(sheet(tmp_path, {"classes/labels-only": [0.5]}))
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
    places = ["/".join(spot.place) for spot in cells.spots(files.read(path))]
    assert len(places) == 4 * 9 + 1
    many = {place: [0.94, 0.96, 0.95] for place in places}
    for cell in small.planned(path, tmp_path / "runs", range(3)):
        small.pretend(cell, [many["/".join(cell.spot.place)][cell.seed]] * 3)
        log = cell.folder / "rounds.jsonl"
        log.write_text(log.read_text().replace('"bytes_up": 500', '"bytes_up": 123456789').replace("2.0", "2222.0"))
    benchmark = files.read(path)
    found = cells.spots(benchmark)
    full = tables.build(benchmark, found, keep.of_runs(found, tmp_path / "runs/small-table"), False)
    lines = shown(full)
    assert all(len(line) <= 80 for line in lines)
    assert sum("95.0 ± 1.0" in line for line in lines) == len(places)
    assert "…" not in "".join(lines)


def test_quick_is_said(tmp_path: Path) -> None:
    quick = sheet(tmp_path, ONE, quick=True)
    assert shown(quick)[0] == "A small table (quick: not the paper's scale)"
    assert shown(quick)[2] == "IID, 2 labels per class at each client, 1 round"
    assert formats.to_markdown(quick).startswith("**A small table (quick: not the paper's scale)**\n")


def test_markdown(tmp_path: Path) -> None:
    lines = formats.to_markdown(sheet(tmp_path, TWO)).splitlines()
    assert lines[:3] == ["**A small table**", "", "Three bright bands."]
    assert lines[4].startswith("| IID | seeds | last 3 (%) | best (%) | paper | difference | labels | rounds |")
    assert lines[6] == (
        "| FedAvg | 2 | 95.0 ± 1.4 | 95.0 ± 1.4 | 95.13¹ | −0.1 | 2 labels per class at each client "
        "| 3 | 30 | 1.5 kB | 3.0 kB | 6.0 s |"
    )
    assert lines[7].startswith("| **FixMatch\u00a0★** | **2** | **98.6 ± 0.1** |")
    (rest,) = [line for line in lines if line.startswith("Not run yet")]
    assert rest.startswith("Not run yet: Two classes. `tacit bench run ")
    widths = {line.count("|") for line in lines if line.startswith("|")}
    assert len(widths) == 1
    assert lines[-1] == "² its helpers too"


def test_csv(tmp_path: Path) -> None:
    rows = list(csv.DictReader(StringIO(formats.to_csv(sheet(tmp_path, TWO)))))
    assert len(rows) == 5
    assert all(None not in row and None not in row.values() for row in rows)
    fixmatch = rows[1]
    assert (fixmatch["benchmark"], fixmatch["column"], fixmatch["row"]) == ("small-table", "IID", "FixMatch")
    assert (fixmatch["seeds"], fixmatch["last5"], fixmatch["last5_std"]) == ("2", "98.60", "0.14")
    assert fixmatch["averaged"] == "3"
    assert (fixmatch["paper"], fixmatch["difference"], fixmatch["doubts"]) == ("97.50", "1.10", "1 2")
    assert (fixmatch["rounds"], fixmatch["steps"], fixmatch["seconds"]) == ("3", "30", "6.0")
    assert (fixmatch["bytes_up"], fixmatch["bytes_down"], fixmatch["leads"]) == ("1500", "3000", "yes")
    assert (rows[3]["last5"], rows[3]["paper"], rows[3]["seeds"], rows[3]["leads"]) == ("", "40.00", "0", "")


def test_latex(tmp_path: Path) -> None:
    path = small.changed(tmp_path, 'title = "FedAvg"', 'title = "Fed_Avg & 50 % γ"')
    lines = formats.to_latex(sheet(tmp_path, TWO, path)).splitlines()
    assert r"\begin{tabular}{lrrrrrrrrr}" in lines
    assert r"\multicolumn{10}{l}{\emph{IID}} \\" in lines
    (fedavg,) = [line for line in lines if "95.13" in line]
    assert fedavg == (
        r"Fed\_Avg \& 50 \% $\gamma$ & 95.0 $\pm$ 1.4 & 95.0 $\pm$ 1.4 & 95.13\textsuperscript{1} & $-$0.1 "
        r"& 3 & 30 & 1.5 kB & 3.0 kB & 6.0 s \\"
    )
    (fixmatch,) = [line for line in lines if "97.50" in line]
    assert fixmatch.startswith(r"\textbf{FixMatch~$\star$} & \textbf{98.6 $\pm$ 0.1}")
    assert {line.count(" & ") for line in lines if line.endswith(r"\\") and "multicolumn" not in line} == {9}
    assert lines[-1] == r"\end{tabular}"


@pytest.mark.parametrize("form", formats.FORMATS)
def test_an_empty_table_is_a_table_too(tmp_path: Path, form: str) -> None:
    empty = sheet(tmp_path, {})
    assert formats.FORMATS[form](empty)
    assert shown(empty) == ["A small table", "", "not run yet: IID; Two classes"]


def test_footnotes_are_those_of_the_rows_that_are_shown(tmp_path: Path) -> None:
    path = small.write(tmp_path)
    for cell in small.planned(path, tmp_path):
        small.pretend(cell, [0.5] * 3)
    benchmark = files.read(path)
    found = cells.spots(benchmark)
    measured = keep.of_runs(found, tmp_path / "small-table")
    whole, part = (tables.build(benchmark, cells.chosen(found, only, []), measured, False) for only in ([], ["fedavg"]))
    assert [note[0] for note in whole.notes if note[0] in "¹²"] == ["¹", "²"]
    assert [note[0] for note in part.notes if note[0] in "¹²"] == ["¹"]
