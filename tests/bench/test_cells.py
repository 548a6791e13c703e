"""Cells: which there are, what makes two configs the same, and when a run is still what a cell asks for."""

import fcntl
import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tacit import config as configs
from tacit.bench import cells, files
from tacit.errors import TacitError
from tests.bench import small


def places(path: Path, **options: Any) -> list[str]:
    return ["/".join(spot.place) for spot in cells.spots(files.read(path), **options)]


def test_a_bound_is_added_to_every_column_below_its_rows(tmp_path: Path) -> None:
    path = small.write(tmp_path)
    assert places(path) == ["iid/fedavg", "iid/fixmatch", "iid/labels-only", "classes/fedavg", "classes/labels-only"]
    bound = cells.spots(files.read(path))[2]
    assert bound.config.method_name == "fedavg+supervised"
    assert bound.config.objective == {}
    assert bound.row.title == "Labels only"


def test_a_row_that_is_the_bound_already_is_not_doubled(tmp_path: Path) -> None:
    """It says weak, which is what the bound has by default; where a column changes that, the bound comes back."""
    assert places(small.changed(tmp_path, '"plain"', '"weak"')) == ["iid/fedavg", "iid/fixmatch", "classes/fedavg"]
    text = small.TOML.replace('settings.objective.view = "plain"\n', "")
    text = text.replace('partition = "classes:2"', 'partition = "classes:2"\nsettings.objective.view = "strong"')
    assert places(small.write(tmp_path, text))[2:] == ["classes/fedavg", "classes/labels-only"]


def test_with_labels_at_the_server_the_bound_is_the_server_alone(tmp_path: Path) -> None:
    text = small.TOML.replace('labels = "client"', 'labels = "server"').replace("fedavg+supervised", "fedavg+fixmatch")
    bound = cells.spots(files.read(small.write(tmp_path, text)))[2]
    assert bound.config.method_name == "server-only+supervised"


def test_bounds_are_named_in_the_file(tmp_path: Path) -> None:
    path = small.changed(tmp_path, "seeds = [0]", 'bounds = ["all-labels", "labels-only"]')
    assert places(path)[2:4] == ["iid/all-labels", "iid/labels-only"]
    assert cells.spots(files.read(path))[2].labels == "all labels"


def test_a_table_where_all_have_all_labels_needs_no_bound(tmp_path: Path) -> None:
    path = small.changed(tmp_path, 'labels = "client"\nper_class = 2', 'labels = "all"')
    assert places(path) == ["iid/fedavg", "iid/fixmatch", "classes/fedavg"]


def test_options_win_over_quick_and_reach_the_bounds(tmp_path: Path) -> None:
    benchmark = files.read(small.write(tmp_path))
    assert {spot.config.rounds for spot in cells.spots(benchmark, quick=True)} == {1}
    assert {spot.config.rounds for spot in cells.spots(benchmark, True, {"rounds": 7})} == {7}
    assert {spot.config.train.lr for spot in cells.spots(benchmark, False, {"train.lr": 0.25})} == {0.25}


def test_a_wrong_setting_names_the_cell_before_anything_runs(tmp_path: Path) -> None:
    path = small.changed(tmp_path, 'objective.view = "plain"', 'objective.viev = "plain"')
    with pytest.raises(TacitError, match="row fedavg, column iid: unknown setting in objective 'viev'"):
        cells.spots(files.read(path))
    benchmark = files.read(small.changed(tmp_path, "[quick]\nrounds = 1\n", ""))
    with pytest.raises(TacitError, match="small-table has no section .quick.: run it without --quick"):
        cells.spots(benchmark, quick=True)


