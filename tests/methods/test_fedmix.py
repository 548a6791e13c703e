"""FedMix and its family: Algorithm 2 by hand, what a mean is made of, who gets which means, and what λ = 0 leaves."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from math import exp, log
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import tacit
from tacit.aggregation import WeightsState, WeightsUp
from tacit.data.views.augment import ImageViews
from tacit.engines.faults import Faults
from tacit.engines.job import Job
from tacit.federation import Samples
from tacit.learn import fit
from tacit.method import Training
from tacit.methods import fedmix
from tacit.methods.fedavg import FedAvg
from tacit.methods.fedmix import (
    FedMix,
    FedMixDown,
    FedMixMemory,
    FedMixState,
    FedMixUp,
    LocalMix,
    Means,
    approximate_loss,
    mixup_loss,
)
from tacit.methods.fedprox import FedProx
from tacit.nets import build
from tacit.objectives import Mixup, Supervised
from tacit.params import Params
from tacit.runs import config as configs
from tacit.runs import registry
from tests.engines import farm
from tests.methods import by_hand
from tests.objectives.bench import ONE_STEP, gradient, leaves
from tests.refusals import refused
from tests.toys import (
    TWO_EPOCHS,
    Elsewhere,
    Moment,
    alone,
    apart,
    federation,
    hide,
    images,
    job,
    linear,
    normed,
    play_all,
    points,
    rounds,
    same,
    started,
    steps,
    visit,
)


def naivemix(**settings: Any) -> FedMix:
    """NaiveMix."""
    return FedMix(**dict[str, Any](lam=0.1, loss="mixup") | settings)


def globalmix(**settings: Any) -> FedMix:
    """GlobalMix."""
    return FedMix(**dict[str, Any](lam=0.1, loss="mixup", pool="samples") | settings)


FAMILY: list[Callable[..., FedMix]] = [naivemix, FedMix, globalmix]


def loss_of(method: FedMix, logits: Any, x: Tensor, y: Tensor, mean: Tensor, label: Tensor) -> Tensor:
    """The method's loss of a batch."""
    chosen = {"approximate": approximate_loss, "mixup": mixup_loss}[method.loss]
    return chosen(logits, x, y, mean, label, method.lam)


def crowd(method: Any, clients: int = 4, **options: Any) -> Job:
    """Clients with labels of unequal number, two of which are drawn in a round."""
    data = federation([points(k, 10 + 5 * k) for k in range(clients)])
    settings: dict[str, Any] = {"train": TWO_EPOCHS, "rounds": 5, "cohort": 2}
    return job(method, data, linear(), **settings | options)


# The loss by hand. Two classes and two parameters, logits (0, a·x + b), so p = σ(a·s + b) at s = (1 - λ)·x;
# dℓ/ds = (p - y)·a, and its derivatives are (p - y) + a·s·p·(1 - p) by a and a·p·(1 - p) by b.

X, Y = [0.5, -1.0, 2.0], [1, 0, 0]
MEAN, SHARE = -0.7, 0.25  # x̄, and ȳ = (¾, ¼)
A, B, LAM = 0.8, -0.3, 0.2


