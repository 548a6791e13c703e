"""A client's work: its pseudo-labels and complementary labels are compared with the truth a simulator knows."""

from typing import Any

import pytest
import torch
from torch import Tensor

from tacit.engines.client import diagnose
from tacit.method import PseudoLabels

TRUTH = torch.tensor([9, 0, 1, 9, 2, -1, 2])  # the label of sample 5 is unknown


def pseudo_labels(excluded: list[int] | None, accepted: list[bool] | None = None) -> PseudoLabels:
    """About samples 1, 2, 4, 5, 6; the first and the last label are right."""
    sure = torch.tensor(accepted or [True, True, False, True, True])
    index, label = torch.tensor([1, 2, 4, 5, 6]), torch.tensor([0, 2, 2, 1, 2])
    return PseudoLabels(index, label, sure, None if excluded is None else torch.tensor(excluded))


def test_pseudo_label_accuracy_counts_accepted_labels_with_known_truth() -> None:
    numbers = diagnose(pseudo_labels(None), TRUTH)
    assert (numbers["pseudo_kept"], numbers["pseudo_accuracy"]) == pytest.approx((4 / 5, 2 / 3))


def test_the_most_frequent_class_is_a_simulators_knowledge() -> None:
    numbers = diagnose(pseudo_labels(None), TRUTH)
    assert (numbers["pseudo_class"], numbers["pseudo_class_share"]) == pytest.approx((2.0, 2 / 3))
    assert diagnose(pseudo_labels(None), None).keys() == {"pseudo_kept"}, "a site does not tell its classes"


@pytest.mark.parametrize(
    "excluded, right",
    [
        ([-1, -1, 0, -1, -1], 1.0),  # sample 4 is a 2, so it is no 0
        ([-1, -1, 2, -1, -1], 0.0),
        ([1, 1, 0, -1, 2], 1 / 2),  # of 0, 1, 2, 2: the second and the last are exactly what was excluded
        ([-1, -1, 2, 0, 0], 1 / 2),  # the label of sample 5 does not count
    ],
)
def test_a_complementary_label_is_right_if_the_sample_has_another_class(excluded: list[int], right: float) -> None:
    numbers = diagnose(pseudo_labels(excluded), TRUTH)
    assert numbers.pop("complementary_accuracy") == pytest.approx(right)
    assert numbers == diagnose(pseudo_labels(None), TRUTH)  # the other numbers do not change


def test_complementary_accuracy_does_not_need_accepted_pseudo_labels() -> None:
    found = diagnose(pseudo_labels([1, 2, 0, 0, 2], accepted=[False] * 5), TRUTH)
    assert found == pytest.approx({"pseudo_kept": 0.0, "complementary_accuracy": 3 / 4})


@pytest.mark.parametrize(
    "excluded, truth",
    [([1, 2, 0, 0, 2], None), ([-1] * 5, TRUTH), ([-1, -1, -1, 0, -1], TRUTH), (None, TRUTH)],
    ids=["no truth", "no label given", "only for the unknown sample", "no such labels"],
)
def test_without_labels_to_check_complementary_accuracy_is_not_logged(excluded: Any, truth: Tensor | None) -> None:
    assert "complementary_accuracy" not in diagnose(pseudo_labels(excluded), truth)


def test_pseudo_labels_of_unknown_classes_are_counted_among_the_accepted_ones() -> None:
    # truth of the samples 1, 2, 5, 6 that are accepted: 0, 1, unlabeled, 2; with two classes the 2 is an unknown one
    numbers = diagnose(pseudo_labels(None), TRUTH, classes=2)
    assert numbers["pseudo_unknown"] == pytest.approx(1 / 3)
    assert diagnose(pseudo_labels(None), TRUTH, classes=3)["pseudo_unknown"] == 0
    assert "pseudo_unknown" not in diagnose(pseudo_labels(None), TRUTH)
    assert "pseudo_unknown" not in diagnose(pseudo_labels(None), None, classes=2)
    assert "pseudo_unknown" not in diagnose(pseudo_labels(None, accepted=[False] * 5), TRUTH, classes=2)
