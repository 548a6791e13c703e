"""Unknown classes: samples that nobody labels, that no test has, and whose class the model does not know."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tacit
from tacit.data.federate import federate, pooled
from tacit.data.gather import gathered
from tacit.data.inputs import CharacterInputs
from tacit.data.sources import Source
from tacit.data.split.apportion import Indices
from tacit.data.split.config import DataConfig, check
from tacit.data.split.split import Split, draw_split
from tacit.data.unknown import with_unknown
from tacit.errors import TacitError
from tacit.federation import UNLABELED
from tacit.random import Streams
from tacit.report import history, splits
from tacit.runs.build import build_data, build_job
from tacit.runs.config import Config, from_options
from tacit.runs.experiment import Experiment
from tacit.runs.result.client_evaluation import evaluate_clients
from tests.data.files import pixels, save_image
from tests.data.splits import EVEN, HALF_KNOWN, PLACES, make, source
from tests.engines import farm
from tests.refusals import refused

KNOWN = 3  # of the five classes a to e of `source`; d and e are unknown
PARTITIONS = ["iid", "even", "dirichlet:1", "classes:3", "shards:2", "main-class:0.4", "client-dirichlet:1"]


def split(y: Indices = EVEN, seed: int = 0, **settings: Any) -> Split:
    """A split of samples whose classes from `KNOWN` on are unknown."""
    return draw_split(y, KNOWN, DataConfig(**settings), Streams(seed))


@given(
    y=st.sampled_from([EVEN, HALF_KNOWN]),
    place=st.sampled_from(PLACES),
    partition=st.sampled_from(PARTITIONS),
    draw=st.sampled_from(["nested", "0.1"]),
    validation=st.integers(0, 30),
    test=st.sampled_from([None, 20]),
    seed=st.integers(0, 3),
)
def test_every_sample_is_in_one_place_and_unknown_ones_are_unlabeled_at_clients(
    y: Indices, place: dict[str, Any], partition: str, draw: str, validation: int, test: int | None, seed: int
) -> None:
    if place["labels"] == "some":
        partition = "iid"  # by class, a client that should have labels may hold unknown samples only, which is refused
    settings = {"partition": partition, "draw": draw, "validation": validation, "test": test, "clients": 6, **place}
    result = split(y, seed, **settings)
    unknown = np.flatnonzero(y >= KNOWN)
    held = np.concatenate(result.clients)
    everywhere = np.sort(np.concatenate([held, result.server, result.validation, result.test]))
    if place["labels"] == "all":
        assert np.array_equal(everywhere, np.flatnonzero(y < KNOWN)), "no place for unlabeled samples"
    else:
        assert np.array_equal(everywhere, np.arange(len(y)))
        assert np.isin(unknown, held).all()
    labeled = np.concatenate([result.server, result.validation, result.test, np.flatnonzero(result.labeled)])
    assert not np.isin(unknown, labeled).any()
    assert split(y, seed, **settings).hash() == result.hash()


def test_labels_at_a_client_with_unknown_samples_only_are_refused() -> None:
    settings: dict[str, Any] = {"labels": "some", "labeled_clients": 0.01, "per_class": 1, "clients": 5}
    codes = []
    for seed in range(10):
        try:
            split(seed=seed, partition="classes:1", **settings)
        except TacitError as error:
            codes.append(error.code)
    assert 0 < len(codes) < 10
    assert set(codes) == {"data.no-client-labels"}


def test_a_partition_by_class_deals_unknown_classes_like_any_class() -> None:
    with_two, without = (
        draw_split(EVEN, classes, DataConfig(clients=5, partition="classes:1", labels="server", n_labels=1), Streams(0))
        for classes in (KNOWN, 5)
    )
    held = [set(EVEN[part].tolist()) for part in with_two.clients]
    assert sorted(next(iter(classes)) for classes in held) == [0, 1, 2, 3, 4], "one class each, unknown ones too"
    assert held == [set(EVEN[part].tolist()) for part in without.clients]


def test_labels_of_known_classes_stay_when_others_become_unknown() -> None:
    settings: dict[str, Any] = {"labels": "server", "per_class": 4, "validation": 15, "test": 30}
    after, before = split(**settings), make(**settings)
    assert np.array_equal(after.server, before.server[EVEN[before.server] < KNOWN])
    assert np.bincount(EVEN[after.test]).tolist() == [10, 10, 10], "as many test samples, of fewer classes"


def test_unknown_samples_arrive_in_steps_like_other_unlabeled_ones() -> None:
    result = split(labels="client", per_class=2, stream_steps=4, rounds_per_step=1)
    assert result.arrival is not None
    assert (result.arrival.step.numpy()[EVEN >= KNOWN] >= 0).all()


def test_classes_get_new_numbers_and_keep_their_order() -> None:
    toy = replace(source(np.array([0, 1, 2, 3, 4, -1])), y_test=torch.tensor([0, 1, 4]))
    changed = with_unknown(toy, ("d", "b"))
    assert (changed.classes, changed.unknown) == (("a", "c", "e"), ("b", "d"))
    assert changed.y.tolist() == [0, 3, 1, 4, 2, -1]
    assert [changed.every_class[label] for label in changed.y.tolist()[:-1]] == list("abcde")
    tested = pooled(changed, DataConfig(), Streams(0))
    assert tested.y_test.tolist() == [0, 2]
    assert "1 test samples of unknown classes are left out" in tested.note
    assert with_unknown(toy, 2).unknown == ("d", "e")


@pytest.mark.parametrize("nothing", [None, 0, ()])
def test_without_unknown_classes_nothing_changes(nothing: Any) -> None:
    toy = source(EVEN)
    assert with_unknown(toy, nothing) is toy
    options = {"labels": "server", "per_class": 2}
    plain = from_options(options)
    config = from_options({**options, "data.unknown_classes": nothing})
    assert config.fingerprints() == plain.fingerprints()


def test_a_test_set_drawn_from_all_samples_leaves_unknown_ones_to_the_clients() -> None:
    toy = replace(with_unknown(source(EVEN), 2), y_test=torch.tensor([0, 3, 4]))
    joined = pooled(toy, DataConfig(test=20), Streams(0))
    assert len(joined.y) == 503, "the source's own test samples too"


def test_only_the_simulator_sees_unknown_classes() -> None:
    toy = with_unknown(source(EVEN), 2)
    settings = DataConfig(labels="client", per_class=2, clients=4)
    built = federate(toy, draw_split(toy.y.numpy(), KNOWN, settings, Streams(0)), settings)
    assert (built.classes, built.unknown) == (("a", "b", "c"), ("d", "e"))
    assert int(built.pool.y.max()) == KNOWN - 1
    seen, true = built.client(0, 0), built.true_labels(0, 0)
    assert true is not None
    assert (seen.y[true >= KNOWN] == UNLABELED).all()
    assert (true >= KNOWN).any()


def test_the_bound_of_all_labels_has_no_unknown_samples_and_the_pooled_one_has() -> None:
    toy = with_unknown(source(EVEN), 2)
    settings = DataConfig(labels="client", per_class=2, clients=4)
    built = federate(toy, draw_split(toy.y.numpy(), KNOWN, settings, Streams(0)), settings)
    everything = gathered(built, "everything").server.labeled
    assert everything.y.bincount().tolist() == [100] * KNOWN
    assert len(gathered(built, "unlabeled").server.labeled) == len(EVEN)


def configured(folder: Path, **settings: Any) -> Config:
    given = {"data": str(farm.write_images(folder / "images.npz")), "clients": 4, "labels": "server", "per_class": 2}
    return from_options(given | {"method": "fedavg+fixmatch", "net": "cnn"} | settings)


@pytest.mark.parametrize(
    "unknown, code",
    [
        (3, "data.no-known-class"),
        (7, "data.no-known-class"),
        (2, "data.one-known-class"),
        (("0", "1"), "data.one-known-class"),
        (("0", "1", "2"), "data.no-known-class"),
        ("nothing", "names.unknown-class"),
        (-1, "settings.impossible-value"),
        (True, "settings.impossible-value"),
    ],
)
def test_too_few_known_classes_and_wrong_names_are_refused(tmp_path: Path, unknown: Any, code: str) -> None:
    with refused(code) as refusal:
        build_data(configured(tmp_path, **{"data.unknown_classes": unknown}))
    assert refusal.error.remedy
    assert "\n" not in str(refusal.error)


def test_sites_and_text_have_no_unknown_classes() -> None:
    with refused("data.classes-fixed-at-sites"):
        check(DataConfig(partition="sites", unknown_classes=1))
    text = Source("plays", *(torch.zeros(0),) * 4, ("a", "b", "c"), CharacterInputs((4,), ("a", "b", "c")))
    with refused("data.unknown-characters"):
        with_unknown(text, 1)


def test_names_may_come_as_one_word_and_may_be_numbers(tmp_path: Path) -> None:
    for names in ("1", ["1"], ("1",)):
        config = configured(tmp_path, **{"data.unknown_classes": names})
        assert config.data.unknown_classes == ("1",)
        assert build_data(config)[0].unknown == ("1",)


def test_a_run_has_a_model_of_the_known_classes_and_tells_how_many_unknown_samples_it_took(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"data.unknown_classes": ["1"], "workers": 0, "rounds": 2, "train.steps": 2}
    config = configured(tmp_path, **settings, **{"objective.threshold": 0.0})
    job, _ = build_job(config)
    assert job.federation.classes == ("0", "2")
    assert job.net.apply(job.net.init(torch.Generator()), job.federation.inputs.blank()).shape == (1, 2)
    experiment = Experiment.create(config, tmp_path / "run")
    assert len(list(experiment.rounds())) == 2
    metrics = experiment.result().history[-1]["metrics"]
    assert 0 < metrics["pseudo_unknown"]["mean"] < 1
    assert metrics["pseudo_accuracy"]["mean"] <= 1 - metrics["pseudo_unknown"]["mean"], "a wrong label in any case"
    assert tacit.load(tmp_path / "run").classes == ("0", "2")
    assert evaluate_clients(experiment).classes == ("0", "2")
    counts = json.loads((tmp_path / "run" / "split.json").read_text())["counts"]
    assert (counts["classes"], counts["unknown"]) == (["0", "2", "1"], ["1"])
    (shown,) = splits.distinct([history.load(tmp_path / "run")])
    assert shown.holdings.names == ["0", "2", "(1)"]


def test_a_folder_may_have_class_folders_that_are_unknown(tmp_path: Path) -> None:
    for number, name in enumerate(("cat", "dog", "fox", "owl")):
        for image in range(10):
            save_image(tmp_path / "labeled" / name / f"{image}.png", pixels(28, 28, seed=10 * number + image))
    config = from_options(
        {"data": str(tmp_path), "labels": "server", "per_class": 2, "clients": 2, "data.unknown_classes": "owl,dog"}
    )
    found, result = build_data(config)
    assert (found.classes, found.unknown) == (("cat", "fox"), ("dog", "owl"))
    assert set(found.y_test.tolist()) == {0, 1}
    held = found.y.numpy()[np.concatenate(result.clients)]
    assert np.bincount(held).tolist() == [6, 6, 8, 8], "of ten each, two are for testing and two at the server"


def test_groups_stay_whole_with_unknown_classes() -> None:
    groups = np.repeat(np.arange(50), 10)
    settings = DataConfig(labels="client", per_class=1, clients=4, partition="dirichlet:0.5", validation=20)
    result = draw_split(EVEN, KNOWN, settings, Streams(0), groups, whole_groups=True)
    owners = [set(groups[part].tolist()) for part in result.clients]
    assert sum(map(len, owners)) == len(set.union(*owners))
    assert (EVEN[result.validation] < KNOWN).all()


def test_a_writers_unknown_samples_go_with_the_writer() -> None:
    groups = np.repeat(np.arange(10), 50)
    settings = DataConfig(labels="client", per_class=1, clients=10, partition="by-writer")
    result = draw_split(EVEN, KNOWN, settings, Streams(0), groups)
    assert all(len(set(groups[part].tolist())) == 1 and len(part) == 50 for part in result.clients)
