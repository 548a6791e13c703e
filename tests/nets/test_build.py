"""Names, widths and refusals: what a user writes, and what cannot be built."""

from pathlib import Path

import pytest
import torch
from torch import nn

from tacit.data.inputs import CharacterInputs, ImageInputs, VectorInputs
from tacit.federation import Inputs
from tacit.nets import NETS, build
from tests.nets.inputs import COLOUR, GREY, LINE, inputs, stream
from tests.refusals import refused


def groups(channels: int) -> int:
    """Groups of the first layer of a small CNN with that many channels."""
    net = build("cnn", GREY, 10, "group", channels / 10)
    layer = next(layer for layer in net.module(net.init(stream())).modules() if isinstance(layer, nn.GroupNorm))
    assert layer.num_channels == channels
    return layer.num_groups


@pytest.mark.parametrize(
    "channels, expected", [(64, 32), (32, 16), (48, 16), (24, 8), (20, 4), (10, 2), (9, 1), (2, 1), (1, 1)]
)
def test_group_norm_takes_the_most_groups_with_two_channels_or_more(channels: int, expected: int) -> None:
    assert groups(channels) == expected


def test_width_is_a_factor_on_the_channels() -> None:
    weights = build("lenet", GREY, 10, width=0.5).init(stream())
    assert weights["conv1.weight"].shape == (3, 1, 5, 5)
    assert weights["conv2.weight"].shape == (8, 3, 5, 5)
    assert weights["fc1.weight"].shape == (60, 8 * 4 * 4)
    assert weights["fc2.weight"].shape == (42, 60)
    assert weights["fc3.weight"].shape == (10, 42)
    assert build("cnn", GREY, 10, width=0.01).init(stream())["conv1.weight"].shape == (1, 1, 5, 5)


@pytest.mark.parametrize("name", [name for name in NETS if name not in ("linear", "mlp")])
def test_half_the_width_is_about_a_quarter_of_the_parameters(name: str) -> None:
    shape = LINE if name == "lstm" else COLOUR
    whole, half = build(name, shape, 10, width=0.5).size(), build(name, shape, 10, width=0.25).size()
    assert 0.2 < half / whole < 0.36


@pytest.mark.parametrize(
    "name, enough",
    [("cnn", 16), ("lenet", 16), ("moon-cnn", 16), ("alexnet", 19), ("emnist-cnn", 6)]
    + [(name, 8) for name in ("fedsiam-cnn", "fedmix-vgg", "resnet9")],
)
def test_images_that_are_too_small_are_refused_with_a_remedy(name: str, enough: int) -> None:
    net = build(name, (1, enough, enough), 10, width=0.1)
    assert net.apply(net.init(stream()), inputs((1, enough, enough))).shape == (5, 10)
    for shape in ((1, enough, enough - 1), (1, 1, 1)):
        with refused("nets.inputs-do-not-fit") as caught:
            build(name, shape, 10)
        assert (
            caught.error.problem
            == f"the network '{name}' cannot take inputs of shape {shape}: the images are too small"
        )


IMAGES = ImageInputs(GREY, (0.5,), (0.5,))
TEXT = CharacterInputs(LINE, ("a", "b"))
VECTORS = VectorInputs(("age", "height"), (0.0, 0.0), (1.0, 1.0))


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("given", [IMAGES, TEXT, VECTORS], ids=["images", "text", "vectors"])
def test_networks_refuse_kinds_of_inputs_they_do_not_read(name: str, given: Inputs) -> None:
    if given.kind in NETS[name].reads:
        build(name, given.shape, 10, width=0.1, inputs=given)
        return
    with refused("nets.wrong-inputs") as caught:
        build(name, given.shape, 10, inputs=given)
    assert caught.error.remedy == f"use --net {given.suggested_net}"
    assert given.kind in NETS[given.suggested_net].reads


@pytest.mark.parametrize("name, shape", [("linear", GREY), ("lstm", LINE)])
def test_normalisation_is_refused_where_it_has_no_place(name: str, shape: tuple[int, ...]) -> None:
    build(name, shape, 10, "none")
    for norm in ("batch", "group"):
        with refused("nets.no-normalisation"):
            build(name, shape, 10, norm)


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
    assert not net.has_features
    with refused("user.no-such-name"):
        build("my_nets_of_this_test:large", GREY, 7)
    with refused("user.no-module"):
        build("no_such_module:small", GREY, 7)


