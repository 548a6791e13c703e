"""DP-SGD at a client: what a step does, in numbers that can be checked by hand, and what is refused."""

import math
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tacit.engines import checkpoint
from tacit.engines.events import round_records
from tacit.engines.faults import Faults
from tacit.engines.in_process import InProcessTransport
from tacit.engines.job import RunState
from tacit.engines.memory import Memories
from tacit.engines.rounds import run_rounds
from tacit.engines.workers import WorkerTransport
from tacit.errors import TacitError
from tacit.federation import Samples
from tacit.learn import Batch, batches, fit
from tacit.learn.batching import Rates
from tacit.learn.private import PrivateGradient
from tacit.method import ClientContext, SampleNoise, Training
from tacit.methods.fedavg import FedAvg
from tacit.methods.moon import Moon
from tacit.methods.scaffold import Scaffold
from tacit.nets import Net, build
from tacit.objectives import FixMatch, FreeMatch, Mixup, Pi, PseudoLabel, Supervised, Uda
from tacit.params import Params, sub
from tacit.protect import draws
from tacit.protect.config import Protection
from tacit.protect.sample_budget import Spent
from tacit.protect.sample_dp import clipped_sum, logits_by_sample, refuse_unfit
from tests.engines.farm import run_job
from tests.objectives.bench import client, start
from tests.refusals import refused
from tests.toys import Identity, Noisy, alone, hide, images, labeled, linear, normed, play_all, points, steps

EXACT = SampleNoise(0.0, math.inf)


def private(data: Samples, net: Net, given: SampleNoise, train: Training, views: Any = None) -> ClientContext:
    return replace(client(data, net, train, views=views), sample_noise=given)


def loss_gradient(net: Net, w: Params, x: Tensor, y: Tensor) -> Params:
    """The gradient of the summed cross-entropy of these samples, one sample after the other."""
    leaves = {name: value.detach().clone().requires_grad_() for name, value in w.items()}
    loss = sum(functional.cross_entropy(net.apply(leaves, x[i : i + 1], True), y[i : i + 1]) for i in range(len(x)))
    assert isinstance(loss, Tensor)
    return dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))


def norm(model: Params) -> float:
    return math.sqrt(sum(float(value.square().sum()) for value in model.values()))


def pulls(net: Net, w: Params, x: Tensor, y: Tensor) -> Tensor:
    """Gradient of each sample's cross-entropy by its logits: p - one-hot(y)."""
    return functional.softmax(logits_by_sample(net, w, x), 1) - functional.one_hot(y, 3)


def test_the_gradient_of_each_sample_is_clipped_by_hand() -> None:
    net, data = linear(), points(0, 5)
    w = start(net)
    each = [loss_gradient(net, w, data.x[i : i + 1], data.y[i : i + 1]) for i in range(5)]
    clip = sorted(map(norm, each))[2]  # two gradients are longer, two are shorter
    expected = {k: sum(g[k] * min(1.0, clip / norm(g)) for g in each) for k in w}
    found = dict(zip(net.trainable, clipped_sum(net, w, data.x, pulls(net, w, data.x, data.y), clip), strict=True))
    for name in net.trainable:
        torch.testing.assert_close(found[name], expected[name])


def test_many_samples_are_clipped_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    net, data = linear(), points(0, 7)
    w = start(net)
    given = net, w, data.x, pulls(net, w, data.x, data.y), 0.5
    whole = clipped_sum(*given)
    monkeypatch.setattr("tacit.protect.sample_dp.PIECE", 2 * 15)  # a model has 15 numbers: two samples at once
    torch.testing.assert_close(clipped_sum(*given), whole)


@pytest.mark.parametrize("objective", [Supervised("plain"), FixMatch(0.0), FixMatch(0.4, weight=2.0), PseudoLabel(0.4)])
def test_without_clip_and_noise_a_step_is_the_plain_one(objective: Any) -> None:
    # Batches as large as the data hold everything, so both kinds of sampling take the same samples.
    data, net = hide(points(1, 12), 5), linear()
    train = steps(1, batch=5, unlabeled_batch=7)
    w = start(net)
    plain = fit(client(data, net, train, views=Identity()), w, objective).params
    found = fit(private(data, net, EXACT, train, Identity()), w, objective).params
    assert norm(sub(plain, w)) > 1e-3
    for name in w:
        torch.testing.assert_close(found[name], plain[name], rtol=1e-5, atol=1e-6)


