"""Robust rules at work in a run: which updates they scale, what they refuse, and what a hostile client can still do."""

from collections.abc import Generator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tacit.aggregation import WeightsDown, WeightsUp
from tacit.engines.in_process import InProcessTransport
from tacit.engines.job import ClientNews, ClientResult, ClientTask, Job
from tacit.engines.merging import clipped
from tacit.engines.upload_updates import declared_fields, sent_for, updates_of, with_updates
from tacit.engines.uploads import Changed, decoded
from tacit.methods.fedavg import FedAvg
from tacit.methods.fedsiam import FedSiamDown, FedSiamUp
from tacit.methods.scaffold import Scaffold, ScaffoldDown, ScaffoldUp
from tacit.objectives import Supervised
from tacit.params import Params, equal, norm, scale, sub
from tacit.protect.config import Protection
from tacit.protect.rules import FALLBACK, parse
from tacit.runs import config as configs
from tacit.runs.build import build_job as build
from tacit.runs.protection import protection_notes
from tests.engines import farm
from tests.refusals import refused
from tests.test_contract import NAMES, build_job, method, supported
from tests.toys import labeled, linear, play_all, with_batchnorm


def model(value: float) -> Params:
    """The weights of the toy network, all alike."""
    return {name: torch.full_like(each, value) for name, each in linear().init(torch.Generator()).items()}


def ruled(job: Job, text: str) -> Job:
    """The job with another rule, as `assemble` makes it."""
    return replace(job, protect=Protection(combine=text), rule=parse(text) or job.rule)


def results(*ups: object) -> dict[int, ClientResult]:
    return {client: ClientResult(up, None, {}) for client, up in enumerate(ups)}


def test_clipped_scales_an_update_to_the_median_length_and_keeps_its_direction() -> None:
    """From w = 1, the updates 2, 1 and -8 in every coordinate are as long as 2 : 1 : 8, so the last one becomes -2."""
    job, down = labeled(FedAvg(Supervised())), WeightsDown(model(1.0))
    given = results(*(WeightsUp(model(1.0 + step), 5) for step in (2.0, 1.0, -8.0)))
    found = clipped(job, dict.fromkeys(range(3), down), given)
    assert [found[k].up is given[k].up for k in range(3)] == [True, True, False], "who is not too long keeps the bits"
    shorter = decoded(found[2].up)
    assert all(torch.allclose(value, torch.tensor(1.0 - 2.0)) for value in shorter.w.values())
    assert shorter.n == 5


def test_clipped_measures_changes_from_zero_and_all_fields_together() -> None:
    """SCAFFOLD's Δy and Δc are changes already. One factor scales both, by the length over both."""
    job = labeled(Scaffold(Supervised()))
    one, down = model(1.0), ScaffoldDown(model(7.0), model(7.0))
    ups = [ScaffoldUp(scale(one, step), scale(one, 2 * step)) for step in (1.0, 1.0, 10.0)]
    last = decoded(clipped(job, dict.fromkeys(range(3), down), results(*ups))[2].up)
    assert all(torch.allclose(value, torch.tensor(1.0)) for value in last.dy.values())
    assert all(torch.allclose(value, torch.tensor(2.0)) for value in last.dc.values())


def test_clipped_scales_batchnorm_statistics_apart_from_weights() -> None:
    job = with_batchnorm(FedAvg(Supervised()))
    w = job.net.init(torch.Generator().manual_seed(0))
    far = {name: value + (100.0 if name in job.net.buffers else 0.0) for name, value in w.items()}
    near = {name: value + 1.0 for name, value in w.items()}
    found = clipped(
        job, dict.fromkeys(range(3), WeightsDown(w)), results(*(WeightsUp(each, 1) for each in (near, near, far)))
    )
    changed = decoded(found[2].up).w
    assert all(torch.allclose(changed[name], near[name], atol=1e-5) for name in job.net.buffers)
    assert all(torch.equal(changed[name], far[name]) for name in job.net.trainable)


def test_a_client_that_sent_nothing_has_no_part_in_the_median() -> None:
    job, down = labeled(FedAvg(Supervised())), WeightsDown(model(0.0))
    given = results(WeightsUp(model(1.0), 1), None, WeightsUp(model(3.0), 1))
    found = clipped(job, dict.fromkeys(range(3), down), given)
    assert found[1].up is None
    assert isinstance(found[2].up, Changed)
    assert norm(decoded(found[2].up).w) == pytest.approx(norm(model(1.0)))


def test_what_was_sent_is_found_by_the_name_of_the_field() -> None:
    a, b = {"x": torch.zeros(1), "y": torch.zeros(1)}, {"y": torch.ones(1)}
    down = FedSiamDown(a, b, 0.5)
    assert sent_for("online", down) == {"x": a["x"], "y": b["y"]}, "layers that did not travel are those of the target"
    assert sent_for("target", down) == a
    assert sent_for("trained.w", WeightsDown(a)) == a
    assert sent_for("x", WeightsDown(a)) == a, "there is only one model"


def test_an_update_and_what_was_sent_give_the_upload_back() -> None:
    job, down = labeled(FedAvg(Supervised())), WeightsDown(model(0.25))
    up = WeightsUp(model(1.5), 4)
    assert equal(updates_of(job.upload_form, up, down)["w"], sub(up.w, down.w))
    back = with_updates(job.upload_form, up, down, updates_of(job.upload_form, up, down))
    assert equal(back.w, up.w)


