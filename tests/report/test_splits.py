from pathlib import Path

import pytest

from tacit.report import export, splits
from tacit.report.page import page
from tests.refusals import refused
from tests.report.runs import a_run, write_counts

LABELED = [[1, 0, 0], [0, 2, 0]]
UNLABELED = [[3, 4, 0], [0, 5, 1]]


def test_a_partition_is_read_and_described(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run", [0.5], data={"name": "/data/mine.npz", "partition": "classes:2"})
    write_counts(run, "one", LABELED, UNLABELED)
    (partition,) = splits.distinct([run])
    assert partition.title == "mine.npz, classes:2, 2 clients, R = 0.25"
    # client 0 has 1 + 3 + 4 samples, client 1 has 2 + 5 and one of unknown class
    assert partition.alt_text == (
        "Heat map of 2 clients and 2 classes. A client holds 8 samples of 1 to 2 classes, 1 to 2 of them labeled. "
        "The server has 2 labels."
    )
    assert [axes.get_title(loc="left") for axes in partition.figure().axes if axes.get_title(loc="left")] == [
        "all samples",
        "labeled samples",
    ]


def test_each_partition_is_shown_once_with_its_runs(tmp_path: Path) -> None:
    runs = [a_run(tmp_path / str(n), [0.5], label, seed=n) for n, label in enumerate(("a", "a", "b"))]
    for run, name in zip(runs, ("one", "one", "two"), strict=True):
        write_counts(run, name, LABELED, UNLABELED)
    assert [[run.seed for run in partition.runs] for partition in splits.distinct(runs)] == [[0, 1], [2]]
    text = page(runs)
    assert "<details open>\n<summary>a, seeds 0, 1</summary>\n<figure class='paper'>" in text
    assert "<details>\n<summary>b, seed 2</summary>\n<figure class='paper'>" in text
    assert "Not recorded" not in text


@pytest.mark.parametrize("text", ["", "{}", '{"counts": {}}', '{"hash": "x", "counts": {"classes": ["a"]}}'])
def test_without_a_recorded_partition_the_page_names_a_command(tmp_path: Path, text: str) -> None:
    run = a_run(tmp_path / "run", [0.5])
    (run.folder / "split.json").write_text(text, encoding="utf-8")
    assert splits.distinct([run]) == []
    assert f"tacit data {tmp_path}/run/config.toml shows it where the data is available." in page([run])


def test_a_hub_without_the_data_of_its_sites_has_no_map(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run", [0.5])
    write_counts(run, "one", [[0, 0, 0]] * 2, [[0, 0, 0]] * 2)
    assert splits.distinct([run]) == []


def test_every_plot_can_be_written_to_a_file(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run", [0.5], "x")
    write_counts(run, "one", LABELED, UNLABELED)
    written = export.write([run], tmp_path / "plots", "svg")
    names = ["accuracy-rounds", "accuracy-bytes", "accuracy-steps", "accuracy-time", "partition"]
    assert [path.name for path in written] == [f"{name}.svg" for name in names]
    assert sorted(written) == sorted((tmp_path / "plots").iterdir())
    with refused("names.unknown-format"):
        export.write([run], tmp_path / "other", "gif")
    assert not (tmp_path / "other").exists()