def test_a_step_is_divided_by_the_expected_size_of_a_batch() -> None:
    # q = 1/4: the batch that is drawn has another size than 5, but the sum is divided by 5.
    data, net = points(1, 20), linear()
    holder = private(data, net, EXACT, steps(1, batch=5))
    (batch,) = batches(holder, labels_only=True)
    assert len(batch.x) != 5
    w = start(net)
    moved = sub(w, fit(holder, w, Supervised("plain")).params)
    expected = loss_gradient(net, w, batch.x, batch.y)
    for name in w:
        torch.testing.assert_close(moved[name], 0.1 * expected[name] / 5, rtol=1e-4, atol=1e-6)


def test_one_sample_moves_the_sum_by_no_more_than_the_clip() -> None:
    data, net = points(3, 6), linear()
    w, clip = start(net), 0.05
    pull = 1000 * pulls(net, w, data.x, data.y)
    with_all = clipped_sum(net, w, data.x, pull, clip)
    without = clipped_sum(net, w, data.x[:-1], pull[:-1], clip)
    apart = math.sqrt(sum(float((a - b).square().sum()) for a, b in zip(with_all, without, strict=True)))
    assert apart == pytest.approx(clip, rel=1e-4)


def test_noise_has_the_stated_deviation() -> None:
    # Without samples that count (weights of zero), a step of rate 1 is -noise·clip/B times standard normal numbers.
    net = build("linear", (2000,), 3)
    data = Samples(torch.zeros(4, 2000), torch.tensor([0, 1, 2, 0]))  # gradients of the weights are zero
    holder = private(data, net, SampleNoise(2.0, 0.5), steps(1, batch=4, lr=1.0))
    w = start(net)
    moved = sub(fit(holder, w, Supervised("plain")).params, w)
    weight = moved[net.trainable[0]]
    assert weight.numel() == 6000
    assert float(weight.std()) == pytest.approx(2.0 * 0.5 / 4, rel=0.03)  # 6,000 numbers: 1 % is one deviation
    assert abs(float(weight.mean())) < 4 * 0.25 / math.sqrt(6000)
    again = sub(fit(holder, w, Supervised("plain")).params, w)
    assert torch.equal(weight, again[net.trainable[0]])  # the same seed


def test_secret_noise_cannot_be_repeated() -> None:
    data, net = points(1, 8), linear()
    holder = private(data, net, SampleNoise(1.0, 1.0, secret=True), steps(1, batch=8))
    first, second = (fit(holder, start(net), Supervised("plain")).params for _ in range(2))
    assert norm(sub(first, second)) > 0


def test_numbers_of_the_operating_system_are_standard_normal() -> None:
    found = draws.normal(torch.empty(40_000, dtype=torch.float64), None)
    assert abs(float(found.mean())) < 5 / 200
    assert float(found.std()) == pytest.approx(1, abs=0.02)
    assert float((found.abs() < 1).double().mean()) == pytest.approx(0.6827, abs=0.015)
    u = draws.uniform(10_000, None)
    assert float(u.min()) > 0
    assert float(u.max()) < 1


def test_every_sample_is_drawn_by_itself() -> None:
    # 400 batches at q = 1/4 of 20 labeled and q = 1/2 of 10 unlabeled samples: sizes 5 ± 1.94 and 5 ± 1.58.
    data = hide(points(1, 30), 20)
    holder = private(data, linear(), EXACT, steps(400, batch=5, unlabeled_batch=5))
    rates = Rates.of(holder, labels_only=False)
    assert (rates.labeled, rates.unlabeled, rates.largest, rates.expected) == (0.25, 0.5, 0.5, 10)
    drawn = list(batches(holder))
    assert len(drawn) == 400
    sizes = torch.tensor([len(batch.x) for batch in drawn]).double()
    assert float(sizes.mean()) == pytest.approx(5, abs=0.4)
    assert float(sizes.var()) == pytest.approx(20 * 0.25 * 0.75, rel=0.25)
    times = torch.cat([batch.index for batch in drawn]).bincount(minlength=30)[20:]
    assert times.min() > 150
    assert times.max() < 250
    assert not any(len(batch.index) != len(batch.index.unique()) for batch in drawn)


def test_an_empty_batch_adds_noise_alone() -> None:
    data, net = points(1, 400), linear()
    holder = private(data, net, SampleNoise(1.0, 1.0), steps(30, batch=1))
    assert any(not len(batch.x) for batch in batches(holder, labels_only=True))
    assert fit(holder, start(net), Supervised("plain")).steps == 30


