"""An error in a method names the function and the round; the run can be resumed once the method is fixed."""

from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from traceback import format_exception
from typing import Any

import pytest

from tacit.engines.in_process import InProcessTransport
from tacit.engines.job import Job, RunState, Transport
from tacit.engines.memory import Memories
from tacit.engines.rounds import MethodFailedError, TooFewClientsError, run_rounds
from tacit.engines.workers import WorkerTransport
from tacit.methods.fedavg import FedAvg
from tacit.objectives import Supervised
from tests.toys import federation, job, linear, points


def broken(**functions: Callable[..., Any]) -> Any:
    """FedAvg with some functions replaced."""
    return type("Broken", (FedAvg,), functions)(Supervised(view="plain"))


def boom(*_: Any) -> Any:
    raise ValueError("boom")


@pytest.mark.parametrize(
    "method, problem",
    [
        (broken(start=boom), "start of Broken failed in round 1: ValueError: boom"),
        (broken(send=boom), "send of Broken failed in round 1: ValueError: boom"),
        (broken(send=lambda *_: None), "send of Broken failed in round 1: TypeError"),
        (broken(send=lambda _, __, state: (state, {99: None})), "there is no client 99, only 0 to 1"),
        (broken(merge=boom), "merge of Broken failed in round 1: ValueError: boom"),
        (broken(model=boom), "model of Broken failed in round 1: ValueError: boom"),
        (broken(model=lambda *_: 3), "it must return Params or None, not int"),
        (broken(client_update=lambda *_: 5), "client_update must return a Reply, not int"),
    ],
)
def test_an_error_names_the_method_and_its_function(method: Any, problem: str, tmp_path: Path) -> None:
    given = job(method, federation([points(0, 8), points(1, 8)]), linear())
    run_state = RunState(Memories(tmp_path, 10**6))
    with pytest.raises((MethodFailedError, TooFewClientsError)) as caught:
        list(run_rounds(given, InProcessTransport(given), run_state))
    assert problem in caught.value.problem
    assert "round 1" in caught.value.problem
    assert "\n" not in str(caught.value)
    assert caught.value.resumable
    assert run_state.round == 0
    if isinstance(caught.value, MethodFailedError):
        assert caught.value.code == "method.failed"
        assert caught.value.__cause__ is not None


@pytest.mark.parametrize("make", [InProcessTransport, partial(WorkerTransport, workers=2)])
def test_a_model_that_cannot_be_evaluated_names_the_error(make: Callable[[Job], Transport], tmp_path: Path) -> None:
    short = broken(model=lambda _, state: {name: value[..., :1] for name, value in state.w.items()})
    given = job(short, federation([points(0, 8), points(1, 8)], test=points(2, 8)), linear())
    run_state = RunState(Memories(tmp_path, 10**6))
    with closing(make(given)) as transport, pytest.raises(MethodFailedError) as caught:
        list(run_rounds(given, transport, run_state))
    assert caught.value.problem.startswith("evaluation of Broken failed")
    assert "RuntimeError" in caught.value.problem
    assert (caught.value.code, caught.value.resumable) == ("method.failed", True)
    assert "score_part" in "".join(format_exception(caught.value.__cause__))
    assert run_state.round == 0
