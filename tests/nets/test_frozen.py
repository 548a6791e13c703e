"""Networks with frozen parts: what travels, what stays, where training starts, and on which device."""

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tacit.engines.in_process import InProcessTransport
from tacit.engines.job import Job
from tacit.engines.workers import WorkerTransport
from tacit.method import Training
from tacit.methods.fedavg import FedAvg
from tacit.methods.moon import Moon
from tacit.nets import Net, build
from tacit.objectives import FixMatch, Supervised
from tacit.params import Params, clone
from tacit.process import one_thread
from tests.engines.farm import run_job
from tests.refusals import refused
from tests.toys import apart, federation, hide, images, job, play_all, resumed, same

BUILDS: list[int] = []  # one entry for every module that was built


@pytest.fixture(autouse=True)
def builds() -> Iterator[None]:
    BUILDS.clear()
    yield
    BUILDS.clear()


class Backbone(nn.Module):
    """A frozen convolution with BatchNorm and dropout, a loaded layer that trains, and a new head."""

    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        BUILDS.append(1)
        self.body = nn.Sequential(nn.Conv2d(1, 8, 3, stride=2), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.5))
        self.adapter = nn.Linear(8, 6)
        loaded = torch.Generator().manual_seed(7)
        with torch.no_grad():
            for tensor in [*self.body.parameters(), *self.adapter.parameters()]:
                tensor.copy_(torch.randn(tensor.shape, generator=loaded) / 3)
            self.body[1].running_mean.copy_(torch.randn(8, generator=loaded))  # type: ignore[operator]
        self.body.requires_grad_(False)
        self.head = nn.Linear(6, classes)
        nn.init.zeros_(self.head.bias)

    def features(self, x: Tensor) -> Tensor:
        return torch.relu(self.adapter(self.body(x).mean(dim=(2, 3))))

    def classify(self, z: Tensor) -> Tensor:
        return self.head(z)  # type: ignore[no-any-return]

    def forward(self, x: Tensor) -> Tensor:
        return self.classify(self.features(x))


