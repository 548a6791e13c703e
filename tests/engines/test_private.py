"""Client-level differential privacy: who is asked, what one client can change, how much noise, and what is refused."""

import html
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tacit
from tacit import api
from tacit.aggregation import WeightsDown, WeightsState, WeightsUp
from tacit.engines.job import ClientResult, Job
from tacit.engines.private import private_upload
from tacit.engines.record import RoundRecord
from tacit.method import ServerContext
from tacit.methods.anchor import AnchorDown, AnchorUp
from tacit.methods.fedavg import FedAvg
from tacit.objectives import Supervised
from tacit.params import Params, equal, norm, sub
from tacit.protect import noise
from tacit.protect.config import Protection
from tacit.random import Streams
from tacit.runs import config as configs
from tacit.runs import replay
from tacit.runs.build import build_job as build
from tacit.runs.directory import RunDirectory
from tacit.runs.protection import privacy_lines
from tests.engines import farm
from tests.refusals import refused
from tests.test_contract import build_job, method, supported
from tests.toys import labeled, linear, play_all

CLIP = 0.7


def private(given: Job, noise: float | None = 0.0, clip: float | None = CLIP, **more: Any) -> Job:
    return replace(given, protect=Protection(client_noise=noise, client_clip=clip), **more)


def fedavg(clients: int = 6, **options: Any) -> Job:
    return labeled(FedAvg(Supervised()), clients=clients, **options)


def model(value: float) -> Params:
    return {name: torch.full_like(each, value) for name, each in linear().init(torch.Generator()).items()}


def results(ups: Mapping[int, object]) -> dict[int, ClientResult]:
    return {client: ClientResult(up, None, {}) for client, up in ups.items()}


def summed(given: Job, ups: Mapping[int, Params], round: int = 0) -> Params:
    """What the round adds to the model that was sent (zero), times the denominator: the sum of the updates."""
    downs = dict.fromkeys(range(given.federation.clients), WeightsDown(model(0.0)))
    up = private_upload(given, round, downs, results({k: WeightsUp(w, 3) for k, w in ups.items()}))
    assert up.n == 1
    return {name: value * given.cohort for name, value in up.w.items()}


# --- who is asked -----------------------------------------------------------------------------------------------------


def test_every_client_is_asked_with_the_same_probability_independently_of_the_others() -> None:
    """q = 0.3 of 10 clients in 2,000 rounds: shares within five standard deviations, sizes as a binomial has them."""
    given = private(labeled(FedAvg(Supervised()), clients=10, cohort=3))
    cohorts = [given.sample(round) for round in range(2000)]
    asked = np.array([[client in cohort for client in range(10)] for cohort in cohorts])
    deviation = math.sqrt(0.3 * 0.7 / 2000)
    assert np.abs(asked.mean(axis=0) - 0.3).max() < 5 * deviation
    sizes = asked.sum(axis=1)
    assert sizes.var() == pytest.approx(10 * 0.3 * 0.7, rel=0.15), "a fixed size would have no variance"
    together = np.corrcoef(asked.T) - np.eye(10)
    assert np.abs(together).max() < 5 / math.sqrt(2000)


def test_a_cohort_of_all_asks_all() -> None:
    assert private(fedavg()).sample(3) == tuple(range(6))


def test_without_privacy_the_cohort_has_its_size() -> None:
    assert all(len(labeled(FedAvg(Supervised()), clients=10, cohort=3).sample(round)) == 3 for round in range(20))


# --- sensitivity ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1e-3, 0.5, 1.0, 1e4, 1e30])
def test_one_client_changes_the_sum_by_no_more_than_the_bound(length: float) -> None:
    """Whatever it sends, a client that is added to or removed from the round moves the sum by at most C."""
    given, stream = private(fedavg()), torch.Generator().manual_seed(1)
    others = {k: {name: torch.randn(v.shape, generator=stream) for name, v in model(0.0).items()} for k in range(4)}
    worst = {name: torch.randn(v.shape, generator=stream) for name, v in model(0.0).items()}
    worst = {name: value * (length / norm(worst)) for name, value in worst.items()}
    moved = norm(sub(summed(given, {**others, 5: worst}), summed(given, others)))
    assert moved <= CLIP * (1 + 1e-5)
    assert moved == pytest.approx(min(length, CLIP), rel=1e-3, abs=1e-6)


