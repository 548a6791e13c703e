"""SemiFL: labels once per round from the received model, fix and mix, server momentum, alternate training."""

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from tacit.aggregation import WeightsDown, WeightsUp, setup_context
from tacit.engines.faults import Faults
from tacit.engines.job import Job
from tacit.federation import Samples
from tacit.learn import Batch, fit, loss_of_batch, predict
from tacit.losses import confident, mix
from tacit.method import Training
from tacit.methods.fedavg import FedAvg
from tacit.methods.semifl import SemiFl, SemiFlState, _FixAndMix
from tacit.objectives import FixMatch, Supervised
from tacit.objectives.parts import beta_shares
from tacit.params import clone, mean
from tests.methods import by_hand
from tests.objectives.bench import Scaled
from tests.toys import (
    TWO_EPOCHS,
    Identity,
    Noisy,
    apart,
    federation,
    hide,
    images,
    job,
    linear,
    normed,
    p,
    play_all,
    points,
    rounds,
    same,
    started,
    unlabeled,
    visit,
    with_batchnorm,
)

SURE = 0.5  # a threshold that an untrained linear model reaches for some samples and not for all


def given(method: SemiFl | None = None, **options: Any) -> Job:
    return unlabeled(method or SemiFl(threshold=SURE), **options)


# Labels.


def test_labels_are_those_of_the_received_model_once() -> None:
    task = given()
    w = started(task).w
    labels, sure = confident(predict(linear(), w, points(1, 20).x, Identity()), SURE)
    assert 0 < sure.sum() < 20
    reply = visit(task, 1, WeightsDown(w))
    assert torch.equal(reply.pseudo_labels.label, labels)
    assert torch.equal(reply.pseudo_labels.accepted, sure)
    assert reply.pseudo_labels.index.tolist() == list(range(20))
    assert reply.up.n == int(sure.sum())
    assert same(reply.model, reply.up.w)
    assert not same(reply.model, w)


def test_labels_are_given_in_evaluation_mode() -> None:
    """By the statistics of the model, not by those of the batch: with others it answers otherwise."""
    task: Any = with_batchnorm(SemiFl(threshold=0.0))
    w = started(task).w
    other = w | {name: w[name] + 1.0 for name in task.net.buffers if name.endswith("running_mean")}
    client = task.client(0, 0)
    first, second = (predict(task.net, model, client.data.x, client.views) for model in (w, other))
    assert torch.allclose(task.method._predictions(client, w), first, atol=1e-6)
    assert torch.allclose(task.method._predictions(client, other), second, atol=1e-6)
    assert not torch.allclose(first, second, atol=1e-3)


@pytest.mark.parametrize("view, factor", [("weak", 2), ("plain", 1), ("strong", 0.5)])
def test_labels_are_given_to_the_view_asked_for(view: Any, factor: float) -> None:
    task = given(SemiFl(threshold=SURE, view=view), views=Scaled())
    w = started(task).w
    labels, sure = confident(functional.softmax(linear().apply(w, factor * points(0, 20).x), dim=1), SURE)
    reply = visit(task, 0, WeightsDown(w))
    assert torch.equal(reply.pseudo_labels.label, labels)
    assert torch.equal(reply.pseudo_labels.accepted, sure)


def test_labels_are_given_to_other_views_in_another_round() -> None:
    task: Any = given(views=Noisy())
    first, second = (task.method._predictions(task.client(r, 0), started(task).w) for r in (0, 1))
    assert not torch.allclose(first, second, atol=1e-3)


def test_a_client_without_confident_samples_uploads_nothing() -> None:
    task = given(SemiFl(threshold=1.0))
    w = started(task).w
    reply = visit(task, 0, WeightsDown(w))
    assert reply.up is None
    assert not reply.pseudo_labels.accepted.any()
    assert same(reply.model, w)
    record = play_all(task).records[0]
    assert record.bytes_up == 0
    assert record.metrics["pseudo_kept"]["max"] == 0


def test_a_single_confident_sample_is_enough_to_train_on() -> None:
    w = started(given()).w
    best, next_best = predict(linear(), w, points(0, 20).x, Identity()).amax(dim=1).sort(descending=True).values[:2]
    task = given(SemiFl(threshold=float((best + next_best) / 2)))
    reply = visit(task, 0, WeightsDown(w))
    assert int(reply.pseudo_labels.accepted.sum()) == reply.up.n == 1
    assert reply.metrics["steps"] == 2
    assert not same(reply.up.w, w)


