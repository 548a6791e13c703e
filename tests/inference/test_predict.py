"""`tacit predict`: one table for all inputs, the same for any number of workers and after an interruption."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow
import pytest
import torch
from PIL import Image
from pyarrow import parquet

import tacit
from tacit.inference import drift, to_label
from tacit.inference.drift import Seen
from tacit.inference.model import Model
from tacit.inference.output import rows_of
from tacit.inference.predict_paths import Summary, predict_paths
from tacit.inference.prediction import Columns, predict_block
from tacit.inference.reference import Reference
from tacit.inference.samples import blocks
from tacit.runs.result import saved_model
from tests.cli.shell import Shell, code_of, fits
from tests.data.tables import cancer, write_csv
from tests.engines.farm import PATIENCE
from tests.inference import trained


@pytest.fixture(scope="module")
def scans(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scans")
    trained.image_folder(folder)
    (folder / "scans").rename(folder / "moved")
    return folder


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cells")
    trained.table(folder)
    return folder


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Shell:
    return Shell(monkeypatch, capsys, tmp_path)


def rows(path: Path) -> list[dict[str, str]]:
    return list(rows_of(path))


def test_a_folder_becomes_a_table_and_unreadable_files_do_not_stop_it(shell: Shell, scans: Path) -> None:
    test = scans / "moved" / "test"
    (shell.folder / "new").mkdir()
    for path in sorted(test.rglob("*.png")):
        (shell.folder / "new" / f"{path.parent.name}-{path.name}").write_bytes(path.read_bytes())
    (shell.folder / "new" / "broken.png").write_bytes(b"no image")
    (shell.folder / "new" / ".hidden").write_bytes(b"")
    (shell.folder / "new" / "z\x1b[31m.png").write_bytes(b"no image")
    said = shell("predict", scans / "run", "new", "--proba", "--top", 2, "--workers", 2)
    assert (said.code, said.err) == (0, "")
    assert "2 of 26 samples could not be read" in said.out
    assert "\x1b" not in said.out
    assert "new/broken.png" in said.out
    assert fits(said.out)
    table = rows(shell.folder / "predictions.csv")
    assert [row["path"] for row in table] == [str(path) for path in sorted(Path("new").glob("[!.]*"))]
    model = tacit.load(scans / "run")
    good = [row for row in table if not row["problem"]]
    p = model.predict_proba([row["path"] for row in good])
    assert [row["prediction"] for row in good] == [model.classes[k] for k in p.argmax(axis=1)]
    assert np.allclose([[float(row[f"p({name})"]) for name in model.classes] for row in good], p, atol=1e-6)
    assert all(row["top_1"] == row["prediction"] and row["p_1"] == row["confidence"] for row in good)
    assert {path.name for path in shell.folder.iterdir()} == {"new", "predictions.csv"}
    before = (shell.folder / "predictions.csv").read_bytes()
    for workers in (0, 1):
        assert shell("predict", scans / "run", "new", "--proba", "--top", 2, "--workers", workers).code == 0
        assert (shell.folder / "predictions.csv").read_bytes() == before


def test_few_samples_are_printed_one_by_one_and_unsure_ones_said(shell: Shell, scans: Path) -> None:
    noise = np.random.default_rng(1).integers(0, 255, (50, 50), dtype=np.uint8)
    Image.fromarray(noise).save(shell.folder / "a [b].png")
    said = shell("predict", scans / "run", "a [b].png", "--threshold", 1, "-o", "out/p.csv", "--workers", 0)
    assert said.code == 0
    assert "a [b].png" in said.out
    assert "1 of 1 answers are unsure" in said.out
    assert rows(shell.folder / "out" / "p.csv")[0]["prediction"] == "unsure"


def test_tables_and_arrays_of_any_format_give_the_same_answers(shell: Shell, cells: Path) -> None:
    x, _, names = cancer()
    x = x[:70]
    write_csv(shell.folder / "a.csv", ["id", *names[::-1]], [[n, *row[::-1].tolist()] for n, row in enumerate(x)])
    columns = {name: x[:, place] for place, name in enumerate(names)}
    parquet.write_table(pyarrow.table(columns), shell.folder / "a.parquet")
    np.savez(shell.folder / "a.npz", x=x[:, ::-1], features=np.array(names[::-1]))
    np.save(shell.folder / "a.npy", x)
    expected = list(tacit.load(cells / "run").predict(x))
    for name in ("a.csv", "a.parquet", "a.npz", "a.npy"):
        said = shell("predict", cells / "run", name, "--workers", 0)
        assert (said.code, said.err) == (0, "")
        found = rows(shell.folder / "predictions.csv")
        assert [row["prediction"] for row in found] == expected
        assert [row["path"] for row in found] == [f"{name}#{number}" for number in range(70)]


def test_a_row_without_a_value_is_said_and_the_others_predicted(shell: Shell, cells: Path) -> None:
    x, _, names = cancer()
    lines = [list(map(str, row)) for row in x[:3].tolist()]
    lines[1][4] = ""
    write_csv(shell.folder / "a.csv", names, [*lines, lines[0][:7]])
    assert shell("predict", cells / "run", "a.csv", "--workers", 0).code == 0
    found = rows(shell.folder / "predictions.csv")
    assert [bool(row["problem"]) for row in found] == [False, True, False, True]
    assert names[4] in found[1]["problem"]


def test_lists_of_images_are_read_relative_to_the_list(shell: Shell, scans: Path) -> None:
    write_csv(
        scans / "moved" / "list.csv", ["path", "label"], [["test/left/00.png", "left"], ["test/right/01.png", ""]]
    )
    shell("predict", scans / "run", scans / "moved" / "list.csv", "--workers", 0)
    assert [Path(row["path"]).name for row in rows(shell.folder / "predictions.csv")] == ["00.png", "01.png"]


def test_texts_are_read_from_lines_and_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained.text(tmp_path, monkeypatch)
    model = tacit.load(tmp_path / "run")
    texts = ["the quick", "lazy dog ju", ""]
    (tmp_path / "a.txt").write_text("\n".join(texts) + "\n")
    write_csv(tmp_path / "a.csv", ["text"], [[text] for text in texts[:2]])
    assert np.array_equal(model.predict(tmp_path / "a.txt"), model.predict(texts))
    assert np.array_equal(model.predict(tmp_path / "a.csv"), model.predict(texts[:2]))


@pytest.mark.slow
def test_workers_end_when_the_main_process_is_killed(cells: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", cancer()[0].repeat(200, axis=0))
    words = ["predict", str(cells / "run"), str(tmp_path / "a.npy"), "-o", str(tmp_path / "p.csv"), "--workers", "2"]
    with subprocess.Popen([sys.executable, "-m", "tacit", *words], start_new_session=True) as main:
        until = time.monotonic() + PATIENCE
        while not (tmp_path / "p.csv.progress").exists() and time.monotonic() < until:
            time.sleep(0.05)
        main.kill()
    while _alive(main.pid) and time.monotonic() < until:
        time.sleep(0.05)
    assert not _alive(main.pid)


def _alive(group: int) -> bool:
    """Whether a process of a group is left."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


