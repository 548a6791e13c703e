"""Signs of collapse: each rule fires on its sign and on nothing else, and once."""

from pathlib import Path
from typing import Any

import pytest

import tacit
from tacit.engines.events import Noticed, RoundEnded
from tacit.engines.failures import not_finite, upload_lost
from tacit.engines.record import RoundRecord
from tacit.runs.config import from_options
from tacit.runs.directory import RunDirectory
from tacit.runs.experiment import Experiment
from tacit.runs.followers.notices import DIVERGED, Facts, Watch, diverged, noting
from tests.engines import farm
from tests.refusals import refused

FACTS = Facts("fedavg+fixmatch", 0.03, classes=("a", "b", "c"), majority=1 / 3)


def record(
    number: int, loss: float | None = 1.0, server: dict[str, float] | None = None, **metrics: Any
) -> RoundRecord:
    """A round; each metric is a mean, or (min, mean, max)."""
    spread = {
        name: dict(zip(("min", "mean", "max"), value if isinstance(value, tuple) else (value,) * 3, strict=True))
        for name, value in metrics.items()
    }
    return RoundRecord(number, 1.0, 0.5, loss, None, 4, 8, 0, 0, {}, spread, server or {}, {})


def codes(rounds: list[RoundRecord], facts: Facts = FACTS) -> list[tuple[int, str]]:
    """Round and code of everything that is noticed."""
    watch = Watch(facts)
    return [(notice.round, notice.code) for each in rounds for notice in watch.follow(each)]


def test_one_class_that_takes_over_at_every_client_is_named_once() -> None:
    shares = [(0, 0.5), (1, 0.8), (1, 0.95), (1, 1.0)]
    rounds = [record(n, pseudo_class=float(top), pseudo_class_share=share) for n, (top, share) in enumerate(shares)]
    assert codes(rounds) == [(2, "collapse.one-class")]
    text = Watch(FACTS, rounds).found["collapse.one-class"].text
    assert text.startswith("round 3: class b takes 95% of the pseudo-labels at every client")


def test_clients_with_different_classes_are_no_collapse() -> None:
    assert codes([record(0, pseudo_class=(0.0, 1.0, 2.0), pseudo_class_share=1.0)]) == []


def test_a_class_that_most_labels_have_anyway_is_no_collapse() -> None:
    rare = Facts("fedavg", 0.03, majority=0.95)
    assert codes([record(0, pseudo_class=0.0, pseudo_class_share=0.96)], rare) == []
    assert codes([record(0, pseudo_class=0.0, pseudo_class_share=0.99)], rare) == [(0, "collapse.one-class")]


@pytest.mark.parametrize(
    "kept, loss, seen",
    [
        ([0.1, 0.1, 0.95], [1.0, 1.0, 1.0], True),
        ([0.1, 0.1, 0.95], [1.0, 1.0, 0.8], False),
        ([0.1, 0.5, 0.95], [1.0, 1.0, 1.0], True),
        ([0.1, 0.6, 0.95], [1.0, 1.0, 1.0], False),
        ([0.1, 0.95, 0.95], [1.0, 1.0, 1.0], False),
        ([0.1, 0.1, 0.8], [1.0, 1.0, 1.0], False),
    ],
)
def test_a_jump_of_accepted_labels_counts_if_the_labels_are_not_learned_better(
    kept: list[float], loss: list[float], seen: bool
) -> None:
    pairs = zip(kept, loss, strict=True)
    rounds = [record(n, pseudo_kept=k, loss_supervised=each) for n, (k, each) in enumerate(pairs)]
    assert codes(rounds) == ([(2, "collapse.kept-jumps")] if seen else [])


