"""Last layers fitted to features: near a given head, and only as far as held-out labels justify."""

import pytest
import torch

from tacit.learn.linear_head import STRENGTHS, LinearHead, fit_chosen, fit_near, no_head
from tests.methods.features import CLASSES, cloud

FEATURES = cloud(0, 1).x.shape[1]


def some_head() -> LinearHead:
    draw = torch.Generator().manual_seed(5)
    return LinearHead(
        torch.randn(CLASSES, FEATURES, generator=draw).double(), torch.randn(CLASSES, generator=draw).double()
    )


@pytest.mark.parametrize("strength", [0.01, 1.0])
def test_the_gradient_of_the_loss_is_zero(strength: float) -> None:
    labels, start = cloud(3, 40), some_head()
    z, y = labels.x.double(), labels.y
    found = fit_near(z, y, start, strength)
    error = found.logits(z).softmax(dim=1) - torch.nn.functional.one_hot(y, CLASSES)
    mean, spread = z.mean(dim=0), z.std(dim=0, correction=0)
    x = (z - mean) / spread
    moved = (found.weight - start.weight) * spread
    shifted = found.bias - start.bias + (found.weight - start.weight) @ mean
    assert torch.allclose(strength * error.T @ x + moved, torch.zeros_like(moved), atol=1e-5)
    assert torch.allclose(strength * error.sum(dim=0) + shifted, torch.zeros_like(shifted), atol=1e-5)


def test_without_strength_the_head_stays() -> None:
    labels, start = cloud(3, 40), some_head()
    found = fit_near(labels.x.double(), labels.y, start, 1e-12)
    for one, other in zip(found, start, strict=True):
        assert torch.allclose(one, other, atol=1e-6)


def test_labels_that_say_nothing_keep_the_head() -> None:
    """With random labels, a head that predicts all classes alike cannot be improved by more than chance."""
    start = no_head(CLASSES, FEATURES)
    y = torch.randint(0, CLASSES, (60,), generator=torch.Generator().manual_seed(1))
    assert fit_chosen(cloud(3, 60).x.double(), y, start, torch.arange(60) % 5) == (start, 0.0)


def test_a_gain_within_a_standard_error_keeps_the_head() -> None:
    """A head fitted to many samples of the same source is hardly improved by a few more."""
    many, few = cloud(2, 2000), cloud(3, 30)
    start = fit_near(many.x.double(), many.y, no_head(CLASSES, FEATURES), 1.0)
    assert fit_chosen(few.x.double(), few.y, start, torch.arange(30) % 5) == (start, 0.0)


def test_labels_that_disagree_with_the_head_change_it() -> None:
    labels, test, start = cloud(3, 60), cloud(4, 200), some_head()
    found, strength = fit_chosen(labels.x.double(), labels.y, start, torch.arange(60) % 5)
    right = [(head.logits(test.x.double()).argmax(dim=1) == test.y).sum() for head in (start, found)]
    assert strength in STRENGTHS
    assert right[1] > 1.5 * right[0]


def test_a_single_label_keeps_the_head() -> None:
    """Nothing is left to fit when it is held out, so nothing shows that another head is better."""
    labels, start = cloud(3, 1), some_head()
    assert fit_chosen(labels.x.double(), labels.y, start, torch.zeros(1, dtype=torch.int64)) == (start, 0.0)