def test_nothing_is_logged_that_noise_does_not_protect() -> None:
    data = hide(points(1, 12), 5)
    trained = fit(private(data, linear(), SampleNoise(1.0, 1.0), steps(3, batch=4)), start(linear()), FixMatch(0.3))
    assert trained.metrics == {"steps": 3, "sampling_rate": 0.8}
    assert trained.pseudo_labels is None


def test_one_step_equals_that_of_opacus() -> None:
    opacus = pytest.importorskip("opacus")
    data, clip = images(4, 6), 0.7
    net = Net(lambda: nn.Sequential(nn.Conv2d(1, 4, 5), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(576, 3)))
    w, x = start(net), data.x.float() / 255
    wrapped = opacus.GradSampleModule(net.module(w).train(), loss_reduction="mean")
    optimizer = opacus.optimizers.DPOptimizer(
        torch.optim.SGD(wrapped.parameters(), lr=0.1), noise_multiplier=0.0, max_grad_norm=clip, expected_batch_size=6
    )
    functional.cross_entropy(wrapped(x.clone().requires_grad_()), data.y).backward()  # else torch warns of its hooks
    assert any(norm(loss_gradient(net, w, x[i : i + 1], data.y[i : i + 1])) > clip for i in range(6))
    optimizer.step()
    reference = {name.removeprefix("_module."): p.detach() for name, p in wrapped.named_parameters()}
    given = private(replace(data, x=x), net, SampleNoise(0.0, clip), steps(1, batch=6), Identity())
    found = fit(given, w, Supervised("plain")).params
    for name in net.trainable:
        torch.testing.assert_close(found[name], reference[name], rtol=1e-4, atol=1e-6)


def test_dropout_draws_the_same_numbers_in_both_passes() -> None:
    net = Net(lambda: nn.Sequential(nn.Flatten(), nn.Linear(4, 64), nn.Dropout(0.5), nn.Linear(64, 3)))
    w, x = start(net), points(0, 5).x
    torch.manual_seed(3)
    logits = logits_by_sample(net, w, x)
    # Linear in the last bias and weight: ⟨pull, logits⟩ has the gradient Σ pull_i ⊗ dropped features of x_i.
    found = dict(zip(net.trainable, clipped_sum(net, w, x, torch.ones(5, 3), math.inf), strict=True))
    share = (found["3.weight"][0] @ w["3.weight"].sum(0)) + 5 * w["3.bias"].sum()
    torch.testing.assert_close(share, logits.sum())


def test_it_runs_in_rounds_and_says_how_much_was_revealed() -> None:
    given = labeled(FedAvg(Supervised("plain")), protect=Protection(sample_noise=1.0, sample_clip=1.0))
    records = play_all(given).records
    spent = [record.sample_privacy for record in records]
    assert all(found and found["epsilon"] and found["delta"] == 1e-5 for found in spent)
    values = [found["epsilon"] or 0 for found in spent if found]
    assert values[0] < values[1] < values[2]
    assert set(records[0].metrics) == {"steps", "sampling_rate"}


def test_a_resumed_run_remembers_what_was_revealed(tmp_path: Path) -> None:
    given = labeled(FedAvg(Supervised("plain")), protect=Protection(sample_noise=1.0, sample_clip=1.0))
    memories = tmp_path / "memories"
    before = RunState(Memories(memories, 1 << 30))
    next(round_records(run_rounds(given, InProcessTransport(given), before)))
    checkpoint.save(tmp_path, before, given.codec, 0)
    after, _ = checkpoint.load(tmp_path, given.codec, Memories(memories, 1 << 30), given.device)
    assert (
        after.spent == before.spent == {k: [Spent(1.0, 0.3, 8)] for k in range(3)}
    )  # 20 points in batches of 6, twice
    last = [*round_records(run_rounds(given, InProcessTransport(given), after))][-1]
    assert last.sample_privacy == play_all(given).records[-1].sample_privacy


def test_a_lost_upload_counts_as_revealed() -> None:
    given = labeled(FedAvg(Supervised("plain")), protect=Protection(sample_noise=1.0, sample_clip=1.0), min_clients=0)
    lossy = replace(given, faults=Faults(lost=0.9))
    with_all, with_losses = (play_all(each).records[-1].sample_privacy for each in (given, lossy))
    assert with_all == with_losses