def stream(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def crowd(method: Any = None, **options: Any) -> Job:
    data = federation([hide(images(k, 9), 5) for k in range(3)], None, images(8, 12))
    settings: dict[str, Any] = {"train": Training(batch=4, lr=0.05), "rounds": 3}
    return job(method or FedAvg(FixMatch(threshold=0.4)), data, Net(Backbone), **settings | options)


def test_only_what_trains_is_in_the_parameters() -> None:
    net = Net(Backbone)
    assert net.names == net.trainable == ("adapter.weight", "adapter.bias", "head.weight", "head.bias")
    assert net.buffers == ()
    assert {name.partition(".")[0] for name in net.frozen} == {"body"}
    assert {"body.0.weight", "body.1.weight", "body.1.running_var"} <= set(net.frozen)
    assert tuple(net.init(stream())) == net.names
    assert list(net.layers) == ["adapter", "head"]


def test_a_network_without_frozen_parts_has_none() -> None:
    net = build("resnet9", (3, 32, 32), 10, "batch", 0.1)
    assert net.frozen == ()
    assert net.buffers


def test_the_trainable_bytes_are_all_that_is_sent() -> None:
    """A dense layer of 256×100 with bias is frozen: 102,800 bytes that stay."""

    def half_frozen() -> nn.Module:
        module = nn.Sequential(nn.Flatten(), nn.Linear(256, 100), nn.ReLU(), nn.Linear(100, 3))
        module[1].requires_grad_(False)
        return module

    data, net = federation([images(k, 9) for k in range(2)]), Net(half_frozen)
    given = job(FedAvg(Supervised()), data, net, rounds=1)
    record = play_all(given).records[0]
    trainable = 4 * (100 * 3 + 3)
    assert trainable <= record.bytes_up / 2 < trainable + 300
    assert trainable <= record.bytes_down / 2 < trainable + 300


def test_frozen_modules_stay_in_evaluation_mode_in_training() -> None:
    net, x = Net(Backbone), images(0, 6).x.float()
    w = net.init(stream())
    module = net.module(w)
    before = clone(dict(module.named_buffers()))
    for _ in range(2):
        assert torch.allclose(net.apply(w, x, train=True), module(x), atol=1e-6)  # no dropout, running statistics
    assert same(clone(dict(net.module(w).named_buffers())), before)


def test_a_frozen_batchnorm_in_a_network_that_trains_keeps_its_statistics() -> None:
    def make() -> nn.Module:
        module = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
        module[0].requires_grad_(False)
        return module

    net, x = Net(make), torch.randn(8, 4, generator=stream()) + 3
    w = net.init(stream())
    assert net.buffers == ("2.running_mean", "2.running_var")
    net.apply(w, x, train=True)
    assert w["2.running_mean"].any()
    held = dict(net.module(w).named_buffers())
    assert not held["0.running_mean"].any()
    again = net.recompute_batchnorm(w, [x])
    below = functional.linear(x / (1 + 1e-5) ** 0.5, w["1.weight"], w["1.bias"])
    assert torch.allclose(again["2.running_mean"], below.mean(dim=0), atol=1e-5)
    assert not dict(net.module(again).named_buffers())["0.running_mean"].any()


def test_initial_weights_need_no_further_build() -> None:
    net = Net(Backbone)
    built = len(BUILDS)
    one, again, two = net.init(stream(1)), net.init(stream(1)), net.init(stream(2))
    net.module(one)
    assert len(BUILDS) == built
    assert same(one, again)
    assert not torch.equal(one["head.weight"], two["head.weight"])  # drawn
    assert not one["head.bias"].any()  # constant
    loaded = dict(Backbone().named_parameters())
    assert torch.equal(one["adapter.weight"], loaded["adapter.weight"])  # loaded, though it trains
    assert torch.equal(one["adapter.weight"], two["adapter.weight"])


def test_a_layer_that_cannot_draw_its_weights_starts_as_it_was_built() -> None:
    class LowRank(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.base = nn.Linear(4, 3).requires_grad_(False)
            self.a, self.b = nn.Parameter(torch.randn(2, 4)), nn.Parameter(torch.zeros(3, 2))

        def forward(self, x: Tensor) -> Tensor:
            return self.base(x) + x @ self.a.T @ self.b.T  # type: ignore[no-any-return]

    net = Net(LowRank)
    assert net.names == ("a", "b")
    assert same(net.init(stream(1)), net.init(stream(2)))
    assert net.init(stream(1))["a"].any()


def test_initial_weights_of_a_network_without_frozen_parts_are_those_of_its_build() -> None:
    net = build("lenet", (1, 16, 16), 3)
    with torch.random.fork_rng():
        torch.manual_seed(5)
        module = net._build()
    assert same(net.init(stream(5)), clone(dict(module.named_parameters())))


def test_a_module_is_complete() -> None:
    net, x = Net(Backbone), images(0, 6).x.float()
    w = net.init(stream())
    module = net.module(w)
    assert set(dict(module.named_parameters())) == {*net.names, *(n for n in net.frozen if "running" not in n)}
    assert torch.allclose(module(x), net.apply(w, x), atol=1e-6)
    assert torch.equal(dict(module.named_parameters())["body.0.weight"], Backbone().body[0].weight)  # type: ignore[arg-type]
    with torch.no_grad():
        next(module.parameters()).fill_(9.0)  # it shares nothing with the network
    assert torch.allclose(net.module(w)(x), net.apply(w, x), atol=1e-6)


def test_frozen_values_move_with_the_device_and_come_back() -> None:
    net, x = Net(Backbone), images(0, 4).x.float()
    w = net.init(stream())
    here = net.apply(w, x)
    far = {name: value.to("meta") for name, value in w.items()}
    assert net.apply(far, x.to("meta")).device.type == "meta"
    assert net.apply(far, x.to("meta"), train=True).device.type == "meta"
    assert torch.equal(net.apply(w, x), here)


def test_tied_weights_work_next_to_frozen_ones() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.base, self.one, self.two = nn.Linear(3, 3).requires_grad_(False), nn.Linear(3, 3), nn.Linear(3, 3)
            self.two.weight = self.one.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.two(self.one(self.base(x)))  # type: ignore[no-any-return]

    net, x = Net(Tied), torch.ones(2, 3)
    w = net.init(stream())
    assert torch.allclose(net.apply(w, x), net.module(w)(x))
    assert len(net.names) == 3


def test_a_network_that_is_frozen_altogether_is_refused() -> None:
    with refused("nets.nothing-to-train"):
        Net(lambda: nn.Linear(4, 3).requires_grad_(False))


def test_a_pickled_network_has_its_frozen_values() -> None:
    net, x = Net(nn_half), torch.ones(2, 4)
    w = net.init(stream())
    assert torch.equal(pickle.loads(pickle.dumps(net)).apply(w, x), net.apply(w, x))


def nn_half() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4).requires_grad_(False), nn.Linear(4, 3))


# Rounds.


def test_the_frozen_layer_is_the_same_after_training_and_the_rest_is_not() -> None:
    given = crowd()
    before = given.net.module(started := given.net.init(given.streams.at("init")))
    trained = play_all(given).state.w
    after = given.net.module(trained)
    assert apart(trained, started) > 1e-3
    for name in given.net.frozen:
        assert torch.equal(_of(before)[name], _of(after)[name])


def _of(module: nn.Module) -> Params:
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


@pytest.mark.parametrize("kind", [FedAvg, Moon])
def test_worker_processes_and_a_resume_give_the_same_bits(kind: Any, tmp_path: Path) -> None:
    given = crowd(kind(FixMatch(threshold=0.4)))
    whole = run_job(given, InProcessTransport(given))
    assert run_job(given, WorkerTransport(given, 2)) == whole
    with one_thread():
        state, _ = resumed(given, tmp_path, 2)
    assert given.codec.encode(state) == whole.state


@pytest.mark.flower
def test_flower_gives_the_same_bits(tmp_path: Path) -> None:
    pytest.importorskip("flwr", reason="Flower is not installed: pip install tacit[flower]")
    from tacit.engines.flower import simulated
    from tests.engines.grid import connected, played

    given = crowd()
    here = played(given, InProcessTransport(given), tmp_path)
    there = played(given, connected(given, simulated(lambda run_info: crowd()))[0], tmp_path)
    assert there == here
