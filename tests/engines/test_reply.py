"""The header of a reply: numbers keep their bits, failures keep their code, and forged headers are refused."""

import json
import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.engines import failures
from tacit.engines.job import ClientFailure, ClientResult
from tacit.engines.reply import ReplyHeader


@given(st.dictionaries(st.text(), st.floats(), max_size=4), st.booleans(), st.booleans())
def test_a_result_survives_the_way_to_another_process(metrics: dict[str, float], memory: bool, up: bool) -> None:
    metrics.pop("steps", None)
    result = ClientResult("up" if up else None, b"memory" if memory else None, metrics)
    header = ReplyHeader.from_json(ReplyHeader.of(result).to_json())
    assert (header.has_memory, header.has_up, header.failure) == (memory, up, None)
    assert list(header.metrics) == list(metrics)
    for name, value in metrics.items():
        assert struct.pack("<d", header.metrics[name]) == struct.pack("<d", value) or math.isnan(value)
    outcome = header.outcome(result.memory, result.up)
    assert isinstance(outcome, ClientResult)
    assert (outcome.memory, outcome.up) == (result.memory, result.up)


def test_a_failure_survives_the_way_to_another_process() -> None:
    try:
        raise OSError("the disk\nis gone")
    except OSError as error:
        failure = failures.failed(error)
    assert (failure.code, failure.reason) == ("client.failed", "failed: OSError: the disk is gone")
    assert "Traceback" in failure.detail
    assert ReplyHeader.from_json(ReplyHeader.of(failure).to_json()).outcome(None, None) == failure


@pytest.mark.parametrize(
    "values",
    [
        None,
        [],
        "text",
        7,
        {},
        {"memory": True, "up": True},
        {"memory": 1, "up": True, "metrics": {}},
        {"memory": True, "up": "no", "metrics": {}},
        {"memory": True, "up": True, "metrics": []},
        {"memory": True, "up": True, "metrics": {"loss": "0.5"}},
        {"memory": True, "up": True, "metrics": {"loss": None}},
        {"memory": True, "up": True, "metrics": {"loss": 10**400}},
        {"memory": True, "up": True, "metrics": {"steps": math.nan}},
        {"failure": None},
        {"failure": {"code": "client.failed", "reason": "failed"}},
        {"failure": {"code": "client.failed", "reason": ["failed"], "detail": ""}},
    ],
)
def test_anything_else_is_refused(values: object) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        ReplyHeader.from_json(json.dumps(values))


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, b"\xff", '{"memory": ' + "9" * 5000 + "}"])
def test_text_that_is_not_json_is_refused(text: str | bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        ReplyHeader.from_json(text)


def test_failures_have_distinct_codes_of_one_room() -> None:
    every = [
        failures.worker_died(),
        failures.too_slow(3.0),
        failures.upload_lost(),
        failures.not_finite(),
        failures.failed(ValueError("boom")),
        failures.not_connected(),
        failures.refused("it has no data"),
        failures.unreadable(ValueError("boom")),
        failures.unreachable(),
        failures.no_answer(),
        failures.disconnected(),
    ]
    assert len({failure.code for failure in every}) == len(every)
    assert all(failure.code.startswith("client.") and failure.reason for failure in every)
    assert failures.too_slow(3.0).reason == "took longer than 3.0 s"


def test_bytes_are_added_by_the_transport() -> None:
    result = ClientResult(None, None, {}).with_bytes(10, 4)
    assert (result.bytes_down, result.bytes_up) == (10, 4)
    failure = ClientFailure("client.failed", "failed").with_bytes(10)
    assert (failure.bytes_down, failure.bytes_up) == (10, 0)