def test_the_bound_is_on_all_fields_of_an_upload_together() -> None:
    """Two fields of length 3 and 4 have length 5 together; with the bound 1 each is scaled by 1/5."""
    update = {"a": {"p": torch.tensor([3.0])}, "b": {"p": torch.tensor([0.0, 4.0])}}
    found = noise.clipped(update, 1.0)
    assert found["a"]["p"].tolist() == pytest.approx([0.6])
    assert found["b"]["p"].tolist() == pytest.approx([0.0, 0.8])
    assert noise.clipped(update, 5.0)["a"]["p"].tolist() == [3.0]


def test_numbers_of_samples_do_not_count() -> None:
    given = private(fedavg())
    downs = dict.fromkeys(range(6), WeightsDown(model(0.0)))
    few, many = (
        private_upload(given, 0, downs, results({0: WeightsUp(model(0.01), n), 1: WeightsUp(model(0.02), 1)}))
        for n in (1, 10**6)
    )
    assert equal(few.w, many.w)


def test_every_declared_number_of_samples_becomes_one() -> None:
    given = private(replace(fedavg(), method=method("anchor")))
    downs = dict.fromkeys(range(6), AnchorDown(model(0.0), torch.tensor(0.5)))
    up = private_upload(given, 0, downs, results({0: AnchorUp(model(0.1), 20, 0)}))
    assert (up.n, up.labeled) == (1, 1)


# --- noise ------------------------------------------------------------------------------------------------------------


def test_the_noise_on_the_sum_has_the_promised_standard_deviation() -> None:
    """z = 2 and C = 0.7: std 1.4 on the sum, before the division. 15 numbers in 400 rounds give it within 4 %."""
    given = private(fedavg(), noise=2.0)
    drawn = torch.cat([value.flatten() for round in range(400) for value in summed(given, {}, round).values()])
    assert float(drawn.std()) == pytest.approx(2.0 * CLIP, rel=0.04)
    assert abs(float(drawn.mean())) < 5 * 2.0 * CLIP / math.sqrt(len(drawn))


def test_the_noise_does_not_depend_on_who_came() -> None:
    given = private(fedavg(), noise=2.0)
    alone, empty = summed(given, {1: model(0.01)}), summed(given, {})
    assert norm(sub(sub(alone, empty), model(0.01))) < 1e-5


def test_the_noise_is_drawn_from_the_secret_if_there_is_one() -> None:
    given = private(fedavg(), noise=1.0)
    hidden = replace(given, secret=123456789)
    assert equal(summed(hidden, {}), summed(replace(given, streams=Streams(7), secret=123456789), {}))
    assert not equal(summed(hidden, {}), summed(given, {}))
    other = [private(labeled(FedAvg(Supervised()), clients=9, cohort=4), secret=s).sample(0) for s in range(5)]
    assert len(set(other)) > 1


def test_a_round_without_clients_adds_noise_alone() -> None:
    """A model that did not move would tell that nobody took part."""
    given = private(labeled(FedAvg(Supervised()), clients=2, cohort=1, rounds=40), noise=1.0)
    empty = [round for round in range(40) if not given.sample(round)]
    assert empty
    states = [moment.w for moment in states_of(given)]
    assert all(norm(sub(states[round], states[round - 1])) > 0 for round in empty if round)


def states_of(given: Job) -> list[Any]:
    from tests.toys import rounds

    return [moment.state for moment in rounds(given)]