def test_a_rising_loss_on_the_labels_is_named() -> None:
    losses = [1.0, 0.5, 0.2, 0.1, 0.1, 0.2, 0.6, 0.9]
    at_clients = [record(n, loss_supervised=loss) for n, loss in enumerate(losses)]
    at_server = [record(n, server={"loss_supervised": loss}) for n, loss in enumerate(losses)]
    assert codes(at_clients) == codes(at_server) == [(7, "collapse.labels-loss-rises")]
    assert codes([record(n, loss_supervised=loss) for n, loss in enumerate([1.0, 0.9, 1.1, 1.0, 0.9, 1.2])]) == []


@pytest.mark.parametrize("loss", [float("nan"), None])
def test_a_model_that_is_not_finite_is_named(loss: float | None) -> None:
    assert codes([record(0), record(1, loss)]) == [(1, "collapse.model-not-finite")]


def test_the_remedy_fits_the_run() -> None:
    def remedy(facts: Facts) -> str:
        return Watch(facts, [record(0, pseudo_class=0.0, pseudo_class_share=1.0)]).found["collapse.one-class"].text

    assert "objective.labeler=global" in remedy(Facts("fedavg", 0.03, labeler="local", labels_at_server=True))
    assert "rate 0.03 is high for fedmatch (paper: 0.001), so try --lr 0.001" in remedy(Facts("fedmatch", 0.03, 0.001))
    assert "--lr 0.01, or a higher threshold" in remedy(Facts("fedavg", 0.03))


def test_what_was_noticed_before_a_resume_is_not_said_again(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    bad = record(0, pseudo_class=0.0, pseudo_class_share=1.0)
    follow = noting(directory, FACTS, 0)
    assert [notice.code for notice in follow(RoundEnded(bad))] == ["collapse.one-class"]
    assert directory.notices().keys() == {"collapse.one-class"}
    directory.rounds_file.write_text(bad.to_json() + "\n")
    assert noting(directory, FACTS, 1)(RoundEnded(bad)) == []


def test_a_round_is_diverged_if_every_client_became_non_finite() -> None:
    end = diverged(1, {0: not_finite(), 1: not_finite()}, Facts("fedmatch", 0.03, 0.001))
    assert end is not None
    assert end.problem == "diverged in round 2: rate 0.03 is high for fedmatch (paper: 0.001)"
    assert not end.resumable
    assert diverged(1, {0: not_finite(), 1: upload_lost()}, FACTS) is None


def small(tmp_path: Path, **changes: Any) -> dict[str, Any]:
    images = str(farm.write_images(tmp_path / "images.npz"))
    common = {"data": images, "clients": 4, "labels": "client", "per_class": 2, "rounds": 3, "workers": 0}
    return common | {"net": "lenet", "method": "fedavg+supervised"} | changes


def test_a_run_that_diverges_says_why_and_keeps_the_reason(tmp_path: Path) -> None:
    with refused(DIVERGED) as caught:
        tacit.run(out=tmp_path / "run", **small(tmp_path, lr=1e20))
    assert "rate 1e+20 is high for fedavg+supervised" in caught.error.problem
    reason = RunDirectory(tmp_path / "run").stop_reason()
    assert reason is not None
    assert (reason.code, reason.problem) == (DIVERGED, caught.error.problem)


def test_injected_numbers_are_no_divergence(tmp_path: Path) -> None:
    with refused("engine.too-few-clients"):
        tacit.run(out=tmp_path / "run", **small(tmp_path, **{"faults.nonfinite": 1.0}))


def test_a_run_yields_its_notices_after_the_round(tmp_path: Path) -> None:
    options = small(tmp_path, labels="server", method="server-only+supervised", lr=1e20)
    run = Experiment.create(from_options(options), tmp_path / "run")
    happened = list(run.events())
    noticed = [event for event in happened if isinstance(event, Noticed)]
    assert [(each.round, each.code) for each in noticed] == [(0, "collapse.model-not-finite")]
    assert isinstance(happened[happened.index(noticed[0]) - 1], RoundEnded)
    assert run.directory.notices() == {"collapse.model-not-finite": noticed[0].text}