def test_a_client_without_samples_uploads_nothing() -> None:
    task = given()
    empty = replace(task.client(0, 0), data=points(0, 0))
    reply = task.method.client_update(empty, None, WeightsDown(started(task).w))
    assert (reply.up, reply.pseudo_labels) == (None, None)


def test_a_clients_own_labels_are_not_used() -> None:
    task: Any = given()
    w = started(task).w
    shown = replace(task.client(0, 0), data=hide(points(0, 20), shown=8))
    hidden = replace(task.client(0, 0), data=Samples(points(0, 20).x[8:], torch.full((12,), -1)))
    with_labels, without = (task.method.client_update(client, None, WeightsDown(w)) for client in (shown, hidden))
    assert same(with_labels.up.w, without.up.w)
    assert with_labels.pseudo_labels.index.tolist() == list(range(8, 20))


@dataclass(frozen=True)
class Turned(Identity):
    """A strong view that looks like another class, so that learning it changes what the model says of the plain one."""

    def strong(self, x: Tensor, stream: torch.Generator) -> Tensor:
        return x.roll(1, dims=1)


def test_labels_stay_for_all_epochs_of_a_visit() -> None:
    """Without the mix it is FixMatch on the fix set, with the labels that the received model gave before the visit."""
    task = given(SemiFl(threshold=SURE, weight=0.0), views=Turned(), train=replace(TWO_EPOCHS, epochs=6))
    w, data = started(task).w, points(0, 20)
    labels, sure = confident(predict(linear(), w, data.x, Identity()), SURE)
    client = replace(task.client(0, 0), data=hide(data.take(sure.nonzero().reshape(-1))))
    reply = visit(task, 0, WeightsDown(w))
    held, moving = (fit(client, w, FixMatch(threshold=0.0, labeler=who)).params for who in ("global", "local"))
    assert apart(reply.up.w, held) < 1e-5
    assert apart(reply.up.w, moving) > 1e-2
    now = predict(linear(), reply.up.w, data.x, Identity()).argmax(dim=1)
    assert (now != labels)[sure].any()  # labels that were given again would be others