# --- the reference ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Uniform(FedAvg):
    """FedAvg with uniform weights and the denominator q·N, written out."""

    def merge(self, server: ServerContext, state: WeightsState, ups: Mapping[int, WeightsUp]) -> WeightsState:
        w = {
            name: (value.double() + sum((up.w[name] - value).double() for up in ups.values()) / 4).to(value)
            for name, value in state.w.items()
        }
        return WeightsState(w, state.carried)


@dataclass(frozen=True)
class Poisson(Job):
    """The cohorts of a private job, without privacy."""

    def sample(self, round: int) -> tuple[int, ...]:
        return private(self).sample(round) if not self.protect.hides_clients else super().sample(round)


def test_without_noise_and_bound_it_is_the_uniform_mean_over_poisson_cohorts_bit_by_bit() -> None:
    given = labeled(FedAvg(Supervised()), clients=9, cohort=4, rounds=4)
    expected = play_all(Poisson(**vars(replace(given, method=Uniform(Supervised())))))
    found = play_all(private(given, 0.0, None))
    assert equal(found.state.w, expected.state.w)
    assert len({record.clients for record in found.records}) > 1


PRIVATE = ["fedavg", "fedprox", "moon", "semifl", "anchor", "overlap-sgd", "fedseal"]


@pytest.mark.parametrize("name", PRIVATE)
def test_every_allowed_method_runs_also_without_clients(name: str) -> None:
    given = build_job(name, supported(name)[0])
    given = private(replace(given, cohort=1), noise=1.0, rounds=6)
    assert any(not given.sample(round) for round in range(6))
    result = play_all(given)
    assert all(not record.skipped for record in result.records)


def test_the_same_seed_gives_the_same_bits_encoded_or_not() -> None:
    given = private(labeled(FedAvg(Supervised()), clients=6, cohort=3), noise=1.0)
    assert equal(play_all(given).state.w, play_all(given, strict=False).state.w)


# --- what is recorded -------------------------------------------------------------------------------------------------


def test_the_record_has_what_was_spent_and_nothing_of_single_clients() -> None:
    given = private(labeled(FedAvg(Supervised()), clients=6, cohort=3, rounds=3), noise=1.0)
    records = play_all(given).records
    for record in records:
        assert record.metrics == {}
        assert record.samples == {}
        assert record.steps == 0
        assert record.privacy is not None
        assert record.privacy["withheld"] == "what clients log"
    epsilons = [record.privacy["client"]["epsilon"] for record in records if record.privacy]
    assert epsilons == sorted(epsilons)
    assert epsilons[0] < epsilons[-1]
    again = RoundRecord.from_json(records[-1].to_json())
    assert again.privacy == records[-1].privacy


def test_an_infinite_epsilon_survives_the_log_as_unknown() -> None:
    record = play_all(private(fedavg(rounds=1))).records[0]
    assert json.loads(record.to_json())["privacy"]["client"]["epsilon"] is None
    assert RoundRecord.from_json(record.to_json()).privacy is not None


def test_without_privacy_the_log_does_not_mention_it() -> None:
    assert "privacy" not in json.loads(play_all(fedavg(rounds=1)).records[0].to_json())


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.fixture
def data(tmp_path: Path) -> str:
    return str(farm.write_images(tmp_path / "images.npz"))


def options(data: str, method: str = "fedavg+fixmatch", **more: Any) -> dict[str, Any]:
    given = {"data": data, "labels": "client", "per_class": 2, "clients": 8, "cohort": 4, "method": method}
    chosen = {"protect.client_noise": 1.0, "protect.client_clip": 1.0, "net.norm": "group", "workers": 0, "rounds": 2}
    return given | chosen | more


