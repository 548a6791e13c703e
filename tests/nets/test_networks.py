"""Each architecture: its parameters are counted by hand or in its paper, and it takes the sizes it should."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from tacit.nets import NETS, Net, Norm, build
from tacit.params import size
from tests.nets.inputs import COLOUR, GREY, LINE, SMALL, inputs, shape_of, small, stream
from tests.refusals import refused

IMAGES = [name for name in NETS if name != "lstm"]


def kinds(net: Net, kind: type[nn.Module]) -> list[nn.Module]:
    """The layers of one kind."""
    return [layer for layer in net.module(net.init(stream())).modules() if type(layer) is kind]


def biases(net: Net) -> list[str]:
    """The names of the biases, without those of normalisation."""
    weights = net.init(stream())
    return [k for k in net.trainable if k.endswith("bias") and weights[k.removesuffix("bias") + "weight"].dim() > 1]


def conv3(ins: int, outs: int) -> int:
    return 9 * ins * outs


def lstm(ins: int, hidden: int) -> int:
    return 4 * hidden * (ins + hidden + 2)  # torch has two biases where one would do


@pytest.mark.parametrize(
    "name, shape, classes, norm, parameters",
    [
        ("cnn", GREY, 10, None, 21_840),  # FedSiam §4.1
        ("cnn", GREY, 10, None, (25 * 1 + 1) * 10 + (25 * 10 + 1) * 20 + (20 * 4 * 4 + 1) * 50 + (50 + 1) * 10),
        ("lenet", COLOUR, 10, None, 76 * 6 + 151 * 16 + (16 * 5 * 5 + 1) * 120 + 121 * 84 + 85 * 10),
        ("fedsiam-cnn", COLOUR, 10, None, 5_852_170),  # FedSiam §4.1
        ("fedsiam-cnn", COLOUR, 10, "none", 5_852_170 - 2 * (32 + 128 + 256)),
        ("resnet9", COLOUR, 10, None, 6_568_640),  # of FedMatch's release
        ("resnet9", COLOUR, 10, "group", 6_575_370),  # and each of 2240 maps has a bias, a gain and a shift
        ("resnet9", COLOUR, 10, "batch", 6_568_640 + 3 * 2240 + 10),
        ("resnet18", COLOUR, 10, None, 11_173_962),  # of the SSFL benchmark's release
        ("resnet18", COLOUR, 10, "batch", 11_173_962),
        ("alexnet", COLOUR, 10, None, 49 * 64 + 577 * 128 + 513 * 256 + 1025 * 2048 + 2049 * 2048 + 2049 * 10),
        ("moon-cnn", COLOUR, 10, None, 92_626),  # of MOON's release
        ("fedmix-vgg", COLOUR, 10, None, 3_491_530),
        ("emnist-cnn", GREY, 47, None, 1_204_655),  # of the SSFL benchmark's release
        ("wrn28-2", COLOUR, 10, None, 1_467_610),  # of SemiFL's release
        ("lstm", (80,), 80, None, 80 * 8 + lstm(8, 256) + lstm(256, 256) + 257 * 80),
        ("linear", GREY, 10, None, (784 + 1) * 10),
    ],
)
def test_parameters_are_counted(
    name: str, shape: tuple[int, ...], classes: int, norm: Norm | None, parameters: int
) -> None:
    assert build(name, shape, classes, norm).size() == parameters


@pytest.mark.parametrize("name", NETS)
def test_weights_are_as_many_as_counted(name: str) -> None:
    net = small(name)
    weights = net.init(stream())
    assert net.size() == size(weights) - sum(weights[k].numel() for k in net.buffers)
    assert set(weights) == set(net.names)


def test_the_largest_is_counted() -> None:  # once, it takes a moment
    net = build("moon-resnet50", COLOUR, 100)
    blocks = 0
    ins = 64
    for count, few in zip((3, 4, 6, 3), (64, 128, 256, 512), strict=True):
        for block in range(count):
            shortcut = 0 if block else ins * 4 * few + 2 * 4 * few
            blocks += shortcut + ins * few + conv3(few, few) + few * 4 * few + 2 * (few + few + 4 * few)
            ins = 4 * few
    head = 2049 * 2048 + 2049 * 256 + 257 * 100
    assert net.size() == conv3(3, 64) + 2 * 64 + blocks + head == 28_246_948


@pytest.mark.parametrize("name", NETS)
def test_the_listing_tells_the_parameters(name: str) -> None:
    first = (NETS[name].__doc__ or "").partition("\n")[0]
    assert name == "linear" or "parameters" in first
    assert len(first) < 120


@pytest.mark.parametrize("shape", [GREY, COLOUR, (3, 64, 64), (1, 40, 28)])
@pytest.mark.parametrize("name", IMAGES)
def test_images_of_usual_sizes_are_taken(name: str, shape: tuple[int, ...]) -> None:
    net = build(name, shape, 7, width=SMALL)
    for train in (False, True):
        logits = net.apply(net.init(stream()), inputs(shape, 2), train)
        assert logits.shape == (2, 7)
        assert logits.isfinite().all()


@pytest.mark.parametrize("norm", ["batch", "group", "none"])
@pytest.mark.parametrize("name", ["resnet9", "resnet18", "moon-resnet50", "wrn28-2"])
def test_one_channel_is_enough(name: str, norm: Norm) -> None:
    net = build(name, GREY, 10, norm, 0.001)
    assert net.apply(net.init(stream()), inputs(GREY), train=True).isfinite().all()


# What the papers say about the layers.


@pytest.mark.parametrize(
    "name, layer, count",
    [
        ("fedsiam-cnn", nn.BatchNorm2d, 3),
        ("resnet18", nn.GroupNorm, 20),
        ("moon-resnet50", nn.BatchNorm2d, 53),
        ("wrn28-2", nn.BatchNorm2d, 25),
        *((name, nn.Identity, 0) for name in ("lstm", "linear")),
        *((name, nn.BatchNorm2d, 0) for name in ("cnn", "lenet", "resnet9", "alexnet", "moon-cnn")),
        *((name, nn.GroupNorm, 0) for name in ("fedmix-vgg", "emnist-cnn", "resnet9")),
    ],
)
def test_normalisation_is_the_papers_by_default(name: str, layer: type[nn.Module], count: int) -> None:
    assert len(kinds(build(name, shape_of(name), 10, width=SMALL), layer)) == count


@pytest.mark.parametrize("name", [name for name in NETS if len(NETS[name].norms) > 1])
def test_normalisation_is_a_choice(name: str) -> None:
    def layers(norm: Norm, kind: type[nn.Module]) -> int:
        net = build(name, GREY, 10, norm, SMALL)
        return sum(isinstance(layer, kind) for layer in net.module(net.init(stream())).modules())

    batch = nn.modules.batchnorm._BatchNorm
    assert layers("group", nn.GroupNorm) == layers("batch", batch) > 1
    assert layers("group", batch) == layers("batch", nn.GroupNorm) == layers("none", batch) == 0


def test_an_mlp_takes_rows_and_single_rows_in_training() -> None:
    net = build("mlp", (30,), 2, "batch")
    assert build("mlp", (30,), 2).size() == 31 * 128 + 129 * 128 + 129 * 2 == 20_738
    weights = net.init(stream())
    assert net.features(weights, torch.randn(5, 30)).shape == (5, 128)
    for rows in (1, 5):
        assert net.apply(weights, torch.randn(rows, 30), train=True).isfinite().all()


def test_resnet9_has_biases_where_it_has_normalisation() -> None:
    assert biases(build("resnet9", COLOUR, 10, width=SMALL)) == []
    assert len(biases(build("resnet9", COLOUR, 10, "group", SMALL))) == 8 + 1
    assert biases(build("resnet18", COLOUR, 10, width=SMALL)) == ["fc.bias"]


def test_group_norm_has_32_groups() -> None:
    layers = kinds(build("resnet18", COLOUR, 10), nn.GroupNorm)
    assert {layer.num_groups for layer in layers} == {32}


@pytest.mark.parametrize("name, features", [("moon-cnn", 256), ("lenet", 84), ("lstm", 256)])
def test_features_have_the_papers_size(name: str, features: int) -> None:
    net = build(name, shape_of(name), 10)
    assert net.features(net.init(stream()), inputs(shape_of(name), 1)).shape == (1, features)


def test_the_projection_may_be_negative_and_other_features_are_not() -> None:
    def lowest(name: str) -> float:
        net = build(name, GREY, 10, width=0.2)
        return float(net.features(net.init(stream()), inputs(GREY)).min())

    assert lowest("moon-cnn") < 0
    assert lowest("moon-resnet50") < 0
    assert min(lowest(name) for name in IMAGES if name != "linear" and not name.startswith("moon")) == 0


def test_resnet9_adds_its_pairs_to_what_goes_around_them() -> None:
    net = build("resnet9", COLOUR, 10, width=SMALL)
    weights, x = net.init(stream()), inputs(COLOUR)
    silent = {k: torch.zeros_like(w) if k.startswith("pair") else w for k, w in weights.items()}
    assert not torch.equal(net.apply(weights, x), net.apply(silent, x))
    assert net.apply(silent, x).abs().sum() > 0


@pytest.mark.parametrize("name, last", [("resnet18", "layers.3"), ("moon-resnet50", "layers.6")])
def test_a_block_adds_its_layers_to_its_input(name: str, last: str) -> None:
    net = build(name, COLOUR, 10, "none", 0.25)
    block = net.module(net.init(stream())).get_submodule("blocks.1")
    block.get_parameter(f"{last}.weight").data.zero_()
    x = torch.randn(2, 16 if name == "resnet18" else 64, 5, 5, generator=stream("x"))
    assert torch.equal(block(x), torch.relu(x))


def test_a_wide_block_begins_its_shortcut_after_the_activation_where_the_shortcut_has_weights() -> None:
    module = build("wrn28-2", COLOUR, 10, "none").module(build("wrn28-2", COLOUR, 10, "none").init(stream()))
    first, second = module.get_submodule("blocks.0"), module.get_submodule("blocks.1")
    for block in (first, second):
        block.get_parameter("conv2.weight").data.zero_()
    x, y = (torch.randn(2, n, 5, 5, generator=stream("x")) for n in (16, 32))
    weight = first.get_parameter("shortcut.1.weight")
    assert torch.allclose(first(x), nn.functional.conv2d(torch.relu(x), weight), atol=1e-6)
    assert torch.equal(second(y), y)


@pytest.mark.parametrize("side", [7, 8])
def test_a_shortcut_of_stride_two_is_a_convolution_of_stride_two(side: int) -> None:
    net = build("resnet18", COLOUR, 10, "none", 0.25)
    shortcut = net.module(net.init(stream())).get_submodule("blocks.2.shortcut")
    x = torch.randn(2, 16, side, side, generator=stream("x"))
    strided = nn.functional.conv2d(x, shortcut.get_parameter("1.weight"), stride=2)
    assert torch.allclose(shortcut(x), strided, atol=1e-6)


# Starting weights.


def spread(name: str, norm: Norm) -> float:
    """Standard deviation over inputs of the logits at the start, on images that differ."""
    net = build(name, COLOUR, 10, norm, 0.25)
    return float(net.apply(net.init(stream()), inputs(COLOUR, 16)).std(0).mean())


@pytest.mark.parametrize("name", ["resnet9", "resnet18", "wrn28-2", "moon-resnet50", "fedmix-vgg", "fedsiam-cnn"])
def test_without_normalisation_the_signal_reaches_the_end(name: str) -> None:
    assert 0.003 < spread(name, "none") < 1.0  # PyTorch's own start gives 0.00006 to 0.0017


def test_fedmatch_starts_with_variance_one_over_fan_in() -> None:
    weight = build("resnet9", COLOUR, 10, width=0.5).init(stream())["pair2.0.0.weight"]
    fan_in = weight[0].numel()
    assert float(weight.std()) == pytest.approx(1 / math.sqrt(fan_in), rel=0.01)
    assert float(weight.abs().max()) <= 2 / (0.8796 * math.sqrt(fan_in))


def test_moon_starts_convolutions_with_variance_two_over_fan_out() -> None:
    weights = build("moon-resnet50", COLOUR, 10, width=0.25).init(stream())
    weight = weights["blocks.15.layers.3.weight"]  # 3×3, as many channels out as in
    assert float(weight.std()) == pytest.approx(math.sqrt(2 / weight[0].numel()), rel=0.01)


# Text.


def test_the_next_character_depends_on_the_order_of_all_before() -> None:
    net = build("lstm", LINE, 10, width=SMALL)
    weights, x = net.init(stream()), inputs(LINE, 1)
    other = x.clone()
    other[0, 0] = (x[0, 0] + 1) % 10
    assert not torch.equal(net.apply(weights, x), net.apply(weights, other))
    assert not torch.equal(net.apply(weights, x), net.apply(weights, x.flip(1)))


def reference_lstm(weights: dict[str, Tensor], layer: int, xs: Tensor) -> Tensor:
    """The equations of one layer; (length, n, inputs) -> (length, n, hidden)."""
    w = {k: weights[f"lstm.{k}_l{layer}"] for k in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")}
    h = c = torch.zeros(xs.shape[1], w["weight_hh"].shape[1])
    outputs = []
    for x in xs:
        gates = x @ w["weight_ih"].T + w["bias_ih"] + h @ w["weight_hh"].T + w["bias_hh"]
        i, f, g, o = gates.chunk(4, dim=1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        outputs.append(h)
    return torch.stack(outputs)


def test_the_lstm_computes_its_equations_with_the_weights_it_is_given() -> None:
    net = build("lstm", LINE, 10, width=SMALL)
    x = inputs(LINE)
    for use in ("a", "b", "a"):
        weights = net.init(stream(use))
        embedded = weights["embedding.weight"][x.T]
        h = reference_lstm(weights, 1, reference_lstm(weights, 0, embedded))[-1]
        expected = h @ weights["fc.weight"].T + weights["fc.bias"]
        assert torch.allclose(net.apply(weights, x), expected, atol=1e-6)


@pytest.mark.parametrize(
    "name, most", [("resnet18", 1.9e9), ("resnet9", 1.5e9), ("wrn28-2", 1.2e9), ("moon-resnet50", 4.5e9)]
)
def test_residual_networks_have_a_stem_for_large_images(name: str, most: float) -> None:
    """ImageNet's ResNet-18 takes 1.8 GMAC at 224 pixels; without the stem ours took 27."""
    net = build(name, (3, 224, 224), 10)
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        weights = {name: value.to("meta") for name, value in net.init(stream()).items()}
        net.apply(weights, torch.empty(1, 3, 224, 224))
    assert counter.get_total_flops() / 2 < most
    assert build(name, (3, 128, 128), 10).size() != net.size()


@pytest.mark.parametrize("name", ["alexnet", "fedsiam-cnn", "fedmix-vgg", "emnist-cnn"])
def test_networks_that_explode_with_the_size_of_images_are_refused(name: str) -> None:
    with refused("nets.images-too-large"):
        build(name, (3, 224, 224), 10)
