import csv
import io
import json
import math

import numpy as np
import pytest

from tacit.metrics.evaluation import Evaluation, evaluate
from tacit.metrics.wilson import wilson
from tests.metrics.test_scores import by_hand, invented


def test_an_evaluation_survives_json() -> None:
    made = evaluate(invented(0), "some samples", groups=["a", "b", "c"] * 20, draws=20)
    again = Evaluation.from_json(made.to_json())
    assert again == made
    assert json.loads(made.to_json())["about"] == "some samples"


def test_undefined_numbers_are_null_in_json_and_nan_in_python() -> None:
    alone = invented(0, c=2)
    made = evaluate(alone.take(np.flatnonzero(alone.y == 1)), draws=10)
    assert json.loads(made.to_json())["scores"]["auroc"]["value"] is None
    assert math.isnan(Evaluation.from_json(made.to_json()).scores["auroc"].value)


@pytest.mark.parametrize("text", ["[]", "{}", '{"about": 1}', "no json"])
def test_other_json_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="."):
        Evaluation.from_json(text)


def test_per_class_numbers_by_hand() -> None:
    sick, normal = evaluate(by_hand(), draws=10).per_class
    assert (sick.name, sick.count, sick.predicted) == ("sick", 2, 2)
    assert (sick.precision.value, sick.recall.value, sick.f1) == (0.5, 0.5, 0.5)
    assert sick.auroc == normal.auroc == 0.75


def test_the_positive_class_can_be_chosen() -> None:
    made = invented(3, c=2)
    one, other = (evaluate(made, positive=k, draws=0) for k in (0, 1))
    assert one.scores["sensitivity"] == other.scores["specificity"]
    assert (one.positive, other.positive) == ("class 0", "class 1")


def test_without_draws_there_are_no_intervals() -> None:
    assert math.isnan(evaluate(by_hand(), draws=0).scores["accuracy"].low)


def test_the_worst_group_is_found() -> None:
    made = invented(0, n=90, skill=3.0)
    logits = made.logits.copy()
    logits[60:] *= -1
    worse = type(made)(made.y, logits, made.classes)
    spread = evaluate(worse, groups=["b"] * 30 + ["a"] * 30 + ["z"] * 30, draws=10).spread()
    assert spread is not None
    assert spread.worst.name == "z"
    assert spread.worst.scores["accuracy"] < 0.5 < spread.median <= spread.best
    loss = evaluate(worse, groups=["b"] * 30 + ["a"] * 30 + ["z"] * 30, draws=10).spread("log_loss")
    assert loss is not None
    assert loss.worst.name == "z"


def test_groups_keep_their_order_and_one_alone_has_no_spread() -> None:
    made = evaluate(invented(0), groups=["10"] * 20 + ["9"] * 40, draws=10)
    assert [group.name for group in made.groups] == ["10", "9"]
    assert made.resampled == "group"
    alone = evaluate(invented(0), groups=["all"] * 60, draws=10)
    assert alone.spread() is None
    assert alone.resampled == "sample"


def test_the_bins_of_the_diagram_hold_every_sample() -> None:
    made = evaluate(invented(0), draws=0)
    assert sum(bin.count for bin in made.reliability) == 60
    assert all(bin.low <= bin.confidence <= bin.high for bin in made.reliability)
    gap = sum(bin.count * abs(bin.accuracy - bin.confidence) for bin in made.reliability) / 60
    assert gap == pytest.approx(made.scores["ece"].value)


def test_csv_has_every_number_once() -> None:
    made = evaluate(invented(0), groups=["a", "b"] * 30, draws=10)
    rows = list(csv.DictReader(io.StringIO(made.to_csv())))
    assert len({(row["score"], row["class"], row["group"]) for row in rows}) == len(rows)
    (accuracy,) = [row for row in rows if row["score"] == "accuracy" and not row["group"]]
    assert float(accuracy["value"]) == made.accuracy
    assert float(accuracy["low"]) <= made.accuracy <= float(accuracy["high"])
    assert sum(float(row["value"]) for row in rows if row["score"].startswith("predicted as")) == 60


def test_the_share_of_the_largest_class_is_known() -> None:
    made = invented(0, c=2)
    assert evaluate(made, draws=0).majority == max((made.y == 0).mean(), (made.y == 1).mean())


def test_shares_of_independent_samples_have_wilsons_interval() -> None:
    made = invented(0, n=40, c=2)
    found = evaluate(made, draws=20)
    right = int((made.predicted == made.y).sum())
    assert (found.scores["accuracy"].low, found.scores["accuracy"].high) == wilson(right, 40)
    for number, each in enumerate(found.per_class):
        hits = int(((made.y == number) & (made.predicted == number)).sum())
        assert (each.recall.low, each.recall.high) == wilson(hits, each.count)
        assert (each.precision.low, each.precision.high) == wilson(hits, each.predicted)
    grouped = evaluate(made, groups=["a", "b"] * 20, draws=20).scores["accuracy"]
    assert (grouped.low, grouped.high) != wilson(right, 40), "samples of a group are not independent"
