"""The format of a benchmark: what is read, how settings lie over each other, and every mistake in one sentence."""

from pathlib import Path

import pytest

from tacit.bench import cells, files
from tacit.errors import TacitError
from tests.bench import small

ROOT = Path(__file__).parents[2]


def test_a_file_is_read(tmp_path: Path) -> None:
    benchmark = files.read(small.write(tmp_path))
    assert benchmark.name == "small-table"
    assert list(benchmark.columns) == ["iid", "classes"]
    assert benchmark.rows["fixmatch"].columns == ["iid"]
    assert benchmark.published["fedavg"] == {"iid": 95.13, "classes": 40.0}
    assert [doubt.concerns("fedavg", "iid") for doubt in benchmark.doubts] == [True, False]
    assert [doubt.concerns("fixmatch", "iid") for doubt in benchmark.doubts] == [True, True]


def test_titles_are_names_where_none_is_given(tmp_path: Path) -> None:
    benchmark = files.read(small.changed(tmp_path, 'title = "IID"\n', ""))
    assert benchmark.columns["iid"].title == "iid"


@pytest.mark.parametrize(
    "old, new, said",
    [
        ('title = "A small table"', "", "title is missing: a benchmark has title, "),
        ("[settings]\nrounds = 3\n", "", None),  # [settings.data] is still a section
        ("[columns.iid]", "[column.iid]", "unknown setting in benchmark 'column': did you mean 'columns'?"),
        ('title = "FedAvg"', 'titel = "FedAvg"', "unknown setting in rows.fedavg 'titel': did you mean 'title'?"),
        ("[published.fedavg]", "[published.fedavk]", "unknown row in published 'fedavk': did you mean 'fedavg'?"),
        ("iid = 97.5", "iit = 97.5", "unknown column in published.fixmatch 'iit': did you mean 'iid'?"),
        ("iid = 97.5", "iid = 975", "less than or equal to 100"),
        ('columns = ["iid"]\n\n', 'columns = ["uid"]\n\n', "unknown column in rows.fixmatch.columns 'uid'"),
        ('rows = ["fixmatch"]', 'rows = ["fixmash"]', "unknown row in doubts 'fixmash': did you mean 'fixmatch'?"),
        ('why = "its helpers too"', "", "a doubt has no reason"),
        ("seeds = [0]", "seeds = []", "at least 1 item"),
        ("seeds = [0]", "seeds = [-1]", "greater than or equal to 0"),
        ("seeds = [0]", 'bounds = ["no-labels"]', "unknown bound 'no-labels': did you mean 'all-labels'?"),
        ("[rows.fedavg]", '[rows."../fedavg"]', "each name in it should be small letters, digits, '.'"),
        ("seeds = [0]", "seeds = [0", "is not valid TOML"),
    ],
)
def test_a_wrong_file_is_one_sentence(tmp_path: Path, old: str, new: str, said: str | None) -> None:
    path = small.changed(tmp_path, old, new)
    if said is None:
        files.read(path)
        return
    with pytest.raises(TacitError) as caught:
        files.read(path)
    assert str(path) in str(caught.value)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_without_rows_has_nothing_to_run(tmp_path: Path) -> None:
    path = tmp_path / "empty.toml"
    path.write_text('title = "Nothing"\n[settings]\n[columns]\n[rows]\n')
    with pytest.raises(TacitError, match="there is nothing to run"):
        files.read(path)


def test_sections_are_merged_and_anything_else_is_replaced() -> None:
    below = {"rounds": 3, "train": {"lr": 0.1, "batch": 6}, "net": {"name": "cnn"}}
    above = {"rounds": 5, "train": {"lr": 0.2}, "data": {"clients": 4}}
    both = {"rounds": 5, "train": {"lr": 0.2, "batch": 6}, "net": {"name": "cnn"}, "data": {"clients": 4}}
    assert files.merged(below, above) == both
    assert below["train"] == {"lr": 0.1, "batch": 6}


def test_an_amount_of_labels_takes_the_place_of_another() -> None:
    layers = ({"data": {"per_class": 2, "clients": 4}}, {"data": {"clients": 5}}, {"data": {"n_labels": 30}})
    assert files.merged(*layers)["data"] == {"n_labels": 30, "clients": 5}


def test_quick_wins_over_the_row_and_the_row_over_the_column(tmp_path: Path) -> None:
    text = small.TOML.replace('settings.data.partition = "iid"', "settings.rounds = 4\nsettings.train.lr = 0.5")
    text = text.replace('settings.objective.view = "plain"', "settings.rounds = 5")
    benchmark = files.read(small.write(tmp_path, text))
    column, row = benchmark.columns["iid"], benchmark.rows["fedavg"]
    assert [benchmark.tree(column, None, False)["rounds"], benchmark.tree(column, row, False)["rounds"]] == [4, 5]
    assert benchmark.tree(column, row, True)["rounds"] == 1
    assert benchmark.tree(column, row, True)["train"] == {"lr": 0.5, "steps": 1, "batch": 6}


def test_benchmarks_are_found_by_name_in_both_spellings_and_by_path(tmp_path: Path) -> None:
    assert files.folder() == ROOT / "benchmarks"
    for name in ("fedsiam-table5-mnist", "fedsiam_table5_mnist"):
        assert files.find(name).path == ROOT / "benchmarks/fedsiam_table5_mnist.toml"
    assert files.find(str(small.write(tmp_path))).title == "A small table"
    with pytest.raises(
        TacitError, match="unknown benchmark 'fedsiam-table-mnist': did you mean 'fedsiam-table5-mnist'"
    ):
        files.find("fedsiam-table-mnist")
    with pytest.raises(TacitError, match="there is no file nowhere.toml"):
        files.find("nowhere.toml")


def test_an_installed_package_brings_its_benchmarks_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a wheel: tacit/_benchmarks beside tacit/bench, and no checkout around it."""
    package = tmp_path / "lib/site-packages/tacit"
    (package / "_benchmarks").mkdir(parents=True)
    (package / "_benchmarks/some_table.toml").touch()
    monkeypatch.setattr(files, "HERE", package / "bench/files.py")
    assert files.names() == {"some-table": package / "_benchmarks/some_table.toml"}


@pytest.mark.parametrize("name", files.names())
def test_every_benchmark_of_the_package_is_valid(name: str) -> None:
    benchmark = files.find(name)
    assert benchmark.about
    assert benchmark.paper
    assert cells.spots(benchmark)
    if benchmark.quick is not None:
        assert cells.spots(benchmark, quick=True)