def model(a: Tensor, b: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda x: torch.cat([torch.zeros_like(x), a * x + b], dim=1)


def double(*values: Any) -> tuple[Tensor, ...]:
    return tuple(torch.tensor(value, dtype=torch.float64) for value in values)


def given_loss(method: FedMix, a: Tensor, b: Tensor, *, copies: int = 1) -> Tensor:
    x, mean, label = double([[x] for x in X] * copies, [[MEAN]], [[1 - SHARE, SHARE]])
    return loss_of(method, model(a, b), x, torch.tensor(Y * copies), mean, label)


def algorithm_2(lam: float) -> tuple[float, float, float]:
    """Its loss by hand, and the derivatives by a and b."""
    loss = by_a = by_b = 0.0
    for x, y in zip(X, Y, strict=True):
        s = (1 - lam) * x
        p = 1 / (1 + exp(-(A * s + B)))
        own = -log(p if y else 1 - p)
        other = -(1 - SHARE) * log(1 - p) - SHARE * log(p)
        bend = p * (1 - p)
        loss += (1 - lam) * own + lam * other + lam * (1 - lam) * (p - y) * A * MEAN
        by_a += (1 - lam) * (p - y) * s + lam * (p - SHARE) * s + lam * (1 - lam) * (p - y + A * s * bend) * MEAN
        by_b += (1 - lam) * (p - y) + lam * (p - SHARE) + lam * (1 - lam) * A * bend * MEAN
    return loss / 3, by_a / 3, by_b / 3


@pytest.mark.parametrize("lam", [0.0, 0.05, LAM, 0.5, 1.0])
def test_fedmix_by_hand_with_its_mixed_derivative(lam: float) -> None:
    a, b = (value.requires_grad_() for value in double(A, B))
    loss = given_loss(FedMix(lam=lam), a, b)
    slopes = torch.autograd.grad(loss, (a, b))
    expected = algorithm_2(lam)
    assert loss.item() == pytest.approx(expected[0], abs=1e-12)
    assert [slope.item() for slope in slopes] == pytest.approx(expected[1:], abs=1e-12)


def test_derivatives_of_fedmix_against_differences() -> None:
    start = tuple(value.requires_grad_() for value in double(A, B))
    assert torch.autograd.gradcheck(lambda a, b: given_loss(FedMix(lam=LAM), a, b), start)
    assert torch.autograd.gradgradcheck(lambda a, b: given_loss(FedMix(lam=LAM), a, b), start)


def test_derivatives_through_a_convolution_against_differences() -> None:
    stream = torch.Generator().manual_seed(3)
    shapes = ((2, 1, 3, 3), (3, 2), (2, 1, 4, 4), (1, 1, 4, 4))
    kernel, head, x, mean = (torch.randn(*shape, generator=stream, dtype=torch.float64) for shape in shapes)
    (label,) = double([[0.5, 0.25, 0.25]])

    def loss(kernel: Tensor, head: Tensor) -> Tensor:
        def answers(seen: Tensor) -> Tensor:
            return torch.tanh(functional.conv2d(seen, kernel)).mean(dim=(2, 3)) @ head.T

        return loss_of(FedMix(lam=LAM), answers, x, torch.tensor([2, 0]), mean, label)

    assert torch.autograd.gradcheck(loss, (kernel.requires_grad_(), head.requires_grad_()))


def test_naivemix_by_hand() -> None:
    expected = 0.0
    for x, y in zip(X, Y, strict=True):
        p = 1 / (1 + exp(-(A * ((1 - LAM) * x + LAM * MEAN) + B)))
        expected -= (1 - LAM) * log(p if y else 1 - p) + LAM * ((1 - SHARE) * log(1 - p) + SHARE * log(p))
    assert given_loss(naivemix(lam=LAM), *double(A, B)).item() == pytest.approx(expected / 3, abs=1e-12)


@pytest.mark.parametrize("kind", [naivemix, FedMix])
def test_a_batch_twice_over_costs_the_same(kind: Any) -> None:
    """The gradient by x carries 1/n, so the third term is a sum: with a mean it would shrink with the batch."""
    one, two, ten = (given_loss(kind(lam=LAM), *double(A, B), copies=n).item() for n in (1, 2, 10))
    assert two == pytest.approx(one, abs=1e-12)
    assert ten == pytest.approx(one, abs=1e-12)


PARTNERS, SHARES = [-0.7, 1.5, 0.25], [0.25, 1.0, 0.0]  # x̄ and the share of class 1, one for each sample


def test_eq_3_by_hand_with_a_partner_for_each_sample() -> None:
    expected = 0.0
    for x, y, mean, share in zip(X, Y, PARTNERS, SHARES, strict=True):
        p = 1 / (1 + exp(-(A * ((1 - LAM) * x + LAM * mean) + B)))
        target = (1 - LAM) * y + LAM * share
        expected -= target * log(p) + (1 - target) * log(1 - p)
    inputs, partners, labels = double([[x] for x in X], [[mean] for mean in PARTNERS], [[1 - s, s] for s in SHARES])
    found = loss_of(globalmix(lam=LAM), model(*double(A, B)), inputs, torch.tensor(Y), partners, labels)
    assert found.item() == pytest.approx(expected / 3, abs=1e-12)


# Taylor. Two layers are as good as any: what is left out is of second order.


def smooth() -> Callable[[Tensor], Tensor]:
    stream = torch.Generator().manual_seed(5)
    first, second = (torch.randn(*s, generator=stream, dtype=torch.float64) for s in ((6, 4), (3, 6)))
    return lambda x: torch.tanh(x @ first.T) @ second.T


def cloud(n: int, seed: int) -> tuple[Tensor, Tensor]:
    given = points(seed, n)
    return given.x.double(), given.y


HALVES = [0.08 / 2**k for k in range(5)]


def ratios(difference: Callable[[float], Tensor]) -> list[float]:
    gaps = [difference(lam).item() for lam in HALVES]
    assert all(abs(gap) > 1e-9 for gap in gaps)
    return [one / two for one, two in pairwise(gaps)]


def test_naivemix_and_fedmix_agree_to_first_order() -> None:
    (x, y), (others, labels) = cloud(8, 1), cloud(5, 2)
    mean, label = others.mean(dim=0, keepdim=True), functional.one_hot(labels, 3).double().mean(dim=0, keepdim=True)

    def gap(lam: float) -> Tensor:
        naive, mixed = (loss_of(kind(lam=lam), smooth(), x, y, mean, label) for kind in (naivemix, FedMix))
        return naive - mixed

    assert ratios(gap)[-1] == pytest.approx(4, abs=0.15)


def test_fedmix_with_a_mean_is_mixup_with_its_samples_to_first_order() -> None:
    """GlobalMixup of every sample with every other of a group, against FedMix with the mean of that group."""
    (x, y), (others, labels) = cloud(8, 1), cloud(5, 2)
    hot = functional.one_hot(labels, 3).double()

    def gap(lam: float) -> Tensor:
        pairs = zip(others.split(1), hot.split(1), strict=True)
        whole = torch.stack(
            [loss_of(globalmix(lam=lam), smooth(), x, y, other, targets) for other, targets in pairs]
        ).mean()
        return whole - loss_of(FedMix(lam=lam), smooth(), x, y, others.mean(0, keepdim=True), hot.mean(0, keepdim=True))

    found = ratios(gap)
    assert found[-1] == pytest.approx(4, abs=0.15)
    assert abs(found[-1] - 4) < abs(found[0] - 4)


def test_fedmix_is_linear_in_the_mean() -> None:
    """So nothing is lost by averaging: its loss with a mean is its mean loss with the samples."""
    (x, y), (others, labels) = cloud(8, 1), cloud(5, 2)
    hot = functional.one_hot(labels, 3).double()
    method = FedMix(lam=0.3)
    single = [loss_of(method, smooth(), x, y, o, h) for o, h in zip(others.split(1), hot.split(1), strict=True)]
    joint = loss_of(method, smooth(), x, y, others.mean(0, keepdim=True), hot.mean(0, keepdim=True))
    assert joint.item() == pytest.approx(torch.stack(single).mean().item(), abs=1e-12)


def four_terms(lam: float, x: Tensor, y: Tensor, other: Tensor, label: Tensor) -> list[Tensor]:
    """The expansion of Eq. 3 at s = (1 - λ)·x, with ∂ℓ/∂x for y and for the other's label; means over the batch."""
    s = ((1 - lam) * x).requires_grad_()
    targets = label.expand(len(x), -1)
    own, others = (functional.cross_entropy(smooth()(s), target) for target in (y, targets))
    by_own, by_others = ((torch.autograd.grad(loss, s)[0] * other).sum() for loss in (own, others))
    return [(1 - lam) * own, (1 - lam) * lam * by_own, lam * others, lam * lam * by_others]


def test_algorithm_2_is_the_expansion_without_its_last_term_and_eq_4_to_first_order() -> None:
    (x, y), (other, y_other) = cloud(8, 1), cloud(1, 2)
    label = functional.one_hot(y_other, 3).double()

    def fedmix(lam: float) -> Tensor:
        return loss_of(FedMix(lam=lam), smooth(), x, y, other, label)

    def eq_4(lam: float) -> Tensor:
        own, by_own, others, _ = four_terms(lam, x, y, other, label)
        return own + others + by_own / (1 - lam)  # λ·∂ℓ/∂x where Algorithm 2 has λ·(1 - λ)·∂ℓ/∂x

    def eq_3(lam: float) -> Tensor:
        return loss_of(globalmix(lam=lam), smooth(), x, y, other, label)

    for lam in HALVES:
        terms = four_terms(lam, x, y, other, label)
        assert fedmix(lam).item() == pytest.approx(torch.stack(terms[:3]).sum().item(), abs=1e-12)
        gap, slope = (eq_4(lam) - fedmix(lam)).item(), (terms[1] / (lam * (1 - lam))).item()
        assert gap == pytest.approx(lam * lam * slope, rel=1e-9)
    assert ratios(lambda lam: eq_3(lam) - eq_4(lam))[-1] == pytest.approx(4, abs=0.15)
    assert ratios(lambda lam: eq_3(lam) - torch.stack(four_terms(lam, x, y, other, label)).sum())[-1] == pytest.approx(
        4, abs=0.15
    )


@pytest.mark.parametrize("n, groups, alike", [(8, (2, 4, 8), True), (10, (4, 10), False)])
def test_the_expected_loss_depends_on_m_k_only_where_groups_are_unequal(
    n: int, groups: tuple[int, ...], alike: bool
) -> None:
    """Entries are drawn with equal chances: of 10 samples in groups of 4 and 6, those in the first count more."""
    x, y = cloud(8, 1)

    def expected(group: int) -> float:
        pool = sent(FedMix(group=group), points(2, n))
        assert pool is not None
        entries = zip(pool.x.double().split(1), pool.y.double().split(1), strict=True)
        return torch.stack([loss_of(FedMix(lam=0.3), smooth(), x, y, *entry) for entry in entries]).mean().item()

    first, *others = map(expected, groups)
    assert all((abs(other - first) < 1e-6) is alike for other in others)
    assert alike or all(abs(other - first) > 1e-3 for other in others)


@pytest.mark.parametrize("norm", ["none", "batch"])
def test_the_third_term_has_what_samples_do_to_each_other_by_batch_statistics(norm: Any) -> None:
    """Algorithm 2 has the derivative of each sample's own loss; without BatchNorm there is no other."""
    net, data, mean = build("lenet", (1, 16, 16), 3, norm, width=0.5), images(0, 6), means(images(1, 6))
    w, x, x_g = started(alone(FedMix(), data, net)).common.w, data.x / 255, mean.x / 255

    def losses(seen: Tensor) -> Tensor:
        return functional.cross_entropy(net.apply(w, seen, train=True), data.y, reduction="none")

    seen = ((1 - LAM) * x).requires_grad_()
    slopes = [torch.autograd.grad(loss, seen, retain_graph=True)[0] for loss in losses(seen)]
    together = LAM * (1 - LAM) / 6 * float(sum((slope * x_g).sum() for slope in slopes))
    per_sample = LAM * (1 - LAM) / 6 * float(sum((slope[i] * x_g[0]).sum() for i, slope in enumerate(slopes)))
    whole = loss_of(FedMix(lam=LAM), lambda at: net.apply(w, at, train=True), x, data.y, x_g, mean.y)
    logits = net.apply(w, seen, train=True)
    others = (1 - LAM) * functional.cross_entropy(logits, data.y)
    others = others + LAM * functional.cross_entropy(logits, mean.y.expand(6, -1))
    third = (whole - others).item()
    assert third == pytest.approx(together, abs=1e-6)
    if norm == "none":
        assert third == pytest.approx(per_sample, abs=1e-6)
    else:
        assert (third, per_sample) == pytest.approx((-0.0053, 0.0122), abs=1e-4)  # as on the method's page


# λ = 0, and the proximal term.


def from_round_one(method: Any, given: Job) -> Params:
    """The model of another method after the same rounds without the first."""
    other = replace(given, method=method)
    state: WeightsState = started(other)
    for r in range(1, given.rounds):
        state = by_hand.turn(other, r, state).state
    return state.w


@pytest.mark.parametrize(
    "mu, plain", [(0.0, FedAvg(Supervised(), "samples")), (0.3, FedProx(Supervised(), 0.3, "samples"))]
)
@pytest.mark.parametrize("kind", FAMILY)
def test_without_a_share_it_is_fedavg_or_fedprox_to_the_last_bit(kind: Any, mu: float, plain: Any) -> None:
    given = crowd(kind(lam=0.0, mu=mu))
    expected = from_round_one(plain, given)
    assert same(play_all(given).state.common.w, expected)
    assert not same(play_all(crowd(kind(lam=0.1, mu=mu))).state.common.w, expected)


@pytest.mark.parametrize("kind", [naivemix, FedMix])
def test_without_a_share_it_is_fedavg_with_convolutions_and_batch_norm(kind: Any) -> None:
    net = normed()
    data = federation([images(k, 9) for k in range(3)], views=ImageViews((0.3,), (0.2,), flip=False))
    given = job(kind(lam=0.0), data, net, train=Training(batch=4, lr=0.05), cohort=2)
    assert same(play_all(given).state.common.w, from_round_one(FedAvg(Supervised(), "samples"), given))


def test_the_proximal_term_pulls_back() -> None:
    given, pulled = (crowd(FedMix(mu=mu)) for mu in (0.0, 5.0))
    assert not same(play_all(given).state.common.w, play_all(pulled).state.common.w)
    start = given.server(0, {}).initial()
    pool = means(points(9, 6))
    far, near = (apart(visit(each, 0, FedMixDown(start, pool)).model, start) for each in (given, pulled))
    assert near < 0.8 * far


def test_one_step_descends_on_the_loss() -> None:
    """The method's loss, drawn entry and view and all, is what `fit` goes down on."""
    data, pool = points(0, 6), means(points(1, 5))
    given = alone(FedMix(lam=0.3), data, train=ONE_STEP)
    w = given.server(0, {}).initial()
    at = leaves(w)
    loss = loss_of(FedMix(lam=0.3), lambda x: given.net.apply(at, x), data.x, data.y, pool.x, pool.y)
    slopes = gradient(loss, at)
    reply = visit(given, 0, FedMixDown(w, pool))
    assert apart(reply.up.trained.w, {name: w[name] - slopes[name] for name in w}) < 1e-6
    assert reply.metrics["loss_supervised"] == pytest.approx(loss.item(), abs=1e-6)
    assert reply.up.trained.n == 6


# What a mean is made of.


def means(data: Samples, classes: int = 3) -> Means:
    """One mean of all."""
    label = functional.one_hot(data.y, classes).float().mean(dim=0, keepdim=True)
    return Means(data.x.float().mean(dim=0, keepdim=True), label, torch.tensor([len(data)]))


def sent(method: FedMix, data: Samples, **options: Any) -> Means | None:
    """What a client sends when it is asked for its means."""
    up = visit(alone(method, data, **options), 0, FedMixDown(None, None)).up
    return None if up is None else up.means


def test_a_group_of_all_is_one_mean_of_inputs_and_labels() -> None:
    data = points(0, 11)
    found, expected = sent(FedMix(), data), means(data)
    assert found is not None
    assert torch.allclose(found.x, expected.x, atol=1e-6)
    assert torch.allclose(found.y, expected.y, atol=1e-6)
    assert found.of.tolist() == [11]


@pytest.mark.parametrize(
    "n, group, sizes",
    [(12, 4, [4, 4, 4]), (13, 4, [4, 4, 5]), (15, 4, [4, 4, 7]), (7, 4, [7]), (4, 4, [4]), (2, 2, [2]), (5, 2, [2, 3])],
)
def test_groups_have_m_k_samples_and_the_remainder_joins_the_last(n: int, group: int, sizes: list[int]) -> None:
    """Every sample is in exactly one group: the means, times their sizes, add up to the sum of all."""
    data = points(0, n)
    found = sent(FedMix(group=group), data)
    assert found is not None
    assert found.of.tolist() == sizes
    of = found.of[:, None]
    assert torch.allclose((found.x * of).sum(dim=0), data.x.sum(dim=0), atol=1e-5)
    assert (found.y * of).sum(dim=0).round().tolist() == torch.bincount(data.y, minlength=3).tolist()
    counts = found.y * of
    assert torch.allclose(counts, counts.round(), atol=1e-5)


def test_groups_are_drawn_and_label_and_input_stay_together() -> None:
    y = torch.arange(12) % 3
    data = Samples(functional.one_hot(y, 4).float(), y)  # so a mean input is its mean label
    found = sent(FedMix(group=4), data)
    assert found is not None
    assert torch.equal(found.x[:, :3], found.y)
    in_order = torch.stack([functional.one_hot(part, 3).float().mean(dim=0) for part in y.split(4)])
    assert not torch.equal(found.y, in_order)
    again = sent(FedMix(group=4), data)
    assert again is not None
    assert torch.equal(again.x, found.x)


@pytest.mark.parametrize("method", [FedMix(group=4), FedMix(group=4, force=True)], ids=["", "forced"])
def test_never_of_fewer_than_m_k_unless_forced(method: FedMix) -> None:
    found = sent(method, points(0, 3))
    assert (found is None) != method.force
    assert found is None or found.of.tolist() == [3]


@pytest.mark.parametrize("group", [0, 2])
def test_a_sample_alone_is_never_sent_unless_forced(group: int) -> None:
    single = points(0, 1)
    assert sent(FedMix(group=group), single) is None
    forced = sent(FedMix(group=group, force=True), single)
    assert forced is not None
    assert torch.equal(forced.x, single.x)


@pytest.mark.parametrize("kind", [FedMix, naivemix])
def test_groups_of_one_are_refused_unless_forced(kind: Any) -> None:
    with refused("method.sends-samples"):
        kind(group=1)
    found = sent(kind(group=1, force=True), points(0, 5))
    assert found is not None
    assert sorted(found.x.tolist()) == sorted(points(0, 5).x.tolist())


def test_only_labeled_samples_are_averaged() -> None:
    data = points(0, 10)
    found = sent(FedMix(), hide(data, 4))
    assert found is not None
    assert torch.allclose(found.x, means(data.take(torch.arange(4))).x, atol=1e-6)
    assert found.of.tolist() == [4]
    assert sent(FedMix(), hide(data)) is None


def test_means_of_pixels_are_normalised_where_they_are_used() -> None:
    """Normalising is affine, so the normalised mean is the mean of the normalised."""
    views, data, method = ImageViews((0.3,), (0.2,), flip=False), images(0, 6), FedMix(lam=0.3, view="plain")
    net = build("linear", (1, 16, 16), 3)
    given = alone(method, data, net, views, train=steps(1, batch=8))
    found = visit(given, 0, FedMixDown(None, None)).up.means
    assert found.x.max() > 1  # in the range of pixels
    assert found.x.dtype == torch.float32
    seen, mean = views.plain(data.x), views.plain(data.x).mean(dim=0, keepdim=True)
    assert torch.allclose(views.plain(found.x), mean, atol=1e-5)
    w = given.server(0, {}).initial()
    at = leaves(w)
    slopes = gradient(loss_of(method, lambda x: net.apply(at, x), seen, data.y, mean, found.y), at)
    expected = {name: w[name] - 0.1 * slopes[name] for name in w}
    assert apart(visit(given, 0, FedMixDown(w, found)).model, expected) < 1e-5


# Who sends when, and who gets what.


def test_the_first_round_asks_all_clients_and_trains_none() -> None:
    given = crowd(FedMix())
    moment = next(rounds(given))
    assert moment.record.clients == 4
    assert moment.record.steps == 0
    assert moment.state.means.keys() == {0, 1, 2, 3}
    assert same(moment.state.common.w, given.server(0, {}).initial())


class Watched:
    """Counts what `send` and `client_update` exchange, round by round."""

    def __init__(self, given: Job) -> None:
        self.news: list[set[int]] = []
        self.senders: list[set[int]] = []
        self.moments: list[Moment] = []
        for moment in rounds(given):
            before = self.moments[-1].state if self.moments else started(given)
            held = self.moments[-1].memories if self.moments else {}
            again = by_hand.turn(given, moment.record.round, before, held)
            self.news.append({k for k, down in again.downs.items() if down.pool is not None})
            ups = {k: reply.up for k, reply in again.replies.items()}
            self.senders.append({k for k, up in ups.items() if up is not None and up.means is not None})
            self.moments.append(moment)


@pytest.mark.parametrize("kind", [FedMix, naivemix])
def test_means_are_sent_once_and_the_pool_goes_to_every_client_once(kind: Any) -> None:
    given = crowd(kind(), rounds=8)
    seen = Watched(given)
    assert seen.senders == [{0, 1, 2, 3}, *[set[int]()] * 7]
    met: set[int] = set()
    for r in range(1, 8):
        cohort = set(given.sample(r))
        assert seen.news[r] == cohort - met
        met |= cohort
    assert met == {0, 1, 2, 3}
    pool = seen.moments[-1].memories[0].pool
    assert pool.of.tolist() == [10, 15, 20, 25]  # ascending by client, its own included


@dataclass(frozen=True)
class Growing:
    """Half of the samples until round 3, all from then on."""

    def present(self, samples: Tensor, round: int) -> Tensor:
        return samples if round >= 3 else samples[: len(samples) // 2]


def test_means_are_sent_again_when_the_data_changed() -> None:
    given = crowd(FedMix(), rounds=8)
    given = replace(given, federation=replace(given.federation, arrivals=Growing()))
    seen = Watched(given)
    assert seen.senders[0] == {0, 1, 2, 3}
    assert not any(seen.senders[1:3])
    met: set[int] = set()
    for r in range(3, 8):
        cohort = set(given.sample(r))
        assert seen.senders[r] == cohort - met
        if seen.senders[r - 1]:  # the pool has changed, so the next clients lack it
            assert seen.news[r] == cohort
        met |= cohort
    held = seen.moments[-1].state.means
    assert [int(held[k].of[0]) for k in sorted(met)] == [[10, 15, 20, 25][k] for k in sorted(met)]
    assert seen.moments[-1].state.version == 1 + sum(bool(each) for each in seen.senders[3:])


@dataclass(frozen=True)
class Shrinking:
    """Three samples from round 2 on."""

    def present(self, samples: Tensor, round: int) -> Tensor:
        return samples if round < 2 else samples[:3]


def test_the_last_means_of_a_client_with_too_few_samples_stay_in_the_pool() -> None:
    given = crowd(FedMix(group=4), rounds=4, cohort=4)
    given = replace(given, federation=replace(given.federation, arrivals=Shrinking()))
    seen = Watched(given)
    assert seen.senders == [{0, 1, 2, 3}, *[set[int]()] * 3]
    first, last = seen.moments[0].state, seen.moments[-1].state
    assert seen.moments[-1].record.steps == 4 * 2  # of two epochs, each three samples in one batch
    assert first.version == last.version == 1
    assert all(torch.equal(first.means[k].x, last.means[k].x) for k in range(4))


def test_a_mean_that_is_sent_again_gives_a_new_sample_away() -> None:
    data = points(0, 6)
    before, after = sent(FedMix(), data.take(torch.arange(5))), sent(FedMix(), data)
    assert before is not None
    assert after is not None
    x, y = (6 * new - 5 * old for old, new in ((before.x, after.x), (before.y, after.y)))
    assert torch.allclose(x, data.x[5:], atol=1e-5)
    assert torch.allclose(y, functional.one_hot(data.y[5:], 3).float(), atol=1e-5)


def test_labels_at_the_server_are_not_used() -> None:
    parts = [points(k, 10) for k in range(3)]
    methods: list[Any] = [*(kind() for kind in FAMILY), LocalMix()]
    for method in methods:
        with_it, without = (
            job(method, federation(parts, server), linear(), train=TWO_EPOCHS) for server in (points(9, 12), None)
        )
        assert same(method.model(play_all(with_it).state), method.model(play_all(without).state))


def test_a_changed_label_is_changed_data() -> None:
    data = points(0, 8)
    other = Samples(data.x, data.y.roll(1))
    memory = visit(alone(FedMix(), data), 0, FedMixDown(None, None)).memory
    assert visit(alone(FedMix(), data), 0, FedMixDown(None, None), memory).up is None
    assert visit(alone(FedMix(), other), 0, FedMixDown(None, None), memory).up.means is not None
    assert visit(alone(FedMix(), hide(other, 7)), 0, FedMixDown(None, None), memory).up.means.of.tolist() == [7]


def test_lost_replies_are_made_good_later() -> None:
    given = crowd(FedMix(), rounds=12, faults=Faults(lost=0.4), min_clients=0)
    seen = Watched(given)
    lost = set(seen.moments[0].record.skipped)
    assert lost
    assert seen.moments[0].state.means.keys() == {0, 1, 2, 3} - lost
    for r, moment in enumerate(seen.moments[1:], start=1):
        arrived = set(given.sample(r)) - moment.record.skipped.keys()
        assert seen.senders[r] == set(given.sample(r)) & lost
        lost -= arrived
        assert moment.state.means.keys() == {0, 1, 2, 3} - lost
        for k in arrived:  # what the server believes a client has is what it has
            held = seen.moments[r - 1].state.means
            assert moment.memories[k].pool.of.tolist() == [int(held[j].of[0]) for j in sorted(held)]
    assert not lost
    assert seen.moments[-1].state.versions.keys() == {0, 1, 2, 3}


@pytest.mark.parametrize("kind", FAMILY)
def test_without_means_it_is_fedavg(kind: Any) -> None:
    given = crowd(kind())
    state = FedMixState(WeightsState(given.server(0, {}).initial()))
    _, downs = given.method.send(given.server(1, {}), state)
    assert all(down.pool is None for down in downs.values())
    k = next(iter(downs))
    expected = fit(given.client(1, k), downs[k].w, Supervised()).params
    assert same(visit(given, k, downs[k], FedMixMemory(), round=1).model, expected)


def test_clients_with_too_little_train_without_a_pool() -> None:
    data = federation([points(k, 3) for k in range(3)])
    given = job(FedMix(group=5), data, linear(), train=TWO_EPOCHS)
    played = play_all(given)
    assert played.state.means == {}
    assert same(played.state.common.w, from_round_one(FedAvg(Supervised(), "samples"), given))
    assert all("means" not in record.server for record in played.records)


def test_a_client_without_labels_uploads_nothing() -> None:
    data = federation([points(0, 10), points(1, 10), hide(points(2, 10))])
    with_it = play_all(job(FedMix(), data, linear(), train=TWO_EPOCHS))
    without = play_all(job(FedMix(), federation([points(0, 10), points(1, 10)]), linear(), train=TWO_EPOCHS))
    assert same(with_it.state.common.w, without.state.common.w)
    assert with_it.state.means.keys() == {0, 1}
    assert all(record.traffic[2][1] < 100 for record in with_it.records)  # no model, no means


# Bytes.


def volume(pool: Means) -> int:
    return sum(part.nbytes for part in (pool.x, pool.y, pool.of))


@pytest.mark.parametrize("group, count, smallest", [(0, 4, 10), (5, 2 + 3 + 4 + 5, 5)])
def test_the_bytes_of_the_means_are_logged_and_travel(group: int, count: int, smallest: int) -> None:
    given = crowd(FedMix(group=group), rounds=3)
    moments = list(rounds(given))
    first = moments[0].record
    pools = [moments[0].state.means[k] for k in range(4)]
    assert first.server["means"] == count
    assert first.server["means_smallest_group"] == smallest
    assert first.server["means_bytes"] == sum(map(volume, pools)) == count * (4 * 4 + 3 * 4 + 8)
    for k in range(4):
        own = volume(pools[k])
        assert own <= first.traffic[k][1] <= own + 2000  # and little else
    assert all("means" not in moment.record.server for moment in moments[1:])


def test_a_client_that_has_the_pool_is_not_sent_it_again() -> None:
    given = crowd(FedMix(group=2), rounds=3, cohort=4)
    moments = list(rounds(given))
    logged = moments[0].record.server["means_bytes"]
    for k in range(4):
        spared = moments[1].record.traffic[k][0] - moments[2].record.traffic[k][0]
        assert logged <= spared <= logged + 2000


@pytest.mark.parametrize("shown", [0, 10], ids=["unlabeled", "labeled"])
def test_a_client_without_labels_is_sent_the_pool_once_too(shown: int) -> None:
    """It says that it has got it, in a few bytes, and is silent from then on."""
    data = federation([points(0, 10), points(1, 10), hide(points(2, 10), shown)])
    moments = list(rounds(job(FedMix(group=2), data, linear(), train=TWO_EPOCHS, rounds=4)))
    down, up = zip(*(moment.record.traffic[2] for moment in moments), strict=True)
    assert down[1] - down[2] >= moments[0].record.server["means_bytes"]
    assert down[2] == down[3]
    if not shown:
        assert up[0] == up[2] == up[3] == 0
        assert 0 < up[1] < 100


# The pool at work.


def recorded(monkeypatch: pytest.MonkeyPatch, name: str) -> list[tuple[Tensor, Tensor]]:
    """The entries of the pool, mean and label, that every later batch is mixed with."""
    entries: list[tuple[Tensor, Tensor]] = []
    loss = getattr(fedmix, name)

    def noting(logits: Any, x: Tensor, y: Tensor, mean: Tensor, label: Tensor, lam: float) -> Any:
        entries.append((mean, label))
        return loss(logits, x, y, mean, label, lam)

    monkeypatch.setattr(fedmix, name, noting)
    return entries


def test_one_entry_for_a_batch_and_another_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    data, train = points(0, 40), Training(steps=30, batch=4, lr=0.0)
    entries = recorded(monkeypatch, "approximate_loss")
    pool = Means(torch.eye(5, 4), torch.full((5, 3), 1 / 3), torch.full((5,), 2))
    given = alone(FedMix(), data, train=train)
    w = given.server(0, {}).initial()
    visit(given, 0, FedMixDown(w, pool))
    first = [mean for mean, _ in entries]
    assert all(mean.shape == (1, 4) for mean in first)
    assert {tuple(mean[0].tolist()) for mean in first} == {tuple(row.tolist()) for row in pool.x}
    entries.clear()
    visit(given, 0, FedMixDown(w, pool), round=1)
    assert not all(torch.equal(one, two) for one, (two, _) in zip(first, entries, strict=True))


def test_the_pool_is_remembered() -> None:
    given, pool = alone(FedMix(lam=0.3), points(0, 12), train=TWO_EPOCHS), means(points(1, 5))
    w = given.server(0, {}).initial()
    first = visit(given, 0, FedMixDown(w, pool))
    assert same(visit(given, 0, FedMixDown(w, None), first.memory).model, first.model)
    assert not same(visit(given, 0, FedMixDown(w, None)).model, first.model)


@pytest.mark.parametrize("weights, share", [("samples", 1 / 4), ("uniform", 1 / 2)])
def test_merge_by_hand(weights: Any, share: float) -> None:
    given = crowd(FedMix(weights=weights))
    state = started(given)
    w = state.common.w
    ahead = {name: value + 1 for name, value in w.items()}
    ups = {0: FedMixUp(WeightsUp(w, 10), None), 2: FedMixUp(WeightsUp(ahead, 30), None)}
    merged = given.method.merge(given.server(1, {}), state, ups)
    assert apart(merged.common.w, {name: value + 1 - share for name, value in w.items()}) < 1e-6
    assert merged.versions == {0: 0, 2: 0}


def test_momentum_is_carried_if_set() -> None:
    given = alone(FedMix(), points(0, 12), train=replace(TWO_EPOCHS, optimizer="keep"))
    w = given.server(0, {}).initial()
    first = visit(given, 0, FedMixDown(w, means(points(1, 5)))).memory
    assert first.carried is not None
    again, fresh = (visit(given, 0, FedMixDown(w, None), each).model for each in (first, replace(first, carried=None)))
    assert not same(again, fresh)


# LocalMix.


@pytest.mark.parametrize("mu", [0.0, 0.3])
def test_localmix_is_fedavg_with_mixup_on_the_labeled_samples(mu: float) -> None:
    parts = [points(k, 20) for k in range(3)]
    shown, whole = (federation(clients) for clients in ([each.take(torch.arange(8)) for each in parts], parts))
    mixed = federation([hide(each, 8) for each in parts])
    plain: Any = FedProx(Mixup(alpha=0.4), mu, "samples") if mu else FedAvg(Mixup(alpha=0.4), "samples")
    expected = play_all(job(plain, shown, linear(), train=TWO_EPOCHS)).state.w
    method = LocalMix(alpha=0.4, mu=mu)
    assert same(play_all(job(method, shown, linear(), train=TWO_EPOCHS)).state.w, expected)
    assert same(play_all(job(method, mixed, linear(), train=TWO_EPOCHS)).state.w, expected)
    assert not same(play_all(job(method, whole, linear(), train=TWO_EPOCHS)).state.w, expected)
    assert not same(play_all(job(LocalMix(alpha=1.0, mu=mu), shown, linear(), train=TWO_EPOCHS)).state.w, expected)


def test_localmix_counts_labeled_samples_and_uploads_nothing_without() -> None:
    given = job(LocalMix(), federation([hide(points(0, 20), 8), hide(points(1, 20))]), linear(), train=TWO_EPOCHS)
    _, downs = given.method.send(given.server(0, {}), started(given))
    assert visit(given, 0, downs[0]).up.n == 8
    assert visit(given, 1, downs[1]).up is None


# globalmix.


def test_globalmix_draws_new_samples_of_all_clients_for_every_visit() -> None:
    given = crowd(globalmix(draws=200))
    moment = next(rounds(given))
    _, downs = given.method.send(given.server(1, {}), moment.state)
    _, later = given.method.send(given.server(2, {}), moment.state)
    everything = {tuple(row) for row in given.federation.pool.x.tolist()}
    assert len(everything) == 70
    drawn = [down.pool for down in (*downs.values(), *later.values())]
    for pool in drawn:
        assert pool.of.tolist() == [1] * 200
        assert {tuple(row) for row in pool.x.tolist()} <= everything
        assert len({tuple(row) for row in pool.x.tolist()}) > 50
    assert len({pool.x.numpy().tobytes() for pool in drawn}) == len(drawn)
    held = given.federation.pool
    labels = {tuple(x): y for x, y in zip(held.x.tolist(), held.y.tolist(), strict=True)}
    assert [labels[tuple(x)] for x in drawn[0].x.tolist()] == drawn[0].y.argmax(dim=1).tolist()


def test_globalmix_mixes_every_sample_of_a_batch_with_another(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = recorded(monkeypatch, "mixup_loss")
    given = alone(globalmix(), points(0, 7), train=Training(batch=4, lr=0.1))
    pool = Means(torch.randn(30, 4), torch.eye(3)[torch.arange(30) % 3], torch.ones(30, dtype=torch.int64))
    visit(given, 0, FedMixDown(given.server(0, {}).initial(), pool))
    assert [(len(mean), len(label)) for mean, label in rows] == [(4, 4), (3, 3)]
    index = {tuple(x): row for row, x in enumerate(pool.x.tolist())}
    for mean, label in rows:
        assert torch.equal(label, pool.y[[index[tuple(x)] for x in mean.tolist()]])
    assert len({tuple(x) for mean, _ in rows for x in mean.tolist()}) > 3


# What is needed, and a run that stopped.

OPTIONS: dict[str, Any] = {
    "clients": 3,
    "labels": "all",
    "net": "linear",
    "rounds": 4,
    "cohort": 2,
    "batch": 16,
    "workers": 0,
}


def test_globalmix_has_no_groups() -> None:
    for name in ("group", "force"):
        with refused("names.unknown-setting"):
            configs.from_options(OPTIONS | {"method": "globalmix", f"method.{name}": 1}).build_method()
    settings = registry.settings_of(registry.methods()["globalmix"])
    assert [item.name for item in settings] == [
        "lam",
        "mu",
        "weights",
        "view",
        "draws",
        "server_optimizer",
        "tune_head",
    ]


def test_the_named_variants_are_the_papers() -> None:
    built = {name: registry.build_method(name, {}, {}) for name in ("fedmix", "naivemix", "globalmix")}
    assert built == {"fedmix": FedMix(lam=0.05), "naivemix": naivemix(), "globalmix": globalmix()}


@pytest.mark.parametrize("name", ["fedmix", "naivemix"])
def test_groups_of_one_are_refused_before_anything_is_written(tmp_path: Path, name: str) -> None:
    data = str(farm.write_images(tmp_path / "images.npz", 60, 15))
    with refused("method.sends-samples"):
        tacit.run(out=tmp_path / "run", **OPTIONS | {"data": data, "method": name, "method.group": 1})
    assert not (tmp_path / "run").exists()


def test_means_from_a_checkpoint_and_new_ones_go_together() -> None:
    """Those of a checkpoint are on the device that computes; without a wire, new ones are not."""
    given = crowd(FedMix())
    old, new = (Means(torch.ones(2, 1, 16, 16), torch.ones(2, 3) / 3, torch.tensor([3, 4])) for _ in range(2))
    far = Means(*(part.as_subclass(Elsewhere) for part in (old.x, old.y, old.of)))
    state = replace(started(given), means={0: far}, version=1)
    log: dict[str, float] = {}
    state = given.method.merge(given.server(1, log), state, {1: FedMixUp(None, new)})
    assert (log["means"], log["means_smallest_group"]) == (4, 3)
    _, downs = given.method.send(given.server(2, {}), state)
    assert {type(down.pool.x) for down in downs.values()} == {torch.Tensor}
    assert {len(down.pool.of) for down in downs.values()} == {4}
