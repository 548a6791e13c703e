"""MOON: Algorithm 1 by hand, what the second term sees, whom a party remembers, and what is left without it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tacit.aggregation import WeightsDown, WeightsUp
from tacit.engines.faults import Faults
from tacit.engines.job import Job
from tacit.engines.wire import finite
from tacit.federation import Samples
from tacit.learn import Batch, BatchLoss, Forward, LocalLoss, LocalState, fit
from tacit.method import Holder, Needs, Training
from tacit.methods.fedavg import FedAvg
from tacit.methods.moon import Moon, MoonMemory, _random
from tacit.nets import Net, build
from tacit.objectives import OBJECTIVES, FixMatch, Supervised
from tacit.params import Params, clone
from tests.refusals import refused
from tests.toys import (
    Noisy,
    apart,
    federation,
    hide,
    images,
    job,
    normed,
    play_all,
    points,
    rounds,
    same,
    started,
    visit,
)

PASSES: list[tuple[bool, bool, Tensor]] = []  # training mode, with gradient, inputs: of every pass through `Small`
TRAIN = Training(epochs=2, batch=6, lr=0.1)


class Small(nn.Module):
    """Features tanh(A·x), a linear classifier on top, and dropout between them where asked for."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.below, self.drop, self.top = nn.Linear(4, 5), nn.Dropout(dropout), nn.Linear(5, 3)

    def features(self, x: Tensor) -> Tensor:
        PASSES.append((self.training, torch.is_grad_enabled(), x.detach().clone()))
        return self.drop(torch.tanh(self.below(x)))  # type: ignore[no-any-return]

    def classify(self, z: Tensor) -> Tensor:
        return self.top(z)  # type: ignore[no-any-return]

    def forward(self, x: Tensor) -> Tensor:
        return self.classify(self.features(x))


@pytest.fixture(autouse=True)
def passes() -> Iterator[None]:
    PASSES.clear()
    yield
    PASSES.clear()


def small(dropout: float = 0.0) -> Net:
    return Net(lambda: Small(dropout))


def weights(seed: int) -> Params:
    return small().init(torch.Generator().manual_seed(seed))


GLOBAL, BEFORE = weights(1), weights(2)


def alone(method: Moon, data: Samples, net: Net | None = None, **options: Any) -> Job:
    """One party with these samples."""
    return job(method, federation([data], views=options.pop("views", None)), net or small(), **options)


def crowd(method: Any, net: Net | None = None, **options: Any) -> Job:
    """Four parties with labels, two of which are drawn in a round."""
    data = federation([points(k, 15 + 5 * k) for k in range(4)], views=Noisy())
    settings: dict[str, Any] = {"train": TRAIN, "rounds": 6, "cohort": 2}
    return job(method, data, net or small(), **settings | options)


# Lines 10 to 20 by hand: plain SGD on all samples at once.


def represent(w: Params, x: Tensor) -> Tensor:
    return torch.tanh(x @ w["below.weight"].T + w["below.bias"])


def by_hand(data: Samples, mu: float, tau: float, term: str, lr: float, steps: int) -> Params:
    w = clone(GLOBAL)
    for _ in range(steps):
        leaves = {name: value.requires_grad_() for name, value in w.items()}
        z, z_glob, z_prev = represent(leaves, data.x), represent(GLOBAL, data.x), represent(BEFORE, data.x)
        p = (z @ leaves["top.weight"].T + leaves["top.bias"]).softmax(dim=1)
        loss = -p[torch.arange(len(data)), data.y].log().mean()
        if term == "l2":
            loss = loss + mu * ((z - z_glob).square().sum(dim=1) + 1e-14).sqrt().mean()
        else:
            near, far = (
                ((z * o).sum(dim=1) / (z.square().sum(dim=1) * o.square().sum(dim=1)).sqrt() / tau).exp()
                for o in (z_glob, z_prev)
            )
            loss = loss + mu * -(near / (near + far)).log().mean()
        slopes = torch.autograd.grad(loss, list(leaves.values()))
        w = {name: (w[name] - lr * slope).detach() for name, slope in zip(leaves, slopes, strict=True)}
    return w


