"""The card of a run says what a person should know, in counts and plain words."""

from pathlib import Path

import pytest
from scipy.stats import binomtest

import tacit
from tacit.cli import evaluate
from tacit.metrics.wilson import wilson
from tacit.runs.directory import RunDirectory
from tacit.runs.experiment import Experiment
from tacit.runs.result.card import card as card_of
from tests.inference import trained

HEADINGS = (
    "Purpose",
    "Data",
    "Who held what",
    "Training",
    "Accuracy",
    "Privacy",
    "Pretrained weights",
    "Known limits",
    "Repeat it",
    "All scores, with 95 % intervals",
)


@pytest.mark.parametrize("correct, count", [(0, 10), (7, 10), (288, 400), (400, 400)])
def test_the_interval_is_wilsons(correct: int, count: int) -> None:
    expected = binomtest(correct, count).proportion_ci(method="wilson")
    assert wilson(correct, count) == pytest.approx((expected.low, expected.high), abs=1e-6)


def test_every_run_writes_a_card_with_counts_and_accuracy(tmp_path: Path) -> None:
    result = trained.image_folder(tmp_path)
    card = (tmp_path / "run" / "card.md").read_text(encoding="utf-8")
    assert [line[3:] for line in card.splitlines() if line.startswith("## ")] == list(HEADINGS)
    assert "Training: 24 samples (images), 24 of them with a label." in card
    assert "Test: 24 samples: left 12, right 12." in card
    assert "3 simulated clients with 8 samples each" in card
    low, high = wilson(result.accuracy * 24, 24)
    assert f"{result.accuracy:.1%} of 24 test samples (95 % interval: {low:.1%} to {high:.1%})" in card
    assert "most frequent class would reach 50.0%" in card
    assert "no differential privacy" in card
    assert "random weights" in card
    assert str(tmp_path) not in card, "a card names no place on this machine"
    assert tacit.load(tmp_path / "run").card == card


def test_the_card_says_how_much_dp_sgd_reveals(tmp_path: Path) -> None:
    noisy = {"method": "fedavg+supervised", "protect.sample_noise": 2.0}
    trained.image_folder(tmp_path, **noisy)
    card = (tmp_path / "run" / "card.md").read_text(encoding="utf-8")
    last = RunDirectory(tmp_path / "run").rounds(2)[-1].sample_privacy
    assert last is not None
    assert f"ε ≤ {last['epsilon']:.3g} and δ = 1e-05" in card
    assert "no differential privacy" not in card


def test_the_card_tells_of_secure_aggregation(tmp_path: Path) -> None:
    trained.image_folder(tmp_path, method="fedavg+supervised", **{"protect.secure": True})
    card = (tmp_path / "run" / "card.md").read_text(encoding="utf-8")
    assert "the server saw the sum of at least three uploads" in card
    assert "no secure aggregation" not in card
    assert "no differential privacy" in card


def test_a_run_without_a_common_model_has_a_card_too(tmp_path: Path) -> None:
    trained.image_folder(tmp_path, method="local-only")
    assert "There is no common model." in (tmp_path / "run" / "card.md").read_text(encoding="utf-8")


def test_a_lost_card_is_written_again_by_resume(tmp_path: Path) -> None:
    trained.image_folder(tmp_path)
    path = tmp_path / "run" / "card.md"
    before = path.read_bytes()
    path.unlink()
    tacit.resume(tmp_path / "run")
    assert path.read_bytes() == before


def test_the_card_tells_how_each_class_fares(tmp_path: Path) -> None:
    trained.image_folder(tmp_path)
    found = RunDirectory(tmp_path / "run").predictions()
    assert found is not None
    left = found.y == 0
    right = int((left & (found.predicted == 0)).sum())
    low, high = wilson(right, 12)
    card = (tmp_path / "run" / "card.md").read_text(encoding="utf-8")
    assert f"left: the model finds {right / 12:.1%} ({low:.1%} to {high:.1%}) of its samples" in card


def test_an_evaluation_adds_all_scores_to_the_card_once(tmp_path: Path) -> None:
    trained.image_folder(tmp_path)
    for _ in range(2):
        evaluate.add_to_card(evaluate.of_test_samples(tmp_path / "run", None, 0), tmp_path / "run")
    card = (tmp_path / "run" / "card.md").read_text(encoding="utf-8")
    assert card.count("## All scores") == 1
    assert card.count("AUROC") == 1
    assert card.index("## Repeat it") < card.index("- sensitivity: ")


LABELS_ONLY = {
    "what": "labels only",
    "why": "on validation the last round is below labels only",
    "validation": {"accuracy": 0.83, "low": 0.7445, "high": 0.8911, "samples": 100},
}


def test_the_card_says_that_the_guard_saved_labels_only(tmp_path: Path) -> None:
    trained.image_folder(tmp_path)
    made = Experiment.reopen(tmp_path / "run")
    card = card_of(made.config, made.job, 0.9, None, selected=LABELS_ONLY)
    assert "trained it on the server's labels only" in card
    assert "rounds of federated semi-supervised learning" not in card
    assert "Saved model: labels only, since on validation the last round is below labels only." in card
    assert "chosen on 100 validation samples: 83.0% (95 % interval: 74.5% to 89.1%)" in card


def test_a_run_tells_its_card_which_model_is_saved(tmp_path: Path) -> None:
    trained.images_npz(tmp_path)
    chosen = {"data": str(tmp_path / "images.npz"), "labels": "server", "per_class": 4, "validation": 20}
    tacit.run(out=tmp_path / "best", **trained.QUICK | chosen | {"method": "fedavg+fixmatch", "log.select": "best"})
    texts = [(tmp_path / name / "card.md").read_text(encoding="utf-8") for name in ("run", "best")]
    assert ["Saved model: round" in text for text in texts] == [False, True]


def test_card_and_evaluation_have_the_same_interval(tmp_path: Path) -> None:
    trained.image_folder(tmp_path)
    found = evaluate.of_test_samples(tmp_path / "run", None, 0).scores["accuracy"]
    card = (tmp_path / "run" / "card.md").read_text(encoding="utf-8")
    assert f"of 24 test samples (95 % interval: {found.low:.1%} to {found.high:.1%})" in card
    assert f"- accuracy: {found.value:.1%} ({found.low:.1%} to {found.high:.1%})" in card