def test_without_noise_no_epsilon_is_stated() -> None:
    records = play_all(
        labeled(FedAvg(Supervised("plain")), protect=Protection(sample_noise=0.0, sample_clip=1.0))
    ).records
    assert records[0].sample_privacy == {"epsilon": None, "delta": 1e-5}
    assert play_all(labeled(FedAvg(Supervised("plain")))).records[0].sample_privacy is None


@pytest.mark.parametrize(
    "method",
    [
        FedAvg(Supervised()),
        FedAvg(FixMatch()),
        FedAvg(PseudoLabel()),
        FedAvg(Uda(annealing="none")),
        Scaffold(Supervised()),
    ],
)
def test_losses_of_single_samples_are_accepted(method: Any) -> None:
    refuse_unfit(method, linear())


@pytest.mark.parametrize(
    "method, code",
    [
        (FedAvg(FixMatch(over="kept")), "protect.loss-mixes-samples"),
        (FedAvg(Supervised(class_weights="balanced")), "protect.loss-mixes-samples"),
        (FedAvg(Uda()), "protect.loss-mixes-samples"),
        (FedAvg(Mixup()), "protect.loss-mixes-samples"),
        (FedAvg(FreeMatch()), "protect.loss-mixes-samples"),
        (FedAvg(Pi()), "protect.loss-mixes-samples"),
        (Moon(), "protect.method-sees-samples"),
        (Scaffold(option="I"), "protect.method-sees-samples"),
    ],
)
def test_what_mixes_samples_is_refused(method: Any, code: str) -> None:
    with refused(code):
        refuse_unfit(method, linear())


def test_batchnorm_is_refused() -> None:
    with refused("protect.batchnorm"):
        refuse_unfit(FedAvg(Supervised()), normed())
    given = alone(FedAvg(Supervised("plain")), images(0, 6), normed(), protect=Protection(sample_noise=1.0))
    with pytest.raises(TacitError) as caught:
        play_all(given)
    assert caught.value.code == "engine.too-few-clients"


@pytest.mark.parametrize("objective", [Supervised(), FixMatch(0.3), PseudoLabel(0.3), Uda(0.3, annealing="none")])
@pytest.mark.parametrize("sample", [0, 6])
def test_a_declared_loss_depends_on_each_sample_alone(objective: Any, sample: int) -> None:
    """What a labeled or an unlabeled sample adds to the gradient stays the same, whatever else is in the batch."""
    assert objective.per_sample
    data, net = hide(points(2, 12), 6), linear()
    w, holder = start(net), private(hide(points(2, 12), 6), linear(), EXACT, steps(1, batch=4), Identity())

    def gradient(rows: list[int]) -> Tensor:
        known, unknown = ([k for k in rows if (int(data.y[k]) >= 0) is here] for here in (True, False))
        shown, hidden = data.take(torch.tensor(known).long()), torch.tensor(unknown).long()
        local = objective.local_loss(holder, w, {})
        made = PrivateGradient(holder, EXACT, local, Rates.of(holder, objective.labels_only))
        batch = Batch(shown.x, shown.y, data.x[hidden][: 0 if objective.labels_only else None], hidden)
        return torch.cat([value.flatten() for value in made(w, batch)])

    few, many = [1, 7], [1, 2, 3, 7, 8, 9, 10]
    share = gradient([*few, sample]) - gradient(few)
    assert bool(share.abs().max() > 1e-3) is not (objective.labels_only and sample == 6)
    torch.testing.assert_close(gradient([*many, sample]) - gradient(many), share, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("name", ["lenet", "linear", "mlp"])
def test_networks_offer_gradients_of_single_samples(name: str) -> None:
    shape = (4,) if name == "mlp" else (1, 16, 16)
    net = build(name, shape, 3, None if name == "linear" else "group")
    data = points(0, 4) if name == "mlp" else images(0, 4)
    given = private(data, net, SampleNoise(0.5, 1.0), steps(2, batch=2), Noisy() if name == "mlp" else Identity())
    assert fit(given, start(net), Supervised()).steps == 2


def test_workers_and_one_process_give_the_same_bits() -> None:
    given = labeled(FedAvg(Supervised("plain")), protect=Protection(sample_noise=1.0, sample_clip=1.0))
    with closing(WorkerTransport(given, 2)) as transport:
        assert run_job(given, InProcessTransport(given)) == run_job(given, transport)
