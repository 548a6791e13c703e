from pathlib import Path
from typing import Any

import pytest

from tacit.report.history import by_group, by_label, disambiguate, evaluated, load, load_all
from tacit.runs.directory.folders import read_command
from tests.refusals import refused
from tests.report.runs import a_run, record, write_run


def test_a_run_is_named_by_its_config(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run", [0.5], seed=7, method={"name": "scaffold"})
    assert (run.folder, run.method, run.seed, run.label) == (tmp_path / "run", "scaffold", 7, "scaffold")


def test_a_given_label_replaces_the_methods_name(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run", [0.5], "labels only")
    assert (run.method, run.label) == ("fedavg+fixmatch", "labels only")


def test_control_characters_are_removed_from_a_label(tmp_path: Path) -> None:
    assert a_run(tmp_path / "run", [0.5], "red\x1b[31m\nline").label == "red [31m line"


def test_the_curve_has_evaluated_rounds_only_counted_from_one(tmp_path: Path) -> None:
    assert a_run(tmp_path / "run", [None, 0.25, None, 0.5]).accuracy_curve == [(2, 0.25), (4, 0.5)]


def test_without_a_global_model_the_curve_is_the_clients_average(tmp_path: Path) -> None:
    rounds = [record(0, None, local_accuracy=0.25), record(1, None, local_accuracy=0.5)]
    run = load(write_run(tmp_path / "run", rounds))
    assert run.local
    assert run.accuracy_curve == [(1, 0.25), (2, 0.5)]


def test_the_curve_of_a_global_model_ignores_the_clients_models(tmp_path: Path) -> None:
    rounds = [record(0, None, local_accuracy=0.9), record(1, 0.5, local_accuracy=0.9)]
    run = load(write_run(tmp_path / "run", rounds))
    assert not run.local
    assert run.accuracy_curve == [(2, 0.5)]


def test_last5_is_the_mean_of_the_last_five_evaluations(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run", [0.9, 0.1, None, 0.2, 0.3, None, 0.4, 0.5])
    assert run.last5 == pytest.approx((0.1 + 0.2 + 0.3 + 0.4 + 0.5) / 5)
    assert run.best == 0.9


def test_last5_of_a_short_run_is_the_mean_of_all_evaluations(tmp_path: Path) -> None:
    assert a_run(tmp_path / "run", [0.25, 0.75]).last5 == 0.5


def test_costs_are_sums_over_rounds(tmp_path: Path) -> None:
    trained = {"steps": 4.0}  # at the server, in the second round
    rounds = [record(0, 0.1, bytes_up=3, bytes_down=5), record(1, 0.1, bytes_up=7, bytes_down=11, server=trained)]
    run = load(write_run(tmp_path / "run", rounds))
    assert (run.bytes_up, run.bytes_down) == (3 + 7, 5 + 11)
    assert run.spent(lambda record: record.all_bytes) == {1: 8, 2: 8 + 18}
    assert (run.steps, run.seconds) == (10 + 10 + 4, 2.0 + 2.0)


def test_skipped_clients_are_counted_by_reason(tmp_path: Path) -> None:
    lost = {"3": "upload lost", "5": "upload lost"}
    rounds = [record(0, 0.1, skipped=lost), record(1, 0.1, skipped={"3": "too late"})]
    assert load(write_run(tmp_path / "run", rounds)).skipped == {"upload lost": 2, "too late": 1}


def test_a_run_with_all_its_rounds_is_finished(tmp_path: Path) -> None:
    assert a_run(tmp_path / "done", [0.1, 0.2]).finished
    assert not a_run(tmp_path / "half", [0.1, 0.2], rounds=3).finished


@pytest.mark.parametrize(
    "data, words",
    [
        ({"labels": "server", "n_labels": 50}, "50 labels"),
        ({"labels": "server", "n_labels": 1}, "1 label"),
        ({"labels": "server", "per_class": 5}, "5 labels per class"),
        ({"labels": "client", "per_class": 1}, "1 label per class at each client"),
        ({"labels": "client", "per_class": 5}, "5 labels per class at each client"),
        ({"labels": "some", "per_class": 5}, "5 labels per class at each labeled client"),
        ({"labels": "client", "label_fraction": 0.1}, "10 % of the labels"),
        ({"labels": "all"}, "all labels"),
        ({"labels": "some", "labeled_clients": 0.1}, ""),
        ({}, ""),
    ],
)
def test_the_number_of_labels_in_words(tmp_path: Path, data: dict[str, Any], words: str) -> None:
    assert a_run(tmp_path / "run", [0.5], data=data).labels == words


def test_runs_are_grouped_by_label_in_order_of_appearance(tmp_path: Path) -> None:
    runs = [a_run(tmp_path / str(n), [0.5], label) for n, label in enumerate(("b", "a", "b"))]
    assert by_label(runs) == {"b": [runs[0], runs[2]], "a": [runs[1]]}


def test_an_incomplete_last_line_is_ignored(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", [record(0, 0.5)], rounds=2)
    with (folder / "rounds.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"round": 1, "accur')
    run = load(folder)
    assert run.accuracy_curve == [(1, 0.5)]
    assert not run.finished


@pytest.mark.parametrize("line", ['{"round": 1, "accur\n', "[1, 2]\n", '{"round": 1}\n', "\n"])
def test_a_broken_log_is_refused_with_its_folder(tmp_path: Path, line: str) -> None:
    folder = write_run(tmp_path / "run", [record(0, 0.5)])
    with (folder / "rounds.jsonl").open("a", encoding="utf-8") as file:
        file.write(line)
    with refused("run.broken-log") as refusal:
        load(folder)
    assert str(folder) in refusal.error.problem


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    with refused("run.no-folder"):
        load(tmp_path / "none")


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with refused("run.none"):
        load(tmp_path)


@pytest.mark.parametrize("text", ["seed =", "seed = 0\nrounds = 1", 'seed = 0\nrounds = 1\nmethod = "fedavg"'])
def test_a_broken_config_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.toml").write_text(text, encoding="utf-8")
    with refused("run.broken-config"):
        load(tmp_path)


def test_a_run_without_an_evaluated_round_is_refused(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", [record(0, None)], rounds=10)
    with refused("report.no-round"):
        load(folder)
    (folder / "rounds.jsonl").unlink()
    with refused("report.no-round"):
        load(folder)


def test_a_folder_name_with_spaces_is_quoted_in_the_remedy(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "my run", [record(0, None)])
    with refused("report.no-round") as refusal:
        load(folder)
    assert f"`tacit resume '{folder}'`" in refusal.error.remedy


def test_a_folder_may_hold_runs_without_an_evaluated_round(tmp_path: Path) -> None:
    write_run(tmp_path / "all/fedavg/seed-0", [record(0, 0.5)], rounds=2)
    write_run(tmp_path / "all/fedprox/seed-0", [record(0, None)], rounds=2)
    runs = load_all(tmp_path / "all")
    assert [(run.label, len(run.accuracy_curve)) for run in runs] == [("fedavg", 1), ("fedprox", 0)]
    assert evaluated(runs) == runs[:1]
    with refused("report.no-round") as refusal:
        evaluated(runs[1:])
    assert "fedprox/seed-0" in refusal.error.problem


def test_a_metric_is_read_from_the_rounds_that_logged_it(tmp_path: Path) -> None:
    values = {"mean": 0.5, "min": 0.25, "max": 1.0}
    metrics = [{"pseudo_kept": values}, {}, {"pseudo_kept": values | {"max": None}}]
    rounds = [record(n, 0.1, metrics=each) for n, each in enumerate(metrics)]
    run = load(write_run(tmp_path / "run", rounds))
    assert run.metric("pseudo_kept") == {1: (0.5, 0.25, 1.0)}
    assert run.metric("pseudo_accuracy") == {}


def test_runs_are_named_by_the_folders_in_between(tmp_path: Path) -> None:
    for place in ("run", "some/one", "all/fedavg/seed-0", "all/fedavg/seed-1", "table/iid/moon/seed-0"):
        a_run(tmp_path / place, [0.5])
    a_run(tmp_path / "table/iid/moon/seed-0.old-1234", [0.5])
    named = {
        name: [(run.group, run.label) for run in load_all(tmp_path / name)] for name in ("run", "some", "all", "table")
    }
    assert named == {
        "run": [("", "fedavg+fixmatch")],
        "some": [("", "one")],
        "all": [("", "fedavg"), ("", "fedavg")],
        "table": [("iid", "moon")],
    }
    assert {group: len(runs) for group, runs in by_group(load_all(tmp_path / "table")).items()} == {"iid": 1}


def test_the_command_of_a_folder_is_read_if_it_was_written(tmp_path: Path) -> None:
    assert read_command(tmp_path) == ""
    (tmp_path / "command.txt").write_text("tacit demo\n", encoding="utf-8")
    assert read_command(tmp_path) == "tacit demo"


def test_runs_of_other_settings_or_equal_seeds_get_distinct_labels(tmp_path: Path) -> None:
    one, two = (a_run(tmp_path / name, [0.5], seed=seed) for name, seed in (("one", 0), ("two", 1)))
    assert [run.label for run in disambiguate([one, two])] == [one.label, one.label]  # two seeds of one row
    again = a_run(tmp_path / "again", [0.5], seed=0)
    assert [run.label for run in disambiguate([one, again])] == [f"{one.label} (one)", f"{one.label} (again)"]
    longer = a_run(tmp_path / "longer", [0.5], seed=1, rounds=7)
    assert [run.label for run in disambiguate([one, longer])] == [f"{one.label} (one)", f"{one.label} (longer)"]


def test_a_folder_of_several_benchmarks_is_refused_with_one_of_them(tmp_path: Path) -> None:
    a_run(tmp_path / "table/iid/moon/seed-0", [0.5])
    with refused("report.several-benchmarks") as refusal:
        load_all(tmp_path)
    assert str(tmp_path / "table") in refusal.error.remedy
    (tmp_path / "empty").mkdir()
    with refused("run.none"):
        load_all(tmp_path / "empty")
