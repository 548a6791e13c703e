"""The format of a benchmark: what is read, how settings are merged, and which mistakes are refused."""

from pathlib import Path

import pytest

from tacit import errors
from tacit.bench import plan, spec
from tacit.errors import TacitError
from tacit.runs.protection import spent_by
from tests.bench import small
from tests.refusals import refused

ROOT = Path(__file__).parents[2]


def test_a_file_is_read(tmp_path: Path) -> None:
    benchmark = spec.read(small.write(tmp_path))
    assert benchmark.name == "small-table"
    assert list(benchmark.columns) == ["iid", "classes"]
    assert benchmark.rows["fixmatch"].columns == ["iid"]
    assert benchmark.published["fedavg"] == {"iid": 95.13, "classes": 40.0}
    assert [caveat.concerns("fedavg", "iid") for caveat in benchmark.caveats] == [True, False]
    assert [caveat.concerns("fixmatch", "iid") for caveat in benchmark.caveats] == [True, True]


def test_a_title_defaults_to_the_name(tmp_path: Path) -> None:
    benchmark = spec.read(small.changed(tmp_path, 'title = "IID"\n', ""))
    assert benchmark.columns["iid"].title == "iid"


@pytest.mark.parametrize(
    "old, new, code, named",
    [
        ('title = "A small table"', "", "bench.missing-section", "title"),
        ("[published.fedavg]", "[published.fedavk]", "names.unknown-row", "published"),
        ("iid = 97.5", "iit = 97.5", "names.unknown-column", "published.fixmatch"),
        ('columns = ["iid"]\n\n', 'columns = ["uid"]\n\n', "names.unknown-column", "rows.fixmatch.columns"),
        ('rows = ["fixmatch"]', 'rows = ["fixmash"]', "names.unknown-row", "caveats"),
        ('why = "its helpers too"', "", "bench.caveat-without-reason", "why"),
        ("seeds = [0]", 'bounds = ["no-labels"]', "names.unknown-bound", "no-labels"),
    ],
)
def test_a_mistake_in_the_file_is_refused_with_its_place(
    tmp_path: Path, old: str, new: str, code: str, named: str
) -> None:
    path = small.changed(tmp_path, old, new)
    with refused(code) as refusal:
        spec.read(path)
    assert str(refusal.error).startswith(f"{path}: ")
    assert named in str(refusal.error)


@pytest.mark.parametrize(
    "old, new, named",
    [
        ("[columns.iid]", "[column.iid]", "'columns'"),
        ('title = "FedAvg"', 'titel = "FedAvg"', "rows.fedavg"),
        ("iid = 97.5", "iid = 975", "published"),
        ("seeds = [0]", "seeds = []", "seeds"),
        ("seeds = [0]", "seeds = [-1]", "seeds"),
        ("[rows.fedavg]", '[rows."../fedavg"]', "small letters, digits"),
        ("seeds = [0]", "seeds = [0", "TOML"),
    ],
)
def test_a_wrong_name_or_value_is_refused_with_the_path_of_the_file(
    tmp_path: Path, old: str, new: str, named: str
) -> None:
    path = small.changed(tmp_path, old, new)
    with pytest.raises(TacitError) as caught:
        spec.read(path)
    assert str(path) in str(caught.value)
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


def test_settings_may_consist_of_sections_only(tmp_path: Path) -> None:
    assert spec.read(small.changed(tmp_path, "[settings]\nrounds = 3\n", "")).settings.keys() >= {"data", "train"}


def test_caveats_may_still_be_spelled_doubts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    errors.notice_renamed.cache_clear()
    new = spec.read(small.write(tmp_path))
    assert spec.read(small.changed(tmp_path, "[[caveats]]", "[[doubts]]")) == new
    assert capsys.readouterr().err == "tacit: [[doubts]] is now [[caveats]]\n"