def test_an_epoch_is_one_of_the_fix_set() -> None:
    task = given()
    reply = visit(task, 0, WeightsDown(started(task).w))
    size = int(reply.pseudo_labels.accepted.sum())
    assert reply.metrics["steps"] == 2 * -(-size // 6)


# The loss.

X = [[1.0, 0, 0, 0], [0, 1.0, 0, 0], [0, 0, 1.0, 0], [0, 0, 0, 1.0]]


@pytest.mark.parametrize(
    "weight, view, factor, mixing",
    [
        (1.0, "weak", 2, 0.75),
        (0.25, "weak", 2, 0.75),
        (0.0, "weak", 2, 0.75),
        (1.0, "plain", 1, 0.75),
        (1.0, "weak", 2, 8),
    ],
)
def test_fix_and_mix_by_hand(weight: float, view: Any, factor: float, mixing: float) -> None:
    x, labels, rows = torch.tensor(X), torch.tensor([2, 0, 1, 1]), torch.tensor([0, 2])  # 1 and 3 are not confident
    task = given(SemiFl(weight=weight, view=view, mixing=mixing), views=Scaled())
    client, w = task.client(0, 0), started(task).w
    index = torch.tensor([1, 0])  # of the fix set: samples 2 and 0
    batch = Batch(x[:0], labels[:0], x[rows[index]], index)
    cost = loss_of_batch(_FixAndMix(task.method, x, labels, rows).local_loss(client, w, {}), client.net, w, batch)  # type: ignore[arg-type]
    stream = client.stream("mixup")
    partner = torch.randint(4, (2,), generator=stream)
    share = beta_shares(2, mixing, stream, torch.zeros(()))
    fix = mixture = 0.0
    for j, sample in enumerate((2, 0)):
        other, own_share = int(partner[j]), float(share[j])
        strong = linear().apply(w, 0.5 * x[sample : sample + 1])[0].log_softmax(0)
        blend = factor * (own_share * x[sample] + (1 - own_share) * x[other])
        mixed = linear().apply(w, blend[None])[0].log_softmax(0)
        fix -= float(strong[labels[sample]]) / 2
        own, theirs = float(mixed[labels[sample]]), float(mixed[labels[other]])
        mixture -= (own_share * own + (1 - own_share) * theirs) / 2
    assert share[0] != share[1]
    assert float(cost.metrics["loss_fix"]) == pytest.approx(fix, abs=1e-6)
    assert float(cost.metrics["loss_mix"]) == pytest.approx(mixture, abs=1e-6)
    assert float(cost.total) == pytest.approx(fix + weight * mixture, abs=1e-6)


def test_fix_and_mix_are_one_pass_to_batchnorm() -> None:
    task: Any = with_batchnorm(SemiFl())
    client, net, w = task.client(0, 0), task.net, started(task).w
    x, labels, n = client.data.x, torch.arange(9) % 3, 4
    batch = Batch(x[:0], labels[:0], x[:n], torch.arange(n))
    cost = loss_of_batch(
        _FixAndMix(task.method, x, labels, torch.arange(9)).local_loss(client, w, {}), client.net, clone(w), batch
    )
    stream = client.stream("mixup")
    partner = torch.randint(9, (n,), generator=stream)
    mixed = mix(x[:n].float(), x[partner].float(), beta_shares(n, 0.75, stream, torch.zeros(())))
    together = net.apply(clone(w), torch.cat([x[:n].float(), mixed]), train=True)[:n]
    alone = net.apply(clone(w), x[:n].float(), train=True)
    one, two = (float(functional.cross_entropy(logits, labels[:n])) for logits in (together, alone))
    assert float(cost.metrics["loss_fix"]) == pytest.approx(one, rel=1e-4)
    assert float(cost.metrics["loss_fix"]) != pytest.approx(two, rel=1e-3)


def test_partners_come_from_all_samples_with_replacement() -> None:
    """Each sample's mark is its own feature, so a mixture shows whom it was made of."""
    seen: set[int] = set()

    @dataclass(frozen=True)
    class Watching(Identity):
        def weak(self, x: Tensor, stream: torch.Generator) -> Tensor:
            if len(x) == 2 * 2:  # a batch of two and their partners
                seen.update(x[2:].argmax(dim=1).tolist())
            return self.plain(x)

    task = given(SemiFl(), views=Watching())
    x, labels = torch.tensor(X), torch.tensor([2, 0, 1, 1])
    w, rows = started(task).w, torch.tensor([0, 2])
    local = _FixAndMix(SemiFl(), x, labels, rows).local_loss(task.client(0, 0), w, {})
    for _ in range(40):
        loss_of_batch(local, task.net, w, Batch(x[:0], labels[:0], x[rows], torch.tensor([0, 1])))
    assert seen == {0, 1, 2, 3}


def test_strong_and_mixed_views_have_separate_streams() -> None:
    drawn: dict[str, int] = {}

    @dataclass(frozen=True)
    class Watching(Identity):
        def weak(self, x: Tensor, stream: torch.Generator) -> Tensor:
            drawn["weak"] = stream.initial_seed()
            return self.plain(x)

        def strong(self, x: Tensor, stream: torch.Generator) -> Tensor:
            drawn["strong"] = stream.initial_seed()
            return self.plain(x)

    task = given(views=Watching())
    visit(task, 0, WeightsDown(started(task).w))
    client = task.client(0, 0)
    uses = {"weak": "mixed views", "strong": "unlabeled views"}
    assert drawn == {view: client.stream(use).initial_seed() for view, use in uses.items()}
    assert len({*drawn.values(), *(client.stream(use).initial_seed() for use in ("labeling views", "mixup"))}) == 4


def test_shares_are_from_the_beta_distribution() -> None:
    drawn = beta_shares(20_000, 0.75, torch.Generator().manual_seed(0), torch.zeros(()))
    # Beta(a, a): mean ½, variance 1/(4·(2a + 1))
    assert float(drawn.mean()) == pytest.approx(0.5, abs=0.01)
    assert float(drawn.var()) == pytest.approx(1 / (4 * 2.5), abs=0.003)


# The server.


def test_server_momentum_by_hand_over_two_rounds_is_torchs() -> None:
    task = given(SemiFl(momentum=0.5, alternate=False))
    server = replace(task.server(0, {}), net=task.net)
    w = torch.tensor([1.0, -2.0], dtype=torch.float64, requires_grad=True)
    torchs = torch.optim.SGD([w], lr=1.0, momentum=0.5)
    state = SemiFlState(p(1.0, -2.0))
    for first, second in (((2.0, 0.0), (4.0, -1.0)), ((0.0, 0.0), (1.0, 5.0)), ((7.0, 1.0), (1.0, 1.0))):
        both = (torch.tensor(first) + torch.tensor(second)).double() / 2
        w.grad = w.detach() - both  # the mean's negative move
        torchs.step()
        ups = {0: WeightsUp(p(*first), 3), 1: WeightsUp(p(*second), 500)}  # the plain mean, whatever n is
        state = task.method.merge(server, state, ups)
        assert torch.allclose(state.w["p"], w.detach(), atol=1e-12)
    # first round: 1 + (3 - 1) = 3; second: 3 + ½·2 + (½ - 3) = 1.5
    assert task.method.merge(server, SemiFlState(p(1.0)), {0: WeightsUp(p(3.0), 1)}).w["p"].item() == 3.0
    again = task.method.merge(server, SemiFlState(p(3.0), p(2.0)), {0: WeightsUp(p(0.5), 1)})
    assert again.w["p"].item() == pytest.approx(1.5, abs=1e-12)


def test_a_round_without_uploads_does_not_change_the_momentum() -> None:
    task = given(SemiFl(alternate=False))
    state = SemiFlState(p(3.0), p(2.0))
    assert task.method.merge(task.server(0, {}), state, {}) == state


def test_alternate_training_ends_every_round_with_the_servers_labels() -> None:
    task = given(SemiFl(threshold=SURE))
    state = started(task)
    first = by_hand.turn(task, 0, state)
    assert all(same(down.w, state.w) for down in first.downs.values())
    assert first.sent is state
    average = mean([first.replies[k].up.w for k in range(3)])  # the first step of momentum is the mean, up to rounding
    expected = fit(task.server(0, {}), average, Supervised()).params
    assert apart(first.state.w, expected) < 1e-5
    assert apart(first.state.w, average) > 1e-3


def test_alternate_training_starts_on_labels_with_separate_streams() -> None:
    task = given()
    server = task.server(0, {})
    assert same(started(task).w, fit(setup_context(server), server.initial(), Supervised()).params)
    assert not same(started(task).w, fit(server, server.initial(), Supervised()).params)


@pytest.mark.parametrize("view", ["plain", "weak", "strong"])
def test_the_server_uses_the_view_setting(view: Any) -> None:
    task = given(SemiFl(view=view), views=Scaled())
    server = task.server(0, {})
    first, parallel = server.initial(), SemiFl(view=view, alternate=False)
    assert same(started(task).w, fit(setup_context(server), first, Supervised(view)).params)
    assert same(parallel.send(server, SemiFlState(first))[0].own or {}, fit(server, first, Supervised(view)).params)
    others = [fit(server, first, Supervised(other)).params for other in ("plain", "weak", "strong") if other != view]
    assert not any(same(parallel.send(server, SemiFlState(first))[0].own or {}, other) for other in others)


def test_in_parallel_mode_the_server_is_half_of_the_average() -> None:
    task = given(SemiFl(threshold=SURE, alternate=False))
    server = task.server(0, {})
    state = started(task)
    assert same(state.w, server.initial())
    sent, downs = task.method.send(server, state)
    assert same(sent.own, fit(server, state.w, Supervised()).params)
    assert all(same(down.w, state.w) for down in downs.values())  # not what the server makes of it meanwhile
    ups = {0: WeightsUp(p(1.0), 1), 1: WeightsUp(p(2.0), 9), 2: WeightsUp(p(6.0), 1)}
    merged = task.method.merge(server, SemiFlState(p(0.0), own=p(10.0)), ups)
    assert merged.w["p"].item() == pytest.approx(10 / 2 + (1 + 2 + 6) / 3 / 2, abs=1e-12)
    assert merged.own is None
    alone = task.method.merge(server, SemiFlState(p(0.0), own=p(10.0)), {})
    assert alone.w["p"].item() == 10.0


def test_in_parallel_mode_momentum_acts_on_the_average_with_the_server_in_it() -> None:
    task = given(SemiFl(alternate=False))
    ups = {0: WeightsUp(p(1.0), 1), 1: WeightsUp(p(5.0), 1)}
    merged = task.method.merge(task.server(0, {}), SemiFlState(p(0.5), velocity=p(2.0), own=p(10.0)), ups)
    move = (10 + 3) / 2 - 0.5
    assert merged.velocity["p"].item() == pytest.approx(0.5 * 2 + move, abs=1e-12)
    assert merged.w["p"].item() == pytest.approx(0.5 + 0.5 * 2 + move, abs=1e-12)


def test_without_mix_momentum_and_doubt_it_is_fedavg_with_fixmatch_by_the_received_model() -> None:
    """Up to rounding: it adds the mean's move where FedAvg takes the mean, and mixed samples share its pass."""
    task = given(SemiFl(threshold=0.0, weight=0.0, momentum=0.0), views=Noisy(little=0.0), cohort=2, rounds=4)
    fixmatch = FixMatch(threshold=0.0, labeler="global")
    plain = replace(task, method=FedAvg(fixmatch, weights="uniform", server="after"))
    expected = play_all(plain).state.w
    assert apart(play_all(task).state.w, expected) < 1e-5
    for idea in ({"weight": 1.0}, {"momentum": 0.5}, {"threshold": SURE}, {"alternate": False}):
        other = replace(task, method=replace(task.method, **idea))  # type: ignore[type-var]
        assert apart(play_all(other).state.w, expected) > 1e-3


# Static batch statistics.


@pytest.mark.parametrize("alternate", [True, False])
def test_static_statistics_are_the_average_over_the_servers_samples(alternate: bool) -> None:
    task = with_batchnorm(SemiFl(threshold=0.0, alternate=alternate))
    task = replace(task, federation=replace(task.federation, views=Scaled()))
    plain = task.server(0, {}).views.plain(images(50, 12).x)
    for moment in rounds(task):
        assert same(moment.state.w, task.net.recompute_batchnorm(moment.state.w, [plain]))
    # conv1 sees the images themselves, so its statistics can be had without the code under test
    w = moment.state.w
    seen = functional.conv2d(plain, w["conv1.weight"], w["conv1.bias"])
    assert torch.allclose(w["norm1.running_mean"], seen.mean(dim=(0, 2, 3)), atol=1e-4)


def test_static_statistics_are_a_cumulative_average_over_batches() -> None:
    """Of 1,100 samples in batches of 500: each batch's own mean counts a third, also the last with 100."""
    many = images(50, 1100)
    data = federation([hide(images(0, 6))], server=many, test=images(60, 6))
    net = normed()
    task = job(SemiFl(threshold=1.0), data, net, train=Training(steps=1, batch=4, lr=0.01))
    w, views = started(task).w, task.server(0, {}).views
    parts = [net.recompute_batchnorm(w, [views.plain(x)]) for x in many.x.split(500)]
    for name in net.buffers:
        assert torch.allclose(w[name], torch.stack([part[name] for part in parts]).mean(dim=0), rtol=1e-4, atol=1e-5)


def test_without_batchnorm_there_are_none() -> None:
    task = given()
    assert started(task).w.keys() == set(task.net.trainable)


# What may go wrong on the way.


def test_lost_uploads_are_left_out_and_rounds_continue() -> None:
    moments = list(rounds(given(rounds=6, faults=Faults(lost=0.5), min_clients=0)))
    assert any(moment.record.skipped for moment in moments)
    models = [moment.state.w for moment in moments]
    assert all(apart(a, b) > 0 for a, b in pairwise(models))  # the server trains all the same


def test_clients_and_server_carry_momentum_if_set() -> None:
    moment = list(rounds(given(train=replace(TWO_EPOCHS, optimizer="keep"))))[-1]
    assert moment.state.carried.velocity is not None
    assert all(moment.memories[k].velocity is not None for k in range(3))


def test_a_client_continues_with_its_momentum() -> None:
    task = given(train=replace(TWO_EPOCHS, optimizer="keep"))
    down = WeightsDown(started(task).w)
    memory = visit(task, 0, down).memory
    with_it, without = (visit(task, 0, down, each, round=1).up.w for each in (memory, None))
    assert not same(with_it, without)


def test_the_server_continues_with_its_momentum() -> None:
    for alternate in (True, False):
        task = given(SemiFl(threshold=SURE, alternate=alternate), train=replace(TWO_EPOCHS, optimizer="keep"))
        state = next(iter(rounds(task))).state
        after = [by_hand.turn(task, 1, each).state.w for each in (state, replace(state, carried=None))]
        assert not same(*after)


def test_a_client_without_an_upload_does_not_change_its_memory() -> None:
    task = given(SemiFl(threshold=1.0), train=replace(TWO_EPOCHS, optimizer="keep"))
    w = started(task).w
    memory = visit(given(train=replace(TWO_EPOCHS, optimizer="keep")), 0, WeightsDown(w)).memory
    assert visit(task, 0, WeightsDown(w), memory).memory is memory


def test_the_defaults_are_those_of_the_release() -> None:
    assert SemiFl() == SemiFl(threshold=0.95, mixing=0.75, weight=1.0, momentum=0.5, alternate=True, view="weak")
