"""Lists in options: what they hold, and that what they can not hold is one sentence."""

import pytest

from tacit import typed
from tacit.errors import TacitError


def test_each_counts_once_in_the_order_of_the_text() -> None:
    assert typed.names("b, a,,b ,c", "--methods") == ["b", "a", "c"]
    assert typed.seeds("3,1,03") == [3, 1]


@pytest.mark.parametrize("text", ["x", "-1", "1.5", "²", "9" * 5000])
def test_what_is_no_seed_is_one_short_sentence(text: str) -> None:
    with pytest.raises(TacitError, match="is not a seed: give whole numbers") as caught:
        typed.seeds(f"0,{text}")
    assert len(str(caught.value)) < 100
