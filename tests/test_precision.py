"""`train.precision`: bf16 and fp16 change the passes of a network and nothing else."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from tacit.engines.in_process import InProcessTransport
from tacit.engines.job import Job
from tacit.engines.workers import WorkerTransport
from tacit.learn import fit, training
from tacit.method import Training
from tacit.methods.fedavg import FedAvg
from tacit.nets import Precision
from tacit.objectives import FixMatch, Supervised
from tacit.runs import estimate as estimates
from tacit.runs.config import from_options
from tacit.runs.estimate import Traced, bf16_line
from tests.engines import farm
from tests.engines.farm import run_job
from tests.toys import alone, apart, hide, images, normed, same

LOWER: list[Precision] = ["bf16", "fp16"]
TRAIN = Training(batch=4, steps=3, lr=0.05)


def trained(precision: Precision | None, **train: Any) -> Any:
    job = alone(FedAvg(), hide(images(0, 12), 6), normed(), train=replace(TRAIN, precision=precision, **train))
    client = job.client(0, 0)
    return fit(client, client.initial(), FixMatch(threshold=0.3)).params


def test_the_default_is_fp32() -> None:
    net = normed()
    assert net.with_precision(None) is net
    assert net.with_precision("fp32") is net
    assert same(trained("fp32"), trained(None))


@pytest.mark.parametrize("precision", LOWER)
def test_passes_are_rounded_and_weights_are_not(precision: Precision) -> None:
    net, x = normed(), torch.randn(3, 1, 16, 16)
    w = net.init(torch.Generator().manual_seed(0))
    full, low = net.apply(w, x), net.with_precision(precision).apply(w, x)
    assert low.dtype == torch.float32
    assert not torch.equal(low, full)
    assert torch.allclose(low, full, atol=0.05)
    found, expected = trained(precision), trained(None)
    assert all(value.dtype == torch.float32 for value in found.values())
    assert 0 < apart(*({name: w[name] for name in net.trainable} for w in (found, expected))) < 0.05


@pytest.mark.parametrize("precision", LOWER)
def test_features_have_the_type_of_the_weights(precision: Precision) -> None:
    net, x = normed(), torch.randn(3, 1, 16, 16)
    z, logits = net.with_precision(precision).features_and_logits(net.init(torch.Generator().manual_seed(0)), x)
    assert z.dtype == logits.dtype == torch.float32


@pytest.mark.parametrize("precision", LOWER)
def test_any_number_of_workers_gives_the_same_bits(precision: Precision) -> None:
    job = _job(precision)
    expected = run_job(job, InProcessTransport(job))
    assert expected != run_job(_job(None), InProcessTransport(_job(None)))
    assert run_job(job, WorkerTransport(job, 2)) == expected


def _job(precision: Precision | None) -> Job:
    job = farm.job(FedAvg(FixMatch(threshold=0.4)), rounds=2)
    return replace(job, train=replace(job.train, precision=precision))


def test_the_server_may_have_its_own_precision() -> None:
    config = from_options({"train.precision": "bf16", "server.precision": "fp32", "labels": "server"})
    assert (config.train.precision, config.server_train.precision) == ("bf16", "fp32")


def test_a_gradient_that_overflows_in_fp16_changes_nothing_and_halves_the_scale(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = alone(FedAvg(), images(0, 12), normed(), train=replace(TRAIN, precision="fp16", momentum=0.0))
    client = job.client(0, 0)
    start = {name: value for name, value in client.initial().items() if name in client.net.trainable}

    def after(steps: int, scale: float) -> dict[str, torch.Tensor]:
        monkeypatch.setattr(training, "LOSS_SCALE", scale)
        here = replace(client, train=replace(client.train, steps=steps))
        found = fit(here, client.initial(), Supervised()).params
        return {name: found[name] for name in start}

    assert same(after(3, 2.0**100), start)
    assert apart(after(3, 1024.0), start) > 1e-3
    assert apart(after(90, 2.0**100), start) > 1e-3  # halved until it fits


def test_the_scale_of_the_loss_does_not_show_in_the_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = trained("fp16")
    monkeypatch.setattr(training, "LOSS_SCALE", 2048.0)
    assert apart(trained("fp16"), expected) < 1e-4


def test_fp32_given_and_not_given_are_the_same_run() -> None:
    plain, given, other = (from_options({"train.precision": value}) for value in (None, "fp32", "bf16"))
    assert plain.fingerprints() == given.fingerprints()
    assert plain.fingerprints() != other.fingerprints()


@pytest.mark.parametrize("half, said", [(0.5, True), (0.9, False), (1.7, False)])
def test_bf16_is_mentioned_where_it_pays(half: float, said: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimates, "trace", lambda job, precision: Traced(half if precision == "bf16" else 1.0, 0.0))
    job = _job(None)
    line = bf16_line(job)
    assert (line is not None) == said
    assert line is None or "train.precision=bf16" in line
    assert bf16_line(_job("bf16")) is None
