"""Clients' models are combined in one place, `server.combine`, so that another rule can take the place of the mean."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tacit.engines.events import round_records
from tacit.engines.in_process import InProcessTransport
from tacit.engines.job import Job, RunState
from tacit.engines.memory import Memories
from tacit.engines.record import RoundRecord
from tacit.engines.rounds import run_rounds
from tacit.params import Params, mean, scale
from tests.test_contract import NAMES, build_job, method, supported

NO_MODELS = {"local-only", "server-only"}  # nothing of theirs is combined
SUM = {"easgd", "fed3r", "fedcof", "fedncm"}  # they add statistics or differences up, as their papers do


def rounds_of(job: Job, run_state: RunState | None = None) -> list[RoundRecord]:
    """All rounds of a job."""
    state = run_state or RunState(Memories(Path(), sys.maxsize))
    return list(round_records(run_rounds(job, InProcessTransport(job), state)))


def state_of(job: Job) -> bytes:
    """The state after all rounds, as bytes."""
    run_state = RunState(Memories(Path(), limit=sys.maxsize))
    rounds_of(job, run_state)
    return job.codec.encode(run_state.state)


class Recorded:
    """The mean, which counts how often it is asked for and of how many models."""

    def __init__(self) -> None:
        self.calls: list[int] = []

    def __call__(self, models: Iterable[Mapping[str, Tensor]], weights: Sequence[float] | None = None) -> Params:
        given = list(models)
        self.calls.append(len(given))
        return mean(given, weights)


@pytest.mark.parametrize("name", NAMES)
def test_every_method_combines_models_through_the_server(name: str) -> None:
    job, rule = build_job(name, supported(name)[0]), Recorded()
    assert state_of(replace(job, rule=rule)) == state_of(job), "the default rule is the mean, bit by bit"
    uploads = any(record.bytes_up for record in rounds_of(job))  # SemiFL's toy clients are never confident enough
    assert bool(rule.calls) == (uploads and name not in NO_MODELS | SUM)


def test_another_rule_takes_the_place_of_the_mean() -> None:
    job = build_job("fedavg", "client")
    halved = replace(job, rule=lambda models, weights: scale(mean(models, weights), 0.5))
    assert state_of(halved) != state_of(job)


@pytest.mark.parametrize("name", ["scaffold", "fedmatch", "ssfl", *sorted(SUM)])
def test_methods_that_work_with_the_mean_alone_declare_it(name: str) -> None:
    assert method(name).needs.true_mean


def test_the_mean_takes_each_model_once() -> None:
    made = []

    def models() -> Iterable[Params]:
        for value in (1.0, 2.0, 6.0):
            made.append(value)
            yield {"w": torch.tensor([value])}

    assert mean(models(), [1.0, 1.0, 2.0])["w"].item() == pytest.approx((1 + 2 + 12) / 4)
    assert made == [1.0, 2.0, 6.0]
    assert mean(models())["w"].item() == pytest.approx(3.0)
