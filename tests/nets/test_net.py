"""A network as a function of its parameters: the same numbers as the ordinary torch module, and nothing hidden."""

import pickle

import pytest
import torch
from torch import Tensor, nn

from tacit.nets import NETS, Net, build
from tacit.params import channels_last, clone
from tacit.random import seeded
from tests.nets.inputs import GREY, SMALL, inputs, shape_of, small, stream
from tests.refusals import refused
from tests.toys import point, same


@pytest.mark.parametrize("name", NETS)
def test_the_same_stream_gives_the_same_weights(name: str) -> None:
    net = small(name)
    torch.manual_seed(1)
    first = net.init(stream())
    torch.manual_seed(2)
    assert same(small(name).init(stream()), first)
    assert not same(net.init(stream("other")), first)


def test_init_and_build_leave_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    build("resnet9", GREY, 10, width=0.1).init(stream())
    assert torch.equal(torch.get_rng_state(), before)


def test_two_inits_share_nothing() -> None:
    net = build("linear", GREY, 10)
    first, second = net.init(stream()), net.init(stream())
    first["fc.bias"].fill_(9.0)
    assert same(second, net.init(stream()))


@pytest.mark.parametrize("name, norm", [(name, norm) for name in NETS for norm in NETS[name].norms])
def test_apply_is_the_ordinary_module(name: str, norm: str) -> None:
    net = build(name, shape_of(name), 10, norm, SMALL)  # type: ignore[arg-type]
    weights = net.init(stream())
    for buffer in net.buffers:
        weights[buffer] = torch.rand(weights[buffer].shape, generator=stream("statistics")) + 0.5
    x = inputs(shape_of(name))
    module = net.module(weights)
    assert not module.training
    assert torch.equal(net.apply(weights, x), module(x))
    assert net.apply(weights, x).shape == (5, 10)


@pytest.mark.parametrize("name", NETS)
def test_apply_uses_only_the_given_weights(name: str) -> None:
    net, x = small(name), inputs(shape_of(name))
    one, two = net.init(stream("a")), net.init(stream("b"))
    alone = net.apply(two, x)
    net.apply(clone(one), x, train=True)
    assert torch.equal(net.apply(two, x), alone)
    assert not torch.equal(net.apply(one, x), alone)


@pytest.mark.parametrize("missing", ["conv1.weight", "conv1.bias", "fc3.bias", "norm2.running_mean"])
def test_a_weight_that_is_not_given_is_seen(missing: str) -> None:
    net = build("lenet", GREY, 10, "batch")
    weights = net.init(stream())
    del weights[missing]
    assert net.apply(weights, inputs(GREY)).isnan().all()


@pytest.mark.parametrize("name", NETS)
def test_gradients_reach_every_trainable_weight(name: str) -> None:
    net = small(name)
    weights = channels_last(net.init(stream()))
    leaves = [weights[k].requires_grad_() for k in net.trainable]
    # weights that are computed, as FedMatch's σ + ψ are, and not leaves themselves
    with seeded(torch.Generator().manual_seed(0), torch.device("cpu")):  # dropout may leave no path to a layer
        logits = net.apply({k: w * 1.0 for k, w in weights.items()}, inputs(shape_of(name)), train=True)
    grads = torch.autograd.grad(logits.square().sum(), leaves)
    assert not [k for k, grad in zip(net.trainable, grads, strict=True) if not grad.abs().sum() > 0]


def test_dropout_is_for_training_only() -> None:
    net = build("cnn", GREY, 10)
    weights, x = net.init(stream()), inputs(GREY)
    assert torch.equal(net.apply(weights, x), net.apply(weights, x))
    assert not torch.equal(net.apply(weights, x, train=True), net.apply(weights, x, train=True))


@pytest.mark.parametrize("name", ["lstm", "fedsiam-cnn"])
def test_a_net_that_was_used_can_be_sent_without_the_weights_it_saw(name: str) -> None:
    net, x = small(name), inputs(shape_of(name))
    weights = net.init(stream())
    computed = {k: weights[k].clone().requires_grad_() * 1.0 for k in net.trainable}
    net.apply(weights | computed, x)
    frame = pickle.dumps(net)
    assert len(frame) < 4 * net.size()
    assert torch.equal(pickle.loads(frame).apply(weights, x), net.apply(weights, x))


# Features: what the last layer sees.


