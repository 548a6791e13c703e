"""The cells of a benchmark, what makes two configs the same, and when a run still matches its cell."""

import fcntl
import json
from pathlib import Path
from typing import Any

import pytest

from tacit.bench import identity, plan, spec
from tacit.data.split.config import DataConfig
from tacit.errors import TacitError
from tacit.method import Training
from tacit.methods.fedavg import FedAvg
from tacit.objectives import Supervised
from tacit.runs import auto
from tacit.runs import config as configs
from tests.bench import small
from tests.refusals import refused


def places(path: Path, **options: Any) -> list[str]:
    return ["/".join(cell.place) for cell in plan.cells(spec.read(path), **options)]


def test_a_bound_is_added_below_the_rows_of_every_column(tmp_path: Path) -> None:
    path = small.write(tmp_path)
    assert places(path) == ["iid/fedavg", "iid/fixmatch", "iid/labels-only", "classes/fedavg", "classes/labels-only"]
    bound = plan.cells(spec.read(path))[2]
    assert bound.config.method_name == "fedavg+supervised"
    assert bound.config.objective == {}
    assert bound.row.title == "Labels only"


def test_a_bound_that_equals_a_row_is_not_added(tmp_path: Path) -> None:
    """The row's weak view is the bound's default; in a column with another view the bound is added again."""
    assert places(small.changed(tmp_path, '"plain"', '"weak"')) == ["iid/fedavg", "iid/fixmatch", "classes/fedavg"]
    text = small.TOML.replace('settings.objective.view = "plain"\n', "")
    text = text.replace('partition = "classes:2"', 'partition = "classes:2"\nsettings.objective.view = "strong"')
    assert places(small.write(tmp_path, text))[2:] == ["classes/fedavg", "classes/labels-only"]


def test_with_labels_at_the_server_the_bound_is_server_only(tmp_path: Path) -> None:
    text = small.TOML.replace('labels = "client"', 'labels = "server"').replace("fedavg+supervised", "fedavg+fixmatch")
    bound = plan.cells(spec.read(small.write(tmp_path, text)))[2]
    assert bound.config.method_name == "server-only+supervised"


def test_the_file_chooses_the_bounds(tmp_path: Path) -> None:
    path = small.changed(tmp_path, "seeds = [0]", 'bounds = ["all-labels", "labels-only"]')
    assert places(path)[2:4] == ["iid/all-labels", "iid/labels-only"]
    assert plan.cells(spec.read(path))[2].labels == "all labels"


def test_a_table_with_all_labels_everywhere_has_no_bound(tmp_path: Path) -> None:
    path = small.changed(tmp_path, 'labels = "client"\nper_class = 2', 'labels = "all"')
    assert places(path) == ["iid/fedavg", "iid/fixmatch", "classes/fedavg"]


def test_options_override_quick_and_apply_to_the_bounds(tmp_path: Path) -> None:
    benchmark = spec.read(small.write(tmp_path))
    assert {cell.config.rounds for cell in plan.cells(benchmark, quick=True)} == {1}
    assert {cell.config.rounds for cell in plan.cells(benchmark, True, {"rounds": 7})} == {7}
    assert {cell.config.train.lr for cell in plan.cells(benchmark, False, {"train.lr": 0.25})} == {0.25}


def test_a_wrong_setting_is_refused_with_the_name_of_its_cell(tmp_path: Path) -> None:
    path = small.changed(tmp_path, 'objective.view = "plain"', 'objective.viev = "plain"')
    with pytest.raises(TacitError) as caught:
        plan.cells(spec.read(path))
    assert str(caught.value).startswith(f"{path}, row fedavg, column iid: ")
    benchmark = spec.read(small.changed(tmp_path, "[quick]\nrounds = 1\n", ""))
    with refused("bench.no-quick-section"):
        plan.cells(benchmark, quick=True)