class Stopped(BaseException):
    """Stands for a signal."""


def predicted(run: Path, paths: list[str], out: Path, follow: Callable[[int], None] = print) -> Summary:
    model = tacit.load(run)
    return predict_paths(paths, out, model, partial(saved_model.load, run), Columns(model.classes), 0, follow)


def test_an_interrupted_table_continues_and_has_the_same_bytes(cells: Path, tmp_path: Path) -> None:
    x, _, _ = cancer()
    np.save(tmp_path / "a.npy", x)
    paths, out = [str(tmp_path / "a.npy")], tmp_path / "p.csv"
    predicted(cells / "run", paths, tmp_path / "whole.csv")

    def stop(done: int) -> None:
        if done == 192:
            raise Stopped

    with pytest.raises(Stopped):
        predicted(cells / "run", paths, out, stop)
    assert not out.exists()
    with (tmp_path / "p.csv.partial").open("ab") as file:
        file.write(b"rows that a killed process wrote but did not note")
    steps: list[int] = []
    summary = predicted(cells / "run", paths, out, steps.append)
    assert steps[0] == 192
    assert summary.samples == 569
    assert out.read_bytes() == (tmp_path / "whole.csv").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.npy", "p.csv", "whole.csv"]


def test_a_table_of_other_samples_begins_again(scans: Path, tmp_path: Path) -> None:
    image = (scans / "moved" / "test" / "left" / "00.png").read_bytes()
    for number in range(70):
        (tmp_path / "new" / f"{number:02}.png").parent.mkdir(exist_ok=True)
        (tmp_path / "new" / f"{number:02}.png").write_bytes(image)

    def stop(done: int) -> None:
        if done == 64:
            raise Stopped

    with pytest.raises(Stopped):
        predicted(scans / "run", [str(tmp_path / "new")], tmp_path / "p.csv", stop)
    (tmp_path / "new" / "00.png").rename(tmp_path / "new" / "000.png")
    steps: list[int] = []
    predicted(scans / "run", [str(tmp_path / "new")], tmp_path / "p.csv", steps.append)
    assert steps[0] == 0
    assert rows(tmp_path / "p.csv")[0]["path"].endswith("000.png")