@pytest.mark.parametrize("name", [name for name in NETS if name != "linear"])
def test_features_and_logits_are_those_of_apply(name: str) -> None:
    net, x = small(name), inputs(shape_of(name))
    weights = channels_last(net.init(stream()))
    before = clone(weights)
    features, logits = net.features_and_logits(weights, x)
    assert torch.equal(logits, net.apply(weights, x))
    assert torch.equal(features, net.features(weights, x))
    last = [layer for layer in net.module(weights).modules() if isinstance(layer, nn.Linear)][-1]
    assert torch.equal(last(features), logits)
    assert same(clone(weights), before)


@pytest.mark.parametrize("name", ["fedsiam-cnn", "wrn28-2", "moon-resnet50"])
def test_features_in_training_update_the_statistics_once(name: str) -> None:
    net, x = small(name), inputs(shape_of(name))
    once, pair, alone = (net.init(stream()) for _ in range(3))
    net.apply(once, x, train=True)
    net.features_and_logits(pair, x, train=True)
    net.features(alone, x, train=True)
    # a dropout in front of a norm layer would make these differ: there is none before pair1 of fedsiam-cnn
    first = net.buffers[:2]
    assert all(torch.equal(once[k], pair[k]) and torch.equal(once[k], alone[k]) for k in first)
    assert not torch.equal(once[first[0]], net.init(stream())[first[0]])


def test_features_in_training_drop_out() -> None:
    net, x = build("cnn", GREY, 10), inputs(GREY)
    weights = net.init(stream())
    assert (net.features(weights, x, train=True) == 0).sum() > (net.features(weights, x) == 0).sum()


def test_features_of_a_network_without_them_are_an_error() -> None:
    net = build("linear", GREY, 10)
    assert not net.has_features
    with pytest.raises(AttributeError, match="this network has no features: give its module"):
        net.features(net.init(stream()), inputs(GREY))


# BatchNorm: its running statistics are part of the parameters.


def test_batch_statistics_are_named_and_not_trained() -> None:
    net = build("lenet", GREY, 10, "batch")
    statistics = {f"norm{k}.running_{what}" for k in (1, 2) for what in ("mean", "var")}
    assert set(net.buffers) == statistics
    assert statistics <= net.init(stream()).keys()
    assert not statistics & set(net.trainable)
    assert set(net.names) == set(net.trainable) | statistics
    assert build("lenet", GREY, 10).buffers == ()


def test_a_layer_has_its_weight_bias_and_statistics() -> None:
    net = build("lenet", GREY, 10, "batch")
    layers = net.layers
    assert list(layers) == ["conv1", "norm1", "conv2", "norm2", "fc1", "fc2", "fc3"]
    assert layers["fc3"] == ["fc3.weight", "fc3.bias"]
    assert layers["norm1"] == [f"norm1.{what}" for what in ("weight", "bias", "running_mean", "running_var")]
    assert sorted(name for names in layers.values() for name in names) == sorted(net.names)


def test_a_layer_within_a_layer_is_a_separate_layer() -> None:
    net = Net(lambda: nn.Sequential(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), nn.Linear(2, 2, bias=False)))
    assert net.layers == {
        "0.0": ["0.0.weight", "0.0.bias"],
        "0.1": ["0.1.weight", "0.1.bias"],
        "1": ["1.weight"],
    }


def test_parameters_of_no_layer_stand_together() -> None:
    assert point(1.0).layers == {"": ["p"]}


def test_training_updates_the_statistics_in_the_dict_that_was_passed() -> None:
    net = build("lenet", GREY, 10, "batch")
    weights = net.init(stream())
    ordinary = net.module(weights).train()
    x = inputs(GREY)
    logits = net.apply(weights, x, train=True)
    assert torch.equal(logits, ordinary(x))
    after = ordinary.state_dict()
    assert same(weights, {name: after[name] for name in weights})
    assert not same(weights, net.init(stream()))


def test_evaluation_changes_nothing() -> None:
    net = build("lenet", GREY, 10, "batch")
    weights = net.init(stream())
    before = clone(weights)
    net.apply(weights, inputs(GREY))
    assert same(weights, before)