@pytest.mark.parametrize("n", [7, 1])
@pytest.mark.parametrize("term, mu, tau", [("contrast", 5.0, 0.5), ("contrast", 1.0, 2.0), ("l2", 0.3, 0.5)])
def test_local_training_by_hand(term: Any, mu: float, tau: float, n: int) -> None:
    data, train = points(3, n), Training(steps=4, batch=8, lr=0.2, momentum=0.0)
    given = alone(Moon(mu=mu, temperature=tau, term=term), data, train=train)
    found = visit(given, 0, WeightsDown(GLOBAL), MoonMemory(BEFORE, None)).up
    assert apart(found.w, by_hand(data, mu, tau, term, 0.2, 4)) < 2e-6
    assert apart(found.w, by_hand(data, 0.0, tau, term, 0.2, 4)) > 1e-3
    assert found.n == n


@pytest.mark.parametrize("term", ["contrast", "l2"])
def test_the_second_term_is_logged_on_its_own(term: Any) -> None:
    """Two steps: at the first z is z_glob, at the second where one step by hand leads; not times μ."""
    data, train = points(3, 7), Training(steps=2, batch=8, lr=0.2, momentum=0.0)
    given = alone(Moon(mu=5.0, term=term), data, train=train)
    logged = visit(given, 0, WeightsDown(GLOBAL), MoonMemory(BEFORE, None)).metrics
    z_glob, z_prev = represent(GLOBAL, data.x), represent(BEFORE, data.x)
    seen = [represent(w, data.x) for w in (GLOBAL, by_hand(data, 5.0, 0.5, term, 0.2, 1))]
    if term == "l2":
        expected = [float((z - z_glob).norm(dim=1).mean()) for z in seen]
    else:
        near, far = ([torch.cosine_similarity(z, o) / 0.5 for z in seen] for o in (z_glob, z_prev))
        expected = [float((1 + (b - a).exp()).log().mean()) for a, b in zip(near, far, strict=True)]
    assert logged[f"loss_{term}"] == pytest.approx(sum(expected) / 2, rel=1e-5)


def test_where_there_is_no_second_term_none_is_logged() -> None:
    for method, memory in ((Moon(), None), (Moon(mu=0.0), MoonMemory(BEFORE, None))):
        logged = visit(alone(method, points(3, 7)), 0, WeightsDown(GLOBAL), memory).metrics
        assert logged.keys() == {"loss_supervised", "steps"}


def test_temperature_matters() -> None:
    models = [
        visit(alone(Moon(temperature=tau), points(3, 7)), 0, WeightsDown(GLOBAL), MoonMemory(BEFORE, None)).up.w
        for tau in (0.5, 1.0)
    ]
    assert apart(*models) > 1e-4


def test_the_l2_term_starts_at_its_corner_without_harm() -> None:
    """At the first step z is z_glob, where a norm has no derivative."""
    train = Training(steps=1, batch=8, lr=0.2, momentum=0.0)
    with_it = visit(alone(Moon(mu=10.0, term="l2"), points(3, 7), train=train), 0, WeightsDown(GLOBAL)).up.w
    without = visit(alone(Moon(mu=0.0), points(3, 7), train=train), 0, WeightsDown(GLOBAL)).up.w
    assert finite(with_it)
    assert apart(with_it, without) < 1e-6


def test_the_l2_term_needs_no_model_of_last_time() -> None:
    given = alone(Moon(mu=0.5, term="l2"), points(3, 7), train=TRAIN)
    first = visit(given, 0, WeightsDown(GLOBAL)).up.w
    assert same(first, visit(given, 0, WeightsDown(GLOBAL), MoonMemory(BEFORE, None)).up.w)
    assert not same(first, visit(replace(given, method=Moon(mu=0.0)), 0, WeightsDown(GLOBAL)).up.w)


def test_the_last_batch_may_be_a_single_sample() -> None:
    net = normed()
    given = job(Moon(mu=5.0), federation([images(0, 5)]), net, train=Training(epochs=2, batch=4, lr=0.05))
    w = given.method.start(given.server(0, {})).w
    reply = visit(given, 0, WeightsDown(w), MoonMemory(net.init(torch.Generator().manual_seed(9)), None))
    assert reply.metrics["steps"] == 4
    assert finite(reply.up.w)


# What the second term sees.


@pytest.mark.parametrize("objective", [kind() for kind in OBJECTIVES.values()], ids=OBJECTIVES)
def test_one_training_pass_per_step_and_both_others_see_its_inputs(objective: Any) -> None:
    """z_glob and z_prev: in evaluation mode, without gradient, on the very views the objective learnt from."""
    given = alone(Moon(objective), hide(points(3, 20), 8), train=replace(TRAIN, epochs=1), views=Noisy())
    reply = visit(given, 0, WeightsDown(GLOBAL), MoonMemory(BEFORE, None))
    learnt = [x for training, grad, x in PASSES if training and grad]
    first = next(place for place, (training, grad, _) in enumerate(PASSES) if training and grad)
    comparing = [x for training, grad, x in PASSES[first:] if not training]  # a labeler may have looked before
    assert len(learnt) == reply.metrics["steps"] > 1
    assert len(comparing) == 2 * len(learnt)
    assert not any(grad for training, grad, _ in PASSES if not training)
    for step, x in enumerate(learnt):
        assert torch.equal(comparing[2 * step], x)
        assert torch.equal(comparing[2 * step + 1], x)