def test_a_file_without_rows_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "empty.toml"
    path.write_text('title = "Nothing"\n[settings]\n[columns]\n[rows]\n')
    with refused("bench.no-cells"):
        spec.read(path)


def test_sections_are_merged_and_other_values_replaced() -> None:
    below = {"rounds": 3, "train": {"lr": 0.1, "batch": 6}, "net": {"name": "cnn"}}
    above = {"rounds": 5, "train": {"lr": 0.2}, "data": {"clients": 4}}
    both = {"rounds": 5, "train": {"lr": 0.2, "batch": 6}, "net": {"name": "cnn"}, "data": {"clients": 4}}
    assert spec.merged(below, above) == both
    assert below["train"] == {"lr": 0.1, "batch": 6}


def test_an_amount_of_labels_replaces_an_earlier_one() -> None:
    layers = ({"data": {"per_class": 2, "clients": 4}}, {"data": {"clients": 5}}, {"data": {"n_labels": 30}})
    assert spec.merged(*layers)["data"] == {"n_labels": 30, "clients": 5}


def test_quick_overrides_the_row_and_the_row_overrides_the_column(tmp_path: Path) -> None:
    text = small.TOML.replace('settings.data.partition = "iid"', "settings.rounds = 4\nsettings.train.lr = 0.5")
    text = text.replace('settings.objective.view = "plain"', "settings.rounds = 5")
    benchmark = spec.read(small.write(tmp_path, text))
    column, row = benchmark.columns["iid"], benchmark.rows["fedavg"]
    assert [benchmark.tree(column, None, False)["rounds"], benchmark.tree(column, row, False)["rounds"]] == [4, 5]
    assert benchmark.tree(column, row, True)["rounds"] == 1
    assert benchmark.tree(column, row, True)["train"] == {"lr": 0.5, "steps": 1, "batch": 6}


def test_benchmarks_are_found_by_name_in_both_spellings_and_by_path(tmp_path: Path) -> None:
    assert spec.folder() == ROOT / "benchmarks"
    for name in ("fedsiam-table5-mnist", "fedsiam_table5_mnist"):
        assert spec.find(name).path == ROOT / "benchmarks/fedsiam_table5_mnist.toml"
    assert spec.find(str(small.write(tmp_path))).title == "A small table"
    for name, code in (
        ("fedsiam-table-mnist", "names.unknown-benchmark"),
        ("fedsiam-table5-mnist-quick", "bench.quick-suffix"),
        ("fedsiam", "bench.ambiguous"),
    ):
        with refused(code):
            spec.find(name)
    with pytest.raises(TacitError) as caught:
        spec.find("nowhere.toml")
    assert "nowhere.toml" in str(caught.value)


def test_an_installed_package_includes_its_benchmarks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a wheel: tacit/_benchmarks next to tacit/bench, and no checkout around it."""
    package = tmp_path / "lib/site-packages/tacit"
    (package / "_benchmarks").mkdir(parents=True)
    (package / "_benchmarks/some_table.toml").touch()
    monkeypatch.setattr(spec, "HERE", package / "bench/spec.py")
    assert spec.names() == {"some-table": package / "_benchmarks/some_table.toml"}


@pytest.mark.parametrize("name", spec.names())
def test_every_benchmark_of_the_package_is_valid(name: str) -> None:
    benchmark = spec.find(name)
    assert benchmark.about
    assert benchmark.paper
    assert plan.cells(benchmark)
    if benchmark.quick is not None:
        assert plan.cells(benchmark, quick=True)


def test_the_columns_of_the_privacy_table_name_the_epsilon_of_their_runs() -> None:
    for cell in plan.cells(spec.find("privacy")):
        protect = cell.config.protect
        if not protect.hides_clients:
            continue
        found = spent_by(cell.config)
        assert found.delta == 1e-5
        assert cell.column.title == f"noise {protect.client_noise:g}: {found.text.partition(' at ')[0]}"
