"""What a batch costs: FixMatch teaches the strong view and only it, and is supervised learning where all is labeled."""

from collections.abc import Callable
from dataclasses import replace
from math import log
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tacit.federation import Samples
from tacit.learn import Objective, batches, fit, loss_of_batch
from tacit.method import Training
from tacit.nets import Net, build
from tacit.objectives import FixMatch, Supervised
from tacit.params import Params, clone
from tests.objectives.bench import EYE, FLIPPED, Scaled, client, gradient, leaves, start, whole
from tests.toys import Noisy, apart, hide, images, linear, points, same, samples


def test_supervised_by_hand() -> None:
    data = samples([[log(3), 0.0], [0.0, log(9)]], [0, -1])
    holder = client(data, linear(2, 2))
    cost = loss_of_batch(Supervised().local_loss(holder, EYE, {}), holder.net, EYE, whole(holder))
    assert cost.total.item() == pytest.approx(-log(3 / 4), rel=1e-6)  # the unlabeled sample does not count
    assert cost.metrics["loss_supervised"] is cost.total
    assert cost.pseudo_labels is None


@pytest.mark.parametrize("view, factor", [("plain", 1.0), ("weak", 2.0), ("strong", 0.5)])
@pytest.mark.parametrize("objective", [Supervised, FixMatch])
def test_labeled_images_have_the_view_that_is_set(objective: Any, view: str, factor: float) -> None:
    holder = client(samples([[log(3), 0.0]], [0]), linear(2, 2), views=Scaled())
    cost = loss_of_batch(objective(view=view).local_loss(holder, EYE, {}), holder.net, EYE, whole(holder))
    assert cost.total.item() == pytest.approx(-log(3**factor / (3**factor + 1)), rel=1e-6)


# FixMatch on one labeled and three unlabeled samples. Weak views double the logits: odds 9, 4 and 1.44, so p = 0.9,
# 0.8 and 0.59. Strong views halve them: odds √3, √2 and √1.2.
UNLABELED = [[log(3), 0.0], [0.0, log(2)], [log(1.2), 0.0]]
MIXED = samples([[log(3), 0.0], *UNLABELED], [1, -1, -1, -1])
SUPERVISED_PART = -log(1 / (9 + 1))  # the weak view of the labeled sample has odds 9 for the wrong class
STRONG = [-log(3**0.5 / (3**0.5 + 1)), -log(2**0.5 / (2**0.5 + 1)), -log(1.2**0.5 / (1.2**0.5 + 1))]


@pytest.mark.parametrize(
    "options, unlabeled, accepted",
    [
        ({"threshold": 0.85}, STRONG[0] / 3, [True, False, False]),
        ({"threshold": 0.75}, (STRONG[0] + STRONG[1]) / 3, [True, True, False]),
        ({"threshold": 0.75, "over": "kept"}, (STRONG[0] + STRONG[1]) / 2, [True, True, False]),
        ({"threshold": 0.0}, sum(STRONG) / 3, [True, True, True]),
        ({"threshold": 0.95}, 0.0, [False, False, False]),
        ({"threshold": 0.95, "over": "kept"}, 0.0, [False, False, False]),
        ({"threshold": 0.75, "weight": 0.0}, (STRONG[0] + STRONG[1]) / 3, [True, True, False]),
        ({"threshold": 0.75, "weight": 3.0}, (STRONG[0] + STRONG[1]) / 3, [True, True, False]),
    ],
    ids=str,
)
def test_fixmatch_by_hand(options: dict[str, Any], unlabeled: float, accepted: list[bool]) -> None:
    holder = client(MIXED, linear(2, 2), views=Scaled())
    cost = loss_of_batch(FixMatch(**options).local_loss(holder, EYE, {}), holder.net, EYE, whole(holder))
    weight = options.get("weight", 1.0)
    assert cost.total.item() == pytest.approx(SUPERVISED_PART + weight * unlabeled, rel=1e-5)
    assert cost.metrics["loss_supervised"].item() == pytest.approx(SUPERVISED_PART, rel=1e-5)
    assert cost.metrics["loss_unlabeled"].item() == pytest.approx(unlabeled, rel=1e-5)
    assert cost.metrics["kept"].item() == pytest.approx(sum(accepted) / 3)
    assert cost.pseudo_labels is not None
    assert cost.pseudo_labels.index.tolist() == [1, 2, 3]  # positions among all of the client's samples
    assert cost.pseudo_labels.label.tolist() == [0, 1, 0]
    assert cost.pseudo_labels.accepted.tolist() == accepted


