"""What a page, a terminal and a sentence say about how good models are."""

import io
import re
from itertools import count
from pathlib import Path

import pytest
from rich.console import Console

from tacit.metrics.evaluation import evaluate
from tacit.report import charts, gains, tables
from tacit.report.evaluation_page import Mistake, evaluation_html
from tacit.report.evaluation_table import to_rich
from tacit.report.history import Run, load
from tacit.report.page import page
from tests.metrics.test_scores import by_hand, invented
from tests.report.runs import a_run, record, two_seeds, write_run
from tests.report.test_page import EVERY, FEW, Outline, without_roles

PIXEL = b"\x89PNG"


def marks() -> "count[int]":
    return count()


def with_outputs(run: Run, seed: int = 0, c: int = 3) -> Run:
    run.directory.write_predictions(invented(seed, c=c))
    return run


def printed(found: object, width: int = 80) -> str:
    console = Console(width=width, force_terminal=False, file=io.StringIO())
    with console.capture() as captured:
        console.print(found)
    return captured.get()


@pytest.mark.parametrize("c", [2, 3, 12, 40])
def test_the_tables_fit_80_columns(c: int) -> None:
    made = invented(0, n=3000, c=c)
    long = type(made)(made.y, made.logits, tuple(f"a class with a long name {k}" for k in range(c)))
    text = printed(to_rich(evaluate(long, "some samples", draws=20)))
    assert max(map(len, text.splitlines())) <= 80
    assert ("taken for" in text) == (c > 12)


def test_the_terminal_shows_what_accuracy_hides() -> None:
    text = printed(to_rich(evaluate(by_hand(), "four samples", draws=50)))
    assert "four samples: 4 samples, 2 classes; always answering sick would give 50.0 %" in " ".join(text.split())
    assert re.search(r"sensitivity \(sick\)\s+50.0\s%", text)
    note = "95 % intervals from bootstrap draws of samples; Wilson's for accuracy, recall and precision"
    assert note in " ".join(text.split())


def test_a_page_shows_confusion_classes_and_reliability(tmp_path: Path) -> None:
    text = page([with_outputs(a_run(tmp_path / "run", [0.5, 0.6]))])
    outline = Outline(text)
    assert (outline.open, outline.wrong) == ([], [])
    assert "How good the models are" in text
    assert "Confusion matrix" in text
    matrix = re.findall(r"<td class='(right|wrong)'", text)
    assert (matrix.count("right"), matrix.count("wrong")) == (3, 6)
    labels = [str(each.get("aria-label")) for each in outline.named("div")]
    assert any(label.startswith("Bar chart of recall") for label in labels)
    assert any(label.startswith("Accuracy against confidence") for label in labels)


