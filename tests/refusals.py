"""Expect a refusal by its code, not by its wording."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tacit.errors import TacitError


class Refusal:
    """The error that was caught, once the block is over."""

    error: TacitError


@contextmanager
def refused(code: str) -> Iterator[Refusal]:
    """The block must raise a TacitError with this code."""
    caught = Refusal()
    with pytest.raises(TacitError) as info:
        yield caught
    caught.error = info.value
    assert info.value.code == code, f"expected {code}, got {info.value.code}: {info.value}"