@pytest.mark.parametrize(
    "method, more, code",
    [
        ("fedavg+fixmatch", {"protect.combine": "median"}, "protect.rule-and-noise"),
        ("fedavg+fixmatch", {"limits.norm_factor": 10.0}, "protect.limits-and-noise"),
        ("fedavg+fixmatch", {"limits.max_share": 0.5}, "protect.limits-and-noise"),
        ("fedavg+fixmatch", {"log.local": True}, "protect.local-models"),
        ("fedavg+fixmatch", {"protect.delta": 0.2}, "protect.delta-too-large"),
        ("fedavg+fixmatch", {"protect.client_clip": None}, "protect.without-clip"),
        ("fedavg+fixmatch", {"protect.client_noise": None}, "protect.without-noise"),
        ("fedavg+fixmatch", {"net.norm": "batch"}, "protect.batchnorm"),
        ("scaffold+fixmatch", {}, "protect.needs-true-mean"),
        ("fedmatch", {}, "protect.needs-true-mean"),
        ("ssfl", {"labels": "server"}, "protect.needs-true-mean"),
        ("fedsiam-d", {"labels": "server"}, "protect.not-an-update"),
        ("fedmix", {}, "protect.not-an-update"),
        ("fedsem", {}, "protect.separate-uploads"),
        ("fedncm", {}, "protect.nothing-to-combine"),
        ("local-only", {}, "protect.nothing-to-combine"),
    ],
)
def test_privacy_that_makes_no_sense_is_refused(data: str, method: str, more: dict[str, Any], code: str) -> None:
    with refused(code):
        build(configs.from_options(options(data, method, **more)))


def test_batchnorm_is_allowed_if_its_statistics_come_from_the_server(data: str) -> None:
    more = {"net.norm": "batch", "server.buffers": "recompute", "labels": "server"}
    build(configs.from_options(options(data, **more)))


def test_batchnorm_statistics_of_clients_do_not_reach_the_model() -> None:
    given = private(build_job("fedavg", "server"), noise=0.0, clip=None)
    w = given.net.init(torch.Generator().manual_seed(0))
    far = {name: value + 1.0 for name, value in w.items()}
    up = private_upload(given, 0, {0: WeightsDown(w)}, results({0: WeightsUp(far, 1)}))
    assert all(torch.equal(up.w[name], w[name]) for name in given.net.buffers)
    assert not any(torch.equal(up.w[name], w[name]) for name in given.net.trainable)


def test_clients_that_got_different_models_have_no_common_sum() -> None:
    given = private(fedavg())
    downs = {0: WeightsDown(model(0.0)), 1: WeightsDown(model(1.0))}
    with pytest.raises(ValueError, match="different models"):
        private_upload(given, 0, downs, results({}))


# --- a run ------------------------------------------------------------------------------------------------------------


def test_a_run_says_what_it_spends_in_card_folder_and_page(data: str, tmp_path: Path) -> None:
    tacit.run(out=tmp_path / "run", **options(data))
    config = configs.from_options(options(data))
    lines = privacy_lines(config)
    assert len(lines) == 2, "what is spent, and that 8 clients are few"
    card = (tmp_path / "run" / "card.md").read_text()
    assert all(line[1:] in card for line in lines)
    assert "no differential privacy" not in card
    assert RunDirectory(tmp_path / "run").protection() == lines
    page = api.report(tmp_path / "run", out=tmp_path / "page.html").read_text()
    assert "after 2 rounds; not recorded: what clients log" in page
    assert all(line in html.unescape(page) for line in lines)
    with refused("protect.no-return"):
        replay.prepare(RunDirectory(tmp_path / "run"), 1, [])


def test_many_clients_get_no_warning(data: str) -> None:
    config = replace(configs.from_options(options(data)), cohort=10)
    config = replace(config, data=replace(config.data, clients=1000))
    assert len(privacy_lines(config)) == 1
    assert privacy_lines(replace(config, protect=Protection())) == []


def test_delta_is_far_below_one_in_the_number_of_clients() -> None:
    assert Protection().delta_for(3) == 1e-5
    assert Protection().delta_for(10**6) == pytest.approx(10**-6.6)
    assert Protection(delta=1e-3).delta_for(3) == 1e-3