def test_rows_and_columns_are_selected_by_name(tmp_path: Path) -> None:
    cells = plan.cells(spec.read(small.write(tmp_path)))
    assert [cell.place for cell in plan.select(cells, ["fedavg"], [])] == [("iid", "fedavg"), ("classes", "fedavg")]
    assert [cell.place for cell in plan.select(cells, ["labels-only"], ["iid"])] == [("iid", "labels-only")]
    with refused("names.unknown-row"):
        plan.select(cells, ["fedavk"], [])
    with refused("names.unknown-column"):
        plan.select(cells, [], ["uid"])


def test_every_seed_has_a_folder(tmp_path: Path) -> None:
    path = small.write(tmp_path)
    folders = [run.folder.relative_to(tmp_path) for run in small.planned(path, tmp_path, [0, 7])]
    assert folders[:2] == [Path("small-table/iid/fedavg/seed-0"), Path("small-table/iid/fedavg/seed-7")]
    assert [run.config.seed for run in small.planned(path, tmp_path, [0, 7])][:2] == [0, 7]
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
def test_settings_without_effect_on_numbers_keep_the_fingerprint(options: dict[str, Any]) -> None:
    base, changed = configs.from_options(BASE), configs.from_options(BASE | options)
    assert identity.fingerprint(base) == identity.fingerprint(changed)


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
        {"protect.combine": "median"},
        {"log.evaluate_every": 2},
    ],
)
def test_settings_that_change_numbers_change_the_fingerprint(options: dict[str, Any]) -> None:
    base, changed = configs.from_options(BASE), configs.from_options(BASE | options)
    assert identity.fingerprint(base) != identity.fingerprint(changed)


def test_settings_hold_every_value_the_numbers_depend_on() -> None:
    found = identity.settings(configs.from_options(BASE | {"train.lr": 0.02, "objective.view": "plain"}))
    given = {"rounds": 3, "train.lr": 0.02, "server_train.lr": 0.02, "method.objective.view": "plain"}
    defaults = {"cohort": None, "net.name": "lenet", "server_train.epochs": 10, "method.weights": "samples"}
    assert found.items() >= (given | defaults).items()
    assert {name.partition(".")[0] for name in found} == {
        "data", "net", "train", "server_train", "faults", "limits", "protect", "log", "rounds", "cohort", "method"
    }  # fmt: skip
    assert "data.split" not in found
    assert found == json.loads(json.dumps(found))


def test_a_named_split_equals_its_settings_written_out() -> None:
    named = configs.from_options({"split": "fedsiam-mnist-iid"})
    written = {"data": "mnist", "clients": 100, "labels": "client", "label_fraction": 0.1, "partition": "iid"}
    assert identity.fingerprint(named) == identity.fingerprint(configs.from_options(written))


def test_fingerprints_do_not_depend_on_module_names(monkeypatch: pytest.MonkeyPatch) -> None:
    before = identity.fingerprint(configs.from_options(BASE))
    for kind in (FedAvg, Supervised, Training, DataConfig):
        monkeypatch.setattr(kind, "__module__", "somewhere.else")
    assert identity.fingerprint(configs.from_options(BASE)) == before


def test_naming_the_default_objective_keeps_the_fingerprint() -> None:
    with_default, named = (configs.from_options({**BASE, "method": name}) for name in ("fedavg", "fedavg+fixmatch"))
    assert identity.fingerprint(with_default) == identity.fingerprint(named)


def test_methods_of_the_package_share_one_code_version() -> None:
    for method in ("fedavg", "scaffold+supervised"):
        assert identity.code(configs.from_options({"method": method})) == identity.NUMBERS