def test_a_page_without_outputs_has_no_such_section(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run", [0.5, 0.6])
    assert "How good the models are" not in page([run])
    run.directory.predictions_file.write_bytes(b"broken")
    assert "Confusion" not in page([run])


def test_of_several_seeds_the_middle_one_is_shown(tmp_path: Path) -> None:
    runs = [a_run(tmp_path / str(seed), [accuracy], seed=seed) for seed, accuracy in enumerate([0.9, 0.5, 0.7])]
    text = page([with_outputs(run) for run in runs])
    assert re.findall("<summary>(.*?, seed .)</summary>", text)[:1] == ["fedavg+fixmatch, seed 2"]


def test_other_evaluations_and_their_groups_are_shown(tmp_path: Path) -> None:
    run = with_outputs(a_run(tmp_path / "run", [0.5]))
    found = evaluate(invented(1), "scans of 2026", groups=["a", "b", "c"] * 20, group_word="client", draws=10)
    run.directory.write_evaluation("scans", found.to_json())
    run.directory.write_evaluation("zzz", "{}")
    text = page([run])
    assert "<h3>scans of 2026</h3>" in text
    assert "accuracy over 3 clients" in text
    assert "Accuracy per client" in text


def test_pictures_of_samples_are_shown_only_if_given(tmp_path: Path) -> None:
    run = with_outputs(a_run(tmp_path / "run", [0.5]))
    assert "<img" not in page([run])
    text = page([run], mistakes={run.folder: [Mistake(PIXEL, "cat <1>", "dog", 0.987)]})
    (image,) = Outline(text).named("img")
    assert image["alt"] == "cat <1>, taken for dog with 99 %"


def test_many_classes_get_a_list_instead_of_a_matrix() -> None:
    text = evaluation_html(evaluate(invented(0, n=900, c=30), draws=5), (f"m{n}-" for n in marks()))
    assert "class='matrix'" not in text
    assert "taken for" in text
    assert "The 25 classes with the lowest recall" in text


def test_names_cannot_break_the_page(tmp_path: Path) -> None:
    made = invented(0)
    run = a_run(tmp_path / "run", [0.5])
    run.directory.write_predictions(type(made)(made.y, made.logits, ("<b>", "a & $b$", " ")))
    outline = Outline(page([run]))
    assert (outline.open, outline.wrong) == ([], [])
    assert not outline.named("b")


def test_the_gain_over_labels_only_is_stated(tmp_path: Path) -> None:
    runs = [
        *two_seeds(tmp_path, "labels-only", 0.70, 0.66, data=FEW),
        *two_seeds(tmp_path, "semifl", 0.73, 0.67, data=FEW),  # +3 and +1: 2 ± 1.4
        *two_seeds(tmp_path, "fixmatch", 0.60, 0.68, data=FEW),  # -10 and +2: -4 ± 8.5
        *two_seeds(tmp_path, "all-labels", 0.90, 0.90, data=EVERY),
    ]
    expected = (
        "semifl gains 2.0 ± 1.4 points over labels-only; "
        "fixmatch loses 4.0 ± 8.5 points, within the spread of the seeds."
    )
    assert gains.sentence(runs) == expected
    assert expected in page(runs)


def test_a_gain_needs_a_common_seed_and_says_if_it_has_only_one(tmp_path: Path) -> None:
    base = a_run(tmp_path / "a", [0.5], "Labels only", seed=0)
    assert gains.sentence([base]) == ""
    other = a_run(tmp_path / "b", [0.6], "semifl", seed=0)
    assert gains.sentence([base, other]) == "semifl gains 10.0 points over Labels only (one seed)."
    assert gains.sentence([base, a_run(tmp_path / "c", [0.6], "semifl", seed=1)]) == ""
    assert gains.sentence([other]) == ""


SCORES = {"balanced_accuracy": 0.61, "macro_f1": 0.6, "auroc": 0.75, "log_loss": 1.234, "ece": 0.05}


def scored(folder: Path, seed: int = 0, label: str | None = None, **found: float) -> Run:
    rounds = [record(n, 0.5, scores={name: value + n / 100 for name, value in found.items()}) for n in range(3)]
    return load(write_run(folder, rounds, seed=seed), label)


def test_logged_scores_are_in_the_table_and_have_their_charts(tmp_path: Path) -> None:
    runs = [scored(tmp_path / str(seed), seed, None, **SCORES) for seed in (0, 1)]
    text = printed(tables.to_rich(tables.summarise(runs), "title"))
    assert max(map(len, text.splitlines())) <= 80
    assert "63.0 62.0 77.0 1.254 7.0" in " ".join(text.split()), "the last of three evaluations"
    shown = page(runs)
    assert "<h2 id='other-scores'>Other scores</h2>" in shown
    assert "<td>1.254 ± 0.000</td>" in without_roles(shown)
    names = [chart.name for chart in charts.scores(runs)]
    assert names == ["balanced-accuracy", "macro-f1", "auroc", "log-loss", "ece"]
    assert "76.0 % after round 2" not in charts.scores(runs)[2].alt_text
    assert "75.0 % after round 1, 77.0 % after round 3" in charts.scores(runs)[2].alt_text


def test_scores_that_only_some_rows_have_are_left_out(tmp_path: Path) -> None:
    runs = [scored(tmp_path / "a", label="a", auroc=0.7, ece=0.1), scored(tmp_path / "b", label="b", ece=0.2)]
    assert tables.common_scores(tables.summarise(runs)) == ["ece"]
    assert tables.common_scores(tables.summarise([*runs, scored(tmp_path / "c", label="c")])) == []
