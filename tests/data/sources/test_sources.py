"""Data sets by name: all are found, and the shipped and the real ones are what they say."""

import hashlib
from pathlib import Path

import pytest
import torch

from tacit.data.sources import SOURCES, find, is_path, load
from tacit.runs.registry import sentence
from tests.data.kinds import pictured
from tests.data.real import cifar10, folder_with
from tests.refusals import refused


def test_fashion_small_is_a_balanced_subset() -> None:
    source = load("fashion-small")
    assert source.x.shape == (6000, 1, 28, 28)
    assert source.x.dtype == torch.uint8
    assert source.y.dtype == torch.int64
    assert source.x_test.shape == (1000, 1, 28, 28)
    assert torch.bincount(source.y).tolist() == [600] * 10
    assert torch.bincount(source.y_test).tolist() == [100] * 10
    assert len(source.classes) == 10
    assert not pictured(source).flip
    assert pictured(source).shift == 2
    pixels = source.x.double() / 255
    assert pictured(source).mean == pytest.approx([float(pixels.mean())])
    assert pictured(source).std == pytest.approx([float(pixels.std(correction=0))])


def test_fashion_small_has_no_test_image_in_training() -> None:
    source = load("fashion-small")
    assert not {bytes(image) for image in source.x.numpy()} & {bytes(image) for image in source.x_test.numpy()}


def test_a_wrong_name_is_answered_with_the_closest_one() -> None:
    with refused("names.unknown-data-set") as refusal:
        find("fashion-smal")
    assert refusal.error.remedy.startswith("did you mean 'fashion-small'?")
    with refused("names.unknown-data-set") as refusal:
        find("xyz")
    assert refusal.error.remedy == "give one of `tacit ls datasets`, or a path such as ./xyz"


def test_every_data_set_is_found_and_described() -> None:
    assert set(SOURCES) == {
        "fashion-small", "mnist", "fashion-mnist", "emnist-balanced", "femnist", "svhn", "cifar10", "cifar100",
        "tiny-imagenet", "shakespeare", "covid-radiography", "pathmnist", "dermamnist", "octmnist", "pneumoniamnist",
        "retinamnist", "breastmnist", "bloodmnist", "tissuemnist", "organamnist", "organcmnist", "organsmnist",
    }  # fmt: skip
    for name, loader in SOURCES.items():
        assert sentence(loader).endswith("."), name
        assert "class" in sentence(loader) or name == "shakespeare"


def test_find_reads_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TACIT_DATA", str(tmp_path / "nowhere"))
    for name in (*SOURCES, "no/folder", "none.csv", "none.npz"):
        assert callable(find(name))
    assert not (tmp_path / "nowhere").exists()