class TwoNorms(nn.Module):
    """Two BatchNorm layers with a doubling between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.BatchNorm1d(1, eps=1e-12), nn.BatchNorm1d(1, eps=1e-12)

    def forward(self, x: Tensor) -> Tensor:
        """The input, normalised twice."""
        normalised: Tensor = self.second(2 * self.first(x))
        return normalised


def test_recomputed_batchnorm_is_the_mean_of_the_batch_statistics() -> None:
    net = Net(TwoNorms)
    weights = net.init(stream())
    weights["first.running_mean"].fill_(100.0)  # forgotten
    before = clone(weights)
    batches = [torch.tensor([[1.0], [3.0]]), torch.tensor([[5.0], [5.0], [8.0]])]
    restated = net.recompute_batchnorm(weights, batches)
    # means 2 and 6; unbiased variances ((-1)² + 1²)/1 = 2 and (1 + 1 + 2²)/2 = 3; every batch counts once
    assert restated["first.running_mean"].item() == 4.0
    assert restated["first.running_var"].item() == 2.5
    # the second layer sees twice a normalised batch: mean 0, biased variance 4, unbiased 4·n/(n-1) = 8 and 6
    assert restated["second.running_mean"].item() == pytest.approx(0.0, abs=1e-6)
    assert restated["second.running_var"].item() == pytest.approx(7.0, rel=1e-6)
    assert same({k: restated[k] for k in net.trainable}, {k: before[k] for k in net.trainable})
    assert same(weights, before)


def test_recomputing_batchnorm_twice_gives_the_same() -> None:
    net = Net(TwoNorms)
    batches = [torch.tensor([[1.0], [3.0]]), torch.tensor([[5.0], [5.0], [8.0]])]
    once = net.recompute_batchnorm(net.init(stream()), batches)
    assert same(net.recompute_batchnorm(once, batches), once)


@pytest.mark.parametrize("name", ["cnn", "lstm"])
def test_recomputing_without_batchnorm_changes_nothing(name: str) -> None:
    net = small(name)
    weights = net.init(stream())
    assert same(net.recompute_batchnorm(weights, [inputs(shape_of(name))]), weights)


def test_a_layer_that_counts_its_batches_is_refused() -> None:
    with refused("nets.batchnorm-without-momentum"):
        Net(lambda: torch.nn.Sequential(torch.nn.BatchNorm1d(3, momentum=None)))


class Tied(nn.Module):
    """One weight under two names, and a buffer of integers that matters."""

    order: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
        self.two.weight = self.one.weight
        self.register_buffer("order", torch.tensor([2, 0, 1]))

    def forward(self, x: Tensor) -> Tensor:
        """The input, twice through the same layer, in another order."""
        logits: Tensor = self.two(self.one(x))[:, self.order]
        return logits


def test_tied_weights_and_integer_buffers_survive() -> None:
    net = Net(Tied)
    assert net.names == ("one.weight",)
    result = net.apply({"one.weight": 2 * torch.eye(3)}, torch.tensor([[1.0, 2.0, 3.0]]))
    assert result.tolist() == [[12.0, 4.0, 8.0]]


def test_an_ordinary_module_has_tied_weights_too() -> None:
    module = Net(Tied).module({"one.weight": 2 * torch.eye(3)})
    assert module(torch.tensor([[1.0, 2.0, 3.0]])).tolist() == [[12.0, 4.0, 8.0]]


class Scaled(nn.Module):
    """A float buffer that `state_dict` leaves out."""

    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 2)
        self.register_buffer("scale", torch.ones(3), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """The scaled input through a layer."""
        logits: Tensor = self.fc(x * self.scale)
        return logits


def test_an_ordinary_module_has_buffers_that_its_state_dict_lacks() -> None:
    net, x = Net(Scaled), torch.ones(1, 3)
    weights = net.init(stream()) | {"scale": torch.tensor([1.0, 2.0, 3.0])}
    assert torch.equal(net.module(weights)(x), net.apply(weights, x))


@pytest.mark.parametrize("change", [{"fc.bias": torch.zeros(1)}, {"more": torch.zeros(2)}])
def test_weights_of_another_network_make_no_module(change: dict[str, Tensor]) -> None:
    net = Net(Scaled)
    with pytest.raises(ValueError, match="these weights belong to another network"):
        net.module(net.init(stream()) | change)


class Shifted(nn.Module):
    """Integers that are added to the input, which torch refuses from another device."""

    shift: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 2)
        self.register_buffer("shift", torch.tensor([2, 0, 1]))

    def forward(self, x: Tensor) -> Tensor:
        """The shifted input through a layer."""
        logits: Tensor = self.fc(x + self.shift)
        return logits


def test_integer_buffers_go_where_the_net_computes_and_come_back() -> None:
    net, x = Net(Shifted), torch.ones(1, 3)
    w = net.init(stream())
    far = {name: value.to("meta") for name, value in w.items()}
    here = net.apply(w, x)
    assert net.apply(far, x.to("meta")).device.type == "meta"
    assert net.recompute_batchnorm(far, [x.to("meta")]).keys() == w.keys()
    assert torch.equal(net.apply(w, x), here)
    assert torch.equal(pickle.loads(pickle.dumps(net)).apply(w, x), here)
