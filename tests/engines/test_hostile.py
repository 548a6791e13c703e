"""Hostile clients of a simulation: what each attack sends, who attacks, and that nothing changes without them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tacit.aggregation import WeightsDown, WeightsUp
from tacit.engines.faults import Faults
from tacit.engines.hostile import attacked, hostile_update
from tacit.engines.job import ClientResult, Job
from tacit.methods.fedavg import FedAvg
from tacit.objectives import Supervised
from tacit.params import Params, equal, norm, sub
from tacit.runs import config as configs
from tacit.runs.build import build_job as build
from tacit.runs.without_effect import without_effect
from tests.engines import farm
from tests.refusals import refused
from tests.test_contract import NAMES, build_job, supported
from tests.toys import labeled, linear, play_all

ATTACKS = ["sign", "scale", "random", "little", "labels"]


def stream() -> torch.Generator:
    return torch.Generator().manual_seed(3)


def update(*values: float) -> dict[str, Params]:
    return {"w": {"p": torch.tensor(values, dtype=torch.float32)}}


def model(value: float) -> Params:
    return {name: torch.full_like(each, value) for name, each in linear().init(torch.Generator()).items()}


def with_faults(job: Job, **values: Any) -> Job:
    return replace(job, faults=Faults(**values))


@pytest.mark.parametrize(
    "attack, strength, expected", [("sign", None, [-1, 2]), ("sign", 3.0, [-3, 6]), ("scale", None, [10, -20])]
)
def test_scaled_and_flipped_updates(attack: str, strength: float | None, expected: list[float]) -> None:
    assert hostile_update(attack, strength, update(1, -2), [], stream())["w"]["p"].tolist() == expected


def test_a_random_update_is_as_long_as_the_honest_one() -> None:
    found = hostile_update("random", 2.0, update(3, 4), [], stream())["w"]["p"]
    assert float(found.norm()) == pytest.approx(2 * 5)
    assert found.tolist() != [6, 8]


def test_a_little_is_mean_plus_s_times_std_of_the_honest_ones() -> None:
    """Coordinate 1 has the values 1 and 3, mean 2 and std 1; coordinate 2 the value 5 twice."""
    found = hostile_update("little", 1.5, update(99, 99), [update(1, 5), update(3, 5)], stream())
    assert found["w"]["p"].tolist() == [2 + 1.5, 5]


def test_hostile_clients_are_drawn_once_and_differ_by_seed() -> None:
    jobs = [with_faults(labeled(FedAvg(Supervised()), clients=9, seed=seed), hostile=2) for seed in range(6)]
    assert all(len(job.hostile) == 2 for job in jobs)
    assert len({job.hostile for job in jobs}) > 1
    assert jobs[0].hostile == with_faults(labeled(FedAvg(Supervised()), clients=9), hostile=2).hostile


def test_only_hostile_clients_change_what_they_send() -> None:
    job = with_faults(labeled(FedAvg(Supervised()), clients=4), hostile=1, attack="scale", strength=2.0)
    down, (evil,) = WeightsDown(model(1.0)), job.hostile
    given = {k: ClientResult(WeightsUp(model(1.5), 7), None, {}) for k in range(4)}
    found = attacked(job, 0, dict.fromkeys(range(4), down), given)
    assert all(found[k] is given[k] for k in range(4) if k != evil)
    bad = found[evil]
    assert isinstance(bad, ClientResult)
    assert isinstance(bad.up, WeightsUp)
    assert equal(bad.up.w, model(2.0)), "1 + 2·0.5"
    assert bad.up.n == 7


def test_a_hostile_client_with_nothing_to_send_copies_an_honest_one() -> None:
    job = with_faults(labeled(FedAvg(Supervised()), clients=2), hostile=1)
    (evil,) = job.hostile
    up = WeightsUp(model(1.0), 20)
    given = {k: ClientResult(None if k == evil else up, None, {}) for k in range(2)}
    found = attacked(job, 0, dict.fromkeys(range(2), WeightsDown(model(0.0))), given)[evil]
    assert isinstance(found, ClientResult)
    assert isinstance(found.up, WeightsUp)
    assert equal(found.up.w, model(-1.0))


def test_flipped_labels_are_the_last_class_but_c_and_stay_at_hostile_clients() -> None:
    job = with_faults(labeled(FedAvg(Supervised()), clients=3), hostile=1, attack="labels")
    for client in range(3):
        true, seen = job.federation.client(client, 0).y, job.client(0, client).data.y
        assert torch.equal(seen, 2 - true if client in job.hostile else true)


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_harms_the_model_and_the_same_seed_gives_the_same_bits(attack: str) -> None:
    job = labeled(FedAvg(Supervised()), clients=4, rounds=2)
    evil = with_faults(job, hostile=1, attack=attack)
    honest, found = play_all(job).state.w, play_all(evil).state.w
    assert norm(sub(found, honest)) > 0.01
    assert equal(play_all(evil, strict=False).state.w, found)


@pytest.mark.parametrize("attack", ATTACKS)
def test_without_hostile_clients_no_attack_changes_a_bit(attack: str) -> None:
    job = labeled(FedAvg(Supervised()), clients=3, rounds=2)
    assert equal(play_all(with_faults(job, hostile=0, attack=attack)).state.w, play_all(job).state.w)


@pytest.mark.parametrize("name", NAMES)
def test_no_method_fails_with_a_hostile_client(name: str) -> None:
    job = with_faults(build_job(name, supported(name)[0]), hostile=1)
    assert all(not record.skipped for record in play_all(job).records)


@pytest.fixture
def images(tmp_path: Path) -> str:
    return str(farm.write_images(tmp_path / "images.npz"))


@pytest.mark.parametrize(
    "faults, more, code",
    [
        ({"hostile": 4}, {}, "faults.all-hostile"),
        ({"hostile": 1, "attack": "labels", "strength": 2.0}, {}, "faults.no-strength"),
        ({"hostile": 1, "attack": "labels"}, {"labels": "server"}, "faults.no-labels"),
        ({"hostile": 1}, {"method": "fedmatch"}, "faults.nothing-to-attack"),
        ({"hostile": 1}, {"method": "local-only"}, "faults.nothing-to-attack"),
    ],
)
def test_an_attack_that_makes_no_sense_is_refused(
    images: str, faults: dict[str, Any], more: dict[str, Any], code: str
) -> None:
    options = {"data": images, "clients": 4, "labels": "client", "per_class": 2, "method": "fedavg+fixmatch", **more}
    with refused(code):
        build(configs.from_options(options | {f"faults.{name}": value for name, value in faults.items()}))


def test_an_attack_without_hostile_clients_has_no_effect(images: str) -> None:
    options = {"data": images, "clients": 4, "labels": "client", "per_class": 2, "method": "fedavg+fixmatch"}
    config = configs.from_options(options | {"faults.attack": "little"})
    assert any("faults.attack" in line for line in without_effect(config, build(config)[0].federation))