def test_the_code_version_of_a_users_method_follows_its_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = "from tacit.methods.fedavg import FedAvg\nclass Mine(FedAvg):\n    pass\n"
    (tmp_path / "a_method_of_mine.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    config = configs.from_options({"method": "a_method_of_mine:Mine+supervised"})
    before = identity.code(config)
    (tmp_path / "a_method_of_mine.py").write_text(source + "# changed\n")
    assert identity.code(config) != before


def test_a_run_is_finished_when_it_matches_its_cell_and_has_all_rounds(tmp_path: Path) -> None:
    path = small.write(tmp_path)
    run = small.planned(path, tmp_path)[0]
    assert plan.is_current(run)
    assert not plan.is_finished(run)
    small.pretend(run, [0.5, 0.6, 0.7])
    assert plan.is_finished(run)
    assert plan.is_finished(small.planned(path, tmp_path, extra={"engine.workers": 2})[0])
    other = small.planned(path, tmp_path, extra={"train.lr": 0.5})[0]
    assert not plan.is_current(other)
    assert not plan.is_finished(other)
    (run.folder / "checkpoint/latest.json").write_text('{"round": 2}')
    assert plan.is_current(run)
    assert not plan.is_finished(run)


def test_a_run_by_other_code_is_not_current(tmp_path: Path) -> None:
    run = small.planned(small.write(tmp_path), tmp_path)[0]
    small.pretend(run, [0.5, 0.6, 0.7])
    (run.folder / "cell.json").write_text(json.dumps(run.note | {"code": "older"}))
    assert not plan.is_current(run)
    (run.folder / "cell.json").unlink()
    assert not plan.is_current(run), "the code that made it is unknown"


def test_a_run_killed_before_its_note_was_written_is_current(tmp_path: Path) -> None:
    run = small.planned(small.write(tmp_path), tmp_path)[0]
    plan.begin(run)
    (run.folder / "cell.json").unlink()
    assert plan.is_current(run)
    assert not plan.is_current(small.planned(tmp_path / "small_table.toml", tmp_path, extra={"train.lr": 0.5})[0])


@pytest.mark.parametrize("damage", ["\n[train]\nspeed = 1\n", "="])
def test_a_run_without_note_and_valid_config_is_moved_aside(tmp_path: Path, damage: str) -> None:
    run = small.planned(small.write(tmp_path), tmp_path)[0]
    run.folder.mkdir(parents=True)
    (run.folder / "config.toml").write_text(f"rounds = 3{damage}")
    assert not plan.is_current(run)
    assert not plan.is_finished(run)
    assert plan.move_aside(run).name == "seed-0.old-unknown"


def test_old_runs_are_moved_aside_and_never_lost(tmp_path: Path) -> None:
    run = small.planned(small.write(tmp_path), tmp_path)[0]
    targets = []
    for accuracy in (0.1, 0.2):
        small.pretend(run, [accuracy] * 3)
        targets.append(plan.move_aside(run))
        assert not run.folder.exists()
    assert targets[0].name.startswith("seed-0.old-")
    assert targets[1].name == f"{targets[0].name}-2"
    assert [small.numbers(target)[0]["accuracy"] for target in targets] == [0.1, 0.2]


def test_a_run_in_progress_is_not_moved(tmp_path: Path) -> None:
    run = small.planned(small.write(tmp_path), tmp_path)[0]
    small.pretend(run, [0.1])
    with (run.folder / "config.toml").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with refused("run.locked"):
            plan.move_aside(run)
    assert run.folder.exists()


def test_a_row_that_says_auto_decides_for_each_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = small.changed(tmp_path, 'name = "fedavg+fixmatch"', 'name = "auto"')
    cell = next(cell for cell in plan.cells(spec.read(path)) if cell.place == ("iid", "fixmatch"))
    decided = cell.decided(1)
    assert decided.method_name == "anchor"
    assert (decided.seed, decided.train.steps, decided.net.name) == (1, 1, "linear")  # what the file gives stays
    assert decided.train.lr == 0.03  # what it does not is decided
    (run,) = plan.runs_of([cell], [1], tmp_path / "runs")
    plan.begin(run)
    assert configs.make(configs.read(run.directory.config_file)).train.lr == 0.03
    assert plan.is_current(run)
    named = next(cell for cell in plan.cells(spec.read(path), extra={"data.per_class": 1}) if cell.row.auto)
    assert named.decided(0).data.per_class == 1
    before = cell.hash
    monkeypatch.setattr(auto, "VERSION", 99)
    again = next(cell for cell in plan.cells(spec.read(path)) if cell.row.auto)
    assert (again.hash, again.settings["auto"]) == (before, 99)