def test_the_gradient_goes_through_the_strong_view_and_not_through_the_target() -> None:
    """Released baselines detach the strong view, and then learn nothing from unlabeled data."""
    holder = client(samples(UNLABELED, [-1, -1, -1]), linear(2, 2), views=Scaled())
    w = leaves(EYE)
    cost = loss_of_batch(FixMatch(threshold=0.75).local_loss(holder, EYE, {}), holder.net, w, whole(holder))
    found = gradient(cost.total, w)
    # Σ over the two accepted of (p - target) ⊗ strong view, over a batch of three
    views = torch.tensor(UNLABELED)[:2] * 0.5
    error = views.softmax(dim=1) - torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    assert torch.allclose(found["fc.weight"], error.T @ views / 3, atol=1e-7)
    assert torch.allclose(found["fc.bias"], error.sum(0) / 3, atol=1e-7)
    assert found["fc.weight"].abs().max() > 0.01


@pytest.mark.parametrize("labeler", ["local", "global"])
def test_a_client_without_labels_learns(labeler: Any) -> None:
    net = linear()
    holder = client(hide(points(0, 20)), net, Training(batch=6, lr=0.1))
    trained = fit(holder, start(net), FixMatch(threshold=0.0, labeler=labeler))
    assert apart(trained.params, start(net)) > 1e-3
    assert "loss_supervised" not in trained.metrics
    assert trained.pseudo_labels is not None
    assert sorted(trained.pseudo_labels.index.tolist()) == list(range(20))


@pytest.mark.parametrize("labeler", ["local", "global"])
def test_a_client_without_a_confident_sample_does_not_change_the_model(labeler: Any) -> None:
    net = linear()
    holder = client(hide(points(0, 20)), net, Training(lr=0.1))
    trained = fit(holder, start(net), FixMatch(threshold=1.0, labeler=labeler))
    assert trained.steps == 1
    assert same(trained.params, start(net))


@pytest.mark.parametrize("labeler", ["local", "global"])
@pytest.mark.parametrize("net", [linear(), build("cnn", (1, 16, 16), 3, "batch")], ids=["points", "images"])
def test_fixmatch_on_labeled_data_has_the_bits_of_supervised(net: Net, labeler: Any) -> None:
    data = points(0, 20) if net.trainable == ("fc.weight", "fc.bias") else images(0, 20)
    holder = client(data, net, Training(epochs=2, batch=6))
    supervised, fixmatch = (
        fit(holder, start(net), objective) for objective in (Supervised(), FixMatch(labeler=labeler))
    )
    assert same(fixmatch.params, supervised.params)
    assert fixmatch.metrics == supervised.metrics
    assert fixmatch.pseudo_labels is None


def test_weight_zero_has_the_gradient_of_supervised() -> None:
    holder = client(MIXED, linear(2, 2), views=Scaled())
    w = leaves(EYE)
    objectives: list[Objective] = [FixMatch(weight=0.0, threshold=0.0), Supervised()]
    found = [
        gradient(loss_of_batch(each.local_loss(holder, EYE, {}), holder.net, w, whole(holder)).total, w)
        for each in objectives
    ]
    assert apart(*found) == 0.0


# Who labels.


def labels(labeler: Any, received: Params, w: Params) -> tuple[list[int], list[bool], Scaled]:
    views = Scaled()
    holder = client(samples(UNLABELED, [-1, -1, -1]), linear(2, 2), views=views)
    local = FixMatch(threshold=0.7, labeler=labeler).local_loss(holder, received, {})
    for _ in range(3):
        pseudo_labels = loss_of_batch(local, holder.net, w, whole(holder)).pseudo_labels
    assert pseudo_labels is not None
    return pseudo_labels.label.tolist(), pseudo_labels.accepted.tolist(), views


def test_the_local_labeler_is_the_model_as_it_trains() -> None:
    assert labels("local", EYE, FLIPPED)[0] == [1, 0, 1]
    assert labels("local", FLIPPED, EYE)[0] == [0, 1, 0]


def test_the_global_labeler_is_the_received_model_on_plain_views() -> None:
    answer, accepted, _ = labels("global", EYE, FLIPPED)
    assert answer == [0, 1, 0]
    assert accepted == [True, False, False]  # plain views have odds 3, 2 and 1.2: p = 0.75, 0.67 and 0.55


def test_the_global_labeler_labels_once() -> None:
    _, _, views = labels("global", EYE, FLIPPED)
    assert views.looks == [("plain", 3)] + 3 * [("strong", 3)]
    _, _, views = labels("local", EYE, FLIPPED)
    assert views.looks == 3 * [("weak", 3), ("strong", 3)]


