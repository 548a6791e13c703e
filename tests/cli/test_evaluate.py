"""`tacit evaluate`: on the run's own test samples, on others, and per client."""

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tacit.metrics.evaluation import Evaluation
from tests.cli.shell import Shell, code_of, fits
from tests.engines import farm


@pytest.fixture
def run(shell: Shell) -> Path:
    shell.run("--out", "r")
    return shell.folder / "r"


def test_on_the_runs_own_test_samples_after_the_data_is_gone(shell: Shell, run: Path) -> None:
    (shell.folder / "images.npz").unlink()
    said = shell("evaluate", "r", "-o", "found.json")
    assert (said.code, said.err) == (0, "")
    assert fits(said.out)
    found = Evaluation.from_json((shell.folder / "found.json").read_text())
    assert found.count == 30
    last = json.loads((run / "rounds.jsonl").read_text().splitlines()[-1])
    assert found.accuracy == last["accuracy"]


def test_on_arrays(shell: Shell, run: Path) -> None:
    x, y = (part.numpy() for part in farm.images(150))
    np.savez(shell.folder / "new.npz", x=x[120:], y=y[120:])
    assert shell("evaluate", "r", "--data", "new.npz", "-o", "found.csv").code == 0
    with (shell.folder / "found.csv").open() as file:
        (accuracy,) = [row for row in csv.DictReader(file) if row["score"] == "accuracy" and not row["group"]]
    own = Evaluation.from_json(shell_json(shell))
    assert float(accuracy["value"]) == own.accuracy, "these are the run's own test samples"
    assert [Evaluation.from_json(text).about for text in notes(run)] == ["new.npz"]


def shell_json(shell: Shell) -> str:
    shell("evaluate", "r", "-o", "own.json")
    return (shell.folder / "own.json").read_text()


def notes(run: Path) -> list[str]:
    return [path.read_text() for path in sorted((run / "evaluations").iterdir())]


@pytest.mark.parametrize("place", ["", "test", "labeled"])
def test_on_a_folder_with_a_folder_for_each_class(shell: Shell, run: Path, place: str) -> None:
    x, y = (part.numpy() for part in farm.images(150))
    for number in range(120, 150):
        folder = shell.folder / "scans" / place / str(y[number])
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(x[number, 0]).save(folder / f"{number}.png")
    assert shell("evaluate", "r", "--data", "scans", "-o", "found.json").code == 0
    found = Evaluation.from_json((shell.folder / "found.json").read_text())
    assert found.accuracy == Evaluation.from_json(shell_json(shell)).accuracy


def test_groups_in_a_manifest_are_drawn_and_shown(shell: Shell, run: Path) -> None:
    x, y = (part.numpy() for part in farm.images(150))
    lines = ["path,label,group"]
    for number in range(120, 150):
        Image.fromarray(x[number, 0]).save(shell.folder / f"{number}.png")
        lines.append(f"{number}.png,{y[number]},patient {number % 5}")
    lines.append("120.png,,patient 0")  # without a label, so it does not count
    (shell.folder / "scans.csv").write_text("\n".join(lines) + "\n")
    said = shell("evaluate", "r", "--data", "scans.csv", "-o", "found.json")
    assert said.code == 0
    found = Evaluation.from_json((shell.folder / "found.json").read_text())
    assert (found.count, found.resampled) == (30, "group")
    assert [group.name for group in found.groups] == [f"patient {k}" for k in range(5)]
    assert "draws of whole groups" in said.out
    assert "worst" in said.out


def test_on_the_samples_of_each_client(shell: Shell, run: Path) -> None:
    said = shell("evaluate", "r", "--clients", "-o", "found.json")
    assert (said.code, said.err) == (0, "")
    found = Evaluation.from_json((shell.folder / "found.json").read_text())
    assert [group.name for group in found.groups] == ["0", "1", "2", "3"]
    assert found.count == 120 - 4 * 3 * 2, "labeled samples were trained on"
    assert "accuracy over 4 clients" in " ".join(said.out.split())
    assert len(notes(run)) == 1
    report = shell("report", "r")
    assert report.code == 0
    assert "Accuracy per client" in (run / "report.html").read_text()


def test_the_same_seed_gives_the_same_intervals(shell: Shell, run: Path) -> None:
    first, again, other = (shell("evaluate", "r", "--seed", seed).out for seed in (0, 0, 1))
    assert first == again != other


def test_a_model_without_its_run_can_be_evaluated(shell: Shell, run: Path) -> None:
    shutil.copy(run / "model.safetensors", shell.folder / "model.safetensors")
    said = shell("evaluate", "model.safetensors", "--data", "images.npz")
    assert said.code == 0
    assert "images.npz: 30 samples" in said.out


def test_mistakes_are_refused_in_one_sentence(shell: Shell, run: Path) -> None:
    assert code_of("evaluate", "r", "-o", "found.txt") == "evaluate.output-format"
    assert code_of("evaluate", "r", "--data", "images.npz", "--clients") == "evaluate.data-and-clients"
    assert code_of("evaluate", "r", "--positive", "1") == "evaluate.not-two-classes"
    assert code_of("evaluate", "r", "--data", "nothing/there") == "evaluate.no-such-data"
    assert code_of("evaluate", "nowhere") == "run.no-folder"
    (run / "predictions.npz").unlink()
    assert code_of("evaluate", "r") == "evaluate.no-predictions"
    x = farm.images(9)[0].numpy()
    np.savez(shell.folder / "named.npz", x=x, y=np.array(["cat"] * 9))
    assert code_of("evaluate", "r", "--data", "named.npz") == "evaluate.unknown-class"
    np.savez(shell.folder / "unlabeled.npz", x=x, y=np.full(9, -1))
    assert code_of("evaluate", "r", "--data", "unlabeled.npz") == "evaluate.no-labels"
    (shell.folder / "empty").mkdir()
    assert code_of("evaluate", "r", "--data", "empty/") == "evaluate.no-labels"
    assert not (run / "evaluations").exists()


def test_a_page_shows_confident_mistakes_only_if_asked(shell: Shell, run: Path) -> None:
    assert shell("report", "r").code == 0
    assert "<img" not in (run / "report.html").read_text()
    assert shell("report", "r", "--mistakes", 2).code == 0
    shown = (run / "report.html").read_text().count("<img")
    own = Evaluation.from_json(shell_json(shell))
    assert shown == min(2, round(own.count * (1 - own.accuracy)))