def test_a_network_of_the_user_has_features_by_two_methods(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_steps_of_this_test.py").write_text(
        "from torch import nn\n\n"
        "class Half(nn.Module):\n"
        "    def __init__(self, shape, classes):\n"
        "        super().__init__()\n"
        "        self.features, self.last = nn.Flatten(), nn.Linear(784, classes)\n"
        "    def forward(self, x):\n"
        "        return self.last(self.features(x))\n\n"
        "class Whole(Half):\n"
        "    def classify(self, z):\n"
        "        return self.last(z)\n",
        encoding="utf-8",
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert not build("my_steps_of_this_test:Half", GREY, 7).has_features
    net, x = build("my_steps_of_this_test:Whole", GREY, 7), inputs(GREY)
    weights = net.init(stream())
    features, logits = net.features_and_logits(weights, x)
    assert torch.equal(features, x.flatten(1))
    assert torch.equal(logits, net.apply(weights, x))


OWN = """
import torch
from torch import nn

def fitting(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Dropout(), nn.Linear(256, classes))

def narrow(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(7, 3))

def few(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(256, 3))

def maps(shape, classes):
    return nn.Conv2d(1, classes, 3)

class Pair(nn.Sequential):
    def __init__(self, shape, classes):
        super().__init__(nn.Flatten(), nn.Linear(256, classes))
    def forward(self, x):
        return super().forward(x), x

def counting(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(256, classes), nn.BatchNorm1d(classes, momentum=None))

def reader(shape, classes):
    return nn.Sequential(nn.Embedding(classes, 4), nn.Flatten(), nn.Linear(4 * shape[0], classes))

class Noisy(nn.Sequential):
    def __init__(self, shape, classes):
        super().__init__(nn.Flatten(), nn.Linear(256, classes))
    def forward(self, x):
        return super().forward(x + torch.randn(1))
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module with networks of a user's own."""
    (tmp_path / "own_nets_of_this_test.py").write_text(OWN, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    return "own_nets_of_this_test"


@pytest.mark.parametrize(
    "name, code, says",
    [
        ("narrow", "nets.inputs-do-not-fit", "inputs of shape (1, 16, 16): mat1 and mat2"),
        ("few", "nets.no-logits", "returns (1, 3) for one input of shape (1, 16, 16)"),
        ("maps", "nets.no-logits", "returns (1, 10, 14, 14) for one input"),
        ("Pair", "nets.no-logits", "returns a tuple for one input"),
        ("counting", "nets.batchnorm-without-momentum", "momentum=None"),
    ],
)
def test_a_users_network_is_tried_before_the_run(own: str, name: str, code: str, says: str) -> None:
    build(f"{own}:fitting", (1, 16, 16), 10)
    with refused(code) as caught:
        build(f"{own}:{name}", (1, 16, 16), 10)
    assert says in caught.error.problem


def test_a_network_of_the_user_that_reads_text_is_tried_with_text(own: str) -> None:
    build(f"{own}:reader", LINE, 10, inputs=TEXT)
    with refused("nets.inputs-do-not-fit"):
        build(f"{own}:fitting", LINE, 10, inputs=TEXT)


def test_trying_a_network_leaves_the_global_generator_alone(own: str) -> None:
    before = torch.get_rng_state()
    build(f"{own}:Noisy", (1, 16, 16), 10)
    assert torch.equal(torch.get_rng_state(), before)


def test_an_unknown_name_is_refused_with_the_closest() -> None:
    with refused("names.unknown-network") as caught:
        build("lennet", GREY, 10)
    assert caught.error.remedy == "did you mean 'lenet'?"


@pytest.mark.parametrize("choice", [{"width": 2.0}, {"norm": "batch"}, {"norm": "none"}])
def test_choices_of_ours_are_refused_for_a_network_of_the_user(choice: dict[str, object]) -> None:
    with refused("nets.settings-of-user-net"):
        build("torch.nn:Linear", (3,), 2, **choice)  # type: ignore[arg-type]