@dataclass(frozen=True)
class InParts:
    """Cross-entropy over the batch, in this many forward passes that learn."""

    passes: int

    labels_only = True
    needs = Needs()

    def local_loss(self, holder: Holder, received: Params, carried: Mapping[str, Tensor]) -> LocalLoss:
        def cost(w: Params, batch: Batch, forward: Forward) -> BatchLoss:
            parts = torch.arange(len(batch.x)).tensor_split(self.passes) if self.passes else ()
            losses = [
                functional.cross_entropy(forward(batch.x[rows]).logits, batch.y[rows], reduction="sum")
                for rows in parts
            ]
            return BatchLoss(sum(losses, torch.zeros(())) / len(batch.x))

        return LocalLoss(cost)


@pytest.mark.parametrize("term", ["contrast", "l2"])
@pytest.mark.parametrize("passes", [1, 2, 3])
def test_the_term_is_the_mean_over_the_samples_of_all_passes_that_learn(passes: int, term: Any) -> None:
    memory, train = MoonMemory(BEFORE, None), Training(steps=3, batch=7, lr=0.1)
    methods = [Moon(objective, mu=2.0, term=term) for objective in (Supervised(), InParts(passes))]
    whole, parts = (visit(alone(each, points(3, 7), train=train), 0, WeightsDown(GLOBAL), memory) for each in methods)
    assert apart(whole.up.w, parts.up.w) < 1e-6
    assert parts.metrics[f"loss_{term}"] == pytest.approx(whole.metrics[f"loss_{term}"], rel=1e-5)


def test_an_objective_that_does_not_use_its_forward_is_refused() -> None:
    with refused("learn.no-forward-pass"):
        visit(alone(Moon(InParts(0)), points(3, 7)), 0, WeightsDown(GLOBAL), MoonMemory(BEFORE, None))


def test_without_the_term_there_are_no_further_passes() -> None:
    for method in (Moon(mu=0.0), Moon(first_visit="none"), Moon(mu=0.0, term="l2")):
        PASSES.clear()
        reply = visit(alone(method, points(3, 20), train=TRAIN), 0, WeightsDown(GLOBAL))
        assert len(PASSES) == reply.metrics["steps"]


def test_the_received_and_the_remembered_model_stay_as_they_are() -> None:
    net = normed()
    given = job(Moon(mu=5.0), federation([images(0, 9)]), net, train=TRAIN)
    received, before = (net.init(torch.Generator().manual_seed(seed)) for seed in (1, 2))
    copies = clone(received), clone(before)
    visit(given, 0, WeightsDown(received), MoonMemory(before, None))
    assert same(received, copies[0])
    assert same(before, copies[1])


