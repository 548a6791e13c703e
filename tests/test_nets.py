"""Networks as functions of their parameters: the same numbers as the ordinary torch module, and nothing hidden."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tacit.errors import TacitError
from tacit.nets import NETS, Net, build
from tacit.params import clone, size
from tacit.random import Streams
from tests.toys import same

GREY = (1, 28, 28)
COLOUR = (3, 32, 32)


def stream(use: str = "init") -> torch.Generator:
    return Streams(0).at(use)


def inputs(shape: tuple[int, ...], n: int = 5) -> Tensor:
    return torch.rand(n, *shape, generator=stream("inputs"))


def modules(net: Net, kind: type[nn.Module]) -> list[nn.Module]:
    return [layer for layer in net.module(net.init(stream())).modules() if type(layer) is kind]


@pytest.mark.parametrize(
    "name, shape, parameters",
    [
        ("cnn", GREY, 21_840),  # what its docstring says
        ("cnn", GREY, (25 * 1 + 1) * 10 + (25 * 10 + 1) * 20 + (20 * 4 * 4 + 1) * 50 + (50 + 1) * 10),
        ("lenet", COLOUR, (25 * 3 + 1) * 6 + (25 * 6 + 1) * 16 + (16 * 5 * 5 + 1) * 120 + 121 * 84 + 85 * 10),
        ("linear", GREY, (784 + 1) * 10),
    ],
)
def test_parameters_are_counted(name: str, shape: tuple[int, ...], parameters: int) -> None:
    net = build(name, shape, 10)
    assert net.size() == parameters
    assert size(net.init(stream())) == parameters


@pytest.mark.parametrize("name", NETS)
def test_the_same_stream_gives_the_same_weights(name: str) -> None:
    net = build(name, GREY, 10)
    torch.manual_seed(1)
    first = net.init(stream())
    torch.manual_seed(2)
    assert same(build(name, GREY, 10).init(stream()), first)
    assert not same(net.init(stream("other")), first)


def test_init_and_build_leave_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    build("cnn", GREY, 10).init(stream())
    assert torch.equal(torch.get_rng_state(), before)


def test_two_inits_share_nothing() -> None:
    net = build("linear", GREY, 10)
    first, second = net.init(stream()), net.init(stream())
    first["fc.bias"].fill_(9.0)
    assert same(second, net.init(stream()))


@pytest.mark.parametrize("norm", ["none", "batch", "group"])
@pytest.mark.parametrize("name", NETS)
def test_apply_is_the_ordinary_module(name: str, norm: str) -> None:
    net = build(name, GREY, 10, norm)  # type: ignore[arg-type]
    weights = net.init(stream())
    for buffer in net.buffers:
        weights[buffer] = torch.rand(weights[buffer].shape, generator=stream("statistics")) + 0.5
    x = inputs(GREY)
    module = net.module(weights)
    assert not module.training
    assert torch.equal(net.apply(weights, x), module(x))
    assert net.apply(weights, x).shape == (5, 10)


def test_apply_looks_at_no_weights_but_the_given_ones() -> None:
    net = build("lenet", GREY, 10)
    one, two, x = net.init(stream("a")), net.init(stream("b")), inputs(GREY)
    alone = net.apply(two, x)
    net.apply(one, x, train=True)
    assert torch.equal(net.apply(two, x), alone)
    assert not torch.equal(net.apply(one, x), alone)


def test_dropout_is_for_training_only() -> None:
    net = build("cnn", GREY, 10)
    weights, x = net.init(stream()), inputs(GREY)
    assert torch.equal(net.apply(weights, x), net.apply(weights, x))
    assert not torch.equal(net.apply(weights, x, train=True), net.apply(weights, x, train=True))


# BatchNorm: its running statistics are part of the parameters.


def test_batch_statistics_are_named_and_not_trained() -> None:
    net = build("lenet", GREY, 10, "batch")
    statistics = {f"norm{k}.running_{what}" for k in (1, 2) for what in ("mean", "var")}
    assert set(net.buffers) == statistics
    assert statistics <= net.init(stream()).keys()
    assert not statistics & set(net.trainable)
    assert set(net.names) == set(net.trainable) | statistics
    assert build("lenet", GREY, 10).buffers == ()


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


def test_restate_is_the_mean_of_the_batch_statistics() -> None:
    net = Net(TwoNorms)
    weights = net.init(stream())
    weights["first.running_mean"].fill_(100.0)  # forgotten
    before = clone(weights)
    batches = [torch.tensor([[1.0], [3.0]]), torch.tensor([[5.0], [5.0], [8.0]])]
    restated = net.restate(weights, batches)
    # means 2 and 6; unbiased variances ((-1)² + 1²)/1 = 2 and (1 + 1 + 2²)/2 = 3; every batch counts once
    assert restated["first.running_mean"].item() == 4.0
    assert restated["first.running_var"].item() == 2.5
    # the second layer sees twice a normalised batch: mean 0, biased variance 4, unbiased 4·n/(n-1) = 8 and 6
    assert restated["second.running_mean"].item() == pytest.approx(0.0, abs=1e-6)
    assert restated["second.running_var"].item() == pytest.approx(7.0, rel=1e-6)
    assert same({k: restated[k] for k in net.trainable}, {k: before[k] for k in net.trainable})
    assert same(weights, before)


def test_restate_again_gives_the_same() -> None:
    net = Net(TwoNorms)
    batches = [torch.tensor([[1.0], [3.0]]), torch.tensor([[5.0], [5.0], [8.0]])]
    once = net.restate(net.init(stream()), batches)
    assert same(net.restate(once, batches), once)


def test_restate_without_batch_norm_changes_nothing() -> None:
    net = build("cnn", GREY, 10)
    weights = net.init(stream())
    assert same(net.restate(weights, [inputs(GREY)]), weights)


# Choices.


def groups(channels: int) -> int:
    """Groups of the first layer of a small CNN with that many channels."""
    layer = modules(build("cnn", GREY, 10, "group", channels / 10), nn.GroupNorm)[0]
    assert isinstance(layer, nn.GroupNorm)
    assert layer.num_channels == channels
    return layer.num_groups


@pytest.mark.parametrize(
    "channels, expected", [(64, 32), (32, 16), (48, 16), (24, 8), (20, 4), (10, 2), (9, 1), (2, 1), (1, 1)]
)
def test_group_norm_takes_the_most_groups_with_two_channels_or_more(channels: int, expected: int) -> None:
    assert groups(channels) == expected


def test_norm_is_a_choice() -> None:
    assert len(modules(build("lenet", GREY, 10, "group"), nn.GroupNorm)) == 2
    assert len(modules(build("lenet", GREY, 10, "batch"), nn.BatchNorm2d)) == 2
    assert not modules(build("lenet", GREY, 10), nn.GroupNorm) + modules(build("lenet", GREY, 10), nn.BatchNorm2d)


def test_width_is_a_factor_on_the_channels() -> None:
    weights = build("lenet", GREY, 10, width=0.5).init(stream())
    assert weights["conv1.weight"].shape == (3, 1, 5, 5)
    assert weights["conv2.weight"].shape == (8, 3, 5, 5)
    assert weights["fc1.weight"].shape == (60, 8 * 4 * 4)
    assert weights["fc2.weight"].shape == (42, 60)
    assert weights["fc3.weight"].shape == (10, 42)
    assert build("cnn", GREY, 10, width=0.01).init(stream())["conv1.weight"].shape == (1, 1, 5, 5)


@pytest.mark.parametrize("name", ["cnn", "lenet"])
def test_images_that_are_too_small_are_refused_with_a_remedy(name: str) -> None:
    build(name, (1, 16, 16), 10)  # 16 → 12 → 6 → 2 → 1
    with pytest.raises(TacitError, match="too small"):
        build(name, (1, 16, 15), 10)  # 15 → 11 → 5 → 1 → 0
    with pytest.raises(TacitError, match="too small"):
        build(name, (1, 1, 1), 10)


def test_features_are_known() -> None:
    assert build("lenet", GREY, 10).has_features
    assert not build("linear", GREY, 10).has_features


def test_a_network_of_the_user_is_found_by_module_and_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_nets_of_this_test.py").write_text(
        "from torch import nn\n\ndef small(shape, classes):\n    return nn.Sequential(nn.Flatten(), "
        "nn.Linear(shape[1] * shape[2], classes))\n",
        encoding="utf-8",
    )
    monkeypatch.syspath_prepend(tmp_path)
    net = build("my_nets_of_this_test:small", GREY, 7)
    assert net.size() == 785 * 7
    assert net.apply(net.init(stream()), inputs(GREY)).shape == (5, 7)
    with pytest.raises(TacitError, match="can not load the network"):
        build("my_nets_of_this_test:large", GREY, 7)
    with pytest.raises(TacitError, match="there is no module 'no_such_module': run this where"):
        build("no_such_module:small", GREY, 7)


def test_an_unknown_name_is_refused_with_the_closest() -> None:
    with pytest.raises(TacitError, match="did you mean 'lenet'"):
        build("lennet", GREY, 10)


def test_a_layer_that_counts_its_batches_is_refused() -> None:
    with pytest.raises(TacitError, match="give it a momentum"):
        Net(lambda: torch.nn.Sequential(torch.nn.BatchNorm1d(3, momentum=None)))


def test_choices_of_ours_are_refused_for_a_network_of_the_user() -> None:
    with pytest.raises(TacitError, match="net.norm and net.width are not for networks of your own"):
        build("torch.nn:Linear", (3,), 2, width=2.0)
