"""What trains: the head, the last blocks, low-rank changes; and what then travels."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tacit.methods.fedavg import FedAvg
from tacit.nets import Net, Start, build
from tacit.nets.lora import Lora, add_lora
from tacit.nets.start import Trains, blocks_of, head_of, restrict
from tacit.objectives import FixMatch, Supervised
from tacit.params import clone
from tacit.runs import config as configs
from tests.refusals import refused
from tests.toys import federation, hide, images, job, play_all, same


def stream(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def net(train: str, name: str = "efficientnet-lite0", **start: Any) -> Net:
    options = {"side": 16} if name == "efficientnet-lite0" else {}
    start = {"trains": Trains.parse(train)} | start
    return build(name, (1, 16, 16), 3, "batch", 0.25, options, start=Start(**start))


@pytest.mark.parametrize(
    "text", ["", "none", "last", "last:0", "last:-1", "lora:", "lora:x", "head:1", "all:2", "last:1.5"]
)
def test_a_wrong_word_for_what_trains_is_refused(text: str) -> None:
    with refused("nets.bad-train"):
        Trains.parse(text)
    if text:
        with refused("nets.bad-train"):
            configs.from_options({"net.train": text})


def test_only_the_head_trains() -> None:
    assert net("head").names == ("fc.weight", "fc.bias")
    assert net("head", "lenet").names == ("fc3.weight", "fc3.bias")
    assert net("head", "resnet18").names == ("fc.weight", "fc.bias")


def test_the_last_blocks_train_without_their_batch_norm() -> None:
    given = net("last:2")
    assert {name.rpartition(".")[0] for name in given.names} == {
        "trunk.16.expand.0",
        "trunk.16.depthwise.0",
        "trunk.16.project.0",
        "trunk.17.0",
        "fc",
    }
    assert given.buffers == ()
    assert {name.split(".")[1] for name in net("last:1", "resnet18").names if name.startswith("blocks")} == {"7"}


def test_more_blocks_than_there_are_is_refused() -> None:
    with refused("nets.too-few-blocks"):
        net("last:19")
    assert len(blocks_of(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)))) == 1


def test_a_network_without_a_linear_head_is_refused() -> None:
    with refused("nets.no-head"):
        restrict(nn.Sequential(nn.Conv2d(1, 3, 3)), Trains("head"))
    assert head_of(nn.Conv2d(1, 3, 3)) is None


def test_a_network_that_trains_in_part_is_in_evaluation_mode_where_it_is_frozen() -> None:
    given, x = net("last:2"), torch.randn(4, 1, 16, 16, generator=stream())
    w = given.init(stream())
    assert torch.equal(given.apply(w, x, train=True), given.apply(w, x))
    assert same(given.frozen_tensors(), net("last:2").frozen_tensors())


def test_a_head_that_starts_at_zero_gives_every_class_the_same_probability() -> None:
    for train in ("all", "head"):
        given = net(train, zero_head=True)
        w = given.init(stream(3))
        assert not given.apply(w, torch.randn(2, 1, 16, 16, generator=stream())).any()


# LoRA.


def test_low_rank_changes_start_at_nothing_and_differ_between_seeds() -> None:
    plain, given = net("head"), net("lora:2")
    x = torch.randn(3, 1, 16, 16, generator=stream())
    one, two = given.init(stream(1)), given.init(stream(2))
    of_a = [name for name in given.names if name.endswith(".a.weight")]
    assert len(of_a) == 15 + 16 + 1  # expanding, projecting and last convolutions
    assert all(not torch.equal(one[name], two[name]) for name in of_a)
    assert not any(one[name].any() for name in given.names if name.endswith(".b.weight"))
    same_head = {name: one[name] for name in plain.names}
    assert torch.allclose(given.apply(one, x), plain.apply(same_head, x), atol=1e-6)


def test_a_low_rank_change_is_the_product_of_its_factors() -> None:
    layer = Lora(nn.Linear(5, 4), 2)
    nn.init.normal_(layer.b.weight)  # type: ignore[arg-type]
    x = torch.randn(3, 5, generator=stream())
    whole = layer.frozen.weight + layer.b.weight @ layer.a.weight  # type: ignore[operator]
    assert torch.allclose(layer(x), nn.functional.linear(x, whole, layer.frozen.bias), atol=1e-6)


def test_a_network_without_a_layer_for_low_rank_changes_is_refused() -> None:
    with refused("nets.nothing-for-lora"):
        restrict(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 3)), Trains("lora", 2))


def test_low_rank_changes_learn_what_those_of_peft_learn() -> None:
    peft = pytest.importorskip("peft", reason="only for this test")
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(3, 6, 1), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 4, 5), nn.ReLU(), nn.Linear(5, 3))
    ours = copy.deepcopy(module).requires_grad_(False)
    add_lora(ours, 2, but=ours[5])
    settings = peft.LoraConfig(r=2, lora_alpha=2, target_modules=["0", "3"], init_lora_weights=True)
    theirs = peft.get_peft_model(copy.deepcopy(module), settings)
    with torch.no_grad():
        for name in ("0", "3"):
            factors = theirs.base_model.model.get_submodule(name)
            ours.get_submodule(name).a.weight.copy_(factors.lora_A["default"].weight)  # type: ignore[operator, union-attr]
    x, y = torch.randn(8, 3, 2, 2, generator=stream()), torch.arange(8) % 3

    def trained(given: nn.Module) -> Tensor:
        steps = torch.optim.SGD([p for p in given.parameters() if p.requires_grad], lr=0.5)
        for _ in range(5):
            steps.zero_grad()
            nn.functional.cross_entropy(given(x), y).backward()
            steps.step()
        out: Tensor = given(x).detach()
        return out

    mine, before = trained(ours), module(x).detach()
    assert torch.allclose(mine, trained(theirs), atol=1e-5)
    assert not torch.allclose(mine, before, atol=1e-3)


# Rounds.


@pytest.mark.parametrize("train", ["all", "last:1", "lora:2", "head"])
def test_what_trains_is_what_travels(train: str) -> None:
    given = net(train)
    data = federation([hide(images(k, 6), 3) for k in range(2)], None, images(8, 6))
    task = job(FedAvg(FixMatch(threshold=0.4)), data, given, rounds=1)
    record = play_all(task).records[0]
    scalars = sum(value.numel() for value in given.init(stream()).values())
    assert 4 * scalars <= record.bytes_up / 2 < 4 * scalars + 120 * (1 + len(given.names))
    assert 4 * scalars <= record.bytes_down / 2 < 4 * scalars + 120 * (1 + len(given.names))


def test_fewer_bytes_travel_the_less_trains() -> None:
    sizes = [net(train).size() for train in ("all", "last:2", "lora:2", "head")]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] == 3 * 320 + 3


def test_frozen_layers_do_not_change_in_training() -> None:
    given = net("lora:2")
    before = clone(given.frozen_tensors())
    task = job(FedAvg(Supervised()), federation([images(k, 6) for k in range(2)]), given, rounds=2)
    trained = play_all(task).state.w
    assert same(given.frozen_tensors(), before)
    assert any(trained[name].any() for name in given.names if name.endswith(".b.weight"))


def test_settings_are_written_and_read_back(tmp_path: Path) -> None:
    config = configs.from_options({"net.train": "last:2", "net.zero_head": True})
    (tmp_path / "c.toml").write_text(configs.dumps(config))
    assert configs.make(configs.read(tmp_path / "c.toml")).net == config.net