def test_wrong_options_and_paths_are_refused(shell: Shell, cells: Path) -> None:
    x, _, _ = cancer()
    np.save("a.npy", x[:3])
    run = cells / "run"
    Path("mine.csv").write_text("a,b\n1,2\n")
    for words, code in (
        ((run, "gone/*.csv"), "predict.no-such-path"),
        ((run, "a.npy", "--threshold", 1.5), "predict.bad-threshold"),
        ((run, "a.npy", "--top", 3), "predict.bad-top"),
        ((run, "a.npy", "-o", "mine.csv"), "predict.other-file"),
        ((run, "mine.csv"), "predict.missing-column"),
        ((run, "."), "predict.is-folder"),
        (("gone", "a.npy"), "model.no-file"),
    ):
        assert code_of("predict", *words, "--workers", 0) == code
    assert Path("mine.csv").read_text() == "a,b\n1,2\n"


def test_samples_to_label_are_uncertain_and_differ_from_each_other(shell: Shell, cells: Path) -> None:
    x, _, _ = cancer()
    np.save(shell.folder / "a.npy", np.concatenate([x, x[:20]]))
    said = shell("predict", cells / "run", "a.npy", "--to-label", 8, "--workers", 0)
    assert "8 samples worth labeling next: predictions-to-label.csv" in said.out
    chosen = rows(shell.folder / "predictions-to-label.csv")
    margins = sorted(float(row["margin"]) for row in rows(shell.folder / "predictions.csv"))
    assert len({row["path"] for row in chosen}) == 8
    assert float(chosen[0]["margin"]) == margins[0]
    assert all(float(row["margin"]) <= margins[80] for row in chosen)


def test_certain_samples_are_candidates_only_if_there_are_too_few_others() -> None:
    ranked = [(margin, place, {"margin": str(margin)}) for place, margin in enumerate([0.1, 0.4, 0.6, 0.9])]
    assert [place for _, place, _ in to_label.candidates(ranked, 1)] == [0, 1]
    assert [place for _, place, _ in to_label.candidates(ranked, 3)] == [0, 1, 2]


def test_spread_takes_one_sample_of_every_cluster() -> None:
    draw = torch.Generator().manual_seed(0)
    points = [10.0 * torch.eye(4)[n % 4] + 0.1 * torch.randn(4, generator=draw) for n in range(40)]
    assert sorted(n % 4 for n in to_label.spread(points, 4)) == [0, 1, 2, 3]
    assert to_label.spread([torch.zeros(2)] * 3, 5) == [0, 1, 2]


def warned(model: Model, paths: list[str], threshold: float | None = None) -> list[str]:
    columns = Columns(model.classes, threshold=threshold)
    parts = (predict_block(model, block, columns).seen for block in blocks(paths, model.reader))
    return list(drift.warnings(model.description, sum(parts, Seen()), threshold))


def test_samples_like_those_of_the_run_give_no_warning_and_others_do(scans: Path, tmp_path: Path) -> None:
    model, files = tacit.load(scans / "run"), sorted((scans / "moved" / "test").rglob("*.png"))
    assert warned(model, [str(scans / "moved" / "test")]) == []
    assert model.description.reference is not None
    assert model.description.reference.samples == 24
    for path in files:
        pixels = np.asarray(Image.open(path))
        for kind, changed in (("bright", pixels // 2 + 127), ("large", pixels.repeat(4, 0).repeat(4, 1))):
            (tmp_path / kind).mkdir(exist_ok=True)
            Image.fromarray(changed).save(tmp_path / kind / f"{path.parent.name}{path.name}")
    assert any("brightness" in line for line in warned(model, [str(tmp_path / "bright")]))
    assert any(
        "24 of 24 images are much smaller or larger" in line for line in warned(model, [str(tmp_path / "large")])
    )


def test_rows_of_another_scale_and_unsure_answers_are_warned_of(cells: Path, tmp_path: Path) -> None:
    model = tacit.load(cells / "run")
    x, _, names = cancer()
    np.save(tmp_path / "same.npy", x)
    assert warned(model, [str(tmp_path / "same.npy")]) == []
    np.save(tmp_path / "other.npy", np.where(np.arange(30) == 3, 100 * x, x))
    assert warned(model, [str(tmp_path / "other.npy")])[0].startswith(names[3])


def test_many_unsure_answers_are_warned_of(cells: Path) -> None:
    about = tacit.load(cells / "run").description
    assert about.reference is not None
    threshold = about.reference.confidence[4]  # 20 % of the test samples were below it
    levels = tuple(100 * level for level in about.reference.levels)
    for unsure, lines in ((30, 0), (50, 1)):
        seen = Seen(samples=100, levels=levels, unsure=unsure)
        assert len(list(drift.warnings(about, seen, threshold))) == lines
    assert list(drift.warnings(about, Seen(samples=19, levels=levels, unsure=19), threshold)) == []


@pytest.mark.parametrize("threshold, share", [(0.4, 0.0), (0.5, 0.0), (0.75, 0.5), (1.0, 1.0), (1.1, 1.0)])
def test_the_share_below_a_threshold_follows_the_quantiles(threshold: float, share: float) -> None:
    reference = Reference(100, (), (), tuple(0.5 + 0.025 * n for n in range(21)))
    assert reference.share_below(threshold) == pytest.approx(share, abs=1e-9)
