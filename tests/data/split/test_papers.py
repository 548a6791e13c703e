"""The papers' splits have the papers' counts, by the real class counts and with the real files."""

import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tacit.data.split.apportion import Indices
from tacit.data.split.config import DataConfig
from tacit.data.split.papers import SPLITS, completed, describe
from tacit.data.split.partition import heterogeneity
from tacit.data.split.split import Split, class_counts, draw_split
from tacit.random import Streams
from tacit.runs.build import build_data
from tacit.runs.config import dumps, from_options, make
from tests.data import real
from tests.data.class_counts import CLASS_COUNTS, labels_of
from tests.refusals import refused


def build(name: str, **more: Any) -> tuple[DataConfig, Split, Indices, Indices]:
    """A named split with its (clients, classes) counts of labeled and of unlabeled samples."""
    data = DataConfig(**completed({"split": name} | more))
    y, classes = labels_of(data)
    result = draw_split(y, classes, data, Streams(0))
    labeled, unlabeled = class_counts(y, classes, result)
    return data, result, labeled[:, :-1], unlabeled[:, :-1]


@pytest.mark.parametrize("name", [name for name, of in SPLITS.items() if of["name"] in CLASS_COUNTS])
def test_every_split_can_be_built(name: str) -> None:
    data, result, labeled, unlabeled = build(name)
    everywhere = np.concatenate([*result.clients, result.server, result.validation, result.test])
    assert len(np.unique(everywhere)) == len(everywhere)
    total = sum(len(part) for part in result.clients) + len(result.server)
    sizes = CLASS_COUNTS[data.name]
    there = sum(sizes[0]) + (sum(sizes[1]) if data.test else 0) - len(result.test) - len(result.validation)
    assert total == (data.samples or there)
    assert (labeled.sum(axis=1) + unlabeled.sum(axis=1) > 0).all()


@pytest.mark.parametrize("name", ["fedmatch-batch-iid", "fedmatch-batch-noniid"])
def test_fedmatch_batch_has_5_labels_per_class_at_each_client(name: str) -> None:
    _, result, labeled, unlabeled = build(name)
    assert (len(result.test), len(result.validation)) == (3000, 3000)
    assert sum(map(len, result.clients)) == 54_000
    assert labeled.shape == (100, 10)
    assert (labeled == 5).all()
    assert (unlabeled.sum(axis=1) == 490).all()
    assert ((unlabeled == 49).all()) == (name == "fedmatch-batch-iid")


def test_fedmatch_noniid_clients_have_their_main_classes_in_turn() -> None:
    _, _, _, unlabeled = build("fedmatch-batch-noniid")
    assert (unlabeled.argmax(axis=1) == np.arange(100) % 10).all()
    assert (unlabeled.max(axis=1) == 245).all()


@pytest.mark.parametrize("kind", ["iid", "noniid"])
def test_fedmatch_batch_with_labels_at_the_server(kind: str) -> None:
    _, result, labeled, unlabeled = build(f"fedmatch-batch-{kind}-server")
    assert len(result.server) == 5000
    assert not labeled.any()
    assert (unlabeled.sum(axis=1) == 490).all()


def test_fedmatch_as_released_has_other_sizes() -> None:
    _, result, labeled, unlabeled = build("fedmatch-batch-iid-released")
    assert (len(result.test), len(result.validation), sum(map(len, result.clients))) == (2000, 2000, 56_000)
    assert (labeled == 5).all()
    assert (unlabeled == 51).all()
    _, result, labeled, unlabeled = build("fedmatch-batch-noniid-server-released")
    assert len(result.server) == 1000
    assert (unlabeled.sum(axis=1) == 550).all()


def test_fedmatch_streaming_arrives_in_ten_steps() -> None:
    _, result, labeled, unlabeled = build("fedmatch-streaming")
    assert (len(result.test), len(result.validation)) == (3500, 3500)
    assert (labeled == 5).all()
    assert labeled.shape == (10, 10)
    assert unlabeled.sum() == 62_500  # the paper's 62,000 would be 10 labels per class
    assert (unlabeled.sum(axis=1) == 6250).all()
    arrival = result.arrival
    assert arrival is not None
    assert (arrival.steps, arrival.rounds, arrival.keep) == (10, 10, False)
    first = arrival.step.numpy()[result.clients[0]]
    assert np.bincount(first[first >= 0]).tolist() == [625] * 10
    _, at_server, labeled, unlabeled = build("fedmatch-streaming-server")
    assert len(at_server.server) == 500
    assert not labeled.any()


