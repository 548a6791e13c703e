"""The record of a round survives its one form in JSON."""

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.engines.record import RoundRecord

NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
COUNTS = st.integers(min_value=0, max_value=2**60)
NAMES = st.text(min_size=1, max_size=8)
SPREADS = st.fixed_dictionaries({"mean": NUMBERS, "min": NUMBERS, "max": NUMBERS})
CLIENTS = st.integers(min_value=0, max_value=10**6)
RECORDS = st.builds(
    RoundRecord,
    round=COUNTS,
    seconds=NUMBERS,
    accuracy=st.none() | NUMBERS,
    loss=st.none() | NUMBERS,
    local_accuracy=st.none() | NUMBERS,
    clients=COUNTS,
    steps=COUNTS,
    bytes_down=COUNTS,
    bytes_up=COUNTS,
    traffic=st.dictionaries(CLIENTS, st.tuples(COUNTS, COUNTS), max_size=3),
    metrics=st.dictionaries(NAMES, SPREADS, max_size=3),
    server=st.dictionaries(NAMES, NUMBERS, max_size=3),
    skipped=st.dictionaries(CLIENTS, st.text(), max_size=3),
    samples=st.dictionaries(CLIENTS, COUNTS, max_size=3),
    codes=st.dictionaries(CLIENTS, NAMES, max_size=3),
)


@given(RECORDS)
def test_a_record_survives_json(record: RoundRecord) -> None:
    line = record.to_json()
    assert "\n" not in line
    assert RoundRecord.from_json(line) == record
    assert RoundRecord.from_json(line.encode()) == record


@given(RECORDS, st.sampled_from([math.nan, math.inf, -math.inf]))
def test_a_number_that_is_not_finite_becomes_null(record: RoundRecord, number: float) -> None:
    odd = replace(record, loss=number, server={"odd": number}, metrics={"m": {"mean": number}})

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    values = json.loads(odd.to_json(), parse_constant=refuse)
    assert (values["loss"], values["server"], values["metrics"]) == (None, {"odd": None}, {"m": {"mean": None}})
    assert RoundRecord.from_json(odd.to_json()).loss is None


@given(RECORDS)
def test_a_record_of_an_earlier_version_has_no_codes(record: RoundRecord) -> None:
    older = {name: value for name, value in json.loads(record.to_json()).items() if name != "codes"}
    assert RoundRecord.from_json(json.dumps(older)) == replace(record, codes={})


@given(RECORDS)
def test_tracebacks_are_not_in_the_json(record: RoundRecord) -> None:
    assert replace(record, details={1: "Traceback"}).to_json() == record.to_json()
    assert record.as_dict() == json.loads(record.to_json())


@given(RECORDS, st.data())
def test_a_record_without_one_of_its_fields_is_refused(record: RoundRecord, data: st.DataObject) -> None:
    values = record.as_dict()
    newer = {"samples", "validation", "rejected", "selected", "stopped", "codes"}  # than records of 0.1
    values.pop(data.draw(st.sampled_from(sorted(values.keys() - newer))))
    with pytest.raises(ValueError, match="not the record of a round"):
        RoundRecord.from_json(json.dumps(values))


@pytest.mark.parametrize("field, value", [("traffic", 3), ("traffic", {"0": 3}), ("metrics", []), ("round", None)])
def test_a_record_with_a_field_of_another_type_is_refused(field: str, value: Any) -> None:
    plain = RoundRecord(0, 1.0, None, None, None, 0, 0, 0, 0, {}, {}, {}, {})
    with pytest.raises(ValueError, match="not the record of a round"):
        RoundRecord.from_json(json.dumps(plain.as_dict() | {field: value}))


@pytest.mark.parametrize("line", ["", "[]", "null", "3", '"round"', "{}", '{"round": 1'])
def test_other_text_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match="."):
        RoundRecord.from_json(line)
