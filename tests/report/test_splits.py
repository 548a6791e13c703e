from pathlib import Path

import pytest

from tacit.errors import TacitError
from tacit.report import pictures, splits
from tacit.report.page import page
from tests.report.runs import a_run, deal

LABELED = [[1, 0, 0], [0, 2, 0]]
UNLABELED = [[3, 4, 0], [0, 5, 1]]


def test_who_holds_what_is_read_and_told(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run", [0.5], data={"name": "/data/mine.npz", "partition": "classes:2"})
    deal(run, "one", LABELED, UNLABELED)
    (dealt,) = splits.distinct([run])
    assert dealt.title == "mine.npz, classes:2, 2 clients, R = 0.25"
    # client 0 has 1 + 3 + 4 samples, client 1 has 2 + 5 and one of no known class
    assert dealt.spoken == (
        "Heat map of 2 clients and 2 classes. A client holds 8 samples of 1 to 2 classes, 1 to 2 of them labeled. "
        "The server has 2 labels."
    )
    assert [axes.get_title(loc="left") for axes in dealt.figure().axes if axes.get_title(loc="left")] == [
        "all samples",
        "labeled samples",
    ]


def test_each_split_is_shown_once_with_its_runs(tmp_path: Path) -> None:
    runs = [a_run(tmp_path / str(n), [0.5], label, seed=n) for n, label in enumerate(("a", "a", "b"))]
    for run, name in zip(runs, ("one", "one", "two"), strict=True):
        deal(run, name, LABELED, UNLABELED)
    assert [[run.seed for run in dealt.runs] for dealt in splits.distinct(runs)] == [[0, 1], [2]]
    text = page(runs)
    assert "<details open>\n<summary>a, seeds 0, 1</summary>\n<figure class='paper'>" in text
    assert "<details>\n<summary>b, seed 2</summary>\n<figure class='paper'>" in text
    assert "The runs do not say" not in text


@pytest.mark.parametrize("text", ["", "{}", '{"counts": {}}', '{"hash": "x", "counts": {"classes": ["a"]}}'])
def test_a_run_that_did_not_write_it_down_is_told_how_to_see_it(tmp_path: Path, text: str) -> None:
    run = a_run(tmp_path / "run", [0.5])
    (run.folder / "split.json").write_text(text, encoding="utf-8")
    assert splits.distinct([run]) == []
    assert f"tacit data {tmp_path}/run/config.toml shows it where the data is at hand." in page([run])


def test_a_hub_that_holds_nothing_for_its_sites_has_no_map(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run", [0.5])
    deal(run, "one", [[0, 0, 0]] * 2, [[0, 0, 0]] * 2)
    assert splits.distinct([run]) == []


def test_every_plot_is_a_file_on_request(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run", [0.5], "x")
    deal(run, "one", LABELED, UNLABELED)
    written = pictures.write([run], tmp_path / "plots", "svg")
    names = ["accuracy-rounds", "accuracy-bytes", "accuracy-steps", "accuracy-time", "partition"]
    assert [path.name for path in written] == [f"{name}.svg" for name in names]
    assert sorted(written) == sorted((tmp_path / "plots").iterdir())
    with pytest.raises(TacitError, match="unknown format 'gif': choose one of pdf, png, svg"):
        pictures.write([run], tmp_path / "other", "gif")
    assert not (tmp_path / "other").exists()