def test_fedseal_fashion_mnist_has_the_papers_sizes() -> None:
    _, result, _, unlabeled = build("fedseal-fmnist")
    assert (len(result.server), len(result.validation), len(result.test)) == (500, 200, 3000)
    assert (unlabeled == 120).all()
    _, result, _, unlabeled = build("fedseal-fmnist-noniid")
    assert (unlabeled.sum(axis=1) == 1200).all()
    assert heterogeneity(unlabeled) > 0.6


@pytest.mark.parametrize("name", ["fedseal-cifar", "fedseal-cifar-noniid"])
def test_fedseal_cifar_is_fedmatchs_split(name: str) -> None:
    data, result, _, unlabeled = build(name)
    assert SPLITS[name] == SPLITS[f"fedmatch-batch-{'noniid' if 'noniid' in name else 'iid'}-server"]
    assert data.normalise == "unit"
    assert (len(result.server), len(result.validation), len(result.test)) == (5000, 3000, 3000)
    assert (unlabeled.sum(axis=1) == 490).all()


def test_fedseal_svhn_has_490_samples_per_client() -> None:
    _, result, _, unlabeled = build("fedseal-svhn")
    assert len(result.server) == 1000
    assert (unlabeled.sum(axis=1) == 490).all()


@pytest.mark.parametrize("name, each", [("mnist", 600), ("cifar10", 500)])
@pytest.mark.parametrize("rate", [0.1, 0.15, 0.2])
def test_fedsiam_labels_at_the_clients_have_the_papers_rates_and_classes(name: str, each: int, rate: float) -> None:
    for kind in ("iid", "1", "2", "3"):
        _, _, labeled, unlabeled = build(f"fedsiam-{name}-{kind}", label_fraction=rate)
        sizes = (labeled + unlabeled).sum(axis=1)
        assert np.abs(sizes - each).max() <= (120 if kind == "1" and name == "mnist" else 1)  # MNIST's classes differ
        assert labeled.sum() == pytest.approx(rate * 100 * each, abs=60)
        classes = (labeled > 0).sum(axis=1), (unlabeled > 0).sum(axis=1)
        assert (classes[0] == 2).all() == (kind in "12")
        assert (classes[1] == 2).all() == (kind == "1")


def test_a_label_fraction_is_rounded_at_each_client() -> None:
    _, _, labeled, unlabeled = build("fedsiam-mnist-1")
    sizes = (labeled + unlabeled).sum(axis=1)
    assert labeled.sum(axis=1).tolist() == np.rint(0.1 * sizes).tolist()
    assert labeled.sum() == 5992  # as docs/data.md says


def test_fedsiam_3_at_10_percent_gives_10_clients_most_labels() -> None:
    _, _, labeled, _ = build("fedsiam-cifar10-3")
    assert sorted(labeled.sum(axis=1).tolist()) == [25] * 90 + [275] * 10


