"""Class weights: rare classes count as much as frequent ones, equal classes change nothing."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some

from tacit.learn import forward_of
from tacit.losses import balanced_weights, cross_entropy, weighted_cross_entropy
from tacit.objectives import OBJECTIVES
from tests.objectives.bench import client, leaves, start, whole
from tests.toys import hide, linear, points, samples

WEIGHTED = sorted(name for name, kind in OBJECTIVES.items() if "class_weights" in kind.__dataclass_fields__)  # type: ignore[attr-defined]


def test_weights_by_hand() -> None:
    """Six samples, classes 0 (four times) and 2 (twice): 6 / (2·4) and 6 / (2·2)."""
    assert balanced_weights(torch.tensor([0, 0, 2, 0, 2, 0]), 3).tolist() == [0.75, 1.0, 1.5]


@given(some.lists(some.integers(0, 4), min_size=1, max_size=60))
def test_every_class_that_occurs_counts_the_same(labels: list[int]) -> None:
    y = torch.tensor(labels)
    w = balanced_weights(y, 5)
    share = {k: float(w[k]) * labels.count(k) for k in set(labels)}
    assert max(share.values()) == pytest.approx(min(share.values()))
    assert float(w[y].mean()) == pytest.approx(1.0)


def test_weights_of_one_give_the_plain_loss() -> None:
    logits, y = torch.randn(8, 3, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 3
    assert torch.allclose(weighted_cross_entropy(logits, y, torch.ones(3)), cross_entropy(logits, y))


def _made(name: str, **settings: Any) -> Any:
    return OBJECTIVES[name](**settings)


def supervised_loss(name: str, data: Any, **settings: Any) -> float:
    net = linear()
    holder = client(data, net)
    model = start(net)
    w = leaves(model)
    local = _made(name, **settings).local_loss(holder, model, {})
    return float(local.cost(w, whole(holder), forward_of(net, w)).metrics["loss_supervised"].detach())


@pytest.mark.parametrize("name", WEIGHTED)
def test_equal_classes_change_nothing(name: str) -> None:
    data = points(0, 30)
    balanced = hide(samples(data.x.tolist(), [k % 3 for k in range(30)]), 9)
    plain, weighted = (supervised_loss(name, balanced, class_weights=each) for each in ("none", "balanced"))
    assert weighted == pytest.approx(plain, rel=1e-5)


@pytest.mark.parametrize("name", WEIGHTED)
def test_a_rare_class_weighs_more(name: str) -> None:
    data = points(0, 30)
    uneven = hide(samples(data.x.tolist(), [0] * 8 + [1, 2] + [0] * 20), 10)
    assert supervised_loss(name, uneven, class_weights="balanced") != supervised_loss(name, uneven)


def test_the_objectives_with_a_plain_labeled_loss_have_weights() -> None:
    assert set(OBJECTIVES) - set(WEIGHTED) == {"mixup", "uda"}, "these weigh their labeled samples in their own way"