def test_rows_and_columns_are_chosen_by_name(tmp_path: Path) -> None:
    found = cells.spots(files.read(small.write(tmp_path)))
    assert [spot.place for spot in cells.chosen(found, ["fedavg"], [])] == [("iid", "fedavg"), ("classes", "fedavg")]
    assert [spot.place for spot in cells.chosen(found, ["labels-only"], ["iid"])] == [("iid", "labels-only")]
    with pytest.raises(TacitError, match="unknown row 'fedavk': did you mean 'fedavg'"):
        cells.chosen(found, ["fedavk"], [])
    with pytest.raises(TacitError, match="unknown column 'uid': did you mean 'iid'"):
        cells.chosen(found, [], ["uid"])


def test_a_folder_for_each_seed(tmp_path: Path) -> None:
    path = small.write(tmp_path)
    folders = [cell.folder.relative_to(tmp_path) for cell in small.planned(path, tmp_path, [0, 7])]
    assert folders[:2] == [Path("small-table/iid/fedavg/seed-0"), Path("small-table/iid/fedavg/seed-7")]
    assert [cell.config.seed for cell in small.planned(path, tmp_path, [0, 7])][:2] == [0, 7]
    assert small.planned(path, tmp_path, quick=True)[0].folder == tmp_path / "small-table-quick/iid/fedavg/seed-0"


BASE = {"method": "fedavg+supervised", "rounds": 3, "labels": "client", "per_class": 2}


@pytest.mark.parametrize(
    "options",
    [
        {"seed": 5},
        {"workers": 0},
        {"engine.memory_mb": 5.0},
        {"objective.view": "weak"},
        {"train.lr": 0.01},
        {"method.weights": "samples"},
    ],
)
def test_what_changes_no_number_changes_no_fingerprint(options: dict[str, Any]) -> None:
    assert cells.fingerprint(configs.from_options(BASE | options)) == cells.fingerprint(configs.from_options(BASE))


@pytest.mark.parametrize(
    "options",
    [
        {"method": "fedprox+supervised"},
        {"objective.view": "plain"},
        {"rounds": 4},
        {"cohort": 2},
        {"per_class": 3},
        {"train.lr": 0.02},
        {"server.lr": 0.02},
        {"net": "cnn"},
        {"faults.lost": 0.1},
        {"log.evaluate_every": 2},
    ],
)
def test_what_changes_numbers_changes_the_fingerprint(options: dict[str, Any]) -> None:
    assert cells.fingerprint(configs.from_options(BASE | options)) != cells.fingerprint(configs.from_options(BASE))


def test_settings_are_all_values_the_numbers_depend_on() -> None:
    found = cells.settings(configs.from_options(BASE | {"train.lr": 0.02, "objective.view": "plain"}))
    given = {"rounds": 3, "train.lr": 0.02, "server_train.lr": 0.02, "method.objective.view": "plain"}
    defaults = {"cohort": None, "net.name": "lenet", "server_train.epochs": 10, "method.weights": "samples"}
    assert found.items() >= (given | defaults).items()
    assert {name.partition(".")[0] for name in found} == {
        "data", "net", "train", "server_train", "faults", "log", "rounds", "cohort", "method"
    }  # fmt: skip
    assert "data.split" not in found
    assert found == json.loads(json.dumps(found))


def test_a_split_by_name_is_the_split_written_out() -> None:
    named = configs.from_options({"split": "fedsiam-mnist-iid"})
    written = {"data": "mnist", "clients": 100, "labels": "client", "label_fraction": 0.1, "partition": "iid"}
    assert cells.fingerprint(named) == cells.fingerprint(configs.from_options(written))


def test_the_version_follows_the_code_of_the_method_and_what_it_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    fedavg, fedprox = (configs.from_options({"method": name}) for name in ("fedavg", "fedprox"))
    before = cells.version(fedavg)
    assert before == cells.version(replace(fedavg, rounds=3))
    assert before != cells.version(fedprox)
    monkeypatch.setattr(cells, "_shared", lambda: "other code")
    assert cells.version(fedavg) != before