@pytest.mark.parametrize("rate, at_server", [(0.01, 500), (0.1, 5000)])
def test_fedsiam_labels_at_the_server_are_a_fraction_of_all(rate: float, at_server: int) -> None:
    _, result, labeled, unlabeled = build("fedsiam-cifar10-server-noniid", label_fraction=rate)
    assert len(result.server) == at_server
    assert not labeled.any()
    assert ((unlabeled > 0).sum(axis=1) == 2).all()
    assert (unlabeled.sum(axis=1) == (50_000 - at_server) // 100).all()


@pytest.mark.parametrize("name, labels, main", [("ssfl-cifar10", 1000, 2254), ("ssfl-emnist", 4700, 949)])
def test_ssfl_has_r_04_and_a_main_class_per_client(name: str, labels: int, main: int) -> None:
    _, result, _, unlabeled = build(name)
    assert len(result.server) == labels
    assert heterogeneity(unlabeled) == pytest.approx(0.4, abs=0.01)
    # 0.4 of 4,900 and a tenth of the rest; 0.4 of 2,300 and a forty-seventh of the rest.
    assert np.abs(unlabeled.max(axis=1) - main).max() <= 1


def test_ssfl_svhn_has_a_main_class_per_client() -> None:
    _, result, _, unlabeled = build("ssfl-svhn")
    assert len(result.server) == 1000
    assert heterogeneity(unlabeled) == pytest.approx(0.4, abs=0.01)


def test_moon_and_fedmix_show_all_labels() -> None:
    _, _, labeled, unlabeled = build("moon-cifar10")
    assert labeled.sum() == 50_000
    assert not unlabeled.any()
    assert labeled.sum(axis=1).min() >= 10
    _, _, labeled, _ = build("fedmix-cifar10")
    assert ((labeled > 0).sum(axis=1) == 2).all()
    assert labeled.shape == (60, 10)
    _, _, labeled, _ = build("fedmix-cifar100")
    assert ((labeled > 0).sum(axis=1) == 20).all()
    assert labeled.shape == (100, 100)


def test_different_splits_have_different_descriptions() -> None:
    """Except FedSEAL's splits of CIFAR-10, which are FedMatch's."""
    different = {frozenset(of.items()) for of in SPLITS.values()}
    assert len({describe(name) for name in SPLITS}) == len(different) == len(SPLITS) - 2
    assert describe("fedseal-fmnist").endswith("50 per class, 12,500 training, 200 validation, 3,000 test")
    assert "3,500 validation, 3,500 test, 10 steps" in describe("fedmatch-streaming")


def test_an_option_overrides_the_split() -> None:
    given = from_options({"split": "fedmatch-batch-iid", "clients": 50, "n_labels": 700}).data
    assert (given.clients, given.per_class, given.n_labels, given.name) == (50, None, 700, "cifar10")


def test_a_split_is_the_same_after_writing_and_reading() -> None:
    config = from_options({"split": "fedmatch-batch-iid", "label_fraction": 0.1, "labels": "client"})
    assert make(tomllib.loads(dumps(config))) == config


def test_an_unknown_split_is_refused() -> None:
    with refused("names.unknown-split"):
        completed({"split": "fedmatch"})


HERE = {"mnist": "MNIST", "fashion-mnist": "FashionMNIST", "shakespeare": "shakespeare"}


def real_files(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "cifar10":
        real.cifar10(monkeypatch)
    elif name in HERE:
        real.folder_with(HERE[name], monkeypatch)
    else:
        pytest.skip(f"{name} is not on this machine")


@pytest.mark.data
@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "cifar10"])
def test_class_counts_match_the_real_files(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real_files(name, monkeypatch)
    source, _ = build_data(from_options({"data": name, "labels": "all"}))
    train, test = CLASS_COUNTS[name]
    assert np.bincount(source.y.numpy()).tolist() == train
    assert np.bincount(source.y_test.numpy()).tolist() == test


@pytest.mark.data
@pytest.mark.parametrize("name", [name for name, of in SPLITS.items() if of["name"] in {*HERE, "cifar10"}])
def test_every_split_can_be_built_from_the_real_files(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real_files(SPLITS[name]["name"], monkeypatch)
    config = from_options({"split": name})
    source, result = build_data(config)
    assert len(result.clients) == config.data.clients
    everywhere = np.concatenate([*result.clients, result.server, result.validation, result.test])
    assert len(np.unique(everywhere)) == len(everywhere) <= len(source.y)
    if source.groups is not None:
        assert all(len(np.unique(source.groups.numpy()[part])) == 1 for part in result.clients)


def test_docs_name_every_split_and_partition() -> None:
    page = (Path(__file__).parents[3] / "docs" / "data.md").read_text(encoding="utf-8")
    for word in (
        *{of["partition"].partition(":")[0] for of in SPLITS.values()},
        *(name.split("-")[0] for name in SPLITS),
    ):
        assert f"`{word}" in page or f"--split {word}" in page, word
