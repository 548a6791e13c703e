"""Around `client_update`: pseudo-labels and complementary labels are compared with the truth a simulator knows."""

from typing import Any

import pytest
import torch
from torch import Tensor

from tacit.engines.work import diagnose
from tacit.method import Guesses

TRUTH = torch.tensor([9, 0, 1, 9, 2, -1, 2])  # nobody knows the label of sample 5


def guesses(excluded: list[int] | None, kept: list[bool] | None = None) -> Guesses:
    """About samples 1, 2, 4, 5, 6; the first and the last label are right."""
    sure = torch.tensor(kept or [True, True, False, True, True])
    index, label = torch.tensor([1, 2, 4, 5, 6]), torch.tensor([0, 2, 2, 1, 2])
    return Guesses(index, label, sure, None if excluded is None else torch.tensor(excluded))


def test_pseudo_labels_are_judged_where_they_were_kept_and_the_truth_is_known() -> None:
    assert diagnose(guesses(None), TRUTH) == pytest.approx({"pseudo_kept": 4 / 5, "pseudo_accuracy": 2 / 3})


@pytest.mark.parametrize(
    "excluded, right",
    [
        ([-1, -1, 0, -1, -1], 1.0),  # sample 4 is a 2, so it is no 0
        ([-1, -1, 2, -1, -1], 0.0),
        ([1, 1, 0, -1, 2], 1 / 2),  # of 0, 1, 2, 2: the second and the last are just what was excluded
        ([-1, -1, 2, 0, 0], 1 / 2),  # what is said of sample 5 counts neither way
    ],
)
def test_a_complementary_label_is_right_where_the_sample_is_another_class(excluded: list[int], right: float) -> None:
    numbers = diagnose(guesses(excluded), TRUTH)
    assert numbers.pop("complementary_accuracy") == pytest.approx(right)
    assert numbers == diagnose(guesses(None), TRUTH)  # and the other numbers are as without them


def test_complementary_labels_are_judged_also_where_no_pseudo_label_was_kept() -> None:
    found = diagnose(guesses([1, 2, 0, 0, 2], kept=[False] * 5), TRUTH)
    assert found == pytest.approx({"pseudo_kept": 0.0, "complementary_accuracy": 3 / 4})


@pytest.mark.parametrize(
    "excluded, truth",
    [([1, 2, 0, 0, 2], None), ([-1] * 5, TRUTH), ([-1, -1, -1, 0, -1], TRUTH), (None, TRUTH)],
    ids=["no truth", "nothing said", "said of an unknown sample", "no such labels"],
)
def test_without_anything_to_judge_there_is_no_number(excluded: Any, truth: Tensor | None) -> None:
    assert "complementary_accuracy" not in diagnose(guesses(excluded), truth)