class Batchnormed(Small):
    """The same behind a BatchNorm of the inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)

    def features(self, x: Tensor) -> Tensor:
        return super().features(self.norm(x))


def scaled(w: Params, mean: float, var: float) -> Params:
    """The weights behind a BatchNorm that has seen inputs of this mean and variance."""
    norm = {"weight": torch.ones(4), "bias": torch.zeros(4)}
    norm |= {"running_mean": torch.full((4,), mean), "running_var": torch.full((4,), var)}
    return {**w, **{f"norm.{name}": value for name, value in norm.items()}}


@pytest.mark.parametrize(
    "carried", [None, LocalState(buffers={"norm.running_mean": torch.ones(4)})], ids=["first", "later"]
)
def test_z_has_the_statistics_of_its_batch_and_both_others_running_ones(carried: LocalState | None) -> None:
    """Those that came with the model, not those the party carries (`train.buffers = "keep"`)."""
    data, train = points(3, 7), Training(steps=1, batch=8, lr=0.1, buffers="keep")
    received, before = scaled(GLOBAL, 0.3, 2.0), scaled(BEFORE, -0.5, 0.25)
    given = alone(Moon(), data, Net(Batchnormed), train=train)
    found = visit(given, 0, WeightsDown(received), MoonMemory(before, carried)).metrics["loss_contrast"]
    z = represent(GLOBAL, (data.x - data.x.mean(dim=0)) / (data.x.var(dim=0, correction=0) + 1e-5).sqrt())

    def expected(mean: float, var: float) -> float:
        z_glob = represent(GLOBAL, (data.x - mean) / (var + 1e-5) ** 0.5)
        z_prev = represent(BEFORE, (data.x + 0.5) / (0.25 + 1e-5) ** 0.5)
        near, far = (torch.cosine_similarity(z, other) / 0.5 for other in (z_glob, z_prev))
        return float((1 + (far - near).exp()).log().mean())

    assert found == pytest.approx(expected(0.3, 2.0), rel=1e-5)
    assert found != pytest.approx(expected(1.0, 2.0), rel=1e-2)


def test_unlabeled_samples_take_part_in_the_term() -> None:
    """No sample is confident, so the objective teaches nothing and only the term moves the model."""
    never = FixMatch(threshold=1.0)
    unlabeled = hide(points(3, 20))
    still = visit(alone(Moon(never, mu=0.0), unlabeled), 0, WeightsDown(GLOBAL), MoonMemory(BEFORE, None))
    moved = visit(alone(Moon(never, mu=1.0), unlabeled), 0, WeightsDown(GLOBAL), MoonMemory(BEFORE, None))
    assert same(still.up.w, GLOBAL)
    assert apart(moved.up.w, GLOBAL) > 1e-3
    assert same({"top": moved.up.w["top.weight"]}, {"top": GLOBAL["top.weight"]})  # it acts below the classifier
    assert moved.up.n == 20


@pytest.mark.parametrize("place", ["client", "server"])
def test_with_fixmatch_it_runs_wherever_the_labels_are(place: str) -> None:
    shown, server = (5, None) if place == "client" else (0, points(9, 12))
    data = federation([hide(points(k, 20), shown) for k in range(3)], server, points(8, 30), views=Noisy())
    methods = [Moon(FixMatch(threshold=0.5), mu=mu) for mu in (5.0, 0.0)]
    results = [play_all(job(method, data, small(), train=TRAIN)) for method in methods]
    assert all(record.skipped == {} and record.clients == 3 for record in results[0].records)
    assert finite(results[0].state.w)
    assert apart(results[0].state.w, results[1].state.w) > 1e-4


def test_the_server_trains_first_where_it_has_labels_and_without_the_term() -> None:
    data = federation([hide(points(0, 20))], server=points(9, 12))
    given = job(Moon(FixMatch(), mu=5.0), data, small(), train=TRAIN)
    server = given.server(0, {})
    begin = given.method.start(server)
    state, downs = given.method.send(server, begin)
    assert same(downs[0].w, fit(server, begin.w, FixMatch()).params)
    assert same(downs[0].w, state.w)


@pytest.mark.parametrize("weights, share", [("samples", 3 / 4), ("uniform", 1 / 2)])
def test_merge_by_hand(weights: Any, share: float) -> None:
    """Line 7, of parties with 10 and 30 samples, the second of which is one ahead."""
    given = crowd(Moon(weights=weights))
    ups = {0: WeightsUp(GLOBAL, 10), 2: WeightsUp({name: value + 1 for name, value in GLOBAL.items()}, 30)}
    merged = given.method.merge(given.server(1, {}), started(given), ups)
    assert apart(merged.w, {name: value + share for name, value in GLOBAL.items()}) < 1e-6


# Reductions.


@pytest.mark.parametrize("objective", [Supervised(), FixMatch(threshold=0.4)], ids=["supervised", "fixmatch"])
@pytest.mark.parametrize("net", ["dropout", "batch norm"])
def test_without_the_term_it_is_fedavg_to_the_last_bit(net: str, objective: Any) -> None:
    if net == "dropout":
        chosen, clients = small(0.3), [hide(points(k, 20), 8) for k in range(4)]
    else:
        chosen, clients = normed(), [hide(images(k, 9), 5) for k in range(4)]
    data = federation(clients, views=Noisy() if net == "dropout" else None)
    options: dict[str, Any] = {"train": Training(batch=4, lr=0.05, optimizer="keep"), "cohort": 2, "rounds": 4}
    plain = play_all(job(FedAvg(objective, "samples"), data, chosen, **options))
    variants: list[dict[str, Any]] = [{}, {"first_visit": "random"}, {"term": "l2"}]
    for settings in variants:
        method = Moon(objective, mu=0.0, **settings)
        assert same(play_all(job(method, data, chosen, **options)).state.w, plain.state.w)
    assert not same(play_all(job(Moon(objective, mu=1.0), data, chosen, **options)).state.w, plain.state.w)


def test_the_first_round_is_fedavg_and_the_second_is_not() -> None:
    mine, plain = ([*rounds(crowd(method, cohort=4))] for method in (Moon(), FedAvg(Supervised(), "samples")))
    assert same(mine[0].state.w, plain[0].state.w)
    assert not same(mine[1].state.w, plain[1].state.w)


def test_a_remembered_model_that_is_the_received_one_teaches_nothing_at_first() -> None:
    """With z_prev = z_glob both similarities are one and ℓ_con is log 2, whatever z."""
    given = alone(Moon(mu=5.0), points(3, 20), train=TRAIN)
    plain = visit(replace(given, method=Moon(mu=0.0)), 0, WeightsDown(GLOBAL)).up.w
    assert apart(visit(given, 0, WeightsDown(GLOBAL), MoonMemory(GLOBAL, None)).up.w, plain) < 1e-6


# A party's first visit.


def test_a_first_visit_against_random_weights() -> None:
    given = crowd(Moon(first_visit="random"))
    for k in (0, 1):
        fresh = given.net.init(given.streams.at("init party", client=k))
        found = visit(given, k, WeightsDown(GLOBAL)).up.w
        assert same(found, visit(given, k, WeightsDown(GLOBAL), MoonMemory(fresh, None)).up.w)
        assert not same(found, visit(replace(given, method=Moon()), k, WeightsDown(GLOBAL)).up.w)


def test_every_party_has_its_own_random_weights_in_every_round() -> None:
    given = crowd(Moon(first_visit="random"))
    first, again, other = (_random(given.client(r, k)) for r, k in ((0, 0), (3, 0), (0, 1)))
    assert same(first, again)
    assert not same(first, other)
    assert not same(first, given.server(0, {}).initial())


# Memory.


@pytest.mark.parametrize("lost", [0.0, 0.4])
def test_a_party_remembers_the_model_it_last_trained_and_got_through(lost: float) -> None:
    """Not drawn, or its upload lost: it stays with the model before."""
    given = crowd(Moon(), rounds=10, faults=Faults(lost=lost), min_clients=0)
    w, held = given.method.start(given.server(0, {})).w, dict[int, MoonMemory]()
    gaps, dropped, came = 0, 0, dict[int, int]()
    for moment in rounds(given):
        r = moment.record.round
        dropped += len(moment.record.skipped)
        for k in set(given.sample(r)) - moment.record.skipped.keys():
            gaps += k in came and came[k] < r - 1
            came[k] = r
            held[k] = MoonMemory(visit(given, k, WeightsDown(w), held.get(k), round=r).up.w, None)
        assert moment.memories.keys() == held.keys()
        assert all(same(moment.memories[k].w, held[k].w) for k in held)
        w = moment.state.w
    assert gaps > 2
    assert (dropped > 0) == (lost > 0)


def test_a_party_with_nothing_to_train_on_uploads_nothing_and_remembers_its_model() -> None:
    given = alone(Moon(), hide(points(0, 10)))
    first = visit(given, 0, WeightsDown(GLOBAL))
    assert first.up is first.memory is None
    later = visit(given, 0, WeightsDown(GLOBAL), MoonMemory(BEFORE, None))
    assert later.up is None
    assert same(later.memory.w, BEFORE)


def test_momentum_is_carried_if_set() -> None:
    carried, reset = (play_all(crowd(Moon(), train=replace(TRAIN, optimizer=way))) for way in ("keep", "reset"))
    assert all(memory.carried is not None for memory in carried.memories.values())
    assert all(memory.carried is None for memory in reset.memories.values())
    assert not same(carried.state.w, reset.state.w)


# What is needed, and a run that stopped.

OPTIONS: dict[str, Any] = {
    "method": "moon",
    "clients": 3,
    "labels": "all",
    "net": "lenet",
    "rounds": 3,
    "cohort": 2,
    "batch": 16,
    "workers": 0,
}


@pytest.mark.parametrize("name, classes, size", [("moon-cnn", 10, 92_626), ("moon-resnet50", 100, 28_246_948)])
def test_the_papers_networks_have_their_head(name: str, classes: int, size: int) -> None:
    net = build(name, (3, 32, 32), classes)
    w, x = net.init(torch.Generator().manual_seed(0)), torch.randn(2, 3, 32, 32)
    z, logits = net.features_and_logits(w, x)
    assert net.size() == size
    assert z.shape == (2, 256)
    assert torch.allclose(logits, functional.linear(z, w["fc.weight"], w["fc.bias"]), atol=1e-6)
