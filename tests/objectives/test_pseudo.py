"""Self-training and UDA by hand, and where they meet FixMatch."""

from math import log
from typing import Any

import pytest
import torch

from tacit.learn import fit, loss_of_batch
from tacit.losses import annealing_threshold
from tacit.method import Training
from tacit.nets import build
from tacit.objectives import FixMatch, PseudoLabel, Uda
from tests.objectives.bench import EYE, FLIPPED, Scaled, client, start, whole
from tests.toys import hide, images, linear, points, same, samples

# Plain views have odds 3, 2 and 1.2, weak ones 9, 4 and 1.44, strong ones √3, √2 and √1.2.
UNLABELED = [[log(3), 0.0], [0.0, log(2)], [log(1.2), 0.0]]
ALL = samples(UNLABELED, [-1, -1, -1])


def cost_of(objective: Any, data: Any = ALL, received: Any = EYE, w: Any = EYE, **more: Any) -> Any:
    holder = client(data, linear(2, 2), views=Scaled(), **more)
    return loss_of_batch(objective.local_loss(holder, received, {}), holder.net, w, whole(holder))


def test_self_training_by_hand() -> None:
    cost = cost_of(PseudoLabel(threshold=0.75))
    # Of the weak view both label and loss: p = 0.9 and 0.8 reach the threshold.
    assert cost.total.item() == pytest.approx(-(log(0.9) + log(0.8)) / 3, rel=1e-5)
    assert cost.pseudo_labels.accepted.tolist() == [True, True, False]
    assert cost_of(PseudoLabel(threshold=0.75, over="kept")).total.item() == pytest.approx(-(log(0.9) + log(0.8)) / 2)


def test_the_defaults_of_self_training() -> None:
    assert PseudoLabel() == PseudoLabel(threshold=0.95, weight=1.0, over="batch", view="weak")


@pytest.mark.parametrize("threshold", [0.0, 0.5])
@pytest.mark.parametrize("net", [linear(), build("lenet", (1, 16, 16), 3, "group")], ids=["points", "images"])
def test_fixmatch_without_augmentation_is_self_training(threshold: float, net: Any) -> None:
    data = points(0, 20) if len(net.trainable) == 2 else images(0, 20)
    holder = client(hide(data, shown=6), net, Training(batch=5, lr=0.1))
    one, other = (fit(holder, start(net), kind(threshold=threshold)) for kind in (FixMatch, PseudoLabel))
    assert same(one.params, other.params)


def test_uda_by_hand() -> None:
    cost = cost_of(Uda(threshold=0.7, temperature=0.5, annealing="none"))
    # Only the first plain view, p = ¾, reaches the threshold. Squared and normalised it is the target (0.9, 0.1).
    p = 3**0.5 / (3**0.5 + 1)
    expected = (0.9 * log(0.9 / p) + 0.1 * log(0.1 / (1 - p))) / 3
    assert cost.total.item() == pytest.approx(expected, rel=1e-5)
    assert cost.pseudo_labels.accepted.tolist() == [True, False, False]


def test_uda_with_a_temperature_near_zero_has_hard_labels() -> None:
    soft = cost_of(Uda(threshold=0.0, temperature=1e-3, annealing="none"))
    hard = cost_of(FixMatch(threshold=0.0, teacher="plain"))
    assert soft.total.item() == pytest.approx(hard.total.item(), rel=1e-6)


@pytest.mark.parametrize("round, rounds", [(0, 5), (2, 5), (4, 5), (0, 1)])
def test_annealing_follows_the_rounds(round: int, rounds: int) -> None:
    data = samples([[log(3), 0.0], [0.0, log(3)]], [0, 0])  # weak views: p = 0.9 and 0.1 for the own class
    threshold = annealing_threshold(round / max(1, rounds - 1), 2, "linear")
    expected = -(log(0.9) + log(0.1)) / 2 if threshold >= 0.9 else -log(0.1)
    cost = cost_of(Uda(annealing="linear"), data, round=round, rounds=rounds)
    assert cost.total.item() == pytest.approx(expected, rel=1e-5)


def test_the_more_confident_of_two_labels() -> None:
    # The local model sees weak views (p = 0.9, 0.8, 0.59); the received one plain views, but doubts nothing.
    stubborn = {name: 4 * value for name, value in FLIPPED.items()}  # odds 81, 16 and 2.07 for the other class
    cost = cost_of(FixMatch(threshold=0.0, labeler="confident"), received=stubborn)
    assert cost.pseudo_labels.label.tolist() == [1, 0, 1]
    timid = {name: 0.1 * value for name, value in FLIPPED.items()}
    cost = cost_of(FixMatch(threshold=0.0, labeler="confident"), received=timid)
    assert cost.pseudo_labels.label.tolist() == [0, 1, 0]
    mixed = {"fc.weight": torch.tensor([[-4.0, 0.0], [0.0, 0.1]]), "fc.bias": torch.zeros(2)}
    cost = cost_of(FixMatch(threshold=0.0, labeler="confident"), received=mixed)
    assert cost.pseudo_labels.label.tolist() == [1, 1, 1]  # 81:1 against 9:1; 1.07:1 against 4:1; 2.07:1 against 1.44:1


@pytest.mark.parametrize("view, accepted", [("plain", [False, False, False]), ("weak", [True, True, False])])
def test_the_weak_view_of_the_teacher_can_be_switched_off(view: Any, accepted: list[bool]) -> None:
    assert cost_of(FixMatch(threshold=0.78, teacher=view)).pseudo_labels.accepted.tolist() == accepted
