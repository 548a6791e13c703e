"""What a method does wrong is one sentence that names function and round; the run can go on once it is mended."""

import re
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from traceback import format_exception
from typing import Any

import pytest

from tacit.engines.inline import InlineCourier
from tacit.engines.local import LocalCourier
from tacit.engines.loop import Courier, Job, MethodFailedError, Position, play
from tacit.engines.memory import Memories
from tacit.methods.fedavg import FedAvg
from tacit.objectives import Supervised
from tests.toys import federation, job, linear, points


def broken(**functions: Callable[..., Any]) -> Any:
    """FedAvg with some functions replaced."""
    return type("Broken", (FedAvg,), functions)(Supervised(view="plain"))


def boom(*_: Any) -> Any:
    raise ValueError("boom")


@pytest.mark.parametrize(
    "method, sentence",
    [
        (broken(start=boom), "start of Broken failed in round 1: ValueError: boom; mend it, then resume"),
        (broken(send=boom), "send of Broken failed in round 1: ValueError: boom"),
        (broken(send=lambda *_: None), "send of Broken failed in round 1: TypeError"),
        (broken(send=lambda _, __, state: (state, {99: None})), "there is no client 99, only 0 to 1"),
        (broken(merge=boom), "merge of Broken failed in round 1: ValueError: boom"),
        (broken(model=boom), "model of Broken failed in round 1: ValueError: boom"),
        (broken(model=lambda *_: 3), "it must return Params or None, not int"),
        (broken(client_update=lambda *_: 5), "client_update must return a Reply, not int"),
    ],
)
def test_a_method_that_fails_is_named_with_its_function(method: Any, sentence: str, tmp_path: Path) -> None:
    given = job(method, federation([points(0, 8), points(1, 8)]), linear())
    position = Position(Memories(tmp_path, 10**6))
    with pytest.raises(Exception, match="round 1") as caught:
        list(play(given, InlineCourier(given), position))
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)
    assert position.round == 0
    if isinstance(caught.value, MethodFailedError):
        assert caught.value.__cause__ is not None


@pytest.mark.parametrize("carrier", [InlineCourier, partial(LocalCourier, workers=2)])
def test_a_model_that_can_not_be_evaluated_says_why(carrier: Callable[[Job], Courier], tmp_path: Path) -> None:
    short = broken(model=lambda _, state: {name: value[..., :1] for name, value in state.w.items()})
    given = job(short, federation([points(0, 8), points(1, 8)], test=points(2, 8)), linear())
    position = Position(Memories(tmp_path, 10**6))
    with closing(carrier(given)) as courier, pytest.raises(MethodFailedError) as caught:
        list(play(given, courier, position))
    assert re.fullmatch(r"evaluation of Broken failed.*: RuntimeError: .*; mend it, then resume", str(caught.value))
    assert "score_part" in "".join(format_exception(caught.value.__cause__))
    assert position.round == 0