def test_the_declared_fields_of_an_upload() -> None:
    fields = list(declared_fields(FedSiamUp))
    assert [each.path for each in fields] == ["target", "online", "divergence", "n"]
    assert [type(each.note).__name__ for each in fields] == ["ModelField", "ModelField", "Shaped", "CountField"]
    assert list(declared_fields(None)) == []
    assert [each.note for each in declared_fields(Any)] == [None]


class Hostile(InProcessTransport):
    """Client 0 sends ten times the opposite of its update in every round."""

    def run(self, round: int, tasks: Mapping[int, ClientTask]) -> Generator[ClientNews]:
        for news in super().run(round, tasks):
            if isinstance(news, tuple) and news[0] == 0 and isinstance(news[1], ClientResult):
                up, down = news[1].up, tasks[0].down
                assert isinstance(up, WeightsUp)
                assert isinstance(down, WeightsDown)
                worse = {name: down.w[name] - 10 * (value - down.w[name]) for name, value in up.w.items()}
                yield 0, replace(news[1], up=replace(up, w=worse))
            else:
                yield news


@pytest.mark.parametrize("text", ["clipped", "median", "trimmed:0.2", "krum:1", "multi-krum:1", "bulyan:1"])
def test_a_rule_keeps_the_model_near_that_of_honest_clients(text: str) -> None:
    job = labeled(FedAvg(Supervised()), clients=7, rounds=4)
    honest, fooled = play_all(job).state.w, play_all(job, False, Hostile).state.w
    robust = play_all(ruled(job, text), False, Hostile).state.w
    assert norm(sub(robust, honest)) < 0.5 * norm(sub(fooled, honest))


@pytest.mark.parametrize("text", ["krum:1", "trimmed:0.1", "bulyan:1"])
def test_a_round_with_too_few_uploads_goes_on_and_says_so(text: str) -> None:
    job = ruled(labeled(FedAvg(Supervised()), clients=3, rounds=2), text)
    result = play_all(job)
    assert [record.server[FALLBACK] for record in result.records] == [3, 3]
    assert equal(result.state.w, play_all(ruled(job, "median")).state.w)


@pytest.mark.parametrize("text", ["clipped", "median"])
@pytest.mark.parametrize("name", NAMES)
def test_every_method_runs_with_a_rule_or_says_that_it_cannot(name: str, text: str) -> None:
    job = build_job(name, supported(name)[0])
    models = [each for each in declared_fields(job.upload_form.declared) if type(each.note).__name__ == "ModelField"]
    if models and not method(name).needs.true_mean:
        assert all(not record.skipped for record in play_all(ruled(job, text)).records)


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.fixture
def images(tmp_path: Path) -> str:
    return str(farm.write_images(tmp_path / "images.npz"))


def options(images: str, combine: str, method: str = "fedavg+fixmatch", **more: Any) -> dict[str, Any]:
    labels = {"data": images, "labels": "client", "per_class": 2, "clients": 8, "method": method}
    return labels | {"protect.combine": combine, "workers": 0, "rounds": 2} | more


@pytest.mark.parametrize(
    "combine, method, more, code",
    [
        ("median", "scaffold+fixmatch", {}, "protect.needs-true-mean"),
        ("clipped", "easgd+fixmatch", {}, "protect.needs-true-mean"),
        ("clipped", "fedmatch", {}, "protect.needs-true-mean"),
        ("median", "ssfl", {"labels": "server"}, "protect.needs-true-mean"),
        ("median", "local-only", {}, "protect.nothing-to-combine"),
        ("median", "server-only", {"labels": "server"}, "protect.nothing-to-combine"),
        ("clipped", "fedncm", {}, "protect.nothing-to-combine"),
        ("krum:1", "fedsiam-d", {"labels": "server"}, "protect.several-models"),
        ("krum:3", "fedavg+fixmatch", {}, "protect.too-few-clients"),
        ("bulyan:2", "fedavg+fixmatch", {}, "protect.too-few-clients"),
        ("krum:1", "fedavg+fixmatch", {"cohort": 4}, "protect.too-few-clients"),
        ("trimmed:0.1", "fedavg+fixmatch", {}, "protect.too-few-clients"),
        ("median", "fedavg+fixmatch", {"cohort": 2}, "protect.too-few-clients"),
        ("clipped", "fedavg+fixmatch", {"clients": 2}, "protect.too-few-clients"),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused(
    images: str, combine: str, method: str, more: dict[str, Any], code: str
) -> None:
    config = configs.from_options(options(images, combine, method, **more))
    with refused(code):
        build(config)


@pytest.mark.parametrize("combine", ["clipped", "median", "trimmed:0.2", "krum:2", "bulyan:1"])
def test_a_rule_that_makes_sense_is_built(images: str, combine: str) -> None:
    config = configs.from_options(options(images, combine))
    job, _ = build(config)
    assert config.protect.combine == combine
    assert protection_notes(config, job) == []


def test_few_clients_get_a_notice(images: str) -> None:
    config = configs.from_options(options(images, "median", clients=3))
    assert len(protection_notes(config, build(config)[0])) == 1
    plain = configs.from_options(options(images, "mean", clients=3))
    assert protection_notes(plain, build(plain)[0]) == []