def test_shared_code_is_all_that_changes_numbers_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cells, "PACKAGE", tmp_path)
    (tmp_path / "data").mkdir()
    shared = cells._shared.__wrapped__
    seen = [shared()]
    for name in ("learn.py", "data/draw.py", "data/papers.py", "cli.py"):
        (tmp_path / name).write_text("x = 1\n")
        seen.append(shared())
    assert [one != other for one, other in pairwise(seen)] == [True, True, False, False]


def test_the_version_follows_a_method_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = "from tacit.methods.fedavg import FedAvg\nclass Mine(FedAvg):\n    pass\n"
    (tmp_path / "a_method_of_mine.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    config = configs.from_options({"method": "a_method_of_mine:Mine+supervised"})
    before = cells.version(config)
    (tmp_path / "a_method_of_mine.py").write_text(source + "# changed\n")
    assert cells.version(config) != before


def test_a_cell_is_finished_when_its_run_is_what_it_asks_for(tmp_path: Path) -> None:
    path = small.write(tmp_path)
    cell = small.planned(path, tmp_path)[0]
    assert cells.current(cell)
    assert not cells.finished(cell)
    small.pretend(cell, [0.5, 0.6, 0.7])
    assert cells.finished(cell)
    assert cells.finished(small.planned(path, tmp_path, extra={"engine.workers": 2})[0])
    (other,) = (small.planned(path, tmp_path, extra={"train.lr": 0.5})[0],)
    assert not cells.current(other)
    assert not cells.finished(other)
    (cell.folder / "checkpoint/latest.json").write_text('{"round": 2}')
    assert cells.current(cell)
    assert not cells.finished(cell)


def test_a_run_by_other_code_is_not_taken_for_this_one(tmp_path: Path) -> None:
    cell = small.planned(small.write(tmp_path), tmp_path)[0]
    small.pretend(cell, [0.5, 0.6, 0.7])
    (cell.folder / "cell.json").write_text(json.dumps(cell.note | {"method_version": "older"}))
    assert not cells.current(cell)
    (cell.folder / "cell.json").unlink()
    assert not cells.current(cell), "nobody knows what code made it"


def test_a_run_that_was_killed_before_its_note_goes_on(tmp_path: Path) -> None:
    cell = small.planned(small.write(tmp_path), tmp_path)[0]
    cells.begin(cell)
    (cell.folder / "cell.json").unlink()
    assert cells.current(cell)
    assert not cells.current(small.planned(tmp_path / "small_table.toml", tmp_path, extra={"train.lr": 0.5})[0])


@pytest.mark.parametrize("damage", ["\n[train]\nspeed = 1\n", "="])
def test_a_run_without_a_note_whose_config_is_none_today_gives_way(tmp_path: Path, damage: str) -> None:
    cell = small.planned(small.write(tmp_path), tmp_path)[0]
    cell.folder.mkdir(parents=True)
    (cell.folder / "config.toml").write_text(f"rounds = 3{damage}")
    assert not cells.current(cell)
    assert not cells.finished(cell)
    assert cells.move_aside(cell).name == "seed-0.old-unknown"


def test_an_old_run_is_moved_and_never_lost(tmp_path: Path) -> None:
    cell = small.planned(small.write(tmp_path), tmp_path)[0]
    targets = []
    for accuracy in (0.1, 0.2):
        small.pretend(cell, [accuracy] * 3)
        targets.append(cells.move_aside(cell))
        assert not cell.folder.exists()
    assert targets[0].name.startswith("seed-0.old-")
    assert targets[1].name == f"{targets[0].name}-2"
    assert [small.numbers(target)[0]["accuracy"] for target in targets] == [0.1, 0.2]


def test_a_run_that_is_being_played_is_not_moved(tmp_path: Path) -> None:
    cell = small.planned(small.write(tmp_path), tmp_path)[0]
    small.pretend(cell, [0.1])
    with (cell.folder / "config.toml").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(TacitError, match="another process is running"):
            cells.move_aside(cell)
    assert cell.folder.exists()