def test_the_global_labeler_finds_every_sample_in_its_batch() -> None:
    """Batches are shuffled parts of the data; labels must follow by position."""
    net = linear()
    holder = client(hide(points(0, 30), shown=7), net, Training(batch=4))
    received = start(net)
    expected = net.apply(received, holder.data.x).argmax(dim=1)
    local = FixMatch(labeler="global").local_loss(holder, received, {})
    for batch in batches(holder):
        pseudo_labels = loss_of_batch(local, holder.net, received, batch).pseudo_labels
        assert pseudo_labels is not None
        assert torch.equal(pseudo_labels.label, expected[pseudo_labels.index])


@pytest.mark.parametrize("place", ["meta", "cpu"])
def test_the_global_labeler_may_hold_the_data_elsewhere_than_the_model(place: str) -> None:
    """No GPU is needed to see it: tensors on the device "meta" refuse to meet tensors on the CPU."""
    meta = torch.device("meta")
    holder = replace(client(hide(points(0, 6)), linear()), device=meta)
    received, w = ({name: value.to(to) for name, value in start(linear()).items()} for to in (place, meta))
    cost = loss_of_batch(
        FixMatch(labeler="global").local_loss(holder, received, {}), holder.net, w, next(batches(holder))
    )
    assert cost.total.device == meta


# Statistics and randomness.


def test_labeling_leaves_the_received_model_alone() -> None:
    net = build("cnn", (1, 16, 16), 3, "batch")
    received = start(net)
    before = clone(received)
    fit(client(hide(images(0, 12), shown=4), net), received, FixMatch(labeler="global"))
    assert same(received, before)


def test_labeling_and_learning_both_move_the_running_statistics() -> None:
    net, views = build("cnn", (1, 16, 16), 3, "batch"), Scaled()
    holder = client(hide(images(0, 8)), net, views=views)
    w, x = start(net), holder.data.x
    local = FixMatch().local_loss(holder, w, {})
    moved, expected = clone(w), clone(w)
    loss_of_batch(local, net, moved, whole(holder))
    net.apply(expected, 2.0 * x, train=True)  # the weak views first, which are labeled
    once = clone(expected)
    net.apply(expected, 0.5 * x, train=True)
    assert net.buffers
    for name in net.buffers:
        assert torch.allclose(moved[name], expected[name], rtol=1e-4)
        assert not torch.allclose(expected[name], once[name], rtol=1e-2)


def test_unlabeled_data_does_not_change_how_labeled_images_are_augmented() -> None:
    net = linear()
    seen: list[Tensor] = []

    def spy(real: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def watched(w: Params, x: Tensor, train: bool = False) -> Tensor:
            seen.append(x)
            return real(w, x, train)

        return watched

    net.apply = spy(net.apply)  # type: ignore[method-assign]
    alone, more = points(0, 12), hide(points(1, 12))
    for data in (alone, Samples(torch.cat([alone.x, more.x]), torch.cat([alone.y, more.y]))):
        fit(client(data, net, views=Noisy(1.0, 1.0)), start(net), FixMatch())
    # Three batches of four alone; then three passes that label, each followed by one over labeled and strong views.
    assert len(seen) == 3 + 3 * 2
    assert torch.equal(torch.cat(seen[:3]), torch.cat([both[:4] for both in seen[4::2]]))


def test_a_visit_is_repeatable() -> None:
    net = linear()
    holder = client(hide(points(0, 20), shown=5), net, views=Noisy(1.0, 1.0))
    objective = FixMatch(threshold=0.4)
    first = fit(holder, start(net), objective)
    assert same(fit(holder, start(net), objective).params, first.params)
    assert not same(fit(replace(holder, round=1), start(net), objective).params, first.params)


def test_supervised_takes_labels_only_and_fixmatch_everything() -> None:
    assert Supervised().labels_only
    assert not FixMatch().labels_only
    net = linear()
    holder = client(hide(points(0, 20), shown=5), net)
    assert fit(holder, start(net), Supervised()).steps == 2  # ⌈5/4⌉
    assert fit(holder, start(net), FixMatch()).steps == 4  # ⌈15/4⌉


def test_cross_entropy_of_one_labeled_batch_is_torch() -> None:
    net, data = linear(), points(0, 4)
    holder = client(data, net)
    cost = loss_of_batch(FixMatch().local_loss(holder, start(net), {}), holder.net, start(net), whole(holder))
    assert cost.total.item() == F.cross_entropy(net.apply(start(net), data.x), data.y).item()