def test_paths_and_names_are_distinguished(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("pictures", "mnist"):
        (tmp_path / name).mkdir()
    for path in ("x.npz", "x.csv", "a/b", "./x", "/x", "pictures"):
        assert is_path(path), path
    for name in ("mnist", "cifar10", "unknown", "mnist.zip", ""):
        assert not is_path(name), name


def test_chestmnist_is_refused_for_its_several_labels() -> None:
    with refused("data.several-labels"):
        find("chestmnist")


@pytest.mark.parametrize("name", ["mnist", "cifar10", "pathmnist", "shakespeare", "fashion-small", "mine.npz"])
def test_only_image_files_can_be_scaled(name: str) -> None:
    with refused("data.fixed-size"):
        find(name, 32)
    for scaled in ("tiny-imagenet", "covid-radiography", "a/folder", "a.csv"):
        assert callable(find(scaled, 32))
    with refused("data.bad-size"):
        find("a/folder", 0)


@pytest.mark.parametrize("name", ["arr.npy", "some/arr.npy"])
def test_a_single_array_is_refused(name: str) -> None:
    with refused("data.single-array"):
        find(name)


# The real files, on machines that have them


def digest(image: torch.Tensor) -> str:
    return hashlib.md5(image.numpy().tobytes()).hexdigest()


@pytest.mark.data
@pytest.mark.parametrize(
    "name, folder, first, last",
    [
        ("mnist", "MNIST/raw", "2ce86e4daeeff3a0cdebce6897c784ba", "4cbc26cd65a7520ac820c54476b7c1f8"),
        ("fashion-mnist", "FashionMNIST/raw", "4faf81e309af5194c477affdbefc6116", "0679e37e18345b46f008d686722262e3"),
    ],
)
def test_real_idx_files_are_read(
    monkeypatch: pytest.MonkeyPatch, name: str, folder: str, first: str, last: str
) -> None:
    folder_with(folder, monkeypatch)
    source = load(name)
    assert source.x.shape == (60_000, 1, 28, 28)
    assert source.x_test.shape == (10_000, 1, 28, 28)
    balance = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949] if name == "mnist" else [6000] * 10
    assert torch.bincount(source.y).tolist() == balance
    assert source.y[:5].tolist() == ([5, 0, 4, 1, 9] if name == "mnist" else [9, 0, 0, 3, 0])
    assert digest(source.x[0]) == first
    assert digest(source.x_test[-1]) == last
    assert pictured(source).mean == pytest.approx([0.1307 if name == "mnist" else 0.2860], abs=1e-4)
    assert pictured(source).std == pytest.approx([0.3081 if name == "mnist" else 0.3530], abs=1e-4)


@pytest.mark.data
def test_fashion_small_is_part_of_the_real_set(monkeypatch: pytest.MonkeyPatch) -> None:
    folder_with("FashionMNIST/raw", monkeypatch)
    small, real = load("fashion-small"), load("fashion-mnist")
    label = {bytes(image): int(y) for image, y in zip(real.x.numpy(), real.y, strict=True)}
    assert all(label[bytes(image)] == y for image, y in zip(small.x.numpy(), small.y.tolist(), strict=True))


@pytest.mark.data
def test_real_pneumoniamnist_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    folder_with("medmnist/pneumoniamnist.npz", monkeypatch)
    source = load("pneumoniamnist")
    assert source.x.shape == (4_708 + 524, 1, 28, 28)
    assert torch.bincount(source.y).tolist() == [1349, 3883]
    assert torch.bincount(source.y_test).tolist() == [234, 390]
    assert digest(source.x[0]) == "42b230eb2b3c407265871b79ffde8ce8"
    assert digest(source.x[4_708]) == "be76597436d5b3e687fb8424f284e716"
    assert source.classes == ("normal", "pneumonia")
    assert not pictured(source).flip


@pytest.mark.data
def test_real_shakespeare_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = folder_with("shakespeare/tinyshakespeare_input.txt", monkeypatch)
    source = load("shakespeare")
    assert source.inputs.kind == "text"
    assert source.x.shape == (793_934, 80)
    assert len(source.y_test) == 186_812
    assert len(source.classes) == 64
    assert source.groups is not None
    assert torch.equal(source.groups, source.groups.sort().values)
    assert len(torch.bincount(source.groups)) == 193
    said = "".join(source.classes[code] for code in source.x[0])
    assert said.startswith("Before we proceed any further, hear me speak.\nYou are all resolved rather to die")
    assert said[:45] in (folder / "shakespeare/tinyshakespeare_input.txt").read_text()


@pytest.mark.data
def test_real_cifar10_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    cifar10(monkeypatch)
    source = load("cifar10")
    assert source.x.shape == (50_000, 3, 32, 32)
    assert torch.bincount(source.y).tolist() == [5000] * 10
    assert torch.bincount(source.y_test).tolist() == [1000] * 10
    assert source.y[:5].tolist() == [6, 9, 9, 4, 1]
    assert source.x[0, :, 0, 0].tolist() == [59, 62, 63]
    assert pictured(source).mean == pytest.approx((0.4914, 0.4822, 0.4465), abs=1e-4)
    assert pictured(source).std == pytest.approx((0.2470, 0.2435, 0.2616), abs=1e-4)
